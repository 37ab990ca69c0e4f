"""canonicalize: fires, declines, edges.

What these would catch: a conversion that loses metadata or functions, weights left as expressions, a layout whose
outputs are transposed wrongly, a change that is not reported.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import onnx.version_converter
import pytest
from onnx import TensorProto, helper

import rnnqc
from rnnqc.errors import CompileError, Outcome
from rnnqc.ir import Constant, Model, graph_info
from rnnqc.passes import Canonicalize
from rnnqc.passes.normalize.canonicalize import IR_VERSIONS, TARGET_OPSET
from tests.generate import RecurrenceCase
from tests.generate.layers import RecurrentCase
from tests.generate.outer_forms import called
from tests.passes.pass_testing import apply, nodes_of, op_types, text_of
from tests.runs.sessions import assert_close, assert_same_bits, plain_session, run
from tests.subjects.protos import differences, in_order, metadata, parse, rich_model

CANONICAL = RecurrentCase(opset=17)


def _canonical(case: RecurrentCase) -> Model:
    model = Model.load(case.model())
    apply(Canonicalize(), model, [case.feeds(padding=0.0)])
    return model


def _weights(model: Model) -> list[bool]:
    return [isinstance(v, Constant) for v in nodes_of(model, "LSTM")[0].inputs[1:4]]


def test_golden(golden: Callable[[str, str], None]) -> None:
    model = Model.load(
        RecurrentCase(layout=1, opset=14, outputs=("Y_h",), initial_h=True, weights="computed", bias=False).model()
    )
    Canonicalize()(model)
    golden("canonicalize.txt", text_of(model))


def test_what_is_canonical_is_not_touched() -> None:
    """Not even metadata of other nodes, functions without recurrence or an operator set of 22."""
    proto = rich_model()
    model = Model.load(proto)
    first = Canonicalize()(model)
    assert first.statistics == {"functions": 0, "folded": 0, "layouts": 0, "names": 4, "shared": 0}
    branches = [a.g for a in proto.graph.node[0].attribute]
    for graph in (proto.graph, *branches):
        for node in graph.node:
            node.name = node.name or f"{node.output[0]}:{node.op_type}"
    assert differences(in_order(proto), in_order(model.proto)) == []
    assert not Canonicalize()(model).modified


# 1. Functions


def test_functions_with_recurrence_are_inlined() -> None:
    model = _canonical(RecurrentCase(placement="function", opset=17))
    assert op_types(model.graph) == ["LSTM"]
    assert model.functions == []


def _twice(opset: int) -> onnx.FunctionProto:
    node = helper.make_node("Add", ["a", "a"], ["b"])
    return helper.make_function("test.functions", "Twice", ["a"], ["b"], [node], [helper.make_opsetid("", opset)])


def test_other_functions_stay() -> None:
    proto = RecurrentCase(placement="function", opset=17).model()
    proto.functions.append(_twice(17))
    proto.graph.node.append(helper.make_node("Twice", ["Y"], ["doubled"], domain="test.functions"))
    proto.graph.output.append(helper.make_tensor_value_info("doubled", TensorProto.FLOAT, [5, 1, 2, 4]))
    model = Model.load(proto)
    assert apply(Canonicalize(), model, [CANONICAL.feeds()]).statistics["functions"] == 1
    assert [f.name for f in model.functions] == ["Twice"]
    assert op_types(model.graph) == ["LSTM", "Twice"]


@pytest.mark.parametrize("form", ["scan", "unrolled"])
@pytest.mark.parametrize("calls", ["function", "overload", "nested"])
def test_functions_that_may_hold_a_recurrence_are_inlined(form: str, calls: str) -> None:
    """Loops and steps that no pass would see in a function, and no report name."""
    model = Model.load(called(RecurrenceCase(form=form).model(), calls))
    assert apply(Canonicalize(), model, [RecurrenceCase().feeds()]).statistics["functions"] >= 1
    assert not model.functions
    assert nodes_of(model, "Scan" if form == "scan" else "Sigmoid")


def test_functions_of_lowered_cells_stay() -> None:
    """They contain matmuls and tables, too, but must not be inlined."""
    lowered = rnnqc.lower(RecurrenceCase().model()).proto
    model = Model.load(lowered)
    Canonicalize()(model)
    assert len(model.functions) == len(lowered.functions) > 0


def test_functions_that_call_functions_with_recurrence() -> None:
    proto = RecurrentCase(placement="function", opset=17).model()
    (layer,) = proto.functions
    outer = onnx.FunctionProto()
    outer.CopyFrom(layer)
    outer.name = "Outer"
    del outer.node[:]
    outer.node.append(helper.make_node("Layer", list(layer.input), list(layer.output), domain="test.functions"))
    outer.opset_import.append(helper.make_opsetid("test.functions", 1))
    proto.functions.append(outer)
    proto.graph.node[0].op_type = "Outer"
    model = Model.load(proto)
    assert apply(Canonicalize(), model, [CANONICAL.feeds()]).statistics["functions"] == 2
    assert op_types(model.graph) == ["LSTM"]


# 2. Versions


@pytest.mark.parametrize("opset", [7, 8, 9, 10, 11, 12])
def test_old_operator_sets_are_converted(opset: int) -> None:
    case = RecurrentCase(opset=opset)
    model = Model.load(case.model())
    (remark,) = apply(Canonicalize(), model, [case.feeds()]).remarks
    assert (remark.outcome, remark.reason) == (Outcome.NOTE, f"converted from operator set {opset} to {TARGET_OPSET}.")
    assert model.opset == TARGET_OPSET


@pytest.mark.parametrize("opset", [13, 14, 18, 20, 21, 22])
def test_newer_operator_sets_stay(opset: int) -> None:
    assert _canonical(RecurrentCase(opset=opset)).opset == opset


def test_conversion_keeps_documentation() -> None:
    proto = RecurrentCase(opset=11, dynamic_batch=True).model()
    proto.metadata_props.extend(metadata({"a": "b"}))
    proto.doc_string, proto.producer_name, proto.domain, proto.model_version = "doc", "me", "org.x", 7
    proto.graph.doc_string = "graph"
    proto.graph.metadata_props.extend(metadata({"graph": "g"}))
    proto.graph.input[0].doc_string = "the input"
    proto.graph.output[0].type.denotation = "IMAGE"
    model = Model.load(proto)
    Canonicalize()(model)
    after = model.proto
    for field in ("doc_string", "producer_name", "domain", "model_version", "metadata_props"):
        assert getattr(after, field) == getattr(proto, field), field
    for field in ("doc_string", "metadata_props", "input", "output", "name"):
        assert getattr(after.graph, field) == getattr(proto.graph, field), field


def test_conversion_keeps_documentation_of_nodes() -> None:
    proto = RecurrentCase(opset=11).model()
    proto.graph.node[0].doc_string = "the layer"
    proto.graph.node[0].metadata_props.extend(metadata({"origin": "layer 1"}))
    model = Model.load(proto)
    Canonicalize()(model)
    (node,) = [n for n in model.proto.graph.node if n.op_type == "LSTM"]
    assert (node.doc_string, [(p.key, p.value) for p in node.metadata_props]) == ("the layer", [("origin", "layer 1")])


def test_conversion_keeps_functions() -> None:
    proto = RecurrentCase(opset=12).model()
    proto.ir_version = 8
    proto.functions.append(_twice(12))
    proto.opset_import.append(helper.make_opsetid("test.functions", 1))
    proto.graph.node.append(helper.make_node("Twice", ["Y"], ["doubled"], domain="test.functions"))
    proto.graph.output.append(helper.make_tensor_value_info("doubled", TensorProto.FLOAT, [5, 1, 2, 4]))
    feeds = RecurrentCase(opset=12).feeds()
    expected = run(plain_session(proto), feeds)
    model = Model.load(proto)
    Canonicalize()(model)
    assert_close(expected, run(plain_session(model.proto), feeds), 1e-6, "converted")


@pytest.mark.parametrize("opset", [8, 9, 11])
def test_initializers_that_are_no_inputs_of_an_old_file(opset: int) -> None:
    """IR version 3 asks for them among the inputs; onnxruntime does not, and onnx's converter would refuse the file."""
    case = RecurrentCase(opset=opset)
    proto = case.model()
    proto.ir_version = 3
    del proto.graph.input[1:]
    feeds = case.feeds()
    model = Model.load(proto)
    Canonicalize()(model)
    assert proto.ir_version == 3 and [v.name for v in model.proto.graph.input] == ["X"]
    assert_close(run(plain_session(proto), feeds), run(plain_session(model.proto), feeds), 1e-6, "converted")


