"""`rnnqc dump`: files, options, states, and what it refuses.

What these would catch: files that differ between runs or with the native library, pieces of a sequence that do not add
up to the whole, a folder that is half written or somebody else's, a deviation of the native library that goes unseen.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest

import rnnqc
from rnnqc.errors import InternalError, NumericsError
from rnnqc.evaluation.evaluate import make_session
from rnnqc.reference.loop import ReferenceCell
from rnnqc.tracing import traced_cell
from rnnqc.tracing.native_steps import NativeSteps
from tests.generate.layer_specs import ITERATIONS
from tests.generate.layers import RecurrentCase
from tests.runs.commands import Result, in_new_python, in_process
from tests.runs.sessions import save_arrays
from tests.subjects.around import TRIPS, in_scan

Array = npt.NDArray[Any]
Dump = Callable[..., Result]
STREAM = RecurrentCase(T=12, initial_h=True, initial_c=True, dynamic_time=True, outputs=("Y", "Y_h", "Y_c"))


@pytest.fixture
def dump(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> Dump:
    """`rnnqc dump` on the model and the feeds that `prepare` wrote."""

    def run(name: str, *arguments: str | Path) -> Result:
        return in_process(
            capfd, "dump", tmp_path / "model.onnx", "-i", tmp_path / "in.npz", "-o", tmp_path / name, *arguments
        )

    return run


def prepare(
    folder: Path,
    case: RecurrentCase,
    recipe: str = "int8",
    feeds: Mapping[str, Array] | None = None,
    overrides: Sequence[str] = (),
) -> None:
    """Writes the lowered model and its feeds."""
    made = rnnqc.lower(case.model(), recipe=recipe, calibration=[case.feeds()], overrides=overrides)
    made.save(folder / "model.onnx")
    save_arrays(folder / "in.npz", case.feeds() if feeds is None else feeds)


def arrays(path: Path) -> dict[str, Array]:
    """All arrays of the only `.npz` of a dump."""
    (file,) = path.glob("*.npz")
    with np.load(file, allow_pickle=False) as held:
        return dict(held)


def only_cell(path: Path) -> dict[str, Any]:
    """The index entry of the only cell."""
    (cell,) = json.loads((path / "index.json").read_text())["cells"].values()
    return dict(cell)


def test_stock_and_native_write_the_same_bytes(tmp_path: Path, dump: Dump) -> None:
    prepare(tmp_path, RecurrentCase(T=2, lens=(2, 1)))
    for name, way in (("native", ()), ("stock", ("--stock",)), ("again", ())):
        result = dump(name, "--text", *way)
        assert result.code == 0, result.text
        assert "2 steps of 22 tensors" in result.out
    files = sorted(p.relative_to(tmp_path / "native") for p in (tmp_path / "native").rglob("*") if p.is_file())
    assert len([f for f in files if f.suffix == ".npz"]) == 1
    assert len([f for f in files if f.suffix == ".txt"]) > 50
    for file in files:
        native, stock, again = ((tmp_path / n / file).read_bytes() for n in ("native", "stock", "again"))
        assert native == again, file
        assert file.name == "index.json" or native == stock, file
    index, other = (json.loads((tmp_path / n / "index.json").read_text()) for n in ("native", "stock"))
    assert (index.pop("ran"), other.pop("ran")) == ("native", "stock")
    assert index == other


def test_index_and_text_say_what_the_arrays_say(tmp_path: Path, dump: Dump) -> None:
    prepare(tmp_path, RecurrentCase())
    assert dump("out", "--text", "--row", "1").code == 0
    index = json.loads((tmp_path / "out/index.json").read_text())
    ((name, cell),) = index["cells"].items()
    assert (cell["op"], cell["form"], cell["arithmetic"], cell["steps"]) == ("LSTM", "fused", "tables", 5)
    assert cell["runs"] == [{"call": 0, "first": 0, "steps": 5}]
    held = arrays(tmp_path / "out")
    assert set(cell["tensors"]) <= set(held)
    shapes = dict(line.split(": ")[::-1] for line in (tmp_path / "out/shape.txt").read_text().splitlines())
    checked = 0
    for tensor, entry in cell["tensors"].items():
        assert list(held[tensor].shape) == entry["shape"] and held[tensor].shape[1] == 1
        for suffix, array in (("", held[tensor]), ("_fix", held.get(f"{tensor}.codes"))):
            if array is None:
                assert entry["codes"] is None
                continue
            file = "".join(c if c.isalnum() else "_" for c in f"{name}.{tensor}") + suffix
            assert shapes[file] == str([array.shape[-1]])
            for t in range(5):
                lines = (tmp_path / f"out/frame_{t}/{file}.txt").read_text().splitlines()
                assert lines == [(f"{v}" if suffix else f"{v:12g}") for v in array[t, 0]]
                checked += 1
    assert checked > 150
    weights = [p.name for p in (tmp_path / "out").rglob("*W_weight_fix.txt")]
    assert len(weights) == 1 and (tmp_path / "out/frame_0" / weights[0]).is_file()


def test_rows_and_steps(tmp_path: Path, dump: Dump) -> None:
    prepare(tmp_path, RecurrentCase(B=3))
    assert dump("all").code == dump("some", "--row", "2", "--steps", "1:4").code == 0
    whole, part = arrays(tmp_path / "all"), arrays(tmp_path / "some")
    assert list(whole) == list(part)
    for name, array in whole.items():
        assert np.array_equal(array[1:4, 2:] if array.ndim == 3 else array, part[name]), name
    assert only_cell(tmp_path / "some")["first_step"] == 1


@pytest.mark.few(1)
@pytest.mark.parametrize("pieces", [1, 3, 12])
@pytest.mark.parametrize("recipe", ["int8", "pow2-int8"])
def test_pieces_with_states_are_the_whole(tmp_path: Path, dump: Dump, recipe: str, pieces: int) -> None:
    """Also step by step: frame t is what a run of step t alone finds."""
    feeds = STREAM.feeds()
    x = feeds["X"].reshape(pieces, STREAM.T // pieces, *feeds["X"].shape[1:])
    prepare(tmp_path, STREAM, recipe, {**feeds, "X": x})
    assert dump("pieces", "--state", "initial_h:Y_h", "--state", "initial_c:Y_c").code == 0
    save_arrays(tmp_path / "in.npz", feeds)
    assert dump("whole").code == 0
    one, other = arrays(tmp_path / "whole"), arrays(tmp_path / "pieces")
    assert list(one) == list(other)
    for name, array in one.items():
        assert array.tobytes() == other[name].tobytes(), name
    assert len(only_cell(tmp_path / "pieces")["runs"]) == pieces


def test_progress_counts_steps_of_all_calls(tmp_path: Path) -> None:
    """Would catch: a bar that begins again with each call."""
    told: list[int] = []
    lowered = rnnqc.lower(STREAM.model())
    rnnqc.dump(lowered, [STREAM.feeds(), STREAM.feeds()], tmp_path / "dump", progress=told.append)
    assert told == [12, 24]


@pytest.mark.few(1)
@pytest.mark.parametrize("direction", ["forward", "reverse"])
def test_chunks_are_the_whole(monkeypatch: pytest.MonkeyPatch, direction: Any) -> None:
    """Long sequences are evaluated piece by piece."""
    case = STREAM.replace(direction=direction)
    model = rnnqc.lower(case.model()).proto
    runs = []
    for size in (traced_cell.CHUNK_BYTES, 1):
        monkeypatch.setattr(traced_cell, "CHUNK_BYTES", size)
        runs.append(list(rnnqc.Tracer(model).trace([case.feeds()])))
    assert [len(r) for r in runs] == [1, case.T]
    assert [s.first for s in runs[1]] == list(range(case.T))
    for name, tensor in runs[0][0].tensors.items():
        pieces = np.concatenate([s.tensors[name].values for s in runs[1]])
        assert pieces.tobytes() == tensor.values.tobytes(), name


@pytest.mark.few(1)
@pytest.mark.parametrize(("placement", "steps"), [("if", 5), ("loop", ITERATIONS * 5), ("function", 5)])
def test_cells_in_subgraphs(tmp_path: Path, dump: Dump, placement: Any, steps: int) -> None:
    case = RecurrentCase(placement=placement, initial_h=True)
    prepare(tmp_path, case)
    result = dump("out")
    assert result.code == 0, result.text
    cells = json.loads((tmp_path / "out/index.json").read_text())["cells"]
    counts = [c["steps"] for c in cells.values()]
    assert sorted(counts) == ([0, 5] if placement == "if" else [steps])


@pytest.mark.few(2)
@pytest.mark.parametrize("form", ["fused", "integer", "qcdq"])
def test_cells_in_a_scan(form: str) -> None:
    """Each step of the Scan is a run of the cell."""
    case = RecurrentCase(outputs=("Y",))
    model = rnnqc.lower(in_scan(case.model(), "X"), form=form).proto
    (y,) = make_session(model, native=True, optimize=form != "qcdq").run(None, case.feeds())
    pieces = list(rnnqc.Tracer(model).trace([case.feeds()]))
    assert [p.run for p in pieces] == list(range(TRIPS))
    for piece in pieces:
        assert np.array_equal(piece.tensors["hidden.value"].values, y[piece.run, :, 0])
    assert np.ptp(y[0] - y[1]) > 0


def _deviating(after: int) -> Callable[..., Any]:
    original = NativeSteps.run

    def run(self: NativeSteps, x: Array, states: Mapping[str, Array]) -> dict[str, Array]:
        made = original(self, x, states)
        made["Y_c"] = made["Y_c"].copy()
        made["Y_c"][after] = np.nextafter(made["Y_c"][after], np.float32(9))
        return made

    return run


def test_a_deviation_of_the_library_is_named(tmp_path: Path, dump: Dump, monkeypatch: pytest.MonkeyPatch) -> None:
    prepare(tmp_path, RecurrentCase(B=2))
    monkeypatch.setattr(NativeSteps, "run", _deviating(7))
    result = dump("out")
    assert result.code == 1
    for text in ("lstm.forward", "step 3", "'cell_state'", "--stock"):
        assert text in result.err.replace("\n", " ")
    assert not (tmp_path / "out").exists()
    assert dump("out", "--stock").code == 0


def test_a_run_that_differs_from_the_specification_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    case = RecurrentCase()
    model = rnnqc.lower(case.model()).proto
    tracer = rnnqc.Tracer(model, native=False)
    original = ReferenceCell.run

    def run(self: ReferenceCell) -> dict[str, Array]:
        return {n: np.nextafter(v, np.float32(9)) if n == "Y_h" else v for n, v in original(self).items()}

    monkeypatch.setattr(ReferenceCell, "run", run)
    with pytest.raises(InternalError, match=r"lstm\.forward.*'Y_h'.*specification"):
        list(tracer.trace([case.feeds()]))
    assert not issubclass(NumericsError, rnnqc.CompileError)


def test_refusals(tmp_path: Path, dump: Dump) -> None:
    case = RecurrentCase()
    onnx.save(case.model(), tmp_path / "model.onnx")
    save_arrays(tmp_path / "in.npz", case.feeds())

    def refused(result: Result, *texts: str) -> None:
        assert result.code == 2, result.text
        assert "Traceback" not in result.text
        for text in texts:
            assert text in " ".join(result.err.split()), result.err
        assert not (tmp_path / "out").exists()
        assert not [p for p in tmp_path.iterdir() if p.name.startswith(".rnnqc")]

    refused(dump("out", "--cells", "nothing*"), "nothing*", "lstm.forward")
    prepare(tmp_path, case)
    refused(dump("out", "--cells", "nothing*"), "nothing*", "lstm.forward")
    refused(dump("out", "--row", "2"), "--row 2", "2 rows", "0 to 1")
    refused(dump("out", "--row", "-1"), "--row")
    for steps in ("3:3", "x", "1", "-1:2"):
        refused(dump("out", f"--steps={steps}"), f"'{steps}'", "A:B")
    refused(dump("out", "--steps", "7:"), "No step", "5 steps")
    refused(dump("out", "--state", "X:Z"), "no output 'Z'")
    refused(dump("model.onnx/out"), "cannot be written")
    refused(dump("out", "--compare", tmp_path / "absent"), "no such folder")
    model = onnx.load(tmp_path / "model.onnx")
    (at,) = (k for k, f in enumerate(model.functions) if f.name.startswith("QuantLSTMCell"))
    del model.functions[at]
    onnx.save(model, tmp_path / "model.onnx")
    refused(dump("out"), "lstm.forward", "no function for QuantLSTMCell", "lower the float model again")


def test_folders(tmp_path: Path, dump: Dump) -> None:
    prepare(tmp_path, RecurrentCase())
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/file").write_text("mine")
    for arguments, text in (((), "--overwrite"), (("--overwrite",), "something else")):
        result = dump("mine", *arguments)
        assert result.code == 2 and text in result.err
    assert [p.name for p in (tmp_path / "mine").iterdir()] == ["file"]
    (tmp_path / "empty").mkdir()
    assert dump("empty").code == 0
    assert dump("empty").code == 2
    assert dump("empty", "--steps", "0:1", "--overwrite").code == 0
    assert arrays(tmp_path / "empty")["hidden"].shape[0] == 1
    assert not [p for p in tmp_path.iterdir() if p.name.startswith(".rnnqc")]


def test_a_folder_that_is_there_hides_nothing(tmp_path: Path, dump: Dump) -> None:
    """Other errors are reported first, as in other commands; the folder is checked before the model runs."""
    prepare(tmp_path, RecurrentCase())
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/file").write_text("mine")
    (tmp_path / "in.npz").rename(tmp_path / "data.npz")
    assert "in.npz: No such file" in " ".join(dump("mine").err.split())
    save_arrays(tmp_path / "in.npz", {"Y": np.zeros(3)})
    assert "'X'" in dump("mine").err
    (tmp_path / "data.npz").rename(tmp_path / "in.npz")
    assert "no cell has such a name" in " ".join(dump("mine", "--cells", "nothing").err.split())
    assert "no output 'Z'" in " ".join(dump("mine", "--state", "X:Z").err.split())
    result = dump("mine")
    assert result.code == 2 and "is not empty" in " ".join(result.err.split()), result.text
    assert [p.name for p in (tmp_path / "mine").iterdir()] == ["file"]


@pytest.mark.slow
@pytest.mark.parametrize("form", ["integer", "qcdq"])
def test_bytes_do_not_depend_on_hashes(tmp_path: Path, form: str, capfd: pytest.CaptureFixture[str]) -> None:
    case = RecurrentCase(op="GRU")
    rnnqc.lower(case.model(), form=form).save(tmp_path / "model.onnx")
    save_arrays(tmp_path / "in.npz", case.feeds())
    made = []
    for name, run_it in (("one", partial(in_process, capfd)), ("other", in_new_python)):
        result = run_it("dump", tmp_path / "model.onnx", "-i", tmp_path / "in.npz", "-o", tmp_path / name)
        assert result.code == 0, result.text
        made.append({p.name: p.read_bytes() for p in (tmp_path / name).iterdir()})
    assert len(made[0]) == 2 and made[0] == made[1]


def test_constants_that_are_stored_sparsely(dump: Dump, tmp_path: Path) -> None:
    prepare(tmp_path, RecurrentCase(T=3, opset=17))
    assert dump("plain").code == 0
    model = onnx.load(tmp_path / "model.onnx")
    (table,) = (t for t in model.graph.initializer if t.name.endswith("/h_multiplier"))
    array = onnx.numpy_helper.to_array(table)
    places = onnx.numpy_helper.from_array(np.arange(array.size), "places")
    sparse = onnx.helper.make_sparse_tensor(table, places, list(array.shape))
    model.graph.sparse_initializer.append(sparse)
    model.graph.initializer.remove(table)
    onnx.save(model, tmp_path / "model.onnx")
    result = dump("sparse", "--stock")
    assert result.code == 0, result.text
    expected, found = arrays(tmp_path / "plain"), arrays(tmp_path / "sparse")
    assert expected.keys() == found.keys()
    assert all(np.array_equal(expected[k], found[k]) for k in expected)
