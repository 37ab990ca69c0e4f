"""The editable model: nothing is lost on the way in and out, and edits keep the graph sound.

What these would catch: documentation, metadata or unusual fields that graphsurgeon drops; recursion in sorting; an
invariant that `check` does not look at; dead code removal that takes what a subgraph still uses.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx_graphsurgeon as gs  # noqa: TID251 - what rnnqc.ir is compared with
import pytest
from conftest import SHARED_MISSING, shared_folder
from onnx import AttributeProto, TensorProto, helper, numpy_helper

from rnnqc.cells.base import Cell
from rnnqc.errors import MEMORY, CompileError, StructureError
from rnnqc.ir import (
    CELL_TAG,
    CELLS_KEY,
    PROVENANCE_KEY,
    Constant,
    Model,
    Node,
    Variable,
    captured_values,
    captures,
    constant_array,
    display_name,
    dtype_of,
    export_nodes,
    graph_info,
    info,
    input_or_none,
    output_or_none,
    safe_name,
    shape_of,
    subgraphs,
    tensor_of,
)
from rnnqc.ir.objects import make_constant
from rnnqc.proto.shape_inference import infer_shapes
from tests.generate.layers import RecurrentCase
from tests.runs.sessions import plain_session, run
from tests.subjects.protos import differences, in_order, metadata, parse, rich_model

MODELS = Path(__file__).resolve().parents[2] / "models"
HEADER = '<ir_version: 10, opset_import: ["": 17]>'


def _lost(proto: onnx.ModelProto) -> list[str]:
    return differences(in_order(proto), in_order(Model.load(proto).proto))


def _chain() -> Model:
    return Model.load(
        parse(
            f"{HEADER} g (float[2] x) => (float[2] y) {{ a = Neg(x) b = Add(a, k) y = Exp(b) }}",
            k=np.ones(2, np.float32),
        )
    )


def _node(model: Model, op: str) -> Node:
    return next(n for g in model.graphs() for n in g.nodes if n.op == op)


# Round trip


def test_rich_model_comes_back() -> None:
    proto = rich_model()
    before = proto.SerializeToString(deterministic=True)
    assert _lost(proto) == []
    assert proto.SerializeToString(deterministic=True) == before, "the caller's proto was changed"


def test_rich_model_comes_back_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "in.onnx").write_bytes(rich_model().SerializeToString())
    Model.load(tmp_path / "in.onnx").save(tmp_path / "out.onnx")
    assert differences(in_order(rich_model()), in_order(onnx.load(tmp_path / "out.onnx"))) == []


def test_twice_is_the_same_as_once() -> None:
    once = Model.load(rich_model()).proto
    assert Model.load(once).proto.SerializeToString(deterministic=True) == once.SerializeToString(deterministic=True)


def test_strings_that_are_not_utf8() -> None:
    proto = rich_model()
    proto.graph.node[1].attribute.append(AttributeProto(name="raw", type=AttributeProto.STRING, s=b"\xff\x00\xfe"))
    proto.graph.node[1].attribute.append(
        AttributeProto(name="raws", type=AttributeProto.STRINGS, strings=[b"\xf0\x28"])
    )
    assert _lost(proto) == []


def test_value_info_of_initializers() -> None:
    proto = parse(f"{HEADER} g (float[2] x) => (float[2] y) {{ y = Add(x, k) }}", k=np.ones(2, np.float32))
    described = helper.make_tensor_value_info("k", TensorProto.FLOAT, [2], "the weights")
    described.metadata_props.extend(metadata({"kind": "PARAMETER"}))
    proto.graph.value_info.append(described)
    assert _lost(proto) == []


@pytest.mark.skipif(
    not hasattr(onnx.NodeProto(), "device_configurations"), reason="this onnx has no device configurations"
)
def test_device_configurations() -> None:
    proto = rich_model()
    proto.ir_version = 11
    proto.configuration.add(name="two", num_devices=2)
    proto.graph.node[0].device_configurations.add(configuration_id="two")
    assert _lost(proto) == []


@pytest.mark.parametrize(
    "body",
    [
        "g (float[2] x) => (float[2] y, float[2] k) <float[2] k = {1, 2}> { y = Add(x, k) }",
        (
            "g (float[2] x, bool c) => (float[2] y) <float[2] k = {1, 2}> { y = If(c) <then_branch = a "
            "() => (float[2] p) { p = Add(x, k) }, "
            "else_branch = b () => (float[2] q) <float[2] w = {1, 2}> { q = Identity(w) }> }"
        ),
        "g (float[0] x) => (float[0] y) { y = Neg(x) }",
        "g (float[2] x) => (float[2] x) {}",
        "g () => (float[2] k) <float[2] k = {1, 2}> {}",
    ],
)
def test_small_models_come_back(body: str) -> None:
    assert _lost(parse(f"{HEADER} {body}")) == []


def test_external_data_comes_back_inside(tmp_path: Path) -> None:
    proto = parse(f"{HEADER} g (float[64] x) => (float[64] y) {{ y = Add(x, k) }}", k=np.arange(64, dtype=np.float32))
    onnx.save(proto, tmp_path / "m.onnx", save_as_external_data=True, location="m.data", size_threshold=0)
    plain = parse(f"{HEADER} g (float[64] x) => (float[64] y) {{ y = Add(x, k) }}", k=np.arange(64, dtype=np.float32))
    model = Model.load(tmp_path / "m.onnx")
    assert differences(in_order(plain), in_order(model.proto)) == []
    assert model.size >= 64 * 4


def test_external_data_that_is_not_loaded() -> None:
    proto = parse(f"{HEADER} g (float[64] x) => (float[64] y) {{ y = Add(x, k) }}", k=np.arange(64, dtype=np.float32))
    onnx.external_data_helper.set_external_data(proto.graph.initializer[0], "m.data")
    with pytest.raises(CompileError, match=r"external data .*'k'.*pass the path of the file"):
        Model.load(proto)


@pytest.mark.parametrize("path", sorted(MODELS.rglob("*.onnx")), ids=lambda p: p.stem)
def test_models_of_the_repository_come_back(path: Path) -> None:
    assert differences(in_order(onnx.load(path)), in_order(Model.load(path).proto)) == []


def test_real_models_come_back() -> None:
    files = sorted(p for p in (shared_folder() / "models").rglob("*.onnx") if p.stat().st_size < 1_000_000)
    if not files:
        pytest.skip(f"{SHARED_MISSING}: no {shared_folder() / 'models'}; set RNNQC_SHARED")
    lost = {}
    for path in files:
        lost[path.name] = differences(in_order(onnx.load(path)), in_order(Model.load(path).proto))
    assert {k: v for k, v in lost.items() if v} == {}


def test_the_other_name_of_the_standard_domain() -> None:
    proto = parse(
        '<ir_version: 10, opset_import: ["ai.onnx": 17]> g (float[2] x) => (float[2] y) { y = ai.onnx.Neg(x) }'
    )
    model = Model.load(proto)
    assert model.opset == 17
    assert [n.domain or "" for n in model.graph.nodes] == [""]
    assert [(o.domain, o.version) for o in model.proto.opset_import] == [("", 17)]


def test_damaged_metadata() -> None:
    cells = ("{", '[{"name": 1}]', "3", "zlib:", "zlib:{", "zlib:~~~~~", "zlib:\u00e9")
    for key, text in (*((CELLS_KEY, c) for c in cells), (PROVENANCE_KEY, "{")):
        proto = parse(f"{HEADER} g (float[2] x) => (float[2] y) {{ y = Neg(x) }}")
        proto.metadata_props.add(key=key, value=text)
        with pytest.raises(CompileError, match=r"damaged .*lower the float model again"):
            Model.load(proto)


def test_cells_and_provenance_travel_with_the_model(tmp_path: Path) -> None:
    import rnnqc

    lowered = rnnqc.lower(RecurrentCase().model(), form="qcdq")
    lowered.save(tmp_path / "m.onnx")
    again = Model.load(tmp_path / "m.onnx")
    assert again.cells == lowered.model.cells
    assert all(isinstance(c, Cell) for c in again.cells.values())
    assert again.provenance == lowered.model.provenance == ["canonicalize", "decompose-lstm", "insert-qcdq", "cleanup"]
    assert {info(n).metadata.get(CELL_TAG) for n in again.graph.nodes} >= set(again.cells)


def test_source_and_size(tmp_path: Path) -> None:
    proto = rich_model()
    assert (Model.load(proto).source, Model.load(proto).size) == (MEMORY, proto.ByteSize())
    path = tmp_path / "m.onnx"
    path.write_bytes(proto.SerializeToString())
    assert (Model.load(path).source, Model.load(str(path)).size) == (str(path), path.stat().st_size)


# Looking around


def test_values() -> None:
    model = Model.load(rich_model())
    strange = _node(model, "Strange")
    assert input_or_none(strange, 1) is None
    assert input_or_none(strange, 9) is None
    assert output_or_none(strange, 1) is None
    first = output_or_none(strange, 0)
    assert first is not None
    assert first.name == "first"
    assert display_name(strange) == "first"
    assert display_name(_node(model, "If")) == "choice"
    chosen = model.find("chosen")
    assert shape_of(chosen) == ["N", None]
    assert dtype_of(chosen) == np.float32
    assert shape_of(model.find("doubled")) == []
    assert shape_of(model.find("third")) is None
    assert dtype_of(model.find("third")) == np.float32
    assert shape_of(None) is None
    assert dtype_of(None) is None
    assert model.find("then_own") is not None
    assert model.find("absent") is None


def test_constant_arrays() -> None:
    model = Model.load(rich_model())
    held = graph_info(model.graph).initializers
    np.testing.assert_array_equal(constant_array(held["sparse"]), [[0, 3, 0], [0, 0, 4]])
    assert constant_array(held["sparse"]).dtype == np.float32  # type: ignore[union-attr]
    assert constant_array(held["scalar"]) == 3
    assert constant_array(held["nothing_in_it"]).shape == (0, 3)  # type: ignore[union-attr]
    assert constant_array(model.find("chosen")) is None
    assert constant_array(None) is None


@pytest.mark.parametrize(
    ("attribute", "expected"),
    [
        ("value = float[2] {1, 2}", np.array([1, 2], np.float32)),
        ("value_float = 1.5", np.array(1.5, np.float32)),
        ("value_floats = [1.5, 2.5]", np.array([1.5, 2.5], np.float32)),
        ("value_int = 3", np.array(3, np.int64)),
        ("value_ints = [3, 4]", np.array([3, 4], np.int64)),
    ],
)
def test_constant_nodes(attribute: str, expected: npt.NDArray[Any]) -> None:
    model = Model.load(parse(f"{HEADER} g () => (float[N] y) {{ c = Constant <{attribute}> () y = Identity(c) }}"))
    got = constant_array(model.find("c"))
    assert got is not None
    assert got.dtype == expected.dtype
    np.testing.assert_array_equal(got, expected)


def test_paths_of_subgraphs() -> None:
    model = Model.load(RecurrentCase(placement="if").model())
    assert [p for p, _ in model.paths()] == ["", "choice/else_branch/", "choice/then_branch/"]
    assert [name for name, _ in subgraphs(_node(model, "If"))] == ["else_branch", "then_branch"]
    assert [g.name for g in model.graphs()] == ["lstm_case", "else_branch", "then_branch"]


def test_fresh_names_avoid_every_graph() -> None:
    model = Model.load(rich_model())
    assert model.fresh_name("then_own") == "then_own_2"
    assert model.fresh_name("choice") == "choice_2", "nodes and values share what is taken"
    assert model.fresh_name("choice") == "choice_3"
    assert model.fresh_name("never_used") == "never_used_2"
    assert model.fresh_name("free") == "free"


def test_safe_names() -> None:
    assert safe_name("a/b.c-d_9") == "a/b.c-d_9"
    assert safe_name("/lstm:0 [ü]") == "/lstm_0____"


def test_constants_are_shared_by_value() -> None:
    model = _chain()
    one = model.constant(1.0, np.float32)
    assert model.constant(1.0, np.float32) is one
    assert one.name == "rnnqc/float32_1"
    others = [
        model.constant(1.0, np.float64),
        model.constant(1, np.int64),
        model.constant([1.0], np.float32),
        model.constant(-0.0, np.float32),
        model.constant(0.0, np.float32),
    ]
    assert len({id(v) for v in [one, *others]}) == 6
    assert len({v.name for v in [one, *others]}) == 6


def test_a_shared_constant_survives_cleaning() -> None:
    model = _chain()
    one = model.constant(1.0, np.float32)
    model.remove_dead()
    assert one.name not in graph_info(model.graph).initializers
    assert model.constant(1.0, np.float32) is one
    assert graph_info(model.graph).initializers[one.name] is one


# Shape inference


def test_infer_shapes_leaves_the_model_alone() -> None:
    proto = RecurrentCase(placement="if").model()
    model = Model.load(proto)
    before = model.proto.SerializeToString(deterministic=True)
    model.infer_shapes()
    assert model.proto.SerializeToString(deterministic=True) == before


def test_infer_shapes_reaches_subgraphs() -> None:
    text = (
        "g (float[2, 3] x, bool c) => (float[3, 2] y) { y = If(c) <then_branch = a () => (float[M, "
        "N] p) { t = Transpose(x) p = Neg(t) }, else_branch = b () => (float[M, N] q) { q = "
        "Transpose(x) }> }"
    )
    model = Model.load(parse(f"{HEADER} {text}"))
    assert shape_of(model.find("t")) is None
    model.infer_shapes()
    assert shape_of(model.find("t")) == [3, 2]
    assert dtype_of(model.find("t")) == np.float32


def test_infer_shapes_sees_what_has_changed() -> None:
    """The last result is reused only for an unchanged model."""
    model = Model.load(parse(f"{HEADER} g (float[2, 3] x) => (float[N, M] y) {{ a = Relu(x) y = Relu(a) }}"))
    a = model.find("a")
    model.infer_shapes()
    assert shape_of(a) == [2, 3]
    model.graph.nodes[0].op = "Transpose"
    model.infer_shapes()
    assert shape_of(a) == [3, 2]


def test_objects_have_what_graphsurgeon_gives_them() -> None:
    """rnnqc's constructors set all fields that graphsurgeon's do."""
    x, y = Variable("x", dtype=np.float32, shape=[1]), Variable("y")
    given = [gs.Variable("x", dtype=np.float32, shape=[1]), gs.Variable("y")]
    made = Node("Add", name="n", attrs={"k": 1}, inputs=[x, x], outputs=[y])
    theirs = gs.Node("Add", name="n", attrs={"k": 1}, inputs=[given[0]] * 2, outputs=given[1:])
    for ours, other in ((made, theirs), (x, given[0]), (y, given[1])):
        lists = ("inputs", "outputs")
        plain = {k: v for k, v in vars(ours).items() if k not in lists}
        assert plain == {k: v for k, v in vars(other).items() if k not in lists}
        for name in lists:
            mine, wanted = getattr(ours, name), getattr(other, name)
            assert isinstance(mine, type(wanted)) and mine.field_name == wanted.field_name
            assert mine.parent_obj is ours and [v.name for v in mine] == [v.name for v in wanted]
    assert vars(Node("Add")).keys() == vars(gs.Node("Add")).keys()
    array = np.zeros(2, np.float32)
    constant, other = make_constant("c", array), gs.Constant("c", array)
    assert vars(constant) == vars(other) and constant.values is array and constant.export_dtype == other.export_dtype


@pytest.mark.parametrize("dtype", ["float32", "float16", "float64", "int64", "int32", "int8", "uint8", "bool"])
@pytest.mark.parametrize("shape", [(), (0,), (2, 3)])
def test_tensors_are_those_of_onnx(dtype: str, shape: tuple[int, ...]) -> None:
    array = np.arange(np.prod(shape)).reshape(shape).astype(dtype)
    for name in ("", "w"):
        assert tensor_of(array, name) == numpy_helper.from_array(array, name or None)


@pytest.mark.parametrize("value", [0, -3, 0.0, 1.5, "", "half", [1, 2], [1.0], ["a"], np.int64(4), np.float32(2), True])
def test_attributes_are_those_of_onnx(value: Any) -> None:
    (node,) = export_nodes([Node("Op", attrs={"k": value})])
    assert list(node.attribute) == [helper.make_attribute("k", value)]


def test_equal_models_are_inferred_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """With declared shapes and without, in turn, as the passes ask for them."""
    runs: list[onnx.ModelProto] = []

    def counted(proto: onnx.ModelProto) -> onnx.ModelProto:
        runs.append(proto)
        return infer_shapes(proto)

    monkeypatch.setattr("rnnqc.ir.model.infer_shapes", counted)
    model = _chain()
    for known in (None, {}, None, {}):
        model.infer_shapes(known)
    assert len(runs) == 2


def test_infer_shapes_keeps_large_initializers() -> None:
    proto = parse(
        f"{HEADER} g (float[1, 2000] x) => (float[1, 3] y) {{ y = MatMul(x, k) }}", k=np.ones((2000, 3), np.float32)
    )
    model = Model.load(proto)
    model.infer_shapes()
    np.testing.assert_array_equal(constant_array(model.find("k")), np.ones((2000, 3)))


# Editing


def test_replace_all_uses_reaches_subgraphs_and_outputs() -> None:
    text = (
        "g (float[2] x, float[2] z, bool c) => (float[2] y, float[2] x) { y = If(c) <then_branch = "
        "a () => (float[2] p) { p = Neg(x) }, else_branch = b () => (float[2] q) { q = Abs(x) }> }"
    )
    model = Model.load(parse(f"{HEADER} {text}"))
    x, z = model.graph.inputs[:2]
    model.replace_all_uses(x, z)
    assert _node(model, "Neg").inputs[0] is z
    assert model.graph.outputs[1] is z
    assert _node(model, "Abs").inputs[0] is z
    assert not x.outputs


def test_replace_all_uses_of_a_value_used_twice_by_one_node() -> None:
    model = Model.load(parse(f"{HEADER} g (float[2] x, float[2] z) => (float[2] y) {{ y = Mul(x, x) }}"))
    x, z = model.graph.inputs
    model.replace_all_uses(x, z)
    assert [v.name for v in _node(model, "Mul").inputs] == ["z", "z"]


def test_insert_and_remove() -> None:
    model = _chain()
    neg, add = model.graph.nodes[:2]
    new = Variable("new", np.float32, [2])
    model.insert_nodes(model.graph, add, [Node("Abs", "abs", inputs=[neg.outputs[0]], outputs=[new])])
    add.inputs[0] = new
    assert [n.op for n in model.graph.nodes] == ["Neg", "Abs", "Add", "Exp"]
    model.check()
    model.remove_nodes(model.graph, [add])
    assert [n.op for n in model.graph.nodes] == ["Neg", "Abs", "Exp"]
    assert not new.outputs
    with pytest.raises(StructureError, match=r"'.*' is not in graph 'g'"):
        model.insert_nodes(model.graph, add, [])


def test_nodes_are_inserted_after_a_node() -> None:
    model = _chain()
    neg, add = model.graph.nodes[:2]
    new = Variable("new", np.float32, [2])
    model.insert_nodes_after(model.graph, neg, [Node("Abs", "abs", inputs=[neg.outputs[0]], outputs=[new])])
    add.inputs[0] = new
    assert [n.op for n in model.graph.nodes] == ["Neg", "Abs", "Add", "Exp"]
    model.check()


def test_remove_dead_counts_what_goes_and_nothing_else() -> None:
    text = (
        "g (float[2] x, float[2] never) => (float[2] y) <float[2] k = {1, 2}, float[2] lone = {1, "
        "2}> { y = Neg(x) dead = Add(x, k) deader = Exp(dead) }"
    )
    model = Model.load(parse(f"{HEADER} {text}"))
    assert model.remove_dead() == 3
    assert [n.op for n in model.graph.nodes] == ["Neg"]
    assert [v.name for v in model.graph.inputs] == ["x", "never"]
    assert list(graph_info(model.graph).initializers) == ["lone"], "an initializer the user left unused is the user's"
    assert model.remove_dead() == 0


def test_remove_dead_keeps_what_a_subgraph_uses() -> None:
    text = (
        "g (float[2] x, bool c) => (float[2] y) <float[2] k = {1, 2}> { a = Add(x, k) y = If(c) "
        "<then_branch = t () => (float[2] p) { p = Neg(a) idle = Exp(a) }, else_branch = e () => "
        "(float[2] q) { q = Abs(a) }> }"
    )
    model = Model.load(parse(f"{HEADER} {text}"))
    assert model.remove_dead() == 1
    assert [n.op for g in model.graphs() for n in g.nodes] == ["Add", "If", "Neg", "Abs"]
    model.check()


def test_remove_dead_takes_a_dead_if_with_what_it_used() -> None:
    text = (
        "g (float[2] x, bool c) => (float[2] x) { a = Neg(x) y = If(c) <then_branch = t () => "
        "(float[2] p) { p = Neg(a) }, else_branch = e () => (float[2] q) { q = Abs(a) }> }"
    )
    model = Model.load(parse(f"{HEADER} {text}"))
    assert model.remove_dead() == 2
    assert model.graph.nodes == []


@pytest.mark.parametrize(("output", "left"), [("y", ["Neg", "If", "Abs"]), ("x", [])])
def test_remove_dead_knows_what_a_branch_hands_on(output: str, left: list[str]) -> None:
    """A value from outside that is a branch's output, and has no node that uses it."""
    text = (
        f"g (float[2] x, bool c) => (float[2] {output}) {{ a = Neg(x) y = If(c) <then_branch = t () => "
        "(float[2] p) { p = Identity(a) }, else_branch = e () => (float[2] q) { q = Abs(x) }> }"
    )
    model = Model.load(parse(f"{HEADER} {text}"))
    identity, branch = _node(model, "Identity"), subgraphs(_node(model, "If"))[0][1]
    branch.outputs[0] = identity.inputs[0]
    model.remove_nodes(branch, [identity])
    assert model.remove_dead() == (0 if left else 2)
    assert [n.op for g in model.graphs() for n in g.nodes] == left


