"""Calibration: every statistic of every point is that of an independent LSTM, however the samples are fed.

What these would catch: a point that is missed, taken at the wrong place or time, or counted in the padding or twice;
cells in subgraphs that are not seen; results that depend on processes, batches of rows, or earlier samples; data that
is wrong and is used all the same.
"""

from __future__ import annotations

import json
import multiprocessing
import re
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest

import rnnqc
from rnnqc.cells.base import LSTM_POINTS
from rnnqc.cells.types import CELL_TYPES
from tests.generate.float_layer import Activation
from tests.generate.layers import RecurrentCase
from tests.pages.layer_points import Call, plain_statistics, point_calls
from tests.runs.commands import HANGS, in_new_python, in_process
from tests.runs.sessions import save_arrays

Array = npt.NDArray[Any]
TOLERANCE = 2e-6  # onnxruntime computes in float32
ACTIVATED = tuple(p.name for p in LSTM_POINTS if p.name not in ("W.weight", "R.weight", "bias", "accumulator"))
CASES = {
    "plain": RecurrentCase(T=7, B=3, I=4, H=5),
    "reverse": RecurrentCase(T=6, direction="reverse", initial_h=True, initial_c=True),
    "bidirectional": RecurrentCase(T=6, B=3, direction="bidirectional", initial_h=True),
    "lengths": RecurrentCase(T=7, B=4, lens=(7, 2, 0, 5), initial_h=True, initial_c=True),
    "reverse lengths": RecurrentCase(T=7, B=3, lens=(3, 7, 1), direction="reverse"),
    "bidirectional lengths": RecurrentCase(T=5, B=3, lens=(2, 5, 4), direction="bidirectional", peepholes=True),
    "padding for all": RecurrentCase(T=6, B=2, lens=(2, 3)),
    "peepholes and clip": RecurrentCase(peepholes=True, clip=0.4, gain=2.0),
    "coupled": RecurrentCase(input_forget=True, T=6),
    "no bias": RecurrentCase(bias=False, B=1),
    "one unit": RecurrentCase(H=1, I=1, B=3),
    "activations": RecurrentCase(activations=(Activation("HardSigmoid"), Activation("Softsign"), Activation("Relu"))),
    "only Y_c": RecurrentCase(outputs=("Y_c",)),
    "loop": RecurrentCase(placement="loop", initial_h=True, initial_c=True),
    "loop lengths": RecurrentCase(placement="loop", lens=(2, 5), direction="bidirectional"),
    "scan": RecurrentCase(placement="scan", initial_h=True, initial_c=True),
    "scan reverse lengths": RecurrentCase(placement="scan", lens=(4, 1), direction="reverse"),
    "function": RecurrentCase(placement="function", direction="bidirectional"),
    "old operator set": RecurrentCase(opset=9, direction="bidirectional"),
}


def check(statistics: rnnqc.Statistics, cell: str, calls: dict[str, list[Call]], what: str) -> None:
    """All scalars of all points of a cell, the channels' and the second moments."""
    assert {n.removeprefix(f"{cell}.") for n in statistics.points if n.startswith(f"{cell}.")} == set(calls), what
    for point, seen in calls.items():
        found = statistics.points[f"{cell}.{point}"]
        scale = max(1.0, float(np.abs(np.concatenate([c.values for c in seen])).max()))
        for name, wanted in plain_statistics(seen).items():
            near = pytest.approx(wanted, abs=TOLERANCE * scale)
            # The bin around the mean: at most half a bin off for the values in it.
            if name == "mean_abs_dev":
                near = pytest.approx(wanted, abs=TOLERANCE * scale + found.histogram.width)
            assert getattr(found, name) == near, f"{what}: {point}.{name}"
        assert found.histogram.total == found.count
        percentiles = [np.abs(c.values).max() for c in seen][:300]  # up to 50,000 values the largest one
        np.testing.assert_allclose(found.call_percentiles, percentiles, atol=TOLERANCE * scale)
        # Of the input every step votes that some row of the batch reaches.
        steps = sum(max(len(s) for s in c.samples) for c in seen) if point == "input" else len(seen)
        for votes in (v for kinds in found.fix_positions.values() for v in kinds.values()):
            assert sum(votes.values()) == steps
        if point in ("input", "hidden", "reset.hidden"):  # what meets weights
            rows = np.concatenate([np.atleast_2d(s) for c in seen for s in c.samples])
            np.testing.assert_allclose(found.channel_max, np.abs(rows).max(axis=0), atol=TOLERANCE * scale)
            np.testing.assert_allclose(found.channel_mean, rows.mean(axis=0), atol=TOLERANCE * scale)
            np.testing.assert_allclose(found.second_moment, rows.T @ rows / len(rows), atol=4 * TOLERANCE * scale**2)
        else:
            assert found.channel_max is None and found.second_moment is None
        if point == "cell_state" or point.endswith(".activation"):  # what the noise of gates follows from
            rows = np.concatenate([np.atleast_2d(s) for c in seen for s in c.samples])
            np.testing.assert_allclose(found.channel_mean, rows.mean(axis=0), atol=TOLERANCE * scale)
            np.testing.assert_allclose(found.channel_square, np.square(rows).mean(axis=0), atol=TOLERANCE * scale**2)
        else:
            assert found.channel_square is None


