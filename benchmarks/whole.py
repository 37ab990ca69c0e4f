"""Whole models in realistic use, against other ways to run them: time of a call, size, SQNR of the stream.

    python benchmarks/whole.py MODELS_FOLDER DATA_FOLDER [--models GLOB ...] [--ways GLOB ...] [--threads N]
        [--rounds N] [--json OUT.json]

One call is a frame, a symbol, a chunk or a review; frames and chunks follow each other as in the tasks of tasks.py.
Ways: onnxruntime's float model; its `quantize_dynamic` of everything but convolutions; OpenVINO float, with weights
compressed to int8 by NNCF, and quantized by NNCF with calibration data; rnnqc's default recipe with `rest="int8"`,
native, native and calibrated, and in stock onnxruntime. Sessions take turns; times are minima; "x" is onnxruntime's
float time over the way's. OpenVINO is called from Python as its users call it, with tensors set in advance. "dB" is the
SQNR of the main output over a stream of calls in which each way carries its own states, on other data than for
calibration: all of the test data of a task; "size" is that of the file over the float file. A way that does not run a
model gives the reason. "goal" is the intended speed-up.
"""

from __future__ import annotations

import argparse
import fnmatch
import logging
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnxruntime.quantization import QuantType, quantize_dynamic
from support.layers import Array
from support.reporting import report
from support.variants import plain_session
from tasks import Dtln, Feeds, Gtcrn, Imdb, ImdbGru, Rnnoise, Silero

import rnnqc
from rnnqc.evaluation.numerics import sqnr_db
from rnnqc.proto.files import load_proto
from rnnqc.timing import bound_run, session_options, take_turns, timings

Run = Callable[[Feeds], Mapping[str, Array]]
CALLS = 40
"""Number of calls for calibration, and for measurement, of models without a task."""
LM_TOKENS = 33278


@dataclass(frozen=True)
class Case:
    """A model and its use.

    Attributes:
        name: The name of the row.
        proto: The float model.
        calibration: Calls for calibration; states only in the first.
        measured: Calls for measurement, on other data; states only in the first.
        output: The main output.
        goal: The intended speed-up.
        carried: For each state input, the output that feeds it in the next call.
        lowering: Further arguments of `rnnqc.lower`.
    """

    name: str
    proto: onnx.ModelProto
    calibration: Sequence[Feeds]
    measured: Sequence[Feeds]
    output: str
    goal: float
    carried: Mapping[str, str] = field(default_factory=dict)
    lowering: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def complete(self) -> list[Feeds]:
        """Returns the calibration calls, each with the states that the float model carries there."""
        session, states, made = plain_session(self.proto, session_options()), dict[str, Array](), []
        for call in self.calibration:
            made.append({**states, **call})
            outputs = dict(zip([o.name for o in session.get_outputs()], session.run(None, made[-1]), strict=True))
            states = {name: outputs[source] for name, source in self.carried.items()}
        return made


@dataclass(frozen=True)
class Built:
    """A model that can run.

    Attributes:
        run: From the arrays of a call to the outputs.
        timed: From the arrays of a call to a function that repeats it.
        bytes: Size of its file.
    """

    run: Run
    timed: Callable[[Feeds], Callable[[], object]]
    bytes: int


def with_zeros(feeds: Sequence[Feeds], **states: tuple[int, ...]) -> list[Feeds]:
    """Returns the feeds; adds zeros for states of these shapes to the first."""
    return [{**feeds[0], **{n: np.zeros(s, np.float32) for n, s in states.items()}}, *feeds[1:]]


def halves(feeds: Sequence[Feeds], **states: tuple[int, ...]) -> tuple[list[Feeds], list[Feeds]]:
    """Returns feeds for calibration and for measurement; zeros for states of these shapes in the first of each."""
    middle = len(feeds) // 2
    return with_zeros(feeds[:middle], **states), with_zeros(feeds[middle:], **states)