def test_ancient_operator_sets_are_refused() -> None:
    proto = RecurrentCase(opset=7).model()
    proto.opset_import[0].version = 6
    with pytest.raises(
        CompileError, match=r"operator set ai\.onnx 6 is too old.*Supported: 7 and later.*export the model again"
    ):
        Canonicalize()(Model.load(proto))
    # It is what the message says it is: there is no other way.
    with pytest.raises(RuntimeError, match="No Adapter From Version"):
        onnx.version_converter.convert_version(proto, TARGET_OPSET)
    with pytest.raises(Exception, match="Could not find an implementation for LSTM"):
        plain_session(proto)


def test_a_scan_over_a_batch_is_refused() -> None:
    """That of operator set 8: onnx's converter drops the axis, and writes a model that does not run."""
    proto = onnx.parser.parse_model(
        """<ir_version: 3, opset_import: ["" : 8]>
        sums (float[1,2] initial, float[1,3,2] x) => (float[1,2] y, float[1,3,2] z) {
           y, z = Scan ("", initial, x) <num_scan_inputs: int = 1, body: graph =
             step (float[2] sum, float[2] next) => (float[2] total, float[2] copy) {
               total = Add (sum, next)
               copy = Identity (total)
             }>
        }"""
    )
    with pytest.raises(
        CompileError, match=r'"Scan" \(node \'y\'\) of operator set 8 .* batch.*Supported: Scan of .* 9'
    ):
        Canonicalize()(Model.load(proto))


