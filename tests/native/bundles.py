"""Many small cases in one test: what pytest itself spends on a test is more than what a call of a kernel takes."""

from __future__ import annotations

import functools
import inspect
import itertools
from collections.abc import Callable, Iterable
from typing import Any

from tests import few as few_cases
from tests.native.kernel_calls import Guarded


def spread(step: int, *fields: Iterable[Any]) -> list[tuple[Any, ...]]:
    """One combination of the fields' values in `step`, along diagonals: each value occurs, beside different others."""
    held = [list(field) for field in fields]
    chosen = [
        tuple(field[k] for field, k in zip(held, places, strict=True))
        for places in itertools.product(*(range(len(field)) for field in held))
        if sum(places) % step == 0
    ]
    assert all({repr(row[k]) for row in chosen} == {repr(v) for v in field} for k, field in enumerate(held))
    return chosen


def bundled(
    names: str, values: Iterable[Any], few: int | None = None
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """As `pytest.mark.parametrize`, with all values in one test; a failure names the case, and ends the test.

    Args:
        names: Of the parameters, separated by commas.
        values: Of the parameter; or tuples, where there are several.
        few: How many of them run without --slow, as of the marker of that name.
    """
    wanted, given = [name.strip() for name in names.split(",")], list(values)
    assert given
    cases = [dict(zip(wanted, value if len(wanted) > 1 else (value,), strict=True)) for value in given]
    if few is not None and not few_cases.ALL:
        cases = [cases[k] for k in sorted(few_cases.chosen(cases, few))]

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(test)
        def run(**others: Any) -> None:
            for case in cases:
                if "guarded" in others:
                    others["guarded"] = Guarded()  # mappings of one case at a time
                try:
                    test(**others, **case)
                except Exception as error:
                    raise AssertionError(f"{case}: {error}") from error

        signature = inspect.signature(test)
        left = [p for p in signature.parameters.values() if p.name not in wanted]
        assert len(left) == len(signature.parameters) - len(wanted)
        of_others: Any = run
        of_others.__signature__ = signature.replace(parameters=left)
        return run

    return decorate
