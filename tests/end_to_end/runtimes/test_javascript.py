"""Lowered models in Node and in WebAssembly, where no native library can be loaded.

The environment variable RNNQC_NODE_MODULES names the folder node_modules of `npm install onnxruntime-node
onnxruntime-web`. What this would catch: a construct of the function bodies, or an operator of form ort, that these
runtimes do not have or compute otherwise.
"""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import rnnqc
from rnnqc.cells.forms import FUSED, INTEGER, ORT
from tests.generate.layers import RecurrentCase
from tests.runs.commands import HANGS
from tests.runs.sessions import Array, assert_same_bits, options, run, sqnr

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


@pytest.mark.slow
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


ROUNDING_DB_OF_FLOATS = 90.0
BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
PAGE = Path(__file__).resolve().parents[3] / "examples" / "web" / "stream.html"


@pytest.fixture
def site(tmp_path: Path) -> Iterator[str]:
    """The address of the example, served with onnxruntime-web beside it, from the test's folder."""
    if not (Path(MODULES) / WEB).is_dir() or not MODULES or BROWSER is None:
        pytest.skip(f"NOT TESTED in a browser: Chromium, or {WEB} in the folder RNNQC_NODE_MODULES names, is absent")
    shutil.copy(PAGE, tmp_path)
    (tmp_path / "dist").symlink_to(Path(MODULES) / WEB / "dist")
    handler = partial(SimpleHTTPRequestHandler, directory=str(tmp_path))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


STREAMS: dict[str, tuple[tuple[int, ...], str, dict[str, str], str]] = {
    "lstm_states": ((7, 1, 3), "X", {"h0": "hn", "c0": "cn"}, "Y"),
    "DTLN": ((1, 1, 257), "input_2", {"input_3": "tf_op_layer_stack_2"}, "activation_2"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", STREAMS)
def test_a_stream_in_a_browser(name: str, site: str, tmp_path: Path, shared: Callable[[str], Path]) -> None:
    """A model with its states going round, as the example's page runs it; one is a speech denoiser."""
    assert BROWSER is not None
    shape, samples, states, result = STREAMS[name]
    tiny = Path(__file__).resolve().parents[3] / "models" / "tiny" / f"{name}.onnx"
    lowered = rnnqc.lower(shared("models/dtln/model_1.onnx") if name == "DTLN" else tiny, strict=True)
    lowered.save(tmp_path / "lowered.onnx")
    frames = np.random.default_rng(0).normal(0, 1, (60, *shape)).astype(np.float32)
    frames.tofile(tmp_path / "frames.f32")
    session = rnnqc.session(lowered.proto, native=False)
    sizes = {i.name: [d if isinstance(d, int) else 1 for d in i.shape] for i in session.get_inputs()}
    fed, expected = {n: np.zeros(sizes[n], np.float32) for n in states}, []
    for frame in frames:
        output, *after = session.run([result, *states.values()], {samples: frame, **fed})
        fed = dict(zip(states, after, strict=True))
        expected.append(np.ravel(output))
    query = f"model=lowered.onnx&samples=frames.f32&steps={shape[0]}&milliseconds=8"
    query += "&states=" + ",".join(f"{before}:{after}" for before, after in states.items())
    command = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}"]
    command += ["--virtual-time-budget=600000", "--dump-dom", f"{site}/stream.html?{query}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=HANGS)
    said = re.search(r'id="result">([^<]*)<', done.stdout)
    assert said is not None and said[1].startswith("60 chunks of 8 ms"), (said and said[1], done.stderr[-2000:])
    text = re.search(r'id="outputs" hidden="">([^<]*)<', done.stdout)
    assert text is not None
    found = np.frombuffer(base64.b64decode(text[1]), np.float32)
    if name == "DTLN":  # the layers around the lowered ones are float, whose last bits are WebAssembly's own
        assert sqnr(np.concatenate(expected), found) > ROUNDING_DB_OF_FLOATS
    else:
        assert np.concatenate(expected).tobytes() == found.tobytes()
