"""Finite inputs beyond 2^60.

What these would catch: results of saturated inputs that nothing speaks of; reports of infinities, which have a rule.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

import rnnqc
from rnnqc.data.large_inputs import LARGEST, LargeInputs
from tests.generate.layers import RecurrentCase
from tests.runs.commands import in_process
from tests.runs.sessions import save_arrays

CASE = RecurrentCase()
SAID = "input 'X' has finite values of up to 1e+30; quantized layers saturate at 2^60"


def test_what_is_too_large() -> None:
    large = LargeInputs()
    for value in (LARGEST, -2 * LARGEST, np.nan, np.inf, 1.5 * LARGEST):
        large.look({"x": np.array([[0.0, value]], np.float32), "n": np.array([2**62]), "e": np.empty(0, np.float32)})
    assert large.largest == {"x": 2 * LARGEST}
    assert len(large.texts) == 1


@pytest.mark.parametrize("large", [False, True])
def test_commands_say_it_once(large: bool, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    feeds = CASE.feeds()
    feeds["X"] = feeds["X"].copy()
    feeds["X"][1:3, 0, 0] = 1e30 if large else 3.0
    source, target, data = tmp_path / "in.onnx", tmp_path / "out.onnx", tmp_path / "data.npz"
    onnx.save(CASE.model(), source)
    rnnqc.lower(source).save(target)
    save_arrays(data, feeds)
    samples = tmp_path / "samples.npz"
    save_arrays(samples, {k: np.stack([a, a]) for k, a in feeds.items()})
    for command in (
        ("run", target, "-i", data, "-o", tmp_path / "y.npz"),
        ("verify", source, target, "--data", samples),
        ("calibrate", source, "--data", samples, "-o", tmp_path / "s.json"),
        ("lower", source, "--calibration", samples, "-o", tmp_path / "calibrated.onnx"),
    ):
        result = in_process(capfd, *command)
        assert result.code == 0, result.text
        assert " ".join(result.err.split()).count(SAID) == large, result.err
    result = in_process(capfd, "run", source, "-i", data, "-o", tmp_path / "y.npz")
    assert result.code == 0 and SAID not in result.err  # a float model has no such limit
