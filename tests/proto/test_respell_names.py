"""Dimensions that are declared below 0, and values of subgraphs that share a name.

What these would catch: -1 taken for a size: inputs of one row for a model of any batch, data that is refused.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

import rnnqc
from rnnqc.evaluation.numerics import sqnr_db
from rnnqc.proto.graph_walks import blocks_of
from rnnqc.proto.respell_names import forget_negative_sizes
from tests.generate.layers import RecurrentCase
from tests.runs.commands import in_process
from tests.runs.sessions import plain_session, run, save_arrays
from tests.subjects.protos import parse

CASE = RecurrentCase(dynamic_batch=True)


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
    lowered = rnnqc.lower(model, "int8-static", calibration=[feeds], measure=True)
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


BRANCHES = """<ir_version: 8, opset_import: ["": 17]>
g (float[T,B,3] x, bool fast, bool small) => (float[T,B,1,N] y) {
    y = If (fast) <
        then_branch = then () => (r) {
            r = If (small) <
                then_branch = lstm () => (q) { Y, Yh = LSTM <hidden_size = 4> (x, W, R)  q = Transpose <perm = [0, 2, 1, 3]> (Y) },
                else_branch = gru () => (q) { Y, Yh = GRU <hidden_size = 4> (x, V, S)  q = Transpose <perm = [0, 2, 1, 3]> (Y) }
            >
        },
        else_branch = rnn () => (r) { Y, Yh = RNN <hidden_size = 5> (x, U, Q)  r = Transpose <perm = [0, 2, 1, 3]> (Y) }
    >
}"""  # noqa: E501


def test_branches_with_values_of_the_same_names() -> None:
    """Cells know their values by name: `verify` ended in an internal error at such nodes, of which none has a name."""
    rng = np.random.default_rng(0)
    shapes = {"W": (16, 3), "R": (16, 4), "V": (12, 3), "S": (12, 4), "U": (5, 3), "Q": (5, 5)}
    weights = {k: rng.standard_normal((1, *s)).astype(np.float32) * np.float32(0.4) for k, s in shapes.items()}
    model = parse(BRANCHES, **weights)
    lowered = rnnqc.lower(model, verify=True)
    assert sorted((r["op"], r["status"]) for r in lowered.rows) == [(op, "lowered") for op in ("GRU", "LSTM", "RNN")]
    names = [o for block in blocks_of([lowered.proto.graph]) for n in block.node for o in n.output if o]
    assert len(names) == len(set(names))
    x = rng.standard_normal((7, 2, 3)).astype(np.float32)
    for fast, small in ((True, True), (True, False), (False, False)):
        feeds = {"x": x, "fast": np.array(fast), "small": np.array(small)}
        expected, found = (run(plain_session(m), feeds)["y"] for m in (model, lowered.proto))
        assert sqnr_db(expected, found) > 30.0
