"""Activation tables: knots, the integer formula, and the function that expands them in a model.

What these would catch: knots that are not the least-squares fit, a table that is not odd, not monotone or leaves
[-1, 1], an error above what the docstring promises, integer divisions that onnxruntime rounds differently.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from rnnqc.cells.fused_nodes import FUNCTION, FUNCTION_INPUTS, FUNCTION_OUTPUTS
from rnnqc.cells.tables import (
    KNOT_UNIT,
    SEGMENTS,
    SIGMOID_LIMIT,
    TANH_KNOTS,
    TANH_LIMIT,
    by_code,
    piecewise_linear_tanh,
    signed_codes,
    table_of,
)
from rnnqc.evaluation.evaluate import make_session
from rnnqc.ir import DOMAIN, DOMAIN_VERSION
from rnnqc.passes.render.lut.emit_tables import table_function
from tests.runs.sessions import LEVELS, options

LENGTHS = (64, 128, 4096, 16384)


def _formula(code: int, n: int) -> int:
    """docs/quant_lstm_cell.md, "The default tables", in Python integers."""
    length, u = n // 64, min(abs(code), n)
    j = min(u // length, 63)
    v = u - j * length
    value = TANH_KNOTS[j] + ((TANH_KNOTS[j + 1] - TANH_KNOTS[j]) * v + length // 2) // length
    return value if code > 0 else -value if code < 0 else 0


def fit_tanh_knots() -> npt.NDArray[np.int64]:
    """Least-squares knots of the continuous piecewise-linear tanh (how `TANH_KNOTS` was made).

    Returns:
        int64 [65], units of 2**-14, first 0 and last 16384.
    """
    n = 4096
    u = np.arange(n + 1)
    segment = np.minimum(u * SEGMENTS // n, SEGMENTS - 1)
    weight = u * SEGMENTS / n - segment
    design = np.zeros((n + 1, SEGMENTS + 1))
    design[u, segment] = 1.0 - weight
    design[u, segment + 1] += weight
    target = np.tanh(u * TANH_LIMIT / n)
    knots = np.linalg.lstsq(design[:, 1:], target, rcond=None)[0]
    codes = np.rint(np.concatenate([[0.0], knots]) / KNOT_UNIT).astype(np.int64)
    codes[-1] = round(1.0 / KNOT_UNIT)
    return codes


def test_knots_are_the_least_squares_fit() -> None:
    knots = np.array(TANH_KNOTS)
    assert np.abs(knots - fit_tanh_knots()).max() <= 1
    assert (knots[0], knots[-1], knots.size) == (0, round(1 / KNOT_UNIT), SEGMENTS + 1)
    assert (np.diff(knots) >= 0).all()


@pytest.mark.parametrize("n", LENGTHS)
def test_is_the_documented_formula(n: int) -> None:
    codes = np.unique(np.concatenate([np.linspace(-2 * n, 2 * n, 401).astype(int), np.arange(-130, 131)]))
    expected = [_formula(int(c), n) for c in codes]
    assert piecewise_linear_tanh(codes.astype(np.int64), n).tolist() == expected


@pytest.mark.parametrize("n", LENGTHS)
def test_shape_of_the_curve(n: int) -> None:
    codes = np.arange(-2 * n, 2 * n + 1)
    values = piecewise_linear_tanh(codes, n)
    np.testing.assert_array_equal(values, -values[::-1])
    assert (np.diff(values) >= 0).all()
    assert np.abs(values).max() == round(1 / KNOT_UNIT)
    assert (np.abs(values[np.abs(codes) >= n]) == round(1 / KNOT_UNIT)).all()


def test_error_is_what_the_docstring_promises() -> None:
    n = 4096
    codes = np.arange(-n, n + 1)
    tanh = piecewise_linear_tanh(codes, n) * KNOT_UNIT
    assert np.abs(tanh - np.tanh(codes * TANH_LIMIT / n)).max() <= 1.01e-3
    sigmoid = 0.5 + 0.5 * tanh
    x = codes * SIGMOID_LIMIT / n
    assert np.abs(sigmoid - 1 / (1 + np.exp(-x))).max() <= 5.1e-4
    assert (sigmoid.min(), sigmoid.max()) == (0.0, 1.0)


def test_entries_are_exact_in_float32() -> None:
    values = piecewise_linear_tanh(np.arange(-4096, 4097), 4096)
    for real in (values * KNOT_UNIT, 0.5 + 0.5 * (values * KNOT_UNIT)):
        np.testing.assert_array_equal(real.astype(np.float32).astype(np.float64), real)


def _table_model(bits: int, n: int, tanh: bool, constant: bool, opset: int = 17) -> onnx.ModelProto:
    """A model that calls ActivationTable with constants, or with inputs that cannot be folded."""
    knots = np.array(TANH_KNOTS, np.int32).reshape(-1, 1)
    values: dict[str, npt.NDArray[np.generic]] = {
        "low": knots[:-1],
        "rise": np.diff(knots, axis=0),
        "length": np.array(n // SEGMENTS, np.int32),
        "padding": np.array([0, 2 ** (bits - 1) - n + 1], np.int64),
        "scale": np.array(KNOT_UNIT if tanh else KNOT_UNIT / 2, np.float32),
        "offset": np.array(0.0 if tanh else 0.5, np.float32),
    }
    call = helper.make_node(FUNCTION, list(FUNCTION_INPUTS), list(FUNCTION_OUTPUTS), domain=DOMAIN)
    inputs = [
        helper.make_tensor_value_info(k, helper.np_dtype_to_tensor_dtype(v.dtype), v.shape) for k, v in values.items()
    ]
    stored = [numpy_helper.from_array(v, k) for k, v in values.items()]
    outputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [None]) for name in FUNCTION_OUTPUTS]
    graph = helper.make_graph([call], "table", [] if constant else inputs, outputs, stored)
    imports = [helper.make_opsetid("", opset), helper.make_opsetid(DOMAIN, DOMAIN_VERSION)]
    return helper.make_model(graph, opset_imports=imports, functions=[table_function(opset)], ir_version=10)


def _table(bits: int, n: int, tanh: bool) -> npt.NDArray[np.float32]:
    real = piecewise_linear_tanh(signed_codes(bits), n) * KNOT_UNIT
    return (real if tanh else 0.5 + 0.5 * real).astype(np.float32)


@pytest.mark.parametrize("constant", [True, False])
@pytest.mark.parametrize("level", LEVELS)
def test_function_in_onnxruntime(level: str, constant: bool) -> None:
    """Every code, at every optimization level: folded when the session is created, and computed in every run."""
    import onnxruntime as ort

    for bits, n, tanh in ((13, 4096, True), (13, 4096, False), (16, 16384, True), (8, 64, False)):
        model = _table_model(bits, n, tanh, constant)
        onnx.checker.check_model(model, full_check=True)
        session = ort.InferenceSession(model.SerializeToString(), options(level), providers=["CPUExecutionProvider"])
        from_zero, below_zero = session.run(None, {})
        assert from_zero.dtype == below_zero.dtype == np.float32
        np.testing.assert_array_equal(np.concatenate([below_zero, from_zero]), _table(bits, n, tanh))
        assert not np.signbit(from_zero).any()


@pytest.mark.parametrize("opset", [13, 17, 20, 22])
def test_function_in_every_operator_set(opset: int) -> None:
    model = _table_model(7, 64, True, True, opset)
    onnx.checker.check_model(model, full_check=True)
    from_zero, below_zero = make_session(model).run(None, {})
    np.testing.assert_array_equal(np.concatenate([below_zero, from_zero]), _table(7, 64, True))


def test_onnxruntime_folds_it(tmp_path: Path) -> None:
    """Computed in every run, a table takes longer than a step of a layer."""
    import onnxruntime as ort

    chosen = options("ORT_ENABLE_BASIC")
    chosen.optimized_model_filepath = str(tmp_path / "folded.onnx")
    model = _table_model(13, 4096, True, True)
    ort.InferenceSession(model.SerializeToString(), chosen, providers=["CPUExecutionProvider"])
    assert not onnx.load(tmp_path / "folded.onnx").graph.node


def test_order_of_codes() -> None:
    assert signed_codes(3).tolist() == [-4, -3, -2, -1, 0, 1, 2, 3]
    table = table_of(lambda x: 10 * x, 0.5, 3)
    assert table.dtype == np.float32
    assert table.tolist() == [-20, -15, -10, -5, 0, 5, 10, 15]
    rolled = by_code(table)
    assert [rolled[k] for k in (0, 1, 3, -1, -4)] == [0, 5, 15, -5, -20]
