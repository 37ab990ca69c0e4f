"""fuse-views: one node for operators that move elements, native and stock.

What these would catch: an element in another place with the native library or without, a node that waits for a value
that an output of it does not need (a cycle), a body that is called by a node of another configuration, a model that
gets functions and needs no library, a name without a kernel.
"""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from hypothesis import given, settings

import rnnqc
from rnnqc.cells.rearrange_nodes import ALIASES, is_rearrange_node
from rnnqc.data.state_hints import states_of
from rnnqc.ir import DOMAIN, Model
from rnnqc.passes import FuseViews, JoinViews
from rnnqc.passes.render.lut.emit_tables import PREFIX
from tests.native.quant_lstm_cases import native_session
from tests.passes.pass_testing import nodes_of
from tests.passes.views.random_views import feeds_of_views, random_views
from tests.runs.sessions import assert_same_bits, plain_session, run
from tests.subjects.packed_streams import cut_caches, packed_step
from tests.subjects.protos import parse

CUT = "t = Transpose <perm = [0, 1, 3, 2]> (s) u = Reshape (t, flat) "
OPERANDS = {
    "flat24": [2, 4],
    "flat44": [4, 4],
    "many": [5000, 8],
    "nine": [1, 2, 2, 2, 2, 1, 2, 1, 1],
    "tall": [2, 20000],
    "flat": [4, 8],
    "fours": [1, 1, 1, 1],
    "one": [1],
    "eight": [8],
}


def lowered(
    text: str, inputs: str = "float[1,2,8,2] s, float[1,8] a", outputs: str = "o", **operands: list[int]
) -> Model:
    """A model with a function of rnnqc beside these nodes."""
    arrays = {name: np.array(value) for name, value in {**OPERANDS, **operands}.items()}
    proto = parse(f'<ir_version: 10, opset_import: ["": 17]> g ({inputs}) => ({outputs}) {{ {text} }}', **arrays)
    return with_function(proto)


def with_function(proto: onnx.ModelProto) -> Model:
    identity = onnx.helper.make_node("Identity", ["X"], ["Y"])
    imports = [onnx.helper.make_opsetid("", 17)]
    function = onnx.helper.make_function(DOMAIN, "QuantRNNCell", ["X"], ["Y"], [identity], imports)
    model = Model.load(proto)
    model.functions.append(function)
    return model


def operators(model: Model) -> list[str]:
    """The operators, without the numbers of their names."""
    return sorted("Rearrange" if is_rearrange_node(n.op) else n.op for n in nodes_of(model))


def assert_moves_the_same(proto: onnx.ModelProto, fused: onnx.ModelProto) -> None:
    feeds = feeds_of_views(proto)
    expected = run(plain_session(proto), feeds)
    assert_same_bits(expected, run(plain_session(fused), feeds), "stock")
    assert_same_bits(expected, run(native_session(fused), feeds), "native")


FIRES = {
    "states that are cut from a packed one": (
        f"{CUT} w, x, y, z = Split <axis = 0> (u, fours) p = Add (w, x) q = Mul (y, z) o = Sub (p, q)",
        ["Add", "Mul", "Rearrange", "Sub"],
    ),
    "a packed state": (
        """n = Neg (a) j = Concat <axis = 1> (a, n) r = Reshape (j, flat44) v = Transpose <perm = [1, 0]> (r)
        o = Abs (v)""",
        ["Abs", "Neg", "Rearrange"],
    ),
    "outputs that wait for other values": (
        # u is there before k, which c waits for: one node for both would wait for what it makes itself.
        f"""{CUT} f, g, h, i = Split <axis = 0> (u, fours) k = Add (f, a) l = Reshape (k, flat24)
        c = Concat <axis = 0> (l, l) o = Abs (c)""",
        ["Abs", "Add", "Rearrange", "Rearrange"],
    ),
    "an output of the model": (f"{CUT} o = Transpose <perm = [1, 0]> (u)", ["Rearrange"]),
}
"""Nodes, and the operators that are left."""


@pytest.mark.parametrize("case", FIRES)
def test_fires(case: str) -> None:
    text, left = FIRES[case]
    model = lowered(text)
    before = model.proto
    assert FuseViews().run(model).modified
    model.check()
    assert operators(model) == left
    assert_moves_the_same(before, model.proto)
    assert not FuseViews().run(model).modified


KEPT = {
    "one operator": "t = Transpose <perm = [0, 1, 3, 2]> (s) o = Abs (t)",
    "no operand of integers": "t = Transpose <perm = [1, 0]> (a) u = Concat <axis = 0> (t, t) o = Abs (u)",
    "integers": "i = Cast <to = 7> (s) t = Transpose <perm = [0, 1, 3, 2]> (i) u = Reshape (t, flat) o = Abs (u)",
    "many dimensions": "t = Reshape (s, nine) u = Transpose <perm = [8, 7, 6, 5, 4, 3, 2, 1, 0]> (t) o = Abs (u)",
    "many elements": """e = Expand (a, many) t = Transpose <perm = [1, 0]> (e) u = Reshape (t, tall) w = Neg (e)
    x = Add (e, w) o = Abs (u)""",
}


