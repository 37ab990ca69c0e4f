"""Dimensions that are declared below 0.

What these would catch: -1 taken for a size: inputs of one row for a model of any batch, data that is refused.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from commands import in_process
from lstm_models import LstmCase
from onnx import helper
from running import plain_session, run, save_arrays

import rnnqc
from rnnqc.proto.respell_names import forget_negative_sizes

CASE = LstmCase(dynamic_batch=True)


def _negative() -> onnx.ModelProto:
    model = CASE.model()
    for value in [*model.graph.input, *model.graph.output]:
        for dim in value.type.tensor_type.shape.dim:
            if dim.HasField("dim_param"):
                dim.dim_value = -1
    return model


def _data(batch: int = 7) -> dict[str, np.ndarray]:
    given = {k: a.shape for k, a in CASE.feeds().items()}
    rng = np.random.default_rng(0)
    return {k: rng.normal(size=(s[0], batch, *s[2:])).astype(np.float32) for k, s in given.items()}


def test_only_negative_sizes_go() -> None:
    """Of sequences and subgraphs, too; 0 is a size."""
    dims = [-1, 0, 4, "N", -7]
    tensor = helper.make_tensor_type_proto(onnx.TensorProto.FLOAT, dims)
    value = helper.make_value_info("s", helper.make_sequence_type_proto(tensor))
    inner = helper.make_graph([], "inner", [], [helper.make_tensor_value_info("o", onnx.TensorProto.FLOAT, dims)])
    node = helper.make_node("If", ["c"], ["o2"], then_branch=inner, else_branch=inner)
    model = helper.make_model(helper.make_graph([node], "g", [value], []))
    forget_negative_sizes(model)
    found = [model.graph.input[0].type.sequence_type.elem_type.tensor_type.shape.dim]
    found += [a.g.output[0].type.tensor_type.shape.dim for a in model.graph.node[0].attribute]
    for shape in found:
        assert [d.WhichOneof("value") for d in shape] == [None, "dim_value", "dim_value", "dim_param", None]
        assert [d.dim_value for d in shape] == [0, 0, 4, 0, 0]


def test_a_model_of_any_batch(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """lower, calibrate, verify, run: with a batch that the file does not name."""
    model, feeds = _negative(), _data()
    expected = run(plain_session(model), feeds)
    lowered = rnnqc.lower(model, "int8-static", calibration=[feeds], verify=True, measure=True)
    assert [e.status for e in lowered.report.entries] == ["lowered"]
    assert set(lowered.report.sqnr_db) == set(expected) and not lowered.report.unmeasured
    dims = lowered.proto.graph.input[0].type.tensor_type.shape.dim
    assert [d.WhichOneof("value") for d in dims] == ["dim_value", None, "dim_value"]
    for name, wanted in run(plain_session(lowered.proto), feeds).items():
        assert wanted.shape == expected[name].shape
    source, target, data = tmp_path / "in.onnx", tmp_path / "out.onnx", tmp_path / "data.npz"
    onnx.save(model, source)
    lowered.save(target)
    save_arrays(data, feeds)
    for command in (
        ("run", source, "-i", data, "-o", tmp_path / "y.npz"),
        ("run", target, "-i", data, "-o", tmp_path / "y.npz"),
        ("verify", source, target, "--data", data),
        ("calibrate", source, "--data", data, "-o", tmp_path / "s.json"),
    ):
        result = in_process(capfd, *command)
        assert result.code == 0, result.text
