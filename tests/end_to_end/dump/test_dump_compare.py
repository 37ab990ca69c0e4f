"""`rnnqc dump --compare`: which step is the first, and what is not compared.

What these would catch: a later step named as the first one, a dump that differs from itself, a misspelled array that
counts as one that agrees.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import rnnqc
from rnnqc.dumps.compare import compare
from rnnqc.dumps.differences import Choice
from tests.generate.layers import RecurrentCase
from tests.pages.dump_page import COMPARE, run
from tests.pages.dumped import POWERS_OF_TWO
from tests.runs.commands import Result, in_process
from tests.runs.sessions import save_arrays

Array = npt.NDArray[Any]
Change = Callable[[dict[str, Array]], None]
RUNS = 3
WHOLE = ["*.cell_state.bits=24"]
"""A cell state that has quantized values."""
CASE = RecurrentCase(T=4, initial_h=True, initial_c=True, direction="reverse", outputs=("Y", "Y_h", "Y_c"))


def changed(folder: Path, other: Path, change: Change) -> None:
    """Writes the arrays of the only cell of a dump to another folder, changed."""
    (file,) = folder.glob("*.npz")
    with np.load(file, allow_pickle=False) as held:
        arrays = dict(held)
    change(arrays)
    other.mkdir(exist_ok=True)
    save_arrays(other / file.name, arrays)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cell of each direction, run three times for 4 steps: their dumps, in folders of their own."""
    path = tmp_path_factory.mktemp("compare")
    state = ["initial_h:Y_h", "initial_c:Y_c"]
    for direction in ("forward", "reverse"):
        case = CASE.replace(direction=direction)
        rnnqc.lower(case.model(), overrides=WHOLE).save(path / f"{direction}.onnx")
        feeds = case.feeds()
        x = np.stack([feeds["X"] * (k + 1) for k in range(RUNS)])
        save_arrays(path / f"{direction}.npz", {**feeds, "X": x})
        model, data = path / f"{direction}.onnx", path / f"{direction}.npz"
        rnnqc.dump(model, data, path / direction, state=state)
        rnnqc.dump(model, data, path / f"{direction} part", state=state, steps=(2, 11), row=1)
    return path


# What differs, numbered over all runs, and which of it the cell makes first.
@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("direction", "steps", "first"),
    [
        ("reverse", (2, 5), 2),
        ("reverse", (1, 2, 11), 2),
        ("reverse", (4, 5, 8, 9), 5),
        ("reverse", (10, 9), 10),
        ("reverse", (3, 4), 3),
        ("forward", (9, 5, 6), 5),
    ],
)
@pytest.mark.parametrize("part", [False, True])
def test_the_first_step_of_several_runs(
    folder: Path, tmp_path: Path, direction: str, steps: tuple[int, ...], first: int, part: bool
) -> None:
    name = f"{direction} part" if part else direction
    index = json.loads((folder / name / "index.json").read_text())
    (cell,) = index["cells"].values()
    assert [r["first"] for r in cell["runs"]] == [0, 4, 8]
    begin, row = (2, 1) if part else (0, 0)
    there = [s for s in steps if begin <= s < 11 or not part]

    def change(arrays: dict[str, Array]) -> None:
        for step in there:
            arrays["hidden.codes"][step - begin, 0, 1] += 1
        arrays["cell_state.codes"][there[0] - begin, 0, 2] += 1

    changed(folder / name, tmp_path / "theirs", change)
    (difference,) = compare(folder / name, index, tmp_path / "theirs").differences
    assert (difference.step, difference.index[0]) == (first, row)
    assert difference.array == ("cell_state.codes" if first == there[0] else "hidden.codes")
    printed = run(COMPARE, tmp_path, str(folder / name), str(tmp_path / "theirs"))
    assert len(printed.splitlines()) == 1
    assert f": step {first}, {difference.array}, row 0, column {difference.index[1]}: " in printed


def test_nan_is_equal_to_nan_alone(folder: Path, tmp_path: Path) -> None:
    index = json.loads((folder / "forward/index.json").read_text())

    def ours(arrays: dict[str, Array]) -> None:
        for name in [n for n in arrays if n.endswith(".codes")]:
            del arrays[name]
        arrays["hidden.value"][2:4, 0, 0] = np.nan

    def theirs(arrays: dict[str, Array]) -> None:
        ours(arrays)
        arrays["hidden.value"][3, 0, 0] = 0

    changed(folder / "forward", tmp_path / "ours", ours)
    (tmp_path / "ours/index.json").write_text(json.dumps(index))
    assert not compare(tmp_path / "ours", index, tmp_path / "ours").differences
    assert run(COMPARE, tmp_path, "ours", "ours") == ""
    changed(folder / "forward", tmp_path / "theirs", theirs)
    for one, other in (("ours", "theirs"), ("theirs", "ours")):
        (difference,) = compare(tmp_path / one, index, tmp_path / other).differences
        assert (difference.array, difference.step) == ("hidden.value", 3)
    assert "step 3, hidden.value, row 0, column 0: nan and 0.0" in run(COMPARE, tmp_path, "ours", "theirs")


