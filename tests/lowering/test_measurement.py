"""The measurement of a lowering.

What these would catch: a poor model that passes in silence because its inputs were tame, a warning about an output that
is nearly zero, a model that is not measured without that being said.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import rnnqc
from rnnqc.commands import lower as command
from rnnqc.data.feeds import Feeds
from rnnqc.lowering.file_contents import contents
from rnnqc.lowering.measurement import given
from rnnqc.lowering.verification_feeds import CALIBRATION_DATA, Remembered
from rnnqc.measure.compare import compare_models, judged, unit_outputs
from rnnqc.measure.differences import OutputComparison
from rnnqc.measure.verdict import WATCH_DB
from tests.generate.layers import RecurrentCase
from tests.runs.commands import in_process
from tests.subjects.protos import parse
from tests.subjects.running_never import never_running

CASE = RecurrentCase(T=6, B=2, I=4, H=8, dynamic_time=True, dynamic_batch=True)
STEPS, FEATURES, UNITS = 20, 6, 32


def autoencoder(activation: str) -> onnx.ModelProto:
    """Encoder, RepeatVector, decoder, as Keras exports it; weights as Keras initializes them."""
    rng = np.random.default_rng(0)
    nodes, stored = [], []

    def layer(given: str, size: int, name: str, outputs: list[str]) -> None:
        limit = math.sqrt(6 / (size + UNITS))
        bias = np.zeros((1, 8 * UNITS))
        bias[0, 2 * UNITS : 3 * UNITS] = 1
        arrays = {
            "W": rng.uniform(-limit, limit, (1, 4 * UNITS, size)),
            "R": np.concatenate([np.linalg.qr(rng.normal(size=(UNITS, UNITS)))[0] for _ in range(4)])[None],
            "B": bias,
        }
        stored.extend(numpy_helper.from_array(a.astype(np.float32), f"{name}.{k}") for k, a in arrays.items())
        inputs = [given, *(f"{name}.{k}" for k in arrays)]
        acts = ["Sigmoid", activation, activation]
        nodes.append(helper.make_node("LSTM", inputs, outputs, name, hidden_size=UNITS, activations=acts))

    layer("x", FEATURES, "encoder", ["", "code"])
    stored.append(numpy_helper.from_array(np.array([STEPS, 1, UNITS]), "times"))
    nodes.append(helper.make_node("Expand", ["code", "times"], ["repeated"]))
    layer("repeated", UNITS, "decoder", ["y"])
    signature = [
        helper.make_tensor_value_info(n, TensorProto.FLOAT, s)
        for n, s in (("x", [STEPS, "N", FEATURES]), ("y", [STEPS, 1, "N", UNITS]))
    ]
    graph = helper.make_graph(nodes, "autoencoder", signature[:1], signature[1:], stored)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_states_that_leave_their_range_are_warned_of() -> None:
    """Relu bounds no state: on values around 1 all is well, and what is larger is cut off."""
    report = rnnqc.lower(autoencoder("Relu"), measure=True).report
    assert report.sqnr_levels["magnitude 1"]["y"] > 35
    assert report.sqnr_db["y"] < WATCH_DB and report.sqnr_level["y"] == "magnitude 30"
    (warning,) = (w for w in report.warnings if "SQNR" in w)
    assert "magnitude 30" in warning and "at magnitude 1 " in warning and "--calibration DATA" in warning


def test_values_beyond_what_was_calibrated_are_not_generated() -> None:
    """Static ranges fit the user's data: at magnitude 30 nothing is left, and the warning would say nothing."""
    statistics = rnnqc.calibrate(CASE.model(), [CASE.feeds()])
    report = rnnqc.lower(CASE.model(), "int8-static", stats=statistics, measure=True).report
    assert list(report.sqnr_levels) == ["magnitude 1"]
    assert report.accuracy.startswith("SQNR on generated data of magnitude 1: ")
    assert not [text for text in report.warnings if "SQNR" in text]


def _once(feeds: list[Feeds]) -> Iterator[Feeds]:
    yield from feeds


@pytest.mark.few(1)
@pytest.mark.parametrize("again", [True, False], ids=["list", "generator"])
def test_calibration_data_is_measured_on(again: bool) -> None:
    """Only the user's data, not generated data, shows Relu states that leave the range of 8 bits."""
    feeds = [{k: 30.0 * v for k, v in CASE.feeds(seed).items()} for seed in range(20)]
    report = rnnqc.lower(CASE.model(), calibration=feeds if again else _once(feeds), measure=True).report
    lowered = rnnqc.lower(CASE.model(), calibration=feeds)
    some = [feeds[k] for k in np.linspace(0, 19, 16).round().astype(int)]
    expected = {c.name: c.sqnr_db for c in compare_models(CASE.model(), lowered.proto, some)}
    assert report.sqnr_levels == {CALIBRATION_DATA: pytest.approx(expected)}
    assert report.accuracy == f"SQNR on the calibration data: {min(expected.values()):.1f} dB"


