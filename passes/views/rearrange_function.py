"""The function of standard operators behind `ai.rnnqc::Rearrange` and its other names (docs/rearrange.md)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx

from rnnqc.cells.fused_nodes import CONFIGURATION
from rnnqc.cells.rearrange_nodes import OPERATOR, input_name, output_name
from rnnqc.ir import DOMAIN, Model, Node, Value, Variable, constant_array
from rnnqc.ir.builder import Builder
from rnnqc.passes.render.cell_function import CellFunction, checked_constant, scratch_model

_AXES_OF_SLICE = "Slice", 3
"""Of which ONNX's shape inference makes a wrong shape where they are not constant."""


def rearrange_function(
    model: Model, nodes: Sequence[Node], sources: Sequence[Value], outputs: Sequence[Value]
) -> tuple[int, onnx.FunctionProto] | None:
    """Returns the number of a configuration, and its function, still without a name.

    Args:
        model: The model of the nodes.
        nodes: Operators that move elements of the sources, in order.
        sources: The function's inputs.
        outputs: The function's outputs.

    Returns:
        None for nodes without an integer operand: the function needs one to check its configuration.
    """
    scratch = scratch_model(model.opset, model.ir_version)
    b = Builder(scratch)
    inside: dict[int, Value] = {id(v): Variable(input_name(k), dtype=np.float32) for k, v in enumerate(sources)}
    made = {id(v): Variable(output_name(k), dtype=np.float32) for k, v in enumerate(outputs)}
    insists: Node | None = None

    for node in nodes:
        inputs: list[Value] = []
        for position, value in enumerate(node.inputs):
            array = constant_array(value)
            if id(value) in inside or not value.name or array is None:
                inputs.append(inside.get(id(value), value))
                continue
            constant: Value = scratch.constant(array, array.dtype)
            if insists is None and array.dtype == np.int64 and (node.op, position) != _AXES_OF_SLICE:
                constant, insists = checked_constant(b, constant)
            inputs.append(constant)
        results = [made[id(v)] if id(v) in made else b.value("moved") if v.name else v for v in node.outputs]
        inside |= {id(v): r for v, r in zip(node.outputs, results, strict=True)}
        b.add(node.op, inputs, results, "moved", **node.attrs)
    if insists is None:
        return None
    function = onnx.FunctionProto(domain=DOMAIN, name=OPERATOR)
    function.doc_string = "Moves elements, and computes nothing."
    function.input.extend(input_name(k) for k in range(len(sources)))
    function.output.extend(output_name(k) for k in range(len(outputs)))
    function.attribute.append(CONFIGURATION)
    function.opset_import.add(domain="", version=model.opset)
    body = CellFunction(function, b.nodes, scratch, insists)
    return body.number, body.numbered(body.number)
