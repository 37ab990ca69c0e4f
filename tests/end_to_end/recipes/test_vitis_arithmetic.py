"""Recipes of powers of two compute what the numpy model of Vitis' arithmetic does: fix positions, and every code.

What these would catch: votes of another rounding or of whole sequences, a cap on the mode rather than on each vote,
alignment of the wrong points, a bias in another format, a table read one entry off, a rounding between the exact
product of two activations and the hidden code.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import rnnqc
from rnnqc.ir import Model
from tests.generate.layers import RecurrentCase
from tests.runs.lowered import NATIVE, STOCK, session
from tests.runs.sessions import Array, run
from tests.subjects.vitis_reference import GATES, Format, VitisLstm, parameters

# Calibration in rnnqc looks at the float model, and its cell has one format for each state.
COMMON = Format(scan_quantized=False, state_inputs=False)
UNALIGNED = ("*.bias.same_as=input_product", "*.same_as=none")
NEAREST = ("*.weight.rounding=half_away", "*.bias.rounding=half_away", "*.rounding=half_up")
GATE_NAMES = dict(zip(GATES, ("input_gate", "output_gate", "forget_gate", "cell_gate"), strict=True))
NAMES = {"input": "input", "kept": "cell_state.kept", "added": "cell_state.added", "cell": "cell_state"} | {
    "hidden": "hidden", "tanh": "hidden.activation",
}  # fmt: skip
KINDS = {"wx": "input_product", "rh": "hidden_product", "acc": "acc", "act": "activation"}


@dataclass(frozen=True)
class Row:
    """A recipe with overrides, and the format that it stands for."""

    recipe: str
    overrides: tuple[str, ...]
    format: Format


ROWS = {
    "W16A16": Row("pow2-int16", (), COMMON),
    "W16A16, unaligned": Row("pow2-int16", UNALIGNED, replace(COMMON, aligned=False)),
    "W8A16": Row("pow2-w8a16", (), replace(COMMON, weight_bits=8)),
    "W8A8": Row("pow2-int8-floor", (), replace(COMMON, weight_bits=8, bits=8)),
    "W8A8, to nearest": Row(
        "pow2-int8-floor", NEAREST, replace(COMMON, weight_bits=8, bits=8, rounding="half_up")
    ),
    "W8A8, unaligned": Row(
        "pow2-int8-floor", UNALIGNED, replace(COMMON, weight_bits=8, bits=8, aligned=False)
    ),
    "W8A8, unaligned, to nearest": Row(
        "pow2-int8", NEAREST, replace(COMMON, weight_bits=8, bits=8, aligned=False, rounding="half_up")
    ),
}  # fmt: skip
each_row = pytest.mark.parametrize("row", ROWS.values(), ids=list(ROWS))


def positions(lowered: Any) -> dict[str, int]:
    """Fix positions of the only cell, by the names of the numpy model; fails for a scale that is no power of two."""
    (cell,) = lowered.model.cells.values()
    scales = {mine: cell.points[point].scale for mine, point in NAMES.items()}
    for number, (gate, name) in enumerate(GATE_NAMES.items()):
        columns = slice(number * cell.hidden_size, (number + 1) * cell.hidden_size)
        scales |= {f"{kind}_{gate}": cell.points[f"{name}.{point}"].scale for kind, point in KINDS.items()}
        scales |= {f"{key}_{gate}": cell.points[f"{key}.weight"].scale[columns] for key in "WR"}
        scales[f"b_{gate}"] = cell.points["bias"].scale[columns]
    found = {}
    for name, values in scales.items():
        (mantissa,), (exponent,) = (np.unique(part) for part in np.frexp(values))
        assert mantissa == 0.5, name
        found[name] = int(1 - exponent)
    return found


def assert_same_positions(lowered: Any, oracle: VitisLstm) -> None:
    """All of them, but the states as inputs, which rnnqc has no formats for."""
    expected = {n: p for n, p in oracle.positions.items() if n not in ("h", "c")}
    assert positions(lowered) == expected
    assert not [n for n in lowered.report.notes if "fix position" in n]


CASE = RecurrentCase(
    T=30, B=6, I=10, H=16, outputs=("Y", "Y_h", "Y_c"), dynamic_time=True, dynamic_batch=True, gain=1.5, seed=4
)


def feeds(seed: int) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    return {"X": (rng.laplace(0, 0.6, (CASE.T, CASE.B, CASE.I))).astype(np.float32)}


def oracle_of(row: Row, weights: Sequence[Array], calls: Sequence[Array]) -> VitisLstm:
    made = VitisLstm(*weights, row.format)
    made.calibrate(list(calls))
    return made


def small_weights() -> tuple[Array, Array, Array]:
    held = CASE.parameters()
    half = held["B"].shape[1] // 2
    B = held["B"][0]
    return held["W"][0], held["R"][0], (B[:half] + B[half:]).astype(np.float64)


@pytest.mark.few(1)
@each_row
def test_fix_positions_and_codes_of_a_small_model(row: Row) -> None:
    data = [feeds(seed) for seed in (1, 2, 3)]
    oracle = oracle_of(row, small_weights(), [f["X"] for f in data])
    lowered = rnnqc.lower(CASE.model(), row.recipe, calibration=data, overrides=row.overrides)
    assert_same_positions(lowered, oracle)
    x = feeds(7)["X"] * 1.5 + np.linspace(-5, 5, CASE.B, dtype=np.float32)[:, None]
    hidden, cell = oracle.states(x)
    assert len(np.unique(hidden)) > 50
    if row.format.bits == 8:  # the lowest code takes part, where the cell can reach it
        lowest = -127 if (row.format.aligned, row.format.rounding) == (False, "floor") else -128
        assert cell.min() * 2.0 ** oracle.positions["cell"] == lowest
    for way in (STOCK, NATIVE):
        made = session(lowered.proto, way)
        for steps in (1, 2, 5, CASE.T):
            got = run(made, {"X": x[:steps]})
            assert np.array_equal(got["Y"][:, 0], hidden[:steps].astype(np.float32)), (way, steps)
            assert np.array_equal(got["Y_h"][0], hidden[steps - 1].astype(np.float32)), (way, steps)
            assert np.array_equal(got["Y_c"][0], cell[steps - 1].astype(np.float32)), (way, steps)


def test_products_of_activations_are_not_rounded_to_float() -> None:
    """Two activations have 30 bits behind the point, a float 24: some products would be rounded up to a code."""
    row = ROWS["W16A16"]
    rng = np.random.default_rng(0)
    x = (rng.normal(0, 1, (60, 400, CASE.I))).astype(np.float32)
    oracle = oracle_of(row, small_weights(), [x[:, :6]])
    oracle_states = oracle.states(x)[0]
    lowered = rnnqc.lower(CASE.model(), row.recipe, calibration=[{"X": x[:, :6]}], overrides=row.overrides)
    got = run(session(lowered.proto, NATIVE), {"X": x})["Y"][:, 0]
    assert np.array_equal(got, oracle_states.astype(np.float32))


LSTM = ("onnx::LSTM_114", "onnx::LSTM_115", "onnx::LSTM_116")
CALIBRATION_REVIEWS, PIECE, REVIEWS = 50, 25, 40


@pytest.mark.slow
@each_row
def test_fix_positions_and_codes_of_a_real_model(row: Row, shared: Callable[[str], Path]) -> None:
    proto = onnx.load(shared("models/vitis_rnn/imdb_lstm_torch.onnx"))
    stored = {t.name: numpy_helper.to_array(t) for t in proto.graph.initializer}
    with np.load(shared("data/imdb/train.npz")) as data:
        tokens = data["tokens"][:CALIBRATION_REVIEWS].astype(np.int64)
    with np.load(shared("data/imdb/test.npz")) as data:
        test = data["tokens"][:REVIEWS].astype(np.int64)
    pieces = [tokens[k : k + PIECE] for k in range(0, len(tokens), PIECE)]
    embedded = [stored["Embedding.weight"][p].transpose(1, 0, 2) for p in pieces]
    oracle = oracle_of(row, parameters(stored, LSTM), embedded)
    lowered = rnnqc.lower(proto, row.recipe, calibration=[{"tokens": p} for p in pieces], overrides=row.overrides)
    assert_same_positions(lowered, oracle)
    hidden = oracle.run(stored["Embedding.weight"][test].transpose(1, 0, 2))
    (cell,) = lowered.model.cells.values()
    seen = Model.load(lowered.proto).proto
    node = next(n for n in seen.graph.node if n.op_type.startswith("QuantLSTMCell"))
    states = node.output[0] or node.output[1]
    seen.graph.output.append(onnx.ValueInfoProto(name=states))
    got = run(session(seen, NATIVE), {"tokens": test})[states]
    got = got.reshape(-1, len(test), cell.hidden_size)
    assert np.array_equal(got, hidden[-len(got) :].astype(np.float32))
