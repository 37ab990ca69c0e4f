"""Measuring models: what is run, how, and what is refused. No test looks at how long anything took.

What these would catch: a way that is measured under another's name, options that do not reach the session, sessions
that do not take turns, inputs that are not those asked for.
"""

from __future__ import annotations

import functools
from collections.abc import Collection
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest

import rnnqc
import rnnqc.timing
from rnnqc.errors import CompileError, UsageError
from rnnqc.timing import bench, bound_run, burst, session_options, take_turns, timings
from tests.generate.layers import RecurrentCase
from tests.passes.pass_testing import plain_op
from tests.runs.sessions import save_arrays
from tests.subjects.brevitas.models import Exported, random_lstm
from tests.subjects.protos import parse

CASE = RecurrentCase(T=4, B=2, I=3, H=5, dynamic_time=True, dynamic_batch=True)


@pytest.fixture
def source(tmp_path: Path) -> str:
    onnx.save(CASE.model(), tmp_path / "float.onnx")
    return str(tmp_path / "float.onnx")


@pytest.fixture
def lowered(tmp_path: Path) -> str:
    (tmp_path / "lowered.onnx").write_bytes(_lowered())
    return str(tmp_path / "lowered.onnx")


@functools.cache
def _lowered() -> bytes:
    """The file of the lowered layer."""
    return rnnqc.lower(CASE.model()).proto.SerializeToString()


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> list[ort.InferenceSession]:
    """One run a burst; the sessions that were made, in order."""
    made: list[ort.InferenceSession] = []
    original = rnnqc.timing.session

    def spy(*arguments: object, **options: object) -> ort.InferenceSession:
        made.append(original(*arguments, **options))
        return made[-1]

    monkeypatch.setattr(rnnqc.timing, "session", spy)
    monkeypatch.setattr(rnnqc.timing, "burst", lambda run, seconds: burst(run, 0.0, 0.0))
    return made


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> list[ort.SessionOptions]:
    """The session options that the native library was registered with."""
    seen: list[ort.SessionOptions] = []
    original = rnnqc.runtime_ops.register

    def spy(options: ort.SessionOptions, operators: Collection[str] | None = None) -> None:
        seen.append(options)
        original(options, operators)

    monkeypatch.setattr(rnnqc.runtime_ops, "register", spy)
    return seen


def names(result: rnnqc.timing.Measurement) -> list[str]:
    return [t.name for t in result.timings]


def test_ways(
    source: str,
    lowered: str,
    quick: list[ort.InferenceSession],
    registered: list[ort.SessionOptions],
    tmp_path: Path,
) -> None:
    without_library = str(tmp_path / "ort.onnx")
    rnnqc.lower(source, form="ort").save(without_library)
    for model, against, expected in (
        (lowered, None, ["stock", "native"]),
        (lowered, source, ["float", "stock", "native"]),
        (source, None, ["float", "stock", "native", "ort"]),
        (without_library, source, ["float", "stock"]),
    ):
        quick.clear()
        registered.clear()
        result = bench(model, against, rounds=3)
        assert names(result) == expected
        assert len(quick) == len(expected)
        assert len(registered) == expected.count("native"), "no other session has the native library"
        assert [t.runs for t in result.timings] == [3] * len(expected)
        assert result.timings[0].speedup == 1.0
        assert result.isa == (rnnqc.runtime_ops.isa() if "native" in expected else "")
        assert result.float_entries == []


