"""The function of standard operators behind a fused node, and the inputs for building both."""

from __future__ import annotations

import functools
import hashlib
from dataclasses import dataclass, field, replace

import numpy as np
import onnx

from rnnqc.cells.base import Cell
from rnnqc.cells.fixed_point_numbers import FixedPointNumbers
from rnnqc.cells.fused_nodes import CONFIGURATION, MORE_X, X_FACTOR, fused_outputs, input_names
from rnnqc.cells.stages import IntegerCell, Numbers
from rnnqc.ir import (
    DOMAIN,
    Graph,
    Model,
    Node,
    Value,
    Variable,
    attribute_reference,
    export_nodes,
    output_number,
    subgraphs,
)
from rnnqc.ir.builder import Builder, constant_node, constants_of
from rnnqc.passes.cells.boundary import Boundary
from rnnqc.passes.cells.loop_driver import Arithmetic, emit_cell
from rnnqc.passes.fold.integer_operands import OPERANDS, Operands
from rnnqc.passes.graph.point_names import WHOLE_X
from rnnqc.passes.render.fixed_point.fixed_point_arithmetic import FixedPointArithmetic
from rnnqc.passes.render.lut.lut_arithmetic import LutArithmetic
from rnnqc.proto.graph_walks import blocks_of, inner_graphs

# Values that may keep ONNX's direction axis: the attribute that says so, and the position of the axis.
DIRECTION_AXES = {
    "y_direction_axis": (("Y",), 1),
    "state_direction_axis": (("initial_h", "initial_c", "Y_h", "Y_c"), 0),
}
TWO_BODIES = "two_lowered_models_have_different_functions_of_this_name"
"""Name of the node that fails if a node with another configuration calls the body."""


@dataclass(frozen=True)
class CellSite:
    """An integer cell, with the inputs for building its node and its function."""

    cell: IntegerCell
    graph: Graph
    inputs: dict[str, Value | None]
    outputs: dict[str, Value | None]
    axes: dict[str, int]  # attributes: which values keep the direction axis
    lifts: list[Node]  # nodes that add this axis to outputs


@dataclass(frozen=True)
class CellFunction:
    """The function of one cell, without the number of its configuration.

    Attributes:
        proto: The function without its nodes.
        nodes: Its body.
        scratch: The model that owns the nodes.
        insists: The node of the body that subtracts the number.
        constants: The Constant nodes of the body made so far, by name.
    """

    proto: onnx.FunctionProto
    nodes: list[Node]
    scratch: Model
    insists: Node
    constants: dict[str, onnx.NodeProto] = field(default_factory=dict)

    @functools.cached_property
    def number(self) -> int:
        """The configuration number: a 48-bit hash of the body."""
        digest = hashlib.sha256(self.numbered(0).SerializeToString(deterministic=True)).digest()
        return int.from_bytes(digest[:6], "big")

    def numbered(self, number: int) -> onnx.FunctionProto:
        """Returns the function, whose body checks that the configuration is `number`."""
        self.insists.inputs[1] = self.scratch.constant([number], np.int64)
        exported = self._exported
        place = next(k for k, node in enumerate(self.nodes) if node is self.insists)
        exported[place].input[1] = self.insists.inputs[1].name
        constants = constants_of(self.nodes)
        self.constants.update({n: constant_node(c) for n, c in constants.items() if n not in self.constants})
        function = onnx.FunctionProto()
        function.CopyFrom(self.proto)
        function.node.extend(self.constants[name] for name in constants)
        function.node.extend(exported)
        return function

    @functools.cached_property
    def _exported(self) -> list[onnx.NodeProto]:
        """The nodes; their graphs describe no values inside.

        onnxruntime renames values when it inlines a function, but not in these descriptions: one would then be taken
        for a value of that name in the graph around the node.
        """
        exported = export_nodes(self.nodes)
        for block in blocks_of(g for node in exported for g in inner_graphs(node)):
            assert isinstance(block, onnx.GraphProto)
            del block.value_info[:]
        return exported


