"""The byte form of cells of the arithmetic "grid32": found where it gives the same bits, and only there.

What these would catch: a quantizer whose rounded quotient is another one than that of the division, a product of codes
that falls on the other side of a tie, a table entered at the wrong code, lanes, blocks or rows that are mixed up, reads
and writes beyond buffers, states carried in the wrong order, and a form that is never found.
"""

from __future__ import annotations

import ctypes
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings

from rnnqc.cells.fixed_point_numbers import QUANTIZERS
from rnnqc.cells.types import CELL_TYPES
from tests.native.bundles import bundled, spread
from tests.native.grid_cases import ROUNDINGS, GridCase, byte_grid_case, byte_grid_cases, expected
from tests.native.kernel_calls import (
    AVAILABLE,
    BLOCK,
    GATES,
    ISAS,
    NATIVE,
    SENTINEL,
    STEP_FIELDS,
    Guarded,
    block_order,
    blocks,
    pointer,
)
from tests.native.quant_lstm_cases import OUTPUTS, assert_same_bits, native_session, run_native

EXAMPLES = settings().max_examples


class _Grid(ctypes.Structure):
    """rnnqc_test_grid."""

    _fields_ = (
        ("input_size", ctypes.c_int64),
        ("hidden_size", ctypes.c_int64),
        ("scale", ctypes.c_float * len(QUANTIZERS)),
        ("zero_point", ctypes.c_int64 * len(QUANTIZERS)),
        ("min", ctypes.c_int64 * len(QUANTIZERS)),
        ("max", ctypes.c_int64 * len(QUANTIZERS)),
        ("rounding", ctypes.c_int32),
        ("table_offset", ctypes.c_int64 * GATES),
        ("input_forget", ctypes.c_int32),
        ("one", ctypes.c_float),
        ("gate_table", ctypes.c_void_p),
        ("cell_table", ctypes.c_void_p),
        ("multiplier", ctypes.c_void_p),
        ("bias", ctypes.c_void_p),
    )


class _Bytes(ctypes.Structure):
    """rnnqc_test_bytes."""

    _fields_ = (
        *STEP_FIELDS,
        ("bias", ctypes.c_void_p),
        ("form", ctypes.c_void_p),
        ("c", ctypes.c_void_p),
        ("y", ctypes.c_void_p),
        ("h", ctypes.c_void_p),
    )


def byte_form(case: GridCase, guarded: Guarded, isa: str = "portable") -> npt.NDArray[np.uint8] | None:
    """The byte form that the library finds for these scalars, tables, multipliers and biases."""
    numbers, inputs = case.numbers, case.inputs
    arrays = [guarded.array(inputs[n]) for n in ("gate_table", "cell_table", "x_multiplier", "B")]
    cell = _Grid(
        inputs["W"].shape[0],
        case.cell.hidden_size,
        (ctypes.c_float * len(QUANTIZERS))(*numbers.grid_scale),
        (ctypes.c_int64 * len(QUANTIZERS))(*numbers.grid_zero_point),
        (ctypes.c_int64 * len(QUANTIZERS))(*numbers.grid_min),
        (ctypes.c_int64 * len(QUANTIZERS))(*numbers.grid_max),
        ROUNDINGS.index(numbers.grid_rounding[0]),
        (ctypes.c_int64 * GATES)(*numbers.gate_table_offset),
        case.cell.input_forget,
        numbers.one,
        *(a.ctypes.data for a in arrays),
    )
    form = guarded.empty((NATIVE.rnnqc_test_size_of_byte_form(),), np.uint8, 64)
    return form if NATIVE.rnnqc_test_find_byte_form(isa.encode(), ctypes.byref(cell), pointer(form)) else None


@pytest.fixture
def guarded() -> Guarded:
    return Guarded()


@settings(max_examples=2 * EXAMPLES)
@given(byte_grid_cases())
def test_native_is_the_reference(case: GridCase) -> None:
    assert_same_bits(run_native(case.node), expected(case))


