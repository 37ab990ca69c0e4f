"""Makes the values at the quantization points of custom cells observable."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rnnqc.ir import Graph, Model, Value, attribute, shape_of
from rnnqc.ir.builder import Builder
from rnnqc.passes.analysis.custom_cell import HIDDEN, CustomCell
from rnnqc.passes.cells.observe import ANY_RANK, Observed
from rnnqc.passes.graph.loops.loop_states import behind_views

MASK = "mask"
"""Stands for the value that says which rows are no padding."""
Dimension = int | str | None


def observe_custom_cell(model: Model, cell: CustomCell) -> list[Observed]:
    """Adds copies of the values at the points of `cell` to the model, in place, and returns where they are.

    Values of unknown rank in a Scan are skipped.
    """
    look = _Observer(model, cell)
    for name, sites in cell.products.items():
        for product in sites:
            look.note(f"{name}.{HIDDEN}", product.x)
    for point, values in cell.edges.items():
        for value in values:
            look.note(point, value)
    for point, values in cell.entering.items():
        for value in {id(v): v for v in values}.values():
            look.note(point, value, entering=True)
    condition = mask_of(cell)
    if condition is not None:
        look.note(MASK, condition, mask=True)
    return look.found


def observe_states(model: Model, cell: CustomCell) -> Observed | None:
    """Adds a copy of the first state that `cell` multiplies, after each step, to the model, in place.

    Returns None if there is no such state, or if its shape is not known.
    """
    look = _Observer(model, cell)
    value = cell.state_made
    if value is not None:
        look.note(str(cell.state_point), value)
    return next(iter(look.found), None)


class _Observer:
    """Adds copies of values to a model."""

    def __init__(self, model: Model, cell: CustomCell) -> None:
        self.model, self.cell = model, cell
        self.found: list[Observed] = []
        self.made = {id(v) for n in cell.graph.nodes for v in n.outputs} | {id(v) for v in cell.graph.inputs}

    def note(self, point: str, value: Value, *, mask: bool = False, entering: bool = False) -> None:
        cell, loop = self.cell, self.cell.recurrence.loop
        shape, inside = shape_of(value), id(value) in self.made
        step = inside and loop is not None and loop.op == "Scan"
        if shape is None and step:
            return  # a scan output needs a rank
        graph: Graph = cell.graph if inside else cell.outer
        b = Builder(self.model, prefix=f"{cell.name}.{point}")
        copy = b.cast(value, np.float32, "observed") if mask else b.op("Identity", [value], "observed")
        graph.nodes.extend(b.nodes)
        size = shape[-1] if shape and isinstance(shape[-1], int) else 1
        rank = ANY_RANK if shape is None else len(shape) + step
        self.found.append(Observed(cell.name, point, copy.name, step, rank, size, entering=entering))


def mask_of(cell: CustomCell) -> Value | None:
    """Returns the condition that holds all states, for rows of the batch that have ended; None without a common one."""
    conditions: list[Value] = []
    for state in cell.states:
        value = behind_views(state.after)
        if state.new is not state.after:
            conditions.append(value.inputs[0].inputs[0])
    carried = [s for s in cell.states if not s.invariant]
    same = bool(conditions) and len(conditions) == len(carried) and all(c is conditions[0] for c in conditions)
    return conditions[0] if same else None


def dimensions_of(cell: CustomCell) -> tuple[Dimension, Dimension]:
    """Returns the number of steps and the batch size, as far as shapes determine them."""
    loop = cell.recurrence.loop
    if loop is None:
        return cell.recurrence.steps, None
    length: Dimension = None
    batch = _first([shape_of(s.initial) for s in cell.states])
    if loop.op == "Scan":
        count = attribute(loop, "num_scan_inputs", 1)
        axes = attribute(loop, "scan_input_axes", None) or [0] * count
        for value, axis in zip(loop.inputs[len(loop.inputs) - count :], axes, strict=True):
            shape = shape_of(value)
            if shape is None or len(shape) < 3:
                continue
            length = shape[axis] if length is None else length
            rest = [d for k, d in enumerate(shape) if k != axis % len(shape)]
            batch = rest[0] if batch is None else batch
    return length, batch


def _first(shapes: Sequence[Sequence[Dimension] | None]) -> Dimension:
    return next((s[0] for s in shapes if s is not None and len(s) == 2), None)
