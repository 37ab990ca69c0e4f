"""The bits are the same on emulated processors.

* Without VNNI, where onnxruntime's uint8 x int8 product saturates: stock.
* arm64: stock, and native with matrix products, with dot products and without either.
"""

from __future__ import annotations

import json
import platform
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest

import rnnqc
from rnnqc import runtime_ops
from tests.generate.layers import RecurrentCase
from tests.generate.recurrences import RecurrenceCase
from tests.native import arm64
from tests.native.quant_linear_cases import linear_case
from tests.runs.commands import HANGS
from tests.subjects.custom_layers import feeds_of

INT4 = ("*.weight.bits=4", "*.weight.group_size=32")
INT5 = ("*.weight.bits=5", "*.weight.group_size=32")
INT6 = ("*.weight.bits=6",)
WIDE = ("*.input.bits=16", "*.hidden.bits=16", "*.hidden.zero_point=30001")
# The arithmetic "grid": by bytes with MatMulInteger, and 16-bit weights with MatMul.
FIXED_POINT = (
    *("*.input.mode=static", "*.input.scale=0.03", "*.hidden.scale=0.008", "*.hidden.rounding=floor"),
    *("*.acc.bits=10", "*.acc.rounding=ceil", "*.cell_state.bits=12", "*.cell_state.mode=static"),
)
WIDE_GRID = (*FIXED_POINT, "*.weight.bits=16", "*.kept.bits=16", "*.kept.scale=0.001")
EMULATOR = shutil.which("qemu-x86_64")

RUN = """
import json
import sys
import numpy as np
import onnxruntime as ort

folder, library = sys.argv[1:]
options = ort.SessionOptions()
options.log_severity_level = 4
probe = ort.InferenceSession(f"{folder}/probe.onnx", options).run(None, {"A": np.full((2, 16), 255, np.uint8)})[0]
print("exact" if (probe == 255 * 127 * 16).all() else "saturates")
for name, level, native in json.loads(open(f"{folder}/cases.json").read()):
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, level)
    if native:
        options.register_custom_ops_library(library)
    session = ort.InferenceSession(f"{folder}/{name}.onnx", options)
    with np.load(f"{folder}/{name}.npz") as feeds:
        np.savez(f"{folder}/{name}.found.npz", *session.run(None, dict(feeds)))
"""


@dataclass(frozen=True)
class Case:
    """A lowering, and how it is run on the other processor.

    Attributes:
        form: Of the lowering, "unrolled", "linear" for a linear layer instead, or "custom" for a custom cell.
        level: Of onnxruntime's optimizations.
        overrides: For the lowering.
        state: Magnitude of the initial hidden states; none for 0.
        native: Whether the native library runs it.
    """

    form: str
    level: str = "ORT_ENABLE_ALL"
    overrides: Sequence[str] = ()
    state: float = 0.0
    native: bool = False


# The native one runs the kernels that such a processor chooses by itself.
WITHOUT_VNNI = (
    Case("fused"),
    Case("integer", "ORT_DISABLE_ALL"),
    Case("unrolled", state=5.0),
    Case("fused", "ORT_DISABLE_ALL", INT4),
    Case("unrolled", overrides=WIDE),
    Case("fused", overrides=WIDE, state=5.0),
    Case("fused", overrides=FIXED_POINT),
    Case("fused", overrides=WIDE_GRID),
    Case("fused", state=5.0, native=True),
    Case("fused", overrides=INT6),
    Case("fused", overrides=INT5, native=True),
    Case("linear"),
    Case("custom"),
    Case("custom", native=True),
)
ARM64 = {
    arm64.DOT_PRODUCTS: (
        Case("fused", native=True),
        Case("fused", overrides=(*INT4, *WIDE), native=True),
        Case("fused", overrides=(*INT6, *WIDE), native=True),
        Case("fused", overrides=INT5, native=True),
        Case("fused", overrides=FIXED_POINT, native=True),
        Case("fused", overrides=WIDE_GRID),
        Case("unrolled"),
        Case("custom"),
        Case("custom", native=True),
    ),
    arm64.MATRIX_PRODUCTS: (
        Case("fused", native=True),
        Case("fused", overrides=(*INT4, *WIDE), native=True),
        Case("linear", native=True),
    ),
    arm64.NO_DOT_PRODUCTS: (
        Case("fused", native=True),
        Case("fused", overrides=(*INT4, *WIDE), native=True),
        Case("fused", overrides=WIDE_GRID, native=True),
        Case("fused", "ORT_DISABLE_ALL"),
    ),
}


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