def cells_of(statistics: rnnqc.Statistics) -> list[str]:
    return sorted(statistics.cells)  # forward before reverse


@pytest.mark.few(3)
@pytest.mark.parametrize("name", CASES)
def test_every_point_is_that_of_an_independent_lstm(name: str) -> None:
    case = CASES[name]
    feeds = case.feeds()
    assert case.lens is None or np.isnan(feeds["X"]).any() or min(case.lens) == case.T
    statistics = rnnqc.calibrate(case.model(), [feeds])
    calls = point_calls(case, feeds)
    assert len(statistics.cells) == len(calls)
    for cell, expected in zip(cells_of(statistics), calls, strict=True):
        coupled = {p for p in ACTIVATED if p.startswith("forget_gate")} if case.input_forget else set()
        assert set(expected) == set(ACTIVATED) - coupled, "the reference knows all points"
        check(statistics, cell, expected, name)


OTHERS = {"GRU": {"op": "GRU"}, "GRU_linear": {"op": "GRU", "linear_before_reset": True}, "RNN": {"op": "RNN"}}
OTHER_CASES = {
    "plain": RecurrentCase(T=7, B=3, I=4, H=5),
    "no bias": RecurrentCase(bias=False, B=1),
    "bidirectional lengths": RecurrentCase(T=5, B=3, lens=(2, 5, 0), direction="bidirectional", initial_h=True),
    "clip": RecurrentCase(clip=0.4, gain=2.0, direction="reverse"),
    "activations": RecurrentCase(activations=(Activation("HardSigmoid"), Activation("Relu"))),
    "loop": RecurrentCase(placement="loop", initial_h=True),
    "scan lengths": RecurrentCase(placement="scan", lens=(4, 1)),
}


@pytest.mark.few(5)
@pytest.mark.parametrize("op", OTHERS)
@pytest.mark.parametrize("name", OTHER_CASES)
def test_every_point_is_that_of_an_independent_gru_or_rnn(name: str, op: str) -> None:
    case = OTHER_CASES[name].replace(**OTHERS[op])
    if case.activations is not None and case.op == "RNN":
        case = case.replace(activations=case.activations[1:])
    feeds = case.feeds()
    statistics = rnnqc.calibrate(case.model(), [feeds])
    calls = point_calls(case, feeds)
    assert len(statistics.cells) == len(calls)
    unused = {"GRU": "hidden_gate.reset_product", "GRU_linear": "reset.hidden"}.get(op)
    known = {p.name for p in CELL_TYPES[case.op].points} - {"W.weight", "R.weight", "bias", "accumulator", unused}
    for cell, expected in zip(cells_of(statistics), calls, strict=True):
        assert set(expected) == known, "the reference knows all points"
        check(statistics, cell, expected, name)


