"""`rnnqc dump` of real models: the same bytes with and without the native library, and in pieces.

What these would catch: layers, branches, states or lengths as real exports have them that a dump loses or mixes up.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import rnnqc
from tests.runs.sessions import save_arrays

Array = npt.NDArray[Any]
Shared = Callable[[str], Path]
STATES = {f"{k}_h": f"{k}_hn" for k in ("vad", "noise", "denoise")}


def dumped(model: Path, feeds: Mapping[str, Array], folder: Path, **arguments: Any) -> dict[str, Any]:
    """The index; asserts that both ways write the same arrays."""
    save_arrays(folder / "in.npz", feeds)
    ways = {"native": True, "stock": False}
    made = {n: rnnqc.dump(model, folder / "in.npz", folder / n, native=v, **arguments) for n, v in ways.items()}
    assert made["native"]["cells"] == made["stock"]["cells"]
    files = [c["file"] for c in made["native"]["cells"].values()]
    assert files
    for file in files:
        assert (folder / "native" / file).read_bytes() == (folder / "stock" / file).read_bytes(), file
    return made["native"]


def counts(index: Mapping[str, Any]) -> dict[str, int]:
    """Steps by cell."""
    return {n: c["steps"] for n, c in index["cells"].items()}


def lowered(shared: Shared, name: str, folder: Path, **arguments: Any) -> Path:
    """The lowered model's file."""
    path = folder / "lowered.onnx"
    rnnqc.lower(shared(f"models/{name}"), **arguments).save(path)
    return path


@pytest.mark.slow
def test_rnnoise_in_pieces(shared: Shared, tmp_path: Path) -> None:
    model = lowered(shared, "rnnoise/rnnoise.onnx", tmp_path)
    with np.load(shared("models/rnnoise/features_test_wav.npz")) as held:
        features = held["features"][:8]
    sizes = {"vad_h": 24, "noise_h": 48, "denoise_h": 96}
    (tmp_path / "whole").mkdir()
    states = {n: np.zeros((1, 1, k), np.float32) for n, k in sizes.items()}
    whole = dumped(model, {"features": features, **states}, tmp_path / "whole")
    pieces = dumped(model, {"features": features.reshape(4, 2, 1, 42)}, tmp_path, state=STATES)
    assert counts(whole) == counts(pieces) and list(counts(whole).values()) == [8] * 3
    for cell in whole["cells"].values():
        files = [f / "native" / cell["file"] for f in (tmp_path, tmp_path / "whole")]
        assert files[0].read_bytes() == files[1].read_bytes()


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize("options", [{}, {"unroll": True, "dims": {"T": 1}}], ids=["loop", "unrolled"])
def test_rnnoise_in_form_qcdq(shared: Shared, tmp_path: Path, options: dict[str, Any]) -> None:
    """Sums of floats behind Relu, which depend on what onnxruntime fuses."""
    model = lowered(shared, "rnnoise/rnnoise.onnx", tmp_path, form="qcdq", **options)
    with np.load(shared("models/rnnoise/features_test_wav.npz")) as held:
        features = held["features"][:6].reshape(6, 1, 1, 42)
    index = dumped(model, {"features": features}, tmp_path, state=STATES)
    assert list(counts(index).values()) == [6] * 3


@pytest.mark.slow
def test_silero(shared: Shared, tmp_path: Path) -> None:
    """The declared size of the state chooses one of two branches."""
    model = lowered(shared, "silero_vad/silero_vad_16k_op15.onnx", tmp_path)
    samples = np.random.default_rng(0).normal(0, 0.1, (3, 1, 576)).astype(np.float32)
    feeds = {"input": samples, "sr": np.full(3, 16000, np.int64)}
    index = dumped(model, feeds, tmp_path, state={"state": "stateN"})
    assert list(counts(index).values()) == [3]


@pytest.mark.slow
def test_lengths_of_a_packed_export(shared: Shared, tmp_path: Path) -> None:
    model = lowered(shared, "vitis_rnn/imdb_lstm_packed_unsorted.onnx", tmp_path)
    with np.load(shared("models/vitis_rnn/imdb_demo_tokens.npz")) as held:
        tokens = held["tokens"][:3, -40:].astype(np.int64)
    lengths = np.array([17, 40, 1], np.int64)
    index = dumped(model, {"tokens": tokens, "lengths": lengths}, tmp_path)
    (cell,) = index["cells"].values()
    with np.load(tmp_path / "native" / cell["file"]) as held:
        last = [int(np.flatnonzero(row.any(axis=-1))[-1]) + 1 for row in np.swapaxes(held["hidden.value"], 0, 1)]
    assert sorted(last) == sorted(lengths.tolist())
