"""Few cases in which every two values of different fields meet."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

Row = dict[str, Any]
Pair = tuple[int, int, int, int]
"""Field, value, a later field, value; all by their positions."""
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
    missing = {p for p in every if can_be(p)}
    drawn: list[list[int]] = []
    for pair in sorted(missing, key=lambda p: (-counts[p[0]] * counts[p[2]], p)):
        if pair not in missing:
            continue
        candidates = [valid(_filled(pair, counts, missing, turn)) for turn in range(TRIES)]
        held = [c for c in candidates if (c[pair[0]], c[pair[2]]) == (pair[1], pair[3])]
        best = max(held or candidates, key=lambda c: len(missing.intersection(_pairs(c))))
        drawn.append(best)
        missing.difference_update(_pairs(best))
    return [{n: values[k][row[k]] for k, n in enumerate(names)} for row in drawn]


def _filled(pair: Pair, counts: Sequence[int], missing: set[Pair], turn: int) -> list[int]:
    """A row with this pair, whose other values bring as many missing pairs as one value after the other can."""
    a, i, b, j = pair
    chosen = {a: i, b: j}
    order = sorted(range(len(counts)), key=lambda k: -counts[k])
    for field in order[turn:] + order[:turn]:
        if field in chosen:
            continue
        best, most = 0, -1
        for step in range(counts[field]):
            value = (step + turn) % counts[field]
            brought = sum(_ordered(field, value, other, held) in missing for other, held in chosen.items())
            if brought > most:
                best, most = value, brought
        chosen[field] = best
    return [chosen[k] for k in range(len(counts))]


def _ordered(a: int, i: int, b: int, j: int) -> Pair:
    return (a, i, b, j) if a < b else (b, j, a, i)


def _pairs(row: Sequence[int]) -> Iterator[Pair]:
    for a, b in itertools.combinations(range(len(row)), 2):
        yield a, row[a], b, row[b]
