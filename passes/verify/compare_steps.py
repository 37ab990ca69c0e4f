"""Compares one step of every cell of two models on the same inputs; for fused cells also the native library."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

from rnnqc.cells.base import Cell
from rnnqc.cells.stages import FusedCell, QonnxCell, QuantizedCell
from rnnqc.errors import CompileError
from rnnqc.passes.cells.cell_graphs import ROW_FORMAT
from rnnqc.passes.graph.flat.flat_model import FlatModel, MissingValueError
from rnnqc.passes.verify.cell_sides import REAL, CellSide
from rnnqc.passes.verify.equal_bodies import changed_body
from rnnqc.passes.verify.single_step import SingleStep, WrongValue

Array = npt.NDArray[Any]
_STEPS, _BATCH = 6, 3


@dataclass
class StepFindings:
    """The results of comparing single steps.

    Attributes:
        cells: Number of compared cells.
        compared: Number of compared values of their steps.
        passed_over: Values that could not be compared, each with the reason.
        wrong: The differences, in the order of computation.
        bodies: Number of cells that were fused before; for them the function bodies were compared.
        rewritten: Whether a cell has another form after the pass.
    """

    cells: int = 0
    compared: int = 0
    passed_over: list[str] = field(default_factory=list)
    wrong: list[WrongValue | str] = field(default_factory=list)
    bodies: int = 0
    rewritten: bool = False

    def __str__(self) -> str:
        if self.bodies and not self.cells:
            return f"function bodies: those of {self.bodies} cells compared"
        text = f"single steps: {self.compared} values of {self.cells} cells compared"
        if self.passed_over:
            text += f", {len(self.passed_over)} passed over: {', '.join(self.passed_over)}"
        return text

    def add(self, step: SingleStep, *, first: bool = True) -> None:
        """Adds the comparison of a cell.

        Args:
            step: The comparison.
            first: Whether the cell was not compared before, in another branch.
        """
        name = step.cell.name
        try:
            self.wrong += step.wrong_values()
        except CompileError as error:
            self.wrong.append(f"a step of {name!r} does not run: {error.message}")
        except MissingValueError as error:
            self.passed_over.append(f"{name} (nothing makes {str(error)!r})")
            return
        if first:
            self.cells += 1
            self.compared += step.compared
            self.passed_over += step.passed_over


def compare_steps(
    before: onnx.ModelProto, cells_before: Mapping[str, Cell], after: onnx.ModelProto, cells_after: Mapping[str, Cell]
) -> StepFindings:
    """Compares one step of each cell that both models have.

    Cells of one form must be bit-exact. Cells that are in only one model, or became quantized, are skipped. Cells that
    were fused before must keep their function bodies.
    """
    found = StepFindings()
    names = [n for n, c in cells_after.items() if n in cells_before and _are_comparable(cells_before[n], c)]
    fused = [n for n in names if isinstance(cells_before[n], FusedCell)]
    names = [n for n in names if n not in fused]
    found.bodies = len(fused)
    found.wrong += [text for n in fused if (text := changed_body(before, after, n)) is not None]
    if not names:
        return found
    first, second = FlatModel(before, names), FlatModel(after, names)
    for name in names:
        sides = CellSide(first, cells_before[name]), CellSide(second, cells_after[name])
        integer = [side.form != REAL for side in sides]
        found.rewritten |= integer[0] != integer[1]
        found.add(SingleStep(*sides, exact=integer[0] == integer[1]))
    for turned in _subsets(second.conditions):  # branches for other machines and other states
        one, other = first.with_turned(turned) if first.conditions else first, second.with_turned(turned)
        for name in names:
            sides = CellSide(one, cells_before[name]), CellSide(other, cells_after[name])
            exact = (sides[0].form != REAL) == (sides[1].form != REAL)
            right = None if exact else CellSide(second, cells_after[name])
            found.add(SingleStep(*sides, exact=exact, right=right), first=False)
    made = [cell for n in names if isinstance(cell := cells_after[n], FusedCell)]
    if made:
        calls = FlatModel(after, [], functions=True)
        found.wrong += [text for cell in made if (text := _native_difference(calls, cell)) is not None]
    return found


def _subsets(conditions: Collection[str]) -> Iterator[tuple[str, ...]]:
    """Yields all non-empty subsets."""
    for count in range(1, len(conditions) + 1):
        yield from combinations(sorted(conditions), count)


def _native_difference(calls: FlatModel, cell: FusedCell) -> str | None:
    """Returns where a fused node differs with the native library, whose kernel computes from the node's attributes."""
    rng, batch = np.random.default_rng(0), cell.static_batch or _BATCH
    steps = cell.static_length or _STEPS
    shape = (steps, batch, cell.input_size)
    x: Array = (rng.normal(0, 1, shape) * 10.0 ** rng.uniform(-1, 1, (steps, batch, 1))).astype(np.float32)
    names = (cell.x, *cell.more_x)
    feeds: dict[str, Array] = dict(zip(names, np.array_split(x, len(names), axis=-1), strict=True))
    if cell.numbers.x_mode == "codes":
        feeds[cell.x] = rng.integers(0, 256, shape).astype(np.uint8)
    if cell.x_scale is not None:
        feeds[cell.x] = rng.integers(ROW_FORMAT.minimum, ROW_FORMAT.maximum + 1, shape).astype(np.int8)
        feeds[cell.x_scale] = 10.0 ** rng.uniform(-4, -1, (steps, batch, 1)).astype(np.float32)
    node = next(n for n in calls.makers.values() if n.name == cell.name)
    has_axis = any(a.name == "state_direction_axis" and a.i for a in node.attribute)
    for name, size in ((cell.initial_h, 0.5), (cell.initial_c, 2.0)):
        if name is not None:
            state = rng.normal(0, size, (*([1] if has_axis else []), batch, cell.hidden_size))
            feeds[name] = state.astype(np.float32)
    if cell.sequence_lens is not None:
        feeds[cell.sequence_lens] = (np.arange(batch) % (steps + 1)).astype(np.int32)
    outputs = [o for o in node.output if o]
    try:
        stock, native = (calls.run(feeds, outputs, native=flag) for flag in (False, True))
    except FileNotFoundError:  # a checkout without the library
        return None
    except (CompileError, MissingValueError) as error:
        return f"the fused node of {cell.name!r} does not run: {error}"
    for name in outputs:
        if not np.array_equal(stock[name], native[name], equal_nan=stock[name].dtype.kind == "f"):
            worst = np.abs(stock[name].astype(np.float64) - native[name].astype(np.float64)).max()
            return f"{name!r} of {cell.name!r} is another with the native library: max abs difference {worst:.3g}"
    return None


def _are_comparable(before: Cell, after: Cell) -> bool:
    if isinstance(before, QonnxCell) or isinstance(after, QonnxCell):
        return False
    return isinstance(before, QuantizedCell) == isinstance(after, QuantizedCell)
