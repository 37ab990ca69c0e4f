"""A greedy search for the cheapest assignment of choices to units that is good enough, or the best of the cheap ones.

An assignment is a tuple with the number of a choice for each unit. What it costs and how good it is comes from a
function that really measures it; the search itself knows nothing of models.
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
"""Single changes, each a unit and a choice, the most promising first: to get cheaper (True), or better."""
FOR_COMBINATIONS = 0.3
"""The share of the time that is kept for combinations of changes that were measured alone."""


@dataclass(frozen=True)
class Measured:
    """One assignment, measured.

    Attributes:
        cost: Less is better.
        damage: What additive quality is lost, as a number that grows: noise power, or a metric with its sign turned.
        quality: What is compared with the target; more is better.
    """

    cost: int
    damage: float
    quality: float


UNKNOWN = Measured(cost=sys.maxsize, damage=math.inf, quality=-math.inf)
"""What was not measured, or cannot be: no better than anything."""


@dataclass(frozen=True)
class Step:
    """A change of one unit that the search kept.

    Attributes:
        unit: Which one.
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
        start: The assignment it began with, measured.
        assignment: The best one found: the cheapest that reaches the target, or the best within the limit; without one,
            the one of best quality, or the cheapest.
        measured: It, measured.
        reached: Whether it reaches the target, or is within the limit.
        steps: The changes that led there, in order.
        tried: How many assignments were measured.
        ended_early: Whether there was no time for all that the search would have measured.
        frontier: Those for which no other one costs as little or less and is better, the cheapest first.
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
        """The assignment it began with, and those after each step."""
        results = [self.start, *(step.result for step in self.steps)]
        assignments = [self.assignment]
        for step in reversed(self.steps):
            assignments.append(_with(assignments[-1], step.unit, step.before))
        return list(zip(reversed(assignments), results, strict=True))

    def end_at(self, place: int, *, reached: bool) -> None:
        """Ends the path earlier, at a place of it."""
        self.assignment, self.measured = self.path[place]
        self.steps, self.reached = self.steps[:place], reached


def thinned(places: Sequence[_T], most: int) -> list[_T]:
    """At most so many of them, about evenly, with the first and the last."""
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
        """An assignment; `UNKNOWN`, which no search takes, if there is no time left for it beside the share `kept`."""
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
        """Measures the start; where it leaves something to save, what saves most is looked at first."""
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
        """What a change would give: measured, or, where no time is left for that, as it changed the start."""
        result = self.measured(_with(found.assignment, unit, choice), FOR_COMBINATIONS)
        if result is not UNKNOWN:
            return result
        held, base = found.assignment[unit], found.measured
        before, after = (self._known.get(_with(self._start, unit, c), UNKNOWN) for c in (held, choice))
        if UNKNOWN in (before, after):
            return UNKNOWN
        return Measured(base.cost + after.cost - before.cost, base.damage + after.damage - before.damage, -math.inf)

    def _repeat(self, found: Found, is_done: Callable[[], bool], most: float) -> None:
        """Improves until that does nothing: what does nothing alone may do something after another change."""
        improved = True
        while improved and not is_done():
            before = found.assignment
            self._improve(found, free=False, most=most)
            improved = found.assignment != before

    def _improve(self, found: Found, *, free: bool, most: float = math.inf) -> None:
        """Takes changes that undo most damage for their cost.

        Args:
            found: What is known, and is changed.
            free: Only changes that cost nothing.
            most: What the whole may cost; if there is no such bound, changes are taken until the target is reached.
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
        """Takes changes that lose least for what they save, those that may be kept."""
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
    """Those that no other one is as good as for as little."""
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
    """The cheapest assignment found whose quality is at least `target`, or the best that costs at most `limit`.

    First what is better and costs nothing. For a target, if that is not good enough, changes of single units that undo
    most damage per cost; then changes that lose least quality per cost saved. For a limit these come first, until it is
    kept, and then those that undo most, as far as it allows. How much a change does is measured alone, once for every
    unit and choice; every combination that is kept is measured as a whole. Never dearer than a start that reaches the
    target, never worse than a start within the limit; the same calls, in the same order, for the same measurements.

    Args:
        choices: How many choices each unit has.
        measure: Cost and quality of an assignment; called once for each.
        target: The quality asked for.
        start: The assignment to begin with; the first choice of every unit by default.
        limit: Instead of a target: the cost allowed.
        time_left: The share of the time that is left, 1 at the start. At 0 nothing more is measured; changes alone are
            not measured in the last part of it, which is for their combinations.
        order: In which order single changes are measured; by default that of the units. It matters where time ends.
    """
    first = start if start is not None else (0,) * len(choices)
    return _Search(choices, measure, target, limit, time_left, order).run(first)


def descend(
    choices: Sequence[int],
    measure: Callable[[Assignment], Measured],
    time_left: Callable[[], float] = lambda: 1.0,
    order: Order | None = None,
) -> Found:
    """From the first choice of every unit to the best assignment found, and from there to the cheapest.

    Its path is for those who choose by what the search does not know.
    """
    return _Search(choices, measure, None, None, time_left, order).run_down((0,) * len(choices))
