"""remove-sorting: removes sorting a batch by length around recurrent nodes.

What these would catch: a sort that stays although nobody sees it, or goes although somebody does; states or lengths of
other rows; a graph output that loses its name.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import onnx
import pytest

import rnnqc
from rnnqc.ir import Model
from rnnqc.passes import Canonicalize, PassManager, RemoveSorting
from tests.laws.parametrize import in_turn
from tests.passes.pass_testing import apply, nodes_of
from tests.runs.lowered import STOCK, run_both, session
from tests.runs.sessions import assert_same_bits, plain_session, run
from tests.subjects.protos import parse
from tests.subjects.torch.exports import exported, needed

HEAD = """<ir_version: 8, opset_import: ["": 17]> g (float[T, B, 2] X, int64[B] lens, float[1, B, 4] h0) => (Z)
<int64[1] zeroth = {0}, int64[1] one = {1}, int64 nothing = {0}, int64 step = {1}, int64[1] last = {-1},
 int64[1] two = {2}> {
  size = Shape (lens)
  ordered, p = TopK (lens, size)
  x = Gather <axis = 1> (X, p)
  h = Gather <axis = 1> (h0, p)
  L = Cast <to = 6> (ordered)
  count = Squeeze (size, zeroth)
  numbers = Range (nothing, count, step)
  empty = ConstantOfShape <value = int64[1] {0}> (size)
"""
INVERSE = "  q = ScatterElements (empty, p, numbers)\n"
LAYER = '  Y, Y_h = GRU <hidden_size = 4> (x, W, R, "", L, h)\n'
BODY = HEAD + INVERSE + LAYER
SEEN_BY_NOBODY = {
    "output": BODY + "Z = Gather <axis = 2> (Y, q)",
    "state": BODY + "Z = Gather <axis = 1> (Y_h, q)",
    "moved": BODY + "s = Squeeze (Y, one)  t = Transpose <perm = [1, 0, 2]> (s)  Z = Gather <axis = 0> (t, q)",
    "used on": BODY + "s = Gather <axis = 2> (Y, q)  Z = Relu (s)",
    "sizes": BODY + "s = Gather <axis = 2> (Y, q)  n = Shape (Y)  Z = Reshape (s, n)",
    "states and output": BODY + "a = Gather <axis = 2> (Y, q)  b = Gather <axis = 1> (Y_h, q)  Z = Add (a, b)",
}
SEEN = {
    "sorted output": BODY + "a = Gather <axis = 2> (Y, q)  b = Gather <axis = 1> (Y_h, q)  Z = Identity (Y)",
    "never put back": HEAD + INVERSE + LAYER + "Z = Relu (Y)",
    "no inverse": HEAD + LAYER + "Z = Gather <axis = 2> (Y, p)",
    "along another axis": BODY + "Z = Gather <axis = 0> (Y, q)",
    "rows taken together": BODY + "s = ReduceMax <axes = [2], keepdims = 1> (Y)  Z = Gather <axis = 2> (s, q)",
    "states of other rows": HEAD
    + INVERSE
    + '  Y, Y_h = GRU <hidden_size = 4> (x, W, R, "", L, h0)  Z = Gather <axis = 2> (Y, q)',
    "lengths of other rows": HEAD
    + INVERSE
    + '  M = Cast <to = 6> (lens)  Y, Y_h = GRU <hidden_size = 4> (x, W, R, "", M, h)  Z = Gather <axis = 2> (Y, q)',
    "some rows": BODY.replace("(lens, size)", "(lens, two)") + "Z = Gather <axis = 2> (Y, q)",
    "other places": BODY.replace("(nothing, count, step)", "(step, count, step)") + "Z = Gather <axis = 2> (Y, q)",
    "places": BODY + "s = Gather <axis = 2> (Y, q)  f = Cast <to = 1> (p)  u = Unsqueeze (f, one)  Z = Add (s, u)",
    "lengths in order": BODY + "s = Gather <axis = 2> (Y, q)  f = Cast <to = 1> (ordered)  u = Unsqueeze (f, one)"
    "  Z = Add (s, u)",
}


def loaded(text: str) -> Model:
    rng = np.random.default_rng(0)
    w, r = (rng.uniform(-1, 1, s).astype(np.float32) for s in ((1, 12, 2), (1, 12, 4)))
    proto = parse(f"{text} }}", W=w, R=r)
    proto.graph.output[0].type.tensor_type.elem_type = onnx.TensorProto.FLOAT
    model = Model.load(onnx.shape_inference.infer_shapes(proto))
    PassManager([Canonicalize()]).run(model)
    return model


def feeds() -> dict[str, Any]:
    rng = np.random.default_rng(1)
    return {
        "X": rng.standard_normal((5, 4, 2)).astype(np.float32),
        "lens": np.array([2, 5, 0, 5]),
        "h0": rng.uniform(-1, 1, (1, 4, 4)).astype(np.float32),
    }


@pytest.mark.parametrize("name", SEEN_BY_NOBODY)
def test_goes(name: str) -> None:
    model = loaded(SEEN_BY_NOBODY[name])
    result = apply(RemoveSorting(), model, [feeds()])
    assert result.modified and [r.op for r in result.remarks] == ["GRU"]
    assert not nodes_of(model, "TopK", "ScatterElements", "Gather")
    assert [o.name for o in model.proto.graph.output] == ["Z"]


@pytest.mark.parametrize("name", SEEN)
def test_stays(name: str) -> None:
    model = loaded(SEEN[name])
    text = model.proto.SerializeToString(deterministic=True)
    assert not RemoveSorting()(model).modified
    assert model.proto.SerializeToString(deterministic=True) == text


@cache
def export(cell: str, layers: int, both: bool, batch_first: bool, used: str) -> tuple[onnx.ModelProto, Any, Any]:
    """A packed sequence whose lengths are in no order."""
    torch = needed("exports of packed sequences in no order")

    class Net(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            options = {"num_layers": layers, "bidirectional": both, "batch_first": batch_first}
            self.layer = getattr(torch.nn, cell)(5, 6, **options)

        def forward(self, x: Any, lens: Any) -> Any:
            options = {"batch_first": batch_first}
            packed = torch.nn.utils.rnn.pack_padded_sequence(x, lens, enforce_sorted=False, **options)
            y, states = self.layer(packed)
            flat = states if isinstance(states, tuple) else (states,)
            padded = torch.nn.utils.rnn.pad_packed_sequence(y, **options)[0] if used != "states" else None
            return {"all": (padded, *flat), "states": flat, "output": padded}[used]

    torch.manual_seed(0)
    x, lens = torch.randn(4, 7, 5), torch.tensor([2, 7, 4, 7])
    x = x if batch_first else x.transpose(0, 1)
    axes = {"x": {0: "B", 1: "T"} if batch_first else {0: "T", 1: "B"}, "lens": {0: "B"}}
    net = Net()
    proto = exported(net, (x, lens), False, input_names=["x", "lens"], dynamic_axes=axes)
    with torch.no_grad():
        return proto, {"x": x.numpy(), "lens": lens.numpy()}, net(x, lens)


USED = [(1, False, "all"), (1, True, "output"), (2, True, "all"), (2, False, "states"), (2, True, "output")]


@pytest.mark.few(2)
@in_turn(made=[*USED, *USED], cell=["LSTM", "GRU", "RNN"], batch_first=[False, True])
def test_exports_of_torch(cell: str, made: tuple[int, bool, str], batch_first: bool) -> None:
    """PyTorch cannot export a layer of which the states alone are used where it is the only one."""
    layers, both, used = made
    proto, fed, wanted = export(cell, layers, both, batch_first, used)
    model = Model.load(proto)
    PassManager([Canonicalize()]).run(model)
    assert nodes_of(model, "TopK")
    result = apply(RemoveSorting(), model, [fed])
    assert result.statistics["layers"] == layers
    assert not nodes_of(model, "TopK", "ScatterElements", "Range")
    values: Sequence[Any] = wanted if isinstance(wanted, tuple) else (wanted,)
    for got, expected in zip(run(plain_session(model.proto), fed).values(), values, strict=True):
        np.testing.assert_allclose(got, expected.numpy(), atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("cell", ["LSTM", "GRU"])
def test_lowered_results_are_the_same_bits(cell: str) -> None:
    """Rows of a lowered layer do not depend on each other, nor on their order."""
    proto, fed, _ = export(cell, 2, True, True, "all")
    model = Model.load(proto)
    PassManager([Canonicalize(), RemoveSorting()]).run(model)
    with_sort, without = rnnqc.lower(proto, strict=True).proto, rnnqc.lower(model.proto, strict=True).proto
    assert len(without.graph.node) < len(with_sort.graph.node)
    asked = rnnqc.lower(proto, strict=True, remove_sorting=True)
    assert [n.op_type for n in asked.proto.graph.node] == [n.op_type for n in without.graph.node]
    assert not [w for w in asked.report.warnings if "remove-sorting" in w]
    assert_same_bits(run(session(with_sort, STOCK), fed), run(session(asked.proto, STOCK), fed), "remove_sorting=True")
    assert_same_bits(run_both(with_sort, fed), run_both(without, fed), "without the sort")


@pytest.mark.few(1)
@pytest.mark.parametrize("name", ["never put back", "no inverse"])
def test_who_asks_is_told_that_a_sort_stays(name: str) -> None:
    made = rnnqc.lower(loaded(SEEN[name]).proto, remove_sorting=True)
    assert [w for w in made.report.warnings if w.startswith("remove-sorting changes nothing")]
    assert "TopK" in [n.op_type for n in made.proto.graph.node]
