"""Expressions of operators that move elements, and the elements of their results."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

Table = npt.NDArray[np.int64]
"""For each element of a value, which element of a region's sources it is."""
LAST = np.iinfo(np.int64)


@dataclass(frozen=True)
class Source:
    """An input value of a region.

    Attributes:
        number: Its index among the sources of the region.
    """

    number: int


@dataclass(frozen=True)
class Move:
    """One operator.

    Attributes:
        op: "Reshape", "Transpose", "Slice", "Gather", "Concat" or "Split".
        inputs: The moved inputs.
        operand: Reshape: the new and the old shape. Transpose: the permutation. Slice: axis, start, step and length for
            each sliced axis. Gather: the axis, the shape of the indices, and the indices. Concat: the axis. Split: the
            axis and the sizes.
        copied: Number of elements that it copies.
    """

    op: str
    inputs: tuple[Made, ...]
    operand: tuple[Any, ...]
    copied: int


@dataclass(frozen=True)
class Output:
    """An output of an operator.

    Attributes:
        move: The operator.
        number: Index of the output.
    """

    move: Move
    number: int = 0


Made = Source | Output


@dataclass(frozen=True)
class View:
    """An expression with the elements of its result.

    Attributes:
        made: The expression.
        table: Its elements.
    """

    made: Made
    table: Table = field(compare=False)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the value."""
        return self.table.shape


def reshaped(view: View, shape: Sequence[int]) -> View:
    """Returns a Reshape; omits it if the shape is equal, and merges two in a row."""
    made, before = view.made, view.shape
    if isinstance(made, Output) and made.move.op == "Reshape":
        (source,), (_, before) = made.move.inputs, made.move.operand
        made = source
    table = view.table.reshape(tuple(shape))
    if table.shape == before:
        return View(made, table)
    return View(Output(Move("Reshape", (made,), (table.shape, before), 0)), table)


def transposed(view: View, order: Sequence[int]) -> View:
    """Returns a Transpose."""
    return _moved("Transpose", [view], tuple(order), view.table.transpose(tuple(order)))


def sliced(view: View, cuts: Sequence[tuple[int, int, int, int]]) -> View:
    """Returns a Slice: axis, start, step and length for each sliced axis."""
    table = view.table
    for axis, start, step, length in cuts:
        table = np.take(table, start + step * np.arange(length), axis)
    return _moved("Slice", [view], tuple(cuts), table)


def gathered(view: View, axis: int, indices: npt.NDArray[np.int64]) -> View:
    """Returns a Gather of constant indices of any shape."""
    operand = (axis, indices.shape, tuple(indices.ravel().tolist()))
    return _moved("Gather", [view], operand, np.take(view.table, indices, axis))


def joined(views: Sequence[View], axis: int) -> View:
    """Returns a Concat."""
    return _moved("Concat", views, (axis,), np.concatenate([v.table for v in views], axis))


def parted(view: View, axis: int, sizes: Sequence[int]) -> list[View]:
    """Returns the outputs of a Split."""
    move = Move("Split", (view.made,), (axis, tuple(sizes)), view.table.size)
    tables = np.split(view.table, np.cumsum(sizes)[:-1], axis)
    return [View(Output(move, k), t) for k, t in enumerate(tables)]


def moves_of(views: Iterable[View]) -> list[Move]:
    """Returns the distinct operators of views, each after those it depends on."""
    found: dict[Move, None] = {}

    def visit(made: Made) -> None:
        if isinstance(made, Output) and made.move not in found:
            for source in made.move.inputs:
                visit(source)
            found[made.move] = None

    for view in views:
        visit(view.made)
    return list(found)


def cost(views: Iterable[View]) -> tuple[int, int, int]:
    """Returns the number of operators of the views, of elements that they copy, and of Gathers among them."""
    found = moves_of(views)
    return len(found), sum(m.copied for m in found), sum(m.op == "Gather" for m in found)


def slice_operands(cuts: Iterable[tuple[int, int, int, int]]) -> tuple[list[int], list[int], list[int], list[int]]:
    """Returns starts, ends, axes and steps of a Slice."""
    starts, ends, axes, steps = [], [], [], []
    for axis, start, step, length in cuts:
        end = start + step * length
        starts.append(start)
        ends.append(end if end >= 0 else int(LAST.min))
        axes.append(axis)
        steps.append(step)
    return starts, ends, axes, steps


def _moved(op: str, views: Sequence[View], operand: tuple[Any, ...], table: Table) -> View:
    return View(Output(Move(op, tuple(v.made for v in views), operand, math.prod(table.shape))), table)
