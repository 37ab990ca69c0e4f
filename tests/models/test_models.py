"""The files of `models/`: what the README says of them is true, and onnxruntime runs them."""

from __future__ import annotations

import hashlib
import re
import sys
from pathlib import Path

import make_models
import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime as ort
import pytest
from make_models import ARRAYS, TRAINED, score
from model_scores import FOLDER
from tiny_models import HIDDEN, TINY_MODELS, TinyModel

SIZES = {"T": 4, "B": 2, "N": 3, "frame count": 4, "batch/size": 2, "time": 4, "batch": 2}
README = (FOLDER / "README.md").read_text(encoding="utf-8")
ROWS = {
    name: [cell.strip(" `") for cell in cells.split("|")]
    for name, cells in re.findall(r"^\| `([^`]+\.(?:onnx|npz))` \|(.*)\|$", README, re.MULTILINE)
}
TINY = {f"tiny/{tiny.name}.onnx": tiny for tiny in TINY_MODELS}
MODEL_FILES = [*TRAINED, *TINY]


def feeds(session: ort.InferenceSession) -> dict[str, npt.NDArray[np.generic]]:
    """Normal floats and small valid integers for every input."""
    rng = np.random.default_rng(0)
    made: dict[str, npt.NDArray[np.generic]] = {}
    for value in session.get_inputs():
        shape = [SIZES[size] if isinstance(size, str) else size for size in value.shape]
        if value.type == "tensor(float)":
            made[value.name] = rng.normal(size=shape).astype(np.float32)
        elif value.type == "tensor(bool)":
            made[value.name] = np.ones(shape, np.bool_)
        else:
            dtype = {"tensor(int32)": np.int32, "tensor(int64)": np.int64}[value.type]
            made[value.name] = rng.integers(1, 1 + SIZES["T"], shape).astype(dtype)
    return made


def session_of(path: Path) -> ort.InferenceSession:
    return ort.InferenceSession(path, providers=["CPUExecutionProvider"])


def test_every_file_is_in_the_tables_and_no_other() -> None:
    present = {path.relative_to(FOLDER).as_posix() for kind in ("*.onnx", "*.npz") for path in FOLDER.rglob(kind)}
    assert present == set(ROWS) == {*TRAINED, *ARRAYS, *TINY}


@pytest.mark.parametrize("name", sorted(ROWS))
def test_size_and_hash_are_those_of_the_readme(name: str) -> None:
    data = (FOLDER / name).read_bytes()
    assert [str(len(data)), hashlib.sha256(data).hexdigest()] == ROWS[name][-2:]
    assert len(data) <= 1_000_000


@pytest.mark.parametrize("name", MODEL_FILES)
def test_models_are_valid(name: str) -> None:
    model = onnx.load(FOLDER / name)
    onnx.checker.check_model(model, full_check=True)
    assert model.ir_version <= 10


@pytest.mark.parametrize("name", [name for name in MODEL_FILES if name in TRAINED or TINY[name].runs])
def test_onnxruntime_runs(name: str) -> None:
    session = session_of(FOLDER / name)
    for value, result in zip(session.get_outputs(), session.run(None, feeds(session)), strict=True):
        expected = tuple(SIZES.get(size, size) for size in value.shape)
        if "trips" not in {source.name for source in session.get_inputs()}:
            assert result.shape == expected, value.name
        assert np.isfinite(result).all() and np.any(result != 0), value.name


@pytest.mark.parametrize("name", [name for name, tiny in TINY.items() if not tiny.runs])
def test_onnxruntime_refuses(name: str) -> None:
    with pytest.raises(Exception, match=r"(?i)layout"):
        session_of(FOLDER / name)


@pytest.mark.parametrize("tiny", TINY_MODELS, ids=lambda tiny: tiny.name)
def test_two_builds_give_the_same_bytes(tiny: TinyModel) -> None:
    first, second = (tiny.build().SerializeToString(deterministic=True) for _ in range(2))
    assert first == second == (FOLDER / "tiny" / f"{tiny.name}.onnx").read_bytes()


def test_input_forget_and_clip_change_the_result() -> None:
    for name, attribute in {"lstm_clip": "clip", "lstm_input_forget": "input_forget"}.items():
        model = onnx.load(FOLDER / "tiny" / f"{name}.onnx")
        node = model.graph.node[0]
        feed = feeds(session_of(FOLDER / "tiny" / f"{name}.onnx"))
        (with_it, *_) = ort.InferenceSession(model.SerializeToString()).run(None, feed)
        kept = [a for a in node.attribute if a.name != attribute]
        assert len(kept) == len(node.attribute) - 1
        del node.attribute[:]
        node.attribute.extend(kept)
        (without, *_) = ort.InferenceSession(model.SerializeToString()).run(None, feed)
        assert with_it.shape[-1] == HIDDEN
        assert np.abs(with_it - without).max() > 1e-3, name


@pytest.mark.parametrize("name", list(TRAINED))
def test_trained_models_reach_the_figure_of_the_readme(name: str) -> None:
    stated, measured = (float(text.split()[0]) for text in (ROWS[name][1], score(FOLDER / name)))
    # Another processor's float kernels may flip one image (0.22 %) or move the third decimal of the bits.
    assert measured == pytest.approx(stated, abs=0.25 if "digits" in name else 0.002)


def test_trained_models_are_good_enough_to_measure_losses() -> None:
    assert float(ROWS["digits_lstm.onnx"][1].split()[0]) >= 97
    assert float(ROWS["pydoc_lstm.onnx"][1].split()[0]) <= 2.1


def test_calibration_arrays_are_feeds_of_the_models() -> None:
    for task in ("digits", "pydoc"):
        session = session_of(FOLDER / f"{task}_lstm.onnx")
        with np.load(FOLDER / f"{task}_calibration.npz", allow_pickle=False) as data:
            assert set(data.files) == {value.name for value in session.get_inputs()}
            results = session.run(None, {name: data[name][0] for name in data.files})
        assert all(np.isfinite(result).all() for result in results)


def test_test_text_shares_no_paragraph_with_the_training_text() -> None:
    texts = []
    for part in ("train", "test"):
        with np.load(FOLDER / f"pydoc_{part}.npz", allow_pickle=False) as data:
            characters = [chr(number) for number in data["vocabulary"]]
            texts.append("".join(characters[code] for code in data["codes"]))
    paragraphs = [{part.strip() for part in text.split("\n\n") if len(part) > 80} for text in texts]
    assert all(paragraphs) and not paragraphs[0] & paragraphs[1]


def test_check_finds_nothing_to_change(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["make_models.py", "--check"])
    assert make_models.main() == 0, capsys.readouterr().out
