"""Work divided among threads: the same bits however many there are, and whatever the other calls do.

What these would catch: a part of a step that runs twice, not at all, or before the step before it is complete; a
division of rows or columns that leaves some out; scratch memory that two calls share.

A call is divided (`Divide` in cells/driver) once it takes some microseconds, by the columns of its steps; from the
second call on perhaps by rows, when there are four for each thread and the weights are small.
"""

from __future__ import annotations

import ctypes
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import numpy.typing as npt
import onnxruntime as ort
import pytest

from tests.native.bundles import bundled, spread
from tests.native.cell_kinds import KINDS, variants, varied
from tests.native.kernel_calls import ISAS_OF, NATIVE, fewest_apart, pointer
from tests.native.quant_lstm_cases import (
    Arrays,
    Case,
    assert_same_bits,
    expected,
    native_session,
    run_native,
    table_case,
)

NATIVE.rnnqc_test_team.restype = ctypes.c_int64
CELLS = 64


def _run_team(
    threads: int, together: bool, parts: npt.NDArray[np.int64], *, expected: int = 1
) -> tuple[npt.NDArray[np.uint64], int]:
    """The cells after all phases, and the members of the team; asserts that every phase computed each cell once.

    The leader begins when the team has `expected` members.
    """
    cells, runs = np.zeros(CELLS, np.uint64), np.zeros(CELLS, np.int64)
    members = NATIVE.rnnqc_test_team(
        ctypes.c_int64(threads),
        ctypes.c_int32(together),
        ctypes.c_int64(expected),
        ctypes.c_int64(parts.size),
        pointer(parts),
        pointer(cells),
        pointer(runs),
    )
    np.testing.assert_array_equal(runs, parts.size)
    return cells, members


@pytest.mark.few(11)
@pytest.mark.parametrize("threads", [1, 2, 3, 4, 8, 70])
@pytest.mark.parametrize("largest", [1, 2, 3, 8, 64])
def test_team(threads: int, largest: int) -> None:
    rng = np.random.default_rng(largest)
    for phases in (0, 1, 2, 300):
        parts = rng.integers(1, largest + 1, phases)
        expected, _ = _run_team(1, True, np.ones(phases, np.int64))
        for _ in range(1 if threads == 70 else 10):
            found, members = _run_team(threads, True, parts)
            np.testing.assert_array_equal(found, expected)
            assert 1 <= members <= min(threads, CELLS)


@pytest.mark.parametrize("threads", [2, 4])
def test_team_in_a_long_run_of_short_phases(threads: int) -> None:
    parts = np.random.default_rng(0).integers(1, threads + 1, 20_000)
    expected, _ = _run_team(1, True, np.ones_like(parts))
    for _ in range(3):
        found, members = _run_team(threads, True, parts, expected=threads)
        np.testing.assert_array_equal(found, expected)
        assert members == threads


@pytest.mark.parametrize("tasks", [2, 5, 70])
def test_team_whose_tasks_run_one_after_the_other(tasks: int) -> None:
    parts = np.random.default_rng(0).integers(1, 9, 100)
    expected, _ = _run_team(1, True, np.ones_like(parts))
    found, members = _run_team(tasks, False, parts)
    np.testing.assert_array_equal(found, expected)
    assert members == 1, "one thread would be given the rows of several, and read all weights for each"


# Steps, rows, inputs, units. Bytes of R and rows: below and above what is worth two parts; four rows a thread, less,
# and more weights than a thread takes for itself; a single step.
SHAPES = [
    *((1, 1, 9, 21), (1, 1, 300, 130), (1, 9, 30, 300), (30, 1, 9, 80), (30, 1, 9, 110), (25, 1, 300, 144)),
    *((20, 7, 40, 100), (20, 8, 40, 100), (9, 13, 17, 150), (40, 16, 5, 33), (5, 8, 20, 450), (4, 3, 600, 250)),
]


def same_again(session: ort.InferenceSession, case: Case, wanted: Arrays, calls: int) -> None:
    """One thread divides nothing; that the others arrive takes some calls."""
    for _ in range(calls):
        found = session.run(list(case.outputs), case.feeds())
        assert_same_bits(dict(zip(case.outputs, found, strict=True)), wanted)


@pytest.mark.few(6)
@pytest.mark.parametrize("kind", KINDS)
@bundled("shape, variant", spread(6, SHAPES, range(11)), few=10)
def test_threads_give_the_same_bits(kind: str, shape: tuple[int, ...], variant: int) -> None:
    names = list(variants(kind))
    case = varied(kind, names[variant % len(names)], *shape, sum(shape))
    wanted = expected(case)
    for threads in (1, 2, 4, 8):
        same_again(native_session(case.model(), threads), case, wanted, 1 if threads == 1 else 3)


