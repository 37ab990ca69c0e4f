"""Puts each integer cell into one QuantLSTMCell node, backed by a function of standard operators."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx

from rnnqc.builder import Builder, body_nodes
from rnnqc.cells.base import Cell
from rnnqc.diagnostics import CompileError
from rnnqc.ir import (
    CELL_TAG,
    DOMAIN,
    Graph,
    Model,
    Node,
    Value,
    Variable,
    attribute_reference,
    constant_array,
    info,
    subgraphs,
)
from rnnqc.numerics import Bitwise
from rnnqc.packing import factorize, pack
from rnnqc.passes.base import Pass, PassInfo, PassResult
from rnnqc.passes.direction_axis import with_axis_after, with_axis_before
from rnnqc.passes.emit_lstm import Boundary, boundary_of
from rnnqc.passes.emit_quant_lstm import Operands, emit_quant_lstm
from rnnqc.passes.fold_lstm import LstmNumbers
from rnnqc.passes.insert_qcdq import graphs_of_cells, replace_cell
from rnnqc.passes.quantization import PACKED_BITS
from rnnqc.properties import Property

OP_TYPE = "QuantLSTMCell"
INPUTS = (
    "X", "W", "R", "x_multiplier", "h_multiplier", "B", "gate_table", "cell_table",
    "sequence_lens", "initial_h", "initial_c", "P", "W_zero_point", "R_zero_point",
    "W_group_multiplier", "R_group_multiplier",
)  # fmt: skip
OUTPUTS = ("Y", "Y_h", "Y_c", "Y_codes")
STATES = ("initial_h", "initial_c", "Y_h", "Y_c")
CONFIGURATION = "configuration"


class FuseQuantLstmCell(Pass):
    """Replaces the nodes of each integer cell by one node and a model-local function with the same nodes.

    Before: the integer cell (about 60 nodes, some of them in an If and a Scan).

    After: `ai.rnnqc::QuantLSTMCell(X, W, R, x_multiplier, ...) -> Y, Y_h, Y_c, Y_codes`

    Weights of up to 4 bits become packed int4, two codes to a byte.

    Cells of one configuration share a function. With several configurations each function is an overload whose name
    says what the configuration is. onnxruntime before 1.27 ignores overloads and would run one body for all: the
    bodies of such models check that they are called by a node of their own configuration, and fail otherwise. Outputs
    in front of one that is used are defined by the function too.
    """

    info = PassInfo(
        name="fuse-quant-lstm-cell",
        summary="put each integer cell into one QuantLSTMCell node backed by a function",
        numerics=Bitwise(),
        requires=frozenset({Property.SCALES_FOLDED}),
        sets=frozenset({Property.CELLS_FUSED}),
    )

    def run(self, model: Model) -> PassResult:
        """Fuses every integer cell; refuses a model of which some are fused already."""
        graphs = graphs_of_cells(model)
        cells = [c for c in model.cells.values() if c.form == "integer"]
        if not cells:
            return PassResult(False, (), {"cells": 0, "functions": 0})
        if any(c.form == "fused" for c in model.cells.values()):
            raise CompileError(
                f"{model.source}: some cells are fused already.", action="lower the float model in one go"
            )
        for cell in cells:
            _pack(model, graphs[cell.name], cell)
        sites = [_site(model, graphs[c.name], c) for c in cells]
        groups: dict[bytes, list[_Site]] = {}
        for site in sites:
            groups.setdefault(_function(model, site, None).SerializeToString(deterministic=True), []).append(site)
        taken: set[str] = set()
        for number, members in enumerate(groups.values()):
            several = len(groups) > 1
            function = _function(model, members[0], number if several else None)
            if several:
                function.overload = _overload(members[0], taken)
                taken.add(function.overload)
            model.functions.append(function)
            for site in members:
                _fuse(model, site, function, number if several else None)
        model.remove_dead()
        model.sort()
        return PassResult(True, (), {"cells": len(sites), "functions": len(groups)})


def _pack(model: Model, graph: Graph, cell: Cell) -> None:
    """Stores those of W and R that the recipe gives up to 4 bits in half the bytes; equal codes."""
    for key, size_key in (("W", "w_group_size"), ("R", "r_group_size")):
        point, name = cell.points.get(f"{key}.weight", {}), cell.operands[key]
        codes = constant_array(model.initializer(name, graph))
        if (
            codes is None
            or codes.dtype != np.int8
            or (point.get("bits") or PACKED_BITS + 1) > PACKED_BITS
            or point.get("wide_channels")
        ):
            continue
        size = point.get("group_size", 0)
        if size:
            factors = factorize(codes, size)
            if factors is None:
                continue
            arrays = {key: pack(factors[0]), f"{key}_group_multiplier": factors[1]}
        elif codes.min() >= -8 and codes.max() <= 7:
            arrays = {key: pack(codes)}
        else:
            continue
        for operand, array in arrays.items():
            cell.operands[operand] = model.add_initializer(f"{cell.name}/{operand}.packed", array, graph).name
        setattr(cell, key, cell.operands[key])
        cell.integer[size_key] = size


@dataclass(frozen=True)
class _Site:
    """One integer cell with everything its node and function are made from."""

    cell: Cell
    graph: Graph
    numbers: LstmNumbers
    inputs: dict[str, Value | None]
    outputs: dict[str, Value | None]
    axes: dict[str, int]  # attributes: which values keep the axis for the direction
    lifts: list[Node]  # the nodes that gave outputs this axis


def _site(model: Model, graph: Graph, cell: Cell) -> _Site:
    at = boundary_of(model, graph, cell)
    operands = {k: model.initializer(n, graph) or model.find(n) for k, n in cell.operands.items()}
    codes = model.find(cell.y_codes) if cell.y_codes is not None else None
    inputs: dict[str, Value | None] = {
        **operands, "X": at.x, "sequence_lens": at.sequence_lens, "initial_h": at.initial_h, "initial_c": at.initial_c,
    }  # fmt: skip
    outputs = {"Y": at.y, "Y_h": at.y_h, "Y_c": at.y_c, "Y_codes": codes}
    axes: dict[str, int] = {}
    lifts: list[Node] = []
    for attribute, names, axis in (("y_direction_axis", ("Y",), 1), ("state_direction_axis", STATES, 0)):
        present = [n for n in names if (inputs if n in inputs else outputs).get(n) is not None]
        before = {n: with_axis_before(v, axis) for n in present if (v := inputs.get(n)) is not None}
        after = {n: with_axis_after(graph, cell.name, v, axis) for n in present if (v := outputs.get(n)) is not None}
        if present and all(v is not None for v in (*before.values(), *after.values())):
            axes[attribute] = 1
            inputs.update(before)
            outputs.update({n: node.outputs[0] for n, node in after.items() if node is not None})
            lifts += [node for node in after.values() if node is not None]
    return _Site(cell, graph, LstmNumbers(**cell.integer), inputs, outputs, axes, lifts)


def _fuse(model: Model, site: _Site, function: onnx.FunctionProto, number: int | None) -> None:
    cell = site.cell
    node = Node(
        OP_TYPE,
        name=cell.name,
        attrs={**site.numbers.attributes(cell), **site.axes, **({} if number is None else {CONFIGURATION: number})},
        inputs=[site.inputs.get(n) or Variable.empty() for n in function.input],
        outputs=[],
        domain=DOMAIN,
    )
    info(node).overload = function.overload
    info(node).metadata[CELL_TAG] = cell.name
    replace_cell(model, site.graph, cell, [node])
    for lift in site.lifts:
        lift.outputs.clear()
    model.remove_nodes(site.graph, site.lifts)
    node.outputs.extend([site.outputs[n] or Variable.empty() for n in function.output])
    for field, value in (
        ("initial_h", site.inputs["initial_h"]), ("initial_c", site.inputs["initial_c"]),
        ("y", site.outputs["Y"]), ("y_h", site.outputs["Y_h"]), ("y_c", site.outputs["Y_c"]),
    ):  # fmt: skip
        setattr(cell, field, None if value is None else value.name)
    cell.form = "fused"


def _function(model: Model, site: _Site, number: int | None) -> onnx.FunctionProto:
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
    for name in ("Y", *STATES):
        axis, attribute = (1, "y_direction_axis") if name == "Y" else (0, "state_direction_axis")
        if name not in formal or attribute not in site.axes:
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
    )  # fmt: skip
    emitted = emit_quant_lstm(scratch, _anonymous(site.cell), site.numbers, at, w, formal.get("Y_codes"), dispatch=True)
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


def _overload(site: _Site, taken: set[str]) -> str:
    cell = site.cell
    parts = [f"h{cell.hidden_size}", site.numbers.x_mode]
    parts += ["reverse"] if cell.reverse else []
    parts += [f"batch{cell.static_batch}"] if cell.static_batch is not None else []
    parts += [n for n, bits in (("x16", site.numbers.x_bits), ("h16", site.numbers.h_bits)) if bits == 16]
    for key, size in (("W", site.numbers.w_group_size), ("R", site.numbers.r_group_size)):
        weight = site.inputs[key]
        if weight is not None and weight.dtype == np.uint8:
            parts.append(f"{key}4" + (f"x{size}" if size else ""))
    parts += [n for n in ("sequence_lens", "initial_h", "initial_c", "P") if site.inputs.get(n) is not None]
    name, k = "_".join(parts), 1
    while name in taken:
        k += 1
        name = f"{'_'.join(parts)}_{k}"
    return name
