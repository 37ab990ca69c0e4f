"""Scales that overrides share across layers and directions.

What these would catch: a point that keeps a scale of its own, one that says it shares and is quantized with another
scale, and a shared range that does not cover every member.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import rnnqc
from rnnqc.data.statistics import Statistics
from tests.laws.parametrize import every_pair
from tests.runs.sessions import assert_same_bits, run
from tests.subjects.protos import of_nodes

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
RECIPES = ("brevitas-int8", "distiller-sym", "pow2-int8")
WIDTH = 8


@functools.cache
def subject(op: str) -> tuple[onnx.ModelProto, Statistics, dict[str, Any]]:
    """Two bidirectional layers, weights of the second 2.5 times as large; its statistics, and inputs."""
    rng = np.random.default_rng(3)
    nodes, arrays = [], {"shape": np.array([0, 0, 2 * WIDTH])}
    for k, inputs in enumerate((WIDTH, 2 * WIDTH)):
        rows = GATES[op] * WIDTH
        for name, shape in {"W": (2, rows, inputs), "R": (2, rows, WIDTH), "B": (2, 2 * rows)}.items():
            arrays[f"{name}{k}"] = (rng.standard_normal(shape) * (0.2 + 0.3 * k)).astype(np.float32)
        given = ["x" if not k else "joint0", f"W{k}", f"R{k}", f"B{k}"]
        nodes += [
            helper.make_node(op, given, [f"y{k}"], f"l{k}", hidden_size=WIDTH, direction="bidirectional"),
            helper.make_node("Transpose", [f"y{k}"], [f"rows{k}"], perm=[0, 2, 1, 3]),
            helper.make_node("Reshape", [f"rows{k}", "shape"], [f"joint{k}"]),
        ]
    model = of_nodes(nodes, {"x": ["T", "B", WIDTH]}, {"joint1": ["T", "B", 2 * WIDTH]}, arrays)
    feeds = [{"x": rng.standard_normal((9, 2, WIDTH)).astype(np.float32)} for _ in range(3)]
    return model, rnnqc.calibrate(model, feeds), feeds[0]


def scales(model: Any, kind: str) -> dict[str, set[float]]:
    """Of each point of a kind, the scales that it has."""
    found = {n: p for n, p in model.report.points.items() if n.endswith(f".{kind}")}
    return {n: {float(v) for v in np.ravel(p["scale"])} for n, p in found.items()}


@pytest.mark.few(1)
@every_pair(op=list(GATES), recipe=RECIPES, granularity=["per-tensor", "per-gate"])
def test_one_scale_of_all_weights(op: str, recipe: str, granularity: str) -> None:
    model, statistics, feeds = subject(op)
    asked = ["*.weight.share=all", f"*.weight.granularity={granularity}", "*.weight.range=min-max"]
    made = rnnqc.lower(model, recipe, stats=statistics, overrides=asked)
    of_weights = scales(made, "weight")
    assert len(of_weights) == 8
    assert all(v == of_weights["l0.forward.W.weight"] for v in of_weights.values())
    several = GATES[op] if granularity == "per-gate" and recipe != "pow2-int8" else 1
    assert granularity == "per-gate" or len(of_weights["l0.forward.W.weight"]) == 1
    assert len(of_weights["l0.forward.W.weight"]) >= several
    greatest = max(np.abs(numpy_helper.to_array(t)).max() for t in model.graph.initializer if t.name[0] in "WR")
    assert max(set.union(*of_weights.values())) * 128 >= greatest
    apart = rnnqc.lower(model, recipe, stats=statistics, overrides=["*.weight.share=none", *asked[1:]])
    assert len(set.union(*scales(apart, "weight").values())) > len(set.union(*of_weights.values()))
    stored = [
        numpy_helper.to_array(t)
        for t in made.proto.graph.initializer
        if t.name.endswith(("/W", "/R")) or t.name.endswith((".W", ".R"))
    ]
    assert len(stored) == 8
    assert recipe == "pow2-int8" or max(int(np.abs(v.astype(int)).max()) for v in stored) in (127, 128)
    assert_same_bits(
        run(rnnqc.session(made.proto, native=False), feeds), run(rnnqc.session(made.proto), feeds), "stock and native"
    )


@pytest.mark.few(1)
@every_pair(op=list(GATES), recipe=RECIPES, kind=["hidden", "acc"])
def test_one_scale_of_all_points_of_a_kind(op: str, recipe: str, kind: str) -> None:
    model, statistics, _ = subject(op)
    kinds = {"hidden": 1 + (op == "GRU"), "acc": GATES[op]}  # of a GRU r * h, too
    asked = {kind: kinds[kind], **({"cell_state": 1} if op == "LSTM" else {})}
    made = rnnqc.lower(model, recipe, stats=statistics, overrides=[f"*.{k}.share={k} of all" for k in asked])
    for name, each in asked.items():
        found = scales(made, name)
        assert len(found) == 4 * each and len(set.union(*found.values())) == 1, name
