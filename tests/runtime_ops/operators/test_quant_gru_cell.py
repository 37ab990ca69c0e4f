"""The native GRU and RNN operators inside onnxruntime against numpy: the same bytes of every output."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given

from tests.native.bundles import bundled, spread
from tests.native.kernel_calls import AVAILABLE
from tests.native.quant_gru_cases import GRU, RNN, cases, expected, table_case
from tests.native.quant_lstm_cases import (
    Arrays,
    Case,
    Operator,
    assert_same_bits,
    native_session,
    pack_at_random,
    run_native,
)

OPERATORS = [(GRU, 0), (GRU, 1), (RNN, 0)]


def check(case: Case, threads: int = 1) -> None:
    assert_same_bits(run_native(case, threads), expected(case))


@given(cases())
def test_any_configuration(case: Case) -> None:
    check(case)


@given(cases(kinds="table"))
def test_table_configurations(case: Case) -> None:
    check(case)


@given(cases(wide=True))
def test_16_bit_codes(case: Case) -> None:
    check(case)


def test_operators_differ() -> None:
    """Each case of OPERATORS shows something of its own."""
    results = [run_native(table_case(operator, linear_before_reset=k))["Y"] for operator, k in OPERATORS]
    assert len({result.tobytes() for result in results}) == 3
    for result in results:
        assert 0.05 < result.std() < 1


HIDDEN = [1, 2, 15, 16, 17, 31, 33, 48, 63, 64, 65, 96, 127, 130]


@pytest.mark.few(2)
@pytest.mark.parametrize(("operator", "linear"), OPERATORS)
@bundled("inputs, hidden, batch", spread(3, [1, 4, 61], HIDDEN, [1, 2, 7]), few=12)
def test_sizes(operator: Operator, linear: int, inputs: int, hidden: int, batch: int) -> None:
    check(table_case(operator, 3, batch, inputs, hidden, hidden * 100 + inputs, linear))


@pytest.mark.parametrize("states", [0, 1])
@pytest.mark.parametrize("y", [0, 1])
@pytest.mark.parametrize(("operator", "linear"), OPERATORS)
def test_axes_for_the_direction(operator: Operator, linear: int, y: int, states: int) -> None:
    case = table_case(operator, linear_before_reset=linear)
    case.attributes.update(y_direction_axis=y, state_direction_axis=states)
    case.inputs["initial_h"] = np.random.default_rng(1).normal(0, 1, (1,) * states + (2, 21)).astype(np.float32)
    found = run_native(case)
    assert found["Y"].shape == ((5, 1, 2, 21) if y else (5, 2, 21))
    assert found["Y_h"].shape == ((1, 2, 21) if states else (2, 21))
    check(case)


@pytest.mark.few(1)
@pytest.mark.parametrize(("operator", "linear"), OPERATORS)
@bundled("inputs, hidden, group_size", spread(2, [1, 32, 65], [1, 15, 33, 127], [0, 32]), few=6)
@pytest.mark.parametrize("bits", [4, 5, 6])
def test_packed_sizes(operator: Operator, linear: int, inputs: int, hidden: int, group_size: int, bits: int) -> None:
    """Odd numbers of columns among them: the last high nibble does not count."""
    case = table_case(operator, 3, 2, inputs, hidden, linear_before_reset=linear)
    rng = np.random.default_rng(inputs * 1000 + hidden)
    for key in ("W", "R"):
        pack_at_random(case, key, group_size, rng, bits)
    check(case)
    columns = case.inputs["h_multiplier"].size
    if columns % 2 == 1:
        before = run_native(case)
        case.inputs["W"][:, columns // 2] ^= 0xF0
        case.inputs["R"][:, columns // 2] ^= 0xF0
        assert_same_bits(run_native(case), before)


@pytest.mark.few(9)
@pytest.mark.parametrize("count", [1, 63, 64, 65, 150, 151, 300])
@pytest.mark.parametrize(("operator", "linear"), OPERATORS)
def test_columns_of_eight_bits_among_columns_of_four(operator: Operator, linear: int, count: int) -> None:
    case = table_case(operator, 8, 3, 11, 100, count, linear)
    rng = np.random.default_rng(count)
    columns = case.inputs["R"].shape[1]
    case.inputs["R"] = rng.integers(-8, 8, case.inputs["R"].shape, dtype=np.int8)
    wide = rng.choice(columns, min(count, columns), replace=False)
    case.inputs["R"][:, wide] = rng.integers(-128, 128, (100, wide.size), dtype=np.int8)
    for threads in (1, 2):
        check(case, threads)


@pytest.mark.parametrize(("operator", "linear"), OPERATORS)
def test_saturated_integers(operator: Operator, linear: int) -> None:
    case = table_case(operator, 3, 3, 700, 65, linear_before_reset=linear)
    for value in (-128, 127):
        case.inputs["W"][:] = value
        case.inputs["R"][:] = value
        for zero_point in (0, 255):
            case.inputs["X"] = np.full((3, 3, 700), 255 - zero_point, np.uint8)
            case.attributes |= {"x_mode": "codes", "x_zero_point": zero_point, "h_zero_point": zero_point}
            if operator is GRU and not linear:
                case.attributes["reset_zero_point"] = zero_point
            case.inputs["x_multiplier"][:] = 2.0**-16
            check(case)


@pytest.mark.parametrize(("operator", "linear"), OPERATORS)
def test_chunks_with_carried_states_equal_the_whole(operator: Operator, linear: int) -> None:
    case = table_case(operator, time=12, seed=3, linear_before_reset=linear)
    whole = run_native(case)
    carried = table_case(operator, time=12, seed=3, linear_before_reset=linear)
    h = carried.inputs["initial_h"] = np.zeros((2, 21), np.float32)
    session = native_session(carried.model())
    parts = []
    for start, stop in ((0, 1), (1, 6), (6, 12)):
        y, h, _ = session.run(None, {"X": case.inputs["X"][start:stop], "initial_h": h})
        parts.append(y)
    assert_same_bits({"Y": np.concatenate(parts), "Y_h": h}, whole)


@pytest.mark.few(2)
@pytest.mark.parametrize("direction", ["forward", "reverse"])
@pytest.mark.parametrize(("operator", "linear"), OPERATORS)
def test_long_sequence_is_projected_in_several_chunks(operator: Operator, linear: int, direction: str) -> None:
    case = table_case(operator, 300, 5, 130, 128, 5, linear)
    case.inputs["sequence_lens"] = np.array([300, 7, 299, 0, 150], np.int32)
    case.attributes["direction"] = direction
    for threads in (1, 2):
        check(case, threads)


@pytest.mark.few(12)
@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan, 3e38])
@pytest.mark.parametrize("mode", ["static", "dynamic_row"])
@pytest.mark.parametrize(("operator", "linear"), OPERATORS)
def test_unusual_initial_states(operator: Operator, linear: int, mode: str, value: float) -> None:
    case = table_case(operator, hidden=18, linear_before_reset=linear)
    case.attributes["h_mode"] = mode
    case.outputs = ("Y", "Y_h")
    case.inputs["initial_h"] = np.zeros((2, 18), np.float32)
    case.inputs["initial_h"][1, ::3] = value
    check(case)


def _dynamic(case: Case) -> None:
    case.attributes["h_mode"] = "dynamic_row"
    case.outputs = case.outputs[:2]


def _wide(case: Case) -> None:
    case.attributes |= {"x_bits": 16, "h_bits": 16, "h_scale": 1 / 32767, "h_zero_point": 32768}
    if "reset_scale" in case.attributes:
        case.attributes |= {"reset_scale": 1 / 32767, "reset_zero_point": 32000}
    case.inputs["h_multiplier"] = case.inputs["h_multiplier"] / np.float32(256)
    case.outputs = case.outputs[:2]


def _lengths(case: Case) -> None:
    time, batch = case.inputs["X"].shape[:2]
    case.inputs["sequence_lens"] = np.random.default_rng(0).integers(0, time + 1, batch, dtype=np.int32)


def _relu(case: Case) -> None:
    gates = len(case.attributes["gate_min"])
    case.attributes["gate_kinds"] = ",".join(["table"] * (gates - 1) + ["Relu"])


def _packed(case: Case) -> None:
    for key in ("W", "R"):
        pack_at_random(case, key, 32, np.random.default_rng(0))


VARIANTS: dict[str, Callable[[Case], None]] = {
    "plain": lambda _: None,
    "lengths": _lengths,
    "dynamic hidden": _dynamic,
    "16 bits": _wide,
    "Relu": _relu,
    "int4": _packed,
}
# Below and above what is worth two parts; rows for every thread; a single step.
SHAPES = [(1, 1, 300, 130), (1, 9, 30, 300), (30, 1, 9, 130), (25, 1, 300, 200), (20, 8, 40, 100), (5, 3, 20, 450)]


@pytest.mark.few(1)
@pytest.mark.parametrize(("operator", "linear"), OPERATORS)
@bundled("shape, variant", spread(6, SHAPES, VARIANTS))
def test_threads_give_the_same_bits(operator: Operator, linear: int, variant: str, shape: tuple[int, ...]) -> None:
    case = table_case(operator, *shape, seed=1, linear_before_reset=linear)
    VARIANTS[variant](case)
    wanted = expected(case)
    for threads in (1, 2, 4):
        session = native_session(case.model(), threads)
        for _ in range(2):
            found = session.run(list(case.outputs), case.feeds())
            assert_same_bits(dict(zip(case.outputs, found, strict=True)), wanted)


@pytest.mark.parametrize(("operator", "linear"), OPERATORS)
def test_groups_of_unequal_size_have_their_memory(operator: Operator, linear: int) -> None:
    """A group with fewer rows takes more steps at a time, and here more memory; too little of it shows as a crash."""
    for batch in (9, 13):
        case = table_case(operator, 60, batch, 16, 256, linear_before_reset=linear)
        wanted = run_native(case)
        session = native_session(case.model(), threads=2)
        for _ in range(8):
            found = session.run(list(case.outputs), case.feeds())
            assert_same_bits(dict(zip(case.outputs, found, strict=True)), wanted)


@pytest.mark.parametrize(("operator", "linear"), OPERATORS)
def test_concurrent_runs_of_one_session(operator: Operator, linear: int) -> None:
    fixed = table_case(operator, 2, 2, 30, 140, linear_before_reset=linear)
    jobs: list[tuple[Arrays, Arrays]] = []
    for time, batch in ((20, 1), (3, 9), (1, 1), (12, 4), (7, 16)):
        x = np.random.default_rng(time).normal(0, 1, (time, batch, 30)).astype(np.float32)
        jobs.append(({"X": x}, expected(Case({**fixed.inputs, "X": x}, fixed.attributes, operator=operator))))
    session = native_session(fixed.model(), 2)

    def run(k: int) -> None:
        feeds, wanted = jobs[k % len(jobs)]
        assert_same_bits(dict(zip(fixed.outputs, session.run(list(fixed.outputs), feeds), strict=True)), wanted)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(run, range(60)))


@pytest.mark.few(2)
@pytest.mark.parametrize("isa", AVAILABLE)
def test_every_instruction_set_gives_the_same_bits(isa: str) -> None:
    shapes = itertools.cycle([(1, 33), (3, 127), (8, 80), (2, 260)])
    for (operator, linear), change in spread(2, OPERATORS, VARIANTS.values()):
        batch, hidden = next(shapes)
        case = table_case(operator, 5, batch, 20, hidden, hidden, linear)
        change(case)
        assert_same_bits(run_native(case, 2, isa), expected(case))
