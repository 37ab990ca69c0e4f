"""`rnnqc verify` as a user types it.

What these would catch: a threshold that is not kept and not said, a figure that JSON does not have, NaN in one model
that passes, states taken from the other model, bits of the native library that are not looked at.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import rnnqc
from rnnqc.evaluation.numerics import sqnr_db
from tests.generate.layers import RecurrentCase
from tests.runs.commands import Result, in_process
from tests.runs.sessions import run, save_arrays
from tests.subjects.running_never import never_running

CASE = RecurrentCase(T=20, B=2, I=8, H=16, initial_h=True, initial_c=True, dynamic_time=True, dynamic_batch=True)
STATES = ["--state", "initial_h:Y_h", "--state", "initial_c:Y_c"]


@pytest.fixture(scope="module")
def lowered() -> bytes:
    """The file that the case is lowered to."""
    return rnnqc.lower(CASE.model()).proto.SerializeToString(deterministic=True)


@pytest.fixture
def verify(capfd: pytest.CaptureFixture[str], tmp_path: Path, lowered: bytes) -> Callable[..., Result]:
    """Runs the command on the case and what it was lowered to."""
    onnx.save(CASE.model(), tmp_path / "float.onnx")
    (tmp_path / "quant.onnx").write_bytes(lowered)
    return lambda *arguments: in_process(capfd, "verify", tmp_path / "float.onnx", tmp_path / "quant.onnx", *arguments)


def figures(result: Result) -> dict[str, Any]:
    data = json.loads(result.out, parse_constant=lambda text: pytest.fail(f"{text} in JSON"))
    return {o["name"]: o for o in data["outputs"]}


def test_figures_of_every_time_step(verify: Callable[..., Result], tmp_path: Path) -> None:
    feeds = CASE.feeds()
    save_arrays(tmp_path / "data.npz", feeds)
    found = figures(verify("--data", tmp_path / "data.npz", "--json"))
    a, b = (run(rnnqc.session(tmp_path / f"{n}.onnx", native=False), feeds) for n in ("float", "quant"))
    steps = found["Y"]["steps"]
    assert (steps["unit"], steps["axis"], steps["count"]) == ("time step", 0, CASE.T)
    assert steps["sqnr_db"] == pytest.approx([sqnr_db(a["Y"][t], b["Y"][t]) for t in range(CASE.T)])
    assert steps["max_abs"] == pytest.approx([np.abs(a["Y"][t] - b["Y"][t]).max() for t in range(CASE.T)])
    assert steps["worst"] == int(np.argmin(steps["sqnr_db"]))
    assert found["Y_h"]["steps"] is None and found["Y_h"]["sqnr_db"] == pytest.approx(sqnr_db(a["Y_h"], b["Y_h"]))


def test_a_stream(verify: Callable[..., Result], tmp_path: Path) -> None:
    calls = [CASE.replace(seed=k).feeds() for k in range(12)]
    first = {n: a for n, a in calls[0].items() if n.startswith("initial")}
    save_arrays(tmp_path / "calls.npz", {"X": np.stack([c["X"] for c in calls]), **first})
    found = figures(verify("--data", tmp_path / "calls.npz", *STATES, "--json"))
    sessions = [rnnqc.session(tmp_path / f"{n}.onnx", native=False) for n in ("float", "quant")]
    states: list[dict[str, Any]] = [first, first]
    levels = []
    for call in calls:
        results = [run(s, {"X": call["X"], **held}) for s, held in zip(sessions, states, strict=True)]
        states = [{"initial_h": r["Y_h"], "initial_c": r["Y_c"]} for r in results]
        levels.append(sqnr_db(*(r["Y_h"] for r in results)))
    assert found["Y_h"]["steps"]["unit"] == "call"
    assert found["Y_h"]["steps"]["sqnr_db"] == pytest.approx(levels)
    assert found["Y"]["steps"]["count"] == 12 * CASE.T
    text = verify("--data", tmp_path / "calls.npz", *STATES)
    assert "12 given call(s) of a stream" in text.out and "call " in text.out and "time step " in text.out


@pytest.mark.slow
def test_generated_streams(verify: Callable[..., Result]) -> None:
    result = verify(*STATES, "--min-sqnr", "20", "--native", "--json")
    assert result.code == 0, result.text
    data = json.loads(result.out)
    assert data["feeds"] == 16 * len(data["levels"]), "the calls of a stream on every level"
    assert {"magnitude 0.1", "magnitude 1", "magnitude 30"} <= set(data["levels"])
    assert all(n["same_bits"] for n in data["native"])
    assert not any("states" in level for level in data["levels"]), "each model carries its own"


def test_the_worst_level_is_reported(verify: Callable[..., Result]) -> None:
    """One magnitude alone may hide errors; every figure of an output is for the level with the lowest SQNR."""
    data = json.loads(verify("--json").out)
    for output in data["outputs"]:
        levels = {name: values[output["name"]] for name, values in data["levels"].items()}
        assert output["sqnr_db"] == min(levels.values()) == levels[output["level"]]
    assert len({tuple(sorted(v.items())) for v in data["levels"].values()}) == len(data["levels"]) >= 6
    worst = min(data["outputs"], key=lambda o: o["sqnr_db"])
    failed = verify("--min-sqnr", str(worst["sqnr_db"] + 0.1))
    assert failed.code == 1 and f"({worst['level']})" in failed.err
    assert "SQNR dB on generated data of" in failed.out


def test_what_the_native_library_was_compared_on_is_said(verify: Callable[..., Result]) -> None:
    """Only cells are bit-exact; with optimizations float operators around them may round differently."""
    result = verify("--native")
    assert "native library: bit-exact in all outputs" in result.out
    assert "without onnxruntime's graph optimizations" in result.out
    assert "with onnxruntime's graph optimizations: bit-exact in all outputs" in result.out


def test_inner_results_of_cells_are_compared(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """If later operators clip a cell's result, the outputs would be equal whatever it computes."""
    proto = CASE.model()
    del proto.graph.output[:]
    proto.graph.node.append(onnx.helper.make_node("Sign", ["Y"], ["sign"]))
    proto.graph.output.append(onnx.helper.make_tensor_value_info("sign", onnx.TensorProto.FLOAT, None))
    onnx.save(proto, tmp_path / "float.onnx")
    rnnqc.lower(proto).save(tmp_path / "quant.onnx")
    result = in_process(capfd, "verify", tmp_path / "float.onnx", tmp_path / "quant.onnx", "--native", "--json")
    assert {n["name"] for n in json.loads(result.out)["native"]} > {"sign"}


