"""Products with equal weights share them.

What these would catch: steps whose weights are copies and that stay float, products that get the weights of another
one, copies that are outputs and vanish.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest

import rnnqc
from rnnqc.ir import Model, constant_array
from rnnqc.passes import Canonicalize
from tests.runs.sessions import assert_same_bits, plain_session, run
from tests.subjects.protos import parse

Array = npt.NDArray[Any]
I, H, T = 8, 16, 5  # noqa: E741 - inputs, units, steps
COPIES = {
    "identity": "V{k} = Identity (W)",
    "transpose": "V{k} = Transpose <perm = [1, 0]> (U)",
    "both": "I{k} = Identity (U) V{k} = Transpose <perm = [1, 0]> (I{k})",
    "initializer": "",
}


def unrolled(kind: str, output: bool = False) -> onnx.ModelProto:
    """A gated recurrence of five steps, each with its own copy of the input's weights."""
    rng = np.random.default_rng(1)
    W, R = (rng.standard_normal((n, H)).astype(np.float32) / 4 for n in (I, H))
    arrays: dict[str, Array] = {"R": R, **{f"at{k}": np.array(k) for k in range(T)}}
    arrays |= {f"V{k}": W for k in range(T)} if kind == "initializer" else {"U": W.T.copy()} | {"W": W}
    if kind != "initializer":
        arrays.pop("U" if kind == "identity" else "W")
    lines = []
    for k in range(T):
        state = "h" if not k else f"h{k - 1}"
        lines.append(COPIES[kind].format(k=k))
        lines.append(f"x{k} = Gather <axis = 0> (x, at{k}) p{k} = MatMul (x{k}, V{k}) s{k} = MatMul ({state}, R)")
        lines.append(f"g{k} = Add (p{k}, s{k}) a{k} = Tanh (g{k}) f{k} = Sigmoid (p{k}) h{k} = Mul (a{k}, f{k})")
    copy = f", float[{I},{H}] V3" if output else ""
    text = f"""<ir_version: 8, opset_import: ["": 17]> g (float[{T},B,{I}] x, float[B,{H}] h)
        => (float[B,{H}] h{T - 1}{copy}) {{ {" ".join(lines)} }}"""
    return parse(text, **arrays)


def feeds() -> dict[str, Array]:
    rng = np.random.default_rng(2)
    return {"x": rng.standard_normal((T, 3, I)).astype(np.float32), "h": np.zeros((3, H), np.float32)}


@pytest.mark.few(3)
@pytest.mark.parametrize("kind", list(COPIES))
def test_copies_of_weights_are_one(kind: str) -> None:
    """The bits stay, and every product of every step is quantized."""
    model = unrolled(kind)
    loaded = Model.load(model)
    assert Canonicalize()(loaded).statistics["shared"] >= T - 1
    used = {id(n.inputs[1]) for n in loaded.graph.nodes if n.op == "MatMul"}
    assert len(used) == 2
    assert_same_bits(run(plain_session(model), feeds()), run(plain_session(loaded.proto), feeds()), kind)
    lowered = rnnqc.lower(model, strict=True)
    (entry,) = lowered.report.entries
    assert entry.summary.startswith("2 products")
    floats = [n.op for g in lowered.model.graphs() for n in g.nodes if n.op in ("MatMul", "Gemm")]
    assert floats == []


def test_a_copy_that_is_an_output_stays() -> None:
    model = unrolled("identity", output=True)
    loaded = Model.load(model)
    Canonicalize()(loaded)
    assert_same_bits(run(plain_session(model), feeds()), run(plain_session(loaded.proto), feeds()), "output")


def test_different_weights_stay_apart() -> None:
    """Weights of the same shape, and one that is the transpose of the other."""
    rng = np.random.default_rng(0)
    arrays = {k: rng.standard_normal((H, H)).astype(np.float32) for k in "AB"}
    text = f"""<ir_version: 8, opset_import: ["": 17]> g (float[N,{H}] x) => (float[N,{H}] y) {{
        T = Transpose <perm = [1, 0]> (A) C = Identity (A)
        a = MatMul (x, A) b = MatMul (a, B) c = MatMul (b, T) y = MatMul (c, C) }}"""
    loaded = Model.load(parse(text, **arrays))
    assert Canonicalize()(loaded).statistics["shared"] == 1
    a, b, c, y = (n.inputs[1] for n in loaded.graph.nodes if n.op == "MatMul")
    assert a is y
    np.testing.assert_array_equal(constant_array(a), arrays["A"])
    np.testing.assert_array_equal(constant_array(b), arrays["B"])
    assert c.inputs[0].op == "Transpose"