def test_remove_dead_of_nodes_that_are_not_sorted() -> None:
    model = Model.load(_reversed_chain(4))
    model.graph.outputs.clear()
    assert model.remove_dead() == 4
    assert model.graph.nodes == []


# Sorting


def _reversed_chain(count: int) -> onnx.ModelProto:
    nodes = [helper.make_node("Neg", [f"v{k}"], [f"v{k + 1}"]) for k in range(count)]
    value = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [2]) for n in ("v0", f"v{count}")]
    graph = helper.make_graph(nodes[::-1], "chain", value[:1], value[1:])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.slow
def test_sorts_twenty_thousand_nodes_in_reverse_order() -> None:
    model = Model.load(_reversed_chain(20_000))
    with pytest.raises(StructureError, match="before it exists"):
        model.check()
    model.sort()
    model.check()
    assert [n.outputs[0].name for n in model.graph.nodes[:2]] == ["v1", "v2"]
    assert model.graph.nodes[-1].outputs[0].name == "v20000"


def test_sorting_is_stable() -> None:
    model = Model.load(
        parse(f"{HEADER} g (float[2] x) => (float[2] y) {{ c = Neg(x) a = Exp(x) d = Add(c, a) y = Abs(d) }}")
    )
    before = list(model.graph.nodes)
    model.sort()
    assert all(a is b for a, b in zip(before, model.graph.nodes, strict=True))


