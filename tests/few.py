"""Selects the cases that run without --slow, for tests whose cases are similar."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

ALL = False
"""Whether all cases run; `tests/conftest.py` sets it."""
_EVERY_ONE = ("isa", "kernel")
"""Parameters whose values are all kept, however few cases are requested."""


def chosen(cases: Sequence[Mapping[str, Any]], count: int) -> set[int]:
    """Places of `count` cases, given as values of parameters by name.

    Each has more values than any other that none before it has, those of `_EVERY_ONE` first; of equals those evenly
    spread.
    """
    values = [_values(case) for case in cases]
    needed = [frozenset(v for v in own if v[0] in _EVERY_ONE) for own in values]
    count = max(count, len(frozenset().union(*needed)))
    spread = [round(k * (len(cases) - 1) / max(count - 1, 1)) for k in range(count)]
    left, seen = list(dict.fromkeys([*spread, *range(len(cases))])), set[object]()
    kept: set[int] = set()
    while left and len(kept) < count:
        place = max(left, key=lambda k: (len(needed[k] - seen), len(values[k] - seen)))  # the first one of equals
        left.remove(place)
        kept.add(place)
        seen |= values[place]
    return kept


def _values(case: Mapping[str, Any]) -> frozenset[tuple[Any, ...]]:
    """The values of a case's parameters; a dataclass or a list counts as its single values."""
    found: set[tuple[Any, ...]] = set()

    def add(name: str, value: Any) -> None:
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            for field in dataclasses.fields(value):
                add(f"{name}.{field.name}", getattr(value, field.name))
        elif isinstance(value, dict):
            for key, part in value.items():
                add(f"{name}.{key}", part)
        elif isinstance(value, list | tuple):
            found.add((name, len(value)))
            for part in value:
                add(name, part)
        else:
            try:
                found.add((name, type(value), hash(value), value))
            except TypeError:
                found.add((name, type(value), id(value)))

    for name, value in case.items():
        add(name, value)
    return frozenset(found)
