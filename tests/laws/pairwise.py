"""Few cases in which every two values of different fields meet."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

Row = dict[str, Any]
Pair = tuple[int, int, int, int]
"""Field, value, a later field, value; all by their positions."""
Missing = dict[tuple[int, int], int]
"""By field and value the bits of the values of other fields that it has not met."""
Bits = dict[tuple[int, int], int]
"""A bit for each value of each field."""
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
        given = {n: values[k][chosen[k]] for k, n in enumerate(names)}
        row = repaired(given)
        return [chosen[k] if row[n] is given[n] else places[k][repr(row[n])] for k, n in enumerate(names)]

    def can_be(pair: Pair) -> bool:
        a, i, b, j = pair
        made = valid([{a: i, b: j}.get(k, 0) for k in range(len(names))])
        return (made[a], made[b]) == (i, j)

    pairs = itertools.combinations(range(len(names)), 2)
    every = [(a, i, b, j) for a, b in pairs for i in range(counts[a]) for j in range(counts[b])]
    possible = [p for p in every if can_be(p)]
    bits: Bits = {p: 1 << n for n, p in enumerate((k, v) for k, count in enumerate(counts) for v in range(count))}
    missing: Missing = dict.fromkeys(bits, 0)
    for a, i, b, j in possible:
        missing[a, i] |= bits[b, j]
        missing[b, j] |= bits[a, i]
    drawn: list[list[int]] = []
    for pair in sorted(possible, key=lambda p: (-counts[p[0]] * counts[p[2]], p)):
        a, i, b, j = pair
        if not missing[a, i] & bits[b, j]:
            continue
        candidates = [valid(_filled(pair, counts, missing, bits, turn)) for turn in range(TRIES)]
        held = [c for c in candidates if (c[a], c[b]) == (i, j)]
        best = max(held or candidates, key=lambda c: _brought(c, missing, bits))
        drawn.append(best)
        met = sum(bits[place] for place in enumerate(best))
        for place in enumerate(best):
            missing[place] &= ~met
    return [{n: values[k][row[k]] for k, n in enumerate(names)} for row in drawn]


def _filled(pair: Pair, counts: Sequence[int], missing: Missing, bits: Bits, turn: int) -> list[int]:
    """A row with this pair, whose other values bring as many missing pairs as one value after the other can."""
    a, i, b, j = pair
    chosen = {a: i, b: j}
    order = sorted(range(len(counts)), key=lambda k: -counts[k])
    held = bits[a, i] | bits[b, j]
    for field in order[turn:] + order[:turn]:
        if field in chosen:
            continue
        values = [(step + turn) % counts[field] for step in range(counts[field])]
        brought = [(missing[field, value] & held).bit_count() for value in values]
        chosen[field] = values[brought.index(max(brought))]
        held |= bits[field, chosen[field]]
    return [chosen[k] for k in range(len(counts))]


def _brought(row: Sequence[int], missing: Missing, bits: Bits) -> int:
    """The number of missing pairs in a row, each counted twice."""
    places = sum(bits[place] for place in enumerate(row))
    return sum((missing[place] & places).bit_count() for place in enumerate(row))