def _prepare(cases: Sequence[Case], folder: Path) -> list[Results]:
    """Writes what RUN reads; returns what it has to find, from stock onnxruntime on this processor."""
    onnx.save(_probe(), folder / "probe.onnx")
    (folder / "run.py").write_text(RUN)
    (folder / "cases.json").write_text(json.dumps([(str(k), c.level, c.native) for k, c in enumerate(cases)]))
    return [_expected(case, folder, str(k)) for k, case in enumerate(cases)]


def _expected(case: Case, folder: Path, name: str) -> Results:
    model, feeds = _subject(case)
    onnx.save(model, folder / f"{name}.onnx")
    np.savez(folder / f"{name}.npz", **feeds)  # type: ignore[arg-type]
    return [np.asarray(value) for value in rnnqc.session(model, native=False).run(None, dict(feeds))]


def _subject(case: Case) -> tuple[onnx.ModelProto, Mapping[str, npt.NDArray[Any]]]:
    if case.form == "linear":
        linear = linear_case((5,), 60, 40)
        return linear.model(function=True), linear.feeds()
    if case.form == "custom":  # tables: activations in float are each processor's own
        custom = RecurrenceCase(op="highway", form="scan", time=5, batch=3).model()
        given = feeds_of(custom, 0)
        return rnnqc.lower(custom, "pow2-int16", calibration=[given]).proto, given
    states = case.state > 0
    layer = RecurrentCase(T=6, B=3, I=40, H=48, direction="bidirectional", lens=(6, 0, 3), gain=3.0, initial_h=states)
    unrolled = case.form == "unrolled"
    form = "integer" if unrolled else case.form
    lowered = rnnqc.lower(layer.model(), form=form, unroll=unrolled, overrides=case.overrides)
    feeds = layer.feeds()
    if states:
        feeds["initial_h"] = np.random.default_rng(0).normal(0, case.state, (2, 3, 48)).astype(np.float32)
    return lowered.proto, feeds


def _assert_found(cases: Sequence[Case], folder: Path, expected: Sequence[Results]) -> None:
    for name, (case, wanted) in enumerate(zip(cases, expected, strict=True)):
        with np.load(folder / f"{name}.found.npz") as found:
            results = [found[key] for key in found.files]
        assert [r.tobytes() for r in results] == [w.tobytes() for w in wanted], case


@pytest.mark.slow
@pytest.mark.skipif(
    EMULATOR is None or platform.machine() != "x86_64",
    reason="NOT TESTED without VNNI: qemu-x86_64 is absent (Debian: qemu-user)",
)
def test_same_bits_without_vnni(tmp_path: Path) -> None:
    expected = _prepare(WITHOUT_VNNI, tmp_path)
    assert EMULATOR is not None
    arguments = [str(tmp_path / "run.py"), str(tmp_path), str(runtime_ops.library_path())]
    done = subprocess.run(
        [EMULATOR, "-cpu", "Haswell", sys.executable, *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=HANGS,
    )
    assert done.returncode == 0, done.stderr
    # Without this the test would compare a machine with itself.
    assert done.stdout.splitlines()[0] == "saturates"
    _assert_found(WITHOUT_VNNI, tmp_path, expected)


@pytest.mark.slow
@pytest.mark.skipif(arm64.NO_PROCESSOR is not None, reason=str(arm64.NO_PROCESSOR))
@pytest.mark.parametrize("processor", ARM64)
def test_same_bits_on_arm64(processor: str, arm64_library: Path, tmp_path: Path) -> None:
    expected = _prepare(ARM64[processor], tmp_path)
    arm64.run(arm64_library, processor, str(tmp_path / "run.py"), str(tmp_path), str(arm64_library))
    _assert_found(ARM64[processor], tmp_path, expected)
