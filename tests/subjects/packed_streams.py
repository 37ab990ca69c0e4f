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