def test_sorting_knows_what_subgraphs_use() -> None:
    proto = RecurrentCase(placement="if", weights="computed").model()
    nodes = list(proto.graph.node)[::-1]
    del proto.graph.node[:]
    proto.graph.node.extend(nodes)
    model = Model.load(proto)
    model.sort()
    model.check()
    feeds = RecurrentCase(placement="if", weights="computed").feeds()
    run(plain_session(model.proto), feeds)


def test_captures_of_nested_graphs() -> None:
    """Would catch a value of a graph in between, or of the graph itself, taken for one of the graph around both."""
    inner = "then_branch = t () => (float[2] p) { p = Mul(x, m) }, else_branch = e () => (float[2] q) { q = Neg(k) }"
    outer = f"then_branch = u () => (float[2] r) {{ m = Abs(z) r = If <{inner}> (c) }}"
    text = f"{outer}, else_branch = v () => (float[2] s) {{ s = Exp(z) }}"
    body = f"{{ z = Relu(x) y = If <{text}> (c) }}"
    model = Model.load(parse(f"{HEADER} g (float[2] x, bool c) => (float[2] y) {body}", k=np.ones(2, np.float32)))
    found = captures(model.graph)
    names = {graph.name: [v.name for v in found[id(graph)]] for graph in model.graphs() if graph is not model.graph}
    assert {k: sorted(v) for k, v in names.items()} == {
        "u": ["c", "k", "x", "z"], "v": ["z"], "t": ["m", "x"], "e": ["k"],
    }  # fmt: skip
    for node in (n for graph in model.graphs() for n in graph.nodes):
        assert captured_values(node, found) == captured_values(node)
    assert sorted(v.name for v in captured_values(model.graph.nodes[1])) == ["c", "k", "x", "z"]


