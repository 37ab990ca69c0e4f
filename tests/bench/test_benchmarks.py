"""The benchmarks compute and compare what they claim. No test depends on measured times.

What these would catch: a roofline with another formula, ratios the wrong way round, a way that runs something else than
its name says, processes that go on running when it is not their turn.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import peers
import pytest
from peer_ways import WAYS, Ort, quality, write_weights
from roofline import LEVELS, Limits, Meter, bits_of, macs, streamed_bytes
from support import turns
from support.layers import Layer
from support.turns import Worker, WorkerError, compiled

import rnnqc
from tests.passes.pass_testing import plain_op

LAYER = Layer.parse("3x2x8x16", states=True)
needs_compiler = pytest.mark.skipif(
    not (os.environ.get("CXX") or any(map(shutil.which, ("c++", "g++", "clang++")))), reason="no C++ compiler"
)
needs_linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("programs")


@pytest.fixture(autouse=True)
def own_folder(monkeypatch: pytest.MonkeyPatch, programs: Path) -> None:
    """Programs are compiled once, into a folder of the tests."""
    monkeypatch.setattr(turns.tempfile, "gettempdir", lambda: str(programs))


def script(tmp_path: Path, text: str) -> list[str | Path]:
    (tmp_path / "worker.py").write_text(text)
    return [sys.executable, tmp_path / "worker.py"]


@needs_linux
def test_a_worker_runs_only_when_it_is_asked(tmp_path: Path) -> None:
    echo = "import json, sys\nprint('{}', flush=True)\nfor l in sys.stdin: print(json.dumps({'said': l}), flush=True)"
    worker = Worker("echo", script(tmp_path, echo))
    try:
        assert worker.receive() == {}
        for _ in range(2):
            assert worker.burst(0.5) == {"said": "burst 0.5\n"}
            state = Path(f"/proc/{worker._process.pid}/stat").read_text().rpartition(")")[2].split()[0]
            assert state == "T"
    finally:
        worker.close()
    assert worker._process.poll() is not None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("""print('{"missing": "pip install it"}')""", "pip install it"),
        ("""print('{"error": "no such thing"}')""", "no such thing"),
        ("raise SystemExit('what went wrong')", "ended with code 1: what went wrong"),
    ],
)
def test_what_a_worker_lacks_is_said(text: str, message: str, tmp_path: Path) -> None:
    worker = Worker("broken", script(tmp_path, text))
    try:
        with pytest.raises(WorkerError, match=message):
            worker.receive()
    finally:
        worker.close()


def test_a_worker_that_ends_in_its_turn(tmp_path: Path) -> None:
    worker = Worker("short", script(tmp_path, "print('{}', flush=True)\ninput()\nraise SystemExit('over')"))
    try:
        worker.receive()
        with pytest.raises(WorkerError, match="ended with code 1: over"):
            worker.burst(0.1)
        with pytest.raises(WorkerError, match="ended with code 1"):
            worker.burst(0.1)
        worker.stop()
    finally:
        worker.close()


@needs_compiler
def test_a_compiler_error_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(turns, "SOURCES", tmp_path)
    (tmp_path / "bad.cc").write_text("int main() { return nothing; }")
    with pytest.raises(WorkerError, match=r"bad\.cc does not compile: .*"):
        compiled("bad.cc")


def test_roofline() -> None:
    """By hand, with round numbers: 4H(I+H) = 1000 * 1000 weights, peak 100, 10 GB/s for all, 20 for half of R."""
    layer = Layer(T=10, B=1, I=750, H=250)
    assert (macs(layer), streamed_bytes(layer, 8)) == (10_000_000, 750_000 + 10 * 250_000)
    limits = Limits("some", 100.0, {250_000: 10.0, 125_000: 20.0, 1_000_000: 5.0, 500_000: 8.0})
    projection = 10 * 750_000 / 100e3
    assert limits.microseconds(layer) == pytest.approx(projection + 10 * 250_000 / 10e3), "streaming is the limit"
    assert limits.microseconds(layer, 4) == pytest.approx(projection + 10 * 125_000 / 20e3)
    wide = Layer(T=10, B=20, I=750, H=250)
    assert limits.microseconds(wide) == pytest.approx(20 * projection + 10 * 20 * 250_000 / 100e3), "the product is"
    single = Layer(T=1, B=1, I=750, H=250)
    assert limits.microseconds(single) == pytest.approx(1_000_000 / 5e3)
    assert limits.microseconds(single, 4) == pytest.approx(500_000 / 8e3)


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize("shape", ["3x2x8x16", "1x1x8x16"])
def test_the_meter_measures_what_the_roofline_needs(shape: str) -> None:
    meter = Meter(1, "portable")
    try:
        meter.prepare(Layer.parse(shape))
        for _ in range(2):
            meter.burst(0.01)
        limits = meter.limits
    finally:
        meter.worker.close()
    assert limits.isa == "portable"
    assert limits.peak > 0 and all(rate > 0 for rate in limits.rates.values())
    assert set(LEVELS.values()) < limits.rates.keys()
    assert limits.microseconds(Layer.parse(shape)) > 0 and limits.microseconds(Layer.parse(shape), 4) > 0


@needs_compiler
def test_unknown_instruction_set() -> None:
    with pytest.raises(WorkerError, match="a processor with nonsense"):
        Meter(1, "nonsense")


def record(**times: float) -> dict[str, Any]:
    way = {"median_us": 0.0, "sqnr_db": 30.0, "disturbed_rounds": 0, "version": ""}
    sizes = (1024, 512)
    return {
        "shape": "3x2x8x16", "threads": 1,
        "ways": {name.replace("_", " "): {"min_us": us, **way} for name, us in times.items()},
        "limits": {"isa": "some", "peak": 9.216, "rates": {str(n): 9.216 for n in sizes}},
    }  # fmt: skip


def test_rows_and_summary() -> None:
    """8 us float, 4 and 5 us int8 peers, 2 us rnnqc; 3*2*4*16*(8+16) = 9216 products, at the peak 1 us."""
    held = record(ort_float=8.0, onednn_int8=4.0, torch_int8=5.0, rnnqc_int8=2.0, rnnqc_stock=40.0)
    by_way = {r["way"]: r for r in peers.rows(held)}
    mine = by_way["rnnqc int8"]
    assert (mine["x ort float"], mine["x int8 peer"]) == (4.0, 2.0)
    assert mine["of roofline"] == pytest.approx(0.5)
    assert mine["GMAC/s"] == pytest.approx(4.608)
    assert by_way["torch int8"]["x int8 peer"] == pytest.approx(0.8)
    assert by_way["ort float"]["of roofline"] == "", "the roofline is that of int8"
    (row,) = peers.summary([held])
    assert (row["best int8 peer"], row["peer us"], row["int8 x float"], row["int8 x peer"]) == (
        "onednn int8", 4.0, 4.0, 2.0,
    )  # fmt: skip
    assert row["int4 x peer"] == "", "was not measured"
    (alone,) = peers.summary([record(rnnqc_int8=2.0)])
    assert (alone["best int8 peer"], alone["int8 x float"]) == ("", "")


def test_bits() -> None:
    assert {n: bits_of(n) for n in ("rnnqc int4", "rnnqc stock", "ort int8 tensor", "torch float")} == {
        "rnnqc int4": 4, "rnnqc stock": 8, "ort int8 tensor": 8, "torch float": 32,
    }  # fmt: skip


def test_selected() -> None:
    assert peers.selected(["a x", "a y", "b x"], ["b*", "*y"]) == ["a y", "b x"]
    with pytest.raises(SystemExit, match="'c': no such way; there are a x, a y"):
        peers.selected(["a x", "a y"], ["a*", "c"])


def test_layers_with_states() -> None:
    assert {i.name for i in LAYER.model().graph.input} == set(LAYER.feeds()) == {"X", "h0", "c0"}
    assert [o.name for o in LAYER.model().graph.output] == ["Y", "Y_h", "Y_c"]
    onnx.checker.check_model(LAYER.model(), full_check=True)


@pytest.mark.parametrize(
    ("name", "op"),
    [
        ("ort float", "LSTM"),
        ("ort int8 tensor", "DynamicQuantizeLSTM"),
        ("ort int8 channel", "DynamicQuantizeLSTM"),
        ("rnnqc int8", "QuantLSTMCell"),
        ("rnnqc int4", "QuantLSTMCell"),
        ("rnnqc stock", "QuantLSTMCell"),
    ],
)
def test_models_of_onnxruntime(name: str, op: str) -> None:
    way = WAYS[name](1)
    assert isinstance(way, Ort)
    assert way.native == (name in ("rnnqc int8", "rnnqc int4"))
    assert [plain_op(n.op_type) for n in way.model(LAYER).graph.node].count(op) == 1


def test_weights_for_other_languages(tmp_path: Path) -> None:
    """Gates i f c o in the last axis but one, from ONNX's rows i o f c."""
    write_weights(LAYER, tmp_path)
    ours = np.fromfile(tmp_path / "w.f32", np.float32).reshape(LAYER.I, 4, LAYER.H)
    theirs = next(onnx.numpy_helper.to_array(t) for t in LAYER.model().graph.initializer if t.name == "W0")[0]
    for gate, rows in enumerate((0, 2, 3, 1)):
        assert (theirs[rows * LAYER.H :][: LAYER.H] == ours[:, gate].T).all()


@pytest.mark.few(1)
@needs_linux
@needs_compiler
@pytest.mark.parametrize("name", ["rnnqc int8", "rnnqc stock", "ort float", "ort identity"])
def test_ways_of_onnxruntime_run(name: str) -> None:
    """Through the C API: the same Y as in Python, for one layer after the other."""
    way = WAYS[name](1)
    assert isinstance(way, Ort)
    try:
        for shape in ("3x2x8x16", "1x1x8x5"):
            layer = Layer.parse(shape, states=True)
            sqnr_db = way.prepare(layer)
            session = rnnqc.session(way.model(layer), native=way.native)
            if name == "ort identity":
                assert sqnr_db is None
            else:
                assert sqnr_db == pytest.approx(quality(layer, session.run(["Y"], layer.feeds())[0]))
            assert way.burst(0.0)["runs"] == 1
    finally:
        way.worker.close()
