"""Puts each integer cell into one QuantLSTMCell node, backed by a function of standard operators."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import onnx

from rnnqc.cells.base import Cell
from rnnqc.ir import (
    CELL_TAG,
    DOMAIN,
    Constant,
    Graph,
    Model,
    Node,
    Value,
    Variable,
    constant_array,
    export_nodes,
    graph_info,
    info,
    subgraphs,
)
from rnnqc.numerics import Bitwise
from rnnqc.passes.base import Pass, PassInfo, PassResult
from rnnqc.passes.emit_lstm import Boundary, boundary_of
from rnnqc.passes.emit_quant_lstm import Operands, emit_quant_lstm
from rnnqc.passes.fold_lstm import LstmNumbers
from rnnqc.passes.insert_qcdq import graph_of, replace_cell
from rnnqc.properties import Property

OP_TYPE = "QuantLSTMCell"
INPUTS = (
    "X", "W", "R", "x_multiplier", "h_multiplier", "B", "gate_table", "cell_table", "sequence_lens", "initial_h", "initial_c", "P",
)  # fmt: skip
OUTPUTS = ("Y", "Y_h", "Y_c", "Y_codes")


class FuseQuantLstmCell(Pass):
    """Replaces the nodes of each integer cell by one node and a model-local function with the same nodes.

    Before: the integer cell (about 60 nodes, some of them in an If and a Scan).

    After: `ai.rnnqc::QuantLSTMCell(X, W, R, x_multiplier, ...) -> Y, Y_h, Y_c, Y_codes`

    Cells of one configuration share a function; the overload's name says what the configuration is. Outputs in front of
    one that is used are defined by the function too.
    """

    info = PassInfo(
        name="fuse-quant-lstm-cell",
        summary="put each integer cell into one QuantLSTMCell node backed by a function",
        numerics=Bitwise(),
        requires=frozenset({Property.SCALES_FOLDED}),
        sets=frozenset({Property.CELLS_FUSED}),
    )

    def run(self, model: Model) -> PassResult:
        """Fuses every integer cell."""
        held = {_content(f): f for f in model.functions if f.domain == DOMAIN}
        count = 0
        for cell in model.cells.values():
            if cell.form != "integer":
                continue
            self._fuse(model, cell, held)
            count += 1
        if count:
            model.remove_dead()
        return PassResult(count > 0, (), {"cells": count, "functions": len(held)})

    def _fuse(self, model: Model, cell: Cell, held: dict[bytes, onnx.FunctionProto]) -> None:
        graph = graph_of(model, cell)
        at = boundary_of(model, graph, cell)
        numbers = LstmNumbers(**cell.integer)
        operands = {k: _operand(model, graph, name) for k, name in cell.operands.items()}
        codes = model.find(cell.y_codes) if cell.y_codes is not None else None
        inputs: dict[str, Value | None] = {
            **operands, "X": at.x, "sequence_lens": at.sequence_lens, "initial_h": at.initial_h, "initial_c": at.initial_c,
        }  # fmt: skip
        outputs = {"Y": at.y, "Y_h": at.y_h, "Y_c": at.y_c, "Y_codes": codes}
        function = _function(model, cell, numbers, inputs, outputs)
        key = _content(function)
        if key not in held:
            function.overload = _overload(cell, numbers, inputs, {f.overload for f in held.values()})
            held[key] = function
            model.functions.append(function)
        node = Node(
            OP_TYPE,
            name=cell.name,
            attrs=numbers.attributes(cell),
            inputs=[inputs.get(n) or Variable.empty() for n in function.input],
            outputs=[],
            domain=DOMAIN,
        )
        info(node).overload = held[key].overload
        info(node).metadata[CELL_TAG] = cell.name
        replace_cell(model, graph, cell, [node])
        node.outputs.extend([outputs[n] or Variable.empty() for n in function.output])
        cell.form = "fused"


def _operand(model: Model, graph: Graph, name: str) -> Value:
    constant = graph_info(graph).initializers.get(name) or graph_info(model.graph).initializers.get(name)
    value = constant if constant is not None else model.find(name)
    assert value is not None
    return value


def _function(
    model: Model, cell: Cell, numbers: LstmNumbers, inputs: dict[str, Value | None], outputs: dict[str, Value | None]
) -> onnx.FunctionProto:
    """The function of one cell, without its overload; names are those of the operator's inputs and outputs."""
    last_out = max(k for k, n in enumerate(OUTPUTS) if outputs[n] is not None)
    last_in = max(k for k, n in enumerate(INPUTS) if inputs.get(n) is not None)
    formal: dict[str, Value] = {}
    for name in (*INPUTS[: last_in + 1], *OUTPUTS[: last_out + 1]):
        like = inputs.get(name)
        if like is not None or name in OUTPUTS:
            formal[name] = Variable(name, dtype=like.dtype if like is not None else None)
    scratch = _Scratch(model)
    at = Boundary(
        formal["X"], formal.get("sequence_lens"), formal.get("initial_h"), formal.get("initial_c"),
        formal.get("Y"), formal.get("Y_h"), formal.get("Y_c"),
    )  # fmt: skip
    w = Operands(
        formal["W"], formal["R"], formal["x_multiplier"], formal["h_multiplier"], formal["B"],
        formal.get("gate_table"), formal.get("cell_table"), formal.get("P"),
    )  # fmt: skip
    scratch.model.constant_prefix = ""
    emitted = emit_quant_lstm(scratch.model, _anonymous(cell), numbers, at, w, formal.get("Y_codes"), dispatch=True)
    emitted = _without_identities(_live(emitted, [formal[n] for n in OUTPUTS[: last_out + 1]]), list(OUTPUTS))
    function = onnx.FunctionProto(domain=DOMAIN, name=OP_TYPE)
    function.doc_string = "One direction of one LSTM layer over a whole sequence, in integer arithmetic with tabulated activations."
    function.input.extend(INPUTS[: last_in + 1])
    function.output.extend(OUTPUTS[: last_out + 1])
    function.opset_import.add(domain="", version=model.opset)
    for constant in _constants(emitted):
        array = constant_array(constant)
        assert array is not None
        function.node.add(
            op_type="Constant",
            name=constant.name,
            output=[constant.name],
            attribute=[onnx.helper.make_attribute("value", onnx.numpy_helper.from_array(np.asarray(array)))],
        )
    function.node.extend(export_nodes(emitted))
    return function


