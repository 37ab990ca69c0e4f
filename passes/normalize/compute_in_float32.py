"""Makes float16 and float64 recurrent nodes compute in float32."""

from __future__ import annotations

from typing import Any

import numpy as np

from rnnqc.cells.types import CELL_TYPES, output_names
from rnnqc.errors import Outcome, Remark
from rnnqc.evaluation.numerics import Bitwise, Float16Close
from rnnqc.ir import (
    Constant,
    Graph,
    Model,
    Node,
    Value,
    constant_array,
    display_name,
    dtype_of,
    info,
    input_or_none,
    output_or_none,
    shape_of,
)
from rnnqc.ir.builder import Builder, onnx_type
from rnnqc.passes.base import Pass, PassInfo, PassResult
from rnnqc.passes.graph.float16_products import casts_behind_transpose, float32_of
from rnnqc.passes.graph.nodes.lstm_node import INITIAL_C, INITIAL_H, INPUT_NAMES, TYPE_TAG, B, P, R, W, X, is_recurrent
from rnnqc.passes.invariants import Property

OTHER_TYPES = (np.dtype(np.float16), np.dtype(np.float64))
WEIGHTS, VALUES = (W, R, B, P), (X, INITIAL_H, INITIAL_C)


class ComputeInFloat32(Pass):
    """Puts Casts around float16 and float64 recurrent nodes, so that their cells are float32.

    Before: `LSTM(X, W, R, B, sequence_lens, initial_h, initial_c, P)` in float16 or float64

    After: `Cast(X), Cast(initial_h), Cast(initial_c) -> float32 LSTM -> Cast`, with float32 weights

    onnxruntime's CPU kernels are float32, too: it puts Casts around a float16 layer itself and refuses float64. So
    float16 results stay within float16 rounding, and float64 results get float32 rounding. Where a Cast to float16 and
    one back come together, onnxruntime removes both.

    * A node keeps its type, and stays float, if its weights are not constant or exceed float32.
    * So does a bfloat16 node, which onnxruntime does not load.
    * An input behind a Transpose is cast before the Transpose. So is that of a float32 node, of which Casts in a
      float16 model make float32 behind the Transpose.
    """

    info = PassInfo(
        name="compute-in-float32",
        summary="compute float16 and float64 recurrent nodes in float32",
        numerics=Float16Close(),
        requires=frozenset({Property.CANONICAL}),
    )
    infers_shapes = True

    def run(self, model: Model) -> PassResult:
        """Looks at every recurrent node of every graph."""
        remarks: list[Remark] = []
        moved = 0
        converted: dict[int, Constant] = {}
        for path, graph in list(model.paths()):
            for node in [n for n in graph.nodes if is_recurrent(n)]:
                dtype = dtype_of(input_or_none(node, W))
                if dtype in OTHER_TYPES and all(_fits(node, k, dtype) for k in WEIGHTS):
                    assert dtype is not None
                    _convert(model, graph, node, dtype, converted)
                    info(node).metadata[TYPE_TAG] = str(dtype)
                    name = f"{path}{display_name(node)}"
                    remarks.append(self.remark(Outcome.NOTE, name, node.op, f"of {dtype}, computes in float32."))
                elif dtype == np.float32:
                    moved += _cast_before_transposes(model, graph, node)
        done = {"nodes": len(remarks), "moved": moved}
        modified = any(done.values())
        return PassResult(modified, tuple(remarks), done, None if modified else Bitwise())


def _cast_before_transposes(model: Model, graph: Graph, node: Node) -> int:
    """Makes inputs of a float32 node float32 in front of a Transpose, not behind; returns how many."""
    b = Builder(model, prefix=display_name(node))
    moved = 0
    for k in VALUES:
        value = input_or_none(node, k)
        behind = None if value is None else casts_behind_transpose(value)
        if value is not None and behind is not None and dtype_of(behind[0].inputs[0]) != np.float32:
            node.inputs[k] = float32_of(b, value, INPUT_NAMES[k])
            moved += 1
    model.insert_nodes(graph, node, b.nodes)
    return moved


def _fits(node: Node, k: int, dtype: np.dtype[Any]) -> bool:
    """Whether input k is absent, or a constant of the type that float32 can hold."""
    value = input_or_none(node, k)
    if value is None:
        return True
    array = constant_array(value)
    if array is None or array.dtype != dtype:
        return False
    return not np.isfinite(array).all() or float(np.abs(array).max(initial=0)) <= float(np.finfo(np.float32).max)


def _convert(model: Model, graph: Graph, node: Node, dtype: np.dtype[Any], converted: dict[int, Constant]) -> None:
    around = Builder(model, prefix=display_name(node))
    for k in WEIGHTS:
        value = input_or_none(node, k)
        if value is not None:
            node.inputs[k] = _weight(model, value, converted)
    for k in VALUES:
        value = input_or_none(node, k)
        if value is not None:
            node.inputs[k] = float32_of(around, value, INPUT_NAMES[k])
    before, around.nodes = around.nodes, []
    for k, name in enumerate(output_names(CELL_TYPES[node.op])):
        target = output_or_none(node, k)
        if target is not None:
            inner = around.value(f"{name}.float32", np.float32, shape_of(target))
            node.outputs[k] = inner
            around.add("Cast", [inner], [target], name, to=onnx_type(dtype))
    model.insert_nodes(graph, node, before)
    model.insert_nodes_after(graph, node, around.nodes)


def _weight(model: Model, value: Value, converted: dict[int, Constant]) -> Constant:
    """The weights as float32, stored once for all nodes that share them."""
    if id(value) not in converted:
        array = constant_array(value)
        assert array is not None
        converted[id(value)] = model.add_initializer(f"{value.name}.float32", array.astype(np.float32))
    return converted[id(value)]
