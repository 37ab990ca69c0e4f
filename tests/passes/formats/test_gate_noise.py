"""The effect of an error in each pre-activation on the states of a cell.

What these would catch: a gate's derivative in the place of another's, a unit that counts whose forget gate counts as
little as its slope in the calibration says, statistics without mean squares that stop the lowering.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from rnnqc.cells.activations import Activation
from rnnqc.cells.base import Cell
from rnnqc.cells.types import CELL_TYPES
from rnnqc.data.statistics import PointStatistics, Statistics
from rnnqc.formats.histogram import Histogram
from rnnqc.passes.formats.gate_noise import gate_noise

Array = npt.NDArray[np.float64]
H = 3
HISTOGRAM = Histogram(1.0, 0, np.ones(1, np.int64))


def sigmoid(x: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-x)))


def cell_of(op: str, **options: Any) -> Cell:
    none = dict.fromkeys(f for f in Cell.__dataclass_fields__ if f != "form")
    names = CELL_TYPES[op].activations
    fields: dict[str, Any] = {
        **none, "name": "c", "node": "n", "op": op, "input_size": 1, "hidden_size": H, "reverse": False, "clip": None,
        "input_forget": False, "activations": tuple(Activation(n) for n in names), **options,
    }  # fmt: skip
    return Cell(**fields)


def seen(rows: Array, moment: bool = False) -> PointStatistics:
    """Statistics of rows `[N,H]`, of which single channels count here."""
    numbers = dict.fromkeys(("min", "max", "avg_min", "avg_max", "mean", "std", "mean_abs_dev"), 0.0)
    own: dict[str, Any] = {"second_moment": rows.T @ rows / len(rows)} if moment else {}
    own |= {} if moment else {"channel_square": np.square(rows).mean(axis=0)}
    return PointStatistics(
        (1, H), rows.size, len(rows), **numbers, histogram=HISTOGRAM, channel_mean=rows.mean(0), **own
    )


def lstm(pre: Array, c: Array) -> tuple[Array, dict[str, Array]]:
    i, o, f, g = (*map(sigmoid, pre[:3]), np.tanh(pre[3]))
    new = f * c + i * g
    names = ("input_gate.activation", "output_gate.activation", "forget_gate.activation", "cell_gate.activation")
    return o * np.tanh(new), dict(zip(names, (i, o, f, g), strict=True)) | {"hidden.activation": np.tanh(new)}


def derivatives(function: Callable[[Array], Array], pre: Array) -> Array:
    """Squared derivatives `[G,H]` of all outputs, added up, by each of `[G,H]`."""
    made = np.zeros(pre.shape)
    for place in np.ndindex(*pre.shape):
        step = np.zeros(pre.shape)
        step[place] = 1e-5
        made[place] = np.square((function(pre + step) - function(pre - step)) / 2e-5).sum()
    return made


def test_a_step_of_an_lstm() -> None:
    """For one step means are values, and noise in the hidden state agrees with finite differences."""
    rng = np.random.default_rng(1)
    pre, c = rng.normal(0, 1, (4, H)), rng.normal(0, 1, H)
    h, values = lstm(pre, c)
    points = {f"c.{k}": seen(v[None]) for k, v in values.items()}
    points |= {"c.cell_state": seen(c[None]), "c.hidden": seen(h[None], moment=True)}
    i, _, _, g = (values[f"{n}_gate.activation"] for n in ("input", "output", "forget", "cell"))
    of_hidden = derivatives(lambda p: lstm(p, c)[0], pre) / np.square(h).sum()
    steepest = np.array([g**2 / 16, 0 * g, c**2 / 16, i**2]) / np.square(c).sum()
    found = gate_noise(cell_of("LSTM"), {}, Statistics(points))
    np.testing.assert_allclose(found, (of_hidden + steepest).ravel(), rtol=1e-3)


@pytest.mark.parametrize("linear", [False, True])
def test_a_step_of_a_gru(linear: bool) -> None:
    """The reset gate reaches all units through R where it multiplies the state."""
    rng = np.random.default_rng(2)
    pre, h = rng.normal(0, 1, (3, H)), rng.normal(0, 0.5, H)
    matrix = rng.normal(0, 1, (H, 3 * H)).astype(np.float32)
    own = matrix[:, 2 * H :].astype(np.float64)
    # x W + B is what makes the candidate's pre-activation that of `pre` where no other one moves.
    product = h @ own
    reset = sigmoid(pre[1])
    rest = pre[2] - (reset * product if linear else (reset * h) @ own)

    def candidate(p: Array) -> Array:
        part = sigmoid(p[1]) * product if linear else (sigmoid(p[1]) * h) @ own
        return np.tanh(part + rest + p[2] - pre[2])

    def step(p: Array) -> Array:
        z = sigmoid(p[0])
        return np.asarray(z * h + (1 - z) * candidate(p))

    z, n = sigmoid(pre[0]), candidate(pre)
    points = {"c.hidden": seen(h[None], moment=True)}
    values = {"update_gate": z, "reset_gate": reset, "hidden_gate": n}
    points |= {f"c.{k}.activation": seen(v[None]) for k, v in values.items()}
    found = gate_noise(cell_of("GRU", linear_before_reset=linear), {"R": matrix}, Statistics(points))
    expected = derivatives(step, pre)
    expected[0] = (h**2 + n**2) * np.square(z * (1 - z))  # z adds to the one as it takes from the other
    reset_of_all = np.square(np.diag(product) if linear else h[:, None] * own) @ np.square(1 - z)
    expected += [(h**2 + n**2) / 16, reset_of_all / 16, np.square(1 - z)]  # where gates are steepest
    np.testing.assert_allclose(found, expected.ravel() / np.square(h).sum(), rtol=1e-3)


def test_a_step_of_an_rnn() -> None:
    h = np.array([0.5, -0.9, 0.1])
    points = {"c.hidden": seen(h[None], moment=True), "c.hidden_gate.activation": seen(h[None])}
    expected = (np.square(1 - h**2) + 1) / np.square(h).sum()
    np.testing.assert_allclose(gate_noise(cell_of("RNN"), {}, Statistics(points)), expected, rtol=1e-3)


def test_a_unit_that_counts() -> None:
    """Its forget gate has no slope in the calibration, and weighs more than those of other units."""
    steps = np.arange(1.0, 201.0)
    rng = np.random.default_rng(3)
    c = np.stack([steps, *rng.normal(0, 1, (2, 200))], axis=1)
    gates = {name: rng.uniform(0.2, 0.8, (200, H)) for name in ("input_gate", "output_gate", "forget_gate")}
    gates["forget_gate"][:, 0] = 1.0
    points = {f"c.{k}.activation": seen(v) for k, v in gates.items()}
    points["c.cell_gate.activation"] = seen(rng.uniform(-0.9, 0.9, (200, H)))
    points |= {"c.cell_state": seen(c), "c.hidden.activation": seen(np.tanh(c))}
    points["c.hidden"] = seen(np.tanh(c) * gates["output_gate"], moment=True)
    found = gate_noise(cell_of("LSTM"), {}, Statistics(points)).reshape(4, H)
    assert found[2, 0] == pytest.approx(1 / 16, rel=1e-3)
    assert found[2, 0] > 5 * found[2, 1:].max() and found[2, 0] > found[[0, 3]].max()
    coupled = gate_noise(cell_of("LSTM", input_forget=True), {}, Statistics(points)).reshape(4, H)
    assert coupled[0, 0] > 1 / 16 and not coupled[2].any(), "f = 1 - i"


def test_statistics_without_mean_squares() -> None:
    """From an earlier version, or with --no-moments: uses the gates' slopes, as without statistics."""
    rows = np.ones((1, H))
    points = {f"c.{g}.activation": replace(seen(rows), channel_square=None) for g in CELL_TYPES["LSTM"].gates}
    cell = cell_of("LSTM")
    expected = gate_noise(cell, {}, None)
    for found in ({}, points, points | {"c.cell_state": seen(rows), "c.hidden": seen(rows, moment=True)}):
        np.testing.assert_array_equal(gate_noise(cell, {}, Statistics(found)), expected)
    assert (expected[: 3 * H] < expected[3 * H :].min()).all(), "tanh is steeper than a sigmoid"