@pytest.mark.few(1)
@pytest.mark.parametrize("condition", [True, False])
def test_only_the_branch_that_ran_is_seen(condition: bool) -> None:
    case = RecurrentCase(placement="if", T=6, direction="bidirectional")
    statistics = rnnqc.calibrate(case.model(), [case.feeds(condition=condition)])
    there, other = ("then", "else") if condition else ("else", "then")
    assert statistics.silent_cells == [f"{other}_the_lstm.{d}" for d in ("forward", "reverse")]
    if condition:
        for d, calls in zip(("forward", "reverse"), point_calls(case, case.feeds()), strict=True):
            check(statistics, f"{there}_the_lstm.{d}", calls, "if")
    both = rnnqc.calibrate(case.model(), [case.feeds(condition=c) for c in (True, False)])
    assert both.silent_cells == []
    for point, found in statistics.points.items():
        assert both.points[point].as_dict() == found.as_dict(), "the other branch's feed adds nothing here"


def test_several_samples_are_as_one_after_the_other() -> None:
    case = RecurrentCase(T=6, B=3, direction="bidirectional", initial_h=True)
    samples = [case.replace(seed=k).feeds() for k in range(5)]
    statistics = rnnqc.calibrate(case.model(), iter(samples))
    assert statistics.settings["samples"] == 5
    for d, cell in enumerate(cells_of(statistics)):
        calls: dict[str, list[Call]] = {}
        for feeds in samples:
            for point, seen in point_calls(case, feeds)[d].items():
                calls.setdefault(point, []).extend(seen)
        check(statistics, cell, calls, "five samples")


# ---- states that are carried ---------------------------------------------------------------------------------------


STREAM = RecurrentCase(T=12, B=2, initial_h=True, initial_c=True, dynamic_time=True, dynamic_batch=True)
STATES = ["initial_h:Y_h", "initial_c:Y_c"]


def cut(feeds: dict[str, Array], length: int) -> list[dict[str, Array]]:
    pieces = [{"X": feeds["X"][t : t + length]} for t in range(0, len(feeds["X"]), length)]
    return [{**feeds, **pieces[0]}, *pieces[1:]]


@pytest.mark.parametrize("length", [1, 5, 12])
def test_a_stream_in_pieces_is_the_whole_sequence(length: int) -> None:
    feeds = STREAM.feeds()
    statistics = rnnqc.calibrate(STREAM.model(), cut(feeds, length), state=STATES)
    (expected,) = point_calls(STREAM, feeds)
    x = feeds["X"].astype(np.float64)
    expected["input"] = [Call([x[t : t + length, b] for b in range(STREAM.B)]) for t in range(0, STREAM.T, length)]
    check(statistics, "the_lstm.forward", expected, f"pieces of {length}")


def test_a_feed_with_a_state_starts_again_and_the_first_starts_from_zeros() -> None:
    feeds = STREAM.feeds()
    zeros = {n: np.zeros_like(feeds[n]) for n in ("initial_h", "initial_c")}
    one = rnnqc.calibrate(STREAM.model(), [{"X": feeds["X"]}, feeds], state=dict(s.split(":") for s in STATES))
    other = rnnqc.calibrate(STREAM.model(), [{**feeds, **zeros}, feeds], state=STATES)
    assert one.text == other.text
    carried = rnnqc.calibrate(STREAM.model(), [{"X": feeds["X"]}, {"X": feeds["X"]}], state=STATES)
    assert carried.points != one.points


def test_an_npz_of_calls_starts_with_its_state_and_carries_it_then(tmp_path: Path) -> None:
    feeds = STREAM.feeds()
    calls = np.stack(np.split(feeds["X"], 4))
    save_arrays(tmp_path / "calls.npz", {"X": calls, "initial_h": feeds["initial_h"], "initial_c": feeds["initial_c"]})
    statistics = rnnqc.calibrate(STREAM.model(), tmp_path / "calls.npz", state=STATES)
    assert statistics.text == rnnqc.calibrate(STREAM.model(), cut(feeds, 3), state=STATES).text


# ---- samples, batches, processes -----------------------------------------------------------------------------------


MANY = RecurrentCase(T=9, B=70, I=3, H=4, dynamic_batch=True, lens=tuple(k % 10 for k in range(70)))


def test_rows_of_a_large_batch_run_in_pieces() -> None:
    """Statistics of samples are those of the whole batch; calls are counted by piece."""
    feeds = MANY.feeds()
    statistics = rnnqc.calibrate(MANY.model(), [feeds])
    (expected,) = point_calls(MANY, feeds)
    assert statistics.settings["samples"] == 70
    for point, calls in expected.items():
        found, wanted = statistics.points[f"the_lstm.forward.{point}"], plain_statistics(calls)
        assert found.calls > wanted.pop("calls") and found.shape[-2] <= 32
        del wanted["mean_abs_dev"]
        for name, value in wanted.items():
            assert getattr(found, name) == pytest.approx(value, abs=1e-5), f"{point}.{name}"


