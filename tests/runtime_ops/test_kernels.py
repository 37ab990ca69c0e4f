"""Every kernel of every available instruction set against the scalar reference, on buffers that end at a guard page.

`RNNQC_EXPECT_ISAS` (names separated by commas) lists the instruction sets that have to be covered on this machine.
"""

from __future__ import annotations

import ctypes
import faulthandler
import itertools
import mmap
import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from rnnqc import runtime_ops
from rnnqc.tables import KNOT_UNIT, TANH_KNOTS, by_code, piecewise_linear_tanh

GATES = 4
BLOCK = 16
SENTINEL = 0xA5
_LIBC = ctypes.CDLL(None, use_errno=True)


def _native() -> ctypes.CDLL:
    native = ctypes.CDLL(str(runtime_ops.library_path()))
    native.rnnqc_test_isa_name.restype = ctypes.c_char_p
    native.rnnqc_test_max_abs.restype = ctypes.c_float
    native.rnnqc_test_padded_depth.restype = ctypes.c_int64
    native.rnnqc_test_packed_bytes.restype = ctypes.c_int64
    return native


NATIVE = _native()
AVAILABLE = [NATIVE.rnnqc_test_isa_name(k).decode() for k in range(NATIVE.rnnqc_test_isa_count())]
ISAS = [isa for isa in AVAILABLE if isa != "reference"]


class Cell(ctypes.Structure):
    """rnnqc_test_cell."""

    _fields_ = (
        ("rows", ctypes.c_int64),
        ("units", ctypes.c_int64),
        ("acc", ctypes.c_void_p),
        ("p", ctypes.c_void_p),
        ("h_multiplier", ctypes.c_void_p),
        ("gate_min", ctypes.c_float * GATES),
        ("gate_max", ctypes.c_float * GATES),
        ("gate_table", ctypes.c_void_p * GATES),
        ("cell_max", ctypes.c_float),
        ("cell_table", ctypes.c_void_p),
        ("cell_table_size", ctypes.c_int32),
        ("h_scale", ctypes.c_float),
        ("h_zero_point", ctypes.c_int32),
        ("c", ctypes.c_void_p),
        ("y", ctypes.c_void_p),
        ("h", ctypes.c_void_p),
    )


