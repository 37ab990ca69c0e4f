"""Bodies of If and Scan whose results are refused.

What these would catch: a model that onnxruntime runs with arbitrary numbers in a result, and nobody says so; a Loop,
which onnxruntime computes, that is refused.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

import rnnqc
from rnnqc.errors import CompileError
from rnnqc.evaluation.numerics import same_bits
from tests.subjects.protos import parse

NODES = {
    "Scan": "a, b = Scan <num_scan_inputs = 1, body = s (float[B,4] h, float[B,4] v) => "
    "(float[B,4] n, float[B,4] RESULT) { m = MatMul (h, R) k = Add (m, v) n = Tanh (k) MORE }> (h0, x)",
    "If": "a, b = If <then_branch = t () => (float[B,4] n, float[B,4] RESULT) "
    "{ m = MatMul (h0, R) n = Tanh (m) MORE }, "
    "else_branch = e () => (float[B,4] p, float[B,4] q) { p = Neg (h0) q = Abs (h0) }> (yes)",
    "Loop": "a, b = Loop <body = l (int64 i, bool c, float[B,4] h) => (bool d, float[B,4] n, float[B,4] RESULT) "
    "{ d = Identity (c) m = MatMul (h, R) n = Tanh (m) MORE }> (count, yes, h0)",
}


def model(op: str, shared: bool, function: bool = False) -> onnx.ModelProto:
    """Two results of `op` that are one value, or have a value each."""
    node = NODES[op].replace("RESULT", "n" if shared else "o").replace("MORE", "" if shared else "o = Identity (n)")
    head = '<ir_version: 8, opset_import: ["": 17, "own": 1]> '
    given = "m (float[N,B,4] x, float[B,4] h0, bool yes) => (float[B,4] a, b)"
    stored = {"R": np.eye(4, dtype=np.float32), "count": np.array(3)}
    if not function:
        return parse(f"{head} {given} {{ {node} }}", **stored)
    text = f"{given} {{ a, b = own.f (x, h0, R, count, yes) }}"
    return parse(
        f'{head} {text} <domain: "own", opset_import: ["": 17]> f (x, h0, R, count, yes) => (a, b) {{ {node} }}',
        **stored,
    )


@pytest.mark.parametrize("function", [False, True])
@pytest.mark.parametrize("op", ["Scan", "If"])
def test_one_value_for_two_results(op: str, function: bool) -> None:
    rnnqc.inspect(model(op, shared=False, function=function))
    with pytest.raises(CompileError, match=rf"\({op}\): 'n' is two outputs of its .*Identity node"):
        rnnqc.inspect(model(op, shared=True, function=function))
    with pytest.raises(CompileError, match="two outputs"):
        rnnqc.session(model(op, shared=True, function=function))


def test_loops_may_have_one() -> None:
    rnnqc.inspect(model("Loop", shared=True))


@pytest.mark.parametrize("op", NODES)
def test_of_onnxruntime(op: str, tmp_path: Path) -> None:
    """Where it computes both results, the refusal may go."""
    feed = {"x": np.ones((3, 2, 4), np.float32), "h0": np.full((2, 4), 0.5, np.float32), "yes": np.array(True)}
    for shared in (False, True):
        onnx.save(model(op, shared), tmp_path / f"{shared}.onnx")
    apart, shared_ = (rnnqc.session(tmp_path / f"{s}.onnx", native=False).run(None, feed) for s in (False, True))
    assert all(map(same_bits, apart, shared_)) == (op == "Loop")
