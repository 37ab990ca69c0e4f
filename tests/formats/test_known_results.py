"""Results that are kept: the right one for everything that they depend on, and no more than fit.

What these would catch: a result of other arrays (of the same bytes in another shape or type), one that a caller has
changed in place, memory that grows with every result.
"""

from __future__ import annotations

import itertools
from functools import partial
from typing import Any

import numpy as np
import pytest

from rnnqc.formats.compensation import Lattice, compensate, compensate_once
from rnnqc.formats.format import Format
from rnnqc.formats.known_results import KnownResults
from rnnqc.formats.weights import quantize_matrix

BYTES = np.arange(6, dtype=np.int8)
PARTS: list[list[Any]] = [
    [BYTES],
    [BYTES.reshape(2, 3)],
    [BYTES.reshape(3, 2)],
    [BYTES.reshape(2, 3).T],
    [BYTES.view(np.uint8)],
    [BYTES[:3], BYTES[3:]],
    [BYTES, 1],
    [BYTES, 1.0],
    [BYTES, None],
]


def test_every_part_counts() -> None:
    known = KnownResults(2**20)
    for number, parts in enumerate(PARTS):
        assert known.of(parts, partial(np.array, [number])) == number
    for number, parts in enumerate(PARTS):
        assert known.of(parts, lambda: pytest.fail("computed again")) == number


def test_callers_may_change_what_they_get() -> None:
    known = KnownResults(2**20)
    known.of([1], lambda: np.zeros(3))[:] = 7
    assert known.of([1], lambda: np.ones(3)).tolist() == [0, 0, 0]


def test_the_latest_stay() -> None:
    known, computed = KnownResults(3 * 80), itertools.count()
    for number in (0, 1, 2, 0, 3, 0, 3, 2):
        known.of([number], lambda: np.full(10, next(computed)))
    assert next(computed) == 4, "1 was dropped for 3"
    known.of([1], lambda: np.full(10, next(computed)))
    assert next(computed) == 6, "it is computed again"


def test_compensation_depends_on_all_its_arguments() -> None:
    """Each change of one argument has its own result, the first time and again."""
    rng = np.random.default_rng(1)
    array = rng.standard_normal((12, 5)).astype(np.float32)
    rows = rng.standard_normal((40, 12)) @ rng.standard_normal((12, 12))
    narrow, coarse = Format(4, True, (0.25,)), Format(4, True, (0.5,))
    lattice, plain, moment = Lattice.of_format(narrow, array.shape), quantize_matrix(narrow, array), rows.T @ rows
    cases = [
        (array, plain, lattice, moment),
        (array * 2, plain, lattice, moment),
        (array, quantize_matrix(coarse, array), Lattice.of_format(coarse, array.shape), moment),
        (array, plain, lattice, moment + 40 * np.eye(12)),
        (array, plain, lattice, np.zeros((12, 12))),
        (array, plain // 2, lattice, np.zeros((12, 12))),
    ]
    expected = [compensate(*case).tobytes() for case in cases]
    assert len(set(expected)) > 3
    for _ in range(2):
        assert [compensate_once(*case).tobytes() for case in cases] == expected