def test_large_feeds_are_not_all_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """A DataLoader of large batches: those that fit into a bound of memory, and the first in any case."""
    feeds = [CASE.feeds(seed) for seed in range(8)]
    size = sum(v.nbytes for v in feeds[0].values())
    for bytes_, kept in ((1, 1), (3 * size, 3), (100 * size, 8)):
        monkeypatch.setattr("rnnqc.lowering.verification_feeds.MOST_BYTES", bytes_)
        remembered = Remembered(_once(feeds))
        assert len(list(remembered)) == 8 and len(remembered.first) == kept
        assert len(given(CASE.model(), feeds, None).feeds) == kept


def test_the_calls_of_a_stream_are_measured_in_order() -> None:
    """States carry over from call to call, so that errors that grow over a stream show."""
    case = CASE.replace(initial_h=True, initial_c=True)
    proto, states = case.model(), {"initial_h": "Y_h", "initial_c": "Y_c"}
    feeds = [case.feeds(seed) for seed in range(18)]
    feeds = [feeds[0], *({"X": feed["X"]} for feed in feeds[1:])]
    report = rnnqc.lower(proto, calibration=feeds, state=states, measure=True).report
    lowered = rnnqc.lower(proto, calibration=feeds, state=states)
    expected = compare_models(proto, lowered.proto, feeds, state=states)
    assert report.sqnr_levels == {CALIBRATION_DATA: pytest.approx({c.name: c.sqnr_db for c in expected})}


def test_calibration_data_that_no_longer_fits_is_told() -> None:
    """Of a length that the lowered model no longer takes."""
    feeds = [CASE.feeds()]
    length = next(iter(feeds[0].values())).shape[0]
    report = rnnqc.lower(CASE.model(), calibration=feeds, dims={"T": length + 1}, unroll=True, measure=True).report
    assert CALIBRATION_DATA not in report.sqnr_levels
    assert any("not on the calibration data" in w for w in report.warnings)


def test_a_poor_result_on_calibration_data_is_warned_of() -> None:
    proto, overrides = CASE.model(), ["*.weight.bits=2"]
    report = rnnqc.lower(proto, calibration=[CASE.feeds()], overrides=overrides, measure=True).report
    (warning,) = (w for w in report.warnings if "SQNR" in w)
    assert "on the calibration data, less than" in warning and "verify" not in warning and "--report" in warning


def test_bounded_states_are_not() -> None:
    report = rnnqc.lower(autoencoder("Tanh"), measure=True).report
    assert report.sqnr_db["y"] >= WATCH_DB and not any("SQNR" in w for w in report.warnings)


def test_the_report_holds_the_worst_of_all_levels() -> None:
    report = rnnqc.lower(CASE.model(), measure=True).report
    assert len(report.sqnr_levels) == 5 and not report.unmeasured
    for name, value in report.sqnr_db.items():
        levels = {level: values[name] for level, values in report.sqnr_levels.items()}
        assert value == min(levels.values()) == levels[report.sqnr_level[name]]
    assert report.sqnr_summary.startswith(f"{min(report.sqnr_db.values()):.1f} dB (")


def test_a_program_measures_when_it_asks_for_it() -> None:
    report = rnnqc.lower(CASE.model()).report
    assert (report.sqnr_db, report.sqnr_levels, report.sqnr_summary, report.unmeasured) == ({}, {}, "", "")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    onnx.save(CASE.model(), tmp_path / "in.onnx")
    return tmp_path / "in.onnx"


