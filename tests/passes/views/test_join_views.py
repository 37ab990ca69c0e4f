"""join-views: fewer operators, every element where it was.

What these would catch: an element in another place, a region that is replaced by as many operators, a shape that is
believed though nothing holds a run to it, an operator that is taken for one that only moves, an output that loses its
name.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rnnqc.cells.stages import FusedCell
from rnnqc.cells.types import fused_type
from rnnqc.ir import Model, shape_of
from rnnqc.lowering.lower import lower
from rnnqc.passes import Canonicalize, JoinViews, PassManager
from rnnqc.passes.views.regions import LARGEST
from rnnqc.passes.views.shapes import infer_shapes_of_values
from rnnqc.proto.shape_inference import infer_shapes
from tests.generate.layers import RecurrentCase, stacked_model
from tests.passes.pass_testing import apply, nodes_of
from tests.passes.views.random_views import feeds_of_views, random_views
from tests.runs.sessions import Array, assert_same_bits, plain_session, run
from tests.subjects.protos import parse

HEAD = '<ir_version: 10, opset_import: ["": 17]> g (float[1,2,128,2] s, float[1,128] a, float[1,128] b, float[6] v)'
OPERANDS = {
    "zero": [0], "one": [1], "two": [2], "three": [3], "four": [4], "last": [-1], "end": [2**62], "ends": [1, 3],
    "swapped": [1, 0], "flat": [-1], "rows": [2, 3], "columns": [3, 2],
}  # fmt: skip
PACKED = "".join(
    f"x{o} = Slice (s, {first}, {end}, one) y{o} = Slice (x{o}, {k}, {n}, three) z{o} = Squeeze (y{o}, ends) "
    f"{o} = Relu (z{o}) "
    for o, first, end, k, n in (
        ("p", "one", "two", "one", "two"),
        ("q", "one", "two", "zero", "one"),
        ("r", "zero", "one", "one", "two"),
        ("t", "zero", "one", "zero", "one"),
    )
)
FIRES = {
    "states that are cut from a packed one": (
        "float[1,128] p, float[1,128] q, float[1,128] r, float[1,128] t",
        PACKED,
        ["Relu", "Relu", "Relu", "Relu", "Reshape", "Split", "Transpose"],
    ),
    "a packed state": (
        "float[1,2,128,2] o",
        """c = Neg (a) d = Neg (b) a1 = Unsqueeze (a, one) b1 = Unsqueeze (b, one) c1 = Unsqueeze (c, one)
        d1 = Unsqueeze (d, one) h = Concat <axis = 1> (a1, b1) k = Concat <axis = 1> (c1, d1)
        h1 = Unsqueeze (h, last) k1 = Unsqueeze (k, last) o = Concat <axis = -1> (h1, k1)""",
        ["Concat", "Neg", "Neg", "Reshape", "Transpose"],
    ),
    "axes that come and go": (
        "float[1,128] o",
        "t = Unsqueeze (a, zero) u = Transpose <perm = [1, 0, 2]> (t) w = Squeeze (u, zero) o = Relu (w)",
        ["Relu"],
    ),
    "an Identity of the exporter, before an output": (
        "float[1,128] o",
        "t = Relu (a) u = Identity (t) o = Identity (u)",
        ["Relu"],
    ),
    "a cut of a cut": (
        "float[2] o",
        "t = Slice (v, one, end, zero) u = Slice (t, one, three, zero) o = Relu (u)",
        ["Relu", "Slice"],
    ),
    "every other element, backwards": (
        "float[3] o",
        "t = Slice (v, last, minus, zero, last) u = Slice (t, zero, end, zero, two) o = Relu (u)",
        ["Relu", "Slice"],
    ),
    "a transposition of a transposition": (
        "float[6] o",
        """t = Reshape (v, rows) u = Transpose <perm = [1, 0]> (t) w = Transpose <perm = [1, 0]> (u)
        x = Reshape (w, flat) o = Relu (x)""",
        ["Relu"],
    ),
    "channels that are shuffled": (
        "float[1,256] o",
        """t = Unsqueeze (a, one) u = Unsqueeze (b, one) w = Concat <axis = 1> (t, u)
        x = Transpose <perm = [0, 2, 1]> (w) y = Flatten <axis = 1> (x) o = Relu (y)""",
        ["Concat", "Relu", "Reshape", "Transpose"],
    ),
    "windows": (
        "float[4,3] o",
        "t = Unsqueeze (v, zero) u = Gather <axis = 1> (t, windows) w = Squeeze (u, zero) o = Relu (w)",
        ["Gather", "Relu"],
    ),
    "rows that are written and read": (
        "float[1,128] o, float[2,128] n",
        """t = Concat <axis = 0> (a, b) c = Neg (a) u = ScatterND (t, index, c) i = Gather (u, zero) o = Relu (i)
        n = ScatterND (u, index1, o)""",
        ["Concat", "Neg", "Relu"],
    ),
    "rows that are written at computed places": (
        # As torch's exporter writes an assignment to a part.
        "float[1,128] o, float[2,128] n",
        """t = Concat <axis = 0> (a, b) c = Neg (a) x = Add (index, index) u = ScatterND (t, x, c) i = Gather (u, zero)
        o = Relu (i) y = Add (index, index1) n = ScatterND (u, y, o)""",
        ["Concat", "Neg", "Relu"],
    ),
    "one row in place of the other": (
        "float[2,3] o",
        "r = Reshape (v, rows) t = Gather <axis = 0> (r, zero) w = Concat <axis = 0> (t, t) o = Relu (w)",
        ["Gather", "Relu"],
    ),
    "a Pad of nothing": ("float[1,128] o", "t = Pad (a, none) o = Relu (t)", ["Relu"]),
    "two names of one value": (
        "float[1,128] o, float[128,1] n",
        "t = Relu (a) o = Identity (t) u = Reshape (t, tall) w = Identity (u) n = Relu (w)",
        ["Relu", "Relu", "Reshape"],
    ),
    "two outputs of one value": (
        "float[128] o, float[128] n",
        "t = Relu (a) u = Unsqueeze (t, zero) o = Reshape (u, flat) w = Reshape (t, flat) n = Identity (w)",
        ["Identity", "Relu", "Reshape"],
    ),
    "a state from one call to the next": (
        "float[2,128] o, float[1,128] n",
        """c = Neg (b) t = Slice (a, zero, one, zero) o = Concat <axis = 0> (t, c) u = Slice (o, one, two, zero)
        w = Identity (u) n = Relu (w)""",
        ["Concat", "Neg", "Relu"],
    ),
    "branches": (
        "float[128] o",
        """m = ReduceMax <keepdims = 0> (a) y = Cast <to = 9> (m) o = If (y) <then_branch = t () => (float[128] r) {
        p = Unsqueeze (a, zero) q = Squeeze (p, zero) r = Reshape (q, flat) }, else_branch = e () => (float[128] k) {
        k = Squeeze (b, zero) }>""",
        ["Cast", "If", "ReduceMax", "Reshape", "Squeeze"],
    ),
}
"""Outputs, nodes, and the operators that stay."""
KEPT = {
    "an unknown size": "y = Unsqueeze (u, zero) z = Squeeze (y, zero) o = Relu (z)",
    "sizes that the file declares": "k = NonZero (a) y = Unsqueeze (k, zero) z = Squeeze (y, zero) o = Identity (z)",
    "indices that are no constants": """i = Cast <to = 7> (a) y = Gather (a, i) z = Gather <axis = 1> (y, i)
    o = Relu (z)""",
    "padding": "y = Pad (a, pads) z = Reshape (y, flat) o = Relu (z)",
    "a sum of what is written": 'y = ScatterND <reduction = "add"> (a, index, b) z = Reshape (y, flat) o = Relu (z)',
    "rows that are written twice": "y = ScatterND (a, twice, c) z = Reshape (y, flat) o = Relu (z)",
    "one operator": "y = Transpose <perm = [1, 0]> (a) o = Relu (y)",
    "constants alone": "y = Unsqueeze (one, zero) z = Squeeze (y, zero) o = Expand (a, z)",
    "text": "y = Unsqueeze (w, zero) z = Squeeze (y, zero) o = Identity (z)",
    "many elements": "y = Expand (l, many) z = Unsqueeze (y, zero) x = Squeeze (z, zero) o = Relu (x)",
    "a domain of its own": "y = my.Unsqueeze (a, zero) z = my.Squeeze (y, zero) o = Relu (z)",
    "a loop's state, of another size each time": """true = Constant <value = bool {1}> ()
    trips = Constant <value_int = 3> () o = Loop (trips, true, a) <body = t (int64 i, bool g, float[1,4] p) =>
    (bool g1, float[1,4] q) { g1 = Not (g) x = Concat <axis = 1> (p, p) y = Unsqueeze (x, zero)
    q = Squeeze (y, zero) }>""",
    # A pass that replaced the Identity by another one would never end.
    "a state that is an output of each step, too": """k = ReduceSum <keepdims = 0> (a, zero)
    f, o = Scan <num_scan_inputs = 1, body = t (float[4] p, float[4] x) => (float[4] q, float[4] r) {
        q = Add (p, x) r = Identity (q) }> (k, c)""",
}


def canonical(proto: onnx.ModelProto) -> Model:
    """The model as the pass gets it."""
    model = Model.load(proto)
    PassManager([Canonicalize()]).run(model)
    return model


def operands() -> dict[str, Array]:
    """Constants for the models of this file."""
    made = {name: np.array(value) for name, value in OPERANDS.items()}
    more: dict[str, Any] = {
        "minus": [-(2**62)], "windows": np.arange(4)[:, None] + np.arange(3), "index": [[0]], "index1": [[1]],
        "twice": [[0], [0]], "none": [0, 0, 0, 0], "pads": [0, 0, 0, 1], "tall": [128, 1], "many": [LARGEST + 1],
    }  # fmt: skip
    return made | {name: np.array(value) for name, value in more.items()}


@pytest.mark.parametrize("case", FIRES)
def test_fires(case: str) -> None:
    """`apply` compares bits, runs the checker, and runs the pass twice."""
    outputs, nodes, left = FIRES[case]
    model = canonical(parse(f"{HEAD} => ({outputs}) {{ {nodes} }}", **operands()))
    assert apply(JoinViews(), model).modified
    assert sorted(n.op for n in nodes_of(model)) == left


@pytest.mark.parametrize("case", KEPT)
def test_keeps(case: str) -> None:
    inputs = "float[1,4] a, float[1,4] b, float[2,4] c, float[N,4] u, float[1] l, string[2] w, float[1,4] t"
    head = f'<ir_version: 10, opset_import: ["": 17, "my": 1]> g ({inputs}) => (o)'
    proto = parse(f"{head} {{ {KEPT[case]} }}", **operands())
    if case == "sizes that the file declares":
        proto.graph.value_info.append(onnx.helper.make_tensor_value_info("k", onnx.TensorProto.INT64, [2, 4]))
    model = Model.load(proto)
    before = model.proto.SerializeToString(deterministic=True)
    assert not JoinViews().run(model).modified
    assert model.proto.SerializeToString(deterministic=True) == before


def test_nodes_of_cells_stay() -> None:
    """`dump` and verification know them by name."""
    proto = parse(
        f"{HEAD} => (float[1,128] o) {{ t = Unsqueeze (a, zero) u = Squeeze (t, zero) o = Relu (u) }}", **operands()
    )
    proto.graph.node[0].metadata_props.add(key="rnnqc.cell", value="the_lstm.forward")
    assert not JoinViews().run(canonical(proto)).modified


def test_halves_that_overlap_take_no_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables and differences of their entries are read so: two outputs need at least two operators."""
    searched: list[object] = []
    monkeypatch.setattr("rnnqc.passes.views.plans.from_any", lambda *_, **__: searched.append(1))
    proto = parse(
        f"""{HEAD} => (float[1,127] o, float[1,127] p) {{ t = Slice (a, zero, last, one)
        u = Slice (a, one, end, one) o = Relu (t) p = Relu (u) }}""",
        **operands(),
    )
    assert not JoinViews().run(canonical(proto)).modified
    assert not searched


