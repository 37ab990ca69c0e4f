"""GRU and RNN in the arithmetic "grid": kernel, function body in stock onnxruntime and reference give the same bytes.

What these would catch: what test_grid.py would, a quantizer at another place than the reference's, a reset gate that
multiplies the wrong side of the product, a state that is carried with more or fewer bits than it is handed out, rows,
gates or planes of bytes that are mixed up where their number is not that of LSTM.
"""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from grid_cases import ROUNDINGS, GridCase, grid_cases, plain_grid_case
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_calls import AVAILABLE
from quant_gru_cases import expected as expected_of
from quant_lstm_cases import Arrays, assert_same_bits, native_session, run_native
from running import LEVELS, options

from rnnqc.cells.types import GRU, RNN, CellType
from rnnqc.passes.grid_numbers import RESET, quantizers_of

EXAMPLES = settings().max_examples
TYPES = [(GRU, False), (GRU, True), (RNN, False)]
types = pytest.mark.parametrize(("type_", "linear"), TYPES, ids=["GRU", "GRU linear_before_reset", "RNN"])


def expected(case: GridCase) -> Arrays:
    return expected_of(case.node)


def run_stock(case: GridCase, opset: int = 17, level: str = "ORT_ENABLE_ALL", threads: int = 1) -> Arrays:
    model = case.stock_model(opset).SerializeToString()
    session = ort.InferenceSession(model, options(level, threads), providers=["CPUExecutionProvider"])
    return dict(zip(case.outputs, session.run(list(case.outputs), case.node.feeds()), strict=True))


def check(case: GridCase, threads: int = 1) -> Arrays:
    """Kernel and body against the reference, whose results are returned."""
    wanted = expected(case)
    assert_same_bits(run_native(case.node, threads), wanted)
    assert_same_bits(run_stock(case), wanted)
    return wanted


def plain(type_: CellType, linear: bool, *sizes: int, **more: Any) -> GridCase:
    return plain_grid_case(*sizes, type_=type_, linear_before_reset=linear, **more)


def changed(case: GridCase, column: str, quantizer: str, value: Any) -> GridCase:
    """Another entry of an attribute of quantizers."""
    values = list(getattr(case.numbers, column))
    values[quantizers_of(case.cell.type).index(quantizer)] = value
    return replace(case, numbers=replace(case.numbers, **{column: values}))


@settings(max_examples=6 * EXAMPLES)
@given(grid_cases((GRU, RNN)))
def test_native_is_the_reference(case: GridCase) -> None:
    assert_same_bits(run_native(case.node), expected(case))


@settings(max_examples=3 * EXAMPLES)
@given(grid_cases((GRU, RNN)), st.sampled_from([13, 17, 18, 21, 23]))
def test_stock_is_the_reference(case: GridCase, opset: int) -> None:
    assert_same_bits(run_stock(case, opset), expected(case))