def test_the_command_measures_always(source: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    out, report = tmp_path / "out.onnx", tmp_path / "report.json"
    result = in_process(capfd, "lower", source, "-o", out, "--json", report)
    data = json.loads(report.read_text())
    assert f"SQNR on generated data, least of {len(data['sqnr_levels'])} kinds: {data['sqnr_summary']}" in result.out
    assert min(data["sqnr_db"].values()) == min(v for level in data["sqnr_levels"].values() for v in level.values())
    again = tmp_path / "again.json"
    in_process(capfd, "lower", source, "-o", out, "--json", again)
    assert again.read_bytes() == report.read_bytes()


def test_quiet_lowering_does_not(
    source: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    measured: list[int] = []
    monkeypatch.setattr("rnnqc.lowering.judge.measure", lambda *arguments: measured.append(1))
    assert in_process(capfd, "lower", source, "-o", tmp_path / "out.onnx", "-q").code == 0
    assert not measured


def test_measuring_that_takes_too_long_ends_and_is_said(
    source: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rnnqc.lowering.measurement.LEAST_SECONDS", 0.0)
    monkeypatch.setattr(command, "PATIENCE", 0.0)
    result = in_process(capfd, "lower", source, "-o", tmp_path / "out.onnx", "--json", tmp_path / "report.json")
    data = json.loads((tmp_path / "report.json").read_text())
    assert result.code == 0 and list(data["sqnr_levels"]) == ["magnitude 1"]
    assert "on a part of the generated data alone: up to magnitude 1" in " ".join(result.err.split())
    asked = in_process(
        capfd, "lower", source, "-o", tmp_path / "out.onnx", "--min-sqnr", "1", "--json", tmp_path / "report.json"
    )
    assert asked.code == 0 and len(json.loads((tmp_path / "report.json").read_text())["sqnr_levels"]) == 5


@pytest.mark.parametrize(
    ("options", "code", "said"),
    [
        ([], 0, "the SQNR was not measured: the model does not run on generated data"),
        (["--min-sqnr", "1"], 1, "--min-sqnr: not measured: the model does not run on generated data"),
        (["--verify"], 1, "--verify: not verified: no pass could be compared"),
    ],
)
def test_a_model_that_runs_on_nothing_generated(
    options: list[str], code: int, said: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Nothing was compared, which is not a success if a comparison was requested."""
    onnx.save(never_running(), tmp_path / "in.onnx")
    result = in_process(capfd, "lower", tmp_path / "in.onnx", "-o", tmp_path / "out.onnx", *options)
    assert result.code == code and (tmp_path / "out.onnx").exists() == (code == 0)
    assert said in " ".join(result.err.split())


def test_a_lowering_of_nothing_is_not_measured(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    onnx.save(parse('<ir_version: 8, opset_import: ["": 17]> g (float[2] x) => (float[2] y) { y = Relu(x) }'),
              tmp_path / "in.onnx")  # fmt: skip
    result = in_process(capfd, "lower", tmp_path / "in.onnx", "-o", tmp_path / "out.onnx")
    assert result.code == 0 and "SQNR" not in result.text


def test_probabilities_near_zero_are_judged_by_their_full_scale() -> None:
    """0.1 instead of 2 per mille is about 0 dB of SQNR, but not a loss that matters."""
    head = '<ir_version: 8, opset_import: ["": 17]> g (float[2, 2] x) => (float[A, B] p, float[C, D] z) '
    proto = parse(f"{head}{{ s = Sigmoid(x) p = Transpose(s) z = Mul(x, s) }}")
    assert unit_outputs(proto) == {"p"}

    def output(name: str, rms: float) -> OutputComparison:
        return OutputComparison(name, 0.0, 0.0, 1.0, 0.0, rms=rms, rms_error=1e-4, unit=name == "p")

    p, z, loud = judged([output("p", 1e-4), output("z", 1e-4), output("p", 0.5)])
    assert p.sqnr_db == pytest.approx(60.0) and z.sqnr_db == loud.sqnr_db == 0.0


def test_an_output_that_is_nearly_its_mean(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A prediction that varies little around 1000: figures of `lower` and `verify` are for the variation."""
    rng = np.random.default_rng(0)
    proto = parse(
        '<ir_version: 8, opset_import: ["": 17]> g (float[T,1,8] x) => (float[1,1,16] price) <float offset = {1000.0}> '
        "{ all, last = LSTM <hidden_size = 16> (x, W, R) price = Add (last, offset) }",
        W=rng.standard_normal((1, 64, 8)).astype(np.float32),
        R=rng.standard_normal((1, 64, 16)).astype(np.float32),
    )
    files = tmp_path / "in.onnx", tmp_path / "out.onnx", tmp_path / "data.npz"
    onnx.save(proto, files[0])
    np.savez(files[2], x=rng.standard_normal((9, 12, 1, 8)).astype(np.float32))
    result = in_process(capfd, "lower", *files[:1], "-o", files[1], "--recipe", "w4a8", "--calibration", files[2],
                        "--set", "*.weight.bits=2")  # fmt: skip
    said = re.search(r"output 'price' has an SQNR of (-?[\d.]+) dB in what varies on the calibration data", result.err)
    assert said is not None and float(said[1]) < 20, result.err
    verdict = rnnqc.verify(*files).verdict
    assert verdict is not None and verdict.level == "watch" and "of what varies" in verdict.text
    assert "of what varies" not in in_process(capfd, "verify", *files[:2]).out


@pytest.mark.parametrize("bias", [-8.0, -2.0])
def test_a_probability_near_zero_on_the_data(bias: float, tmp_path: Path) -> None:
    """A detector on silence, 0.0002 off: all commands say so, none calls it good; at 0.1 it is as bad as ever."""
    rng = np.random.default_rng(0)
    proto = parse(
        '<ir_version: 8, opset_import: ["": 17]> g (float[T,1,8] x) => (float[1,1,16] p) '
        "{ all, last = LSTM <hidden_size = 16> (x, W, R) wide = Mul (last, four) low = Add (wide, bias)"
        " p = Sigmoid (low) }",
        W=rng.standard_normal((1, 64, 8)).astype(np.float32),
        R=rng.standard_normal((1, 64, 16)).astype(np.float32),
        four=np.float32(4),
        bias=np.float32(bias),
    )
    feeds = [{"x": rng.standard_normal((12, 1, 8)).astype(np.float32)} for _ in range(9)]
    low = rnnqc.lower(proto, calibration=feeds, overrides=["*.weight.bits=2"], measure=True)
    verdict = rnnqc.verify(proto, low, feeds).verdict
    again = rnnqc.report(proto, low, feeds, seconds=0).evidence.verdict
    two = tmp_path / "two.toml"
    two.write_text('name = "two"\nbase = "int8"\n[[rule]]\npoints = "*.weight"\nbits = 2\n')
    tuned = rnnqc.tune(proto, feeds, min_sqnr=-50, recipe=two, stats=rnnqc.calibrate(proto, feeds), models=1).verdict
    assert verdict is not None and again is not None and tuned is not None
    assert verdict.text == again.text == tuned.text
    assert low.report.sqnr_db["p"] < 20
    near = "near zero" in verdict.text
    assert near is ("near zero" in low.report.accuracy) is (bias == -8.0)
    assert verdict.level == ("watch" if near else "bad")
    assert bool([w for w in low.report.warnings if "SQNR" in w]) is not near


def test_a_probability_that_an_if_chooses() -> None:
    text = (
        '<ir_version: 8, opset_import: ["": 17]> g (float[2] x, bool c) => (float[2] p) '
        "{ s = Sigmoid(x) p = If (c) <then_branch = a () => (float[2] u) { u = Identity(s) }, "
        "else_branch = b () => (float[2] v) { v = Relu(x) }> }"
    )
    assert unit_outputs(parse(text)) == set()
    assert unit_outputs(parse(text.replace("Relu(x)", "Identity(s)"))) == {"p"}


def test_sizes_are_those_of_files_and_of_weights(
    source: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A file that grew although its weights shrank: the message names the cause."""
    out = tmp_path / "out.onnx"
    result = in_process(capfd, "lower", source, "-o", out)
    before, after = source.stat().st_size, out.stat().st_size
    assert before < after < 10_000_000
    (line,) = (text for text in result.out.splitlines() if text.startswith("size "))
    assert f"{out}: file {before} B -> {round(after / 1e3)} kB ({100 * after / before:.0f} %)" in line
    assert re.search(r"the file has grown by \d+ k?B; it holds: function bodies", result.out)


def test_float_constants_that_are_still_read_are_named() -> None:
    text = '<ir_version: 8, opset_import: ["": 17]> g (float[2, 64] x) => (float[2, 64] y) { y = MatMul(x, w) }'
    proto = parse(text, w=np.zeros((64, 64), np.float32))
    size = proto.graph.node[0].ByteSize()
    floats = "float constants that are still read 16 kB ('w' by MatMul '')"
    assert contents(proto) == f"{floats}; operators and names {size} B"
    proto.metadata_props.add(key="rnnqc.provenance", value="[]")
    proto.metadata_props.add(key="of the user", value="-" * 100)
    assert contents(proto) == f"{floats}; operators and names {size} B; metadata of rnnqc 22 B"


def test_a_file_that_grows_although_nothing_was_lowered(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A few bytes of metadata are said, too."""
    proto = parse('<ir_version: 8, opset_import: ["": 17]> g (float[2] x) => (float[2] y) { y = Neg(x) }')
    onnx.save(proto, tmp_path / "in.onnx")
    result = in_process(capfd, "lower", tmp_path / "in.onnx", "-o", tmp_path / "out.onnx")
    grown = (tmp_path / "out.onnx").stat().st_size - proto.ByteSize()
    assert (result.code, grown > 0) == (0, True)
    assert f"the file has grown by {grown} B; it holds: operators and names" in result.out
    assert "metadata of rnnqc" in result.out
