"""simplify-sequences: the product with the input in front of a layer becomes its W.

What these would catch: another result than with the product in front, an identity matrix that stays in the file as W, a
bias that is lost or added to the wrong gate, a view that mixes rows or columns and is moved all the same.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
import pytest

from rnnqc.ir import Model, constant_array
from rnnqc.passes import Canonicalize, PassManager, SimplifySequences
from tests.laws.parametrize import every_pair
from tests.passes.pass_testing import apply, nodes_of
from tests.subjects.protos import parse

INPUTS, H, T, BATCH = 3, 4, 5, 2
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
NODES = "p = MatMul ({x}, V)  q = {product}  {views}  y, y_h = {op} <{attributes}> ({z}, W, R{b})"
VIEWS = {
    "none": ("float[5, 2, 3] x", "", "q"),
    "transposed": ("float[2, 5, 3] x", "z = Transpose <perm = [1, 0, 2]> (q)", "z"),
    "one step": ("float[5, 2, 3] x", "e = Gather <axis = 0> (q, second)  z = Unsqueeze (e, zero)", "z"),
    "cast": ("float[5, 2, 3] x", "z = Cast <to = 1> (q)", "z"),
    "rows": ("float[10, 3] x", "z = Reshape (q, into)", "z"),
    "sliced": ("float[7, 2, 3] x", "z = Slice (q, zero, five, zero)", "z"),
    "squeezed": ("float[5, 1, 2, 3] x", "i = Identity (q)  s = Squeeze (i, first)  z = Concat <axis = 1> (s)", "z"),
}
PRODUCTS = {
    "alone": "Identity (p)",
    "bias": "Add (p, c)",
    "bias first": "Add (one, p)",
}


def canonical(proto: onnx.ModelProto) -> Model:
    model = Model.load(proto)
    PassManager([Canonicalize()]).run(model)
    model.infer_shapes()
    return model


def layer(op: str, views: str, product: str, attributes: str = "", *, bias: bool = True, **changed: object) -> Model:
    """A layer whose W chooses columns of a product, in another order and with signs."""
    rng = np.random.default_rng(0)
    rows = GATES[op] * H
    x, made, z = VIEWS[views]
    shape = "10, 3" if views == "rows" else ""
    head = f'<ir_version: 10, opset_import: ["": 17]>\ng ({x}) => (float[A, 1, C, 4] y, float[1, C, 4] y_h)'
    text = NODES.format(
        x="x", product=PRODUCTS[product], views=made, op=op, z=z, b=", B" if bias else "",
        attributes=", ".join(["hidden_size = 4", *([attributes] if attributes else [])]),
    )  # fmt: skip
    assert shape or views != "rows"
    chooses = np.eye(rows, dtype=np.float32)[rng.permutation(rows)] * rng.choice([-1, 1], (rows, 1)).astype(np.float32)
    arrays: dict[str, object] = {
        "V": rng.normal(0, 0.5, (INPUTS, rows)), "W": chooses[np.newaxis], "R": rng.normal(0, 0.5, (1, rows, H)),
        "B": rng.normal(0, 0.5, (1, 2 * rows)), "c": rng.normal(0, 0.5, rows), "one": np.array([0.25]), **changed,
    }  # fmt: skip
    floats = {k: np.asarray(v, np.float32) for k, v in arrays.items()}
    whole = {"zero": [0], "first": [1], "five": [5], "second": 1, "into": [T, -1, rows]}
    return canonical(
        parse(f"{head} {{\n{text}\n}}", **floats, **{k: np.asarray(v, np.int64) for k, v in whole.items()})
    )


@every_pair(
    op=["LSTM", "GRU", "RNN"], views=list(VIEWS), product=list(PRODUCTS), bias=[True, False],
    attributes=["", 'direction = "reverse"'],
)  # fmt: skip
def test_fires(op: str, views: str, product: str, bias: bool, attributes: str) -> None:
    """The layer has the product's matrix as its W; what it computes is the same within float rounding."""
    model = layer(op, views, product, attributes, bias=bias)
    assert apply(SimplifySequences(), model).statistics["projections"] == 1
    (node,) = nodes_of(model, op)
    weights = constant_array(node.inputs[1])
    assert weights is not None
    assert weights.shape == (1, GATES[op] * H, INPUTS)
    assert not nodes_of(model, "MatMul")