def cases(models: Path, data: Path, rnnt: Callable[[], onnx.ModelProto] | None = None) -> Iterator[Case]:
    """Yields every case whose files exist.

    Args:
        models: Folder with dtln, silero_vad, gtcrn, rnnoise, vitis_rnn, byte_sb_bidi_lstm and wikitext2_lm.
        data: Folder with imdb.
        rnnt: Makes the RNN-T prediction network.
    """
    rng = np.random.default_rng(0)
    lm = models / "wikitext2_lm" / "wikitext2_lm.onnx"
    if lm.exists():
        for steps, goal in ((1, 6.0), (35, 4.0)):
            tokens = np.minimum(rng.zipf(1.3, (2 * CALLS, steps, 1)), LM_TOKENS - 1)
            feeds = halves([{"tokens": t} for t in tokens.astype(np.int64)], h0=(2, 1, 400), c0=(2, 1, 400))
            name = f"language model, {steps} token{'s' if steps > 1 else ''}"
            yield Case(name, load_proto(lm), *feeds, "logits", goal, {"h0": "hn", "c0": "cn"})
    if (models / "silero_vad" / "test.wav").exists():
        yield from _speech(models, data)
    if (models / "rnnoise").exists():
        yield _rnnoise(Rnnoise(models, data, 1.0))
    if (models / "vitis_rnn").exists() and (data / "imdb").exists():
        for kind, goal in ((Imdb, 4.6), (ImdbGru, 5.0)):
            reviews = kind(models, data, 1.0)
            feeds = [[{"tokens": t[None]} for t in tokens] for tokens in (reviews.other, reviews.tokens)]
            name = f"IMDb {'GRU' if kind is ImdbGru else 'LSTM'}, 500 tokens"
            yield Case(name, load_proto(reviews.models["model"]), *feeds, "prob", goal)
    splitter = models / "byte_sb_bidi_lstm" / "model.onnx"
    if splitter.exists():
        proto = load_proto(splitter)
        text = rng.integers(97, 123, (CALLS, 1, 256)).astype(np.uint8)
        feeds = halves([{"input": t} for t in text])
        yield Case("byte_sb, 256 bytes", proto, *feeds, proto.graph.output[0].name, 4.5)
    for batch in (1, 8) if rnnt is not None else ():
        assert rnnt is not None
        symbols = rng.integers(0, 1025, (2 * CALLS, 1, batch))
        calls = [{"token": s, "frame": rng.standard_normal((batch, 640)).astype(np.float32)} for s in symbols]
        feeds = halves(calls, h=(2, batch, 640), c=(2, batch, 640))
        yield Case(f"RNN-T, batch {batch}", rnnt(), *feeds, "logits", 5.0, {"h": "h_next", "c": "c_next"})


def _speech(models: Path, data: Path) -> Iterator[Case]:
    """Yields the cases with the recording of speech: all of a task's test data, in order."""
    if (models / "dtln").exists():
        task = Dtln(models, data, 1.0)
        floats = {n: plain_session(load_proto(p), session_options()) for n, p in task.models.items()}
        of_calibration, of_test = task.calibration(floats), task.calls(floats, task.frames(task.noisy))
        for name, state, output, goal in (
            ("model_1", "input_3", "activation_2", 4.0),
            ("model_2", "input_5", "conv1d_3", 2.0),
        ):
            feeds = [with_zeros(f[name], **{state: task.ZERO.shape}) for f in (of_calibration, of_test)]
            yield Case(f"DTLN {name}", load_proto(task.models[name]), *feeds, output, goal, task.carried[name])
    vad = Silero(models, data, 1.0)
    lowering = {"bind": {"sr": 16000}, "dims": {"batch": 1, "sequence": vad.CHUNK + vad.CONTEXT}}
    calls = vad.calibration({})["model"], with_zeros(vad.feeds(vad.measured), state=(2, 1, 128))
    proto = load_proto(vad.models["model"])
    yield Case("Silero VAD, 16 kHz", proto, *calls, "output", 1.6, vad.carried["model"], lowering)
    if (models / "gtcrn").exists():
        enhancer = Gtcrn(models, data, 1.0)
        calls = enhancer.calibration({})["model"], with_zeros(enhancer.feeds(enhancer.measured), **enhancer.CACHES)
        yield Case("GTCRN", load_proto(enhancer.models["model"]), *calls, "enh", 1.5, enhancer.carried["model"])


