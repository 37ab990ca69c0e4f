"""A greedy search for the cheapest assignment of choices to units that is good enough.

An assignment is a tuple with the number of a choice for each unit. What it costs and how good it is comes from a
function that really measures it; the search itself knows nothing of models.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

Assignment = tuple[int, ...]


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
        assignment: The best one found: the cheapest that reaches the target; without one, the one of best quality.
        measured: It, measured.
        reached: Whether it reaches the target.
        steps: The changes that led there, in order.
        tried: How many assignments were measured.
    """

    start: Measured
    assignment: Assignment
    measured: Measured
    reached: bool
    steps: list[Step] = field(default_factory=list)
    tried: int = 0


class _Search:
    def __init__(self, choices: Sequence[int], measure: Callable[[Assignment], Measured], target: float) -> None:
        self._choices, self._measure, self.target = choices, measure, target
        self._known: dict[Assignment, Measured] = {}

    def measured(self, assignment: Assignment) -> Measured:
        if assignment not in self._known:
            self._known[assignment] = self._measure(assignment)
        return self._known[assignment]

    def neighbours(self, assignment: Assignment) -> list[tuple[int, int]]:
        return [(u, c) for u, count in enumerate(self._choices) for c in range(count) if c != assignment[u]]

    def run(self, start: Assignment) -> Found:
        first = self.measured(start)
        found = Found(first, start, first, first.quality >= self.target)
        self._improve(found, free=True)
        improved = True
        while not found.reached and improved:
            before = found.assignment
            self._improve(found, free=False)  # what does nothing alone may do something after another change
            improved = found.assignment != before
        if found.reached:
            self._cheapen(found)
        found.tried = len(self._known)
        return found

    def _improve(self, found: Found, free: bool) -> None:
        """Takes changes that undo most damage for their cost: free ones, or any until the target is reached."""
        base, ranked = found.measured, []
        for unit, choice in self.neighbours(found.assignment):
            result = self.measured(_with(found.assignment, unit, choice))
            gain = base.damage - result.damage
            if gain > 0 and (not free or result.cost <= base.cost):
                ranked.append((-gain / max(1, result.cost - base.cost), unit, choice))
        for _, unit, choice in sorted(ranked):
            if found.reached and not free:
                return
            result = self.measured(_with(found.assignment, unit, choice))
            if result.damage < found.measured.damage and (not free or result.cost <= found.measured.cost):
                self._keep(found, unit, choice, result)

    def _cheapen(self, found: Found) -> None:
        """Takes changes that lose least for what they save, as long as the target is reached."""
        base, ranked = found.measured, []
        for unit, choice in self.neighbours(found.assignment):
            result = self.measured(_with(found.assignment, unit, choice))
            saved = base.cost - result.cost
            if saved > 0:
                loss = max(0.0, result.damage - base.damage)
                ranked.append((loss / saved, -saved, unit, choice))
        for _, _, unit, choice in sorted(ranked):
            if found.assignment[unit] == choice:
                continue
            result = self.measured(_with(found.assignment, unit, choice))
            if result.cost < found.measured.cost and result.quality >= self.target:
                self._keep(found, unit, choice, result)

    def _keep(self, found: Found, unit: int, choice: int, result: Measured) -> None:
        before = found.measured
        found.steps.append(Step(unit, found.assignment[unit], choice, result, before.cost, before.quality))
        found.assignment, found.measured = _with(found.assignment, unit, choice), result
        found.reached = result.quality >= self.target


def _with(assignment: Assignment, unit: int, choice: int) -> Assignment:
    return (*assignment[:unit], choice, *assignment[unit + 1 :])


def search(
    choices: Sequence[int], measure: Callable[[Assignment], Measured], target: float, start: Assignment | None = None
) -> Found:
    """The cheapest assignment found whose quality is at least `target`.

    First what is better and costs nothing; then, if that is not good enough, changes of single units that undo most
    damage per cost; then changes that lose least quality per cost saved. How much a change does is measured alone, once
    for every unit and choice; every combination that is kept is measured as a whole. Never dearer than a start that
    reaches the target; the same calls, in the same order, for the same measurements.

    Args:
        choices: How many choices each unit has.
        measure: Cost and quality of an assignment; called once for each.
        target: The quality asked for.
        start: The assignment to begin with; the first choice of every unit by default.
    """
    return _Search(choices, measure, target).run(start if start is not None else (0,) * len(choices))