def test_errors_over_time_are_those_of_the_verdict(verify: Callable[..., Result], tmp_path: Path) -> None:
    """On generated data, errors over time are for the first kind of feeds, not for the one with the worst figures."""
    told = " ".join(verify(*STATES).out.split())
    found = rnnqc.verify(tmp_path / "float.onnx", tmp_path / "quant.onnx", state=STATES[1::2])
    assert len(found.levels) > 1 and "SQNR dB over time, magnitude 1 steps" in told
    for output in found.levels[0].outputs:
        steps = output.steps
        assert steps is not None
        trend = f"{steps.quarters_db[0]:.1f} -> {steps.quarters_db[-1]:.1f}: {steps.trend}"
        assert f"{output.name} {len(steps.sqnr_db)} {' '.join(f'{v:.1f}' for v in steps.spans_db)} {steps.unit}" in told
        assert f"{steps.unit} {steps.worst}: {steps.sqnr_db[steps.worst]:.1f} {trend}" in told


def test_report_and_verify_say_the_same_over_time(verify: Callable[..., Result], tmp_path: Path) -> None:
    """Of data that is given, and of the stream that both generate: figures, trend and verdict."""
    rng = np.random.default_rng(0)
    models = tmp_path / "float.onnx", tmp_path / "quant.onnx"
    for data in (None, [{"X": rng.normal(0, 1, (1, 1, 8)).astype(np.float32)} for _ in range(24)]):
        found = rnnqc.verify(*models, data, state=STATES[1::2])
        evidence = rnnqc.report(*models, data, state=STATES[1::2], seconds=0).evidence
        assert evidence.data["calls"] == (16 if data is None else 24)
        for one, other in zip(found.levels[0].outputs, evidence.outputs, strict=True):
            assert one.steps is not None and other.curve is not None
            assert (one.name, one.sqnr_db, one.steps.growing) == (other.name, other.sqnr_db, other.curve.growing)
            assert (*one.steps.quarters_db,) == (*other.curve.quarters_db,)
        said = evidence.verdict
        assert found.verdict is not None and said is not None and found.verdict.text.startswith(said.text)