def test_cycle() -> None:
    nodes = [helper.make_node("Add", ["x", "b"], ["a"], name="one"), helper.make_node("Neg", ["a"], ["b"], name="two")]
    value = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [2]) for n in ("x", "b")]
    proto = helper.make_model(
        helper.make_graph(nodes, "g", value[:1], value[1:]), opset_imports=[helper.make_opsetid("", 17)], ir_version=8
    )
    with pytest.raises(CompileError, match=r"cycle through node 'one' \(Add\)"):
        Model.load(proto).sort()


def test_node_that_uses_its_own_output() -> None:
    nodes = [helper.make_node("Add", ["x", "a"], ["a"], name="selfish")]
    value = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [2]) for n in ("x", "a")]
    proto = helper.make_model(
        helper.make_graph(nodes, "g", value[:1], value[1:]), opset_imports=[helper.make_opsetid("", 17)], ir_version=8
    )
    with pytest.raises(CompileError, match=r"node 'selfish' \(Add\)"):
        Model.load(proto).sort()


# Invariants


def test_sound_models_pass() -> None:
    for case in (
        RecurrentCase(),
        RecurrentCase(placement="if"),
        RecurrentCase(placement="loop"),
        RecurrentCase(placement="scan"),
    ):
        Model.load(case.model()).check()