@pytest.fixture
def dump(capfd: pytest.CaptureFixture[str], folder: Path, tmp_path: Path) -> Callable[..., Result]:
    """`rnnqc dump` of the forward cell, compared with a folder."""

    def run_it(name: str, other: Path, *arguments: str) -> Result:
        return in_process(
            capfd, "dump", folder / "forward.onnx", "-i", folder / "forward.npz", "-o", tmp_path / name,
            "--state", "initial_h:Y_h", "--state", "initial_c:Y_c", "--compare", other, *arguments,
        )  # fmt: skip

    return run_it


def test_what_the_dump_does_not_have_is_said(folder: Path, tmp_path: Path, dump: Callable[..., Result]) -> None:
    def misspelled(arrays: dict[str, Array]) -> None:
        arrays["cellstate.codes"] = arrays.pop("cell_state.codes")
        for k in range(7):
            arrays[f"mine{k}"] = np.zeros(3)

    theirs = tmp_path / "theirs"
    changed(folder / "forward", theirs, lambda arrays: None)
    result = dump("same", theirs)
    assert result.code == 0 and "Not compared" not in result.text, result.text
    changed(folder / "forward", theirs, misspelled)
    save_arrays(theirs / "other.npz", {"hidden": np.zeros(3)})
    result = dump("one", theirs)
    assert result.code == 0, result.text
    for text in ("other.npz: the dump has no such file", "the dump has no 'cellstate.codes', 'mine0',", "3 more"):
        assert text in " ".join(result.err.split()), result.err
    for file in theirs.iterdir():
        file.unlink()
    save_arrays(theirs / "other.npz", {"hidden": np.zeros(3)})
    result = dump("two", theirs)
    assert result.code == 2
    assert "nothing to compare (other.npz: the dump has no such file)" in " ".join(result.err.split())


def test_what_cannot_be_compared(folder: Path, tmp_path: Path, dump: Callable[..., Result]) -> None:
    def words(arrays: dict[str, Array]) -> None:
        arrays["hidden.codes"] = arrays["hidden.codes"].astype(str)

    changed(folder / "forward", tmp_path / "theirs", words)
    result = dump("out", tmp_path / "theirs")
    assert result.code == 2 and "'hidden.codes' holds <U" in " ".join(result.err.split()), result.text
    result = dump("theirs", tmp_path / "theirs", "--overwrite")
    assert result.code == 2 and "is the output" in " ".join(result.err.split()), result.text
    assert len(list((tmp_path / "theirs").iterdir())) == 1


def test_only_codes_only_some_names_and_close_values(folder: Path, tmp_path: Path, dump: Callable[..., Result]) -> None:
    """Each option leaves out what it says and nothing else; the summary counts values and names the first one."""
    index = json.loads((folder / "forward/index.json").read_text())
    ((cell, entry),) = index["cells"].items()

    def change(arrays: dict[str, Array]) -> None:
        arrays["x.product"][5] += 0.25
        arrays["hidden.value"][7, 1, 2] += 0.125
        del arrays["x.product.codes"]
        arrays["cell_state.codes"][8, 0, 1] += 3

    theirs = tmp_path / "theirs"
    changed(folder / "forward", theirs, change)
    with np.load(folder / "forward" / entry["file"]) as held:
        ours = dict(held)

    def compared(**choice: Any) -> tuple[Any, Any]:
        (made,) = compare(folder / "forward", index, theirs, Choice(**choice)).cells.values()
        return made, made.first

    made, first = compared()
    assert (first.array, first.step, first.call) == ("x.product", 5, 1)
    assert made.different == ours["x.product"][0].size + 2
    with_codes = {n for n in entry["tensors"] if f"{n}.codes" in ours} - {"x.product"}
    parameters = sum(ours[n].size for n in entry["parameters"] if ours[n].dtype.kind in "iu")
    codes = sum(ours[n].size for n in with_codes) + parameters
    made, first = compared(codes=True)
    assert (made.values, made.different) == (codes, 1) and len(with_codes) > 5 and parameters
    assert (first.array, first.step, first.index) == ("cell_state.codes", 8, (0, 1))
    assert first.found == first.expected + 3
    assert compared(codes=True, atol=9.0)[0].different == 1, "codes are compared exactly"
    made, first = compared(only=["hidden*"])
    assert (made.different, first.array, first.step) == (1, "hidden.value", 7)
    made, first = compared(only=["input", "hidden.activation", "x.*"], atol=0.2)
    assert first.array == "x.product"
    made, first = compared(atol=0.125)
    assert first.array == "x.product"
    made, first = compared(atol=0.26)
    assert (made.different, first.array) == (1, "cell_state.codes")

    def lines(name: str, *options: str) -> tuple[int, str]:
        result = dump(name, theirs, *options)
        return result.code, " ".join(result.out.split())

    code, text = lines("one", "--atol", "0.26", "--codes")
    assert code == 1
    place = f"{cell}: step 8, cell_state.codes, row 0, column 1: {first.expected}, the other {first.found}"
    assert f"{place} (1 of {codes} values differ)" in text
    assert f"Compared: {codes} values, {codes - 1} equal, 1 different; the first one is {place}" in text
    size = sum(ours[n].size for n in ("hidden", "hidden.previous"))
    code, text = lines("two", "--only", "hidden", "--only", "hidden.previous")
    assert code == 0 and f"Compared: {size} values, {size} equal, 0 different" in text
    result = dump("three", theirs, "--only", "hiden*")
    assert result.code == 2 and "nothing to compare" in " ".join(result.err.split())


