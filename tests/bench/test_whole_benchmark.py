"""benchmarks/whole.py and examples/rnnt.py measure what the names of their ways say. No test looks at times.

What these would catch: a way that runs another model than its name says, streams that share states, ratios the wrong
way round, decoding that takes states of blanks.
"""

from __future__ import annotations

import runpy
from pathlib import Path

import numpy as np
import pytest
import whole

import rnnqc
from rnnqc.evaluation.numerics import sqnr_db

RNNT = runpy.run_path(str(Path(__file__).parents[2] / "examples" / "rnnt.py"))
WAYS = (whole.FLOAT, "ort quantize_dynamic", "rnnqc int8", "rnnqc int8 stock")


@pytest.mark.slow
def test_rows(tmp_path: Path) -> None:
    """The rows of the RNN-T network, the only case without files."""
    one, eight = whole.cases(tmp_path, tmp_path, RNNT["prediction_network"])
    assert [c["token"].shape for c in (one.calibration[0], eight.calibration[0])] == [(1, 1), (1, 8)]
    for calls in (one.calibration, one.measured):
        assert set(calls[0]) > set(calls[1]), "states come with the first call alone"
    rows = {r["way"]: r for r in whole.measure(one, WAYS, threads=1, rounds=1)}
    assert tuple(rows) == WAYS
    assert rows[whole.FLOAT]["x"] == rows[whole.FLOAT]["size"] == 1
    assert rows[whole.FLOAT]["dB"] == "", "it is what the others are measured against"
    for way in WAYS[1:]:
        assert rows[way]["x"] == rows[whole.FLOAT]["us"] / rows[way]["us"]
        assert rows[way]["size"] < 0.27
        assert rows[way]["dB"] > 35
    assert rows["rnnqc int8"]["dB"] == rows["rnnqc int8 stock"]["dB"]


def test_a_way_that_fails_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(case: whole.Case, threads: int) -> whole.Built:
        raise RuntimeError("first\nno such operator\n")

    monkeypatch.setitem(whole.WAYS, "openvino float", fails)
    (case, _) = whole.cases(tmp_path, tmp_path, RNNT["prediction_network"])
    rows = whole.measure(case, ("openvino float",), threads=1, rounds=1)
    assert [(r["way"], r["note"]) for r in rows][1:] == [("openvino float", "does not run it: no such operator")]


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize("batch", [1, 3])
def test_decoding(batch: int) -> None:
    """Rows of a batch do not depend on each other, and the quantized network finds nearly the same symbols."""
    model, frames = RNNT["prediction_network"](), RNNT["frames_of"](6, batch)
    session = rnnqc.session(model, native=False)
    found, logits, _ = RNNT["decode"](session, frames)
    for row in range(batch):
        assert RNNT["decode"](session, frames[:, row : row + 1])[0][0] == found[row]
    lowered = rnnqc.lower(model, rest="int8").proto
    others, quantized, _ = RNNT["decode"](rnnqc.session(lowered), frames)
    assert sqnr_db(logits[0], quantized[0]) > 35
    assert np.mean([x == y for a, b in zip(found, others, strict=True) for x, y in zip(a, b, strict=False)]) > 0.8