def _use_unknown(model: Model) -> None:
    _node(model, "Exp").inputs[0] = Variable("stranger", np.float32, [2])


def _wrong_order(model: Model) -> None:
    model.graph.nodes.reverse()


def _same_name_twice(model: Model) -> None:
    _node(model, "Add").outputs[0].name = "a"


def _input_made_by_a_node(model: Model) -> None:
    _node(model, "Add").outputs[0].name = "x"


def _two_producers(model: Model) -> None:
    _node(model, "Add").outputs.append(_node(model, "Neg").outputs[0])


def _lost_output(model: Model) -> None:
    model.graph.outputs.append(Variable("lost", np.float32, [2]))


def _initializer_named_as_input(model: Model) -> None:
    graph_info(model.graph).initializers["x"] = Constant("x", np.ones(2, np.float32))


def _unlisted_constant(model: Model) -> None:
    _node(model, "Add").inputs[1] = Constant("unlisted", np.ones(2, np.float32))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (_use_unknown, r"'.*' \(Exp\) uses 'stranger' before it exists"),
        (_wrong_order, r"\(Exp\) uses 'b' before it exists"),
        (_same_name_twice, r"'a' has more than one producer"),
        (_input_made_by_a_node, r"'x' has more than one producer"),
        (_two_producers, r"'a' has more than one producer"),
        (_lost_output, r"'lost' is made by no node"),
        (_initializer_named_as_input, r"Two values of one graph are called 'x'"),
        (_unlisted_constant, r"\(Add\) uses 'unlisted' before it exists"),
    ],
)
def test_check_finds_each_broken_invariant(damage: object, message: str) -> None:
    model = _chain()
    damage(model)  # type: ignore[operator]
    with pytest.raises(StructureError, match=message):
        model.check()


