"""Few cases in which every two values of different fields meet."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

Row = dict[str, Any]
Pair = tuple[int, int, int, int]
"""Field, value, a later field, value; all by their positions."""
Missing = dict[tuple[int, int], set[tuple[int, int]]]
"""By field and value the values of other fields that it has not met."""
TRIES = 12
"""How many rows are drawn for each one that is taken."""


def pairwise(fields: Mapping[str, Sequence[Any]], repaired: Callable[[Row], Row] = lambda row: row) -> list[Row]:
    """Rows with one value for each field, in which every pair of values of two fields occurs; the same ones each time.

    Args:
        fields: Values by field, the simplest first; no two of one field are equal.
        repaired: Makes a valid row of any row, by other values of some of its fields; it leaves a valid row as it is.
            A pair that it takes apart where all other fields have their first values is none that has to occur.

    Returns:
        The rows, in the order in which they were drawn.
    """
    names, values = list(fields), [list(v) for v in fields.values()]
    places = [{repr(v): k for k, v in enumerate(options)} for options in values]
    counts = [len(v) for v in values]

    def valid(chosen: Sequence[int]) -> list[int]:
        row = repaired({n: values[k][chosen[k]] for k, n in enumerate(names)})
        return [places[k][repr(row[n])] for k, n in enumerate(names)]

    def can_be(pair: Pair) -> bool:
        a, i, b, j = pair
        made = valid([{a: i, b: j}.get(k, 0) for k in range(len(names))])
        return (made[a], made[b]) == (i, j)

    pairs = itertools.combinations(range(len(names)), 2)
    every = [(a, i, b, j) for a, b in pairs for i in range(counts[a]) for j in range(counts[b])]
    possible = [p for p in every if can_be(p)]
    missing: Missing = {(k, v): set() for k, count in enumerate(counts) for v in range(count)}
    for a, i, b, j in possible:
        missing[a, i].add((b, j))
        missing[b, j].add((a, i))
    drawn: list[list[int]] = []
    for pair in sorted(possible, key=lambda p: (-counts[p[0]] * counts[p[2]], p)):
        a, i, b, j = pair
        if (b, j) not in missing[a, i]:
            continue
        candidates = [valid(_filled(pair, counts, missing, turn)) for turn in range(TRIES)]
        held = [c for c in candidates if (c[a], c[b]) == (i, j)]
        best = max(held or candidates, key=lambda c: _brought(c, missing))
        drawn.append(best)
        for place in enumerate(best):
            missing[place].difference_update(enumerate(best))
    return [{n: values[k][row[k]] for k, n in enumerate(names)} for row in drawn]


def _filled(pair: Pair, counts: Sequence[int], missing: Missing, turn: int) -> list[int]:
    """A row with this pair, whose other values bring as many missing pairs as one value after the other can."""
    a, i, b, j = pair
    chosen = {a: i, b: j}
    order = sorted(range(len(counts)), key=lambda k: -counts[k])
    for field in order[turn:] + order[:turn]:
        if field in chosen:
            continue
        held = set(chosen.items())
        values = [(step + turn) % counts[field] for step in range(counts[field])]
        chosen[field] = max(values, key=lambda value: len(missing[field, value] & held))
    return [chosen[k] for k in range(len(counts))]


def _brought(row: Sequence[int], missing: Missing) -> int:
    """How many missing pairs a row has, each counted twice."""
    places = set(enumerate(row))
    return sum(len(missing[place] & places) for place in places)