class Guarded:
    """Arrays between two pages that may not be touched: each ends at the second one, where its alignment permits."""

    def __init__(self) -> None:
        self._maps: list[mmap.mmap] = []

    def array(self, value: npt.NDArray[Any], alignment: int = 1) -> npt.NDArray[Any]:
        page = mmap.PAGESIZE
        size = -(-value.nbytes // alignment) * alignment
        body = max(-(-size // page), 1) * page
        memory = mmap.mmap(-1, body + 2 * page)
        self._maps.append(memory)
        address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        for offset in (0, page + body):
            if _LIBC.mprotect(ctypes.c_void_p(address + offset), ctypes.c_size_t(page), 0) != 0:
                raise OSError(ctypes.get_errno(), "mprotect failed")
        guarded = np.frombuffer(memory, value.dtype, value.size, page + body - size).reshape(value.shape)
        guarded[...] = value
        return guarded

    def empty(self, shape: tuple[int, ...], dtype: npt.DTypeLike, alignment: int = 1) -> npt.NDArray[Any]:
        value = np.empty(shape, dtype)
        value.view(np.uint8)[...] = SENTINEL
        return self.array(value, alignment)


@pytest.fixture
def guarded() -> Iterator[Guarded]:
    yield Guarded()


def pointer(array: npt.NDArray[Any] | None) -> ctypes.c_void_p:
    return ctypes.c_void_p(None if array is None else array.ctypes.data)


def blocks(units: int) -> int:
    return -(-units // BLOCK)


def block_order(values: npt.NDArray[Any], units: int) -> npt.NDArray[Any]:
    """[..., 4 * units] -> [..., blocks * 64], zeros in the padding."""
    lead = values.shape[:-1]
    padded = np.zeros((*lead, GATES, blocks(units) * BLOCK), values.dtype)
    padded[..., :units] = values.reshape(*lead, GATES, units)
    return np.ascontiguousarray(padded.reshape(*lead, GATES, -1, BLOCK).swapaxes(-3, -2).reshape(*lead, -1))


def test_expected_instruction_sets_are_covered() -> None:
    expected = {name for name in os.environ.get("RNNQC_EXPECT_ISAS", "portable").split(",") if name}
    assert expected <= set(ISAS), f"not covered: {sorted(expected - set(ISAS))}; covered: {ISAS}"


@pytest.mark.parametrize("isa", AVAILABLE)
@pytest.mark.parametrize("n", [0, 1, 2, 3, 4, 7, 8, 15, 16, 17, 31, 33, 63, 64, 65, 127, 300])
def test_max_abs(isa: str, n: int, guarded: Guarded) -> None:
    rng = np.random.default_rng(n)
    x = rng.normal(0, 1e3, n).astype(np.float32)
    for special in (None, np.nan, -np.nan, np.inf, -np.inf, -1e-45, -3.4e38):
        for place in range(min(n, 70)) if special is not None else [0]:
            values = x.copy()
            if special is not None:
                values[place] = special
            found = NATIVE.rnnqc_test_max_abs(isa.encode(), pointer(guarded_last(guarded, values)), ctypes.c_int64(n))
            expected = np.abs(np.where(np.isnan(values), 0, values)).max(initial=0)
            assert np.float32(found) == expected, (special, place)


@pytest.mark.parametrize("isa", AVAILABLE)
@pytest.mark.parametrize("n", [0, 1, 2, 3, 4, 7, 8, 15, 16, 17, 31, 33, 63, 64, 65, 127, 300])
def test_min_max(isa: str, n: int, guarded: Guarded) -> None:
    rng = np.random.default_rng(n)
    x = rng.normal(0, 1e3, n).astype(np.float32)
    found = np.zeros(2, np.float32)
    for special in np.float32([0, -0.0, np.nan, -np.nan, np.inf, -np.inf, 1e-45, -1e-45, 3.4e38, -3.4e38]):
        for row in (x, np.abs(x), -np.abs(x), np.zeros_like(x), -np.zeros_like(x), np.full_like(x, np.nan)):
            for place in range(min(n, 70)) or [0]:
                values = row.copy()
                values[place : place + 1] = special
                guarded_values = guarded_last(guarded, values)
                NATIVE.rnnqc_test_min_max(isa.encode(), pointer(guarded_values), ctypes.c_int64(n), pointer(found))
                finite = np.where(np.isnan(values), 0, values)
                assert (found[0], found[1]) == (finite.min(initial=0), finite.max(initial=0)), (special, place)
                assert not np.signbit(found[found == 0]).any(), (special, place)


def guarded_last(guarded: Guarded, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """A guarded copy in the place of the last one, to keep the number of mappings small."""
    guarded._maps.clear()
    return guarded.array(values)


@pytest.mark.parametrize("isa", AVAILABLE)
@pytest.mark.parametrize("zero_point", [0, 1, 127, 128, 254, 255])
@pytest.mark.parametrize("n", [1, 3, 4, 7, 8, 15, 16, 17, 31, 32, 33, 63, 64, 65, 200])
def test_quantize_row(isa: str, zero_point: int, n: int, guarded: Guarded) -> None:
    rng = np.random.default_rng(n)
    specials = np.float32([np.nan, np.inf, -np.inf, 0.0, -0.0, 3.4e38, -3.4e38, 1e-45, 2.0**23, -(2.0**31), 2.0**32])
    for scale in np.float32([1 / 127, 0.25, 3e36, 1e-38, 2.0**-100 / 127]):
        # Quarters of the scale: many of them ties.
        with np.errstate(over="ignore"):
            values = (rng.integers(-1100, 1100, n) * (scale / 4)).astype(np.float32)
        values[rng.random(n) < 0.2] = rng.choice(specials)
        x, codes = guarded.array(values), guarded.empty((n,), np.uint8)
        NATIVE.rnnqc_test_quantize_row(
            isa.encode(),
            pointer(x),
            ctypes.c_int64(n),
            ctypes.c_float(scale),
            ctypes.c_int32(zero_point),
            pointer(codes),
        )
        with np.errstate(all="ignore"):
            real = np.where(np.isnan(values), np.float32(0), values) / scale
            expected = np.clip(np.rint(real) + np.float32(zero_point), 0, 255).astype(np.uint8)
        np.testing.assert_array_equal(codes, expected)


class Product:
    """Operands of an integer product in guarded memory, packed for one instruction set."""

    def __init__(
        self,
        guarded: Guarded,
        isa: str,
        weights: npt.NDArray[np.int8],
        codes: npt.NDArray[np.uint8],
        zero_point: int,
    ) -> None:
        """`weights` `[k, 4 * units]`, `codes` `[rows, k]`."""
        (rows, k), units = codes.shape, weights.shape[1] // GATES
        self.isa, self.rows, self.k, self.units, self.weights = isa.encode(), rows, k, units, weights
        self.expected = block_order((codes.astype(np.int64) - zero_point) @ weights.astype(np.int64), units)
        depth = NATIVE.rnnqc_test_padded_depth(self.isa, ctypes.c_int64(k))
        size = NATIVE.rnnqc_test_packed_bytes(self.isa, ctypes.c_int64(k), ctypes.c_int64(units))
        assert depth >= k
        padded = np.random.default_rng(k).choice(np.uint8([0, 255]), (rows, depth))
        padded[:, :k] = codes
        self.a, self.stride = guarded.array(padded), depth
        self.packed = guarded.empty((size,), np.uint8, alignment=64)
        self.start = guarded.empty((blocks(units) * GATES * BLOCK,), np.int32, alignment=64)
        NATIVE.rnnqc_test_pack(
            self.isa,
            pointer(guarded.array(weights)),
            ctypes.c_int64(k),
            ctypes.c_int64(units),
            ctypes.c_int32(zero_point),
            pointer(self.packed),
            pointer(self.start),
        )

    @staticmethod
    def example(guarded: Guarded, isa: str, rows: int, k: int, units: int, zero_point: int, kind: str) -> Product:
        """All weights -128 ("low") or 127 ("high") and codes as far from the zero point; or "random", or "corners"."""
        rng = np.random.default_rng([rows, k, units, zero_point])
        weights = rng.integers(-128, 128, (k, GATES * units), dtype=np.int8)
        codes = rng.integers(0, 256, (rows, k), dtype=np.uint8)
        if kind == "corners":
            weights[:] = rng.choice(np.int8([-128, -127, -1, 0, 126, 127]), weights.shape)
            codes[:] = rng.choice(np.uint8([0, 1, 127, 128, 129, 254, 255]), codes.shape)
        elif kind != "random":
            weights[:] = {"low": -128, "high": 127}[kind]
            codes[:] = 255 - zero_point
        return Product(guarded, isa, weights, codes, zero_point)

    def arguments(self) -> tuple[Any, ...]:
        return (
            self.isa,
            pointer(self.a),
            ctypes.c_int64(self.stride),
            ctypes.c_int64(self.rows),
            pointer(self.packed),
            ctypes.c_int64(self.k),
            ctypes.c_int64(self.units),
            pointer(self.start),
        )


# Below, at and above multiples of 4, 16 and 64 of k, of 16 units, and of row tiles up to 8; more rows than 64.
PRODUCTS = [
    (rows, k, units)
    for rows in (1, 2, 3, 4, 5, 6, 7, 8, 13)
    for k, units in ((0, 3), (1, 1), (3, 17), (4, 16), (5, 33), (16, 15), (61, 31), (64, 64), (131, 5), (256, 48))
]
# More rows and more of k than a kernel prepares codes of at once.
LARGE_PRODUCTS = [
    (65, 7, 17),
    (130, 37, 3),
    (1, 8190, 16),
    (1, 8193, 3),
    (1, 16500, 17),
    (2, 4100, 17),
    (3, 2731, 16),
    (5, 3333, 2),
    (13, 1300, 5),
    (15, 544, 17),
    (16, 513, 16),
    (17, 512, 33),
    (31, 1100, 16),
    (35, 70, 17),
    (50, 1030, 1),
]


@pytest.mark.parametrize("isa", AVAILABLE)
@pytest.mark.parametrize(
    ("zero_point", "kind"), [(128, "random"), (0, "low"), (255, "high"), (0, "high"), (77, "low"), (3, "corners")]
)
@pytest.mark.parametrize(("rows", "k", "units"), PRODUCTS)
def test_integer_products(
    isa: str, zero_point: int, kind: str, rows: int, k: int, units: int, guarded: Guarded
) -> None:
    _check_products(guarded, Product.example(guarded, isa, rows, k, units, zero_point, kind))


@pytest.mark.parametrize("isa", AVAILABLE)
@pytest.mark.parametrize(("zero_point", "kind"), [(128, "random"), (0, "corners")])
@pytest.mark.parametrize(("rows", "k", "units"), LARGE_PRODUCTS)
def test_large_integer_products(
    isa: str, zero_point: int, kind: str, rows: int, k: int, units: int, guarded: Guarded
) -> None:
    _check_products(guarded, Product.example(guarded, isa, rows, k, units, zero_point, kind))


@pytest.mark.parametrize("isa", AVAILABLE)
@pytest.mark.parametrize("codes", list(itertools.product([0, 1, 127, 128, 255], repeat=2)))
@pytest.mark.parametrize("rows", [1, 2, 3])
def test_pairs_of_extreme_products(isa: str, rows: int, codes: tuple[int, int], guarded: Guarded) -> None:
    # Sums of two products that int16 does not hold, and weights whose negative int8 does not hold.
    weights = list(itertools.product([-128, -127, 126, 127], repeat=2))
    product = Product(guarded, isa, np.int8(weights * GATES).T.copy(), np.uint8([codes] * rows), 0)
    _check_products(guarded, product)


def _check_products(guarded: Guarded, product: Product) -> None:
    rows, units = product.rows, product.units
    for descending in (0, 1):
        acc = guarded.empty(product.expected.shape, np.int32, alignment=64)
        NATIVE.rnnqc_test_recurrent(*product.arguments(), ctypes.c_int32(descending), pointer(acc))
        np.testing.assert_array_equal(acc, product.expected)

    rng = np.random.default_rng(product.k)
    columns = GATES * units
    multiplier, bias = (block_order(rng.normal(0, 1, columns).astype(np.float32), units) for _ in range(2))
    row_scale = rng.uniform(0.1, 3, (rows, 1)).astype(np.float32)
    for scale in (None, row_scale):
        p = guarded.empty(acc.shape, np.float32, alignment=64)
        NATIVE.rnnqc_test_project(
            *product.arguments(),
            pointer(None if scale is None else guarded.array(scale)),
            pointer(None if scale is None else guarded.array(np.ones(rows, np.int32))),
            pointer(guarded.array(multiplier, 64)),
            pointer(guarded.array(bias, 64)),
            pointer(p),
        )
        real = product.expected.astype(np.float32)
        real = real if scale is None else real * scale
        np.testing.assert_array_equal(p.view(np.int32), (real * multiplier + bias).view(np.int32))


def _check_row_grids(guarded: Guarded, product: Product, zero_points: npt.NDArray[np.int32]) -> None:
    """`product` has zero point 1: its start values are minus the column sums."""
    codes = product.a[:, : product.k].astype(np.int64)
    acc = block_order((codes - zero_points[:, np.newaxis]) @ product.weights.astype(np.int64), product.units)
    assert np.abs(acc).max() < 2**31
    rng = np.random.default_rng(product.k)
    columns = GATES * product.units
    multiplier, bias = (block_order(rng.normal(0, 1, columns).astype(np.float32), product.units) for _ in range(2))
    scale = rng.uniform(0.1, 3, (product.rows, 1)).astype(np.float32)
    p = guarded.empty(acc.shape, np.float32, alignment=64)
    NATIVE.rnnqc_test_project(
        *product.arguments(),
        pointer(guarded.array(scale)),
        pointer(guarded.array(zero_points)),
        pointer(guarded.array(multiplier, 64)),
        pointer(guarded.array(bias, 64)),
        pointer(p),
    )
    expected = (acc.astype(np.float32) * scale) * multiplier + bias
    np.testing.assert_array_equal(p.view(np.int32), expected.view(np.int32))


@pytest.mark.parametrize("isa", AVAILABLE)
@pytest.mark.parametrize(("rows", "k", "units"), PRODUCTS)
def test_rows_with_a_zero_point_each(isa: str, rows: int, k: int, units: int, guarded: Guarded) -> None:
    product = Product.example(guarded, isa, rows, k, units, 1, "random")
    zero_points = np.random.default_rng(rows).integers(0, 256, rows, dtype=np.int32)
    zero_points[0], zero_points[-1] = 0, 255
    _check_row_grids(guarded, product, zero_points)


@pytest.mark.parametrize("isa", AVAILABLE)
@pytest.mark.parametrize("kind", ["low", "high"])
def test_largest_depth_with_a_zero_point_each_does_not_overflow(isa: str, kind: str, guarded: Guarded) -> None:
    product = Product.example(guarded, isa, 3, 65536, 1, 1, kind)
    product.a[:, :65536] = np.uint8([[0], [255], [255]])
    _check_row_grids(guarded, product, np.int32([255, 0, 255]))


@pytest.mark.parametrize("isa", AVAILABLE)
def test_largest_depth_does_not_overflow(isa: str, guarded: Guarded) -> None:
    product = Product.example(guarded, isa, 1, 65536, 1, 0, "low")
    assert product.expected.min() == -255 * 128 * 65536
    for descending in (0, 1):
        acc = guarded.empty(product.expected.shape, np.int32, alignment=64)
        NATIVE.rnnqc_test_recurrent(*product.arguments(), ctypes.c_int32(descending), pointer(acc))
        np.testing.assert_array_equal(acc, product.expected)


def _table_cell(
    isa: str, guarded: Guarded, rows: int, units: int, zero_point: int, wild: bool, cell_max: float
) -> dict[str, Any]:
    rng = np.random.default_rng([rows, units, zero_point])
    columns = blocks(units) * GATES * BLOCK
    n, size = 40, 604
    gate_max = np.float32([2 * n - 0.5, n, 3.25, 2 * n - 1])
    # Without slack: a look-up beyond a table's last or before its first entry meets a guard page.
    gate_tables = [
        guarded.array(rng.normal(0, 30 if g == 3 else 1, int(gate_max[g]) + 1).astype("f")) for g in range(4)
    ]
    cell_table = guarded.array(rng.normal(0, 1, size).astype(np.float32))
    acc = rng.integers(-(2**31), 2**31, (rows, columns), dtype=np.int32)
    h_multiplier = rng.normal(0, 2.0**-26, columns).astype(np.float32)
    p = rng.normal(n, n, (rows, columns)).astype(np.float32)
    # Sums that are whole numbers only if the product is rounded before the addition.
    whole = rng.random(p.shape) < 0.3
    p[whole] = (rng.integers(0, n, p.shape).astype(np.float32) - acc.astype(np.float32) * h_multiplier)[whole]
    c = rng.integers(-300, 301, (rows, blocks(units) * BLOCK)).astype(np.float32)
    c[rng.random(c.shape) < 0.1] = -0.0
    if cell_max > 300:
        wide = rng.random(c.shape) < 0.3
        c[wide] *= np.float32(2.0) ** rng.integers(8, 50, int(wide.sum())).astype(np.float32)
    if wild:
        special = rng.random(p.shape) < 0.3
        p[special] = rng.choice(np.float32([np.nan, np.inf, -np.inf, 3e38, -3e38, -0.0]), int(special.sum()))
        c[rng.random(c.shape) < 0.1] = np.nan
    arrays = {
        "acc": guarded.array(acc, 64),
        "p": guarded.array(p, 64),
        "h_multiplier": guarded.array(h_multiplier, 64),
        "c": guarded.array(c, 64),
        "h": guarded.empty((rows, blocks(units) * BLOCK), np.uint8, 16),
    }
    y = [guarded.empty((units,), np.float32) for _ in range(rows)]
    row_pointers = guarded.array(np.array([row.ctypes.data for row in y], np.uintp))
    cell = Cell(
        rows=rows,
        units=units,
        gate_min=(ctypes.c_float * GATES)(0, 0.5, 0, 1),
        gate_max=(ctypes.c_float * GATES)(*gate_max),
        gate_table=(ctypes.c_void_p * GATES)(*(table.ctypes.data for table in gate_tables)),
        cell_max=cell_max,
        cell_table=cell_table.ctypes.data,
        cell_table_size=size,
        h_scale=0.021,
        h_zero_point=zero_point,
        y=row_pointers.ctypes.data,
        **{name: array.ctypes.data for name, array in arrays.items()},
    )
    NATIVE.rnnqc_test_table_cell(isa.encode(), ctypes.byref(cell))
    return {"y": np.array(y), "c": arrays["c"][:, :units].copy(), "h": arrays["h"][:, :units].copy()}


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("cell_max", [300.0, 2.0**60])
@pytest.mark.parametrize("wild", [False, True])
@pytest.mark.parametrize("zero_point", [0, 128, 255])
@pytest.mark.parametrize("rows", [1, 2, 5])
@pytest.mark.parametrize("units", [1, 2, 3, 8, 15, 16, 17, 31, 32, 33, 48, 61, 64, 67, 128])
def test_table_cell(
    isa: str, units: int, rows: int, zero_point: int, wild: bool, cell_max: float, guarded: Guarded
) -> None:
    found = _table_cell(isa, guarded, rows, units, zero_point, wild, cell_max)
    expected = _table_cell("reference", guarded, rows, units, zero_point, wild, cell_max)
    for name, value in found.items():
        assert value.tobytes() == expected[name].tobytes(), name


class LinearTables:
    """The default tables: `gate_n`, `cell_n` codes on [0, 8], `half` codes of the cell on either side."""

    def __init__(self, gate_n: int = 4096, cell_n: int = 16384, half: int = 32768, unit: float = 2.0**-11) -> None:
        gate = piecewise_linear_tanh(np.arange(-gate_n, gate_n), gate_n).astype(np.float32)
        sigmoid = gate * np.float32(KNOT_UNIT / 2) + np.float32(0.5)
        cell = piecewise_linear_tanh(np.arange(-half, half), cell_n).astype(np.float32) * np.float32(KNOT_UNIT)
        scaled = gate * (np.float32(KNOT_UNIT) / np.float32(unit)) + np.float32(0)
        self.gates = [sigmoid, sigmoid.copy(), sigmoid.copy(), scaled]
        self.cell = by_code(cell)

    def run(self, isa: str, guarded: Guarded) -> tuple[bool, bytes, npt.NDArray[np.float32]]:
        """Whether the kernels get the linear form; all results; y `[rows, units]`.

        The pre-activations visit every entry of the gates' tables and go beyond them; any cell states.
        """
        size = self.gates[0].size
        units = 61 if size < 8192 else 509
        rows = -(-size // units)
        rng = np.random.default_rng(size)
        code = np.arange(rows * units, dtype=np.float32).reshape(rows, units) + np.float32(
            rng.choice([-0.5, 0.25, 0.5])
        )
        c = rng.integers(-self.cell.size, self.cell.size + 1, (rows, blocks(units) * BLOCK)).astype(np.float32)
        c[rng.random(c.shape) < 0.3] *= np.float32(1 / 64)
        c = np.rint(c) + (np.rint(c) == 0)
        columns = blocks(units) * GATES * BLOCK
        arrays = {
            "acc": guarded.array(rng.integers(-(2**31), 2**31, (rows, columns), dtype=np.int32), 64),
            "p": guarded.array(
                block_order(np.concatenate([code, code[:, ::-1], code, np.roll(code, 7, axis=0)], 1), units), 64
            ),
            "h_multiplier": guarded.array(np.full(columns, 2.0**-34, np.float32), 64),
            "c": guarded.array(c, 64),
            "h": guarded.empty((rows, blocks(units) * BLOCK), np.uint8, 16),
        }
        y = [guarded.empty((units,), np.float32) for _ in range(rows)]
        row_pointers = guarded.array(np.array([row.ctypes.data for row in y], np.uintp))
        tables = [guarded.array(table) for table in self.gates]
        cell_table = guarded.array(self.cell)
        cell = Cell(
            rows=rows,
            units=units,
            gate_min=(ctypes.c_float * GATES)(0, 0, 0, 0),
            gate_max=(ctypes.c_float * GATES)(*(table.size - 0.5 for table in tables)),
            gate_table=(ctypes.c_void_p * GATES)(*(table.ctypes.data for table in tables)),
            cell_max=2.0**60,
            cell_table=cell_table.ctypes.data,
            cell_table_size=self.cell.size,
            h_scale=1 / 128,
            h_zero_point=128,
            y=row_pointers.ctypes.data,
            **{name: array.ctypes.data for name, array in arrays.items()},
        )
        linear = bool(NATIVE.rnnqc_test_has_linear_tables(ctypes.byref(cell)))
        NATIVE.rnnqc_test_table_cell(isa.encode(), ctypes.byref(cell))
        result = np.array(y)
        h = np.ascontiguousarray(arrays["h"][:, :units])
        return linear, result.tobytes() + arrays["c"][:, :units].tobytes() + h.tobytes(), result


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(
    "sizes",
    [
        {},
        {"unit": 16 / 32767},
        {"gate_n": 64, "cell_n": 64, "half": 64},
        {"gate_n": 128, "cell_n": 32768},
        {"gate_n": 32768, "cell_n": 1024, "half": 1024},
        {"gate_n": 1024, "cell_n": 8192, "half": 8193},
    ],
)
def test_linear_tables(isa: str, sizes: dict[str, float], guarded: Guarded) -> None:
    tables = LinearTables(**sizes)  # type: ignore[arg-type]
    linear, found, _ = tables.run(isa, guarded)
    assert linear
    assert found == tables.run("reference", guarded)[1]


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("entry", [0, 1, 63, 4095, 4096, 4160, 5000, 8191])
@pytest.mark.parametrize("gate", range(GATES))
def test_a_gate_table_that_differs_in_one_entry_is_looked_up(isa: str, gate: int, entry: int, guarded: Guarded) -> None:
    tables = LinearTables()
    tables.gates[0] += 1  # so that no entry of gate c is multiplied by zero
    linear, untouched, _ = tables.run(isa, guarded)
    assert linear
    tables.gates[gate][entry] = 1e6
    linear, found, _ = tables.run(isa, guarded)
    assert not linear
    assert found == tables.run("reference", guarded)[1]
    assert found != untouched


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("gate", range(GATES))
def test_the_last_bit_of_an_entry_counts(isa: str, gate: int, guarded: Guarded) -> None:
    tables = LinearTables()
    tables.gates[gate][5000] = np.nextafter(tables.gates[gate][5000], np.float32(np.inf))
    linear, found, _ = tables.run(isa, guarded)
    assert not linear
    assert found == tables.run("reference", guarded)[1]


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("entry", [0, 1, 255, 256, 5000, 16383, 16384, 32767, 32768, 40000, 65535])
def test_a_cell_table_that_differs_in_one_entry_is_looked_up(isa: str, entry: int, guarded: Guarded) -> None:
    tables = LinearTables()
    tables.cell[entry] = 1000
    linear, found, y = tables.run(isa, guarded)
    assert not linear
    assert found == tables.run("reference", guarded)[1]
    if entry in (32767, 32768):  # where every larger cell state saturates
        assert y.max() > 100


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("change", ["knots of a gate", "negative zero", "not a number", "size of a gate"])
def test_tables_without_a_linear_form_in_common(isa: str, change: str, guarded: Guarded) -> None:
    tables = LinearTables()
    if change == "knots of a gate":
        assert TANH_KNOTS[1] != 2048
        segment = np.minimum(np.abs(np.arange(-4096, 4096)) * 32, 16384) * np.sign(np.arange(-4096, 4096))
        tables.gates[1] = segment.astype(np.float32) * np.float32(KNOT_UNIT / 2) + np.float32(0.5)
    elif change == "negative zero":
        tables.cell[0] = -0.0
    elif change == "not a number":
        tables.gates[2][8191] = np.nan
    else:
        tables.gates[3] = tables.gates[3][:-1].copy()
    linear, found, _ = tables.run(isa, guarded)
    assert not linear
    if change != "not a number":
        assert found == tables.run("reference", guarded)[1]


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("knot", [-16383, -16384])
def test_a_rise_beyond_int16_takes_shorter_segments(
    isa: str, knot: int, guarded: Guarded, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rnnqc.tables.TANH_KNOTS", (0, knot, *[16384] * (len(TANH_KNOTS) - 2)))
    tables = LinearTables()
    linear, found, _ = tables.run(isa, guarded)
    assert linear
    assert found == tables.run("reference", guarded)[1]


def test_guard_pages_work() -> None:
    # In a child process, which has to die of the read beyond the end.
    pid = os.fork()
    if pid == 0:
        faulthandler.disable()
        array = Guarded().array(np.zeros(5, np.float32))
        NATIVE.rnnqc_test_max_abs(b"portable", pointer(array), ctypes.c_int64(6))
        os._exit(0)
    assert os.WIFSIGNALED(os.waitpid(pid, 0)[1])
