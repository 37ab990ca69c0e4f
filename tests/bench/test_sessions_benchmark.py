"""The benchmark of session creation. No test depends on measured times.

What these would catch: a way that creates another session than its name says, models that are not lowered among the
rows, sums that are not sums.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import sessions

import rnnqc
from tests.generate.layers import RecurrentCase
from tests.subjects.protos import parse

CASE = RecurrentCase()


def test_ways(tmp_path: Path) -> None:
    onnx.save(CASE.model(), tmp_path / "float.onnx")
    rnnqc.lower(tmp_path / "float.onnx").save(tmp_path / "lowered.onnx")
    made = {w: c() for w, c in sessions.creators(tmp_path / "float.onnx", tmp_path / "lowered.onnx").items()}
    outputs = {}
    for way, session in made.items():
        assert isinstance(session, ort.InferenceSession)
        outputs[way] = session.run(["Y"], CASE.feeds())[0]
    assert all(np.array_equal(outputs["session"], outputs[way]) for way in ("register", "stock"))
    assert not np.array_equal(outputs["float"], outputs["stock"])


def test_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        onnx.save(CASE.model(), tmp_path / name / "model.onnx")
    plain = parse('<ir_version: 8, opset_import: ["": 17]> g (float[2] x) => (float[2] y) { y = Neg(x) }')
    onnx.save(plain, tmp_path / "plain.onnx")
    (tmp_path / "broken.onnx").write_bytes(b"none")
    monkeypatch.setattr(
        "sys.argv",
        ["sessions.py", str(tmp_path), "--rounds", "1", "--new", "1", "--json", str(tmp_path / "out.json")],
    )
    sessions.main()
    ort.set_default_logger_severity(2)
    rows = json.loads((tmp_path / "out.json").read_text())["rows"]
    assert [r["model"] for r in rows] == ["a/model.onnx", "b/model.onnx", "all"]
    for way in ("float", "session", "register", "stock", "new float", "new session", "new register"):
        assert rows[2][way] == pytest.approx(rows[0][way] + rows[1][way])
        assert rows[0][way] > 0
    assert rows[0]["x"] == pytest.approx(rows[0]["float"] / rows[0]["session"])


def test_a_folder_without_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["sessions.py", str(tmp_path)])
    with pytest.raises(SystemExit, match=r"no \.onnx file that rnnqc lowers"):
        sessions.main()