def test_parameters_come_first(folder: Path, tmp_path: Path, dump: Callable[..., Result]) -> None:
    def change(arrays: dict[str, Array]) -> None:
        arrays["R.weight.codes"][3, 4] -= 1
        arrays["input.codes"][0] += 1

    changed(folder / "forward", tmp_path / "theirs", change)
    result = dump("out", tmp_path / "theirs")
    assert result.code == 1
    assert "lstm.forward: R.weight.codes, row 3, column 4: " in " ".join(result.out.split())


def test_cells_that_are_not_there(folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Both directions run; the other side has one of them. The first difference is that of the first call."""
    case = CASE.replace(direction="bidirectional", T=2)
    rnnqc.lower(case.model(), overrides=WHOLE).save(tmp_path / "model.onnx")
    save_arrays(tmp_path / "in.npz", case.feeds())
    index = rnnqc.dump(tmp_path / "model.onnx", tmp_path / "in.npz", tmp_path / "one")
    (tmp_path / "theirs").mkdir()
    first, second = (c["file"] for c in index["cells"].values())
    (tmp_path / "theirs" / second).write_bytes((tmp_path / "one" / second).read_bytes())
    result = in_process(
        capfd, "dump", tmp_path / "model.onnx", "-i", tmp_path / "in.npz", "-o", tmp_path / "two",
        "--compare", tmp_path / "theirs",
    )  # fmt: skip
    assert result.code == 0
    assert f"lstm.forward: the other folder has no {first}" in " ".join(result.err.split()), result.text


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (("--codes",), "--codes: there is nothing to compare"),
        (("--only", "x"), "--only: there is nothing to compare"),
        (("--atol", "0"), "--atol: there is nothing to compare"),
        (("--compare", ".", "--atol", "-1"), "argument --atol: invalid difference"),
        (("--compare", ".", "--atol", "nan"), "argument --atol: invalid difference"),
    ],
)
def test_options_of_no_comparison(
    folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], options: tuple[str, ...], text: str
) -> None:
    data = folder / "forward.npz"
    result = in_process(capfd, "dump", folder / "forward.onnx", "-i", data, "-o", tmp_path / "out", *options)
    assert result.code == 2 and text in " ".join(result.err.split()), result.text
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize("op", ["LSTM", "GRU", "RNN"])
@pytest.mark.parametrize("recipe", ["brevitas-int8", "pow2-int8"])
def test_forms_have_the_same_codes(tmp_path: Path, capfd: pytest.CaptureFixture[str], recipe: str, op: Any) -> None:
    """Fused against qcdq, whose sums are floats: codes agree, sums within their rounding, without options they part."""
    case = RecurrentCase(op=op, initial_h=True, direction="bidirectional")
    coarse = ["*.activation.table=exact", "*.activation.max_fix_position=12"]  # with 15 bits some codes lie near a tie
    overrides = POWERS_OF_TWO if recipe == "brevitas-int8" else coarse
    data = tmp_path / "in.npz"
    save_arrays(data, case.feeds())
    for form in ("fused", "qcdq"):
        made = rnnqc.lower(case.model(), recipe, form=form, overrides=overrides, calibration=[case.feeds()])
        made.save(tmp_path / f"{form}.onnx")
    arguments = ("dump", tmp_path / "fused.onnx", "-i", data, "--overwrite", "-o", tmp_path / "fused")
    rnnqc.dump(tmp_path / "qcdq.onnx", data, tmp_path / "qcdq")
    for options in (("--codes",), ("--atol", "1e-5")):
        result = in_process(capfd, *arguments, "--compare", tmp_path / "qcdq", *options)
        assert result.code == 0 and " 0 different" in result.out, result.text