@settings(max_examples=EXAMPLES // 2)
@given(grid_cases((GRU, RNN)))
def test_optimization_levels_and_threads(case: GridCase) -> None:
    wanted = expected(case)
    for level in LEVELS:
        for threads in (1, 2):
            assert_same_bits(run_stock(case, 17, level, threads), wanted)


def test_drawn_cases_are_not_trivial() -> None:
    """Otherwise all of the above could pass on zeros."""
    varied = []

    @settings(max_examples=60, database=None)
    @given(grid_cases((GRU, RNN)))
    def count(case: GridCase) -> None:
        varied.append(len(np.unique(expected(case)["Y"])) > 4)

    count()
    assert sum(varied) > 30


@types
@pytest.mark.parametrize("bits", [4, 8, 16])
@pytest.mark.parametrize(
    ("batch", "inputs", "hidden"), [(1, 1, 1), (2, 4, 15), (3, 15, 16), (5, 61, 17), (16, 9, 31), (17, 64, 33)]
)
def test_sizes(type_: CellType, linear: bool, batch: int, inputs: int, hidden: int, bits: int) -> None:
    case = plain(type_, linear, 7, batch, inputs, hidden, bits, seed=hidden)
    case.inputs["sequence_lens"] = np.random.default_rng(batch).integers(0, 8, batch).astype(np.int32)
    case.inputs["sequence_lens"][0] = 7
    wanted = check(case)
    assert len(np.unique(wanted["Y"])) > 5 or hidden == 1


@types
@pytest.mark.parametrize("hidden", [47, 48, 63, 64, 65, 97, 128, 130])
def test_blocks_of_columns(type_: CellType, linear: bool, hidden: int) -> None:
    """Numbers of gates whose columns fill no whole blocks of 64."""
    for batch in (1, 3):
        case = plain(type_, linear, 3, batch, 20, hidden, seed=hidden)
        assert_same_bits(run_native(case.node), expected(case))


@types
@pytest.mark.parametrize("rounding", ROUNDINGS)
def test_roundings(type_: CellType, linear: bool, rounding: str) -> None:
    """Inputs at multiples of a quarter of a step, and one rounding everywhere."""
    case = plain(type_, linear, 3, 2, 40, 16)
    count = len(quantizers_of(type_))
    case.numbers = replace(case.numbers, grid_rounding=[rounding] * count)
    step = case.numbers.grid_scale[0]
    case.inputs["X"] = (np.arange(-120, 120).reshape(3, 2, 40) * step / 4).astype(np.float32)
    wanted = check(case)
    for other in set(ROUNDINGS) - {rounding}:
        found = expected(changed(case, "grid_rounding", "input", other))
        assert not np.array_equal(found["Y"], wanted["Y"]), other


@types
def test_every_quantizer_counts(type_: CellType, linear: bool) -> None:
    """With another scale of any of them, kernel and reference give other results, both the same."""
    case = plain(type_, linear, 6, 4, 20, 40)
    before = expected(case)
    for name in quantizers_of(type_):
        scale = case.numbers.grid(name).scale
        other = changed(case, "grid_scale", name, scale * 1.25)
        wanted = check(other)
        assert not np.array_equal(wanted["Y"], before["Y"]), name
        if not name.endswith("acc") and name not in ("input", "hidden") and (linear or name != RESET):
            check(changed(case, "grid_scale", name, 0.0))


@types
@pytest.mark.parametrize("entry", [0, -1])
def test_tables_at_the_ends_of_their_ranges(type_: CellType, linear: bool, entry: int) -> None:
    """Pre-activations far outside: the first and the last entry, of tables that end there."""
    case = plain(type_, linear, 2, 2, 5, 18)
    for gate in type_.gates:
        case = changed(case, "grid_scale", f"{gate}.input_product", 0.0)
    case.inputs["B"] = np.full_like(case.inputs["B"], 1e6 if entry else -1e6)
    case.inputs["gate_table"] = case.inputs["gate_table"].copy()
    offsets = case.numbers.gate_table_offset
    entries = case.numbers.grid("hidden_gate.acc").size
    for offset in offsets:
        case.inputs["gate_table"][offset : offset + entries][entry] = 0.375 if offset else 0.25
    check(case)
    wanted = expected(case)["Y"]
    assert len(np.unique(wanted[0])) == 1
    assert (wanted != 0).all()


@types
@pytest.mark.parametrize("weight_bits", [8, 16])
@pytest.mark.parametrize("code_bits", [8, 16])
@pytest.mark.parametrize("sign", [-1, 1])
def test_largest_sums(type_: CellType, linear: bool, code_bits: int, weight_bits: int, sign: int) -> None:
    """Codes at one end of their range, zero points at the other, and weights alike."""
    depth, hidden = 3000, 16
    case = plain(type_, linear, 1, 2, depth, hidden, code_bits)
    columns = len(type_.gates) * hidden
    top = 2**code_bits - 1
    case.numbers.grid_zero_point[0] = top if sign < 0 else 0
    case.inputs["X"] = np.full((1, 2, depth), 1e30 * sign, np.float32)
    limits = np.iinfo(np.int8 if weight_bits == 8 else np.int16)
    case.inputs["W"] = np.full((depth, columns), limits.max, limits.dtype)
    case.inputs["W"][:, ::3] = limits.min
    case.inputs["W_zero_point"] = np.full(columns, limits.min, np.int32)
    case.inputs["W_zero_point"][::2] = limits.max
    largest = depth * top * (2**weight_bits - 1)
    case.inputs["x_multiplier"] = np.full(columns, 4.0 / largest, np.float32)
    assert len(np.unique(check(case)["Y"])) > 2


@pytest.mark.parametrize("weight_bits", [8, 16])
@pytest.mark.parametrize(("hidden_bits", "reset_bits"), [(8, 16), (16, 8), (16, 16)])
def test_widths_of_both_products_of_a_gru(hidden_bits: int, reset_bits: int, weight_bits: int) -> None:
    """Codes of h and of r * h have widths and zero points of their own, and gate h's columns of R theirs."""
    case = plain(GRU, False, 5, 3, 12, 37, hidden_bits)
    top = 2**reset_bits
    for column, value in (("grid_max", top - 1), ("grid_zero_point", top // 3), ("grid_scale", 2.5 / top)):
        case = changed(case, column, RESET, value)
    limits = np.iinfo(np.int8 if weight_bits == 8 else np.int16)
    rng = np.random.default_rng(0)
    case.inputs["R"] = rng.integers(limits.min, limits.max + 1, (37, 3 * 37)).astype(limits.dtype)
    case.inputs["R_zero_point"] = rng.integers(limits.min, limits.max + 1, 3 * 37).astype(np.int32)
    sizes = np.repeat([2**hidden_bits, 2**hidden_bits, top], 37)
    case.inputs["h_multiplier"] = (4.0 / sizes / 2**weight_bits / 6).astype(np.float32)
    case.inputs["initial_h"] = rng.uniform(-1, 1, (3, 37)).astype(np.float32)
    assert len(np.unique(check(case)["Y"])) > 20


@types
@pytest.mark.parametrize("bits", [2, 7, 16, 31])
def test_accumulators_saturate(type_: CellType, linear: bool, bits: int) -> None:
    case = plain(type_, linear, 3, 2, 300, 16)
    exact = expected(case)
    case.numbers = replace(case.numbers, accumulator_bits=bits)
    wanted = check(case)
    assert np.array_equal(exact["Y"], wanted["Y"]) == (bits == 31)


@types
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("rounding", ["half_even", "floor"])
@pytest.mark.parametrize("bits", [8, 16])
def test_chunks_with_carried_states(type_: CellType, linear: bool, bits: int, rounding: str, reverse: bool) -> None:
    """With every rounding and scale: the state that is handed out is the one that is carried."""
    case = plain(type_, linear, 9, 3, 20, 33, bits)
    case.cell.reverse = reverse
    scales = [float(np.float32(s * 0.7)) for s in case.numbers.grid_scale]
    case.numbers = replace(case.numbers, grid_rounding=[rounding] * len(scales), grid_scale=scales)
    case.inputs["initial_h"] = np.random.default_rng(1).normal(0, 1, (3, 33)).astype(np.float32)
    whole = check(case)
    state, pieces = case.inputs["initial_h"], {}
    for start, end in ((5, 9), (1, 5), (0, 1)) if reverse else ((0, 1), (1, 5), (5, 9)):
        part = replace(case, inputs=case.inputs | {"X": case.inputs["X"][start:end], "initial_h": state})
        got = run_native(part.node)
        state, pieces[start] = got["Y_h"], got["Y"]
    assert_same_bits({"Y": np.concatenate([pieces[k] for k in sorted(pieces)]), "Y_h": state}, whole)


@types
@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan, 3e38, -3e38, -0.0, 1e-42])
def test_unusual_initial_states(type_: CellType, linear: bool, value: float) -> None:
    case = plain(type_, linear, 3, 2, 5, 18)
    if type_ is GRU:
        for name in ("hidden_state.kept", "hidden_state.added", "hidden_state"):
            case = changed(case, "grid_scale", name, 0.0)
    case.inputs["initial_h"] = np.zeros((2, 18), np.float32)
    case.inputs["initial_h"][1, ::3] = value
    assert np.isfinite(check(case)["Y"]).all()


@types
def test_signs_of_zeros(type_: CellType, linear: bool) -> None:
    """Tables of zeros of both signs: a sum of negative zeros, and a state that keeps one."""
    case = plain(type_, linear, 3, 2, 5, 18)
    case.inputs["gate_table"] = np.where(np.arange(case.inputs["gate_table"].size) % 2, 0.0, -0.0).astype(np.float32)
    case.inputs["initial_h"] = np.full((2, 18), -1.0, np.float32)
    for lengths in (None, np.int32([3, 2])):
        if lengths is not None:
            case.inputs["sequence_lens"] = lengths
        for name in quantizers_of(type_)[2 + 3 * len(type_.gates) :]:
            if linear or name != RESET:
                check(changed(case, "grid_scale", name, 0.0))
            case = changed(case, "grid_rounding", name, "half_away")
        wanted = check(case)
        assert not np.signbit(wanted["Y"]).any() or (type_ is RNN and lengths is None)


@types
def test_codes_of_one_cell_are_the_input_of_the_next(type_: CellType, linear: bool) -> None:
    """From the float Y, quantized again, the same codes follow."""
    first = plain(type_, linear, 6, 2, 10, 24)
    found = run_native(first.node)
    second = plain(type_, linear, 6, 2, 24, 18, seed=1)
    for column in ("grid_scale", "grid_zero_point", "grid_min", "grid_max", "grid_rounding"):
        second = changed(second, column, "input", getattr(first.numbers, column)[1])
    from_float = run_native(replace(second, inputs=second.inputs | {"X": found["Y"]}).node)
    numbers = replace(second.numbers, x_mode="codes")
    from_codes = run_native(replace(second, numbers=numbers, inputs=second.inputs | {"X": found["Y_codes"]}).node)
    assert_same_bits(from_codes, from_float)


@types
def test_batch_equals_row_by_row(type_: CellType, linear: bool) -> None:
    case = plain(type_, linear, 4, 17, 30, 20)
    whole = run_native(case.node)
    for row in range(17):
        alone = run_native(replace(case, inputs=case.inputs | {"X": case.inputs["X"][:, [row]]}).node)
        assert_same_bits(
            {"Y": alone["Y"], "Y_codes": alone["Y_codes"]}, {k: whole[k][:, [row]] for k in ("Y", "Y_codes")}
        )


@types
def test_long_sequence(type_: CellType, linear: bool) -> None:
    """Several chunks of the input's projection."""
    case = plain(type_, linear, 800, 3, 10, 65)
    case.inputs["sequence_lens"] = np.int32([800, 3, 799])
    for reverse in (False, True):
        case.cell.reverse = reverse
        assert_same_bits(run_native(case.node, threads=2), expected(case))


@types
@pytest.mark.parametrize("batch", [8, 9, 11, 40])
def test_groups_of_rows_on_threads(type_: CellType, linear: bool, batch: int) -> None:
    """Large enough that rows run in groups, of unequal sizes too."""
    case = plain(type_, linear, 30, batch, 64, 64, 16)
    case.inputs["sequence_lens"] = np.random.default_rng(0).integers(0, 31, batch).astype(np.int32)
    case.inputs["initial_h"] = np.random.default_rng(1).normal(0, 1, (batch, 64)).astype(np.float32)
    wanted = expected(case)
    for threads in (1, 2, 3):
        session = native_session(case.node.model(), threads)
        for _ in range(3):
            found = dict(zip(case.outputs, session.run(list(case.outputs), case.node.feeds()), strict=True))
            assert_same_bits(found, wanted)


@types
@pytest.mark.parametrize("batch", [9, 11])
def test_groups_of_unequal_size_have_their_memory(type_: CellType, linear: bool, batch: int) -> None:
    """A group of fewer rows takes more steps at a time, and here more memory; what it lacked shows as a crash only."""
    case = plain(type_, linear, 60, batch, 16, 256)
    expected_bits = run_native(case.node)
    session = native_session(case.node.model(), threads=2)
    for _ in range(10):
        found = dict(zip(case.outputs, session.run(list(case.outputs), case.node.feeds()), strict=True))
        assert_same_bits(found, expected_bits)


_OTHER_ISA = """
import sys
sys.path[:0] = ["tests", "tests/runtime_ops"]
import numpy as np
from test_grid_hidden import TYPES, expected, plain
from quant_lstm_cases import assert_same_bits, run_native
for type_, linear in TYPES:
    for bits in (8, 16):
        for batch, hidden in ((1, 33), (3, 127), (8, 80), (2, 260)):
            case = plain(type_, linear, 4, batch, 20, hidden, bits)
            case.inputs["R_zero_point"] = np.arange(case.inputs["R"].shape[1], dtype=np.int32) % 7
            assert_same_bits(run_native(case.node, 2), expected(case))
print("same")
"""


@pytest.mark.parametrize("isa", AVAILABLE)
def test_every_instruction_set_gives_the_same_bits(isa: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _OTHER_ISA],
        env={**os.environ, "RNNQC_ISA": isa},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "same\n", done.stderr
