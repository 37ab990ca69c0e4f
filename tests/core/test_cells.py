"""Cells and activations: what the passes read from.

What these would catch: an activation that computes, or defaults to, something else than ONNX; bounds that its values
leave; a cell that changes on its way through JSON.
"""

from __future__ import annotations

import json
from dataclasses import fields

import numpy as np
import pytest

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
from rnnqc.testing.float_layer import ACTIVATION_NAMES as ONNX_NAMES
from rnnqc.testing.float_layer import USES_ALPHA, USES_BETA
from rnnqc.testing.float_layer import Activation as OnnxActivation

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


def test_cell_through_json() -> None:
    points = {"input": {"bits": 8, "scale": [0.1]}, "W.weight": {"bits": 8, "scale": [0.1, 0.2]}}
    for form in ("float", "qcdq"):
        original = cell(points=points, form=form)
        assert Cell.from_dict(json.loads(json.dumps(original.as_dict()))) == original


def test_scales_of_channels_are_left_out_of_integer_cells() -> None:
    points = {
        "input": {"bits": 8, "scale": [0.1]},
        "W.weight": {"bits": 8, "scale": [0.1, 0.2]},
        "R.weight": {"bits": None},
    }
    original = cell(points=points, form="integer")
    data = original.as_dict()
    assert data["points"] == {"input": {"bits": 8, "scale": [0.1]}, "W.weight": {"bits": 8}, "R.weight": {"bits": None}}
    assert original.points["W.weight"] == {"bits": 8, "scale": [0.1, 0.2]}, "writing must not change the cell"


def test_unknown_entries_of_a_later_version_are_ignored() -> None:
    assert Cell.from_dict({**cell().as_dict(), "from_the_future": 1}) == cell()


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