def test_the_wrong_order_is_refused(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The figures would answer another question; both orders of two lowered models are accepted."""
    first, second = tmp_path / "float.onnx", tmp_path / "quant.onnx"
    onnx.save(CASE.model(), first)
    rnnqc.lower(CASE.model()).save(second)
    result = in_process(capfd, "verify", second, first)
    assert result.code == 2 and not result.out
    assert f"swap the two: rnnqc verify {first} {second}" in " ".join(result.err.split())
    rnnqc.lower(CASE.model(), form="integer").save(tmp_path / "integer.onnx")
    for one, other in ((second, tmp_path / "integer.onnx"), (tmp_path / "integer.onnx", second)):
        assert in_process(capfd, "verify", one, other, "--min-equal", "1").code == 0
    exported = rnnqc.lower(CASE.model(), "brevitas-int8", "qonnx", calibration=[CASE.feeds()])
    exported.save(tmp_path / "qonnx.onnx")
    assert "swap the two" in in_process(capfd, "verify", tmp_path / "qonnx.onnx", first).err


def test_a_model_that_runs_on_nothing_generated_is_not_compared(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    proto = never_running()
    for name in ("float", "quant"):
        onnx.save(proto, tmp_path / f"{name}.onnx")
    for command in (
        ("verify", tmp_path / "float.onnx", tmp_path / "quant.onnx"),
        ("bench", tmp_path / "float.onnx"),
    ):
        result = in_process(capfd, *command)
        assert result.code == 2, result.text
        assert "does not run on generated data" in result.err and "--data" in result.err


def test_whole_numbers_have_a_threshold_of_their_own(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Would catch: a decoder's classes judged in dB without a word of what judges classes."""
    made = RecurrentCase(T=20, B=2, I=8, H=16).model()
    made.graph.node.append(onnx.helper.make_node("ArgMax", ["Y"], ["tags"], axis=3, keepdims=0))
    made.graph.output.append(onnx.helper.make_tensor_value_info("tags", onnx.TensorProto.INT64, None))
    onnx.save(made, tmp_path / "float.onnx")
    rnnqc.lower(made, overrides=["*.weight.bits=3"]).save(tmp_path / "quant.onnx")
    arguments = ("verify", tmp_path / "float.onnx", tmp_path / "quant.onnx", "--min-sqnr", "200")
    found = figures(in_process(capfd, *arguments, "--json"))
    assert [found[k]["whole_numbers"] for k in ("Y", "tags")] == [False, True] and found["tags"]["equal"] < 1
    said = [line for line in in_process(capfd, *arguments).err.splitlines() if "'tags'" in line]
    assert len(said) == 1 and "whole numbers" in said[0] and "--min-equal tags=SHARE" in said[0]
    other = [line for line in in_process(capfd, *arguments).err.splitlines() if "'Y'" in line]
    assert len(other) == 1 and "whole numbers" not in other[0]


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        (["--min-sqnr", "200"], ["'Y' has", "'Y_h' has", "'Y_c' has"]),
        (["--min-sqnr", "Y_h=200"], ["'Y_h' has"]),
        (["--min-sqnr", "200", "--min-sqnr", "Y_h=1", "--min-sqnr", "Y=2"], ["'Y_c' has"]),
        (["--max-abs", "Y=1e-9", "--min-sqnr", "Y_c=300"], ["--max-abs: output 'Y'", "--min-sqnr: output 'Y_c'"]),
        (["--min-cosine", "Y=1"], ["'Y' has cosine similarity"]),
        (["--min-equal", "Y=1"], ["--min-equal: output 'Y' is equal in"]),
        (["--min-sqnr", "20", "--max-abs", "0.5", "--min-cosine", "0.99", "--min-equal", "0"], []),
    ],
)  # fmt: skip
def test_thresholds(arguments: list[str], wanted: list[str], verify: Callable[..., Result]) -> None:
    result = verify(*arguments)
    said = [line for line in result.err.splitlines() if line.startswith("rnnqc: verify:")]
    assert len(said) == len(wanted), result.err
    assert all(any(w in line for line in said) for w in wanted)
    assert result.code == bool(wanted)
    machine = verify(*arguments, "--json")
    data = json.loads(machine.out)
    assert machine.code == bool(wanted) and data["ok"] is not bool(wanted) and len(data["failures"]) == len(wanted)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--min-sqnr", "much"], "--min-sqnr 'much': not of the form NUMBER or NAME=NUMBER"),
        (["--min-sqnr", "nan"], "--min-sqnr 'nan': not of the form"),
        (["--max-abs", "Z=1"], "the model has no output 'Z'"),
        (["--min-equal", "1", "--min-equal", "0.5"], "two values for all outputs, 1 and 0.5"),
        (["--state", "X:Z"], "no output 'Z'"),
        (["--min-equal", "50"], "Resolution: give a share: 0.5 for 50 %"),
        (["--min-cosine", "1.5"], "Supported: -1 to 1"),
        (["--max-abs", "Y=-1"], "--max-abs 'Y=-1': -1 is no such value"),
    ],
)
def test_usage(arguments: list[str], message: str, verify: Callable[..., Result]) -> None:
    result = verify(*arguments)
    assert result.code == 2 and message in result.err and "Traceback" not in result.text