@pytest.mark.parametrize("case", KEPT)
def test_keeps(case: str) -> None:
    model = lowered(KEPT[case])
    before = model.proto.SerializeToString(deterministic=True)
    assert not FuseViews().run(model).modified
    assert model.proto.SerializeToString(deterministic=True) == before


def test_a_model_without_functions_stays() -> None:
    """Such a model does not need the native library."""
    model = lowered(FIRES["states that are cut from a packed one"][0])
    model.functions.clear()
    assert not FuseViews().run(model).modified


def test_as_many_as_there_are_names() -> None:
    """Equal regions share a function; those that save most come first."""
    makes = [f"t{k} = Transpose <perm = [1, 0]> (x{k}) o{k} = Reshape (t{k}, flat{k})" for k in range(ALIASES + 5)]
    more = "p = Transpose <perm = [1, 0]> (x0) q = Reshape (p, flat0) r = Transpose <perm = [1, 0]> (q) z = Neg (r)"
    shapes = [f"float[2,{k + 2}] x{k}" for k in range(ALIASES + 5)]
    flat = {f"flat{k}": [k + 2, 2] if k == 0 else [1, 2 * k + 4] for k in range(ALIASES + 5)}
    model = lowered(
        " ".join([*makes, *(f"y{k} = Abs (o{k})" for k in range(ALIASES + 5)), more]),
        ", ".join(shapes),
        ", ".join([*(f"y{k}" for k in range(ALIASES + 5)), "z"]),
        **flat,
    )
    before = model.proto
    assert FuseViews().run(model).modified
    names = [f.name for f in model.functions if is_rearrange_node(f.name)]
    assert len(set(names)) == len(names) == ALIASES
    assert operators(model).count("Transpose") == 5
    assert_moves_the_same(before, model.proto)


@settings(max_examples=settings().max_examples)
@given(random_views())
def test_random_views(proto: onnx.ModelProto) -> None:
    model = with_function(proto)
    model.remove_dead()
    FuseViews().run(model)
    model.check()
    assert_moves_the_same(proto, model.proto)
    joined = with_function(proto)
    JoinViews().run(joined)
    FuseViews().run(joined)
    assert_moves_the_same(proto, joined.proto)


def test_a_body_of_another_configuration_fails() -> None:
    """Models that were joined and lost a function: stock fails, and the native library runs what the node says."""
    model = lowered(FIRES["a packed state"][0])
    before = model.proto
    assert FuseViews().run(model).modified
    joined = model.proto
    (node,) = (n for n in joined.graph.node if is_rearrange_node(n.op_type))
    next(a for a in node.attribute if a.name == "configuration").i += 1234
    feeds = feeds_of_views(before)
    with pytest.raises(Exception, match="two_lowered_models_have_different_functions_of_this_name"):
        run(plain_session(joined), feeds)
    assert_same_bits(run(plain_session(before), feeds), run(native_session(joined), feeds), "native")


def test_joined_models_get_their_kernels_again() -> None:
    fused = rnnqc.lower(packed_step()).proto
    prefixed = onnx.compose.add_prefix(fused, "a_")
    assert not any(n.op_type.startswith("Rearrange") for n in prefixed.graph.node)
    named = rnnqc.name_functions(prefixed)
    names = [sorted(n.op_type for n in p.graph.node if is_rearrange_node(n.op_type)) for p in (fused, named)]
    assert names[0] == names[1]
    feeds = feeds_of_views(fused)
    expected = {f"a_{name}": value for name, value in run(plain_session(fused), feeds).items()}
    feeds = {f"a_{name}": value for name, value in feeds.items()}
    assert_same_bits(expected, run(plain_session(prefixed), feeds), "stock, joined")
    assert_same_bits(expected, run(native_session(named), feeds), "native")


def test_caches() -> None:
    """A half that needs a cache alone does not wait for the frames."""
    fused = rnnqc.lower(cut_caches()).proto
    operators = [n.op_type for n in fused.graph.node if not n.name.startswith(PREFIX)]
    assert sum(map(is_rearrange_node, operators)) == 1
    assert (operators.count("Slice"), operators.count("Reshape")) == (2, 0)
    feeds = feeds_of_views(cut_caches())
    assert_same_bits(run(plain_session(fused), feeds), run(native_session(fused), feeds), "native")


def test_a_lowered_stream() -> None:
    """Its state goes through such a node at both ends, and is known as one; lowering it again changes nothing."""
    proto = packed_step()
    fused = rnnqc.lower(proto).proto
    assert sum(is_rearrange_node(n.op_type) for n in fused.graph.node) == 2
    left = {n.op_type for n in fused.graph.node if not n.name.startswith(PREFIX)}
    assert not left & {"Transpose", "Slice", "Split", "Unsqueeze", "Reshape"}
    assert states_of(fused) == states_of(proto) == {"s": "n"}
    feeds = feeds_of_views(proto)
    assert_same_bits(run(plain_session(fused), feeds), run(native_session(fused), feeds), "native")
    assert rnnqc.lower(fused).proto.SerializeToString(deterministic=True) == fused.SerializeToString(deterministic=True)
    assert not any(is_rearrange_node(n.op_type) for n in rnnqc.lower(proto, form="integer").proto.graph.node)
