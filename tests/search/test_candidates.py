"""Overrides that a report proposes."""

from pathlib import Path

import rnnqc

MODELS = Path(__file__).resolve().parents[2] / "models"


def test_weights_of_4_bits_get_6_where_that_is_enough() -> None:
    """Not 8 at once: 5 and 6 bits are stored as such. Groups stay, so the override is `bits` alone."""
    model = MODELS / "digits_lstm.onnx"
    lowered = rnnqc.lower(model, "w4a8")
    found = rnnqc.report(model, lowered, MODELS / "digits_calibration.npz", samples=20, models=60).evidence
    (few,) = [r for r in found.repairs if not r.points.startswith("*")]
    assert few.overrides in ([f"{few.points}.bits=5"], [f"{few.points}.bits=6"])
    assert few.bytes_before < few.bytes_after < 1.5 * few.bytes_before
    kind = next(r for r in found.repairs if r.points == "*.weight")
    assert kind.overrides == ["*.weight.bits=8", "*.weight.group_size=none"], "6 bits are less than 80 % of the gain"