def test_not_a_number_in_one_model_alone(verify: Callable[..., Result], tmp_path: Path) -> None:
    """A failure without any threshold; the other figures do not hide it."""
    broken = onnx.load(tmp_path / "quant.onnx")
    node = next(n for n in broken.graph.node if "Y" in n.output)
    node.output[list(node.output).index("Y")] = "Y/clean"
    broken.graph.node.append(onnx.helper.make_node("Div", ["Y/clean", "gate"], ["Y/inf"]))
    broken.graph.node.append(onnx.helper.make_node("Sub", ["Y/inf", "zero"], ["Y"]))
    gate = np.ones(CASE.H, np.float32)
    gate[3] = 0.0
    for name, array in (("gate", gate), ("zero", np.zeros(1, np.float32))):
        broken.graph.initializer.append(numpy_helper.from_array(array, name))
    onnx.save(broken, tmp_path / "quant.onnx")
    result = verify()
    assert result.code == 1
    assert (
        "output 'Y': " in result.err and "NaN or infinite in one of the models only (call 0, [0, 0, 0, 3]" in result.err
    )
    found = figures(verify("--json"))["Y"]
    assert found["unlike"] > 0 and found["max_abs"] == "inf" and math.isfinite(found["sqnr_db"])


def test_bits_of_the_native_library(verify: Callable[..., Result], monkeypatch: pytest.MonkeyPatch) -> None:
    """A library with different bits is found: the test gives the native run another model."""
    from rnnqc.evaluation.evaluate import make_session

    def wrong(model: onnx.ModelProto, *, native: bool = False, optimize: bool = True) -> Any:
        if native:
            changed = onnx.ModelProto()
            changed.CopyFrom(model)
            for tensor in changed.graph.initializer:
                if tensor.data_type == onnx.TensorProto.FLOAT and len(tensor.dims) >= 1:
                    held = numpy_helper.to_array(tensor)
                    tensor.CopyFrom(numpy_helper.from_array(np.nextafter(held, np.float32(np.inf)), tensor.name))
            return make_session(changed, native=native, optimize=optimize)
        return make_session(model, native=native, optimize=optimize)

    assert verify("--native").code == 0
    monkeypatch.setattr("rnnqc.measure.runs.make_session", wrong)
    result = verify("--native")
    assert result.code == 1 and "output 'Y': the native library is not bit-exact (" in result.err
    assert json.loads(verify("--native", "--json").out)["native"][0]["same_bits"] is False


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_not_finite_data_is_named(value: float, verify: Callable[..., Result], tmp_path: Path) -> None:
    """The failure names its cause: the float model propagates NaN, the quantized one replaces it by 0.

    Whether onnxruntime's LSTM does so depends on the processor; a sum with the input does everywhere.
    """
    spreading = onnx.load(tmp_path / "float.onnx")
    node = next(n for n in spreading.graph.node if "Y" in n.output)
    node.output[list(node.output).index("Y")] = "Y/clean"
    spreading.graph.node.append(onnx.helper.make_node("ReduceSum", ["X"], ["sum"], keepdims=0))
    spreading.graph.node.append(onnx.helper.make_node("Mul", ["sum", "nothing"], ["zero"]))
    spreading.graph.node.append(onnx.helper.make_node("Add", ["Y/clean", "zero"], ["Y"]))
    spreading.graph.initializer.append(numpy_helper.from_array(np.float32(0), "nothing"))
    onnx.save(spreading, tmp_path / "float.onnx")
    calls = [CASE.replace(seed=k).feeds() for k in range(5)]
    x = np.stack([c["X"] for c in calls])
    x[3, 4, 1, 2] = value
    save_arrays(tmp_path / "calls.npz", {"X": x})
    said = verify("--data", tmp_path / "calls.npz", *STATES)
    wanted = f"value(s) that are NaN or infinite (the first is {value} in call 3 at [4, 1, 2])"
    assert wanted in said.err
    assert said.code == 1
    assert any("output 'Y'" in line and wanted in line for line in said.err.splitlines())


def test_outputs_that_do_not_vary_are_not_called_good(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Would catch: any two models that saturate on noise called the same, by one of three commands."""
    made = RecurrentCase(T=20, B=2, I=8, H=16).model()
    del made.graph.output[:]
    made.graph.node.append(onnx.helper.make_node("ReduceMax", ["Y"], ["most"], axes=[3], keepdims=0))
    made.graph.node.append(onnx.helper.make_node("Ceil", ["most"], ["tag"]))
    made.graph.output.append(onnx.helper.make_tensor_value_info("tag", onnx.TensorProto.FLOAT, None))
    paths = [str(tmp_path / f"{name}.onnx") for name in ("float", "quant")]
    onnx.save(made, paths[0])
    lowered = in_process(capfd, "lower", paths[0], "-o", paths[1], "--json", tmp_path / "report.json")
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["constant"] and report["sqnr_db"] == {"tag": "inf"}
    compared = in_process(capfd, "verify", *paths)
    judged = in_process(capfd, "report", *paths, "-o", tmp_path / "report.html", "--models", "1")
    for result in (lowered, compared, judged):
        text = " ".join(result.text.split())
        assert "very output has one value on this data, so this comparison shows little" in text, text
        assert "--data" in text and "good:" not in text, text
