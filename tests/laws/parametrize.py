"""Parametrization of tests by a part of a product of values."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pytest

from tests.laws.pairwise import pairwise


def every_pair(**values: Iterable[Any]) -> pytest.MarkDecorator:
    """Cases in which every two values of different parameters meet; for three parameters or more."""
    return _cases({k: list(v) for k, v in values.items()}, pairwise({k: list(v) for k, v in values.items()}))


def in_turn(**values: Iterable[Any]) -> pytest.MarkDecorator:
    """As many cases as the parameter with the most values has; every value of the others occurs, each in its turn."""
    given = {k: list(v) for k, v in values.items()}
    count = max(map(len, given.values()))
    return _cases(given, [{n: v[k % len(v)] for n, v in given.items()} for k in range(count)])


def _cases(values: dict[str, list[Any]], rows: Sequence[dict[str, Any]]) -> pytest.MarkDecorator:
    """Named by the values, or by their positions where a value has no short name."""

    def label(name: str, value: Any) -> str:
        if value is None or isinstance(value, str | int | float | bool):
            return str(value)
        return f"{name}{next(k for k, v in enumerate(values[name]) if v is value)}"

    names = list(values)
    ids = ["-".join(label(n, row[n]) for n in names) for row in rows]
    return pytest.mark.parametrize(names, [[row[n] for n in names] for row in rows], ids=ids)