def test_check_looks_into_subgraphs() -> None:
    model = Model.load(RecurrentCase(placement="if").model())
    inner = _node(model, "LSTM")
    inner.inputs[0] = Variable("stranger", np.float32, [5, 2, 3])
    with pytest.raises(StructureError, match=r"\(LSTM\) uses 'stranger' before it exists"):
        model.check()


def test_check_refuses_a_name_of_the_graph_around() -> None:
    model = Model.load(RecurrentCase(placement="if").model())
    inner = _node(model, "LSTM")
    old = inner.outputs[0].name
    inner.outputs[0].name = "X"
    assert old != "X"
    with pytest.raises(StructureError, match="'X'"):
        model.check()


def test_check_refuses_a_name_that_is_made_behind_the_subgraph() -> None:
    text = (
        "g (float[2] x, bool c) => (float[2] y) { a = If(c) <then_branch = t () => (float[2] p) { p = Neg(x) }, "
        "else_branch = e () => (float[2] q) { q = Abs(x) }> late = Exp(a) y = Neg(late) }"
    )
    model = Model.load(parse(f"{HEADER} {text}"))
    model.check()
    _node(model, "Exp").outputs[0].name = "p"
    with pytest.raises(StructureError, match="Two values of a graph and of one around it are called 'p'"):
        model.check()