@pytest.mark.few(6)
@pytest.mark.parametrize("kind", KINDS)
def test_groups_of_unequal_size_have_their_memory(kind: str) -> None:
    """A group with fewer rows takes more steps at a time, and here more memory; too little of it shows as a crash."""
    for batch in (9, 13):
        case = KINDS[kind](60, batch, 16, 256)
        same_again(native_session(case.model(), 2), case, run_native(case), 10)


@pytest.mark.few(6)
@pytest.mark.parametrize("kind", KINDS)
@bundled("variant, threads", [("plain", 1), ("lengths", 2), ("plain", 4)])
def test_concurrent_runs_of_one_session(kind: str, variant: str, threads: int) -> None:
    """Runs of several shapes at the same time; each has its own division and memory."""
    fixed, jobs = varied(kind, variant, 2, 2, 30, 140), []
    for time, batch in ((20, 1), (3, 9), (1, 1), (12, 4), (7, 16), (1, 30)):
        case = varied(kind, variant, time, batch, 30, 140)
        case.inputs |= {n: fixed.inputs[n] for n in fixed.constants if n in fixed.inputs}
        jobs.append((case.feeds(), expected(case)))
    session, outputs = native_session(fixed.model(), threads), list(fixed.outputs)

    def run(k: int) -> None:
        feeds, wanted = jobs[k % len(jobs)]
        assert_same_bits(dict(zip(outputs, session.run(outputs, feeds), strict=True)), wanted)

    with ThreadPoolExecutor(5) as pool:
        list(pool.map(run, range(60)))


UNITS = fewest_apart(4)
# Columns of R that need more bits than the others: apart where that takes fewer bytes, and no more than half of all.
WIDE = [0, 1, 2, 63, 64, 65, 128, 129, 300, 2 * UNITS - 1, 2 * UNITS, 2 * UNITS + 1, 4 * UNITS]


@bundled("batch, count", spread(4, [1, 3, 8, 37], WIDE), few=6)
@pytest.mark.parametrize(("few", "many"), [(4, 8), (6, 8), (4, 6)])
def test_columns_of_more_bits_than_the_others(few: int, many: int, batch: int, count: int) -> None:
    """With the library's own instruction set, and with one that has kernels for 6 bits."""
    time, hidden = 8, UNITS
    case = table_case(time=time, batch=batch, inputs=11, hidden=hidden, seed=count)
    rng = np.random.default_rng([count, batch])
    small, large = 2 ** (few - 1), 2 ** (many - 1)
    case.inputs["R"] = rng.integers(-small, small, case.inputs["R"].shape, dtype=np.int8)
    wide = rng.choice(4 * hidden, count, replace=False)
    case.inputs["R"][:, wide] = rng.integers(-large, large, (hidden, count), dtype=np.int8)
    # One weight is enough.
    case.inputs["R"][:, wide[::2]] = np.clip(case.inputs["R"][:, wide[::2]], -small, small - 1)
    case.inputs["R"][rng.integers(0, hidden, wide[::2].size), wide[::2]] = rng.choice([small, -small - 1])
    case.inputs["h_multiplier"] *= np.float32(4)
    if batch > 8:
        case.inputs["sequence_lens"] = rng.integers(0, time + 1, batch, dtype=np.int32)
    wanted = expected(case)
    for threads in (1, 2, 4):
        same_again(native_session(case.model(), threads), case, wanted, 2)
    same_again(native_session(case.model(), isa=ISAS_OF[6][-1]), case, wanted, 1)


@pytest.mark.parametrize("where", ["first", "last", "one gate", "one block"])
def test_columns_of_eight_bits_side_by_side(where: str) -> None:
    hidden = UNITS
    case = table_case(time=8, batch=2, inputs=11, hidden=hidden)
    case.inputs["R"] = np.random.default_rng(0).integers(-8, 8, case.inputs["R"].shape, dtype=np.int8)
    gates = case.inputs["R"].reshape(hidden, 4, hidden)
    part = {
        "first": gates[:, 0, :1],
        "last": gates[:, 3, -1:],
        "one gate": gates[:, 2],
        "one block": gates[:, :, 64:80],
    }[where]
    part[:] = np.random.default_rng(1).integers(-128, 128, part.shape)
    same_again(native_session(case.model(), 2), case, expected(case), 10)
