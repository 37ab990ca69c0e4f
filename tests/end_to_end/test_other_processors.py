"""The bits are the same on emulated processors.

* Without VNNI, where onnxruntime's uint8 x int8 product saturates: stock.
* arm64: stock, and native with and without dot products.
"""

from __future__ import annotations

import platform
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest

import rnnqc
from rnnqc import runtime_ops
from tests.native import arm64
from tests.native.quant_linear_cases import linear_case
from tests.runs.commands import HANGS
from tests.subjects.lstm_models import LstmCase

INT4 = ("*.weight.bits=4", "*.weight.group_size=32")
WIDE = ("*.input.bits=16", "*.hidden.bits=16", "*.hidden.zero_point=30001")
# The arithmetic "grid": by bytes with MatMulInteger, and 16-bit weights with MatMul.
FIXED_POINT = (
    *("*.input.mode=static", "*.input.scale=0.03", "*.hidden.scale=0.008", "*.hidden.rounding=floor"),
    *("*.acc.bits=10", "*.acc.rounding=ceil", "*.cell_state.bits=12", "*.cell_state.mode=static"),
)
WIDE_GRID = (*FIXED_POINT, "*.weight.bits=16", "*.kept.bits=16", "*.kept.scale=0.001")
EMULATOR = shutil.which("qemu-x86_64")

RUN = """
import sys
import numpy as np
import onnxruntime as ort

folder, level, *libraries = sys.argv[1:]
left = np.full((2, 16), 255, np.uint8)
options = ort.SessionOptions()
options.intra_op_num_threads = 1
options.log_severity_level = 4
options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, level)
probe = ort.InferenceSession(f"{folder}/probe.onnx", options).run(None, {"A": left})[0]
print("exact" if (probe == 255 * 127 * 16).all() else "saturates")
for library in libraries:
    options.register_custom_ops_library(library)
session = ort.InferenceSession(f"{folder}/model.onnx", options)
with np.load(f"{folder}/feeds.npz") as feeds:
    results = session.run(None, dict(feeds))
np.savez(f"{folder}/found.npz", *results)
"""


def _probe() -> onnx.ModelProto:
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("MatMulInteger", ["A", "B"], ["C"])],
        "probe",
        [onnx.helper.make_tensor_value_info("A", onnx.TensorProto.UINT8, [2, 16])],
        [onnx.helper.make_tensor_value_info("C", onnx.TensorProto.INT32, [2, 16])],
        [onnx.numpy_helper.from_array(np.full((16, 16), 127, np.int8), "B")],
    )
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=10)


Results = list[npt.NDArray[Any]]


def _prepare(form: str, folder: Path, overrides: Sequence[str] = (), state: float = 0.0) -> Results:
    """Writes what RUN reads; returns what it has to find, from stock onnxruntime on this processor.

    Args:
        form: Of the lowering, or "unrolled".
        folder: Where to.
        overrides: For the lowering.
        state: Magnitude of the initial hidden states; none for 0.
    """
    case = LstmCase(T=6, B=3, I=40, H=48, direction="bidirectional", lens=(6, 0, 3), gain=3.0, initial_h=state > 0)
    unrolled = form == "unrolled"
    lowered = rnnqc.lower(case.model(), form="integer" if unrolled else form, unroll=unrolled, overrides=overrides)
    feeds = case.feeds()
    if state:
        feeds["initial_h"] = np.random.default_rng(0).normal(0, state, (2, 3, 48)).astype(np.float32)
    return _write(lowered.proto, feeds, folder)


def _write(model: onnx.ModelProto, feeds: Mapping[str, npt.NDArray[Any]], folder: Path) -> Results:
    onnx.save(model, folder / "model.onnx")
    onnx.save(_probe(), folder / "probe.onnx")
    np.savez(folder / "feeds.npz", **feeds)  # type: ignore[arg-type]
    (folder / "run.py").write_text(RUN)
    return [np.asarray(value) for value in rnnqc.session(model, native=False).run(None, dict(feeds))]


def _assert_found(folder: Path, expected: Results) -> None:
    with np.load(folder / "found.npz") as found:
        results = [found[name] for name in found.files]
    assert len(results) == len(expected)
    for a, b in zip(results, expected, strict=True):
        assert a.tobytes() == b.tobytes()