def _rnnoise(task: Rnnoise) -> Case:
    """The features frame by frame; the first tenth is for calibration, and not measured."""
    states = {n: (1, 1, k) for n, k in task.STATES.items()}
    proto, part = load_proto(task.models["model"]), len(task.features) // task.CALIBRATION_PART
    carried = dict(zip(states, [o.name for o in proto.graph.output if o.name not in ("gains", "vad")], strict=True))
    frames = [{"features": f[None]} for f in task.features]
    feeds = with_zeros(frames[:part], **states), with_zeros(frames[part:], **states)
    return Case("RNNoise", proto, *feeds, "gains", 2.0, carried)


def in_onnxruntime(proto: onnx.ModelProto, threads: int, native: bool | None = None) -> Built:
    """Returns a model in onnxruntime, with or without rnnqc's library; `native` is None for a model of another tool."""
    options = session_options(threads)
    session = plain_session(proto, options) if native is None else rnnqc.session(proto, native=native, options=options)
    names, inputs = [o.name for o in session.get_outputs()], {i.name for i in session.get_inputs()}

    def run(feeds: Feeds) -> Mapping[str, Array]:
        return dict(zip(names, session.run(names, {k: v for k, v in feeds.items() if k in inputs}), strict=True))

    return Built(run, lambda feeds: bound_run(session, feeds), proto.ByteSize())


def _float(case: Case, threads: int) -> Built:
    return in_onnxruntime(case.proto, threads)


def _dynamic(case: Case, threads: int) -> Built:
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder, "float.onnx"), Path(folder, "dynamic.onnx")
        onnx.save(case.proto, source)
        kinds = ["MatMul", "Gemm", "Gather", "LSTM", "EmbedLayerNormalization", "Attention"]
        quantize_dynamic(source, target, op_types_to_quantize=kinds, weight_type=QuantType.QInt8)
        return in_onnxruntime(onnx.load(target), threads)


def _rnnqc(native: bool, calibrated: bool = False) -> Callable[[Case, int], Built]:
    def make(case: Case, threads: int) -> Built:
        data = {"calibration": case.calibration, "state": case.carried} if calibrated else {}
        return in_onnxruntime(rnnqc.lower(case.proto, rest="int8", **case.lowering, **data).proto, threads, native)

    return make


def _openvino(kind: str) -> Callable[[Case, int], Built]:
    def make(case: Case, threads: int) -> Built:
        import openvino as ov

        core = ov.Core()
        model = core.read_model(case.proto.SerializeToString())
        if kind != "float":
            import nncf

            nncf.set_log_level(logging.ERROR)
            if kind == "weights":
                model = nncf.compress_weights(model, mode=nncf.CompressWeightsMode.INT8_SYM)
            else:
                model = nncf.quantize(model, nncf.Dataset(case.complete), subset_size=len(case.complete))
        options = {
            "INFERENCE_NUM_THREADS": threads, "NUM_STREAMS": 1, "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_PRECISION_HINT": "f32",
        }  # fmt: skip
        request = core.compile_model(model, "CPU", options).create_infer_request()
        with tempfile.TemporaryDirectory() as folder:
            ov.save_model(model, Path(folder, "model.xml"), compress_to_fp16=False)
            size = sum(p.stat().st_size for p in Path(folder).iterdir())

        def run(feeds: Feeds) -> Mapping[str, Array]:
            set_(feeds)
            request.infer()
            outputs = request.model_outputs
            return {n: np.array(request.get_tensor(p).data) for p in outputs for n in p.get_names()}

        def set_(feeds: Feeds) -> None:
            for port in request.model_inputs:
                request.set_tensor(
                    port, ov.Tensor(np.ascontiguousarray(next(feeds[n] for n in port.get_names() if n in feeds)))
                )

        def timed(feeds: Feeds) -> Callable[[], object]:
            set_(feeds)
            return request.infer

        return Built(run, timed, size)

    return make


