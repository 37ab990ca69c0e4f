"""The numpy model of Vitis' arithmetic does what its description says, before anything is measured against it.

What these would catch: another rounding, another search of fix positions, an index off by one in a table, a bias that
is cut to the range of weights.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from tests.subjects import vitis_reference as vitis
from tests.subjects.vitis_reference import Format, VitisLstm

CALIBRATION_REVIEWS, REVIEWS, PIECE = 50, 200, 50
LSTM = ("onnx::LSTM_114", "onnx::LSTM_115", "onnx::LSTM_116")


def test_roundings_at_ties() -> None:
    x = np.array([-2.5, -1.5, -0.5, 0.5, 1.5, 2.5])
    np.testing.assert_array_equal(vitis.floor(x), [-3, -2, -1, 0, 1, 2])
    np.testing.assert_array_equal(vitis.half_up(x), [-2, -1, 0, 1, 2, 3])
    np.testing.assert_array_equal(vitis.half_away(x), [-3, -2, -1, 1, 2, 3])


def test_codes_saturate() -> None:
    np.testing.assert_array_equal(vitis.codes(np.array([-9.0, 9.0]), 4, 1, vitis.floor), [-8, 7])


@pytest.mark.parametrize(
    ("values", "bits", "expected"),
    [
        ([0.0, 0.0], 8, 0),
        ([0.5, -0.25], 8, 7),  # 1 / step = 127.5 / 0.5 = 255; exact from 2 on, the largest codes fit at 7
        ([100.0, -100.0], 8, 0),
        ([1000.0], 8, -3),
        ([2.0**-20], 16, 12),
    ],
)
def test_fix_positions(values: list[float], bits: int, expected: int) -> None:
    assert vitis.fix_position(np.array(values), bits, vitis.half_away) == expected


def test_the_search_cuts_an_outlier_that_many_small_values_outweigh() -> None:
    x = np.concatenate([np.linspace(-0.3, 0.3, 100_001), [1.2]])
    without_search = vitis.fix_position(x, 4, vitis.half_away, search=1)
    found = vitis.fix_position(x, 4, vitis.half_away)
    assert (without_search, found) == (2, 4)


def test_most_frequent() -> None:
    assert vitis.most_frequent([7, 5, 5, 7, 6]) == 5


@pytest.mark.parametrize(
    ("table", "function", "limit"),
    [
        (vitis.table_sigmoid, lambda v: 1 / (1 + np.exp(-v)), 8),
        (vitis.table_tanh, np.tanh, 4),
    ],
)
def test_tables_over_all_16_bit_inputs(table: Callable[..., np.ndarray], function: Callable, limit: int) -> None:
    x = np.arange(-32768, 32768) / 2.0**11
    got, step = table(x), limit / 1024
    assert (np.diff(got) >= 0).all()
    inside = (x >= -limit) & (x < limit)
    lower = function(np.floor(x[inside] / step) * step) * 32768
    assert np.abs(got[inside] - lower).max() <= 0.5
    assert set(got[x >= limit]) == {32767}
    assert set(got[x < -limit]) == {int(np.round(32768 * function(-np.inf)))}


def test_sixteen_bits_are_close_to_float_and_the_bias_is_not_cut() -> None:
    """A bias of 3 does not fit codes of 8 bits at the fix position of 16-bit products."""
    rng = np.random.default_rng(0)
    W, R = rng.normal(0, 0.3, (32, 5)), rng.normal(0, 0.3, (32, 8))
    x = rng.normal(0, 1, (20, 3, 5))
    B = np.repeat([1.0, -0.5, 3.0, 0.25], 8)
    gates = [slice(k * 8, k * 8 + 8) for k in range(4)]
    h, c, expected = np.zeros((3, 8)), np.zeros((3, 8)), []
    for step in x:
        i, o, f, g = (step @ W[k].T + h @ R[k].T + B[k] for k in gates)
        i, o, f = (1 / (1 + np.exp(-v)) for v in (i, o, f))
        c = f * c + i * np.tanh(g)
        h = o * np.tanh(c)
        expected.append(h)
    errors = {}
    for name, format_ in {
        "exact": Format(exact=True), "tables": Format(), "int8 weights": Format(weight_bits=8, exact=True),
        "int8": Format(weight_bits=8, bits=8, aligned=False, rounding="half_up"),
    }.items():  # fmt: skip
        model = VitisLstm(W, R, B, format_)
        model.calibrate([x])
        errors[name] = np.abs(model.run(x) - expected).max()
    print(errors)
    assert errors["exact"] < 5e-3 < errors["tables"] < 2e-2
    assert errors["exact"] < errors["int8 weights"] < 2e-2 < errors["int8"] < 0.5


def test_aligned_positions() -> None:
    rng = np.random.default_rng(1)
    model = VitisLstm(rng.normal(0, 1, (16, 4)), rng.normal(0, 1, (16, 4)), np.zeros(16), Format(8, 8))
    model.calibrate([rng.normal(0, 3, (6, 2, 4))])
    last = model.positions["hidden"]
    fixed = {n for n in model.positions if n.startswith("act_")} | {"tanh"}
    assert {model.positions[n] for n in fixed} == {15}
    free = {f"{m}_{g}" for m in "WR" for g in "iofc"} | {"input"}
    assert {p for n, p in model.positions.items() if n not in fixed | free} == {last}


@pytest.mark.slow
def test_published_figures(shared: Callable[[str], Path]) -> None:
    """IMDb, 50 calibration sequences: 16 bits lose little; the rows of 8 bits are in the published order."""
    proto = onnx.load(shared("models/vitis_rnn/imdb_lstm_torch.onnx"))
    stored = {t.name: numpy_helper.to_array(t) for t in proto.graph.initializer}
    W, R, B = vitis.parameters(stored, LSTM)
    embedded = stored["Embedding.weight"]
    with np.load(shared("data/imdb/train.npz")) as data:
        tokens = data["tokens"][:CALIBRATION_REVIEWS].astype(np.int64)
        batches = [embedded[tokens[k : k + PIECE]].transpose(1, 0, 2) for k in range(0, len(tokens), PIECE)]
    with np.load(shared("data/imdb/test.npz")) as data:
        x = embedded[data["tokens"][:REVIEWS].astype(np.int64)].transpose(1, 0, 2)

    def probability(h: np.ndarray) -> np.ndarray:
        return 1 / (1 + np.exp(-(h[-1] @ stored["fc.weight"].T + stored["fc.bias"])))

    def float_hidden() -> np.ndarray:
        h, c = np.zeros((2, x.shape[1], 100))
        for step in x:
            i, o, f, g = np.split(step @ W.T + h @ R.T + B, 4, axis=1)
            i, o, f = (1 / (1 + np.exp(-v)) for v in (i, o, f))
            c = f * c + i * np.tanh(g)
            h = o * np.tanh(c)
        return h[None]

    reference = probability(float_hidden())
    agreement = {}
    for name, format_ in {
        "W16A16": Format(), "W8A16": Format(8, 16), "W8A8 aligned": Format(8, 8),
        "W8A8 unaligned": Format(8, 8, aligned=False),
        "W8A8 unaligned, to nearest": Format(8, 8, aligned=False, rounding="half_up"),
    }.items():  # fmt: skip
        model = VitisLstm(W, R, B, format_)
        model.calibrate(batches)
        got = probability(model.run(x))
        agreement[name] = float(np.mean((got > 0.5) == (reference > 0.5)))
        print(f"{name}: agreement {agreement[name]:.3f}, mean difference {np.abs(got - reference).mean():.4f}")
        if name == "W16A16":
            assert np.abs(got - reference).mean() < 0.008
    assert agreement["W8A8 aligned"] < agreement["W8A8 unaligned"] < agreement["W8A8 unaligned, to nearest"]
    assert agreement["W8A8 aligned"] < 0.9 and min(agreement["W16A16"], agreement["W8A16"]) > 0.98
