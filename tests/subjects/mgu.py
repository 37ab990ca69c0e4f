"""A minimal gated unit: a type of cell that rnnqc does not come with, described as a new type would be.

And one still smaller, whose gate multiplies nothing in front of R: a type that reads its hidden state without a
candidate. ONNX has no such operators. The nodes are of a domain of their own, and a model-local function says in float
what each computes, so that onnxruntime runs the float model, too.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import onnx
import onnx.parser
from onnx import TensorProto, helper, numpy_helper

from rnnqc.cells.equations import RESET_HIDDEN, Step
from rnnqc.cells.types import CellType, points_of

V = TypeVar("V")
Array = npt.NDArray[np.float32]
DOMAIN = "cells.test"
FORGET, CANDIDATE = range(2)


def mgu(s: Step[V]) -> tuple[V, V]:
    """The hidden state after a step, twice: h = (1 - f) * h + f * tanh(x W + (f * h) R + b)."""
    f = s.gate(FORGET)
    n = s.activated(CANDIDATE, s.recurrent_of(CANDIDATE, s.product(f, s.state, RESET_HIDDEN)), s.projected(CANDIDATE))
    kept = s.product(s.complement(f), s.state, "hidden_state.kept")
    added = s.product(f, n, "hidden_state.added")
    h = s.total(kept, added, "hidden_state")
    return h, h


def leaky(s: Step[V]) -> tuple[V, V]:
    """The hidden state after a step, twice: h = (1 - f) * h + f * tanh(x W + h R + b)."""
    f, n = s.gate(FORGET), s.gate(CANDIDATE)
    kept = s.product(s.complement(f), s.state, "hidden_state.kept")
    h = s.total(kept, s.product(f, n, "hidden_state.added"), "hidden_state")
    return h, h


GATES = ("forget_gate", "hidden_gate")
STATE = (
    ("hidden_state.kept", "the product (1 - f) * h"),
    ("hidden_state.added", "the product f * n"),
    ("hidden_state", "the hidden state itself, from step to step"),
)
MGU = CellType(
    op="MGU",
    domain=DOMAIN,
    fused="QuantMGUCell",
    aliases=0,
    gates=GATES,
    activations=("Sigmoid", "Tanh"),
    gate_activations=(0, 1),
    points=points_of(GATES, STATE, hidden=((RESET_HIDDEN, "f * h in front of R"),)),
    step=mgu,
    candidate=CANDIDATE,
    update=FORGET,
)
LEAKY = replace(MGU, op="Leaky", fused="QuantLeakyCell", points=points_of(GATES, STATE), step=leaky, candidate=None)

FUNCTION = f"""
<opset_import: ["" : 17], domain: "{DOMAIN}">
MGU <hidden_size> (X, W, R, B, sequence_lens, initial_h) => (Y, Y_h) {{
  zero = Constant <value = int64[1] {{0}}> ()
  one = Constant <value = int64[1] {{1}}> ()
  w = Squeeze (W, zero)
  w_columns = Transpose <perm = [1, 0]> (w)
  r = Squeeze (R, zero)
  r_columns = Transpose <perm = [1, 0]> (r)
  r_f, r_n = Split <axis = 1> (r_columns)
  b = Squeeze (B, zero)
  b_w, b_r = Split <axis = 0> (b)
  bias = Add (b_w, b_r)
  x_w = MatMul (X, w_columns)
  p = Add (x_w, bias)
  p_f, p_n = Split <axis = 2> (p)
  first = Squeeze (initial_h, zero)
  last, steps = Scan <num_scan_inputs = 2, body = step (float[N, H] h, float[N, H] of_f, float[N, H] of_n)
                                                    => (float[N, H] next, float[N, H] step_y) {{
    h_f = MatMul (h, r_f)
    g_f = Add (of_f, h_f)
    f = Sigmoid (g_f)
    reset = Mul (f, h)
    h_n = MatMul (reset, r_n)
    g_n = Add (of_n, h_n)
    n = Tanh (g_n)
    change = Sub (n, h)
    part = Mul (f, change)
    next = Add (h, part)
    step_y = Identity (next)
  }}> (first, p_f, p_n)
  Y = Unsqueeze (steps, one)
  Y_h = Unsqueeze (last, zero)
}}
"""


def model(type_: CellType = MGU, inputs: int = 20, hidden: int = 24, seed: int = 0) -> onnx.ModelProto:
    """A layer `X [T,N,I], initial_h [1,N,H] -> Y [T,1,N,H], Y_h [1,N,H]` with random weights."""
    rng = np.random.default_rng(seed)
    shapes = {"W": (1, 2 * hidden, inputs), "R": (1, 2 * hidden, hidden), "B": (1, 4 * hidden)}
    weights = [
        numpy_helper.from_array((rng.normal(0, 1, s) / np.sqrt(s[-1])).astype(np.float32), n) for n, s in shapes.items()
    ]
    node = helper.make_node(
        type_.op, ["X", "W", "R", "B", "", "initial_h"], ["Y", "Y_h"], "layer", domain=DOMAIN, hidden_size=hidden
    )
    values = {
        "X": ["T", "N", inputs],
        "initial_h": [1, "N", hidden],
        "Y": ["T", 1, "N", hidden],
        "Y_h": [1, "N", hidden],
    }
    infos = [helper.make_tensor_value_info(n, TensorProto.FLOAT, dims) for n, dims in values.items()]
    graph = helper.make_graph([node], "model", infos[:2], infos[2:], weights)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(DOMAIN, 1)]
    text = (
        FUNCTION
        if type_ is MGU
        else FUNCTION.replace("MGU", type_.op).replace("MatMul (reset, r_n)", "MatMul (h, r_n)")
    )
    return helper.make_model(graph, opset_imports=opsets, functions=[onnx.parser.parse_function(text)], ir_version=8)


def feeds(time: int = 9, batch: int = 3, seed: int = 0, *, magnitude: float = 1.0) -> dict[str, Array]:
    """Inputs of `model()`, whose initial states are up to `magnitude`."""
    rng = np.random.default_rng(seed)
    state = rng.uniform(-magnitude, magnitude, (1, batch, 24)).astype(np.float32)
    return {"X": rng.normal(0, 1, (time, batch, 20)).astype(np.float32), "initial_h": state}