class _Scratch:
    """An empty model of the same operator set: names inside a function do not depend on the model around it."""

    def __init__(self, model: Model) -> None:
        proto = onnx.ModelProto(ir_version=model.ir_version)
        proto.opset_import.add(domain="", version=model.opset)
        proto.graph.name = "scratch"
        self.model = Model(proto)


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


def _constants(nodes: Iterable[Node]) -> list[Constant]:
    found: dict[str, Constant] = {}
    for node in nodes:
        for value in _uses(node):
            if isinstance(value, Constant):
                found.setdefault(value.name, value)
    return list(found.values())


def _content(function: onnx.FunctionProto) -> bytes:
    copy = onnx.FunctionProto()
    copy.CopyFrom(function)
    copy.overload = ""
    return copy.SerializeToString(deterministic=True)


def _overload(cell: Cell, numbers: LstmNumbers, inputs: dict[str, Value | None], taken: set[str]) -> str:
    parts = [f"h{cell.hidden_size}", numbers.x_mode]
    parts += ["reverse"] if cell.reverse else []
    parts += [f"batch{cell.static_batch}"] if cell.static_batch is not None else []
    parts += [n for n in ("sequence_lens", "initial_h", "initial_c", "P") if inputs.get(n) is not None]
    name, k = "_".join(parts), 1
    while name in taken:
        k += 1
        name = f"{'_'.join(parts)}_{k}"
    return name


