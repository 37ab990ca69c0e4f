"""Recurrent layers behind an embedding, of any layer that `RecurrentCase` describes."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from tests.generate.layers import RecurrentCase

TOKENS = 400
WAYS_TO_X = ("gathered", "transposed", "reshaped", "squeezed")
"""How rows get from the table to the layer: directly, or moved by other operators."""


def embedded(case: RecurrentCase, to_x: str) -> onnx.ModelProto:
    """The model of a layer with tokens as its input X, `[T,B]` or `[B,T]`, and an embedding."""
    model = case.model()
    rng = np.random.default_rng(7)
    table = rng.standard_normal((TOKENS, case.I)) * np.exp(rng.standard_normal((TOKENS, 1)))
    (x,) = (i for i in model.graph.input if i.name == "X")
    x.type.tensor_type.elem_type = onnx.TensorProto.INT64
    del x.type.tensor_type.shape.dim[-1]
    for node in model.graph.node:
        node.input[:] = ["rows" if name == "X" else name for name in node.input]
    constants = {
        "table": table.astype(np.float32), "flat": np.array([-1]), "first": np.array([0]), "width": np.array([case.I]),
    }  # fmt: skip
    gather, front, back = ("Gather", "table"), [], []
    if to_x == "transposed":
        front = [helper.make_node("Transpose", ["X"], ["moved"], perm=[1, 0])]
        back = [helper.make_node("Transpose", ["gathered"], ["rows"], perm=[1, 0, 2])]
    elif to_x == "reshaped":
        front = [helper.make_node("Reshape", ["X", "flat"], ["moved"])]
        back = [
            helper.make_node("Shape", ["X"], ["sizes"]),
            helper.make_node("Concat", ["sizes", "width"], ["shape"], axis=0),
            helper.make_node("Reshape", ["gathered", "shape"], ["rows"]),
        ]
    elif to_x == "squeezed":
        front = [helper.make_node("Unsqueeze", ["X", "first"], ["moved"])]
        back = [helper.make_node("Squeeze", ["gathered", "first"], ["rows"])]
    names = ("moved", "gathered") if front else ("X", "rows")
    made = [*front, helper.make_node(gather[0], [gather[1], names[0]], [names[1]], name="embedding"), *back]
    used = {name for node in made for name in node.input}
    model.graph.initializer.extend(numpy_helper.from_array(v, k) for k, v in constants.items() if k in used)
    for node in reversed(made):
        model.graph.node.insert(0, node)
    return model


def tokens(case: RecurrentCase, seed: int) -> dict[str, Any]:
    """Feeds with tokens, negative ones among them, in the place of floats."""
    feeds = case.feeds(padding=0.0)
    drawn = np.random.default_rng(seed).integers(-TOKENS, TOKENS, feeds["X"].shape[:-1])
    return {**feeds, "X": drawn}