def cell_function(model: Model, site: CellSite) -> CellFunction:
    """Returns the function of one cell; its inputs and outputs have the operator's names."""
    inputs, outputs = site.inputs, site.outputs
    in_names, out_names = input_names(site.cell.type), fused_outputs(site.cell.type)
    in_names = tuple(n for n in in_names if inputs.get(n) is not None)
    out_names = out_names[: 1 + max(k for k, n in enumerate(out_names) if outputs[n] is not None)]
    formal: dict[str, Value] = {}
    for name in (*in_names, *out_names):
        like = inputs.get(name)
        if like is not None or name in out_names:
            formal[name] = Variable(name, dtype=like.dtype if like is not None else None)
    scratch = scratch_model(model.opset, model.ir_version)
    head = Builder(scratch)
    tail = Builder(scratch)
    checked, insists = checked_constant(head, formal["B"])
    inner = {**formal, "B": checked}
    for name, axis in ((n, axis) for k, (names, axis) in DIRECTION_AXES.items() if k in site.axes for n in names):
        if name not in formal:
            continue
        if name in out_names:
            inner[name] = tail.value(f"{name}.without_direction", np.float32)
            tail.add("Unsqueeze", [inner[name], tail.i64([axis])], [formal[name]], f"{name}.with_direction")
        else:
            inner[name] = head.op("Squeeze", [formal[name], head.i64([axis])], f"{name}.without_direction")
    parts = [inner[n] for n in ("X", *MORE_X) if n in inner]
    factor = inner.get(X_FACTOR)
    x = head.op("Concat", parts, WHOLE_X if factor is None else "x.joined", axis=-1) if len(parts) > 1 else parts[0]
    if factor is not None:
        x = head.op("Mul", [x, factor], WHOLE_X)
    at = Boundary(
        x, inner.get("sequence_lens"), inner.get("initial_h"), inner.get("initial_c"),
        inner.get("Y"), inner.get("Y_h"), inner.get("Y_c"), inner.get("X_scale"),
    )  # fmt: skip
    w = Operands(**{k: v for k, v in inner.items() if k in OPERANDS})
    emitted = emit_integer(
        scratch, replace(site.cell, name=""), site.cell.numbers, at, w, formal.get("Y_codes"), dispatch=True
    )
    emitted = _without_identities(
        _live([*head.nodes, *emitted, *tail.nodes], [formal[n] for n in out_names]), list(out_names)
    )
    function = onnx.FunctionProto(domain=DOMAIN, name=site.cell.type.fused)
    function.doc_string = (
        f"One direction of one {site.cell.type.op} layer over a whole sequence, "
        "in integer arithmetic with tabulated activations."
    )
    function.input.extend(in_names)
    function.output.extend(out_names)
    function.attribute.append(CONFIGURATION)
    function.opset_import.add(domain="", version=model.opset)
    return CellFunction(function, emitted, scratch, insists)


def emit_integer(
    model: Model, cell: Cell, numbers: Numbers, at: Boundary, w: Operands, codes: Value | None, *, dispatch: bool
) -> list[Node]:
    """Emits the integer cell in the arithmetic of its numbers.

    Nodes without dispatch can be unrolled: they contain no choice, and the loop has one step per element for any
    lengths.
    """
    arithmetic = arithmetic_of(numbers, w, dispatch=dispatch)
    return emit_cell(model, cell, at, arithmetic, codes, stops_early=dispatch).nodes


def arithmetic_of(numbers: Numbers, w: Operands, *, dispatch: bool) -> Arithmetic:
    """Returns the arithmetic of an integer cell with these scalars and constants; see `LutArithmetic` on `dispatch`."""
    if isinstance(numbers, FixedPointNumbers):
        return FixedPointArithmetic(numbers, w)
    return LutArithmetic(numbers, w, dispatch)


def checked_constant(head: Builder, value: Value) -> tuple[Value, Node]:
    """Returns a constant whose computation fails unless the node's attribute `configuration` equals a number.

    Also returns the node that subtracts this number, zero so far. onnxruntime folds these nodes when it creates the
    session, and fails if the numbers differ. The constant should be small.
    """
    given = head.value("configuration")
    head.add("Constant", [], [given], "configuration", value_int=attribute_reference(CONFIGURATION, int))
    difference = head.op("Sub", [given, head.i64([0])], "configuration.difference")
    insists = head.nodes[-1]
    distance = head.op("Abs", [difference], "configuration.distance")
    row = head.op("Unsqueeze", [value, distance], TWO_BODIES)
    return head.op("Squeeze", [row, head.i64([0])], f"{value.name}.checked"), insists


def scratch_model(opset: int, ir_version: int) -> Model:
    """Returns an empty model with this operator set, so that names in a function do not depend on the outer model."""
    proto = onnx.ModelProto(ir_version=ir_version)
    proto.opset_import.add(domain="", version=opset)
    proto.graph.name = "scratch"
    scratch = Model(proto)
    scratch.constant_prefix = ""
    return scratch


def _live(nodes: list[Node], results: list[Value]) -> list[Node]:
    needed = {id(v) for v in results}
    kept: list[Node] = []
    for node in reversed(nodes):
        if any(id(v) in needed for v in node.outputs):
            kept.append(node)
            needed.update(id(v) for v in _uses(node))
    return kept[::-1]


def _without_identities(nodes: list[Node], fixed: list[str]) -> list[Node]:
    """Removes top-level Identity nodes before outputs: their producers write the outputs directly."""
    kept = list(nodes)
    for node in nodes:
        if node.op != "Identity":
            continue
        source, target = node.inputs[0], node.outputs[0]
        if target.name in fixed and source.inputs and source.name not in fixed and len(source.outputs) == 1:
            producer = source.inputs[0]
            index = output_number(producer, source)
            node.outputs.clear()
            node.inputs.clear()
            producer.outputs[index] = target
            kept = [n for n in kept if n is not node]
    return kept


def _uses(node: Node) -> list[Value]:
    used = list(node.inputs)
    for _, graph in subgraphs(node):
        used.extend(graph.outputs)
        for inner in graph.nodes:
            used.extend(_uses(inner))
    return used
