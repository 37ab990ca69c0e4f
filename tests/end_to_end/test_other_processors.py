"""Stock bits are the same on a processor without VNNI, where onnxruntime's uint8 x int8 product saturates."""

from __future__ import annotations

import platform
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from lstm_models import LstmCase

import rnnqc

FORMS = ("fused", "integer", "unrolled")
INT4 = ["*.weight.bits=4", "*.weight.group_size=32"]
WIDE = ["*.input.bits=16", "*.hidden.bits=16", "*.hidden.zero_point=30001"]
EMULATOR = shutil.which("qemu-x86_64")

RUN = """
import sys
import numpy as np
import onnxruntime as ort

folder = sys.argv[1]
left = np.full((2, 16), 255, np.uint8)
options = ort.SessionOptions()
options.intra_op_num_threads = 1
options.log_severity_level = 4
options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, sys.argv[2])
probe = ort.InferenceSession(f"{folder}/probe.onnx", options).run(None, {"A": left})[0]
print("exact" if (probe == 255 * 127 * 16).all() else "saturates")
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


@pytest.mark.skipif(
    EMULATOR is None or platform.machine() != "x86_64",
    reason="NOT TESTED without VNNI: qemu-x86_64 is absent (Debian: qemu-user)",
)
@pytest.mark.parametrize(
    ("form", "level", "overrides"),
    [
        *((form, level, []) for form in FORMS for level in ("ORT_ENABLE_ALL", "ORT_DISABLE_ALL")),
        *((form, "ORT_ENABLE_ALL", overrides) for form in ("fused", "unrolled") for overrides in (INT4, WIDE)),
    ],
)
def test_same_bits_without_vnni(form: str, level: str, overrides: list[str], tmp_path: Path) -> None:
    case = LstmCase(T=6, B=3, I=40, H=48, direction="bidirectional", lens=(6, 0, 3), gain=3.0)
    unrolled = form == "unrolled"
    lowered = rnnqc.lower(case.model(), form="integer" if unrolled else form, unroll=unrolled, overrides=overrides)
    lowered.save(tmp_path / "model.onnx")
    onnx.save(_probe(), tmp_path / "probe.onnx")
    feeds = case.feeds()
    np.savez(tmp_path / "feeds.npz", **feeds)
    expected = rnnqc.session(lowered.proto, native=False).run(None, feeds)
    (tmp_path / "run.py").write_text(RUN)
    assert EMULATOR is not None
    done = subprocess.run(
        [EMULATOR, "-cpu", "Haswell", sys.executable, str(tmp_path / "run.py"), str(tmp_path), level],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    # Without this the test would compare a machine with itself.
    assert done.stdout.splitlines()[0] == "saturates"
    with np.load(tmp_path / "found.npz") as found:
        results = [found[name] for name in found.files]
    assert len(results) == len(expected)
    for a, b in zip(results, expected, strict=True):
        assert a.tobytes() == np.asarray(b).tobytes()
