"""Models whose layers stand in model-local functions, against what onnxruntime makes of the functions.

What these would catch: an attribute that is lost on its way from a default or a call to the node, one that a function
passes on, a value that is taken for another of the same name, a body that is read under another operator set.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import pytest
from onnx import AttributeProto, TensorProto, helper, numpy_helper

import rnnqc
from rnnqc.evaluation.numerics import sqnr_db
from rnnqc.passes import Canonicalize
from tests.runs.sessions import assert_close, plain_session, run
from tests.subjects.function_models import feeds_of, random_model

CANONICAL = 1e-6
LEAST_DB = 30.0
OFF = ["*.bits=none"]
MODELS, GROUPS, MOST_REFUSED = 24, 3, 1
"""Random models, and how many of a group onnxruntime may refuse: not every version infers shapes through functions."""


@pytest.mark.few(1)
@pytest.mark.parametrize("group", range(GROUPS))
def test_random_functions(group: int) -> None:
    refused = []
    for seed in range(group, MODELS, GROUPS):
        proto, feeds = random_model(seed), feeds_of(seed)
        try:
            expected = run(plain_session(proto), feeds)
        except Exception:  # onnxruntime's own
            refused.append(seed)
            continue
        model = rnnqc.Model.load(proto)
        Canonicalize()(model)
        assert not model.functions
        assert_close(expected, run(plain_session(model.proto), feeds), CANONICAL, f"canonicalize, seed {seed}")
        got = run(plain_session(rnnqc.lower(proto).proto), feeds)
        assert sqnr_db(expected["y"], got["y"]) > LEAST_DB, f"seed {seed}"
    assert len(refused) <= MOST_REFUSED, refused


T, B, N = 5, 2, 4
IMPORTS = [helper.make_opsetid("", 17), helper.make_opsetid("f", 1)]


def _referring(op: str, inputs: list[str], result: str, name: str, key: str, of: str, kind: int) -> onnx.NodeProto:
    node = helper.make_node(op, inputs, [result], name)
    node.attribute.add(name=key, ref_attr_name=of, type=kind)
    return node


def _model(
    functions: list[onnx.FunctionProto], inputs: list[str], opset: int = 17, **attributes: object
) -> onnx.ModelProto:
    rng = np.random.default_rng(0)
    weights = [numpy_helper.from_array(rng.normal(0, 0.7, (1, 16, N)).astype(np.float32), n) for n in ("W", "R")]
    call = helper.make_node(functions[-1].name, inputs, ["y"], "call", domain="f", **attributes)
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [T, B, N])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph([call], "g", [x], [y], weights)
    imports = [helper.make_opsetid("", opset), helper.make_opsetid("f", 1)]
    return helper.make_model(graph, opset_imports=imports, functions=functions, ir_version=10)


def _layer(key: str, default: object, kind: int) -> onnx.FunctionProto:
    node = _referring("LSTM", ["a", "w", "r"], "z", "layer", key, "given", kind)
    if key != "hidden_size":
        node.attribute.append(helper.make_attribute("hidden_size", N))
    if key == "activation_alpha":
        node.attribute.append(helper.make_attribute("activations", ["LeakyRelu", "Tanh", "Tanh"]))
    defaults = [helper.make_attribute("given", default)]
    return helper.make_function("f", "Layer", ["a", "w", "r"], ["z"], [node], IMPORTS, [], defaults)


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("key", "default", "kind"),
    [
        ("direction", "reverse", AttributeProto.STRING),
        ("clip", 0.2, AttributeProto.FLOAT),
        ("activation_alpha", [0.6], AttributeProto.FLOATS),
        ("hidden_size", N, AttributeProto.INT),
        ("input_forget", 1, AttributeProto.INT),
    ],
)
@pytest.mark.parametrize("opset", [11, 17])
def test_defaults_of_functions(key: str, default: object, kind: int, opset: int) -> None:
    """onnx's inliner drops them."""
    proto, feeds = _model([_layer(key, default, kind)], ["x", "W", "R"], opset), feeds_of(1)
    expected = run(plain_session(proto), feeds)
    model = rnnqc.Model.load(proto)
    Canonicalize()(model)
    (node,) = [n for n in model.graph.nodes if n.op == "LSTM"]
    assert key in node.attrs
    assert_close(expected, run(plain_session(model.proto), feeds), CANONICAL, "canonicalize")
    if key != "activation_alpha":  # an unbounded gate has tables of its own
        assert sqnr_db(expected["y"], run(plain_session(rnnqc.lower(proto).proto), feeds)["y"]) > LEAST_DB


def test_a_layout_by_default() -> None:
    """onnxruntime does not run it."""
    lowered = rnnqc.lower(
        _model([_layer("layout", 1, AttributeProto.INT)], ["x", "W", "R"]), form="qcdq", overrides=OFF
    )
    plain = _model([_layer("layout", 0, AttributeProto.INT)], ["x", "W", "R"])
    x = feeds_of(2)["x"]
    plain.graph.input[0].type.tensor_type.shape.dim[0].dim_value = B
    plain.graph.input[0].type.tensor_type.shape.dim[1].dim_value = T
    expected = run(plain_session(plain), {"x": x.transpose(1, 0, 2)})["y"].transpose(2, 0, 1, 3)
    assert_close({"y": expected}, run(plain_session(lowered.proto), {"x": x}), 1e-5, "layout 1")


