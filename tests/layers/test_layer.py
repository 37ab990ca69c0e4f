"""Layers made of a cell.

What these would catch: steps in the wrong order, states handed on wrongly or lost beyond a sequence's length, outputs
at the wrong time, names of the cell that collide in the loop, and inputs that are no cell but make a model.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime as ort
import pytest

import rnnqc
from rnnqc.errors import CompileError
from rnnqc.layers.layer import layer
from tests.subjects.protos import parse

Array = npt.NDArray[Any]
I, H, M = 3, 4, 6  # noqa: E741 - inputs, hidden units, memory units
HEADER = '<ir_version: 8, opset_import: ["": 17]>'
HIGHWAY = f"""{HEADER} cell (float[B,{I}] x, float[B,{H}] h, float[B,{M}] c)
    => (float[B,{H}] h_next, float[B,{M}] c_next, float[B,{H}] carry) {{
  [in] p = MatMul (x, W)
  s = MatMul (h, R)
  g = Add (p, s)
  a = Tanh (g)
  f = Sigmoid (g)
  kept = Mul (c, f)
  c_next = Add (kept, a)
  t = Tanh (c_next)
  u = MatMul (t, P)
  skip = MatMul (x, V)
  carry = Sigmoid (skip)
  one = Constant <value = float {{1.0}}> ()
  rest = Sub (one, carry)
  v = Mul (u, carry)
  w = Mul (skip, rest)
  h_next = Add (v, w)
}}"""


def _weights() -> dict[str, Array]:
    rng = np.random.default_rng(3)
    shapes = {"W": (I, M), "R": (H, M), "P": (M, H), "V": (I, H)}
    return {k: (0.5 * rng.standard_normal(s)).astype(np.float32) for k, s in shapes.items()}


def _cell() -> onnx.ModelProto:
    return parse(HIGHWAY, **_weights())


def _step(x: Array, h: Array, c: Array) -> tuple[Array, Array, Array]:
    """One step of the cell, by hand."""
    w = _weights()
    g = x @ w["W"] + h @ w["R"]
    c = c / (1 + np.exp(-g)) + np.tanh(g)
    carry = 1 / (1 + np.exp(-x @ w["V"]))
    return np.tanh(c) @ w["P"] * carry + (x @ w["V"]) * (1 - carry), c, carry


def _run(model: onnx.ModelProto, feeds: dict[str, Array]) -> dict[str, Array]:
    onnx.checker.check_model(model, full_check=True)
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    names = [o.name for o in session.get_outputs()]
    return dict(zip(names, session.run(None, feeds), strict=True))


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("lens", [None, (5, 0, 2)])
@pytest.mark.parametrize("initial", [False, True])
def test_a_layer_is_the_cell_step_by_step(reverse: bool, lens: tuple[int, ...] | None, initial: bool) -> None:
    rng = np.random.default_rng(1)
    steps, batch = 5, 3
    x = rng.standard_normal((steps, batch, I)).astype(np.float32)
    h, c = (rng.standard_normal((batch, n)).astype(np.float32) * initial for n in (H, M))
    feeds: dict[str, Array] = {"x": x}
    feeds |= {"h": h, "c": c} if initial else {}
    feeds |= {"sequence_lens": np.array(lens, np.int32)} if lens is not None else {}
    got = _run(layer(_cell(), reverse=reverse, lengths=lens is not None, initial_states=initial), feeds)
    assert list(got) == ["Y", "carry", "h_next", "c_next"]
    y, carries = np.zeros((steps, batch, H)), np.zeros((steps, batch, H))
    h, c = h.astype(np.float64), c.astype(np.float64)
    for t in reversed(range(steps)) if reverse else range(steps):
        valid = np.ones((batch, 1), bool) if lens is None else np.array(lens)[:, None] > t
        h_new, c_new, carry = _step(x[t].astype(np.float64), h, c)
        h, c = np.where(valid, h_new, h), np.where(valid, c_new, c)
        y[t], carries[t] = np.where(valid, h_new, 0), np.where(valid, carry, 0)
    for name, want in (("Y", y), ("carry", carries), ("h_next", h), ("c_next", c)):
        np.testing.assert_allclose(got[name], want, atol=1e-5, err_msg=name)


def test_initializers_keep_their_names_and_dims_their_symbols() -> None:
    made = layer(_cell(), lengths=True, initial_states=True)
    assert {t.name for t in made.graph.initializer} == {"W", "R", "P", "V"}
    dims = {v.name: [d.dim_param or d.dim_value for d in v.type.tensor_type.shape.dim] for v in made.graph.input}
    assert dims == {"x": ["T", "B", I], "sequence_lens": ["B"], "h": ["B", H], "c": ["B", M]}


def test_states_by_name() -> None:
    """The outputs of this cell stand in another order than its states."""
    cell = _cell()
    first, *others = list(cell.graph.output)
    del cell.graph.output[:]
    cell.graph.output.extend([*others, first])
    feeds = {"x": np.ones((2, 1, I), np.float32)}
    got = _run(layer(cell, state=["h:h_next", "c:c_next"]), feeds)
    want = _run(layer(_cell()), feeds)
    for name in want:
        np.testing.assert_array_equal(got[name], want[name])


def test_a_step_of_a_gru_becomes_a_layer_that_runs_like_one() -> None:
    cell = parse(
        f"{HEADER} cell (float[B,{I}] x, float[B,{H}] h) => (float[B,{H}] Y) {{"
        " row = Constant <value_ints = [0]> () x1 = Unsqueeze (x, row) h1 = Unsqueeze (h, row)"
        f" none = Identity (x1) Y1, Y2 = GRU <hidden_size = {H}> (x1, W, R, , , h1)"
        " Y = Squeeze (Y2, row) }",
        W=np.full((1, 3 * H, I), 0.1, np.float32),
        R=np.full((1, 3 * H, H), 0.2, np.float32),
    )
    x = np.random.default_rng(2).standard_normal((6, 2, I)).astype(np.float32)
    got = _run(layer(cell), {"x": x})
    assert set(got) == {"Y", "Y_2"}, "the state after the last step keeps its name"
    np.testing.assert_array_equal(got["Y_2"][-1], got["Y"])
    whole = parse(
        f"{HEADER} g (float[T,B,{I}] x) => (float[T,D,B,{H}] Y) {{ Y = GRU <hidden_size = {H}> (x, W, R) }}",
        W=np.full((1, 3 * H, I), 0.1, np.float32),
        R=np.full((1, 3 * H, H), 0.2, np.float32),
    )
    np.testing.assert_allclose(got["Y_2"], _run(whole, {"x": x})["Y"][:, 0], atol=1e-6)


@pytest.mark.parametrize(
    ("cell", "found"),
    [
        ("g (float[B,3] x) => (float[B,3] y) { y = Neg (x) }", "1 input"),
        ("g (float[B,3] x, float[B,4] h) => (float[B,5] y) { y = Concat <axis = 1> (h, x) }", "4 units, and 'y' 5"),
        ("g (float[B,3] x, float[B,4] h) => (float[B,n] y) { y = Concat <axis = 1> (h, x) }", "4 units, and 'y' 7"),
        ("g (float[B,3] x, float[B,4] h) => (float[] y) { y = Concat <axis = 1> (h, x) }", "4 units, and 'y' 7"),
        ("g (float[B,3] x, float[B,4] h) => (float[B,4,n] y) { t = Shape (h) y = Expand (h, t) }", "'y' has 3 axes"),
        ("g (float[B,3] x, float[1,B,3] h) => (float[1,B,3] y) { y = Add (x, h) }", "'h' is"),
        ("g (float[B,3] x, float[B,n] h) => (float[B,n] y) { y = Neg (h) }", "'h' is"),
        ("g (float[B,3] x, int64[B,3] h) => (int64[B,3] y) { y = Neg (h) }", "'h' is"),
    ],
)
def test_refused(cell: str, found: str) -> None:
    with pytest.raises(CompileError, match=found):
        layer(parse(f"{HEADER} {cell}"))


def test_outputs_of_other_ranks_and_types_have_lengths_too() -> None:
    """A number for each row, a matrix for each row, and whole numbers."""
    cell = parse(
        f"{HEADER} cell (float[B,{I}] x, float[B,{I}] h)"
        f" => (float[B,{I}] h_next, float[B] total, float[B,2,{I}] twice, int64[B,{I}] whole) {{"
        " h_next = Add (x, h) axis = Constant <value_ints = [1]> () total = ReduceSum <keepdims = 0> (h_next, axis)"
        " row = Unsqueeze (h_next, axis) twice = Concat <axis = 1> (row, row) whole = Cast <to = 7> (h_next) }"
    )
    batch, lens = 2, (1, 3)
    x = (1 + np.random.default_rng(0).random((3, batch, I))).astype(np.float32)
    got = _run(layer(cell, lengths=True), {"x": x, "sequence_lens": np.array(lens, np.int32)})
    want = np.cumsum(x, axis=0)
    for row, n in enumerate(lens):
        want[n:, row] = 0
    assert got["total"].shape == (3, batch)
    np.testing.assert_allclose(got["Y"], want, rtol=1e-6)
    np.testing.assert_allclose(got["total"], want.sum(2), rtol=1e-6)
    np.testing.assert_allclose(got["twice"], np.stack([want, want], 2), rtol=1e-6)
    np.testing.assert_array_equal(got["whole"], want.astype(np.int64))


def test_lengths_of_an_output_of_unknown_rank() -> None:
    cell = _cell()
    cell.graph.output[2].type.tensor_type.ClearField("shape")
    layer(cell)
    with pytest.raises(CompileError, match="'carry' has no known shape"):
        layer(cell, lengths=True)


def test_two_inputs_that_are_no_states() -> None:
    with pytest.raises(CompileError, match="2 inputs are no states"):
        layer(_cell(), state={"h": "h_next"})


def test_public() -> None:
    assert rnnqc.layer is layer