def test_shapes_of_a_stack_are_inferred_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of the last layer follow from the input of the first, without a look into functions."""
    runs: list[onnx.ModelProto] = []

    def counted(proto: onnx.ModelProto) -> onnx.ModelProto:
        runs.append(proto)
        return infer_shapes(proto)

    layers = [RecurrentCase(I=4, H=4, outputs=("Y",), dynamic_time=True, dynamic_batch=True)] * 3
    model = Model.load(lower(stacked_model(layers)))
    assert [type(c) for c in model.cells.values()] == [FusedCell] * 3
    monkeypatch.setattr("rnnqc.ir.model.infer_shapes", counted)
    infer_shapes_of_values(model)
    assert len(runs) == 1 and not any(fused_type(f.name) for f in runs[0].functions)
    assert shape_of(model.graph.outputs[0]) == ["T", "B", 4]


def test_unused_operators_of_a_region_that_stays() -> None:
    """A plan must not count them as saved."""
    constants = {**operands(), "again": np.zeros(2, np.int64)}
    proto = parse(
        f"""{HEAD} => (float[1,2,128,1] o) {{ t = Gather <axis = 1> (s, again) u = Slice (t, zero, one, three)
        unused = Reshape (s, flat) other = Reshape (s, flat) o = Relu (u) }}""",
        **constants,
    )
    assert not JoinViews().run(Model.load(proto)).modified


def test_a_constant_may_be_an_operand_and_be_moved() -> None:
    """Its numbers stand for its elements where it is moved, and it is itself where it says what is moved."""
    proto = parse(
        """<ir_version: 10, opset_import: ["": 13]> g (float[A,8] x) => (int64[3] o) {
        s = Shape (x) r = Slice (s, zero, one) o = Concat <axis = 0> (one, r, one) }""",
        zero=np.array([0]), one=np.array([1]),
    )  # fmt: skip
    model = canonical(proto)
    JoinViews()(model)
    assert run(plain_session(model.proto), {"x": np.zeros((5, 8), np.float32)})["o"].tolist() == [1, 5, 1]


@settings(max_examples=max(15, settings().max_examples))
@given(st.one_of(random_views(), random_views(onnx.TensorProto.INT64)))
def test_random_views(proto: onnx.ModelProto) -> None:
    """Random chains and bundles give the same bits with no more operators, and with the fewest at the second run."""
    feeds = feeds_of_views(proto)
    model = Model.load(proto)
    model.remove_dead()
    before = len(model.graph.nodes)
    result = JoinViews().run(model)
    model.check()
    assert (len(model.graph.nodes) < before) == result.modified
    assert_same_bits(run(plain_session(proto), feeds), run(plain_session(model.proto), feeds), "views")
    assert not JoinViews().run(model).modified