def _branch(node: onnx.NodeProto, result: str) -> onnx.GraphProto:
    value = helper.make_tensor_value_info(result, TensorProto.FLOAT, [T, B, N])
    return helper.make_graph([node], result, [], [value])


def _names_alike() -> onnx.ModelProto:
    """The branch makes a value that is called as an input of the function, and reads another one that is the same."""
    negated = _branch(helper.make_node("Neg", ["b"], ["a"]), "a")
    other = _branch(helper.make_node("Identity", ["a"], ["other"]), "other")
    nodes = [
        helper.make_node("Constant", [], ["c"], value=numpy_helper.from_array(np.array(True))),
        helper.make_node("If", ["c"], ["p"], then_branch=negated, else_branch=other),
        helper.make_node("LSTM", ["p", "w", "r"], ["s"], hidden_size=N),
        helper.make_node("Squeeze", ["s", "axis"], ["z"]),
        helper.make_node("Constant", [], ["axis"], value_ints=[1]),
    ]
    nodes[3], nodes[4] = nodes[4], nodes[3]
    function = helper.make_function("f", "Alike", ["a", "b", "w", "r"], ["z"], nodes, IMPORTS)
    return _model([function], ["x", "x", "W", "R"])


def _a_graph_as_attribute() -> onnx.ModelProto:
    """Branches that the caller gives, twice: one reads a value of the caller, the other what the function calls `x`."""
    condition = helper.make_node("Constant", [], ["c"], value=numpy_helper.from_array(np.array(True)))
    nodes = [condition]
    for k in range(2):
        node = helper.make_node("If", ["c"], [f"p{k}"])
        for key in ("then_branch", "else_branch"):
            node.attribute.add(name=key, ref_attr_name="branch", type=AttributeProto.GRAPH)
        nodes.append(node)
    nodes += [
        helper.make_node("Add", ["p0", "p1"], ["p"]),
        helper.make_node("LSTM", ["p", "w", "r"], ["z"], hidden_size=N),
    ]
    function = helper.make_function("f", "Branching", ["x", "w", "r"], ["z"], nodes, IMPORTS, ["branch"])
    model = _model([function], ["doubled", "W", "R"])
    model.graph.node[0].attribute.append(
        helper.make_attribute("branch", _branch(helper.make_node("Add", ["x", "doubled"], ["p"]), "p"))
    )
    model.graph.node.insert(0, helper.make_node("Add", ["x", "x"], ["doubled"]))
    return model


def _overloads() -> onnx.ModelProto:
    functions = [_layer("clip", bound, AttributeProto.FLOAT) for bound in (0.1, 0.4)]
    functions[1].overload = "wide"
    model = _model(functions, ["x", "W", "R"])
    model.graph.node[0].overload = "wide"
    return model


def _outputs_left_out() -> onnx.ModelProto:
    """The function uses an output internally that the caller does not read."""
    nodes = [
        helper.make_node("LSTM", ["a", "w", "r"], ["", "h", "c"], hidden_size=N),
        helper.make_node("Add", ["h", "c"], ["z"]),
    ]
    function = helper.make_function("f", "Sum", ["a", "w", "r", "unused"], ["h", "z"], nodes, IMPORTS)
    model = _model([function], ["x", "W", "R"])
    model.graph.node[0].output[:] = ["", "y"]
    return model


@pytest.mark.parametrize("make", [_names_alike, _a_graph_as_attribute, _overloads, _outputs_left_out])
def test_names_and_scopes(make: Callable[[], onnx.ModelProto]) -> None:
    proto, feeds = make(), feeds_of(3)
    expected = run(plain_session(proto), feeds)
    lowered = rnnqc.lower(proto)
    assert [e.status for e in lowered.report.entries] == ["lowered"]
    assert sqnr_db(expected["y"], run(plain_session(lowered.proto), feeds)["y"]) > LEAST_DB


def test_a_value_that_nothing_makes() -> None:
    """The caller has one of the same name."""
    proto = _model([_layer("clip", 0.5, AttributeProto.FLOAT)], ["x", "W", "R"])
    proto.functions[0].node[0].input[0] = "x"
    with pytest.raises(rnnqc.CompileError, match="uses 'call/x', which nothing makes"):
        rnnqc.lower(proto)


def test_a_call_with_too_many_inputs() -> None:
    proto = _model([_layer("clip", 0.5, AttributeProto.FLOAT)], ["x", "W", "R", "x"])
    with pytest.raises(rnnqc.CompileError, match=r"node 'call'.* has 4 inputs. Supported: up to 3"):
        rnnqc.lower(proto)
