"""A cell in standard operators: the readable Scan that decompose-lstm writes, with or without quantizers.

Values have stable names below the cell's: `x`, `preactivation`, `input_gate.acc`, `input_gate.activation`, ...,
`cell_state`, `hidden`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rnnqc.cells.base import Cell, Size
from rnnqc.errors import StructureError
from rnnqc.ir import Graph, Model, Value, graph_info
from rnnqc.ir.builder import Builder
from rnnqc.passes.cells.emit_step import INITIAL_STATES, FloatStep, Quantizer, Splitter, no_quantizer, rounds_output


@dataclass(frozen=True)
class Boundary:
    """The values through which a cell touches the rest of its graph."""

    x: Value
    sequence_lens: Value | None
    initial_h: Value | None
    initial_c: Value | None
    y: Value | None
    y_h: Value | None
    y_c: Value | None


def boundary_of(model: Model, graph: Graph, cell: Cell) -> Boundary:
    """Looks the boundary values of `cell` up in `graph` (and around it)."""
    table: dict[str, Value] = {}
    for candidate in [model.graph, graph]:
        for node in candidate.nodes:
            table.update({v.name: v for v in [*node.inputs, *node.outputs] if v.name})
        table.update({v.name: v for v in [*candidate.inputs, *candidate.outputs]})

    def get(name: str | None) -> Value | None:
        if name is None:
            return None
        value = table.get(name) or model.find(name)
        if value is None:
            raise StructureError(f"Cell {cell.name!r}: value {name!r} is gone.")
        return value

    x = get(cell.x)
    assert x is not None
    return Boundary(
        x, get(cell.sequence_lens), get(cell.initial_h), get(cell.initial_c), get(cell.y), get(cell.y_h), get(cell.y_c)
    )


def emit_cell(
    model: Model,
    cell: Cell,
    at: Boundary,
    quantizer: Quantizer = no_quantizer,
    *,
    products: bool = False,
    bias_last: bool = False,
    parameters: Mapping[str, Value] | None = None,
    split: Splitter | None = None,
) -> Builder:
    """The nodes of `cell` between its boundary values.

    Before the loop `p = x W + B`; each step `g = p_t + h R`, gates, cell and hidden state; after the loop the masks and
    picks of `sequence_lens`. A cell with `rounded_output` has its hidden states on their grid outside the loop too, and
    initial states in the formats of the states.

    Args:
        model: The model.
        cell: The cell.
        at: Its boundary.
        quantizer: Called at every quantization point; at `accumulator.x` and `accumulator.h` with whole products.
        products: Whether the two products of each gate are values of their own, before they are added.
        bias_last: Whether `p = x W` and `g = (p_t + h R) + B`.
        parameters: `W`, `R`, `B` and, where the cell has them, `P` and `hidden_bias`; None for the initializers that it
            names.
        split: Of initial hidden states that may lie beyond what their codes hold: the part beyond is multiplied apart,
            unless the cell reads the hidden state itself, whose quantizer has to see to it in every step.
    """
    b = Builder(model, cell.name)
    initializers = parameters if parameters is not None else _parameters(model, cell)
    x = at.x
    reversed_lens = cell.reverse and at.sequence_lens is not None
    if reversed_lens:
        x = b.op("ReverseSequence", [x, lens64(b, at.sequence_lens)], "x.reversed", batch_axis=1, time_axis=0)
    x = quantizer(b, "input", x)
    w = quantizer(b, "W.weight", initializers["W"])
    r = quantizer(b, "R.weight", initializers["R"])
    product = quantizer(b, "accumulator.x", b.op("MatMul", [x, w], "x.product"))
    p = product if bias_last else b.op("Add", [product, initializers["B"]], "x.projection")
    states = initial_states(b, cell, at)
    if rounds_output(cell):
        given = (at.initial_h, at.initial_c)[: len(states)]
        named = zip(INITIAL_STATES, states, given, strict=False)
        states = [quantizer(b, name, v) if v is source else v for name, v, source in named]
    if split is not None and not cell.type.reads_hidden:
        states[0], lost = split(b, INITIAL_STATES[0], states[0])
        product = b.op("MatMul", [lost, r], f"{INITIAL_STATES[0]}.lost.product")
        name = "x.projection.float"  # what integer forms call alike is in other units
        p = with_first_step(b, cell, at, p, lambda step: b.op("Add", [step, product], f"{name}.first.sum"), name)
    flags = {"products": products, "bias_last": bias_last}
    steps = _loop(b, cell, p, states, (r, initializers), quantizer, at, **flags)
    finish(b, cell, at, steps)
    return b


def with_first_step(
    b: Builder, cell: Cell, at: Boundary, p: Value, change: Callable[[Value], Value], name: str = "x.projection"
) -> Value:
    """`p` `[T,B,GH]`, its element `[B,GH]` of the first step of the loop replaced by what `change` makes of it."""
    backwards = cell.reverse and at.sequence_lens is None
    first = (-1 if cell.static_length is None else cell.static_length - 1) if backwards else 0
    step = b.op("Gather", [p, b.i64(first)], f"{name}.first", axis=0)
    element = b.op("Unsqueeze", [change(step), b.i64([0])], f"{name}.first.element")
    return b.op("ScatterND", [p, b.i64([[first]]), element], f"{name}.whole")


@dataclass(frozen=True)
class Steps:
    """What a loop leaves behind, in loop order.

    Attributes:
        y: `[T,B,H]`, or None where it was not needed.
        c: `[T,B,H]`, or None.
        last_h: `[B,H]` after the last step.
        last_c: `[B,H]`, or None without cell state.
    """

    y: Value | None
    c: Value | None
    last_h: Value | None
    last_c: Value | None


def _loop(
    b: Builder,
    cell: Cell,
    p: Value,
    states: Sequence[Value],
    parameters: tuple[Value, Mapping[str, Value]],
    quantizer: Quantizer,
    at: Boundary,
    *,
    products: bool,
    bias_last: bool,
) -> Steps:
    """The Scan over time of the float (or fake-quantized) step; `parameters` are R, quantized, and all initializers."""
    body = b.body()
    hidden, type_ = cell.hidden_size, cell.type
    batch = cell.batch_dimension
    given = [body.value(f"{n}.previous", np.float32, [batch, hidden]) for n in ("hidden", "cell_state")[: len(states)]]
    p_t = body.value("x.projection.step", np.float32, [batch, len(type_.gates) * hidden])
    r, initializers = parameters
    flags = {"products": products, "bias_last": bias_last}
    step = FloatStep(b, body, cell, quantizer, given, p_t, r, initializers, **flags)
    y, c_new = type_.step(step)
    if rounds_output(cell):
        y = quantizer(body, "hidden", y)
    made = {"hidden": y, "cell_state": c_new}
    outputs = [_output(body, made[n], f"{n}.next", hidden, batch) for n in list(made)[: len(states)]]
    names = ["hidden.last", "cell_state.last"][: len(states)]
    want_y = at.y is not None or (at.y_h is not None and at.sequence_lens is not None)
    want_c = at.y_c is not None and at.sequence_lens is not None
    if want_y:
        outputs.append(_output(body, y, "hidden.step", hidden, batch))
        names.append("hidden.steps")
    if want_c:
        outputs.append(_output(body, c_new, "cell_state.step", hidden, batch))
        names.append("cell_state.steps")
    results = dict(zip(names, scan(b, body, cell, at, list(states), [p], [*given, p_t], outputs, names), strict=True))
    return Steps(*(results.get(n) for n in ("hidden.steps", "cell_state.steps", "hidden.last", "cell_state.last")))


def scan(
    b: Builder,
    body: Builder,
    cell: Cell,
    at: Boundary,
    states: list[Value],
    sequences: list[Value],
    inputs: list[Value],
    outputs: list[Value],
    names: list[str],
) -> list[Value]:
    """Adds the Scan node; a reverse cell scans backwards, unless lengths had its input reversed before."""
    attrs: dict[str, Any] = {
        "body": body.graph(inputs, outputs, "step"),
        "num_scan_inputs": len(sequences),
    }
    if cell.reverse and at.sequence_lens is None:
        attrs["scan_input_directions"] = [1] * len(sequences)
        scanned = len(outputs) - len(states)
        if scanned:
            attrs["scan_output_directions"] = [1] * scanned
    return list(b.ops("Scan", [*states, *sequences], names, **attrs))


def _output(body: Builder, value: Value, name: str, hidden: int, batch: Size) -> Value:
    # Scan needs the rank of its body's outputs inside a Loop.
    copy = body.value(name, value.dtype or np.float32, [batch, hidden])
    body.add("Identity", [value], [copy], name)
    return copy


def initial_states(b: Builder, cell: Cell, at: Boundary) -> list[Value]:
    """The initial states, zeros `[B,H]` where the node has none."""
    given = [at.initial_h, at.initial_c] if cell.type.cell_state else [at.initial_h]
    zeros: Value | None = None
    if any(v is None for v in given):
        zeros = b.op("Expand", [b.f32(0.0), state_shape(b, cell, at.x)], "state.zeros")
    return [v or zeros for v in given]


def state_shape(b: Builder, cell: Cell, x: Value) -> Value:
    """The shape `[B,H]`.

    A constant where the graph fixes B. onnxruntime 1.31 folds a Shape of known size; in a branch of If, where nothing
    but another If (the choice of a product, say) is left to read `x`, it then loses `x`, if that comes from an If, too.
    """
    if cell.static_batch is not None:
        return b.i64([cell.static_batch, cell.hidden_size])
    return b.op("Concat", [dimensions(b, x, 1, 2, "batch"), b.i64([cell.hidden_size])], "state.shape", axis=0)


def dimensions(b: Builder, value: Value, start: int, end: int, name: str) -> Value:
    """The dimensions `start` to `end` (exclusive) of `value`, int64 `[end - start]`."""
    if b.model.opset >= 15:
        return b.op("Shape", [value], name, start=start, end=end)
    whole = b.op("Shape", [value], f"{name}.whole")
    return b.op("Slice", [whole, b.i64([start]), b.i64([end]), b.i64([0])], name)


def lens64(b: Builder, lens: Value | None) -> Value:
    """Sequence lengths as ReverseSequence wants them (a length of 0 reverses like 1: not at all)."""
    assert lens is not None
    return b.op("Max", [b.cast(lens, np.int64, "lens.int64"), b.i64([1])], "lens.at_least_one")


def finish(b: Builder, cell: Cell, at: Boundary, steps: Steps) -> None:
    """Writes the boundary outputs from what the loop left behind."""
    if at.sequence_lens is None:
        if at.y is not None:
            b.add("Identity", [steps.y], [at.y], "Y")
        if at.y_h is not None:
            b.add("Identity", [steps.last_h], [at.y_h], "Y_h")
        if at.y_c is not None:
            b.add("Identity", [steps.last_c], [at.y_c], "Y_c")
        return
    masks = LengthMasks(b, at)
    if at.y is not None:
        assert steps.y is not None
        masked = masks.mask_float(steps.y, "hidden.masked")
        masks.natural_order(masked, at.y, cell.reverse, "Y")
    if at.y_h is not None:
        b.add("Identity", [masks.pick(steps.y, "hidden.picked")], [at.y_h], "Y_h")
    if at.y_c is not None:
        b.add("Identity", [masks.pick(steps.c, "cell_state.picked")], [at.y_c], "Y_c")


class LengthMasks:
    """What variable lengths need after the loop; a length outside 0 .. T makes a Gather fail at run time."""

    def __init__(self, b: Builder, at: Boundary) -> None:
        self.b = b
        lens = b.cast(at.sequence_lens, np.int64, "lens") if at.sequence_lens is not None else None
        assert lens is not None
        time = dimensions(b, at.x, 0, 1, "time")
        steps = b.op("Squeeze", [time, b.i64([0])], "time.scalar")
        past = b.op("Add", [steps, b.i64(1)], "time.past")
        allowed = b.op("Range", [b.i64(0), past, b.i64(1)], "lens.allowed")
        negative = b.op("Less", [lens, b.i64(0)], "lens.negative")
        index = b.op("Where", [negative, past, lens], "lens.index")
        self.lens = b.op("Gather", [allowed, index], "sequence_lens_must_be_0_to_T", axis=0)
        times = b.op(
            "Unsqueeze", [b.op("Range", [b.i64(0), steps, b.i64(1)], "time.range"), b.i64([1, 2])], "time.column"
        )
        self.valid = b.op("Less", [times, b.op("Unsqueeze", [self.lens, b.i64([0, 2])], "lens.row")], "time.valid")

    def mask(self, values: Value | None, blank: Value, name: str) -> Value:
        """`[T,B,H]` with `blank` beyond each sequence's length."""
        return self.b.op("Where", [self.valid, values, blank], name)

    def mask_float(self, values: Value, name: str) -> Value:
        """`[T,B,H]` with 0 beyond each sequence's length, and no negative zero."""
        return positive_zeros(self.b, self.mask(values, self.b.f32(0.0), f"{name}.signed"), name)

    def natural_order(self, values: Value, target: Value, reverse: bool, name: str) -> None:
        """Writes `[T,B,H]` in loop order to `target` in natural order."""
        if reverse:
            lens = self.b.op("Max", [self.lens, self.b.i64([1])], f"{name}.lens")
            self.b.add("ReverseSequence", [values, lens], [target], name, batch_axis=1, time_axis=0)
        else:
            self.b.add("Identity", [values], [target], name)

    def pick(self, values: Value | None, name: str) -> Value:
        """`[B,H]` after the last valid element, zeros for a length of 0."""
        b = self.b
        last = b.op("Max", [b.op("Sub", [self.lens, b.i64(1)], f"{name}.before"), b.i64([0])], f"{name}.index")
        count = b.op("Squeeze", [dimensions(b, self.lens, 0, 1, f"{name}.batch"), b.i64([0])], f"{name}.batch.scalar")
        rows = b.op("Range", [b.i64(0), count, b.i64(1)], f"{name}.rows")
        pairs = b.op(
            "Concat",
            [b.op("Unsqueeze", [last, b.i64([1])], f"{name}.t"), b.op("Unsqueeze", [rows, b.i64([1])], f"{name}.b")],
            f"{name}.where",
            axis=1,
        )
        taken = b.op("GatherND", [values, pairs], f"{name}.taken")
        empty = b.op(
            "Unsqueeze", [b.op("Equal", [self.lens, b.i64(0)], f"{name}.empty"), b.i64([1])], f"{name}.empty.column"
        )
        return positive_zeros(b, b.op("Where", [empty, b.f32(0.0), taken], f"{name}.signed"), name)


def positive_zeros(b: Builder, value: Value, name: str) -> Value:
    """`value` with 0 for -0: onnxruntime's Where loses the sign of a zero it selects, other runtimes need not."""
    return b.op("Where", [b.op("Equal", [value, b.f32(0.0)], f"{name}.is_zero"), b.f32(0.0), value], name)


def _parameters(model: Model, cell: Cell) -> dict[str, Value]:
    held = {k: v for graph in model.graphs() for k, v in graph_info(graph).initializers.items()}
    return {
        key: held[name]
        for key, name in (("W", cell.W), ("R", cell.R), ("B", cell.B), ("P", cell.P), ("hidden_bias", cell.hidden_bias))
        if name is not None
    }