@pytest.mark.parametrize(
    ("before", "after"), [(b, a) for b, a in ((8, 10), (10, 10), (12, 12), (13, 13)) if b <= onnx.IR_VERSION]
)
def test_ir_version(before: int, after: int) -> None:
    proto = RecurrentCase(opset=17).model()
    proto.ir_version = before
    model = Model.load(proto)
    result = apply(Canonicalize(), model, [CANONICAL.feeds()])
    assert model.ir_version == after
    assert result.modified == (before != after)
    assert IR_VERSIONS == (10, 13)


def test_initializers_of_ir_3_stay_constants() -> None:
    case = RecurrentCase(opset=8)
    assert case.model().ir_version == 3
    model = Model.load(case.model())
    Canonicalize()(model)
    assert [v.name for v in model.proto.graph.input] == ["X"]


# 3. Weights


@pytest.mark.parametrize("weights", ["constant", "computed"])
@pytest.mark.parametrize("placement", ["main", "if", "loop", "scan"])
def test_weights_become_initializers(weights: str, placement: str) -> None:
    case = RecurrentCase(weights=weights, placement=placement, direction="bidirectional", initial_h=True)  # type: ignore[arg-type]
    model = _canonical(case)
    assert _weights(model) == [True, True, True]
    made = graph_info(model.graph).initializers
    assert all(v.name in made for v in nodes_of(model, "LSTM")[0].inputs[1:4])


def test_dead_expressions_go_and_others_stay() -> None:
    proto = RecurrentCase(weights="computed", opset=17).model()
    proto.graph.node.append(helper.make_node("Identity", ["W"], ["W_too"]))
    proto.graph.output.append(helper.make_tensor_value_info("W_too", TensorProto.FLOAT, [1, 16, 3]))
    proto.graph.node[-1].input[0] = next(n.input[1] for n in proto.graph.node if n.op_type == "LSTM")
    model = Model.load(proto)
    apply(Canonicalize(), model, [RecurrentCase().feeds()])
    assert nodes_of(model, "Identity")
    assert nodes_of(model, "Slice"), "what makes another output stays"
    assert _weights(model) == [True, True, True]


@pytest.mark.parametrize("op", ["RandomNormalLike", "Dropout"])
def test_random_weights_are_not_folded(op: str) -> None:
    proto = RecurrentCase(opset=17).model()
    proto.graph.node.insert(0, helper.make_node(op, ["W"], ["W_random"], name="random"))
    proto.graph.node[1].input[1] = "W_random"
    model = Model.load(proto)
    assert Canonicalize()(model).statistics["folded"] == 0
    assert nodes_of(model, op)


def test_weights_that_depend_on_inputs_are_not_folded() -> None:
    proto = RecurrentCase(opset=17, weights="computed").model()
    names = [t.name for t in proto.graph.initializer]
    (source,) = [t for t in proto.graph.initializer if t.name.endswith("_torch") and t.name.startswith("W_")]
    proto.graph.input.append(helper.make_tensor_value_info(source.name, TensorProto.FLOAT, list(source.dims)))
    del proto.graph.initializer[names.index(source.name)]
    model = Model.load(proto)
    assert Canonicalize()(model).statistics["folded"] == 2
    assert _weights(model) == [False, True, True]


