"""The generator of pairwise cases.

What these would catch: a pair of values that occurs in no case, so that a defect which needs both goes unseen; cases
that change from run to run; as many cases as the product has.
"""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from tests.laws.pairwise import Row, pairwise
from tests.laws.parametrize import every_pair, in_turn

FIELDS: dict[str, list[Any]] = {
    "a": [1, 2, 3, 4, 5, 6],
    "b": ["x", "y", "z"],
    "c": [False, True],
    "d": [None, 0.5, 2.0],
    "e": [(1, 2), (3,)],
}


def _pairs(rows: list[Row]) -> set[tuple[str, str, str, str]]:
    return {(a, repr(row[a]), b, repr(row[b])) for row in rows for a, b in itertools.combinations(sorted(row), 2)}


def test_every_pair_occurs_in_few_rows() -> None:
    rows = pairwise(FIELDS)
    product = [dict(zip(FIELDS, values, strict=True)) for values in itertools.product(*FIELDS.values())]
    assert _pairs(rows) == _pairs(product)
    assert 18 <= len(rows) <= 22 < len(product) == 216


def test_rows_are_the_same_each_time() -> None:
    assert pairwise(FIELDS) == pairwise(FIELDS)


@pytest.mark.parametrize("field", FIELDS)
def test_a_field_more_never_takes_a_pair_away(field: str) -> None:
    fewer = {k: v for k, v in FIELDS.items() if k != field}
    assert _pairs(pairwise(fewer)) <= _pairs(pairwise(FIELDS))


def test_rows_are_valid_and_pairs_that_can_be_occur() -> None:
    """Where `a` is 6, `c` cannot be true."""

    def repaired(row: Row) -> Row:
        return {**row, "c": False} if row["a"] == 6 else row

    rows = pairwise(FIELDS, repaired)
    assert not [row for row in rows if row["a"] == 6 and row["c"]]
    assert _pairs(rows) == _pairs(pairwise(FIELDS)) - {("a", "6", "c", "True")}


def test_parametrizations() -> None:
    pairs = every_pair(a=range(3), b="xyz", c=[None, 1.5])
    assert pairs.name == "parametrize" and pairs.args[0] == ["a", "b", "c"]
    assert 9 <= len(pairs.args[1]) <= 11 and len(set(pairs.kwargs["ids"])) == len(pairs.args[1])
    turns = in_turn(a=[{"p": 1}, {"q": 2}], b="xyz")
    assert turns.args[1] == [[{"p": 1}, "x"], [{"q": 2}, "y"], [{"p": 1}, "z"]]
    assert turns.kwargs["ids"] == ["a0-x", "a1-y", "a0-z"]
