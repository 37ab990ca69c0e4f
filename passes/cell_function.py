"""The function of standard operators behind a QuantLSTMCell node, and what such a node is made from."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx

from rnnqc.builder import Builder, body_nodes
from rnnqc.cells.base import Cell
from rnnqc.ir import DOMAIN, Graph, Model, Node, Value, Variable, attribute_reference, subgraphs
from rnnqc.passes.emit_cell import Boundary
from rnnqc.passes.emit_grid_lstm import emit_grid_lstm
from rnnqc.passes.emit_quant_lstm import Operands, emit_quant_lstm
from rnnqc.passes.fold_lstm import LstmNumbers
from rnnqc.passes.grid_numbers import GRID, GRID32, GridNumbers

OP_TYPE = "QuantLSTMCell"
INPUTS = (
    "X", "W", "R", "x_multiplier", "h_multiplier", "B", "gate_table", "cell_table",
    "sequence_lens", "initial_h", "initial_c", "P", "W_zero_point", "R_zero_point",
    "W_group_multiplier", "R_group_multiplier",
)  # fmt: skip
OUTPUTS = ("Y", "Y_h", "Y_c", "Y_codes")
# Values that may keep ONNX's axis for the direction, by the attribute that says so, and where the axis stands.
DIRECTION_AXES = {
    "y_direction_axis": (("Y",), 1),
    "state_direction_axis": (("initial_h", "initial_c", "Y_h", "Y_c"), 0),
}
CONFIGURATION = "configuration"
Numbers = LstmNumbers | GridNumbers


@dataclass(frozen=True)
class CellSite:
    """One integer cell with everything its node and function are made from."""

    cell: Cell
    graph: Graph
    numbers: Numbers
    inputs: dict[str, Value | None]
    outputs: dict[str, Value | None]
    axes: dict[str, int]  # attributes: which values keep the axis for the direction
    lifts: list[Node]  # the nodes that gave outputs this axis


def cell_function(model: Model, site: CellSite, number: int | None) -> onnx.FunctionProto:
    """The function of one cell, without its overload; names are those of the operator's inputs and outputs.

    Args:
        model: The model.
        site: The cell.
        number: Number of the configuration the body insists on; None for a model with one configuration.
    """
    inputs, outputs = site.inputs, site.outputs
    last_out = max(k for k, n in enumerate(OUTPUTS) if outputs[n] is not None)
    last_in = max(k for k, n in enumerate(INPUTS) if inputs.get(n) is not None)
    formal: dict[str, Value] = {}
    for name in (*INPUTS[: last_in + 1], *OUTPUTS[: last_out + 1]):
        like = inputs.get(name)
        if like is not None or name in OUTPUTS:
            formal[name] = Variable(name, dtype=like.dtype if like is not None else None)
    scratch = _scratch(model)
    head = Builder(scratch)
    tail = Builder(scratch)
    x = formal["X"] if number is None else _checked(head, formal["X"], number)
    inner = dict(formal)
    for name, axis in ((n, axis) for k, (names, axis) in DIRECTION_AXES.items() if k in site.axes for n in names):
        if name not in formal:
            continue
        if name in OUTPUTS:
            inner[name] = tail.value(f"{name}.without_direction", np.float32)
            tail.add("Unsqueeze", [inner[name], tail.i64([axis])], [formal[name]], f"{name}.with_direction")
        else:
            inner[name] = head.op("Squeeze", [formal[name], head.i64([axis])], f"{name}.without_direction")
    at = Boundary(
        x, inner.get("sequence_lens"), inner.get("initial_h"), inner.get("initial_c"),
        inner.get("Y"), inner.get("Y_h"), inner.get("Y_c"),
    )  # fmt: skip
    w = Operands(
        formal["W"], formal["R"], formal["x_multiplier"], formal["h_multiplier"], formal["B"],
        formal.get("gate_table"), formal.get("cell_table"), formal.get("P"),
        formal.get("W_group_multiplier"), formal.get("R_group_multiplier"),
        formal.get("W_zero_point"), formal.get("R_zero_point"),
    )  # fmt: skip
    emitted = emit_integer(scratch, _anonymous(site.cell), site.numbers, at, w, formal.get("Y_codes"), dispatch=True)
    emitted = _without_identities(
        _live([*head.nodes, *emitted, *tail.nodes], [formal[n] for n in OUTPUTS[: last_out + 1]]), list(OUTPUTS)
    )
    function = onnx.FunctionProto(domain=DOMAIN, name=OP_TYPE)
    function.doc_string = (
        "One direction of one LSTM layer over a whole sequence, in integer arithmetic with tabulated activations."
    )
    function.input.extend(INPUTS[: last_in + 1])
    function.output.extend(OUTPUTS[: last_out + 1])
    function.attribute.extend([] if number is None else [CONFIGURATION])
    function.opset_import.add(domain="", version=model.opset)
    function.node.extend(body_nodes(emitted))
    return function


def emit_integer(
    model: Model, cell: Cell, numbers: Numbers, at: Boundary, w: Operands, codes: Value | None, *, dispatch: bool
) -> list[Node]:
    """The nodes of the integer cell in the arithmetic of its numbers; see `emit_quant_lstm` and `emit_grid_lstm`."""
    if isinstance(numbers, GridNumbers):
        return emit_grid_lstm(model, cell, numbers, at, w, codes)
    return emit_quant_lstm(model, cell, numbers, at, w, codes, dispatch=dispatch)


def stored_numbers(cell: Cell) -> Numbers:
    """The numbers of an integer cell, from `Cell.integer`."""
    kind = GridNumbers if cell.integer.get("arithmetic") in (GRID, GRID32) else LstmNumbers
    return kind(**cell.integer)


def _checked(head: Builder, x: Value, number: int) -> Value:
    """`x` itself, through a Gather that fails unless the node's attribute `configuration` is `number`."""
    given = head.value("configuration")
    head.add("Constant", [], [given], "configuration", value_int=attribute_reference(CONFIGURATION, int))
    distance = head.op(
        "Abs", [head.op("Sub", [given, head.i64(number)], "configuration.difference")], "configuration.distance"
    )
    zero = head.op(
        "Gather", [head.i64([0]), distance], "onnxruntime_older_than_1.27_ignores_function_overloads", axis=0
    )
    shape = head.op("Add", [head.op("Shape", [x], "X.shape"), zero], "X.shape.checked")
    return head.op("Reshape", [x, shape], "X.checked")