def test_copies_of_weights_are_one_value() -> None:
    """PyTorch writes them for layers that share weights: the report counted each, more than the file holds."""
    text = (
        '<ir_version: 10, opset_import: ["": 17]> g (float[3, 1, 4] X) => (float[3, 1, 1, 4] Y) { '
        "[a] A = GRU <hidden_size = 4> (X, W, R) x = Squeeze (A, one) V = Identity (W) S = Identity (R) "
        "[b] Y = GRU <hidden_size = 4> (x, V, S) }"
    )
    rng = np.random.default_rng(0)
    weights = {k: rng.random((1, 12, 4), np.float32) for k in "WR"}
    proto = parse(text, **weights, one=np.array([1]))
    model = Model.load(proto)
    apply(Canonicalize(), model)
    first, second = nodes_of(model, "GRU")
    assert all(a is b for a, b in zip(first.inputs[1:3], second.inputs[1:3], strict=True))
    assert sum(e.float_bytes for e in rnnqc.lower(proto).report.entries) == sum(w.nbytes for w in weights.values())


def test_weights_of_other_layers_are_folded_too() -> None:
    text = (
        '<ir_version: 10, opset_import: ["": 17]> g (float[3, 1, 2] X) => (float[3, 1, 1, 4] Y) { '
        "[t] W = Transpose <perm = [0, 2, 1]> (V) [gru] Y = GRU <hidden_size = 4> (X, W, R) }"
    )
    rng = np.random.default_rng(0)
    model = Model.load(parse(text, V=rng.random((1, 2, 12), np.float32), R=rng.random((1, 12, 4), np.float32)))
    assert apply(Canonicalize(), model).statistics["folded"] == 1
    assert op_types(model.graph) == ["GRU"]


# 4. Layout


@pytest.mark.parametrize("outputs", [("Y", "Y_h", "Y_c"), ("Y_h",), ("Y", "Y_c")])
@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
def test_layout(outputs: tuple[str, ...], direction: str) -> None:
    case = RecurrentCase(layout=1, direction=direction, outputs=outputs, initial_h=True, initial_c=True, lens=(3, 5))  # type: ignore[arg-type]
    model = Model.load(case.model())
    assert Canonicalize()(model).statistics["layouts"] == 1
    assert op_types(model.graph) == ["Transpose"] * 3 + ["LSTM"] + ["Transpose"] * len(outputs)
    assert "layout" not in nodes_of(model, "LSTM")[0].attrs
    assert [v.name for v in model.graph.outputs] == list(outputs)
    feeds = case.feeds(padding=0.0)
    onnx.checker.check_model(model.proto, full_check=True)
    assert_close(case.expected(feeds), run(plain_session(model.proto), feeds), 1e-5, "layout 0")
    assert not Canonicalize()(model).modified


# 5. Names and order


def test_names_and_order() -> None:
    proto = RecurrentCase(opset=17, weights="computed", placement="if").model()
    for node in proto.graph.node:
        node.name = ""
    nodes = list(proto.graph.node)[::-1]
    del proto.graph.node[:]
    proto.graph.node.extend(nodes)
    model = Model.load(proto)
    result = Canonicalize()(model)
    assert result.statistics["names"] == len(nodes) + 1, "and the Neg of the else branch"
    names = [n.name for n in nodes_of(model)]
    assert all(names)
    assert len(set(names)) == len(names)
    assert nodes_of(model, "If")[0].name == "Y:If", "called after the first output"
    model.check()


def test_order_alone_is_a_change() -> None:
    proto = parse(
        '<ir_version: 10, opset_import: ["": 17]> g (float[2] x) => (float[2] y) { [n] a = Neg(x) [e] y = Exp(a) }'
    )
    nodes = list(proto.graph.node)[::-1]
    del proto.graph.node[:]
    proto.graph.node.extend(nodes)
    model = Model.load(proto)
    assert Canonicalize()(model).modified
    assert op_types(model.graph) == ["Neg", "Exp"]


def test_weights_that_are_a_graph_output() -> None:
    proto = RecurrentCase(opset=17, weights="constant").model()
    proto.graph.output.append(helper.make_tensor_value_info("R", TensorProto.FLOAT, [1, 16, 4]))
    model = Model.load(proto)
    feeds = CANONICAL.feeds()
    expected = run(plain_session(proto), feeds)
    Canonicalize()(model)
    assert_same_bits(expected, run(plain_session(model.proto), feeds), "an output that is a weight")
