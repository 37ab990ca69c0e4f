"""Lowered models in onnxruntime's mobile format, as its own converter writes it.

The converter inlines functions: what it is given decides whether a file runs in standard operators or native ones.
What these would catch: a construct that the converter cannot store, a kernel that it resolves to another one, an
optimization at run time that changes values.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest

import rnnqc
from rnnqc.cells.forms import FUSED, INTEGER, ORT, QCDQ
from tests.generate.layers import RecurrentCase
from tests.runs.commands import HANGS
from tests.runs.lowered import NATIVE, STOCK
from tests.runs.sessions import Array, Outputs, assert_same_bits, options, run, sqnr

LAYER = RecurrentCase(
    T=7, B=2, I=5, H=12, direction="bidirectional", lens=(7, 3), initial_h=True, initial_c=True
)  # fmt: skip
FIXED, RUNTIME = ".ort", ".with_runtime_opt.ort"
"""The converter's files: fully optimized, and with a record of optimizations to apply at run time."""
WAYS = (STOCK, NATIVE)
LOWERINGS: dict[str, tuple[RecurrentCase, dict[str, Any]]] = {
    FUSED: (LAYER, {}),
    INTEGER: (LAYER, {"form": INTEGER}),
    QCDQ: (LAYER, {"form": QCDQ}),
    ORT: (LAYER, {"form": ORT}),
    "GRU": (LAYER.replace(op="GRU", initial_c=False), {}),
    "RNN in a branch": (RecurrentCase(op="RNN", T=7, B=2, I=5, H=12, placement="if"), {}),
    "w4a8": (LAYER.replace(I=33, H=40), {"recipe": "w4a8"}),
}


def convert(models: Path, folder: Path, way: str) -> None:
    """Two files in `folder` for every model in the folder `models`."""
    library = ["--custom_op_library", str(rnnqc.runtime_ops.library_path())] if way == NATIVE else []
    command = [sys.executable, "-m", "onnxruntime.tools.convert_onnx_models_to_ort", str(models)]
    done = subprocess.run(
        [*command, "--output_dir", str(folder), *library], capture_output=True, text=True, check=False, timeout=HANGS
    )
    assert done.returncode == 0, done.stderr[-3000:]


def run_file(path: Path, feeds: dict[str, Array], way: str) -> Outputs:
    chosen = options()
    if way == NATIVE:
        rnnqc.runtime_ops.register(chosen)
    return run(ort.InferenceSession(path, chosen, providers=["CPUExecutionProvider"]), feeds)


@pytest.fixture(scope="module")
def converted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of lowered models, and one of converted files for each way."""
    folder = tmp_path_factory.mktemp("mobile")
    for name, (layer, lowering) in LOWERINGS.items():
        path = folder / "models" / f"{name}.onnx"
        path.parent.mkdir(exist_ok=True)
        rnnqc.lower(layer.model(), strict=True, **lowering).save(path)
    for way in WAYS:
        convert(folder / "models", folder / way, way)
    return folder


def expected_of(folder: Path, name: str, level: str = "ORT_ENABLE_ALL") -> Outputs:
    session = rnnqc.session(folder / "models" / f"{name}.onnx", native=False, options=options(level))
    return run(session, LOWERINGS[name][0].feeds())


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", LOWERINGS)
def test_the_same_bits(name: str, way: str, converted: Path) -> None:
    for kind in (FIXED, RUNTIME):
        # Form qcdq is rounded as onnxruntime optimizes it, which at run time it does less than beforehand.
        level = "ORT_ENABLE_BASIC" if (name, kind) == (QCDQ, RUNTIME) else "ORT_ENABLE_ALL"
        found = run_file(converted / way / f"{name}{kind}", LOWERINGS[name][0].feeds(), way)
        assert_same_bits(expected_of(converted, name, level), found, f"{name}{kind}, {way}")


@pytest.mark.slow
def test_a_native_file_needs_the_library(converted: Path) -> None:
    """Its functions are gone, so it fails with a message without the library. A stock file runs with it, too."""
    with pytest.raises(Exception, match=r"ai\.rnnqc:QuantLSTMCell.* is not a registered function/op"):
        run_file(converted / NATIVE / f"{FUSED}{FIXED}", LAYER.feeds(), STOCK)
    found = run_file(converted / STOCK / f"{FUSED}{FIXED}", LAYER.feeds(), NATIVE)
    assert_same_bits(expected_of(converted, FUSED), found, "stock with the library")


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_a_speech_denoiser(way: str, shared: Callable[[str], Path], tmp_path: Path) -> None:
    """The first model of DTLN: float layers around two LSTMs of 128 units."""
    lowered = rnnqc.lower(shared("models/dtln/model_1.onnx"), strict=True)
    lowered.save(tmp_path / "dtln.onnx")
    convert(tmp_path / "dtln.onnx", tmp_path / "made", way)
    session = rnnqc.session(lowered.proto, native=False)
    generator = np.random.default_rng(0)
    feeds: dict[str, Array] = {
        i.name: np.abs(generator.normal(0, 1, [d if isinstance(d, int) else 1 for d in i.shape])).astype(np.float32)
        for i in session.get_inputs()
    }
    expected, found = run(session, feeds), run_file(tmp_path / "made" / f"dtln{FIXED}", feeds, way)
    assert all(sqnr(expected[name], found[name]) > 120.0 for name in expected)  # float layers may be fused otherwise
