"""Cells and activations: what the passes read from.

What these would catch: an activation that computes, or defaults to, something else than ONNX; bounds that its values
leave; equations that are not ONNX's, or ask for a gate or point by another name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt
import pytest

from rnnqc.cells import equations
from rnnqc.cells.activations import (
    ACTIVATION_NAMES,
    RELU_TABLE,
    TABLE,
    Activation,
    make_activation,
    takes_alpha,
    takes_beta,
)
from rnnqc.cells.base import CELL, FORGET, GATES, INPUT, LSTM_POINTS, OUTPUT, PEEPHOLE_GATES, Cell
from rnnqc.cells.types import CELL_TYPES, CellType
from tests.generate.float_layer import ACTIVATION_NAMES as ONNX_NAMES
from tests.generate.float_layer import USES_ALPHA, USES_BETA
from tests.generate.float_layer import Activation as OnnxActivation

Array = npt.NDArray[np.float64]
X = np.linspace(-40.0, 40.0, 4001)
PARAMETERS = {
    "Affine": (0.5, 0.25),
    "LeakyRelu": (0.125, None),
    "ThresholdedRelu": (0.75, None),
    "ScaledTanh": (1.5, 0.5),
    "HardSigmoid": (0.25, 0.375),
    "Elu": (0.5, None),
}


def _parameters(name: str) -> tuple[float | None, float | None]:
    return PARAMETERS.get(name, (None, None))


def test_gates_are_in_onnx_order() -> None:
    assert [GATES[k][0] for k in (INPUT, OUTPUT, FORGET, CELL)] == ["i", "o", "f", "c"]
    assert (INPUT, OUTPUT, FORGET, CELL) == (0, 1, 2, 3)
    assert PEEPHOLE_GATES == (INPUT, OUTPUT, FORGET)


def test_every_activation_of_onnx_and_no_other() -> None:
    assert set(ACTIVATION_NAMES) == set(ONNX_NAMES)
    assert {n for n in ACTIVATION_NAMES if takes_alpha(n)} == USES_ALPHA
    assert {n for n in ACTIVATION_NAMES if takes_beta(n)} == USES_BETA


@pytest.mark.parametrize("name", ACTIVATION_NAMES)
def test_value(name: str) -> None:
    alpha, beta = _parameters(name)
    mine = make_activation(name, alpha, beta)(X)
    np.testing.assert_allclose(mine, OnnxActivation(name, alpha, beta).function()(X), rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("name", ACTIVATION_NAMES)
def test_values_stay_within_the_bounds(name: str) -> None:
    activation = make_activation(name, *_parameters(name))
    values = activation(X)
    if activation.bounds is None:
        assert np.abs(values).max() > 4.0
    else:
        low, high = activation.bounds
        assert low <= values.min()
        assert values.max() <= high


@pytest.mark.parametrize("name", ACTIVATION_NAMES)
def test_tables_end_where_nothing_happens_any_more(name: str) -> None:
    activation = make_activation(name, *_parameters(name))
    if activation.kind == TABLE:
        assert activation.saturates
        ends = activation(
            np.array([-activation.limit, -100 * activation.limit, activation.limit, 100 * activation.limit])
        )
        np.testing.assert_allclose(ends[::2], ends[1::2], atol=1e-6)
    elif activation.kind == RELU_TABLE:
        ends = activation.residual(np.array([-activation.limit, -600.0, activation.limit, 600.0]))
        np.testing.assert_allclose(ends[::2], ends[1::2], atol=1e-6)
        np.testing.assert_allclose(np.maximum(X, 0) + activation.residual(X), activation(X), atol=1e-14)
    else:
        assert activation.kind == name


def test_slopes() -> None:
    slopes = {n: make_activation(n).slope for n in ACTIVATION_NAMES}
    assert slopes["Tanh"] == pytest.approx(np.tanh(2) / 2, abs=1e-4)
    assert slopes["Sigmoid"] == pytest.approx(np.tanh(1) / 4, abs=1e-4)
    assert (slopes["Affine"], slopes["Relu"], slopes["HardSigmoid"]) == (1.0, 0.5, 0.2)
    assert all(slope > 0 for slope in slopes.values())


def test_names_are_found_in_any_case() -> None:
    assert make_activation("hardsigmoid") == Activation("HardSigmoid", 0.2, 0.5)
    assert takes_alpha("LEAKYRELU")
    with pytest.raises(KeyError):
        make_activation("Swish")


@pytest.mark.parametrize(("alpha", "beta"), [(float("nan"), None), (None, float("inf")), (2.0**20 + 1, None)])
def test_enormous_parameters(alpha: float | None, beta: float | None) -> None:
    with pytest.raises(ValueError, match=r"alpha = .*, beta = "):
        make_activation("Affine", alpha, beta)


def test_no_overflow_far_out() -> None:
    with np.errstate(over="raise", invalid="raise"):
        for name in ACTIVATION_NAMES:
            assert np.isfinite(make_activation(name, *_parameters(name))(np.array([-1e4, 1e4]))).all(), name


def cell(**changes: object) -> Cell:
    values: dict[str, object] = {
        "name": "lstm.forward",
        "node": "lstm",
        "op": "LSTM",
        "hidden_size": 4,
        "input_size": 3,
        "reverse": False,
        "activations": (Activation("Sigmoid"), Activation("Tanh"), Activation("Elu", 1.0)),
        "clip": 3.0,
        "input_forget": True,
        "static_length": None,
        "static_batch": 2,
        "x": "X",
        "sequence_lens": None,
        "initial_h": "h0",
        "initial_c": None,
        "y": "Y",
        "y_h": None,
        "y_c": "Y_c",
        "W": "w",
        "R": "r",
        "B": "b",
        "P": None,
    }
    return Cell(**{**values, **changes})  # type: ignore[arg-type]


def test_outputs_and_gate_activations() -> None:
    assert cell().outputs == ["Y", "Y_c"]
    assert [cell().gate_activation(k).name for k in range(4)] == ["Sigmoid", "Sigmoid", "Sigmoid", "Tanh"]


def test_points_are_named_once() -> None:
    names = [p.name for p in LSTM_POINTS]
    assert len(set(names)) == len(names)
    assert {f"{g}.acc" for g in GATES} | {f"{g}.activation" for g in GATES} <= set(names)
    assert all(p.meaning for p in LSTM_POINTS)


def test_every_field_of_a_cell_is_documented() -> None:
    assert Cell.__doc__ is not None
    assert [f.name for f in fields(Cell) if f"        {f.name}: " not in Cell.__doc__] == []


@dataclass
class _Step:
    """`rnnqc.cells.equations.Step` in numpy; `seen` collects what was asked for by name.

    Attributes:
        x: x W + B of each gate.
        h: h R of each gate.
        state: The state before the step.
        R: `[H,GH]`.
        peepholes: By gate.
        hidden_bias: Of a GRU's candidate.
    """

    x: list[Array]
    h: list[Array]
    state: Array
    R: Array
    peepholes: Mapping[int, Array]
    hidden_bias: Array
    gates: tuple[str, ...]
    input_forget: bool = False
    linear_before_reset: bool = False

    def __post_init__(self) -> None:
        self.seen: list[str] = []

    def _act(self, k: int, value: Array) -> Array:
        self.seen.append(self.gates[k])
        return np.tanh(value + k)  # another function for every gate

    def gate(self, k: int, peephole: Array | None = None) -> Array:
        extra = self.peepholes[k] * peephole if peephole is not None and k in self.peepholes else 0.0
        return self._act(k, np.asarray(self.x[k] + self.h[k] + extra))

    def projected(self, k: int) -> Array:
        return self.x[k]

    def recurrent(self, k: int) -> Array:
        return self.h[k] + self.hidden_bias

    def recurrent_of(self, k: int, value: Array) -> Array:
        size = value.shape[1]
        return np.asarray(value @ self.R[:, k * size : (k + 1) * size])

    def activated(self, k: int, part: Array, projected: Array) -> Array:
        return self._act(k, part + projected)

    def coupled(self, gate: Array) -> Array:
        return 0.875 - gate  # a quantized 1 is none

    def complement(self, gate: Array) -> Array:
        return 1.0 - gate

    def product(self, a: Array, b: Array, point: str) -> Array:
        self.seen.append(point)
        return a * b

    def total(self, kept: Array, added: Array, point: str) -> Array:
        self.seen.append(point)
        return kept + added

    def squashed(self, state: Array) -> Array:
        return np.sin(state)


def _step(op: str, **flags: bool) -> _Step:
    rng = np.random.default_rng(0)
    gates, batch, hidden = CELL_TYPES[op].gates, 2, 3
    arrays = rng.normal(0, 1, (2, len(gates), batch, hidden))
    peepholes = {k: rng.normal(0, 1, hidden) for k in CELL_TYPES[op].peephole_gates}
    r, state = rng.normal(0, 1, (hidden, len(gates) * hidden)), rng.normal(0, 1, (batch, hidden))
    return _Step(list(arrays[0]), list(arrays[1]), state, r, peepholes, rng.normal(0, 1, hidden), gates, **flags)


@pytest.mark.parametrize("input_forget", [False, True])
def test_equations_of_lstm(input_forget: bool) -> None:
    s = _step("LSTM", input_forget=input_forget)
    found = equations.lstm(s)
    p, c = s.peepholes, s.state
    i = np.tanh(s.x[0] + s.h[0] + p[0] * c)
    f = 0.875 - i if input_forget else np.tanh(s.x[2] + s.h[2] + p[2] * c + 2)
    new = f * c + i * np.tanh(s.x[3] + s.h[3] + 3)
    o = np.tanh(s.x[1] + s.h[1] + p[1] * new + 1)
    np.testing.assert_array_equal(found, (o * np.sin(new), new))
    gates = {*GATES} - ({"forget_gate"} if input_forget else set())
    assert sorted(s.seen) == sorted([*gates, "cell_state.kept", "cell_state.added", "cell_state", "hidden.value"])


@pytest.mark.parametrize("linear", [False, True])
def test_equations_of_gru(linear: bool) -> None:
    s = _step("GRU", linear_before_reset=linear)
    found = equations.gru(s)
    z, r = np.tanh(s.x[0] + s.h[0]), np.tanh(s.x[1] + s.h[1] + 1)
    part = r * (s.h[2] + s.hidden_bias) if linear else (r * s.state) @ s.R[:, 6:]
    h = z * s.state + (1 - z) * np.tanh(part + s.x[2] + 2)
    np.testing.assert_array_equal(found, (h, h))
    points = ["hidden_state.kept", "hidden_state.added", "hidden_state"]
    reset = "hidden_gate.reset_product" if linear else "reset.hidden"
    assert sorted(s.seen) == sorted([*CELL_TYPES["GRU"].gates, reset, *points])
    assert {*points, reset} <= {p.name for p in CELL_TYPES["GRU"].points}


def test_equations_of_rnn() -> None:
    s = _step("RNN")
    expected = np.tanh(s.x[0] + s.h[0])
    np.testing.assert_array_equal(equations.rnn(s), (expected, expected))
    assert s.seen == ["hidden_gate"]


@pytest.mark.parametrize("op", CELL_TYPES)
def test_the_types_have_their_equations(op: str) -> None:
    assert CELL_TYPES[op].step is getattr(equations, op.lower())


@pytest.mark.parametrize("type_", CELL_TYPES.values(), ids=CELL_TYPES)
def test_the_candidate_is_the_last_gate(type_: CellType) -> None:
    """Matmuls are split before the candidate: in another position it would get the columns of another gate."""
    assert type_.candidate in (None, len(type_.gates) - 1)
    assert type_.joint == len(type_.gates) - (type_.candidate is not None)
    assert type_.flag is None or type_.flag in {f.name for f in fields(Cell)}