@pytest.mark.few(3)
@pytest.mark.parametrize("pow2", [False, True])
@pytest.mark.parametrize("bits", [2, 4, 8])
def test_cells_of_brevitas_have_the_form(bits: int, pow2: bool, guarded: Guarded) -> None:
    """Otherwise these tests could pass without any byte form.

    A few have none: two products of quantized values are equal there, but of real values they differ around a tie.
    """
    found = [
        byte_form(byte_grid_case(seed=seed, bits=bits, pow2=pow2, narrow=seed % 2 == 1, input_forget=forget), guarded)
        is not None
        for seed in range(20)
        for forget in (False, True)
    ]
    assert sum(found) >= (40 if pow2 else 36)


def test_a_cell_without_the_form_for_its_ties(guarded: Guarded) -> None:
    case = byte_grid_case(40, 3, 30, 64, seed=34)
    assert byte_form(case, guarded) is None
    assert_same_bits(run_native(case.node), expected(case))


@pytest.mark.parametrize("isa", AVAILABLE)
def test_the_form_is_one_for_all_instruction_sets(isa: str, guarded: Guarded) -> None:
    case = byte_grid_case(seed=3)
    wanted, found = byte_form(case, guarded, "reference"), byte_form(case, guarded, isa)
    assert wanted is not None
    assert found is not None
    assert np.array_equal(found, wanted)


Result = tuple[npt.NDArray[np.float32], npt.NDArray[np.int8], npt.NDArray[np.uint8]]


def run_kernel(
    isa: str, case: GridCase, rows: int, guarded: Guarded, span: tuple[int, int] | None = None, wild: bool = False
) -> Result:
    """One step from random sums and states; sentinels in y and h where nothing was written."""
    units = case.cell.hidden_size
    form = byte_form(case, guarded)
    assert form is not None
    rng = np.random.default_rng(units)
    columns = blocks(units) * GATES * BLOCK
    grid = case.numbers.quantizer(CELL_TYPES["LSTM"], "cell_state")
    spread = 300 if wild else 1
    p = block_order(rng.normal(0, spread, (rows, GATES * units)).astype(np.float32), units)
    acc = block_order(rng.integers(-30000 * spread, 30000 * spread, (rows, GATES * units), dtype=np.int32), units)
    multiplier, bias = (block_order(case.inputs[n], units) for n in ("h_multiplier", "B"))
    assert p.shape == acc.shape == (rows, columns)
    state = rng.integers(grid.low, grid.high + 1, (rows, blocks(units) * BLOCK)).astype(np.int8)
    c, h = guarded.array(state, 16), guarded.empty(state.shape, np.uint8, 16)
    y, row_pointers = guarded.rows(rows, units)
    arrays = [guarded.array(v, 64) for v in (acc, p, multiplier, bias)]
    begin, end = span or (0, blocks(units))
    cell = _Bytes(
        *(rows, units, begin, end),
        *(a.ctypes.data for a in arrays),
        *(a.ctypes.data for a in (form, c, row_pointers, h)),
    )
    NATIVE.rnnqc_test_grid_bytes(isa.encode(), ctypes.byref(cell))
    return np.array(y), c.copy()[:, :units], h.copy()[:, :units]


def assert_same(found: Result, wanted: Result) -> None:
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(a.view(np.uint8), b.view(np.uint8))


UNITS = [1, 15, 16, 17, 31, 47, 48, 63, 64, 65, 113, 256, 300]


@pytest.mark.few(2)
@pytest.mark.parametrize("isa", ISAS)
@bundled("units, rows, kind", spread(2, UNITS, [1, 3], [0, 1, 2]), few=len(UNITS))
def test_kernels_are_the_reference(isa: str, units: int, rows: int, kind: int, guarded: Guarded) -> None:
    bits, flags = [(8, {}), (8, {"input_forget": True}), (3, {"narrow": True})][kind]
    case = byte_grid_case(hidden=units, seed=kind, bits=bits, **flags)  # type: ignore[arg-type]
    for wild in (False, True):
        wanted = run_kernel("reference", case, rows, guarded, wild=wild)
        assert len(np.unique(wanted[2])) > 2 or units == 1
        assert_same(run_kernel(isa, case, rows, guarded, wild=wild), wanted)


