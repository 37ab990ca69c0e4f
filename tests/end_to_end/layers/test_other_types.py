"""Models of float16 and float64: the same codes as the float32 model of the same weights.

What these would catch: a layer of another type that stays float, or is computed with other weights; inputs or outputs
that change their type; a report in float32's sizes; an exporter's way of writing such a layer that is not understood.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

import rnnqc
from tests.generate.layers import RecurrentCase, stacked_model
from tests.laws.parametrize import in_turn
from tests.runs.commands import in_process, in_subprocess
from tests.runs.lowered import NATIVE, STOCK, WAYS, assert_all_lowered, lower_all, run_both, session
from tests.runs.sessions import assert_same_bits, run, save_arrays, sqnr
from tests.subjects.other_types import retyped, retyped_arrays
from tests.subjects.torch.exports import exported, needed

TYPES = {"float16": np.float16, "float64": np.float64}
# A carried state of float16 would be rounded, in other places than float32.
CASES = {
    "everything": RecurrentCase(
        direction="bidirectional", lens=(5, 3), initial_h=True, initial_c=True, peepholes=True, layout=0
    ),
    "layout 1": RecurrentCase(layout=1, opset=17),
    "in a branch": RecurrentCase(placement="if", initial_h=True),
    "in a loop": RecurrentCase(placement="loop"),
    "in a scan": RecurrentCase(placement="scan"),
}


@pytest.mark.few(1)
@in_turn(name=[*CASES, "everything"], kind=TYPES)
def test_same_codes_as_float32(name: str, kind: str) -> None:
    case, dtype = CASES[name], TYPES[kind]
    proto = retyped(case.model(), dtype)
    feeds = retyped_arrays(case.feeds(), dtype)
    results = lower_all(proto, case.dims)
    single = rnnqc.lower(retyped(proto, np.float32, dtype))
    expected = run(session(single.proto, STOCK), retyped_arrays(feeds, np.float32))
    for way in WAYS:
        found = run(session(results[way].proto, way), feeds)
        assert_same_bits(retyped_arrays(expected, dtype), found, f"{kind}, {way}")


@pytest.mark.few(2)
@pytest.mark.parametrize("recipe", ["weight-only-int8", "int8-static"])
@pytest.mark.parametrize("kind", TYPES)
def test_other_recipes(recipe: str, kind: str) -> None:
    case, dtype = RecurrentCase(T=9, I=8, H=16, opset=17), TYPES[kind]
    proto, feeds = retyped(case.model(), dtype), retyped_arrays(case.feeds(), dtype)
    lowered = rnnqc.lower(proto, recipe, calibration=[feeds])
    assert_all_lowered_or_stored(lowered)
    found = run(session(lowered.proto, NATIVE), feeds)
    assert {str(v.dtype) for v in found.values()} == {kind}
    assert sqnr(case.expected(case.feeds())["Y"], found["Y"]) > 30.0


def assert_all_lowered_or_stored(lowered: rnnqc.Lowered) -> None:
    assert [e.status for e in lowered.report.entries] == ["lowered"]


def test_the_report_counts_what_is_in_the_file() -> None:
    case = RecurrentCase(I=16, H=16)
    sizes = {k: rnnqc.lower(retyped(case.model(), t)).report.entries[0] for k, t in TYPES.items()}
    single = rnnqc.lower(case.model()).report.entries[0]
    assert [2 * sizes["float16"].float_bytes, sizes["float64"].float_bytes] == [
        single.float_bytes,
        2 * single.float_bytes,
    ]
    assert {e.bytes for e in sizes.values()} == {single.bytes}


@pytest.mark.few(1)
@pytest.mark.parametrize("kind", TYPES)
def test_checks_and_comparisons(kind: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """onnxruntime computes no recurrent layer of float64: its normal form stands for it."""
    layers = [RecurrentCase(I=6, H=6), RecurrentCase(I=6, H=6, seed=1)]
    onnx.save(retyped(stacked_model(layers), TYPES[kind]), tmp_path / "in.onnx")
    model, out = tmp_path / "in.onnx", tmp_path / "out.onnx"
    result = in_process(capfd, "lower", model, "-o", out, "--strict", "--verify", "--min-sqnr", "25")
    assert result.code == 0, result.text
    feeds = {"X": layers[0].feeds()["X"].astype(TYPES[kind])}
    save_arrays(tmp_path / "feeds.npz", feeds)
    verified = in_process(capfd, "verify", model, out, "--data", tmp_path / "feeds.npz", "--min-sqnr", "25")
    assert verified.code == 0, verified.text
    inspected = in_process(capfd, "inspect", model)
    assert inspected.code == 0 and "will be lowered" in inspected.out
    rows = [line for line in inspected.out.splitlines() if re.search(rf"\bLSTM\b.*\b{kind}\b", line)]
    assert len(rows) == 2, inspected.out


@pytest.mark.slow
@pytest.mark.parametrize("kind", TYPES)
def test_batches_first_are_calibrated(kind: str, tmp_path: Path) -> None:
    """onnxruntime ends the process over a Transpose, a Cast and a MatMul in a row, which these layers had."""
    case = RecurrentCase(layout=1, opset=17)
    onnx.save(retyped(case.model(), TYPES[kind]), tmp_path / "in.onnx")
    save_arrays(tmp_path / "data.npz", retyped_arrays(case.feeds(), TYPES[kind]))
    arguments = ("calibrate", tmp_path / "in.onnx", "--data", tmp_path / "data.npz", "-o", tmp_path / "stats.json")
    result = in_subprocess(*arguments)
    assert result.code == 0 and (tmp_path / "stats.json").is_file(), result.text


def test_bfloat16_is_reported(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    import ml_dtypes

    onnx.save(retyped(RecurrentCase(opset=22).model(), ml_dtypes.bfloat16), tmp_path / "in.onnx")
    result = in_process(capfd, "lower", tmp_path / "in.onnx", "-o", tmp_path / "out.onnx", "--strict")
    text = " ".join(result.text.split())
    assert result.code == 3 and not (tmp_path / "out.onnx").exists(), text
    assert 'Operator "LSTM"' in text and "W is bfloat16." in text and "convert the layer to float32" in text


@pytest.mark.few(1)
@in_turn(kind=[*TYPES, "float16"], cell=["GRU", "LSTM"], dynamo=[False, False, True])
def test_exports_of_torch(kind: str, cell: str, dynamo: bool) -> None:
    """Two bidirectional layers, batch first, as PyTorch's exporters write them; against PyTorch in float32."""
    torch = needed(f"exports of {kind}", dynamo)
    torch.manual_seed(0)
    layer = getattr(torch.nn, cell)(12, 16, num_layers=2, bidirectional=True, batch_first=True).eval()
    x = torch.randn(3, 9, 12)
    with torch.no_grad():
        expected = layer(x)[0].numpy()
    layer.to(getattr(torch, kind))
    proto = exported(layer, [x.to(getattr(torch, kind))], dynamo, input_names=["x"])
    assert {i.type.tensor_type.elem_type for i in proto.graph.input} == {
        helper.np_dtype_to_tensor_dtype(np.dtype(kind))
    }
    lowered = rnnqc.lower(proto, strict=True)
    assert_all_lowered(lowered, f"{cell} of {kind}")
    feeds = {"x": x.numpy().astype(kind)}
    found = next(iter(run_both(lowered.proto, feeds).values()))
    assert found.dtype == np.dtype(kind)
    assert sqnr(expected, found) > 28.0
