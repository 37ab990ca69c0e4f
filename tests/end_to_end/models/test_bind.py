"""`rnnqc lower --bind NAME=VALUE --dim NAME=N`: an input becomes a constant, and what follows from that is computed.

What these would catch: another result than with the input fed, a branch that stays, a value that is cut to the type of
its input, commands that ask for the input that is gone, data of another value that is used all the same.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import rnnqc
from rnnqc.data.binding import BOUND_KEY
from rnnqc.errors import CompileError
from tests.runs.commands import Result
from tests.runs.lowered import NATIVE, STOCK, session
from tests.runs.sessions import assert_same_bits, run
from tests.subjects.protos import parse

Find = Callable[[str], Path]
MODEL = """<ir_version: 10, opset_import: ["": 17]>
g (float[T, B, 3] x, int64 rate, bool[1] flag, float[1, B, 4] h0, uint8[2] pair) => (float[N, B, 4] y)
<int64 fast = {16}, int64[1] zero = {0}> {
  c = Equal (rate, fast)
  d = Squeeze (flag, zero)
  p = Cast <to = 1> (pair)
  q = ReduceSum <keepdims = 0> (p)
  z = Mul (x, q)
  a = If (c) <then_branch = t () => (s) { [fast] f1, s = RNN <hidden_size = 4> (z, W, R, "", "", h0) },
    else_branch = e () => (s) { [slow] f2, s = RNN <hidden_size = 4, activations = ["Relu"]> (x, W, R) }>
  y = If (d) <then_branch = t3 () => (r) { r = Neg (a) }, else_branch = e3 () => (r) { r = Identity (a) }>
}"""
VALUES: dict[str, Any] = {"rate": 16, "flag": True, "pair": [1, 2], "h0": 0.25}
FED = {
    "rate": np.array(16), "flag": np.array([True]), "pair": np.array([1, 2], np.uint8),
    "h0": np.full((1, 2, 4), 0.25, np.float32),
}  # fmt: skip
WRONG: tuple[tuple[str, dict[str, Any], str], ...] = (
    ("a name", {"rat": 16}, "did you mean rate?"),
    ("a fraction", {"rate": 1.5}, "is int64, the value 1.5. Supported: whole numbers"),
    ("a truth value", {"rate": True}, "whole numbers of its range"),
    ("a number for a flag", {"flag": 1}, "Supported: true, false"),
    ("beyond the range", {"pair": [1, 256]}, "uint8"),
    ("too many", {"pair": [1, 2, 3]}, r"has shape [2], the value [3]"),
    ("an open size", {"h0": 0.0}, 'dims={"B": N}'),
    ("not finite", {"h0": np.inf}, "finite numbers"),
)


def model() -> onnx.ModelProto:
    """Two layers in branches, which one flag and one number choose; a list and a state are inputs, too."""
    rng = np.random.default_rng(0)
    return parse(MODEL, **{k: rng.standard_normal((1, 4, n)).astype(np.float32) for k, n in (("W", 3), ("R", 4))})


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "float.onnx"
    onnx.save(model(), path)
    return path


@pytest.mark.few(2)
@pytest.mark.parametrize("form", ["fused", "integer", "qcdq"])
def test_bound_or_fed_gives_the_same_bits(form: str) -> None:
    """Every input bound but one, and only one left."""
    free = rnnqc.lower(model(), form=form).proto
    bound = rnnqc.lower(model(), form=form, dims={"B": 2}, bind=VALUES).proto
    assert [i.name for i in bound.graph.input] == ["x"]
    assert not [n.name for n in bound.graph.node if n.op_type == "If" and not n.name.startswith("fast.forward/")]
    x = np.random.default_rng(1).standard_normal((5, 2, 3)).astype(np.float32)
    for way in (STOCK, NATIVE) if form == "fused" else (STOCK,):
        assert_same_bits(run(session(free, way), {"x": x, **FED}), run(session(bound, way), {"x": x}), way)


@pytest.mark.parametrize(("what", "given", "text"), WRONG, ids=[w[0] for w in WRONG])
def test_what_does_not_fit_is_refused(what: str, given: dict[str, Any], text: str, source: Path) -> None:
    with pytest.raises(CompileError) as error:
        rnnqc.lower(source, bind=given)
    assert text in str(error.value)
    assert str(error.value).startswith(f"{source}: bind: ")
    assert repr(next(iter(given))) in str(error.value)


def test_commands_know_what_is_bound(source: Path, tmp_path: Path, cli: Callable[..., Result]) -> None:
    """Later commands bind the float model alike; data of another value is refused."""
    lowered, data = tmp_path / "lowered.onnx", tmp_path / "data.npz"
    x = np.random.default_rng(1).standard_normal((2, 5, 2, 3)).astype(np.float32)
    np.savez(data, x=x, rate=np.full(2, 16))
    result = cli(
        "lower", source, "-o", lowered, "--dim", "B=2", "--bind", "rate=16", "flag=false", "pair=[1,2]", "--bind",
        "h0=0.25", "--calibration", data, "--verify",
    )  # fmt: skip
    assert result.code == 0, result.text
    metadata = {p.key: p.value for p in onnx.load(lowered).metadata_props}
    assert json.loads(metadata[BOUND_KEY])["pair"] == [1, 2]
    for command in (
        ("verify", source, lowered, "--min-sqnr", "15", "--native"),
        ("verify", source, lowered, "--data", data, "--min-sqnr", "25"),
        ("bench", lowered, "--against", source, "--rounds", "1"),
        ("report", source, lowered, "-o", tmp_path / "page.html", "--seconds", "0", "--data", data),
    ):
        result = cli(*command)
        assert result.code == 0, result.text
    np.savez(data, x=x, rate=np.full(2, 8))
    result = cli("lower", source, "-o", lowered, "--bind", "rate=16", "--calibration", data)
    assert result.code == 2
    assert "is not 16" in result.err
    for text in ("rate", "rate=", "rate=fast", "=3", "pair=[]", "rate=nan"):
        assert "not of the form NAME=VALUE" in cli("lower", source, "-o", lowered, "--bind", text).err
    assert "given twice" in cli("lower", source, "-o", lowered, "--bind", "rate=1", "--bind", "rate=2").err


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize(("name", "share"), [("silero_vad_16k_op15", 0.99), ("silero_vad_op18_ifless", 0.6)])
def test_silero_for_one_rate(name: str, share: float, shared: Find) -> None:
    """No If, Shape or weight of the other rate is left; the bits are those of the model that is given the rate.

    `share` is the most of the file without a rate; one of the two models has weights for one rate alone.
    """
    path = shared(f"models/silero_vad/{name}.onnx")
    free = rnnqc.lower(path).proto
    bound = rnnqc.lower(path, bind={"sr": 16000}, dims={"batch": 1, "sequence": 576}).proto
    operators = {n.op_type for n in bound.graph.node}
    assert not operators & {"If", "Equal", "Shape", "ConstantOfShape"}
    assert bound.ByteSize() < share * free.ByteSize()
    rng = np.random.default_rng(0)
    feeds = {"input": rng.standard_normal((1, 576)).astype(np.float32), "state": np.zeros((2, 1, 128), np.float32)}
    level = "ORT_DISABLE_ALL"  # onnxruntime fuses convolutions in graphs and branches differently
    expected = run(session(free, STOCK, level), {**feeds, "sr": np.array(16000)})
    assert_same_bits(expected, run(session(bound, STOCK, level), feeds), name)