@pytest.mark.parametrize("isa", AVAILABLE)
@pytest.mark.parametrize(("begin", "end"), [(0, 1), (1, 4), (2, 7), (3, 8), (5, 5), (7, 8)])
def test_some_blocks(isa: str, begin: int, end: int, guarded: Guarded) -> None:
    case = byte_grid_case(hidden=8 * BLOCK - 3, seed=5)
    whole = run_kernel("reference", case, 2, guarded)
    found = run_kernel(isa, case, 2, guarded, (begin, end))
    untouched = run_kernel(isa, case, 2, guarded, (0, 0))
    for part, all_units, none in zip(found, whole, untouched, strict=True):
        wanted = none.copy()
        wanted[:, begin * BLOCK : end * BLOCK] = all_units[:, begin * BLOCK : end * BLOCK]
        np.testing.assert_array_equal(part.view(np.uint8), wanted.view(np.uint8))
    assert (untouched[2] == SENTINEL).all()


@pytest.mark.few(5)
@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("batch", [1, 8, 11])
def test_threads(batch: int, threads: int) -> None:
    """Large enough for parts of columns and groups of rows."""
    case = byte_grid_case(12, batch, 60, 250, seed=batch)
    wanted = expected(case)
    assert len(np.unique(wanted["Y"])) > 50
    session = native_session(case.node.model(), threads)
    for _ in range(5):
        found = dict(zip(OUTPUTS, session.run(list(OUTPUTS), case.node.feeds()), strict=True))
        assert_same_bits(found, wanted)


def test_chunks_with_carried_states() -> None:
    case = byte_grid_case(300, 2, 30, 70, seed=2)
    whole = run_native(case.node)
    assert_same_bits(whole, expected(case))
    state, pieces = dict(case.inputs), []
    for start, end in ((0, 1), (1, 150), (150, 300)):
        part = replace(case, inputs=state | {"X": case.inputs["X"][start:end]})
        found = run_native(part.node)
        state |= {"initial_h": found["Y_h"], "initial_c": found["Y_c"]}
        pieces.append(found["Y"])
    assert_same_bits({"Y": np.concatenate(pieces), "Y_h": found["Y_h"], "Y_c": found["Y_c"]}, whole)


def _inputs(case: GridCase, **arrays: npt.NDArray[np.float32]) -> GridCase:
    return replace(case, inputs=case.inputs | arrays)


def _numbers(case: GridCase, **numbers: object) -> GridCase:
    return replace(case, numbers=replace(case.numbers, **numbers))  # type: ignore[arg-type]


def _entry(case: GridCase, name: str, index: int, value: float) -> GridCase:
    values = list(getattr(case.numbers, name))
    values[index] = value
    return _numbers(case, **{name: values})


KEPT, CELL_STATE = QUANTIZERS.index("cell_state.kept"), QUANTIZERS.index("cell_state")
ACC = QUANTIZERS.index("input_gate.acc")


def _without_form() -> dict[str, GridCase]:
    case = byte_grid_case(seed=1)
    first = case.inputs["gate_table"].copy()
    first[40] += np.float32(1e-3)
    squashed = case.inputs["cell_table"].copy()
    squashed[200] += np.float32(1e-3)
    return {
        "roundings": _numbers(case, grid_rounding=["floor"] * len(QUANTIZERS)),
        "entry of a gate that is no code": _inputs(case, gate_table=first),
        "entry of the cell that is no code": _inputs(case, cell_table=squashed),
        "kept on a grid of its own": _entry(case, "grid_scale", KEPT, case.numbers.grid_scale[KEPT] * 0.75),
        "negative entries of a sigmoid": _inputs(case, gate_table=-case.inputs["gate_table"]),
        "wide sums": _inputs(case, **{n: np.full_like(case.inputs[n], 1e3) for n in ("x_multiplier", "h_multiplier")}),
        "an infinite bias": _inputs(case, B=np.full_like(case.inputs["B"], np.inf)),
        "unsigned accumulators": _entry(_entry(case, "grid_max", ACC, 129), "grid_min", ACC, -126),
        "a tiny scale": _entry(case, "grid_scale", ACC, 1e-30),
    }


@pytest.mark.parametrize("what", list(_without_form()))
def test_cells_without_the_form(what: str, guarded: Guarded) -> None:
    case = _without_form()[what]
    assert byte_form(case, guarded) is None
    assert byte_form(byte_grid_case(seed=1), guarded) is not None
    assert_same_bits(run_native(case.node), expected(case))
