"""The kernels of GRU and RNN steps on every instruction set: the bits of the scalar reference, nothing else touched.

What these would catch: a wrong operation or order of them, a look-up or a linear form that differs in one entry, a read
or write beyond the named extents (buffers end at guard pages), blocks of another part that are written.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from rnnqc.cells.tables import KNOT_UNIT, piecewise_linear_tanh
from tests.native.bundles import bundled, spread
from tests.native.kernel_calls import BLOCK, NATIVE, SENTINEL, STEP_ISAS, Guarded, blocks

Array = npt.NDArray[Any]
KINDS = ("table", "relu_table", "Relu", "LeakyRelu", "ThresholdedRelu", "Affine", "HardSigmoid", "Softsign")
# Gates of the cell and of the accumulators; what is written.
KERNELS = {
    "gru_cell": (3, 3, ("y", "state", "h")),
    "gru_reset": (3, 2, ("z", "h")),
    "gru_output": (3, 1, ("y", "state", "h")),
    "rnn_cell": (1, 1, ("y", "h")),
}


class _Call(ctypes.Structure):
    """rnnqc_test_hidden_step."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("rows", "units", "block_begin", "block_end", "gates", "acc_gates")),
        *((name, ctypes.c_void_p) for name in ("acc", "h_multiplier", "p")),
        ("gate_min", ctypes.c_float * 4),
        ("gate_max", ctypes.c_float * 4),
        ("gate_table", ctypes.c_void_p * 4),
        ("hidden_bias", ctypes.c_void_p),
        ("h_scale", ctypes.c_float),
        ("h_zero_point", ctypes.c_int32),
        *((name, ctypes.c_void_p) for name in ("state", "z", "y", "h")),
        ("has_options", ctypes.c_int32),
        ("kind", ctypes.c_int32 * 4),
        *((name, ctypes.c_float * 4) for name in ("alpha", "beta", "index_scale")),
        ("index_size", ctypes.c_int32 * 4),
        *((name, ctypes.c_void_p) for name in ("row_scale", "products", "reset")),
    )


@dataclass
class Options:
    """HiddenCellOptions; lists have a value for each gate."""

    kinds: list[str]
    alpha: list[float]
    beta: list[float]
    index_scale: list[float]
    index_size: list[int]
    row_scale: Array | None = None
    products: Array | None = None
    codes: bool = True

    def fill(self, call: _Call, guarded: Guarded) -> None:
        call.has_options = 1
        call.kind[: len(self.kinds)] = [KINDS.index(kind) for kind in self.kinds]
        for name in ("alpha", "beta", "index_scale", "index_size"):
            getattr(call, name)[: len(self.kinds)] = getattr(self, name)
        for name in ("row_scale", "products"):
            if (values := getattr(self, name)) is not None:
                setattr(call, name, guarded.array(values, 64 if name == "products" else 4).ctypes.data)
        if not self.codes:
            call.h = None


