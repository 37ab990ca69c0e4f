"""Custom cells with what onnxruntime's optimizer fuses into one operator with other bits."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx

import rnnqc
from tests.subjects.protos import parse

I, H = 9, 12  # noqa: E741 - inputs and hidden units
_CONSTANTS = {
    "zero": 0.0, "half": 0.5, "one": 1.0, "root": 2.0**0.5, "quick": 1.702, "cubic": 0.044715,
    "two": 2.0, "small": 1e-5, "slope": (2 / np.pi) ** 0.5,
}  # fmt: skip
PATTERNS = {
    "gelu": "d = Div (g, root) e = Erf (d) a = Add (e, one) m = Mul (g, a) n = Mul (m, half)",
    "gelu, half first": "d = Div (g, root) e = Erf (d) a = Add (one, e) m = Mul (g, half) n = Mul (m, a)",
    "gelu of a sum": "s = Add (g, b) d = Div (s, root) e = Erf (d) a = Add (e, one) m = Mul (s, a) n = Mul (m, half)",
    "gelu by tanh": "c = Mul (g, cubic) c2 = Mul (c, g) c3 = Add (c2, one) u = Mul (g, slope) v = Mul (u, c3) "
    "t = Tanh (v) a = Add (t, one) m = Mul (g, half) n = Mul (m, a)",
    "silu": "s = Sigmoid (g) n = Mul (g, s)",
    "quick gelu": "q = Mul (g, quick) s = Sigmoid (q) n = Mul (s, g)",
    "quotient": "p = Abs (g) s = Add (p, half) d = Div (one, s) n = Mul (d, g)",
    "normalized rows": "u = ReduceMean <keepdims=1> (g, axes) d = Sub (g, u) s = Mul (d, d) "
    "v = ReduceMean <keepdims=1> (s, axes) w = Add (v, small) r = Sqrt (w) q = Div (d, r) n = Mul (q, b)",
    "normalized rows, by Pow": "u = ReduceMean <keepdims=1> (g, axes) d = Sub (g, u) s = Pow (d, two) "
    "v = ReduceMean <keepdims=1> (s, axes) w = Add (v, small) r = Sqrt (w) q = Div (d, r) m = Mul (q, b) "
    "n = Add (m, b)",
    "rows by their size": "s = Pow (g, two) v = ReduceMean <keepdims=1> (s, axes) w = Add (v, small) "
    "r = Sqrt (w) q = Div (g, r) n = Mul (q, b)",
    "sum with zero": "k = Mul (g, zero) n = Add (k, zero)",
}
"""The operators of a step on its sum `g` [B, H], by name; the result is `n`."""


def patterned_layer(name: str, **options: Any) -> onnx.ModelProto:
    """A layer whose output shows each bit of the pattern, the sign of a zero, too."""
    rng = np.random.default_rng(1)
    constants = "\n".join(f"{n} = Constant <value = float {{{v!r}}}> ()" for n, v in _CONSTANTS.items())
    text = f"""<ir_version: 9, opset_import: ["": 20]> cell (float[B,{I}] x, float[B,{H}] h)
        => (float[B,{H}] h_next, float[B,{H}] seen) {{
      {constants} axes = Constant <value = int64[1] {{-1}}> ()
      [from_x] p0 = MatMul (x, W) [from_h] q0 = MatMul (h, R) [sum] g = Add (p0, q0)
      {PATTERNS[name]} [left] seen = Neg (n) [soft] f = Softsign (n) [output] h_next = Sub (f, g)
    }}"""
    arrays = {"W": rng.standard_normal((I, H)), "R": rng.standard_normal((H, H)) / 3, "b": rng.standard_normal(H) / 9}
    return rnnqc.layer(parse(text, **{k: v.astype(np.float32) for k, v in arrays.items()}), **options)
