"""A greedy search for the cheapest assignment of choices to units that is good enough, or the best within a cost limit.

An assignment is a tuple with the number of a choice for each unit. A measuring function returns its cost and quality;
the search itself knows nothing of models.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

_T = TypeVar("_T")
Assignment = tuple[int, ...]
Order = Callable[[bool], Sequence[tuple[int, int]]]
"""Returns single changes (unit, choice), the most promising first: for lower cost (True) or better quality."""
FOR_COMBINATIONS = 0.3
"""The share of the time that is kept for combinations of changes that were measured alone."""


@dataclass(frozen=True)
class Measured:
    """One measured assignment.

    Attributes:
        cost: Less is better.
        damage: Additive loss of quality that grows: noise power, or a metric with its sign reversed.
        quality: The value compared with the target; more is better.
    """

    cost: int
    damage: float
    quality: float


UNKNOWN = Measured(cost=sys.maxsize, damage=math.inf, quality=-math.inf)
"""Stands for an assignment that was not or cannot be measured. It never beats another."""


@dataclass(frozen=True)
class Step:
    """A change of one unit that the search kept.

    Attributes:
        unit: Its number.
        before: Its choice before.
        after: Its choice after.
        result: The whole assignment after the change.
        cost_before: Cost of the whole before the change.
        quality_before: Quality of the whole before the change.
    """

    unit: int
    before: int
    after: int
    result: Measured
    cost_before: int
    quality_before: float


@dataclass
class Found:
    """The outcome of a search.

    Attributes:
        start: The initial assignment, measured.
        assignment: The best one found: the cheapest that reaches the target, or the best within the limit; if there is
            none, the one of best quality, or the cheapest.
        measured: Its measurement.
        reached: Whether it reaches the target, or is within the limit.
        steps: The changes that led there, in order.
        tried: Number of measured assignments.
        ended_early: Whether time ran out before the search was complete.
        frontier: Assignments that no other beats (no higher cost and no lower quality), the cheapest first.
        unseen: Units with only their first choice measured.
        alone: How many single changes of the start were measured, and how many there are.
    """

    start: Measured
    assignment: Assignment
    measured: Measured
    reached: bool
    steps: list[Step] = field(default_factory=list)
    tried: int = 0
    ended_early: bool = False
    frontier: list[tuple[Assignment, Measured]] = field(default_factory=list)
    unseen: list[int] = field(default_factory=list)
    alone: tuple[int, int] = (0, 0)

    @property
    def path(self) -> list[tuple[Assignment, Measured]]:
        """The initial assignment and those after each step."""
        results = [self.start, *(step.result for step in self.steps)]
        assignments = [self.assignment]
        for step in reversed(self.steps):
            assignments.append(_with(assignments[-1], step.unit, step.before))
        return list(zip(reversed(assignments), results, strict=True))

    def end_at(self, place: int, *, reached: bool) -> None:
        """Cuts the path off after `place` steps."""
        self.assignment, self.measured = self.path[place]
        self.steps, self.reached = self.steps[:place], reached


def thinned(places: Sequence[_T], most: int) -> list[_T]:
    """Returns at most `most` of `places`, evenly spread, including the first and the last."""
    count = min(most, len(places))
    return [places[round(k * (len(places) - 1) / max(1, count - 1))] for k in range(count)]


class _Search:
    def __init__(
        self,
        choices: Sequence[int],
        measure: Callable[[Assignment], Measured],
        target: float | None,
        limit: int | None,
        time_left: Callable[[], float],
        order: Order | None,
    ) -> None:
        self._choices, self._measure, self._target, self._limit = choices, measure, target, limit
        self._time_left, self._ended_early = time_left, False
        self._known: dict[Assignment, Measured] = {}
        self._order, self._places = order, dict[tuple[int, int], int]()

    def is_reached(self, result: Measured) -> bool:
        if self._limit is not None:
            return result.cost <= self._limit
        return self._target is None or result.quality >= self._target

    def measured(self, assignment: Assignment, kept: float = 0.0) -> Measured:
        """Measures an assignment; `UNKNOWN`, which no search takes, if at most the share `kept` of the time is left."""
        if assignment not in self._known:
            if self._known and self._time_left() <= kept:
                self._ended_early = True
                return UNKNOWN
            self._known[assignment] = self._measure(assignment)
        return self._known[assignment]

    def neighbours(self, assignment: Assignment) -> list[tuple[int, int]]:
        changes = [(u, c) for u, count in enumerate(self._choices) for c in range(count) if c != assignment[u]]
        return sorted(changes, key=lambda change: self._places.get(change, len(self._places)))

    def _begin(self, start: Assignment, *, cheaper: bool | None = None) -> Measured:
        """Measures the start. If the search has to save cost, the changes that save most come first."""
        self._start, first = start, self.measured(start)
        cheaper = self.is_reached(first) == (self._limit is None) if cheaper is None else cheaper
        if self._order is not None:
            self._places = {change: place for place, change in enumerate(self._order(cheaper))}
        return first

    def run(self, start: Assignment) -> Found:
        first = self._begin(start)
        found = Found(first, start, first, self.is_reached(first))
        self._improve(found, free=True)
        if self._limit is None:
            self._repeat(found, lambda: found.reached, math.inf)
            if found.reached:
                self._cheapen(found, self.is_reached)
        else:
            self._cheapen(found, lambda _: not found.reached)
            self._repeat(found, lambda: not found.reached, self._limit)
        return self._ended(found)

    def run_down(self, start: Assignment) -> Found:
        first = self._begin(start, cheaper=True)
        found = Found(first, start, first, reached=True)
        self._improve(found, free=True)
        self._repeat(found, lambda: False, sys.maxsize)
        self._cheapen(found, lambda _: True)
        return self._ended(found)

    def _ended(self, found: Found) -> Found:
        found.tried, found.ended_early = len(self._known), self._ended_early
        found.frontier = _frontier(self._known)
        found.unseen = [u for u in range(len(self._choices)) if len({a[u] for a in self._known}) < 2]
        changes = [(u, c) for u, count in enumerate(self._choices) for c in range(count) if c != self._start[u]]
        found.alone = sum(_with(self._start, u, c) in self._known for u, c in changes), len(changes)
        return found

    def _expected(self, found: Found, unit: int, choice: int) -> Measured:
        """Returns the result of a change: measured, or without time for that estimated from its effect on the start."""
        result = self.measured(_with(found.assignment, unit, choice), FOR_COMBINATIONS)
        if result is not UNKNOWN:
            return result
        held, base = found.assignment[unit], found.measured
        before, after = (self._known.get(_with(self._start, unit, c), UNKNOWN) for c in (held, choice))
        if UNKNOWN in (before, after):
            return UNKNOWN
        return Measured(base.cost + after.cost - before.cost, base.damage + after.damage - before.damage, -math.inf)

    def _repeat(self, found: Found, is_done: Callable[[], bool], most: float) -> None:
        """Repeats `_improve` until nothing changes: a change without effect may have one after another change."""
        improved = True
        while improved and not is_done():
            before = found.assignment
            self._improve(found, free=False, most=most)
            improved = found.assignment != before

    def _improve(self, found: Found, *, free: bool, most: float = math.inf) -> None:
        """Keeps changes that undo most damage for their cost.

        Args:
            found: The state of the search, which is updated.
            free: Only changes that cost nothing.
            most: The allowed total cost; if infinite, changes are kept until the target is reached.
        """
        base, ranked = found.measured, []
        for unit, choice in self.neighbours(found.assignment):
            result = self._expected(found, unit, choice)
            gain = base.damage - result.damage
            if gain > 0 and result.cost <= (base.cost if free else most):
                ranked.append((-gain / max(1, result.cost - base.cost), unit, choice))
        for _, unit, choice in sorted(ranked):
            if found.reached and not free and most == math.inf:
                return
            result = self.measured(_with(found.assignment, unit, choice))
            if result.damage < found.measured.damage and result.cost <= (found.measured.cost if free else most):
                self._keep(found, unit, choice, result)

    def _cheapen(self, found: Found, is_kept: Callable[[Measured], bool]) -> None:
        """Keeps changes that lose least for what they save, as far as `is_kept` allows."""
        base, ranked = found.measured, []
        for unit, choice in self.neighbours(found.assignment):
            result = self._expected(found, unit, choice)
            saved = base.cost - result.cost
            if saved > 0:
                loss = max(0.0, result.damage - base.damage)
                ranked.append((loss / saved, -saved, unit, choice))
        for _, _, unit, choice in sorted(ranked):
            if found.assignment[unit] == choice:
                continue
            result = self.measured(_with(found.assignment, unit, choice))
            if result.cost < found.measured.cost and is_kept(result):
                self._keep(found, unit, choice, result)

    def _keep(self, found: Found, unit: int, choice: int, result: Measured) -> None:
        before = found.measured
        found.steps.append(Step(unit, found.assignment[unit], choice, result, before.cost, before.quality))
        found.assignment, found.measured = _with(found.assignment, unit, choice), result
        found.reached = self.is_reached(result)


def _with(assignment: Assignment, unit: int, choice: int) -> Assignment:
    return (*assignment[:unit], choice, *assignment[unit + 1 :])


def _frontier(known: Mapping[Assignment, Measured]) -> list[tuple[Assignment, Measured]]:
    """Returns the assignments that no other one beats, cheapest first."""
    kept: list[tuple[Assignment, Measured]] = []
    for assignment, result in sorted(known.items(), key=lambda item: (item[1].cost, -item[1].quality, item[0])):
        if result.quality > (kept[-1][1].quality if kept else -math.inf):
            kept.append((assignment, result))
    return kept


def search(
    choices: Sequence[int],
    measure: Callable[[Assignment], Measured],
    target: float | None = None,
    start: Assignment | None = None,
    *,
    limit: int | None = None,
    time_left: Callable[[], float] = lambda: 1.0,
    order: Order | None = None,
) -> Found:
    """Finds the cheapest assignment whose quality is at least `target`, or the best that costs at most `limit`.

    Improvements that cost nothing come first. For a target, changes that undo most damage per cost follow until it
    is reached, then changes that lose least per cost saved. For a limit the order is reversed: savings until it is met,
    then improvements within it. A change is ranked by its measurement alone; every combination that is kept is measured
    as a whole. The result never costs more than a start that reaches the target, and is never worse than a start within
    the limit. The search is deterministic: equal measurements give the same calls in the same order.

    Args:
        choices: The number of choices of each unit.
        measure: Returns cost and quality of an assignment; called once for each.
        target: The required quality.
        start: The initial assignment; the first choice of every unit by default.
        limit: Instead of a target: the allowed cost.
        time_left: The share of the time that is left, 1 at the start. At 0 nothing more is measured; the last part is
            kept for combinations, and no single changes are measured in it.
        order: The order in which single changes are measured; by default that of the units. It matters if time ends.
    """
    first = start if start is not None else (0,) * len(choices)
    return _Search(choices, measure, target, limit, time_left, order).run(first)


def descend(
    choices: Sequence[int],
    measure: Callable[[Assignment], Measured],
    time_left: Callable[[], float] = lambda: 1.0,
    order: Order | None = None,
) -> Found:
    """Goes from the first choice of every unit to the best assignment found, and from there to the cheapest.

    Callers pick a point of its path by a criterion that the search does not know, such as time.
    """
    return _Search(choices, measure, None, None, time_left, order).run_down((0,) * len(choices))