def test_a_subset_is_the_first_samples_or_the_same_ones_for_a_seed() -> None:
    case = RecurrentCase(T=4, B=40, dynamic_batch=True)
    feeds = case.feeds()
    first = rnnqc.calibrate(case.model(), [feeds, feeds], limit=45)
    rest = [feeds, {"X": feeds["X"][:, :5]}]
    assert first.points.keys() and first.settings["samples"] == 45
    assert {n: p.as_dict() for n, p in first.points.items()} == {
        n: p.as_dict() for n, p in rnnqc.calibrate(case.model(), rest).points.items()
    }
    drawn = [rnnqc.calibrate(case.model(), [feeds], limit=7, seed=s) for s in (3, 3, 4)]
    assert drawn[0].text == drawn[1].text
    assert drawn[0].points["the_lstm.forward.input"] != drawn[2].points["the_lstm.forward.input"]
    assert all(d.settings["samples"] == 7 and d.points["the_lstm.forward.input"].count == 7 * 12 for d in drawn)
    everything = rnnqc.calibrate(case.model(), [feeds], limit=100, seed=0)
    assert everything.points["the_lstm.forward.input"].count == 40 * 12


def test_a_batch_is_that_of_data_in_such_batches() -> None:
    """Rows that are joined in another order, or states that are not those of their rows."""
    case = RecurrentCase(T=4, B=10, dynamic_batch=True, initial_h=True, initial_c=True)
    whole = case.feeds()
    axes = {"X": 1, "initial_h": 1, "initial_c": 1}
    assert set(axes) == set(whole)

    def rows(first: int, last: int) -> dict[str, Array]:
        return {k: whole[k].take(range(first, last), axis) for k, axis in axes.items()}

    asked = rnnqc.calibrate(case.model(), [rows(0, 3), rows(3, 4), rows(4, 10)], batch=4)
    given = rnnqc.calibrate(case.model(), [rows(0, 4), rows(4, 8), rows(8, 10)])
    assert {n: p.as_dict() for n, p in asked.points.items()} == {n: p.as_dict() for n, p in given.points.items()}
    assert asked.settings["batch"] == 4 and given.settings["batch"] is None and not asked.remarks
    assert asked.settings["shapes"] == given.settings["shapes"] == {k: list(v.shape) for k, v in rows(0, 4).items()}
    assert asked.digest == given.digest and asked.text != given.text
    alone = rnnqc.calibrate(case.model(), [whole], batch=1)
    assert alone.digest != asked.digest
    assert alone.points["the_lstm.forward.hidden"].calls == 10 * (4 + 1)
    small = rnnqc.calibrate(case.model(), [whole], batch=16)
    assert "no batch has 16 rows, the largest has 10" in str(*small.remarks)


def test_only_the_layers_asked_for_are_measured() -> None:
    """A filter that changes what is measured of a layer, or loses the layers it leaves out from the file."""
    case = RecurrentCase(direction="bidirectional", T=6, B=3)
    feeds = [case.feeds()]
    everything = rnnqc.calibrate(case.model(), feeds)
    one = rnnqc.calibrate(case.model(), feeds, layers=["*.reverse"])
    wanted = {n: p.as_dict() for n, p in everything.points.items() if ".reverse." in n}
    assert {n: p.as_dict() for n, p in one.points.items()} == wanted != {}
    assert one.cells == everything.cells and one.silent_cells == ["the_lstm.forward"]
    assert one.settings["layers"] == ["*.reverse"]
    both = rnnqc.calibrate(case.model(), feeds, layers=[r"re:.*\.(forward|reverse)"])
    assert both.points.keys() == everything.points.keys()
    for layers, message in (
        (["*.sideways"], "matches no cell"),
        (["re:("], r"no regular expr.*a glob over names of cells"),
        ("*", "is one text"),
    ):
        with pytest.raises(rnnqc.UsageError, match=message):
            rnnqc.calibrate(case.model(), feeds, layers=layers)


