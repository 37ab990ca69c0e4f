"""A layer as a model of whole sequences, and as a model of one step with its states outside.

What these would catch: formats of the two that differ although the data is the same, a state that loses something
between two calls, a page (docs/streaming.md) that promises equal bits where there are none.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

import rnnqc
from tests.runs.sessions import Array
from tests.subjects.protos import parse

I, H, T = 20, 48, 60  # noqa: E741
GATES = {"GRU": 3, "LSTM": 4, "RNN": 1}
X = np.random.default_rng(1).standard_normal((T, 1, I)).astype(np.float32)


def model(op: str, *, step: bool) -> onnx.ModelProto:
    """One layer with weights that do not depend on `step`."""
    rng = np.random.default_rng(2)
    arrays = {n: rng.normal(0, 0.3, (1, GATES[op] * H, k)).astype(np.float32) for n, k in (("W", I), ("R", H))}
    states, finals = (["h", "c"], ["hn", "cn"]) if op == "LSTM" else (["h"], ["hn"])
    inputs = ", ".join([f"float[{1 if step else 'T'},1,{I}] x", *(f"float[1,1,{H}] {s}" for s in states if step)])
    outputs = ", ".join([f"float[{1 if step else 'T'},1,1,{H}] y", *(f"float[1,1,{H}] {f}" for f in finals)])
    reset = ", linear_before_reset = 1" if op == "GRU" else ""
    given = f", , , {', '.join(states)}" if step else ""
    body = f"y, {', '.join(finals)} = {op} <hidden_size = {H}{reset}> (x, W, R{given})"
    return parse(f'<ir_version: 8, opset_import: ["": 17]> m ({inputs}) => ({outputs}) {{ {body} }}', **arrays)


def results(op: str, whole: Any, step: Any, native: bool) -> tuple[dict[str, Array], dict[str, Array]]:
    """All outputs of a sequence in one call, and of its steps one after the other."""
    states = {"h": "hn", "c": "cn"} if op == "LSTM" else {"h": "hn"}
    once, each = (rnnqc.session(m, native=native) for m in (whole, step))
    names = [o.name for o in once.get_outputs()]
    full = dict(zip(names, once.run(None, {"x": X}), strict=True))
    held, y = {s: np.zeros((1, 1, H), np.float32) for s in states}, []
    for frame in X:
        made = dict(zip(names, each.run(names, {"x": frame[None], **held}), strict=True))
        held = {s: made[out] for s, out in states.items()}
        y.append(made["y"])
    return full, {"y": np.concatenate(y), **{out: held[s] for s, out in states.items()}}


def same(a: dict[str, Array], b: dict[str, Array]) -> bool:
    return all(np.array_equal(a[name], b[name]) for name in a)


def lowered(op: str, recipe: str, data: str) -> tuple[Any, Any]:
    states = {"h": "hn", "c": "cn"} if op == "LSTM" else {"h": "hn"}
    options: tuple[dict[str, Any], dict[str, Any]] = ({}, {})
    if data:
        zeros = {s: np.zeros((1, 1, H), np.float32) for s in states}
        frames = [{"x": f[None], **({} if data == "carried" else zeros)} for f in X]
        options = {"calibration": [{"x": X}]}, {"calibration": frames}
        options[1].update({"state": states} if data == "carried" else {})
    return tuple(rnnqc.lower(model(op, step=s), recipe=recipe, **options[s]) for s in (False, True))


@pytest.mark.few(1)
@pytest.mark.parametrize("op", GATES)
@pytest.mark.parametrize(
    ("recipe", "data"),
    [("int8", ""), ("int8", "carried"), ("int8-static", "carried"), ("w4a8", ""), ("pow2-int16", "carried")],
)
def test_the_same_bits(op: str, recipe: str, data: str) -> None:
    """Dynamic activations have a scale for each row of a step; static ones the same from the same values."""
    whole, step = lowered(op, recipe, data)
    for native in (True, False):
        assert same(*results(op, whole, step, native)), "native" if native else "stock"


def test_other_bits_where_the_step_was_calibrated_without_its_states() -> None:
    """Each call from zeros: hidden states and gates have other ranges. Both models are right, and not the same."""
    whole, step = lowered("GRU", "int8-static", "from zeros")
    full, each = results("GRU", whole, step, True)
    assert not same(full, each)
    error = np.mean((full["y"] - each["y"]) ** 2) / np.mean(full["y"] ** 2)
    assert error < 1e-2


def stack(op: str, *, step: bool, states: bool) -> onnx.ModelProto:
    """Two layers."""
    rng = np.random.default_rng(3)
    shapes = {"W": (GATES[op] * H, I), "R": (GATES[op] * H, H), "W2": (GATES[op] * H, H), "R2": (GATES[op] * H, H)}
    arrays = {n: rng.normal(0, 0.3, (1, *s)).astype(np.float32) for n, s in shapes.items()}
    names = ["h", "c"] if op == "LSTM" else ["h"]
    length = 1 if step else "T"
    inputs = ", ".join([f"float[{length},1,{I}] x", *(f"float[1,1,{H}] {s}{k}" for k in "12" for s in names if states)])
    outputs = ", ".join([f"float[{length},1,1,{H}] y", *(f"float[1,1,{H}] {s}n{k}" for k in "12" for s in names)])
    first, second = (f", , , {', '.join(f'{s}{k}' for s in names)}" if states else "" for k in "12")
    finals = [", ".join(f"{s}n{k}" for s in names) for k in "12"]
    body = f"""y1, {finals[0]} = {op} <hidden_size = {H}> (x, W, R{first})  x2 = Squeeze (y1, one)
      y, {finals[1]} = {op} <hidden_size = {H}> (x2, W2, R2{second})"""
    text = f'<ir_version: 8, opset_import: ["": 17]> m ({inputs}) => ({outputs}) <int64[1] one = {{1}}> {{ {body} }}'
    return parse(text, **arrays)


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("op", "states", "overrides", "alike"),
    [
        ("LSTM", False, [], True),
        ("GRU", False, [], False),  # the step's states are not bounded, so its second layer does not take them as codes
        ("GRU", False, ["*.input.chain=false"], True),
        ("GRU", True, [], True),
    ],
)
def test_stacks(op: str, states: bool, overrides: list[str], alike: bool) -> None:
    whole, step = (rnnqc.session(rnnqc.lower(stack(op, step=s, states=s or states), overrides=o))
                   for s, o in ((False, overrides), (True, ())))  # fmt: skip
    names = [o.name for o in whole.get_outputs()]
    held = {i.name: np.zeros((1, 1, H), np.float32) for i in step.get_inputs() if i.name != "x"}
    full = dict(zip(names, whole.run(names, {"x": X, **(held if states else {})}), strict=True))
    y = []
    for frame in X:
        made = dict(zip(names, step.run(names, {"x": frame[None], **held}), strict=True))
        held = {s: made[f"{s[0]}n{s[1]}"] for s in held}
        y.append(made["y"])
    assert np.array_equal(full["y"], np.concatenate(y)) is alike
