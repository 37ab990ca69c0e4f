"""Overrides that a report proposes."""

from pathlib import Path

import rnnqc
from tests.subjects.slow_layers import Slow

MODELS = Path(__file__).resolve().parents[2] / "models"


def test_weights_of_4_bits_get_6_where_that_is_enough() -> None:
    """8 bits are not tried first, because 5 and 6 bits save memory. Groups stay, so the override is `bits` alone."""
    model = MODELS / "digits_lstm.onnx"
    lowered = rnnqc.lower(model, "w4a8")
    found = rnnqc.report(model, lowered, MODELS / "digits_calibration.npz", samples=8, models=20).evidence
    (few,) = [r for r in found.repairs if not r.points.startswith("*")]
    assert few.overrides in ([f"{few.points}.bits=5"], [f"{few.points}.bits=6"])
    assert few.bytes_before < few.bytes_after < 1.5 * few.bytes_before
    kind = next(r for r in found.repairs if r.points == "*.weight")
    assert kind.overrides == ["*.weight.bits=8", "*.weight.group_size=none"], "6 bits are less than 80 % of the gain"


def test_exact_tables_of_gates_are_tried() -> None:
    """In a layer that remembers for many hundreds of steps, no other change compensates the error of its tables."""
    case = Slow("LSTM", 2, 10.0, -9.0)
    feeds = [{k: v[:800] for k, v in case.feeds().items()}]
    found = rnnqc.report(case.model(), rnnqc.lower(case.model()), feeds, models=12).evidence
    repair = next(r for r in found.repairs if r.overrides == ["*_gate.activation.table=exact"])
    assert repair.gain_db > 6.0 and not repair.forms
    assert any("*_gate.activation.table=exact" in text for text in found.suggestions)
