"""Separates values of subgraphs by the iterations of the loops around them."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper

from rnnqc.passes.cells.observe import Level, Observed, count_stacked, places

Array = npt.NDArray[Any]
Trips = tuple[int, ...]
"""Iteration numbers of the loops around a value, from outside to inside."""
Made = dict[Trips, Array]
"""A value in each iteration that computes it, in the order of computation."""


def at(made: Made, trips: Trips) -> Array:
    """Returns the value in an iteration: its own one, or that of the loops it shares with `trips`."""
    return made[trips[: len(next(iter(made)))]]


@dataclass(frozen=True)
class Rounds:
    """How to separate the iterations of a value.

    Attributes:
        counters: Values that count the iterations of the Loops around it, from outside to inside; they are in the same
            branch.
        stacked: The number of leading axes that count the steps of Scans.
    """

    counters: tuple[Observed, ...]
    stacked: int

    def made(self, name: str, results: Mapping[str, Any]) -> Made:
        """Splits a value by iterations.

        Args:
            name: The value.
            results: Arrays by the names of values; lists of arrays for values in an If or a Loop, where a branch that
                was not taken gives an empty array.
        """
        held = [results[n] for n in (*(c.value for c in self.counters), name)]
        found: Made = {}
        for trip in zip(*(h if isinstance(h, list) else [h] for h in held), strict=True):
            *numbers, array = map(np.asarray, trip)
            if _is_nothing(numbers[0] if numbers else array):
                continue
            outer = tuple(int(n) for n in numbers)
            for inner in itertools.product(*map(range, array.shape[: self.stacked])):
                found[(*outer, *inner)] = array[inner] if inner else array
        return found


def rounds_of(proto: onnx.ModelProto, values: Iterable[str]) -> dict[str, Rounds]:
    """Returns how to separate the iterations of each value. Adds nodes that count iterations to the values' graphs.

    Args:
        proto: The model, whose names are unique over all graphs.
        values: Names of values.

    Raises:
        NotObservableError: A Scan contains a subgraph that is not a Scan.
    """
    where = dict(places(proto.graph))
    known: dict[int, tuple[Observed, ...]] = {}
    found = {}
    for name in values:
        levels = where[name]
        stacked = count_stacked([level.owner.op_type for level in levels])
        listed = levels[: len(levels) - stacked]
        place = id(listed[-1]) if listed else 0  # the values of a graph share one tuple of levels
        if place not in known:
            known[place] = _counters(listed, len(known))
        found[name] = Rounds(known[place], stacked)
    return found


def _counters(levels: tuple[Level, ...], number: int) -> tuple[Observed, ...]:
    """Adds copies of the iteration counters of all Loops to the innermost graph, and returns them."""
    made = []
    for depth, level in enumerate(levels):
        if level.owner.op_type != "Loop":
            continue
        name = f"rnnqc/trips{number}_{depth}"
        levels[-1].graph.node.append(helper.make_node("Identity", [level.graph.input[0].name], [name], name))
        made.append(Observed("", "trips", name, False, 0, 0, TensorProto.INT64))
    return tuple(made)


def _is_nothing(array: Array) -> bool:
    """Whether `array` is the placeholder of a branch that was not taken."""
    return array.ndim == 1 and not array.size
