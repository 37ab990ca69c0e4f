"""The search of `rnnqc tune` on made-up costs and damages.

What these would catch: savings that are taken although the target is missed, a sensitive unit that is made cheap
first, a result worse than the start, a search that gives up while something helps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rnnqc.search.greedy import FOR_COMBINATIONS, Assignment, Measured, descend, search, thinned

COSTS, DAMAGES = (8, 5, 4), (0.0, 1.0, 2.0)


def additive(weights: Sequence[float], sizes: Sequence[int], base: float = 1e-4) -> Callable[[Assignment], Measured]:
    """The total damage is the sum over choices, weighted by `weights`; quality is in dB."""

    def measure(assignment: Assignment) -> Measured:
        damage = base + sum(w * DAMAGES[c] for w, c in zip(weights, assignment, strict=True))
        cost = sum(s * COSTS[c] for s, c in zip(sizes, assignment, strict=True))
        return Measured(cost, damage, -10 * math.log10(damage))

    return measure


def test_the_sensitive_unit_keeps_its_format() -> None:
    weights = [1e-5, 1e-1, 1e-5]
    found = search([3, 3, 3], additive(weights, [10, 10, 10]), 35.0)
    assert found.reached
    assert found.assignment == (2, 0, 2)
    assert found.measured.cost == 160


def test_every_saving_is_measured_together_with_the_others() -> None:
    """Each alone is good enough, both are not."""
    found = search([3, 3], additive([2e-4, 2e-4], [10, 11]), -10 * math.log10(6e-4))
    assert found.reached
    assert found.assignment in [(0, 2), (1, 1), (2, 0)]
    assert found.measured.quality >= -10 * math.log10(6e-4)


def test_a_start_that_is_not_good_enough_is_improved_where_it_helps_most() -> None:
    found = search([3, 3, 3], additive([1e-1, 1e-5, 1e-5], [10, 10, 10]), 35.0, start=(2, 2, 2))
    assert found.reached
    assert found.assignment == (0, 2, 2)
    assert not found.start.quality >= 35.0


def test_a_target_out_of_reach_gives_the_best() -> None:
    measure = additive([1e-2, 1e-3], [10, 10])
    found = search([3, 3], measure, 60.0, start=(2, 2))
    assert not found.reached
    assert found.assignment == (0, 0)
    assert found.measured == measure((0, 0))


def test_what_cannot_be_measured_is_not_taken() -> None:
    good = additive([0.0, 0.0], [10, 10])

    def measure(assignment: Assignment) -> Measured:
        return good(assignment) if assignment[1] == 0 else Measured(2**63, math.inf, -math.inf)

    assert search([3, 3], measure, 30.0).assignment == (2, 0)


def test_what_is_better_for_nothing_is_taken() -> None:
    """The second choice of unit 0 costs as much as the first; with it unit 1 can become cheaper."""

    def measure(assignment: Assignment) -> Measured:
        damage = (1e-3, 1e-5)[assignment[0]] + (0.0, 1e-3)[assignment[1]]
        return Measured((8, 8)[assignment[0]] + (8, 4)[assignment[1]], damage, -10 * math.log10(damage))

    found = search([2, 2], measure, 29.0)
    assert (found.assignment, found.measured.cost) == ((1, 1), 12)


def test_no_units() -> None:
    found = search([], lambda assignment: Measured(0, 0.0, math.inf), 10.0)
    assert found.reached and found.tried == 1


@given(
    st.lists(st.tuples(st.floats(0, 1e-2), st.integers(1, 9)), min_size=1, max_size=5),
    st.floats(10, 45),
    st.data(),
)
def test_never_worse_than_the_start(units: list[tuple[float, int]], target: float, data: st.DataObject) -> None:
    weights, sizes = zip(*units, strict=True)
    start = tuple(data.draw(st.integers(0, 2)) for _ in units)
    measure, calls = additive(weights, sizes), []

    def counted(assignment: Assignment) -> Measured:
        calls.append(assignment)
        return measure(assignment)

    found = search([3] * len(units), counted, target, start)
    again = search([3] * len(units), measure, target, start)
    assert (found.assignment, found.steps) == (again.assignment, again.steps)
    assert len(calls) == len(set(calls)) == found.tried
    assert found.measured == measure(found.assignment)
    assert found.reached == (found.measured.quality >= target)
    if found.start.quality >= target:
        assert found.reached and found.measured.cost <= found.start.cost
    else:
        assert found.reached or found.measured.damage <= found.start.damage
    if not found.reached:
        assert measure((0,) * len(units)).quality < target, "the best of all reaches it, and every step there helps"


def test_what_does_nothing_alone_is_tried_again() -> None:
    """Two changes that only help together with a third: a single pass over the changes would stop short."""

    def measure(assignment: tuple[int, ...]) -> Measured:
        first, second = assignment
        quality = 10.0 + 5.0 * first + (5.0 * second if first else 0.0)
        return Measured(cost=1 + first + second, damage=100.0 - quality, quality=quality)

    found = search([2, 2], measure, target=20.0)
    assert found.reached
    assert found.assignment == (1, 1)


def test_the_best_within_a_limit() -> None:
    """Unit 1 causes the damage; the remaining budget goes to the next one."""
    found = search([3, 3, 3], additive([1e-3, 1e-1, 1e-5], [10, 10, 10]), limit=170)
    assert found.reached
    assert found.assignment == (1, 0, 2)
    assert found.measured.cost == 170


def test_a_limit_that_the_start_keeps_is_used() -> None:
    found = search([3, 3], additive([1e-2, 1e-4], [10, 10]), start=(2, 2), limit=125)
    assert (found.assignment, found.measured.cost) == ((0, 2), 120)


def test_a_limit_out_of_reach_gives_the_cheapest() -> None:
    found = search([3, 3], additive([1e-2, 1e-3], [10, 10]), limit=79)
    assert not found.reached
    assert (found.assignment, found.measured.cost) == ((2, 2), 80)


@given(
    st.lists(st.tuples(st.floats(0, 1), st.integers(1, 20)), min_size=1, max_size=5),
    st.integers(1, 1000),
)
def test_a_limit_is_kept_and_no_start_within_it_gets_worse(units: list[tuple[float, int]], limit: int) -> None:
    weights, sizes = zip(*units, strict=True)
    found = search([3] * len(units), additive(weights, sizes), limit=limit)
    assert found.reached == (found.measured.cost <= limit)
    assert found.reached or found.measured.cost == 4 * sum(sizes)
    if found.start.cost <= limit:
        assert found.measured.quality >= found.start.quality


@given(
    st.lists(st.tuples(st.floats(0, 1), st.integers(1, 20)), min_size=1, max_size=4),
    st.floats(-10, 40),
)
def test_the_frontier_is_what_nothing_measured_beats(units: list[tuple[float, int]], target: float) -> None:
    weights, sizes = zip(*units, strict=True)
    measure, seen = additive(weights, sizes), []

    def watched(assignment: Assignment) -> Measured:
        seen.append((assignment, measure(assignment)))
        return seen[-1][1]

    found = search([3] * len(units), watched, target)
    assert {a for a, _ in found.frontier} <= {a for a, _ in seen}
    for _, m in seen:
        assert any(f.cost <= m.cost and f.quality >= m.quality for _, f in found.frontier)
    costs, qualities = [m.cost for _, m in found.frontier], [m.quality for _, m in found.frontier]
    assert costs == sorted(set(costs)) and qualities == sorted(set(qualities))


def test_the_way_down() -> None:
    """From a start that is neither the best nor the cheapest; the search can return to earlier choices."""
    measure = additive([1e-2, 1e-3], [10, 10])
    found = descend([3, 3], lambda a: measure(((a[0] + 1) % 3, (a[1] + 1) % 3)))
    path = found.path
    assert (path[0], path[-1]) == (((0, 0), found.start), (found.assignment, found.measured))
    assert found.measured.cost == 80
    assert max(m.quality for _, m in path) == measure((0, 0)).quality
    place = max(range(len(path)), key=lambda k: path[k][1].quality)
    found.end_at(place, reached=True)
    assert (found.assignment, found.measured) == path[place] == ((2, 2), measure((0, 0)))
    assert found.path == path[: place + 1]


def test_thinned() -> None:
    assert thinned(range(10), 4) == [0, 3, 6, 9]
    assert thinned(range(3), 8) == [0, 1, 2]
    assert thinned([7], 8) == [7]


class Clocked:
    """A measure that takes one tick of a limited time."""

    def __init__(self, measure: Callable[[Assignment], Measured], ticks: int) -> None:
        self._measure, self._ticks = measure, ticks
        self.seen: list[Assignment] = []

    def __call__(self, assignment: Assignment) -> Measured:
        self.seen.append(assignment)
        return self._measure(assignment)

    def time_left(self) -> float:
        return max(0.0, 1.0 - len(self.seen) / self._ticks)


@pytest.mark.parametrize("measurements", [1, 3, 5, 10])
def test_a_search_that_runs_out_of_time_ends_with_what_it_measured(measurements: int) -> None:
    """Would catch: a result that was never measured, one that misses a goal that the start reaches, time overrun."""
    plain = additive([1e-5, 1e-4, 1e-5, 1e-5], [10] * 4)
    measure = Clocked(plain, measurements)
    found = search([3] * 4, measure, 30.0, time_left=measure.time_left)
    assert found.ended_early and found.tried == len(measure.seen) <= measurements
    assert found.assignment in measure.seen and found.measured == plain(found.assignment)
    assert found.reached and found.measured.cost <= found.start.cost
    assert all(a in measure.seen for a, _ in found.frontier)
    whole = search([3] * 4, plain, 30.0, time_left=Clocked(plain, 1000).time_left)
    assert not whole.ended_early and whole == search([3] * 4, plain, 30.0)


def test_time_is_left_for_combinations() -> None:
    """Would catch: a search that spends all of its time on single changes, and keeps one of them."""
    plain = additive([1e-6] * 20, [10] * 20)
    measure = Clocked(plain, 40)
    found = search([3] * 20, measure, 30.0, time_left=measure.time_left)
    assert found.ended_early and len(found.steps) >= 40 * FOR_COMBINATIONS / 2
    measure = Clocked(plain, 40)
    down = descend([3] * 20, measure, measure.time_left)
    assert down.ended_early and len(down.steps) >= 40 * FOR_COMBINATIONS / 2


def test_what_seems_most_promising_is_measured_first() -> None:
    """Would catch: a search that spends a bound of time on the first units, and hides what it never looked at."""
    plain = additive([1e-6] * 4, [10] * 4)
    asked: list[bool] = []

    def order(cheaper: bool) -> list[tuple[int, int]]:
        asked.append(cheaper)
        return [(u, c) for c in (2, 1) for u in (3, 1, 0, 2)]

    measure = Clocked(plain, 5)
    found = search([3] * 4, measure, 30.0, time_left=measure.time_left, order=order)
    assert measure.seen[:4] == [(0, 0, 0, 0), (0, 0, 0, 2), (0, 2, 0, 0), (2, 0, 0, 0)]
    assert found.unseen == [2] and found.alone == (3, 8)
    search([3] * 4, plain, 99.0, order=order)
    search([3] * 4, plain, limit=1, order=order)
    search([3] * 4, plain, limit=1000, order=order)
    descend([3] * 4, plain, order=order)
    assert asked == [True, False, True, False, True]
    whole = search([3] * 4, plain, 30.0, order=order)
    assert whole == search([3] * 4, plain, 30.0) and whole.unseen == [] and whole.alone == (8, 8)


def test_after_the_first_change_those_measured_alone_still_count() -> None:
    """Would catch: a search with a bound of time that keeps one change for nothing, and then knows of no other."""

    def measure(assignment: Assignment) -> Measured:
        free, *others = assignment
        damage = (1e-3, 1e-5)[free] + 1e-6 * sum(others)
        return Measured(100 - 10 * sum(others), damage, -10 * math.log10(damage))

    clocked = Clocked(measure, 10)
    found = search([2] * 6, clocked, 30.0, time_left=clocked.time_left)
    assert found.ended_early and found.assignment[0] == 1 and sum(found.assignment[1:]) >= 2
