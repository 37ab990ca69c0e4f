"""Replaces the loop of each quantized custom cell by one node, backed by a function that contains this loop."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import onnx

from rnnqc.cells.custom_nodes import ALIASES, NAMES, OPERATOR, PROGRAM, REVERSE, SIZES
from rnnqc.cells.fused_nodes import CONFIGURATION, has_kernel, name_of_body
from rnnqc.errors import NotHandled, Outcome, Remark
from rnnqc.evaluation.numerics import Bitwise
from rnnqc.ir import (
    CUSTOM_TAG,
    DOMAIN,
    Constant,
    Graph,
    Model,
    Node,
    Value,
    Variable,
    attribute,
    constant_array,
    display_name,
    dtype_of,
    graph_info,
    info,
    shape_of,
)
from rnnqc.ir.builder import Builder
from rnnqc.passes.base import Pass, PassInfo, PassResult
from rnnqc.passes.custom_cells.mark_custom_values import runs_backwards
from rnnqc.passes.custom_cells.program.step_operators import step_program
from rnnqc.passes.custom_cells.program.step_program import StepProgram
from rnnqc.passes.custom_cells.program.step_values import STAYS
from rnnqc.passes.custom_cells.write_scans import STAYS_LOOP
from rnnqc.passes.graph.loops.loop_states import sizes_of
from rnnqc.passes.render.cell_function import CellFunction, checked_constant, scratch_model


class FuseCustomCells(Pass):
    """Replaces the loop of each quantized custom cell by one node and a model-local function with the same loop.

    Before: `Scan(h, c, x)` whose body is a step of quantized operators, with its weights

    After: `ai.rnnqc::QuantCustomCell_07(h, c, x, weights, ...) -> h_next, c_next, Y`

    The attribute `program` holds the same step as instructions of the native library (docs/quant_custom_cell.md). A
    step with an operator that has no instruction stays a loop, with a warning; so does a Loop (see write-scans). An
    unrolled recurrence stays, too.
    """

    info = PassInfo(
        name="fuse-custom-cells",
        summary="fuse the loop of each custom cell into one node backed by a function",
        numerics=Bitwise(),
    )

    def run(self, model: Model) -> PassResult:
        """Replaces every quantized loop that has a program."""
        remarks: list[Remark] = []
        sites = list(_sites(model))
        if any(site.loop.op == "Scan" for site in sites):
            model.infer_shapes()
        taken = {f.name for f in model.functions if f.domain == DOMAIN}
        count = 0
        for site in sites:
            try:
                program = site.program(model)
            except NotHandled as why:
                remarks.append(self.refused(Outcome.WARNING, site.path, site.loop.op, why))
                continue
            name = _fuse(model, site, program, taken)
            taken.add(name)
            count += 1
            if not has_kernel(name):
                remarks.append(self._without_kernel(site))
        return PassResult(count > 0, tuple(remarks), {"cells": count})

    def _without_kernel(self, site: _Site) -> Remark:
        reason = "it runs in standard operators, with the native library, too: no operator of it is left for this cell."
        found = f"more than {ALIASES} custom cells"
        return self.remark(
            Outcome.WARNING, site.path, site.loop.op, reason, found, "lower parts of the model into files of their own"
        )


@dataclass(frozen=True)
class _Site:
    """The loop of a quantized custom cell."""

    path: str
    graph: Graph
    loop: Node

    def program(self, model: Model) -> StepProgram:
        if self.loop.op != "Scan":
            why = info(self.loop).notes.get(STAYS_LOOP)
            raise NotHandled(STAYS, f"a {self.loop.op}, not a Scan{': ' + why if why else ''}", "none")
        return step_program(self.loop, model.opset)


def _sites(model: Model) -> Iterator[_Site]:
    for path, graph in list(model.paths()):
        for node in list(graph.nodes):
            if node.op in ("Scan", "Loop") and not node.domain and CUSTOM_TAG in info(node).metadata:
                yield _Site(f"{path}{display_name(node)}", graph, node)


def _fuse(model: Model, site: _Site, program: StepProgram, taken: set[str]) -> str:
    """Replaces a loop; returns the name of the operator that replaces it."""
    loop = site.loop
    given, made = list(loop.inputs), list(loop.outputs)
    lifted = [_lifted(model, loop.attrs["body"], value) for value in program.constants]
    attributes: dict[str, object] = {PROGRAM: program.text, **({REVERSE: 1} if runs_backwards(loop) else {})}
    record = {**json.loads(info(loop).metadata.pop(CUSTOM_TAG)), SIZES: sizes_of(loop)}
    position = next(k for k, n in enumerate(site.graph.nodes) if n is loop)
    del site.graph.nodes[position]
    made += [Variable.empty() for _ in range(len(loop.attrs["body"].outputs) - len(made))]
    loop.inputs.clear()
    loop.outputs.clear()
    function = _function(model, loop, given, program)
    proto = function.numbered(function.number)
    proto.name = name_of_body(NAMES, function.number, taken)
    for inner in [*function.nodes, *loop.attrs["body"].nodes]:
        inner.inputs.clear()  # so that the model knows which of its constants are unused
    model.functions.append(proto)
    node = Node(
        proto.name, display_name(loop), {**attributes, CONFIGURATION: function.number}, [*given, *lifted], made, DOMAIN
    )
    info(node).metadata[CUSTOM_TAG] = json.dumps(record, sort_keys=True)
    site.graph.nodes.insert(position, node)
    return proto.name


def _lifted(model: Model, body: Graph, value: Value) -> Value:
    """Returns a constant of the loop's body, moved to where the node can read it."""
    if isinstance(value, Constant):
        held, name = graph_info(body).initializers, value.name
        if held.get(name) is value:
            graph_info(model.graph).initializers[name] = held.pop(name)
        return value
    array = constant_array(value)
    assert array is not None
    return model.add_initializer(value.name, array)