@pytest.mark.skipif(
    EMULATOR is None or platform.machine() != "x86_64",
    reason="NOT TESTED without VNNI: qemu-x86_64 is absent (Debian: qemu-user)",
)
@pytest.mark.parametrize(
    ("form", "level", "overrides", "state"),
    [
        ("fused", "ORT_ENABLE_ALL", (), 0.0),
        ("integer", "ORT_DISABLE_ALL", (), 0.0),
        ("unrolled", "ORT_ENABLE_ALL", (), 5.0),
        ("fused", "ORT_DISABLE_ALL", INT4, 0.0),
        ("unrolled", "ORT_ENABLE_ALL", WIDE, 0.0),
        ("fused", "ORT_ENABLE_ALL", WIDE, 5.0),
        *(("fused", "ORT_ENABLE_ALL", overrides, 0.0) for overrides in (FIXED_POINT, WIDE_GRID)),
    ],
)
def test_same_bits_without_vnni(form: str, level: str, overrides: Sequence[str], state: float, tmp_path: Path) -> None:
    expected = _prepare(form, tmp_path, overrides, state)
    _check_without_vnni(expected, level, tmp_path)


def _check_without_vnni(expected: Results, level: str, tmp_path: Path) -> None:
    assert EMULATOR is not None
    done = subprocess.run(
        [EMULATOR, "-cpu", "Haswell", sys.executable, str(tmp_path / "run.py"), str(tmp_path), level],
        capture_output=True,
        text=True,
        check=False,
        timeout=HANGS,
    )
    assert done.returncode == 0, done.stderr
    # Without this the test would compare a machine with itself.
    assert done.stdout.splitlines()[0] == "saturates"
    _assert_found(tmp_path, expected)


@pytest.mark.skipif(
    EMULATOR is None or platform.machine() != "x86_64",
    reason="NOT TESTED without VNNI: qemu-x86_64 is absent (Debian: qemu-user)",
)
def test_linear_layer_without_vnni(tmp_path: Path) -> None:
    case = linear_case((5,), 60, 40)
    _check_without_vnni(_write(case.model(function=True), case.feeds(), tmp_path), "ORT_ENABLE_ALL", tmp_path)


@pytest.mark.skipif(
    EMULATOR is None or platform.machine() != "x86_64",
    reason="NOT TESTED without VNNI: qemu-x86_64 is absent (Debian: qemu-user)",
)
def test_native_states_beyond_the_bound_without_vnni(tmp_path: Path) -> None:
    """The kernels that such a processor chooses by itself."""
    expected = _prepare("fused", tmp_path, (), 5.0)
    assert EMULATOR is not None
    arguments = [str(tmp_path / "run.py"), str(tmp_path), "ORT_ENABLE_ALL", str(runtime_ops.library_path())]
    done = subprocess.run(
        [EMULATOR, "-cpu", "Haswell", sys.executable, *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=HANGS,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0] == "saturates"
    _assert_found(tmp_path, expected)


@pytest.mark.skipif(arm64.NO_PROCESSOR is not None, reason=str(arm64.NO_PROCESSOR))
@pytest.mark.parametrize(
    ("form", "level", "native", "processor", "overrides"),
    [
        ("fused", "ORT_ENABLE_ALL", True, arm64.DOT_PRODUCTS, ()),
        ("fused", "ORT_ENABLE_ALL", True, arm64.NO_DOT_PRODUCTS, ()),
        ("fused", "ORT_ENABLE_ALL", True, arm64.DOT_PRODUCTS, (*INT4, *WIDE)),
        ("fused", "ORT_ENABLE_ALL", True, arm64.DOT_PRODUCTS, FIXED_POINT),
        ("fused", "ORT_ENABLE_ALL", True, arm64.NO_DOT_PRODUCTS, WIDE_GRID),
        ("fused", "ORT_ENABLE_ALL", False, arm64.DOT_PRODUCTS, WIDE_GRID),
        ("fused", "ORT_DISABLE_ALL", False, arm64.NO_DOT_PRODUCTS, ()),
        ("unrolled", "ORT_ENABLE_ALL", False, arm64.DOT_PRODUCTS, ()),
    ],
)
def test_same_bits_on_arm64(
    form: str,
    level: str,
    native: bool,
    processor: str,
    overrides: Sequence[str],
    arm64_library: Path,
    tmp_path: Path,
) -> None:
    expected = _prepare(form, tmp_path, overrides)
    libraries = [str(arm64_library)] if native else []
    arm64.run(arm64_library, processor, str(tmp_path / "run.py"), str(tmp_path), level, *libraries)
    _assert_found(tmp_path, expected)
