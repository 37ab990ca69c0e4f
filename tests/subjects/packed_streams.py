"""A stream as it is shipped: an embedding, two layers whose states are packed into one tensor, a tied decoder."""

from __future__ import annotations

import numpy as np
import onnx

from tests.runs.sessions import Array
from tests.subjects.protos import parse

WIDTH, TOKENS = 64, 4200
"""The decoder has more than 2^18 weights: it becomes integer."""
STATE = (1, 2, WIDTH, 2)
"""Batch, layer, unit, h or c: the axes of DTLN's states."""


def packed_stream() -> onnx.ModelProto:
    """Tokens `[T,1]` and states `[1,2,64,2]` to logits `[T,1,4200]` and the states that follow."""
    rng = np.random.default_rng(11)
    weights = {"table": (rng.standard_normal((TOKENS, WIDTH)) * 0.2).astype(np.float32)}
    lines, packed = ["y0 = Gather (table, tokens)"], []
    for k in range(2):
        for name, rows in (("w", WIDTH), ("r", WIDTH)):
            weights[f"{name}{k}"] = (rng.standard_normal((1, 4 * WIDTH, rows)) * 0.2).astype(np.float32)
        for at, name in enumerate("hc"):
            lines.append(f"l{name}{k} = Slice (state, low{k}{at}, high{k}{at}, axes)")
            lines.append(f"s{name}{k} = Squeeze (l{name}{k}, axes)")
            lines.append(f"i{name}{k} = Unsqueeze (s{name}{k}, zero)")
        lines.append(f"Y{k}, h{k}, c{k} = LSTM <hidden_size = {WIDTH}> (y{k}, w{k}, r{k}, , , ih{k}, ic{k})")
        lines.append(f"y{k + 1} = Squeeze (Y{k}, one)")
        lines += [f"t{name}{k} = Transpose <perm = [1, 0, 2]> ({name}{k})" for name in "hc"]
        lines += [f"u{name}{k} = Unsqueeze (t{name}{k}, last)" for name in "hc"]
        lines.append(f"p{k} = Concat <axis = -1> (uh{k}, uc{k})")
        packed.append(f"p{k}")
    lines.append(f"next = Concat <axis = 1> ({', '.join(packed)})")
    lines.append("turned = Transpose <perm = [1, 0]> (table) logits = MatMul (y2, turned)")
    bounds = {f"low{k}{at}": np.array([k, at]) for k in range(2) for at in range(2)}
    bounds |= {f"high{k}{at}": np.array([k + 1, at + 1]) for k in range(2) for at in range(2)}
    bounds |= {"axes": np.array([1, 3]), "zero": np.array([0]), "one": np.array([1]), "last": np.array([-1])}
    shapes = f"(int64[T,1] tokens, float[{','.join(map(str, STATE))}] state)"
    outputs = f"(float[T,1,{TOKENS}] logits, float[{','.join(map(str, STATE))}] next)"
    text = '<ir_version: 8, opset_import: ["": 17]> stream ' + f"{shapes} => {outputs} {{ " + "\n".join(lines) + "}"
    return parse(text, **weights, **bounds)


def packed_feeds(steps: int, seed: int = 0) -> dict[str, Array]:
    """Random tokens, and states within the bound of a hidden state."""
    rng = np.random.default_rng(seed)
    state = rng.uniform(-0.9, 0.9, STATE).astype(np.float32)
    return {"tokens": rng.integers(0, TOKENS, (steps, 1)), "state": state}


def packed_step() -> onnx.ModelProto:
    """One step of an LSTM whose state, h and c beside each other, comes and goes in one tensor."""
    rng = np.random.default_rng(0)
    weights = {n: rng.normal(0, 0.3, z).astype(np.float32) for n, z in (("W", (1, 64, 8)), ("R", (1, 64, 16)))}
    operands = {"zero": [0], "one": [1], "two": [2], "last": [-1]}
    return parse(
        """<ir_version: 8, opset_import: ["": 17]>
        g (float[1,1,8] x, float[1,16,2] s) => (float[1,16] y, float[1,16,2] n)
        { p = Slice (s, zero, one, two) q = Squeeze (p, two) h = Unsqueeze (q, zero)
          u = Slice (s, one, two, two) v = Squeeze (u, two) c = Unsqueeze (v, zero)
          y4, h2, c2 = LSTM <hidden_size = 16> (x, W, R, , , h, c) y3 = Squeeze (y4, one) y = Squeeze (y3, zero)
          h3 = Squeeze (h2, zero) c3 = Squeeze (c2, zero) h4 = Unsqueeze (h3, last) c4 = Unsqueeze (c3, last)
          n = Concat <axis = 2> (h4, c4) }""",
        **{n: np.array(z) for n, z in operands.items()},
        **weights,
    )


def cut_caches() -> onnx.ModelProto:
    """Two caches that are cut into halves: a second half and the next frame go into an LSTM, a first half elsewhere.

    onnxruntime makes a Split of the two Slices of a cache, before 1.22 with the name of the first of them.
    """
    rng = np.random.default_rng(0)
    weights = {n: rng.normal(0, 0.3, z).astype(np.float32) for n, z in (("W", (1, 64, 39)), ("R", (1, 64, 16)))}
    operands = {"zero": [0], "one": [1], "two": [2], "end": [2**62], "wide": [1, 1, 24], "narrow": [1, 1, 15]}
    return parse(
        """<ir_version: 8, opset_import: ["": 17]>
        g (float[1,1,8] x, float[1,4,8] s, float[1,1,5] z, float[1,4,5] t)
            => (float[1,1,1,16] y, float[1,4,8] s_next, float[1,4,5] t_next)
        { a = Slice (s, zero, two, one) b = Slice (s, two, end, one) c = Concat <axis = 1> (b, x) d = Reshape (c, wide)
          e = Slice (t, zero, two, one) f = Slice (t, two, end, one) h = Concat <axis = 1> (f, z)
          i = Reshape (h, narrow) w = Concat <axis = 2> (d, i) k = Relu (w)
          y, l, m = LSTM <hidden_size = 16> (k, W, R) n = Neg (a) s_next = Concat <axis = 1> (n, n)
          o = Neg (e) t_next = Concat <axis = 1> (o, o) }""",
        **{n: np.array(v) for n, v in operands.items()},
        **weights,
    )