def samples(count: int) -> Iterator[dict[str, Array]]:
    for k in range(count):
        yield RecurrentCase(T=5 + k % 3, B=1 + k // 100, dynamic_time=True, dynamic_batch=True, seed=k).feeds()


SHAPES = RecurrentCase(dynamic_time=True, dynamic_batch=True, direction="bidirectional")


@pytest.fixture(scope="module")
def statistics_of_one_process() -> str:
    """Of more chunks than processes, of feeds of different shapes."""
    return rnnqc.calibrate(SHAPES.model(), samples(300)).text


@pytest.mark.slow
def test_processes_give_the_same_bytes(statistics_of_one_process: str) -> None:
    assert rnnqc.calibrate(SHAPES.model(), samples(300), processes=2).text == statistics_of_one_process
    assert multiprocessing.active_children() == []


@pytest.mark.slow
def test_machines_give_the_same_bytes(statistics_of_one_process: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rnnqc.calibration.distribute.TIMEOUT", HANGS)
    distributed = pytest.importorskip("distributed", reason="dask.distributed is absent: calibration on it NOT tested")
    with distributed.LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None) as cluster:
        many = rnnqc.calibrate(SHAPES.model(), samples(300), scheduler=cluster.scheduler_address)
        with pytest.raises(rnnqc.CompileError, match="sample 1: the model computes a value that is NaN"):
            case = RecurrentCase(lens=(5, 5), B=2)
            bad = case.feeds()
            bad["X"][1, 1, 1] = np.nan
            rnnqc.calibrate(case.model(), [case.feeds(), bad], scheduler=cluster.scheduler_address)
    assert many.text == statistics_of_one_process


@pytest.mark.slow
def test_samples_are_not_kept() -> None:
    case = RecurrentCase(T=1, B=1, I=128, H=8, dynamic_time=True, dynamic_batch=True, outputs=("Y_h",))
    made: list[weakref.ref[Array]] = []
    most = 0

    def feeds() -> Iterator[dict[str, Array]]:
        nonlocal most
        for k in range(6):
            array = np.random.default_rng(k).standard_normal((2000, 8, 128)).astype(np.float32)
            made.append(weakref.ref(array))
            most = max(most, sum(r() is not None for r in made))
            yield {"X": array}

    rnnqc.calibrate(case.model(), feeds())
    assert len(made) == 6 and most <= 4


# ---- the command line ----------------------------------------------------------------------------------------------


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.onnx"
    onnx.save(RecurrentCase(dynamic_batch=True).model(), path)
    return path


def test_command(model: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    case = RecurrentCase()
    folder = tmp_path / "data"
    folder.mkdir()
    feeds = [case.replace(seed=k).feeds() for k in range(3)]
    for k, feed in enumerate(feeds):
        save_arrays(folder / f"{k}.npz", feed)
    save_arrays(tmp_path / "all.npz", {"X": np.stack([f["X"] for f in feeds])})
    out = tmp_path / "stats.json"
    result = in_process(capfd, "calibrate", model, "--data", folder, "-o", out)
    assert result.code == 0, result.text
    assert "22 quantization points, 6 samples" in result.out and result.err == ""
    text = out.read_text()
    assert text == rnnqc.calibrate(model, feeds).text
    assert in_process(capfd, "calibrate", model, "--data", tmp_path / "all.npz", "-o", out).code == 0
    assert out.read_text() == text
    assert in_process(capfd, "calibrate", model, "--data", folder, "-o", out, "--no-moments").code == 0
    assert 'second_moment"' not in out.read_text()
    options = ["--num-samples", "3", "--seed", "1"]
    assert in_process(capfd, "calibrate", model, "--data", folder, "-o", out, *options).code == 0
    assert json.loads(out.read_text())["settings"]["samples"] == 3
    options = ["--batch", "4", "--layers", "*.forward"]
    result = in_process(capfd, "calibrate", model, "--data", folder, "-o", out, *options)
    assert result.code == 0 and result.err == "" and "6 samples, at most X [5, 4, 3] at once" in result.out


@pytest.mark.slow
def test_another_process_writes_the_same_bytes(model: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The other process has other string hashes."""
    save_arrays(tmp_path / "data.npz", RecurrentCase().feeds())
    files = [tmp_path / "a.json", tmp_path / "b.json"]
    for file, run_it in zip(files, (partial(in_process, capfd), in_new_python), strict=True):
        result = run_it("calibrate", model, "--data", tmp_path / "data.npz", "-o", file)
        assert result.code == 0, result.text
    assert files[0].read_bytes() == files[1].read_bytes()


def _wrong(change: Callable[[dict[str, Array]], Any]) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        feeds = RecurrentCase().feeds()
        replaced = change(feeds)
        save_arrays(folder / "data.npz", feeds if replaced is None else replaced)
        return folder / "data.npz"

    return write


def _pickle(folder: Path) -> Path:
    np.savez(folder / "data.npz", X=np.array([{}], dtype=object))
    return folder / "data.npz"


def _empty_folder(folder: Path) -> Path:
    (folder / "empty").mkdir()
    return folder / "empty"


def _file_in_folder(folder: Path) -> Path:
    inner = folder / "several"
    inner.mkdir()
    save_arrays(inner / "0.npz", RecurrentCase().feeds())
    save_arrays(inner / "1.npz", {"X": np.zeros((5, 2, 7), np.float32)})
    return inner


def _nan(feeds: dict[str, Array]) -> None:
    feeds["X"][3, 1, 2] = np.nan


WRONG: dict[str, tuple[Callable[[Path], Path], str]] = {
    "name": (_wrong(lambda f: {"x": f["X"]}), "no array for input 'X'; arrays: x"),
    "shape": (_wrong(lambda f: {"X": f["X"][..., :2]}), "array 'X' has shape [5, 2, 2]"),
    "dtype": (_wrong(lambda f: {"X": f["X"].astype(np.float64)}), "array 'X' is float64"),
    "NaN": (_wrong(_nan), "feed 0: array 'X' holds nan at [3, 1, 2]"),
    "infinity": (_wrong(lambda f: {"X": f["X"] / np.float32(0)}), "array 'X' holds"),
    "no samples": (_wrong(lambda f: {"X": np.zeros((0, 5, 2, 3), np.float32)}), "data is empty"),
    "no rows": (_wrong(lambda f: {"X": np.zeros((5, 0, 3), np.float32)}), "'X' [5, 0, 3]"),
    "pickle": (_pickle, "array 'X' holds objects"),
    "absent": (lambda folder: folder / "nothing.npz", "No such file"),
    "empty folder": (_empty_folder, "holds no .npz files"),
    "one of a folder": (_file_in_folder, "1.npz: array 'X' has shape [5, 2, 7]"),
}


@pytest.mark.filterwarnings("ignore:divide by zero")
@pytest.mark.parametrize("name", WRONG)
def test_wrong_data(name: str, model: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    write, message = WRONG[name]
    out = tmp_path / "stats.json"
    result = in_process(capfd, "calibrate", model, "--data", write(tmp_path), "-o", out)
    assert result.code == 2 and message in result.err and "Resolution:" in result.err, result.text
    assert "Traceback" not in result.text and not out.exists()
    assert not list(tmp_path.glob(".rnnqc*"))


OPTIONS: dict[str, tuple[list[str], str]] = {
    "state": (["--state", "X:nothing"], "no output 'nothing'"),
    "colon": (["--state", "X"], "not of the form IN:OUT"),
    "seed alone": (["--seed", "1"], "A seed chooses samples"),
    "seed of a stream": (["--state", "initial_h:Y_h", "--seed", "1", "--num-samples", "1"], "no random subset"),
    "processes of a stream": (["--state", "initial_h:Y_h", "--processes", "2"], "call after call"),
    "no samples": (["--num-samples", "0"], "0 samples"),
    "no batch": (["--batch", "0"], "batches of 0 rows"),
    "batches of a stream": (["--state", "initial_h:Y_h", "--batch", "2"], "the batches that the data has"),
    "no such layer": (["--layers", "*decoder*"], "matches no cell"),
    "no processes": (["--processes", "0"], "0 processes"),
}


@pytest.mark.parametrize("name", OPTIONS)
def test_wrong_options(name: str, model: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    options, message = OPTIONS[name]
    if "stream" in name:
        onnx.save(RecurrentCase(initial_h=True).model(), model)
    save_arrays(tmp_path / "data.npz", RecurrentCase().feeds())
    out = tmp_path / "stats.json"
    result = in_process(capfd, "calibrate", model, "--data", tmp_path / "data.npz", "-o", out, *options)
    assert result.code == 2 and message in result.err, result.text
    assert not out.exists()


@pytest.mark.slow
def test_a_scheduler_that_is_not_there(
    model: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rnnqc.calibration.distribute.TIMEOUT", 1)
    save_arrays(tmp_path / "data.npz", RecurrentCase().feeds())
    out = tmp_path / "stats.json"
    for address in ("tcp://127.0.0.1:9", "nonsense"):
        options = ["--scheduler", address]
        result = in_process(capfd, "calibrate", model, "--data", tmp_path / "data.npz", "-o", out, *options)
        assert result.code == 2 and ("no dask scheduler answers" in result.err or "not installed" in result.err)
        assert "Traceback" not in result.text and not out.exists()


def test_nan_beyond_the_padding_is_found_with_its_sample() -> None:
    case = RecurrentCase(B=2, lens=(5, 3))
    good, bad = case.feeds(), case.feeds()
    bad["X"][2, 1, 0] = np.inf
    with pytest.raises(rnnqc.CompileError, match=r"sample 1: .* NaN or infinite at the_lstm\.forward\.input"):
        rnnqc.calibrate(case.model(), [good, bad])


def test_the_first_value_that_is_not_finite_is_named() -> None:
    """Values wait before they are reduced; would catch one that is named because its point is reduced first."""
    case = RecurrentCase(B=2, lens=(5, 3))
    good, large, bad = case.feeds(), case.feeds(), case.feeds()
    large["X"][0, 0] = 3e38  # finite, and its products with weights are not
    bad["X"][2, 1, 0] = np.inf
    with pytest.raises(rnnqc.CompileError, match=r"sample 2: .* NaN or infinite at the_lstm\.forward\.\w+\.input_prod"):
        rnnqc.calibrate(case.model(), [good, good, large, good, bad])
    with pytest.raises(rnnqc.CompileError, match=r"sample 2: .* NaN or infinite at the_lstm\.forward\.input\."):
        rnnqc.calibrate(case.model(), [good, good, bad, good, large])


def test_a_model_without_recurrent_layers_and_a_lowered_one() -> None:
    plain = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> g (float[N] x) => (float[N] y) { y = Relu(x) }'
    )
    with pytest.raises(rnnqc.CompileError, match="no recurrent layer"):
        rnnqc.calibrate(plain, [{"x": np.ones(3, np.float32)}])
    case = RecurrentCase()
    with pytest.raises(rnnqc.CompileError, match="lowered already"):
        rnnqc.calibrate(rnnqc.lower(case.model(), form="qcdq").proto, [case.feeds()])


def test_the_model_is_not_changed_and_lowering_finds_the_same_cells() -> None:
    case = RecurrentCase(direction="bidirectional")
    proto = case.model()
    before = proto.SerializeToString(deterministic=True)
    statistics = rnnqc.calibrate(proto, [case.feeds()])
    assert proto.SerializeToString(deterministic=True) == before
    lowered = rnnqc.lower(proto).model
    statistics.check_fits(lowered.cells.values())
    other = rnnqc.lower(case.replace(H=5).model()).model
    with pytest.raises(rnnqc.UsageError, match=r"hidden_size 4.* hidden_size 5"):
        statistics.check_fits(other.cells.values())


def test_example_of_the_document(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Line by line, up to the ellipses; numbers to five digits."""
    root = Path(__file__).resolve().parents[3]
    example = (root / "docs" / "calibration.md").read_text(encoding="utf-8").split("```json\n")[1].split("```")[0]
    model, data = root / "models" / "digits_lstm.onnx", root / "models" / "digits_calibration.npz"
    out = tmp_path / "stats.json"
    assert in_process(capfd, "calibrate", model, "--data", data, "-o", out).code == 0
    lines = out.read_text().splitlines()
    skipped = lines.index('    "/lstm/LSTM.forward.cell_state": {')
    lines = [*lines[: lines.index('  "points": {') + 1], *lines[skipped:]]
    shown = example.splitlines()[:-1]
    assert len(shown) > 25
    for wanted, found in zip(shown, lines, strict=False):
        number = re.compile(r"-?\d+\.\d+")
        texts = [number.sub("#", t.split(",...")[0]) for t in (wanted, found)]
        values = [[float(v) for v in number.findall(t.split(",...")[0])] for t in (wanted, found)]
        assert texts[1].startswith(texts[0])
        assert values[1][: len(values[0])] == pytest.approx(values[0], rel=1e-5)


# ---- real models ---------------------------------------------------------------------------------------------------


def _frames(name: str, width: int) -> Iterator[dict[str, Array]]:
    rng = np.random.default_rng(0)
    for _ in range(12):
        yield {name: np.abs(rng.standard_normal((1, 1, width))).astype(np.float32)}


def test_dtln_with_states(shared: Callable[[str], Path]) -> None:
    path = shared("models/dtln/model_1.onnx")
    statistics = rnnqc.calibrate(path, _frames("input_2", 257), state=["input_3:tf_op_layer_stack_2"])
    assert sorted(statistics.cells) == ["dense_2", "lstm_4.forward", "lstm_5.forward"] and statistics.silent_cells == []
    still = rnnqc.calibrate(path, ({**f, "input_3": np.zeros((1, 2, 128, 2), "f")} for f in _frames("input_2", 257)))
    point = "lstm_4.forward.cell_state"
    assert statistics.points[point].max > still.points[point].max, "states build up only when they are carried"


def test_silero_in_the_branch_that_its_state_chooses(shared: Callable[[str], Path]) -> None:
    path = shared("models/silero_vad/silero_vad_16k_op15.onnx")
    rng = np.random.default_rng(0)
    feeds = [{"input": rng.standard_normal((1, 576)).astype("f"), "sr": np.array(16000)} for _ in range(6)]
    statistics = rnnqc.calibrate(path, feeds, state=["state:stateN"])
    assert [c["op"] for c in statistics.cells.values()].count("LSTM") == 1
    assert statistics.silent_cells == [], "the declared state chooses a branch"
    assert {p.calls for n, p in statistics.points.items() if n.endswith(".acc")} == {6}


@pytest.mark.parametrize("kind", ["sorted", "unsorted"])
def test_packed_imdb_counts_no_padding(kind: str, shared: Callable[[str], Path]) -> None:
    path = shared(f"models/vitis_rnn/imdb_lstm_packed_{kind}.onnx")
    rng = np.random.default_rng(0)
    lengths = np.array([30, 12, 3] if kind == "sorted" else [12, 3, 30])
    feeds = {"tokens": rng.integers(1, 5000, (3, 30)), "lengths": lengths}
    statistics = rnnqc.calibrate(path, [feeds])
    assert {p.count for n, p in statistics.points.items() if not n.endswith(".input")} == {100 * 45}
    assert {p.count for n, p in statistics.points.items() if n.endswith(".input")} == {32 * 45}


def test_statistics_of_the_weights_before_training_again(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Would catch: statistics of another training used without a word, or said of those that fit."""
    case = RecurrentCase(T=6, B=3, I=4, H=5, direction="bidirectional")
    trained, again = case.model(), case.model()
    weights = next(t for t in again.graph.initializer if t.name == "W")
    weights.CopyFrom(onnx.numpy_helper.from_array(1.01 * onnx.numpy_helper.to_array(weights), "W"))
    rnnqc.calibrate(trained, [case.feeds()]).save(tmp_path / "stats.json")
    for model, said in ((trained, False), (again, True)):
        lowered = rnnqc.lower(model, "w4a8", stats=tmp_path / "stats.json")
        remarks = [str(r) for r in lowered.report.warnings if "other weights of 2 of 2 layers" in str(r)]
        assert len(remarks) == said, lowered.report.warnings
    onnx.save(again, tmp_path / "again.onnx")
    arguments = ("lower", tmp_path / "again.onnx", "-o", tmp_path / "out.onnx", "--stats", tmp_path / "stats.json")
    result = in_process(capfd, *arguments)
    assert result.code == 0 and "stats.json" in result.err and "calibrate this model" in result.err
    older = json.loads((tmp_path / "stats.json").read_text())
    del older["settings"]["weights"]
    (tmp_path / "stats.json").write_text(json.dumps(older))
    assert "other weights" not in in_process(capfd, *arguments, "--overwrite").err