def columns(units: int, gates: int) -> int:
    """Columns in block order, padded to 64."""
    return -(-blocks(units) * gates * BLOCK // 64) * 64


@dataclass
class HiddenCase:
    """Values in block order and rows of whole blocks."""

    kernel: str
    units: int
    acc: Array
    p: Array
    h_multiplier: Array
    hidden_bias: Array
    state: Array
    z: Array
    tables: list[Array]
    gate_min: list[float]
    gate_max: list[float]
    h_scale: float = 1 / 127
    h_zero_point: int = 128
    options: Options | None = None

    def run(self, isa: str, guarded: Guarded, span: tuple[int, int] | None = None) -> tuple[bool, dict[str, Array]]:
        """Whether the tables have a linear form, and everything that may be written, all blocks or those of `span`."""
        gates, acc_gates, _ = KERNELS[self.kernel]
        rows = len(self.p)
        arrays = {
            name: guarded.array(getattr(self, name), 64)
            for name in ("acc", "p", "h_multiplier", "hidden_bias", "state", "z")
        }
        arrays["h"] = guarded.empty(self.state.shape, np.uint8, 16)
        arrays["reset"] = guarded.empty(self.state.shape, np.float32, 64)
        y, pointers = guarded.rows(rows, self.units)
        tables = [guarded.array(table) for table in self.tables]
        begin, end = span or (0, blocks(self.units))
        call = _Call(
            rows=rows,
            units=self.units,
            block_begin=begin,
            block_end=end,
            gates=gates,
            acc_gates=acc_gates,
            gate_min=(ctypes.c_float * 4)(*self.gate_min),
            gate_max=(ctypes.c_float * 4)(*self.gate_max),
            gate_table=(ctypes.c_void_p * 4)(*(table.ctypes.data for table in tables)),
            h_scale=self.h_scale,
            h_zero_point=self.h_zero_point,
            y=pointers.ctypes.data,
            **{name: array.ctypes.data for name, array in arrays.items()},
        )
        if self.options is not None:
            self.options.fill(call, guarded)
        linear = bool(NATIVE.rnnqc_test_has_linear_gates(ctypes.byref(call)))
        NATIVE.rnnqc_test_hidden_cell(isa.encode(), self.kernel.encode(), ctypes.byref(call))
        return linear, {"y": np.array(y), **{name: arrays[name].copy() for name in ("state", "z", "h", "reset")}}

    def check(self, isa: str, guarded: Guarded) -> bool:
        """All units as the reference has them; padding counts for nothing. Whether the tables were linear."""
        linear, found = self.run(isa, guarded)
        _, wanted = self.run("reference", guarded)
        for name, value in found.items():
            np.testing.assert_array_equal(_bits(value[:, : self.units]), _bits(wanted[name][:, : self.units]), name)
        return linear


def _bits(values: Array) -> Array:
    return np.ascontiguousarray(values).view(np.uint8)


def _case(kernel: str, rows: int, units: int, tables: list[Array], seed: int = 0, wild: bool = False) -> HiddenCase:
    gates, acc_gates, _ = KERNELS[kernel]
    rng = np.random.default_rng([seed, rows, units])
    padded = blocks(units) * BLOCK
    size = np.float32(max(table.size for table in tables))
    p = rng.uniform(-0.2 * size, 1.2 * size, (rows, columns(units, gates))).astype(np.float32)
    state = rng.normal(0, 1, (rows, padded)).astype(np.float32)
    bias = rng.normal(0, size / 8, padded).astype(np.float32)
    if wild:
        for k, value in enumerate(np.float32([np.inf, -np.inf, 3e38, -3e38, 0.0, -0.0, -(2.0**31), 2.0**31])):
            p.flat[k::37] = value
        for k, value in enumerate(np.float32([2.0**60, -(2.0**60), -0.0, 1e-42, 3e4, -3e4])):
            state.flat[k::29] = value
        bias[::13] = -0.0
    return HiddenCase(
        kernel=kernel,
        units=units,
        acc=rng.integers(-(2**31), 2**31, (rows, columns(units, acc_gates)), dtype=np.int32),
        p=p,
        h_multiplier=rng.uniform(-1, 1, columns(units, acc_gates)).astype(np.float32) * size * np.float32(2.0**-33),
        hidden_bias=bias,
        state=state,
        z=rng.uniform(-0.1, 1.1, (rows, padded)).astype(np.float32),
        tables=tables,
        gate_min=[0.0] * gates,
        gate_max=[table.size - 0.5 for table in tables],
    )


def _random_tables(kernel: str, wild: bool = False) -> list[Array]:
    rng = np.random.default_rng(1)
    sizes = (700, 1000, 64)[: KERNELS[kernel][0]]
    return [(rng.normal(0, 1e15 if wild else 1, size)).astype(np.float32) for size in sizes]


def _linear_tables(kernel: str, n: int = 4096) -> list[Array]:
    tanh = piecewise_linear_tanh(np.arange(-n, n), n).astype(np.float32)
    sigmoid = tanh * np.float32(KNOT_UNIT / 2) + np.float32(0.5)
    return [sigmoid, sigmoid.copy(), tanh * np.float32(KNOT_UNIT)][-KERNELS[kernel][0] :]


@pytest.fixture
def guarded() -> Guarded:
    return Guarded()


UNITS = [1, 7, 8, 9, 15, 16, 17, 33, 48, 61, 64, 65, 128, 300]


@pytest.mark.few(5)
@pytest.mark.parametrize("isa", STEP_ISAS)
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("wild", [False, True])
@bundled("zero_point, units, rows", spread(3, [0, 128, 255], UNITS, [1, 3]))
def test_look_ups(isa: str, kernel: str, wild: bool, zero_point: int, units: int, rows: int, guarded: Guarded) -> None:
    case = _case(kernel, rows, units, _random_tables(kernel, wild), wild=wild)
    case.h_zero_point = zero_point
    assert not case.check(isa, guarded)


@pytest.mark.few(4)
@pytest.mark.parametrize("isa", STEP_ISAS)
@pytest.mark.parametrize("kernel", KERNELS)
@bundled("n, units, wild", spread(2, [64, 1024, 4096, 32768], [1, 17, 64, 61, 300], [False, True]))
def test_linear_tables(isa: str, kernel: str, n: int, units: int, wild: bool, guarded: Guarded) -> None:
    assert _case(kernel, 3, units, _linear_tables(kernel, n), wild=wild).check(isa, guarded)


@pytest.mark.parametrize("isa", STEP_ISAS)
@pytest.mark.parametrize("kernel", KERNELS)
def test_every_entry_of_linear_tables(isa: str, kernel: str, guarded: Guarded) -> None:
    """Pre-activations that visit every code of each gate, and beyond."""
    tables = _linear_tables(kernel)
    units = 509
    rows = -(-(tables[0].size + 20) // units)
    case = _case(kernel, rows, units, tables)
    codes = np.arange(rows * units).reshape(rows, units) - np.float32(10) + np.float32(0.5)
    gates = KERNELS[kernel][0]
    unit = np.arange(units)
    for gate in range(gates):
        case.p[:, (unit // BLOCK * gates + gate) * BLOCK + unit % BLOCK] = np.roll(codes, gate * 7, axis=1)
    case.h_multiplier[:] = 2.0**-34
    case.hidden_bias[:] = 0
    assert case.check(isa, guarded)


@pytest.mark.parametrize("isa", STEP_ISAS)
@pytest.mark.parametrize("kernel", KERNELS)
@bundled("lowest", [0.5, 0.999, 1.0, 700.25])
def test_lower_limits_of_indices(isa: str, kernel: str, lowest: float, guarded: Guarded) -> None:
    for gate in range(KERNELS[kernel][0]):
        case = _case(kernel, 2, 130, _linear_tables(kernel), wild=True)
        case.gate_min[gate] = lowest
        assert case.check(isa, guarded)


@pytest.mark.parametrize("isa", STEP_ISAS)
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("lowest", [0.0, 0.5, 1.0])
def test_lower_limit_at_the_second_code(
    isa: str, kernel: str, lowest: float, guarded: Guarded, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Knots that rise to the end, without the code whose entry is that of the next one: indices 0 and 1 differ.
    monkeypatch.setattr("rnnqc.cells.tables.TANH_KNOTS", (*(min(260 * j, 16352) for j in range(64)), 16384))
    tables = [table[1:] for table in _linear_tables(kernel)]
    assert all(table[0] != table[1] for table in tables)
    case = _case(kernel, 2, 130, tables, wild=True)
    case.gate_min = [lowest] * len(case.gate_min)
    assert case.check(isa, guarded)


@pytest.mark.parametrize("isa", STEP_ISAS)
@pytest.mark.parametrize("kernel", KERNELS)
@bundled("scale", [1e-30, 2.0**-31, 1e-6, 3.0])
def test_codes_far_outside(isa: str, kernel: str, scale: float, guarded: Guarded) -> None:
    for zero_point in (0, 128, 255):
        case = replace(_case(kernel, 2, 70, _linear_tables(kernel), wild=True), h_scale=scale, h_zero_point=zero_point)
        case.check(isa, guarded)


@pytest.mark.parametrize("isa", STEP_ISAS)
@pytest.mark.parametrize("kernel", KERNELS)
def test_hidden_codes_next_to_ties(isa: str, kernel: str, guarded: Guarded) -> None:
    # Kernels may multiply by both parts of a reciprocal: scales for which the first part alone gives another code, with
    # blocks that stand alone, in pairs and in fours.
    case = _case(kernel, 3, 7 * BLOCK - 12, _linear_tables(kernel))
    written = case.run("reference", guarded)[1]["y"]
    if kernel == "gru_reset":
        whole = _with_options(kernel, 3, case.units, ["table"] * 3, 0)
        whole = replace(whole, p=case.p, acc=case.acc, h_multiplier=case.h_multiplier, state=case.state)
        assert whole.options is not None
        whole.options.codes = False
        written = whole.run("reference", guarded)[1]["reset"][:, : case.units]
    y = np.abs(written)
    values = np.random.default_rng(0).choice(y[(y > 0.1) & (y < 2.0)], 4000)
    scales = (values / np.resize(np.arange(96.5, 127), values.size)).astype(np.float32)
    other = np.rint(values / scales) != np.rint(values * (np.float32(1) / scales))
    assert other.sum() >= 12
    for scale in scales[other][:12]:
        assert replace(case, h_scale=float(scale)).check(isa, guarded)


@pytest.mark.few(4)
@pytest.mark.parametrize("isa", STEP_ISAS)
@pytest.mark.parametrize("kernel", KERNELS)
@bundled("entry", [0, 63, 4095, 4096, 5000, 8191])
def test_a_table_that_differs_in_one_entry_is_looked_up(isa: str, kernel: str, entry: int, guarded: Guarded) -> None:
    for gate in range(KERNELS[kernel][0]):
        tables = _linear_tables(kernel)
        tables[gate][entry] += np.float32(0.25)
        assert not _case(kernel, 2, 40, tables).check(isa, guarded)


# Below, at and above the numbers of blocks that kernels take together, 2, 4 and 16.
SPANS = [(0, 1), (0, 3), (1, 5), (2, 9), (3, 20), (0, 17), (19, 20), (7, 7), (0, 20)]


@pytest.mark.few(6)
@pytest.mark.parametrize("isa", [*STEP_ISAS, "reference"])
@pytest.mark.parametrize("kernel", KERNELS)
@bundled("begin, end", SPANS)
def test_some_blocks(isa: str, kernel: str, begin: int, end: int, guarded: Guarded) -> None:
    units = 20 * BLOCK - 3
    for tables in (_linear_tables(kernel), _random_tables(kernel)):
        case = _case(kernel, 2, units, tables)
        _, whole = case.run("reference", guarded)
        _, part = case.run(isa, guarded, (begin, end))
        inside = slice(begin * BLOCK, min(end * BLOCK, units))
        for name, value in part.items():
            before = getattr(case, name).copy() if name in ("state", "z") else np.zeros_like(value)
            if name in ("y", "h", "reset"):
                before.view(np.uint8)[...] = SENTINEL
            if name in KERNELS[kernel][2]:
                before[:, inside] = whole[name][:, inside]
            # The padding belongs to the last block.
            np.testing.assert_array_equal(_bits(value[:, :units]), _bits(before[:, :units]), name)


@pytest.mark.parametrize("kernel", KERNELS)
def test_cases_show_something(kernel: str, guarded: Guarded) -> None:
    """Results vary, indices reach both ends, codes are not all saturated."""
    case = _case(kernel, 3, 300, _linear_tables(kernel))
    _, results = case.run("reference", guarded)
    for name in KERNELS[kernel][2]:
        assert np.unique(results[name][:, :300]).size > 50, name


def _with_options(kernel: str, rows: int, units: int, kinds: list[str], seed: int, linear: bool = True) -> HiddenCase:
    """Gates of these kinds, with pre-activations of all relevant magnitudes."""
    case = _case(kernel, rows, units, _linear_tables(kernel) if linear else _random_tables(kernel), seed, wild=True)
    rng = np.random.default_rng([seed, 1])
    count = len(kinds)
    for gate, kind in enumerate(kinds):
        case.gate_min[gate], case.gate_max[gate] = {
            "table": (case.gate_min[gate], case.gate_max[gate]),
            "relu_table": (-(2.0**60), 2.0**60),
            "Softsign": (-1e4, np.inf),
            "HardSigmoid": (-np.inf, np.inf),
            "Affine": (-np.inf, np.inf),
        }.get(kind, (-(2.0**60), 2.0**60))
    case.options = Options(
        kinds=kinds,
        alpha=[float(np.float32(value)) for value in rng.choice([0.0, 0.01, -0.5, 0.2, 1.0], count)],
        beta=[float(np.float32(value)) for value in rng.choice([0.0, -0.0, 0.5, -3.0], count)],
        index_scale=[0.01] * count,
        index_size=[table.size // 2 * 2 for table in case.tables],
    )
    return case


@pytest.mark.few(19)
@pytest.mark.parametrize("isa", STEP_ISAS)
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("kind", KINDS)
@bundled("units, linear", spread(2, [1, 16, 24, 61, 96, 300], [True, False]))
def test_kinds_of_activations(isa: str, kernel: str, kind: str, units: int, linear: bool, guarded: Guarded) -> None:
    """One gate at a time beside tables, then all gates."""
    gates = KERNELS[kernel][0]
    rest = ["table"] * gates
    for seed, kinds in enumerate([*([*rest[:g], kind, *rest[g + 1 :]] for g in range(gates)), [kind] * gates]):
        case = _with_options(kernel, 2, units, kinds, seed, linear)
        assert case.check(isa, guarded) == (linear and "table" in kinds)


@pytest.mark.few(5)
@pytest.mark.parametrize("isa", STEP_ISAS)
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("codes", [True, False])
@bundled("products, units", spread(2, ["sums", "scaled", "joined"], [7, 64, 140, 300]))
def test_products_and_codes(isa: str, kernel: str, products: str, codes: bool, units: int, guarded: Guarded) -> None:
    """Products of dynamic rows and of 16-bit codes, and values without codes."""
    rng = np.random.default_rng(units)
    for seed, kinds in enumerate((["table"] * 3, ["table", "table", "Relu"], ["Relu"] * 3)):
        case = _with_options(kernel, 3, units, kinds[-KERNELS[kernel][0] :], seed)
        assert case.options is not None
        case.options.codes = codes
        if products == "scaled":
            case.options.row_scale = rng.uniform(0.1, 2, 3).astype(np.float32)
        elif products == "joined":
            case.options.products = (rng.normal(0, 1, case.acc.shape) * 4096).astype(np.float32)
        case.check(isa, guarded)
        _, results = case.run(isa, guarded)
        assert (results["h"] == SENTINEL).all() == (not codes)
        assert (results["reset"].view(np.uint8) == SENTINEL).all() == (codes or kernel != "gru_reset")


@pytest.mark.parametrize("isa", STEP_ISAS)
@pytest.mark.parametrize("kernel", ["gru_reset", "rnn_cell"])
def test_no_number_has_the_code_of_zero(isa: str, kernel: str, guarded: Guarded) -> None:
    gates = KERNELS[kernel][0]
    case = _with_options(kernel, 2, 40, ["Affine"] * gates, 0)
    assert case.options is not None
    case.options.alpha = [0.0] * gates
    case.p[:] = np.inf
    case.h_zero_point = 77
    case.check(isa, guarded)
    _, results = case.run(isa, guarded)
    assert (results["h"][:, :40] == 77).all()