def test_each_name_is_that_of_one_value() -> None:
    """Names are unique across both branches of an If, too."""
    model = Model.load(RecurrentCase(placement="if").model())
    values = [v for g in model.graphs() for n in g.nodes for v in n.outputs if v.name]
    assert len({id(v) for v in values}) == len({v.name for v in values})


def test_reload_keeps_source_and_size(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(RecurrentCase().model().SerializeToString())
    model = Model.load(path)
    size = model.size
    model.reload(_chain().proto)
    assert (model.source, model.size, model.graph.name) == (str(path), size, "g")


def test_output_equal_to_a_renamed_initializer() -> None:
    model = _chain()
    added = model.add_initializer("k", np.arange(3))
    assert added.name == "k_2"
    proto = model.proto
    assert [t.name for t in proto.graph.initializer] == ["k", "k_2"]
    np.testing.assert_array_equal(numpy_helper.to_array(proto.graph.initializer[1]), np.arange(3))


def test_equal_nodes_of_two_branches_are_two_users() -> None:
    """A change of one node in the lists of users does not affect the other."""
    branch = helper.make_graph(
        [helper.make_node("Identity", ["k"], ["made"], "same")],
        "branch",
        [],
        [helper.make_tensor_value_info("made", TensorProto.FLOAT, [2])],
    )
    graph = helper.make_graph(
        [helper.make_node("If", ["c"], ["y"], "choice", then_branch=branch, else_branch=branch)],
        "g",
        [helper.make_tensor_value_info("c", TensorProto.BOOL, [])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2])],
        [numpy_helper.from_array(np.ones(2, np.float32), "k")],
    )
    model = Model.load(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10))
    first, second = (g.nodes[0] for _, g in subgraphs(model.graph.nodes[0]))
    held = model.initializer("k", model.graph)
    assert held is not None and {id(n) for n in held.outputs} == {id(first), id(second)}
    second.inputs[0] = model.add_initializer("other", np.zeros(2, np.float32))
    assert [id(n) for n in held.outputs] == [id(first)]
    model.replace_all_uses(held, model.add_initializer("third", np.ones(2, np.float32)))
    assert (first.inputs[0].name, second.inputs[0].name) == ("third", "other")
    model.remove_dead()
    model.remove_nodes(model.graph, model.graph.nodes)
    assert not held.outputs