def _function(model: Model, loop: Node, given: list[Value], program: StepProgram) -> CellFunction:
    """Returns the function around a loop. The body now reads the program's constants from the function's inputs."""
    constants = program.constants
    body: Graph = loop.attrs["body"]
    scratch = scratch_model(model.opset, model.ir_version)
    head = Builder(scratch)
    count = len(given) - attribute(loop, "num_scan_inputs", 1)
    names = [f"state_{k}" if k < count else f"x_{k - count}" for k in range(len(given))]
    formal = [Variable(n, dtype=dtype_of(v)) for n, v in zip(names, given, strict=True)]
    parameters = [Variable(f"constant_{k}", dtype=dtype_of(v)) for k, v in enumerate(constants)]
    inside: list[Value] = list(parameters)
    sizes = [(dtype_of(v) != np.float32, _size(v)) for v in constants]
    smallest = sizes.index(min(sizes))
    inside[smallest], insists = checked_constant(head, parameters[smallest])
    for node in body.nodes:
        for old, new in zip(constants, inside, strict=True):
            for position, value in enumerate(node.inputs):
                if value is old:
                    node.inputs[position] = new
    _take_numbers_in(body)
    body.nodes[:] = [n for n in body.nodes if n.op != "Constant" or _is_read(body, n.outputs[0])]
    graph_info(body).initializers.clear()
    for value, columns in zip(body.outputs, program.columns, strict=True):
        # Without a rank onnxruntime refuses a loop inside another one.
        value.dtype, value.shape = np.dtype(np.float32), shape_of(value) or [None, columns]
    loop.inputs.extend(formal)
    results = [f"final_{k}" if k < count else f"Y_{k - count}" for k in range(len(body.outputs))]
    loop.outputs.extend(Variable(n, dtype=np.float32) for n in results)
    function = onnx.FunctionProto(domain=DOMAIN, name=OPERATOR)
    function.doc_string = "A custom cell over a whole sequence, with quantized weights."
    function.input.extend([*names, *(p.name for p in parameters)])
    function.output.extend(results)
    function.attribute.append(CONFIGURATION)
    function.opset_import.add(domain="", version=model.opset)
    return CellFunction(function, [*head.nodes, loop], scratch, insists)


def _take_numbers_in(body: Graph) -> None:
    """Turns shapes, bounds and positions from Constant nodes outside of the loop into constants of the function."""
    inside = {id(v) for v in (*body.inputs, *(v for n in body.nodes for v in n.outputs))}
    taken: dict[int, Constant] = {}
    for node in body.nodes:
        for position, value in enumerate(node.inputs):
            if id(value) in inside or isinstance(value, Constant) or not value.name:
                continue
            array = constant_array(value)
            if array is not None:
                node.inputs[position] = taken.setdefault(id(value), Constant(value.name, np.asarray(array)))


def _size(value: Value) -> int:
    array = constant_array(value)
    return 0 if array is None else int(array.nbytes)


def _is_read(body: Graph, value: Value) -> bool:
    return any(v is value for n in body.nodes for v in n.inputs) or any(v is value for v in body.outputs)