def test_sessions_are_what_their_names_say(
    lowered: str, source: str, quick: list[ort.InferenceSession], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The optimized graph holds the fused node where the library runs, and a loop of standard operators elsewhere."""
    paths = {n: tmp_path / f"{n}_optimized.onnx" for n in ("float", "stock", "native")}
    queue = list(paths.values())

    def options(threads: int) -> ort.SessionOptions:
        result = session_options(threads)
        result.optimized_model_filepath = str(queue.pop(0))
        return result

    monkeypatch.setattr(rnnqc.timing, "session_options", options)
    assert names(bench(lowered, source, rounds=1)) == list(paths)
    ops = {n: {plain_op(node.op_type) for node in onnx.load(path).graph.node} for n, path in paths.items()}
    assert "LSTM" in ops["float"]
    assert "QuantLSTMCell" in ops["native"]
    assert "Scan" in ops["stock"] and not ops["stock"] & {"QuantLSTMCell", "LSTM"}


@pytest.mark.parametrize("threads", [1, 2])
def test_threads_reach_every_session(threads: int, source: str, quick: list[ort.InferenceSession]) -> None:
    assert bench(source, threads=threads, rounds=1).threads == threads
    assert [s.get_session_options().intra_op_num_threads for s in quick] == [threads] * 4


def test_generated_and_given_inputs(
    source: str, lowered: str, quick: list[ort.InferenceSession], tmp_path: Path
) -> None:
    generated = bench(lowered, source, rounds=1, dims={"T": 7, "B": 1})
    assert generated.generated
    assert generated.inputs == {"X": "float32 [7, 1, 3]"}
    save_arrays(tmp_path / "x.npz", {"X": np.zeros((9, 4, 3), np.float32)})
    given = bench(lowered, rounds=1, inputs=str(tmp_path / "x.npz"))
    assert not given.generated
    assert given.inputs == {"X": "float32 [9, 4, 3]"}


def test_samples_as_other_commands_read_them(
    source: str, lowered: str, quick: list[ort.InferenceSession], tmp_path: Path
) -> None:
    """A leading axis counts samples, as for `calibrate`; the first one is measured, and named."""
    save_arrays(tmp_path / "x.npz", {"X": np.zeros((7, 9, 4, 3), np.float32)})
    result = bench(lowered, source, rounds=1, inputs=str(tmp_path / "x.npz"))
    assert result.inputs == {"X": "float32 [9, 4, 3]"}
    assert result.headline.endswith(f"(sample 0 of {tmp_path / 'x.npz'})")


STREAM = RecurrentCase(T=1, B=2, I=3, H=5, dynamic_time=True, dynamic_batch=True, initial_h=True, initial_c=True)
CARRIED = {"initial_h": "Y_h", "initial_c": "Y_c"}


@pytest.mark.few(2)
@pytest.mark.parametrize("calls", [1, 5, 40])
def test_a_call_of_a_stream(calls: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """States have no array; the measured call has those that the float model has then, in every way of running."""
    onnx.save(STREAM.model(), tmp_path / "float.onnx")
    rnnqc.lower(str(tmp_path / "float.onnx")).save(tmp_path / "lowered.onnx")
    x = np.random.default_rng(0).standard_normal((calls, 1, 2, 3)).astype(np.float32)
    save_arrays(tmp_path / "calls.npz", {"X": x})
    seen: list[dict[str, np.ndarray]] = []
    monkeypatch.setattr(rnnqc.timing, "bound_run", lambda live, feed: seen.append(dict(feed)) or (lambda: None))
    monkeypatch.setattr(rnnqc.timing, "burst", lambda run, seconds: [1.0])
    done: list[tuple[int, int]] = []
    result = bench(
        str(tmp_path / "lowered.onnx"), str(tmp_path / "float.onnx"), rounds=2, inputs=str(tmp_path / "calls.npz"),
        state=CARRIED, progress=lambda *at: done.append(at),
    )  # fmt: skip
    last = min(calls, 16) - 1
    assert f"call {last} of the stream in {tmp_path / 'calls.npz'}, states initial_h:Y_h" in result.headline
    assert done == [(k, 6) for k in range(1, 7)]
    live = rnnqc.session(STREAM.model(), native=False)
    names = [o.name for o in live.get_outputs()]
    states = {name: np.zeros((1, 2, 5), np.float32) for name in CARRIED}
    for k in range(last):
        outputs = dict(zip(names, live.run(None, {"X": x[k], **states}), strict=True))
        states = {name: outputs[output] for name, output in CARRIED.items()}
    assert len(seen) == 3
    for feed in seen:
        assert {"X", *CARRIED} == set(feed)
        assert np.array_equal(feed["X"], x[last]) and all(np.array_equal(feed[n], states[n]) for n in CARRIED)


def test_rows_of_generated_states(quick: list[ort.InferenceSession], tmp_path: Path) -> None:
    """tf2onnx names the rows of each input anew: states had 3 of them beside 12 of a frame, or 1 that was broadcast."""
    proto = STREAM.model()
    for value, name in zip(proto.graph.input, ("a", "b", "c"), strict=True):
        value.type.tensor_type.shape.dim[1].dim_param = name
    onnx.save(proto, tmp_path / "step.onnx")
    plain = bench(str(tmp_path / "step.onnx"), rounds=1, dims={"a": 7}).inputs
    assert plain["initial_h"] == plain["initial_c"] == "float32 [1, 7, 5]"
    carried = bench(str(tmp_path / "step.onnx"), rounds=1, dims={"a": 7}, state=CARRIED)
    assert carried.inputs == plain and "call 15 of the stream in generated data" in carried.headline


def test_rows_of_generated_states_without_directions(quick: list[ort.InferenceSession], tmp_path: Path) -> None:
    """States of [rows, units], as Keras has them: the node takes them by way of an Unsqueeze."""
    rng = np.random.default_rng(0)
    text = """<ir_version: 8, opset_import: ["": 17]> g (float[a,4,2] x, float[b,3] h) => (float[c,3] hn) {
        seq = Transpose <perm = [1, 0, 2]> (x)
        first = Unsqueeze (h, zero)
        Y, last = GRU <hidden_size = 3> (seq, W, R, , , first)
        hn = Squeeze (last, zero)
    }"""
    weights = {"W": rng.standard_normal((1, 9, 2)), "R": rng.standard_normal((1, 9, 3))}
    proto = parse(text, zero=np.array([0]), **{n: w.astype(np.float32) for n, w in weights.items()})
    onnx.save(proto, tmp_path / "step.onnx")
    assert bench(str(tmp_path / "step.onnx"), rounds=1, dims={"a": 7}).inputs["h"] == "float32 [7, 3]"


def test_sizes_that_lowering_bound(source: str, quick: list[ort.InferenceSession], tmp_path: Path) -> None:
    """The float model's symbolic dimensions follow the lowered one's."""
    rnnqc.lower(source, dims={"T": 6, "B": 1}).save(tmp_path / "bound.onnx")
    assert bench(str(tmp_path / "bound.onnx"), source, rounds=1).inputs == {"X": "float32 [6, 1, 3]"}


def test_float_model_without_lstm(quick: list[ort.InferenceSession], tmp_path: Path) -> None:
    plain = parse('<ir_version: 8, opset_import: ["": 17]> g (float[2] x) => (float[2] y) { y = Neg(x) }')
    onnx.save(plain, tmp_path / "plain.onnx")
    result = bench(str(tmp_path / "plain.onnx"), rounds=2)
    assert names(result) == ["float"]
    assert result.isa == ""


def test_layers_that_stay_float_are_named(quick: list[ort.InferenceSession], tmp_path: Path) -> None:
    model = tmp_path / "weights_are_inputs.onnx"
    text = "g (float[3, 1, 2] X, float[1, 12, 2] W, float[1, 12, 4] R) => (float[3, 1, 1, 4] Y)"
    header = '<ir_version: 8, opset_import: ["": 17]>'
    onnx.save(parse(f"{header} {text} {{ Y = GRU <hidden_size = 4> (X, W, R) }}"), model)
    result = bench(str(model), rounds=1)
    assert names(result) == ["float"]
    assert [e.op for e in result.float_entries] == ["GRU"]


def test_form_qonnx_is_lowered_to_run(quick: list[ort.InferenceSession]) -> None:
    """It is a lowered model, but of operators that onnxruntime does not have."""
    proto = rnnqc.lower(CASE.model(), "brevitas-int8", "qonnx", calibration=[CASE.feeds()]).proto
    assert [row["name"] for row in bench(proto).rows] == ["stock", "native"]
    with pytest.raises(UsageError, match="is a lowered model"):
        bench(rnnqc.lower(CASE.model()).proto, against=proto)


def test_an_exported_model_has_no_float_one(quick: list[ort.InferenceSession], tmp_path: Path) -> None:
    """A cell of Brevitas that is expanded for running is not a float model to compare with."""
    lstm, exported = random_lstm(6), Exported()
    outputs = exported.cell(lstm, exported.quant("x", lstm.quantizers["output"], "x_quant"), "cell", None, None)
    exported.op("Identity", [outputs[0]], "outputs")
    path = tmp_path / "exported.onnx"
    onnx.save(exported.model({"x": [4, 2, lstm.W[0].shape[1]]}, {"outputs": 3}, 20), path)
    assert names(bench(str(path), rounds=1)) == ["stock", "native"]


def test_refused(source: str, lowered: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="threads=0"):
        bench(source, threads=0)
    with pytest.raises(UsageError, match=r"threads=100000\. Supported: numbers from 1 to \d+\."):
        bench(source, threads=100_000)
    with pytest.raises(UsageError, match="rounds=-1"):
        bench(source, rounds=-1)
    with pytest.raises(UsageError, match=r"against=.*lowered\.onnx.*: is a lowered model"):
        bench(lowered, lowered)
    with pytest.raises(
        UsageError,
        match=r"float\.onnx: has no cell .* Resolution: leave against= out, or name what `rnnqc\.lower` has written\.",
    ):
        bench(source, source)
    with pytest.raises(UsageError, match="dims= has no meaning for given inputs"):
        bench(source, inputs="x.npz", dims={"T": 2})
    with pytest.raises(CompileError, match=r"no_such\.onnx: cannot be read"):
        bench(lowered, str(tmp_path / "no_such.onnx"))
    with pytest.raises(CompileError, match=r"No input has a dimension 'nope'.* Supported: B, T"):
        bench(source, dims={"nope": 2})
    save_arrays(tmp_path / "x.npz", {"X": np.zeros((9, 4, 2), np.float32)})
    with pytest.raises(CompileError, match=r"x\.npz: sample 0: array 'X' has shape \[9, 4, 2\]"):
        bench(lowered, inputs=str(tmp_path / "x.npz"))


def test_models_that_do_not_belong_together(lowered: str, tmp_path: Path) -> None:
    onnx.save(RecurrentCase(I=2).model(), tmp_path / "other.onnx")
    with pytest.raises(CompileError, match=r"lowered\.onnx: onnxruntime failed"):
        bench(lowered, str(tmp_path / "other.onnx"), rounds=1)


def test_missing_library(lowered: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RNNQC_LIBRARY", "/no/such/library.so")
    with pytest.raises(CompileError, match="RNNQC_LIBRARY"):
        bench(lowered, rounds=1)


def test_sessions_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every round has one burst of each, beginning with another; only bursts count."""
    order: list[str] = []
    runs = {name: (lambda n=name: order.append(n)) for name in ("a", "b", "c")}
    monkeypatch.setattr(rnnqc.timing, "WARM_UP", 0)
    monkeypatch.setattr(rnnqc.timing, "burst", lambda run, seconds: [run() or 1.0])
    times = take_turns(runs, 3)
    assert "".join(order) == "abcbcacab"
    assert times == {"a": [1.0] * 3, "b": [1.0] * 3, "c": [1.0] * 3}


def test_a_burst_runs_at_least_once_after_the_caches_are_filled() -> None:
    calls: list[None] = []
    assert len(burst(lambda: calls.append(None), 0.0, 0.0)) == 1
    assert len(calls) == 2


def test_statistics() -> None:
    base, other = timings({"float": [4e-6, 2e-6, 9e-6], "native": [1e-6, 5e-6, 1e-6]})
    assert (base.name, base.runs, base.speedup) == ("float", 3, 1.0)
    assert (base.min_us, base.median_us) == pytest.approx((2.0, 4.0))
    assert (other.min_us, other.median_us, other.speedup) == pytest.approx((1.0, 1.0, 2.0))


@pytest.mark.parametrize("text", [False, True])
def test_a_bound_run_computes(text: bool) -> None:
    """Its outputs land in memory that is there before the run; text is run without binding."""
    kind, values = ("string", np.array(["a", "b"], object)) if text else ("float", np.ones(2, np.float32))
    model = parse(f'<ir_version: 8, opset_import: ["": 17]> g ({kind}[2] x) => ({kind}[2] y) {{ y = Identity(x) }}')
    counter = {"run": 0, "run_with_iobinding": 0}

    class Counting:
        def __init__(self) -> None:
            self.live = rnnqc.session(model, native=False)

        def __getattr__(self, name: str) -> object:
            if name in counter:
                counter[name] += 1
            return getattr(self.live, name)

    run = bound_run(Counting(), {"x": values, "not an input": values})
    assert counter == {"run": 1, "run_with_iobinding": 0}
    run()
    assert counter == ({"run": 2, "run_with_iobinding": 0} if text else {"run": 1, "run_with_iobinding": 1})


def test_outputs_of_another_shape_than_declared(quick: list[ort.InferenceSession], tmp_path: Path) -> None:
    """torch's dynamo exporter declares the length that it exported with; onnxruntime then takes no bound memory."""
    proto = CASE.model()
    proto.graph.output[0].type.tensor_type.shape.dim[0].dim_value = 24
    onnx.save(proto, tmp_path / "in.onnx")
    result = bench(str(tmp_path / "in.onnx"), rounds=1)
    assert result.inputs["X"].startswith("float32 [12,") and result.timings[0].name == "float"
    assert all(t.runs > 0 for t in result.timings)