def test_the_reset_gate_of_a_gru_keeps_its_own_bias() -> None:
    """With linear_before_reset the bias of R is inside the reset, that of the product outside."""
    model = layer("GRU", "transposed", "bias", "linear_before_reset = 1")
    assert apply(SimplifySequences(), model).statistics["projections"] == 1


def test_both_directions_of_a_bidirectional_layer() -> None:
    """Exporters write two layers; each takes the product that leads to it, and the source is read by both."""
    text = """<ir_version: 10, opset_import: ["": 17]>
    g (float[5, 2, 3] x) => (float[5, 1, 2, 4] y, float[5, 1, 2, 4] z) {
      p = MatMul (x, V)  q = Add (p, c)  y = LSTM <hidden_size = 4> (q, W, R)
      z = LSTM <hidden_size = 4, direction = "reverse"> (q, W, R) }"""
    rng = np.random.default_rng(0)
    shapes = {"V": (3, 16), "c": (16,), "R": (1, 16, 4)}
    arrays = {k: rng.normal(0, 0.5, s).astype(np.float32) for k, s in shapes.items()}
    model = canonical(parse(text, **arrays, W=np.eye(16, dtype=np.float32)[np.newaxis]))
    assert apply(SimplifySequences(), model).statistics["projections"] == 2
    assert not nodes_of(model, "MatMul", "Add")
    assert [n.inputs[0].name for n in nodes_of(model, "LSTM")] == ["x", "x"]
    assert len({n.inputs[1].name for n in nodes_of(model, "LSTM")}) == 1


def declined(text: str, changed: Sequence[tuple[str, object]] = ()) -> None:
    """A layer over the nodes in `text`, which compute `z` from the matmul `q [5,2,16]`, stays as it is."""
    rng = np.random.default_rng(0)
    graph = f"""<ir_version: 10, opset_import: ["": 17]>
    g (float[5, 2, 3] x) => (float[A, 1, B, 4] y) {{
      q = MatMul (x, V)  {text}  y = LSTM <hidden_size = 4> (z, W, R) }}"""
    arrays = {
        "V": rng.normal(0, 0.5, (3, 16)), "W": np.eye(16)[np.newaxis], "R": rng.normal(0, 0.5, (1, 16, 4)),
        "c": rng.normal(0, 0.5, (2, 16)), **dict(changed),
    }  # fmt: skip
    whole = {"into": [5, 2, 16], "turned": [5, 16, 2], "ends": [16], "steps": [-1], "starts": [-1], "axes": [2]}
    whole |= {"least": [-(2**31)]}
    model = canonical(
        parse(
            graph,
            **{k: np.asarray(v, np.float32) for k, v in arrays.items()},
            **{k: np.asarray(v, np.int64) for k, v in whole.items()},
        )
    )
    before = model.proto.SerializeToString(deterministic=True)
    assert SimplifySequences()(model).statistics["projections"] == 0
    assert model.proto.SerializeToString(deterministic=True) == before


@pytest.mark.parametrize(
    "text",
    [
        "z = Add (q, c)",
        "z = Mul (q, q)",
        "z = Relu (q)",
        "z = Slice (q, starts, least, axes, steps)",
        "s = Reshape (q, turned)  z = Reshape (s, into)",
        "s = Transpose <perm = [0, 2, 1]> (q)  z = Transpose <perm = [0, 2, 1]> (s)",
    ],
)
def test_declines_what_is_no_view_of_rows(text: str) -> None:
    declined(text)


@pytest.mark.parametrize("change", ["two in a row", "a half", "none"])
def test_declines_weights_that_choose_no_columns(change: str) -> None:
    weights = np.eye(16)[np.newaxis]
    if change == "two in a row":
        weights[0, 0, 5] = -1
    else:
        weights[0, 0, 0] = 0.5 if change == "a half" else 0
    declined("z = Identity (q)", [("W", weights)])


def test_declines_a_factor_that_is_an_input() -> None:
    model = layer("LSTM", "none", "alone")
    proto = model.proto
    proto.graph.initializer.remove(next(t for t in proto.graph.initializer if t.name == "V"))
    proto.graph.input.append(onnx.helper.make_tensor_value_info("V", 1, [INPUTS, 16]))
    assert SimplifySequences()(canonical(proto)).statistics["projections"] == 0