FLOAT = "ort float"
WAYS: dict[str, Callable[[Case, int], Built]] = {
    FLOAT: _float,
    "ort quantize_dynamic": _dynamic,
    "openvino float": _openvino("float"),
    "openvino int8 weights": _openvino("weights"),
    "openvino int8 calibrated": _openvino("calibrated"),
    "rnnqc int8": _rnnqc(native=True),
    "rnnqc int8 calibrated": _rnnqc(native=True, calibrated=True),
    "rnnqc int8 stock": _rnnqc(native=False),
}


def streamed(run: Run, case: Case) -> Array:
    """Returns the main output of all measurement calls; the model carries its own states."""
    states: dict[str, Array] = {}
    made = []
    for call in case.measured:
        outputs = run({**call, **states})
        states = {name: outputs[source] for name, source in case.carried.items()}
        made.append(np.asarray(outputs[case.output], np.float32))
    return np.stack(made)


def _attempt(make: Callable[[Case, int], Built], case: Case, threads: int) -> tuple[Built, Array] | str:
    """Returns a way with its main output, or the reason why it does not run the model."""
    try:
        made = make(case, threads)
        return made, streamed(made.run, case)
    except Exception as error:
        lines = [line for line in str(error).splitlines() if line.strip()]
        return f"does not run it: {lines[-1].strip()[:60] if lines else type(error).__name__}"


def measure(case: Case, ways: Sequence[str], threads: int, rounds: int) -> list[dict[str, Any]]:
    """Returns a row for each way, always including the float model."""
    built: dict[str, Built] = {}
    outputs: dict[str, Array] = {}
    refused: dict[str, str] = {}
    for way in (FLOAT, *(w for w in ways if w != FLOAT)):
        made = _attempt(WAYS[way], case, threads)
        if isinstance(made, str):
            refused[way] = made
        else:
            built[way], outputs[way] = made
    runs = {way: b.timed(case.complete[1 % len(case.complete)]) for way, b in built.items()}
    rows = []
    for t in timings(take_turns(runs, rounds)):
        made, db = built[t.name], sqnr_db(outputs[FLOAT], outputs[t.name])
        rows.append({
            "model": case.name, "way": t.name, "us": t.min_us, "x": t.speedup,
            "goal": case.goal if t.name.startswith("rnnqc int8") and "stock" not in t.name else "",
            "kB": made.bytes / 1e3, "size": made.bytes / built[FLOAT].bytes,
            "dB": "" if t.name == FLOAT else min(db, 200.0), "note": "",
        })  # fmt: skip
    empty = dict.fromkeys(("us", "x", "goal", "kB", "size", "dB"), "")
    return rows + [{"model": case.name, "way": w, **empty, "note": text} for w, text in refused.items()]


def main() -> None:
    """Measures, prints, writes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", type=Path, metavar="MODELS_FOLDER")
    parser.add_argument("data", type=Path, metavar="DATA_FOLDER")
    parser.add_argument("--models", dest="patterns", nargs="+", default=["*"], metavar="GLOB")
    parser.add_argument("--ways", nargs="+", default=["*"], metavar="GLOB")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--json", type=Path)
    a = parser.parse_args()
    ways = [w for w in WAYS if any(fnmatch.fnmatchcase(w, p) for p in a.ways)]
    rows: list[dict[str, Any]] = []
    for case in cases(a.models, a.data, _rnnt()):
        if any(fnmatch.fnmatchcase(case.name, p) for p in a.patterns):
            rows += measure(case, ways, a.threads, a.rounds)
            report(f"whole models, {a.threads} thread(s), against onnxruntime float", rows, a.json)


def _rnnt() -> Callable[[], onnx.ModelProto]:
    """Returns the constructor of the network of examples/rnnt.py."""
    import runpy

    made: Callable[[], onnx.ModelProto] = runpy.run_path(str(Path(__file__).parents[1] / "examples" / "rnnt.py"))[
        "prediction_network"
    ]
    return made


if __name__ == "__main__":
    main()
