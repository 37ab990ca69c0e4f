"""The native operator inside onnxruntime against the numpy implementation: the same bytes of every output."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import onnxruntime as ort
import pytest
from hypothesis import given
from onnx import TensorProto, helper

from rnnqc.cells.tables import KNOT_UNIT, by_code, piecewise_linear_tanh
from rnnqc.cells.types import CELL_TYPES
from rnnqc.formats.codebooks import GROUP_BYTES
from rnnqc.formats.packing import pack, plane_columns
from rnnqc.reference import operators as reference
from rnnqc.reference.codes import quantize_rows
from tests.native.bundles import bundled
from tests.native.quant_lstm_cases import (
    OUTPUTS,
    PARAMETERS,
    Case,
    assert_same_bits,
    cases,
    check,
    expected,
    native_session,
    packed_cases,
    run_native,
    table_case,
    wide_cases,
)

LARGEST = np.finfo(np.float32).max


@given(cases())
def test_any_configuration(case: Case) -> None:
    check(case)


@given(cases(kinds="table"))
def test_table_configurations(case: Case) -> None:
    check(case)


@given(packed_cases())
def test_packed_weights(case: Case) -> None:
    check(case)


@pytest.mark.few(3)
@pytest.mark.parametrize(("bits", "high", "low"), [(4, 18, 16), (5, 8, 8), (6, 4, 4)])
@pytest.mark.parametrize("batch", [1, 3])
def test_saturated_packed_weights(bits: int, high: int, low: int, batch: int) -> None:
    """Every product is that of the largest or of the least int8 weight that groups make, and 255."""
    case = table_case(time=3, batch=batch, inputs=700, hidden=65)
    case.attributes |= {"w_bits": bits, "r_bits": bits}
    for byte, multiplier in ((255, high), (0, low)):
        for key in ("W", "R"):
            rows = {"W": 700, "R": 65}[key]
            case.inputs[key] = np.full((rows, sum(plane_columns(260, bits))), byte, np.uint8)
            case.inputs[f"{key}_group_multiplier"] = np.full((-(-rows // 32), 260), multiplier, np.uint8)
            case.attributes[f"{key.lower()}_group_size"] = 32
        for zero_point in (0, 255):
            case.inputs["X"] = np.full((3, batch, 700), 255 - zero_point, np.uint8)
            case.attributes |= {"x_mode": "codes", "x_zero_point": zero_point, "h_zero_point": zero_point}
            case.inputs["x_multiplier"] = np.full(260, 2.0**-16, np.float32)
            check(case)


@pytest.mark.parametrize("batch", [1, 6])
def test_large_weights_of_sets(batch: int) -> None:
    """Of 2^23 weights or more, which kernels read as indices of sets; columns of eight bits stand apart."""
    rng = np.random.default_rng(batch)
    case = table_case(time=2, batch=batch, inputs=1447, hidden=1450)
    for key in ("W", "R"):
        rows, columns = case.inputs[key].shape
        assert rows * columns >= 2**23
        groups = rng.choice(GROUP_BYTES, (-(-rows // 64), columns))
        wide = rng.permutation(columns)[:3]
        groups[:, wide] = 0
        packed = pack(rng.integers(-8, 8, (rows, columns), dtype=np.int8))
        case.inputs[key] = np.concatenate([packed, rng.integers(0, 256, (rows, 2), dtype=np.uint8)], axis=1)
        case.inputs[f"{key}_group_multiplier"] = groups
        lower = key.lower()
        case.attributes |= {f"{lower}_group_size": 64, f"{lower}_codebook": 1, f"{lower}_wide_columns": 3}
        case.inputs[f"{lower.replace('w', 'x').replace('r', 'h')}_multiplier"] /= np.float32(40)
    check(case)


@given(wide_cases())
def test_16_bit_codes(case: Case) -> None:
    check(case)


def _wide_case(**shape: int) -> Case:
    case = table_case(**shape)
    case.attributes |= {"x_bits": 16, "h_bits": 16, "h_scale": 1 / 32767, "h_zero_point": 32768}
    case.inputs["h_multiplier"] = case.inputs["h_multiplier"] / np.float32(256)
    case.outputs = OUTPUTS[:3]
    return case


@pytest.mark.parametrize("zero_point", [0, 255, 256, 32768, 65535])
def test_saturated_16_bit_integers(zero_point: int) -> None:
    """Codes at both ends, weights at both ends: both planes reach their largest sums, and cancel or add up."""
    for value in (-128, 127):
        for x in (-1e9, 1e9):
            case = _wide_case(time=3, batch=3, inputs=700, hidden=65)
            case.inputs["W"][:] = value
            case.inputs["R"][:] = value
            case.inputs["X"] = np.full((3, 3, 700), x, np.float32)
            case.attributes |= {
                "x_mode": "static",
                "x_scale": 1.0,
                "x_zero_point": zero_point,
                "h_zero_point": zero_point,
            }
            case.inputs["x_multiplier"] = np.full(260, 2.0**-24, np.float32)
            check(case)


def test_planes_are_added_with_one_rounding(monkeypatch: pytest.MonkeyPatch) -> None:
    """Codes a little below their zero point: planes of opposite signs whose low sums are beyond 2**24, and rounded."""
    case = _wide_case(time=4, batch=2, inputs=3000, hidden=33, seed=8)
    case.attributes |= {"gate_kinds": "Affine,Affine,Affine,Affine", "gate_alpha": [2.0**-20] * 4, "cell_scale": 0.0}
    case.attributes |= {"gate_min": [-(2.0**40)] * 4, "gate_max": [2.0**40] * 4, "output_kind": "Softsign"}
    case.attributes |= {"x_mode": "static", "x_scale": 1.0, "x_zero_point": 768}
    case.inputs["X"] = -np.ceil(np.abs(case.inputs["X"]) * 4).astype(np.float32)
    case.inputs["W"][:] = np.abs(case.inputs["W"].astype(np.int16)).clip(0, 127)
    case.inputs["x_multiplier"][:] = 1
    case.inputs["B"][:] = 0
    wanted = check(case)

    def exact(parts: Sequence[np.ndarray]) -> np.ndarray:
        return np.asarray(sum(p.astype(np.int64) << 8 * k for k, p in enumerate(reversed(parts))), np.float32)

    monkeypatch.setattr("rnnqc.reference.lut_cell.combined", exact)
    assert (expected(case)["Y"] != wanted["Y"]).mean() > 0.1, "the case shows nothing"


def _row(*values: float) -> list[float]:
    return [float(np.float32(value)) for value in (list(values) * 9)[:9]]


# Where half of the range is negative the quotient is just below 127.5: the scale 1 / 255 is rounded up.
ROWS = {
    "zeros": (_row(0.0, -0.0), 0),
    "positive": (_row(1.0, 2.0, 3.0), 0),
    "negative": (_row(-1.0, -2.0, -3.0), 255),
    "mixed": (_row(-1.0, 3.0, 0.5), 64),
    "tie": (_row(-1.0, 509.0), 0),
    "nan": (_row(np.nan), 0),
    "nan among negative": (_row(np.nan, -5.0), 255),
    "inf": (_row(np.inf, 1.0), 0),
    "-inf": (_row(-np.inf, 1.0), 255),
    "both infinities": (_row(-np.inf, np.inf, 2.0**60, 2.0**53), 127),
    "denormal": (_row(1e-45, -1e-45), 0),
    "at the smallest range": (_row(-(2.0**-101), 2.0**-101), 127),
    "half the smallest range": (_row(-(2.0**-101)), 127),
    "beyond the largest": (_row(-3e38, 3e38, 2.0**61), 127),
    "beyond the largest on one side": (_row(-(2.0**58), 2.0**70), 51),
    "uneven": (_row(-0.3, 0.9, 0.1), 64),
}


@pytest.mark.parametrize("name", ROWS)
def test_dynamic_rows(name: str) -> None:
    values, zero_point = ROWS[name]
    x = np.float32([[values, values[::-1]]])
    _, scales, zero_points = quantize_rows(np.where(np.isnan(x), np.float32(0), x))
    assert (zero_points == zero_point).all()
    # Rows of single elements have grids that differ.
    for size in (9, 1):
        case = table_case(time=1, inputs=9)
        case.inputs["X"], case.inputs["W"] = x[..., :size], case.inputs["W"][:size]
        # Otherwise tiny rows would not be seen in the result, and huge ones only saturate.
        case.inputs["x_multiplier"] /= 50 * scales[0, 0]
        check(case)


def _linear_case(time: int) -> Case:
    """With the tables and the limit of the default recipe, which kernels have a shorter form of."""
    case = table_case(time=time, batch=3, inputs=9, hidden=64)
    tanh = piecewise_linear_tanh(np.arange(-4096, 4096), 4096).astype(np.float32) * np.float32(KNOT_UNIT)
    case.inputs["gate_table"] = np.concatenate([tanh / 2 + np.float32(0.5), tanh * 2048 + np.float32(0)])
    cell = piecewise_linear_tanh(np.arange(-32768, 32768), 16384).astype(np.float32) * np.float32(KNOT_UNIT)
    case.inputs["cell_table"] = by_code(cell)
    case.attributes["cell_max"] = 2.0**60
    return case


@pytest.mark.few(2)
@pytest.mark.parametrize("far", ["one input row", "a later chunk", "B", "x_multiplier", "h_multiplier"])
@bundled("size", [2.0**8, 2.0**18, 2.0**24, 2.0**40, 3e38])
def test_far_pre_activations(far: str, size: float) -> None:
    # Beyond int32 the cell needs limits that it leaves out elsewhere; every part of a sum is looked at for that.
    case = _linear_case(time=250)
    rng = np.random.default_rng(0)
    rows = {"one input row": np.s_[0, 1], "a later chunk": np.s_[-1]}
    if far in rows:
        x = case.inputs["X"][rows[far]]
        case.inputs["X"][rows[far]] = rng.uniform(-size, size, x.shape).astype(np.float32)
    else:
        with np.errstate(over="ignore"):
            case.inputs[far][rng.random(256) < 0.1] *= np.float32(size)
        np.clip(case.inputs[far], -LARGEST, LARGEST, out=case.inputs[far])
    check(case)


def _with_other_tables(change: str) -> Case:
    case = _linear_case(time=9)
    case.constants = (*case.constants, "gate_table", "cell_table")
    tanh = case.inputs["gate_table"][8192:]
    if change in ("gate_table", "cell_table"):
        case.inputs[change][3000:5000] *= np.float32(0.5)
        case.inputs[change][:1000] *= np.float32(0.5)
    elif change == "gates in another order":
        case.attributes["gate_table_offset"] = [8192, 0, 0, 0]
        case.inputs["gate_table"][8192:] = tanh / 2048
    elif change == "one table":
        case.attributes["gate_table_offset"] = [8192] * 4
        case.inputs["gate_table"][8192:] = tanh / 2048
    elif change == "gate_max":
        case.attributes["gate_max"] = [8191.5, 8191.5, 8191.5, 4095.5]
    elif change == "more entries":
        case.inputs["gate_table"] = np.concatenate([case.inputs["gate_table"], np.zeros(64, np.float32)])
    elif change == "a smaller cell table":
        case.inputs["cell_table"] = by_code(
            piecewise_linear_tanh(np.arange(-16384, 16384), 16384).astype(np.float32) * np.float32(KNOT_UNIT)
        )
    else:
        assert change == "none"
    return case


@pytest.mark.parametrize("first", ["none", "gate_table"])
def test_nodes_with_equal_tables_share_them_and_others_do_not(first: str) -> None:
    """While a session lives, others find its tables; every kind of difference counts."""
    changes = [
        "none", "gate_table", "cell_table", "gates in another order", "one table", "gate_max", "more entries",
        "a smaller cell table", "none",
    ]  # fmt: skip
    live = [native_session(_with_other_tables(first).model())]
    for change in changes:
        case = _with_other_tables(change)
        live.append(native_session(case.model()))
        expected = reference.run(CELL_TYPES["LSTM"], case.inputs, case.attributes)
        found = dict(zip(case.outputs, live[-1].run(list(case.outputs), case.feeds()), strict=True))
        assert_same_bits(found, expected)
    with ThreadPoolExecutor(4) as pool:
        for made in pool.map(lambda _: native_session(_with_other_tables("none").model()), range(8)):
            found = made.run(list(case.outputs), case.feeds())
            assert_same_bits(dict(zip(case.outputs, found, strict=True)), expected)


def test_dynamic_rows_are_those_of_dynamic_quantize_linear() -> None:
    node = helper.make_node("DynamicQuantizeLinear", ["x"], ["codes", "scale", "zero_point"])
    graph = helper.make_graph(
        [node],
        "graph",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n"])],
        [
            helper.make_tensor_value_info(name, kind, None)
            for name, kind in (
                ("codes", TensorProto.UINT8),
                ("scale", TensorProto.FLOAT),
                ("zero_point", TensorProto.UINT8),
            )
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    rng = np.random.default_rng(0)
    for _ in range(300):
        centre, width = rng.normal(0, 1, 2) * 10.0 ** rng.integers(-6, 7, 2)
        x = rng.normal(centre, abs(width), rng.integers(1, 80)).astype(np.float32)
        for found, wanted in zip(quantize_rows(x), session.run(None, {"x": x}), strict=True):
            np.testing.assert_array_equal(found, wanted if wanted.ndim else wanted[np.newaxis])


def test_x_zero_point_is_not_used_by_dynamic_rows() -> None:
    case = table_case()
    wanted = run_native(case)
    for zero_point in (0, 255, -1, 1000):
        case.attributes["x_zero_point"] = zero_point
        assert_same_bits(run_native(case), wanted)
        check(case)


def test_negative_zero_of_the_cell_state_is_kept() -> None:
    # A state of -0.3 codes rounds to -0.0, as the operator Round gives it.
    case = table_case(time=1, batch=1, inputs=1, hidden=1)
    case.inputs["gate_table"] = np.where(np.arange(16384) < 8192, 1.0, -0.3).astype(np.float32)
    found = run_native(case)
    assert np.signbit(found["Y_c"]).all()
    assert_same_bits(found, expected(case))


def test_infinite_initial_state_counts_as_the_largest_number_for_dynamic_hidden_codes() -> None:
    # The codes of the two units cancel in the product; with the code of -inf, 0 instead of 1, they would not.
    case = table_case(time=1, batch=1, inputs=1, hidden=2)
    case.attributes["h_mode"] = "dynamic_row"
    case.outputs = ("Y", "Y_c")
    case.inputs["R"][:] = 1
    case.inputs["h_multiplier"][:] = 1e-35
    without = run_native(case)
    largest = np.float32(2.0**60)
    for values in ([-np.inf, largest], [-largest, largest], [-np.inf, np.inf]):
        case.inputs["initial_h"] = np.array([values], np.float32)
        found = run_native(case)
        assert_same_bits(found, expected(case))
        assert_same_bits(found, without)


@pytest.mark.skipif(
    tuple(int(part) for part in ort.__version__.split(".")[:2]) < (1, 24),
    reason="onnxruntime before 1.24 cannot infer shapes of operators with absent optional inputs",
)
def test_shapes_are_inferred_with_symbolic_dimensions() -> None:
    session = native_session(table_case().model())
    shapes = {output.name: output.shape for output in session.get_outputs()}
    assert shapes == {"Y": ["T", "B", 21], "Y_h": ["B", 21], "Y_c": ["B", 21], "Y_codes": ["T", "B", 21]}
    case = table_case()
    case.symbolic = False
    shapes = {output.name: output.shape for output in native_session(case.model()).get_outputs()}
    assert shapes == {"Y": [5, 2, 21], "Y_h": [2, 21], "Y_c": [2, 21], "Y_codes": [5, 2, 21]}


def test_unnamed_dimensions_and_unknown_rank_are_accepted() -> None:
    for unranked in (False, True):
        case = table_case()
        model = case.model()
        tensor_type = model.graph.input[0].type.tensor_type
        if unranked:
            tensor_type.ClearField("shape")
        else:
            for dim in tensor_type.shape.dim:
                dim.Clear()
        found = dict(zip(case.outputs, native_session(model).run(None, case.feeds()), strict=True))
        assert_same_bits(found, expected(case))


def test_runtime_parameters_may_change_between_runs() -> None:
    case = table_case()
    case.constants = ()
    session = native_session(case.model())
    for seed in (1, 2):
        other = table_case(seed=seed)
        found = dict(zip(case.outputs, session.run(None, other.inputs), strict=True))
        assert_same_bits(found, expected(other))


def test_library_exports_two_functions(library_symbols: set[str]) -> None:
    assert library_symbols == {"RegisterCustomOps", "rnnqc_isa"}


def test_optional_parameters_are_really_constant_in_these_tests() -> None:
    # Otherwise packing at creation would never be tested.
    case = table_case()
    assert {value.name for value in native_session(case.model()).get_inputs()} == {"X"}
    assert set(PARAMETERS) >= set(case.inputs) - {"X"}