def _scratch(model: Model) -> Model:
    """An empty model of the same operator set: names inside a function do not depend on the model around it."""
    proto = onnx.ModelProto(ir_version=model.ir_version)
    proto.opset_import.add(domain="", version=model.opset)
    proto.graph.name = "scratch"
    scratch = Model(proto)
    scratch.constant_prefix = ""
    return scratch


def _anonymous(cell: Cell) -> Cell:
    copy = Cell.from_dict(cell.as_dict())
    copy.name = ""
    return copy


def _live(nodes: list[Node], results: list[Value]) -> list[Node]:
    needed = {id(v) for v in results}
    kept: list[Node] = []
    for node in reversed(nodes):
        if any(id(v) in needed for v in node.outputs):
            kept.append(node)
            needed.update(id(v) for v in _uses(node))
    return kept[::-1]


def _without_identities(nodes: list[Node], fixed: list[str]) -> list[Node]:
    """Drops top-level Identity nodes in front of outputs: their producers write the outputs themselves."""
    kept = list(nodes)
    for node in nodes:
        if node.op != "Identity":
            continue
        source, target = node.inputs[0], node.outputs[0]
        if target.name in fixed and source.inputs and source.name not in fixed and len(source.outputs) == 1:
            producer = source.inputs[0]
            index = next(k for k, v in enumerate(producer.outputs) if v is source)
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
