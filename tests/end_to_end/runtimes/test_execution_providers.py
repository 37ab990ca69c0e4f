"""Sessions that name another execution provider before the CPU's: cells run on the CPU, and nothing crashes.

What these would catch: a native operator or a function body that a provider claims and cannot run, outputs of a
provider that the native operators cannot read, a library that is registered for one provider only.

The environment variable RNNQC_OPENVINO_ONNXRUNTIME names a folder made by `pip install --no-deps --target FOLDER
onnxruntime-openvino`: a provider that takes what it can of a model away from the CPU.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest

import rnnqc
from rnnqc.cells.forms import FUSED, INTEGER, QCDQ
from tests.generate.layers import RecurrentCase
from tests.runs.commands import HANGS
from tests.runs.lowered import NATIVE, STOCK
from tests.runs.sessions import Outputs, assert_same_bits, options, run, sqnr

OPENVINO = os.environ.get("RNNQC_OPENVINO_ONNXRUNTIME")
WAYS = (STOCK, NATIVE)
LSTM = RecurrentCase(T=7, B=2, I=5, H=12, direction="bidirectional", lens=(7, 3), initial_h=True, initial_c=True)
PLAIN = "LSTM of one direction"
CASES = {
    "LSTM": LSTM,
    PLAIN: RecurrentCase(T=7, B=2, I=5, H=12),
    "GRU": LSTM.replace(op="GRU", initial_c=False),
    "RNN": LSTM.replace(op="RNN", initial_c=False),
}
ABSENT = ("CUDAExecutionProvider", "DmlExecutionProvider", "CoreMLExecutionProvider", "QNNExecutionProvider")


Lowered = dict[str, tuple[onnx.ModelProto, Outputs]]


@pytest.fixture(scope="module")
def lowered() -> Lowered:
    """Every cell in form fused, and its outputs on the CPU."""
    made = {name: rnnqc.lower(layer.model(), strict=True).proto for name, layer in CASES.items()}
    return {
        name: (model, run(rnnqc.session(model, native=False, options=options()), CASES[name].feeds()))
        for name, model in made.items()
    }


@pytest.mark.few(2)
@pytest.mark.filterwarnings("ignore:Specified provider")
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("provider", [*ABSENT, *ort.get_available_providers()])
def test_a_provider_before_the_cpu(provider: str, way: str, lowered: Lowered) -> None:
    """Absent ones, which onnxruntime warns of, and all that this onnxruntime has."""
    for name, (model, expected) in lowered.items():
        chosen = options()
        if way == NATIVE:
            rnnqc.runtime_ops.register(chosen)
        providers = list(dict.fromkeys([provider, "CPUExecutionProvider"]))
        session = ort.InferenceSession(model.SerializeToString(), chosen, providers=providers)
        assert session.get_providers()[-1] == "CPUExecutionProvider"
        assert_same_bits(expected, run(session, CASES[name].feeds()), f"{name} with {provider}, {way}")


RUN = """
import json
import sys
import numpy as np
import onnxruntime as ort

folder, library = sys.argv[1:]
said = []
for name, form, native in json.loads(open(f"{folder}/cases.json").read()):
    options = ort.SessionOptions()
    options.log_severity_level = 4
    if native:
        options.register_custom_ops_library(library)
    try:
        providers = ["OpenVINOExecutionProvider", "CPUExecutionProvider"]
        session = ort.InferenceSession(f"{folder}/{name}-{form}.onnx", options, providers=providers)
        assert session.get_providers() == providers
        with np.load(f"{folder}/{name}.npz") as feeds:
            np.savez(f"{folder}/{name}-{form}-{native}.found.npz", *session.run(None, dict(feeds)))
        said.append("ran")
    except Exception as error:
        said.append(str(error))
print(json.dumps(said))
"""
ROUNDING_DB = 120.0
"""OpenVINO computes float operators that it takes with instructions of its own."""
FORMS = (FUSED, INTEGER, QCDQ)


def _openvino_said(folder: Path, cases: list[tuple[str, str, bool]]) -> list[str]:
    (folder / "cases.json").write_text(json.dumps(cases))
    done = subprocess.run(
        [sys.executable, "-c", RUN, str(folder), str(rnnqc.runtime_ops.library_path())],
        env={**os.environ, "PYTHONPATH": str(OPENVINO)},
        capture_output=True,
        text=True,
        check=False,
        timeout=HANGS,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    said: list[str] = json.loads(done.stdout.splitlines()[-1])
    return said


@pytest.mark.skipif(not OPENVINO, reason="NOT TESTED with OpenVINO's provider: set RNNQC_OPENVINO_ONNXRUNTIME")
def test_openvino_before_the_cpu(tmp_path: Path, lowered: Lowered) -> None:
    """Results are right, native cells bit-exact. OpenVINO takes parts of a file; it refuses some files altogether."""
    for name, layer in CASES.items():
        np.savez(tmp_path / f"{name}.npz", **layer.feeds())  # type: ignore[arg-type]
        for form in FORMS:
            made = lowered[name][0] if form == FUSED else rnnqc.lower(layer.model(), form=form, strict=True).proto
            onnx.save(made, tmp_path / f"{name}-{form}.onnx")
    cases = [(name, form, native) for name in CASES for form in FORMS for native in (False, True)]
    for (name, form, native), said in zip(cases, _openvino_said(tmp_path, cases), strict=True):
        if said != "ran":
            assert (name, form) != (PLAIN, FUSED), said
            assert "openvino" in said.lower(), (name, form, native, said)
            continue
        expected = lowered[name][1]
        with np.load(tmp_path / f"{name}-{form}-{native}.found.npz") as found:
            outputs = dict(zip(expected, (found[key] for key in found.files), strict=True))
        if native and form == FUSED:
            assert_same_bits(expected, outputs, f"{name} with OpenVINO, native")
        else:
            assert all(sqnr(expected[n], outputs[n]) > ROUNDING_DB for n in expected), (name, form, native)
