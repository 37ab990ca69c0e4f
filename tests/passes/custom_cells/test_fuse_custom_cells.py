"""Fused custom cells beside other values of a model.

What this would catch: a name inside a cell's function that onnxruntime takes for a value of the graph around its node.
"""

from __future__ import annotations

import numpy as np
import onnx

import rnnqc
from rnnqc.proto.graph_walks import blocks_of
from tests.runs.lowered import run_both
from tests.subjects.protos import parse

T, B, I, H = 4, 2, 6, 8  # noqa: E741 - steps, rows, inputs and units


def leaking(name: str) -> onnx.ModelProto:
    """Two states, each scaled by a constant, of which the second is called `name`; all values have shapes."""
    rng = np.random.default_rng(0)
    arrays = {"V": (I, H), "R": (H, H), name: (1, H), "scale_of_the_first": (1, H)}
    step = """x# = Gather <axis = 0> (v, at#) first# = Mul (h#, scale_of_the_first) product# = MatMul (x#, V)
        sum# = Add (product#, first#) next# = Relu (sum#) second# = Mul (g#, NAME) step# = MatMul (h#, R)
        more# = Add (step#, second#) h@ = Add (next#, more#) g@ = Tanh (next#)""".replace("NAME", name)
    lines = [step.replace("#", str(t)).replace("@", str(t + 1)) for t in range(T)]
    model = parse(
        f'<ir_version: 8, opset_import: ["": 17]> m (float[{B},{H}] h0, float[{B},{H}] g0, '
        f"float[{T},{B},{I}] v) => (float[{B},{H}] h{T}, float[{B},{H}] g{T}) {{ {' '.join(lines)} }}",
        **{n: rng.normal(0, 0.3, s).astype(np.float32) for n, s in arrays.items()},
        **{f"at{t}": np.array(t) for t in range(T)},
    )
    return onnx.shape_inference.infer_shapes(model)


def test_names_of_the_model_are_those_inside() -> None:
    """A constant of one row has the name that the function gives to a value of several."""
    feeds = {"h0": (B, H), "g0": (B, H), "v": (T, B, I)}
    given = {n: np.random.default_rng(1).normal(0, 1, s).astype(np.float32) for n, s in feeds.items()}
    (function,) = rnnqc.lower(leaking("scale_of_the_second"), strict=True).proto.functions
    inside = {
        n for g in blocks_of([function]) if isinstance(g, onnx.GraphProto) for node in g.node for n in node.output
    }
    names = sorted(n for n in inside if len(n) < 2 and n not in ("v", "V", "R"))
    assert names
    wanted = None
    for name in names:
        outputs = run_both(rnnqc.lower(leaking(name)).proto, given)
        wanted = wanted or outputs
        assert all(np.array_equal(outputs[k], wanted[k]) for k in wanted), name
