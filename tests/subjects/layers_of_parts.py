"""Recurrent layers that read a Concat of values, of any layer that `RecurrentCase` describes."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper, numpy_helper

from tests.generate.layers import RecurrentCase

FACTORS = (2.0 ** np.random.default_rng(4).uniform(-3, 1, 128)).astype(np.float32)


def of_parts(case: RecurrentCase, count: int, empty: bool = False, factor: bool = False) -> onnx.ModelProto:
    """The model of a layer that reads -X, which a Concat makes of `count` parts; the last one may be empty.

    With `factor` its columns are multiplied, by the entries of FACTORS.
    """
    model = case.model()
    sizes = np.full(count, case.I // (count - empty))
    sizes[0] += case.I % (count - empty)
    if empty:
        sizes[-1] = 0
    assert sizes.sum() == case.I and sizes[0] > 0
    parts = [f"part_{k}" for k in range(count)]
    for node in model.graph.node:
        node.input[:] = ["joined" if name == "X" else name for name in node.input]
    made = [
        helper.make_node("Split", ["X", "sizes"], [f"{p}.positive" for p in parts], axis=-1),
        *(helper.make_node("Neg", [f"{p}.positive"], [p]) for p in parts),
        helper.make_node("Concat", parts, ["parts" if factor else "joined"], axis=2),
        *([helper.make_node("Mul", ["parts", "factor"], ["joined"])] if factor else []),
    ]
    if factor:
        model.graph.initializer.append(numpy_helper.from_array(FACTORS[: case.I], "factor"))
    model.graph.initializer.append(numpy_helper.from_array(sizes.astype(np.int64), "sizes"))
    for node in reversed(made):
        model.graph.node.insert(0, node)
    return model
