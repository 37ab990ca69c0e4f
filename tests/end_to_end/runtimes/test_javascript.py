"""Lowered models in Node and in WebAssembly, where no native library can be loaded.

The environment variable RNNQC_NODE_MODULES names the folder node_modules of `npm install onnxruntime-node
onnxruntime-web`. What this would catch: a construct of the function bodies, or an operator of form ort, that these
runtimes do not have or compute otherwise.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import rnnqc
from rnnqc.cells.forms import FUSED, INTEGER, ORT
from tests.runs.commands import HANGS
from tests.runs.sessions import Array, assert_same_bits, options, run, sqnr
from tests.subjects.lstm_models import RecurrentCase

SCRIPT = Path(__file__).resolve().parent / "javascript" / "run.mjs"
MODULES = os.environ.get("RNNQC_NODE_MODULES", "")
NODE, WEB = "onnxruntime-node", "onnxruntime-web"
LSTM = RecurrentCase(T=7, B=2, I=5, H=12)
ROUNDING_DB = 120.0
"""WebAssembly computes the float gates of onnxruntime's own LSTM with instructions of its own."""
MODELS: dict[str, tuple[RecurrentCase, dict[str, Any]]] = {
    "LSTM": (LSTM.replace(direction="bidirectional", lens=(7, 3), initial_h=True, initial_c=True), {}),
    "LSTM, integer": (LSTM.replace(peepholes=True), {"form": INTEGER}),
    "LSTM, int16": (LSTM, {"recipe": "int16"}),
    "LSTM, w4a8": (LSTM.replace(I=33, H=40), {"recipe": "w4a8"}),
    "GRU": (LSTM.replace(op="GRU", initial_h=True), {}),
    "RNN": (LSTM.replace(op="RNN", placement="if"), {}),
    "onnxruntime's operator": (LSTM.replace(direction="bidirectional", lens=(7, 3)), {"form": ORT}),
}


def _packed(arrays: dict[str, Array]) -> dict[str, Any]:
    return {
        n: {"type": str(a.dtype), "dims": list(a.shape), "data": base64.b64encode(a.tobytes()).decode()}
        for n, a in arrays.items()
    }


def _unpacked(found: dict[str, Any]) -> dict[str, Array]:
    return {
        n: np.frombuffer(base64.b64decode(v["data"]), v["type"]).reshape(v["dims"]).copy() for n, v in found.items()
    }


@pytest.mark.parametrize("package", [NODE, WEB])
def test_the_same_bits_as_in_python(package: str, tmp_path: Path) -> None:
    if not (Path(MODULES) / package).is_dir() or not MODULES or shutil.which("node") is None:
        pytest.skip(
            f"NOT TESTED in JavaScript: node, or {package} in the folder that RNNQC_NODE_MODULES names, is absent"
        )
    cases, expected = [], []
    for name, (layer, lowering) in MODELS.items():
        lowered = rnnqc.lower(layer.model(), strict=True, **lowering).proto
        onnx.save(lowered, tmp_path / f"{name}.onnx")
        cases.append({"file": f"{name}.onnx", "feeds": _packed(layer.feeds())})
        expected.append(run(rnnqc.session(lowered, native=False, options=options()), layer.feeds()))
    (tmp_path / "models.json").write_text(json.dumps(cases))
    environment = {**os.environ, "RNNQC_NODE_MODULES": MODULES}
    command = ["node", str(SCRIPT), package, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=HANGS, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    found = [_unpacked(outputs) for outputs in json.loads(done.stdout.splitlines()[-1])]
    for (name, (_, lowering)), wanted, outputs in zip(MODELS.items(), expected, found, strict=True):
        if package == WEB and lowering.get("form", FUSED) == ORT:
            assert all(sqnr(wanted[n], outputs[n]) > ROUNDING_DB for n in wanted), name
        else:
            assert_same_bits(wanted, outputs, f"{name} in {package}")
