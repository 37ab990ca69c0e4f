"""Analysis: the recurrent nodes of a model, and why some cannot be lowered. Reads only."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from rnnqc.cells.base import Cell
from rnnqc.cells.custom_nodes import SIZES
from rnnqc.cells.forms import ORT, WEIGHT_ONLY
from rnnqc.cells.stages import IntegerCell
from rnnqc.cells.types import CELL_TYPES, fused_type, output_names
from rnnqc.errors import LOWER_THE_FLOAT_MODEL, NotHandled, Remark
from rnnqc.ir import (
    CELL_TAG,
    CUSTOM_TAG,
    DOMAIN,
    FLOAT_TAG,
    Constant,
    Model,
    Node,
    attribute,
    constant_array,
    display_name,
    graph_info,
    info,
    input_or_none,
    output_or_none,
    shape_of,
)
from rnnqc.passes.analysis.custom_cell import CustomCell
from rnnqc.passes.analysis.custom_points import custom_cells_of
from rnnqc.passes.analysis.custom_products import custom_cells
from rnnqc.passes.analysis.float_recurrences import constant_bytes
from rnnqc.passes.analysis.integer_recurrences import IntegerRecurrence, integer_recurrences
from rnnqc.passes.analysis.released_cells import released_cells
from rnnqc.passes.graph.loops.loop_states import is_loop, owners, sizes_of
from rnnqc.passes.graph.nodes.foreign_operators import QUANTIZED, foreign_refusal
from rnnqc.passes.graph.nodes.lstm_node import (
    INPUT_NAMES,
    TYPE_TAG,
    WEIGHTS_TAG,
    B,
    P,
    R,
    W,
    input_count,
    is_recurrent,
    read_layer,
)
from rnnqc.passes.graph.nodes.quant_operators import is_quant_lstm, read_quant_lstm
from rnnqc.passes.recover.float_steps import STEP_NOTE, FloatStep

PARAMETERS = (
    "W",
    "R",
    "x_multiplier",
    "h_multiplier",
    "B",
    "P",
    "hidden_bias",
    "W_group_multiplier",
    "R_group_multiplier",
)
"""Operands of a fused cell that belong to one layer alone."""


@dataclass(frozen=True)
class RecurrentNode:
    """One recurrent node in the model.

    Attributes:
        path: Its name with the path through subgraphs.
        name: Its name.
        op: Operator type.
        attributes: The values that `rnnqc inspect` prints.
        weight_bytes: Size of its constant W, R, B and P.
        weights: Size of each of them by name, for the operators LSTM, GRU and RNN.
        refusal: Reason, found, action; empty strings if it can be lowered.
        form: The form it was lowered to already, or "".
        quantized: Whether another tool has quantized it; then `refusal` is set.
    """

    path: str
    name: str
    op: str
    attributes: dict[str, Any] = field(default_factory=dict)
    weight_bytes: int = 0
    weights: dict[str, int] = field(default_factory=dict)
    refusal: tuple[str, str, str] = ("", "", "")
    form: str = ""
    quantized: bool = False

    def refused(self, remark: Remark) -> RecurrentNode:
        """Returns the same node with the reasons of `remark`, which leaves it float."""
        return replace(self, refusal=(remark.reason, remark.found, remark.action))

    @property
    def status(self) -> str:
        """The effect of a lowering: "lowered", "float", or "done" if it has happened; "quantized" by another tool."""
        if self.form:
            return "done"
        return "quantized" if self.quantized else "float" if self.refusal[0] else "lowered"


def recurrent_nodes(model: Model) -> list[RecurrentNode]:
    """Returns every recurrent node of every graph, in order, and unrecognized steps and recurrences.

    The model should be in normal form.

    Raises:
        CompileError: A node is not valid.
    """
    found: list[RecurrentNode] = []
    for path, graph in model.paths():
        for node in graph.nodes:
            record = _describe(path, node)
            if record is not None:
                found.append(record)
    cells = custom_cells_of(model)
    others = [*_steps_left(model, cells), *map(_describe_recurrence, cells)]
    known = {n.path for n in others}
    return found + others + [_quantized(r) for r in integer_recurrences(model) if r.path not in known]


def _steps_left(model: Model, cells: Iterable[CustomCell]) -> Iterator[RecurrentNode]:
    """Yields every step that stays in its original operators and is not part of a recurrence with its own entry."""
    listed = {id(n) for c in cells for n in c.recurrence.products}
    loops = [c.recurrence.loop for c in cells if c.recurrence.loop is not None]
    loops += [n for g in model.graphs() for n in g.nodes if is_loop(n) and CUSTOM_TAG in info(n).metadata]
    listed |= {n for loop in loops for n in owners(loop.attrs["body"])}
    earlier = bool(custom_cells(model))
    for path, graph in model.paths():
        for node in graph.nodes:
            step: FloatStep | None = info(node).notes.get(STEP_NOTE)
            if step is None or id(node) in listed or any(id(n) in listed for n in step.products):
                continue
            if earlier and any(_of_codes(n) for n in step.products):
                continue
            name = display_name(node)
            shape = shape_of(node.outputs[0])
            attributes = {"hidden_size": shape[-1] if shape else None}
            size = constant_bytes(step.products)
            yield RecurrentNode(f"{path}{name}", name, step.op, attributes, size, refusal=step.refusal)


def _of_codes(product: Node) -> bool:
    """Whether an earlier lowering has quantized the weight of a matmul."""
    return any(len(v.inputs) == 1 and v.inputs[0].op == "DequantizeLinear" for v in product.inputs[1:2])


def _quantized(found: IntegerRecurrence) -> RecurrentNode:
    refusal = ("its matmuls are quantized already, by another tool.", found.found, LOWER_THE_FLOAT_MODEL)
    return RecurrentNode(found.path, found.path, found.op, {}, found.weight_bytes, refusal=refusal, quantized=True)


def _describe_recurrence(cell: CustomCell) -> RecurrentNode:
    found, count = cell.recurrence, sum(map(len, cell.products.values()))
    why = next(iter(cell.refused), None)
    refusal = ("", "", "")
    if not count and why is None:
        refusal = (found.reason, found.found, "none; the custom cell runs in float")
    elif not count and why is not None:
        refusal = (f"{found.reason} {why.reason[0].upper()}{why.reason[1:]}", why.found, why.action)
    sizes = {"sequence_length": found.steps} if found.loop is None else sizes_of(found.loop)
    attributes = {"products": count, "name": cell.name, "points": cell.points, **sizes}
    return RecurrentNode(found.path, found.path, found.op, attributes, found.weight_bytes, refusal=refusal)


def lowered_nodes(model: Model) -> list[RecurrentNode]:
    """Returns the cells made by an earlier lowering, and fused nodes of unknown origin."""
    found = [
        RecurrentNode(
            c.name,
            c.name,
            c.op,
            {
                "direction": "reverse" if c.reverse else "forward",
                "hidden_size": c.hidden_size,
                "input_size": c.input_size,
                "sequence_length": c.static_length,
                "batch": c.static_batch,
                "inputs": [
                    n for n, v in zip(INPUT_NAMES[4:7], (c.sequence_lens, c.initial_h, c.initial_c), strict=True) if v
                ]
                + (["P"] if c.P else []),
                "outputs": [n for n, v in zip(("Y", "Y_h", "Y_c"), (c.y, c.y_h, c.y_c), strict=True) if v],
                "clip": c.clip,
                **c.flags,
            },
            weight_bytes(model, [c]),
            form=c.form,
        )
        for c in (*model.cells.values(), *released_cells(model).values())
    ]
    for path, graph in model.paths():
        for node in graph.nodes:
            type_ = fused_type(node.op) if node.domain == DOMAIN else None
            if type_ is not None and info(node).metadata.get(CELL_TAG) not in model.cells:
                name = display_name(node)
                attributes = {k: attribute(node, k, None) for k in ("direction", "hidden_size")}
                found.append(RecurrentNode(f"{path}{name}", name, type_.fused, attributes, form="fused"))
    sizes = _sizes_of_loops(model)
    for name, record in custom_cells(model).items():
        path, attributes = record["path"], {k: record[k] for k in ("products", "name", "points")}
        attributes |= sizes.get(name, {})
        found.append(RecurrentNode(path, path, record["op"], attributes, record["bytes"], form="products"))
    return found


def _sizes_of_loops(model: Model) -> dict[str, dict[str, Any]]:
    """Sizes of the recurrences that were quantized in loops, also inside functions, by name."""
    loops = (n for g in model.graphs() for n in g.nodes if is_loop(n) and CUSTOM_TAG in info(n).metadata)
    found = {json.loads(info(n).metadata[CUSTOM_TAG])["name"]: sizes_of(n) for n in loops}
    return found | {n: r[SIZES] for n, r in custom_cells(model).items() if SIZES in r}


def _describe(path: str, node: Node) -> RecurrentNode | None:
    name = display_name(node)
    full = f"{path}{name}"
    if is_quant_lstm(node):
        return _describe_quant_lstm(full, name, node)
    if node.domain == DOMAIN:
        return None
    foreign = None if is_recurrent(node) else foreign_refusal(node)
    if foreign is not None:
        attributes: dict[str, Any] = {k: attribute(node, k, None) for k in ("direction", "hidden_size")}
        if WEIGHTS_TAG in info(node).metadata:
            return RecurrentNode(full, name, node.op, attributes, form=ORT)
        quantized = (node.domain, node.op) in QUANTIZED
        return RecurrentNode(full, name, node.op, attributes, refusal=foreign, quantized=quantized)
    if not is_recurrent(node):
        return None
    if CELL_TAG in info(node).metadata:
        return None
    type_ = CELL_TYPES[node.op]
    dtype = info(node).metadata.get(TYPE_TAG)
    values = [v for k in (W, R, B, P) if k < input_count(type_) and (v := input_or_none(node, k)) is not None]
    weights = {
        v.name: int(a.size) * (a if dtype is None else np.dtype(dtype)).itemsize
        for v in values
        if (a := constant_array(v)) is not None
    }
    size = sum(weights.values())
    shape = shape_of(input_or_none(node, 0))
    attributes = {
        "direction": attribute(node, "direction", "forward"),
        "hidden_size": attribute(node, "hidden_size", None),
        "input_size": shape[2] if shape is not None and len(shape) == 3 else None,
        "sequence_length": shape[0] if shape is not None and len(shape) == 3 else None,
        "batch": shape[1] if shape is not None and len(shape) == 3 else None,
        "inputs": [INPUT_NAMES[k] for k in range(3, input_count(type_)) if input_or_none(node, k) is not None],
        "outputs": [n for k, n in enumerate(output_names(type_)) if output_or_none(node, k) is not None],
        "activations": list(attribute(node, "activations", None) or []),
        "clip": attribute(node, "clip", None),
        "input_forget": attribute(node, "input_forget", 0),
        "linear_before_reset": attribute(node, "linear_before_reset", None),
        **({} if dtype is None else {"type": dtype}),
        "depth": path.count("/") // 2,
    }
    if WEIGHTS_TAG in info(node).metadata and any(constant_array(node.inputs[k]) is None for k in (W, R)):
        return RecurrentNode(full, name, node.op, attributes, size, weights, form=WEIGHT_ONLY)
    try:
        layer = read_layer(node)
    except NotHandled as error:
        return RecurrentNode(full, name, node.op, attributes, size, weights, (error.reason, error.found, error.action))
    attributes["hidden_size"], attributes["input_size"] = layer.hidden_size, layer.input_size
    attributes["peepholes"] = layer.weights["P"] is not None
    earlier = info(node).metadata.get(FLOAT_TAG)
    if earlier is not None:
        refusal = (earlier, "an earlier lowering left it float", "lower the original model")
        return RecurrentNode(full, name, node.op, attributes, size, weights, refusal)
    return RecurrentNode(full, name, node.op, attributes, size, weights)


def _describe_quant_lstm(full: str, name: str, node: Node) -> RecurrentNode:
    """Describes a cell of Brevitas, which has its own quantization."""
    try:
        read = read_quant_lstm(node)
    except NotHandled as error:
        return RecurrentNode(full, name, node.op, refusal=(error.reason, error.found, error.action))
    attributes: dict[str, Any] = {
        "direction": "reverse" if read.reverse else "forward",
        "hidden_size": read.hidden_size,
        "input_size": read.input_size,
        "batch_first": int(read.batch_first),
        "input_forget": int(read.cifg),
        "quantization": "its own: " + ", ".join(f"{k} {q.bits} bits" for k, q in read.quantizers.items()),
    }
    size = sum(int(p.values.nbytes) for p in (*read.W, *read.R)) + sum(int(b.nbytes) for b in read.bias)
    earlier = info(node).metadata.get(FLOAT_TAG)
    refusal = ("", "", "") if earlier is None else (earlier, "an earlier lowering left it", "lower the original model")
    return RecurrentNode(full, name, node.op, attributes, size, refusal=refusal)


def weight_bytes(model: Model, cells: Iterable[Cell]) -> int:
    """Returns the size of the initializers with the weights of `cells`, each counted once, without shared tables."""
    return sum(weight_sizes(model, cells).values())


def weight_sizes(model: Model, cells: Iterable[Cell]) -> dict[str, int]:
    """Returns the initializers that `weight_bytes` counts, and their sizes."""
    names = {
        n
        for c in cells
        for n in (
            [c.operands.as_dict().get(k) for k in PARAMETERS]
            if isinstance(c, IntegerCell)
            else [c.W, c.R, c.B, c.P, c.hidden_bias]
        )
        if n
    }
    held: dict[str, Constant] = {}
    for graph in model.graphs():
        held.update(graph_info(graph).initializers)
    arrays = {name: constant_array(held.get(name)) for name in sorted(names)}
    return {name: int(a.nbytes) for name, a in arrays.items() if a is not None}
