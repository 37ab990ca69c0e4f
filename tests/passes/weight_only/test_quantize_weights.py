"""quantize-weights: the stored codes, and that float operators compute what they stand for.

What these would catch: rows of one gate with the scale of another, nibbles in the wrong half of a byte, directions
mixed up, weights of a subgraph that onnxruntime cannot find, a shared matrix that is stored twice, a layer of another
kind left out, a model that fails with some optimization level of onnxruntime.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

import rnnqc
from rnnqc.data.generated_feeds import generate_feeds
from rnnqc.errors import CompileError, Outcome, UsageError
from rnnqc.formats.compensation import squared_error
from rnnqc.formats.format import Format
from rnnqc.formats.scales import symmetric_scale
from rnnqc.ir import Model, graph_info, info
from rnnqc.passes import Canonicalize, PassManager, QuantizeWeights
from rnnqc.passes.graph.nodes.lstm_node import WEIGHTS_TAG
from rnnqc.recipes.recipe import Recipe
from rnnqc.recipes.rules import Rule, parse_override
from tests.generate.layers import RecurrentCase
from tests.laws.parametrize import every_pair, in_turn
from tests.passes.pass_testing import CASES, apply, declines, nodes_of
from tests.runs.lowered import all_nodes
from tests.runs.sessions import LEVELS, Array, Outputs, options, run

RECURRENT = ("LSTM", "GRU", "RNN")


def _recipe(**settings: Any) -> Recipe:
    return Recipe("weights", "", (Rule("*.weight", settings),))


INT8, INT4 = _recipe(bits=8, narrow=True), _recipe(bits=4, narrow=True, compensation=True)
HALF = _recipe(bits=None, store="float16")
RECIPES = {"int8": INT8, "int4": INT4, "float16": HALF}


def _quantized(
    proto: onnx.ModelProto, recipe: Recipe, moments: Mapping[str, npt.NDArray[Any]] | None = None
) -> tuple[onnx.ModelProto, Model]:
    """The canonical float model, and the model after the pass."""
    model = Model.load(proto)
    PassManager([Canonicalize()]).run(model)
    canonical = model.proto
    apply(QuantizeWeights(recipe, moments), model)
    return canonical, model


class _Weights:
    """Computes W and R of a model in numpy, from its constants."""

    def __init__(self, proto: onnx.ModelProto) -> None:
        self.nodes = {o: n for n in all_nodes(proto) for o in n.output if o}
        self.constants: dict[str, Array] = {}
        for graph in _graphs(proto.graph):
            self.constants |= {t.name: numpy_helper.to_array(t) for t in graph.initializer}

    def __call__(self, name: str) -> Array:
        if name in self.constants:
            return self.constants[name]
        node = self.nodes[name]
        attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        values = [self(i) for i in node.input]
        if node.op_type == "Constant":
            return numpy_helper.to_array(attributes["value"])
        if node.op_type == "Mod":
            return np.asarray(values[0] % values[1])
        if node.op_type == "BitShift":
            assert attributes["direction"] == b"RIGHT"
            return np.asarray(values[0] >> values[1])
        if node.op_type == "Concat":
            return np.concatenate(values, axis=attributes["axis"])
        if node.op_type == "Slice":
            assert values[3].tolist() == [1] and values[1].tolist() == [0]
            return np.asarray(values[0][:, : int(values[2][0])])
        if node.op_type == "Cast":
            return values[0].astype(helper.tensor_dtype_to_np_dtype(attributes["to"]))
        assert node.op_type == "DequantizeLinear", node.op_type
        codes, scale, zero = values
        if scale.ndim:
            assert attributes["axis"] == 1
            scale, zero = scale[:, None], zero[:, None]
        return np.asarray((codes.astype(np.int32) - zero.astype(np.int32)).astype(np.float32) * scale)


def _graphs(graph: onnx.GraphProto) -> list[onnx.GraphProto]:
    found = [graph]
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                found += _graphs(attribute.g)
    return found


def _plain(array: Array, bits: int) -> Array:
    """W or R `[D,rows,K]` by plain rounding, one scale for each row."""
    planes = []
    for plane in array:
        scale = symmetric_scale(np.abs(plane).max(axis=1), bits).astype(np.float32)
        encoding = Format(bits, True, tuple(map(float, scale)), narrow=True, axis=0)
        planes.append(encoding.dequantize(encoding.quantize(plane)))
    return np.stack(planes)


def _with_weights(proto: onnx.ModelProto, quantized: onnx.ModelProto) -> onnx.ModelProto:
    """The float model `proto` with the dequantized weights of `quantized`."""
    result = onnx.ModelProto()
    result.CopyFrom(proto)
    weights, arrays = _Weights(quantized), {}
    for node in all_nodes(quantized):
        if node.op_type in RECURRENT:
            arrays[node.name] = [weights(node.input[k]) for k in (1, 2)]
    count = 0
    for node in all_nodes(result):
        if node.op_type in RECURRENT:
            for k, array in enumerate(arrays[node.name], 1):
                node.input[k] = f"replaced_{count}"
                result.graph.initializer.append(numpy_helper.from_array(array, f"replaced_{count}"))
                count += 1
    assert count == 2 * len(arrays) > 0
    return result


def _run(proto: onnx.ModelProto, level: str, feeds: Mapping[str, Array], folded: bool = False) -> Outputs:
    chosen = options(level)
    if folded:
        chosen.add_session_config_entry("session.disable_quant_qdq", "1")
    return run(ort.InferenceSession(proto.SerializeToString(), chosen, providers=["CPUExecutionProvider"]), feeds)


def _assert_float_with_dequantized_weights(
    float_proto: onnx.ModelProto,
    quantized: onnx.ModelProto,
    unfolded: float = 1e-6,
    chosen: Mapping[str, Array] | None = None,
) -> None:
    """At every optimization level the outputs are those of the float model with the dequantized weights.

    Args:
        float_proto: Before the pass.
        quantized: After the pass.
        unfolded: Tolerance where onnxruntime does not see constants, and adds in another order.
        chosen: What to feed instead of generated data.
    """
    onnx.checker.check_model(quantized, full_check=True)
    expected_proto = _with_weights(float_proto, quantized)
    for feeds in [chosen] if chosen is not None else [generate_feeds(float_proto, seed=s) for s in range(2)]:
        for level in LEVELS:
            expected = _run(expected_proto, level, feeds)
            for folded in (False, True):
                got = _run(quantized, level, feeds, folded)
                assert list(got) == list(expected)
                within = 1e-6 if folded and level != "ORT_DISABLE_ALL" else unfolded
                for name, wanted in expected.items():
                    np.testing.assert_allclose(got[name], wanted, rtol=within, atol=within, err_msg=f"{name}, {level}")


def _layer(op: str, *, size: int = 6, inputs: int = 3, direction: str = "forward", opset: int = 17) -> onnx.ModelProto:
    """One recurrent layer with W, R and B."""
    rng = np.random.default_rng(5)
    gates, d = {"LSTM": 4, "GRU": 3, "RNN": 1}[op], 2 if direction == "bidirectional" else 1
    shapes = {"W": (d, gates * size, inputs), "R": (d, gates * size, size), "B": (d, 2 * gates * size)}
    arrays = {k: rng.normal(0, 0.5, s).astype(np.float32) for k, s in shapes.items()}
    node = helper.make_node(op, ["X", "W", "R", "B"], ["Y"], name="layer", hidden_size=size, direction=direction)
    x = helper.make_tensor_value_info("X", TensorProto.FLOAT, [4, 2, inputs])
    y = helper.make_tensor_value_info("Y", TensorProto.FLOAT, [4, d, 2, size])
    held = [numpy_helper.from_array(a, k) for k, a in arrays.items()]
    graph = helper.make_graph([node], "layer", [x], [y], held)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


@pytest.mark.few(6)
@in_turn(case=CASES, name=RECIPES)
def test_every_way_an_lstm_can_stand(case: RecurrentCase, name: str) -> None:
    float_proto, model = _quantized(case.model(), RECIPES[name])
    assert not model.cells
    _assert_float_with_dequantized_weights(float_proto, model.proto)


@pytest.mark.few(6)
@every_pair(op=RECURRENT, direction=["forward", "reverse", "bidirectional"], name=RECIPES)
def test_every_kind_of_layer(op: str, direction: str, name: str) -> None:
    float_proto, model = _quantized(_layer(op, direction=direction, size=5), RECIPES[name])
    _assert_float_with_dequantized_weights(float_proto, model.proto)
    before, after = _Weights(float_proto), _Weights(model.proto)
    (node,) = [n for n in model.proto.graph.node if n.op_type == op]
    for k, key in ((1, "W"), (2, "R")):
        array = before(key)
        wanted = array.astype(np.float16).astype(np.float32) if name == "float16" else _plain(array, int(name[3:]))
        np.testing.assert_array_equal(after(node.input[k]), wanted)
    assert node.input[3] == "B"


@pytest.mark.few(4)
@in_turn(opset=[13, 15, 18, 20, 21, 23], name=RECIPES)
def test_operator_sets(name: str, opset: int) -> None:
    float_proto, model = _quantized(_layer("LSTM", direction="bidirectional", opset=opset), RECIPES[name])
    assert model.opset == opset
    _assert_float_with_dequantized_weights(float_proto, model.proto)


@pytest.mark.parametrize("bits", [2, 3, 5, 6, 7])
def test_other_widths(bits: int) -> None:
    float_proto, model = _quantized(_layer("LSTM"), _recipe(bits=bits, narrow=True))
    _assert_float_with_dequantized_weights(float_proto, model.proto)
    np.testing.assert_array_equal(
        _Weights(model.proto)(nodes_of(model, "LSTM")[0].inputs[1].name), _plain(_Weights(float_proto)("W"), bits)
    )


def test_one_scale_for_all_channels() -> None:
    for bits in (4, 8):
        float_proto, model = _quantized(_layer("GRU"), _recipe(bits=bits, narrow=True, granularity="per-tensor"))
        _assert_float_with_dequantized_weights(float_proto, model.proto)
        assert all(n.inputs[1].shape == () for n in nodes_of(model, "DequantizeLinear"))


@every_pair(op=RECURRENT, bits=[4, 8], direction=["forward", "bidirectional"])
def test_one_scale_for_each_gate(op: str, bits: int, direction: str) -> None:
    """Rows of a gate share a scale that no other gate has; directions, too."""
    size = 5
    proto = _layer(op, direction=direction, size=size)
    gates = {"LSTM": 4, "GRU": 3, "RNN": 1}[op]
    for tensor in proto.graph.initializer:
        if tensor.name in ("W", "R"):
            array = numpy_helper.to_array(tensor).copy()
            for k in range(gates):
                array[:, k * size : (k + 1) * size] *= np.float32(k + 1)  # gates of different sizes
            tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    float_proto, model = _quantized(proto, _recipe(bits=bits, narrow=True, granularity="per-gate"))
    _assert_float_with_dequantized_weights(float_proto, model.proto)
    before, after = _Weights(float_proto), _Weights(model.proto)
    (node,) = [n for n in model.proto.graph.node if n.op_type == op]
    for k, key in ((1, "W"), (2, "R")):
        for given, found in zip(before(key), after(node.input[k]), strict=True):
            for gate in range(gates):
                rows = slice(gate * size, (gate + 1) * size)
                expected = _plain(given[rows].reshape(1, 1, -1), bits).reshape(size, -1)
                np.testing.assert_array_equal(found[rows], expected)


@pytest.mark.parametrize("bits", [2, 3, 4, 5, 8])
def test_unsigned_and_asymmetric_codes(bits: int) -> None:
    """No weight is further from the float one than a whole step."""
    for settings in ({"signed": False}, {"symmetric": False}, {"signed": False, "symmetric": False}):
        canonical, model = _quantized(_layer("LSTM", size=7, inputs=5), _recipe(bits=bits, narrow=False, **settings))
        (before,), (after,) = ([n for n in all_nodes(p) if n.op_type == "LSTM"] for p in (canonical, model.proto))
        for k in (1, 2):
            array, found = _Weights(canonical)(before.input[k]), _Weights(model.proto)(after.input[k])
            step = 2 * np.abs(array).max(axis=2, keepdims=True) / (2**bits - 2)
            assert (np.abs(found - array) <= step).all(), settings


@pytest.mark.parametrize(("name", "share"), [("int8", 0.26), ("int4", 0.14), ("float16", 0.51)])
def test_size(name: str, share: float) -> None:
    float_proto, model = _quantized(_layer("LSTM", size=128, inputs=128), RECIPES[name])
    assert model.proto.ByteSize() < share * float_proto.ByteSize() + 4096
    (node,) = nodes_of(model, "LSTM")
    record = json.loads(info(node).metadata[WEIGHTS_TAG])
    assert record["W"] == record["R"] == [name]
    held = sum(numpy_helper.to_array(t).nbytes for t in model.proto.graph.initializer if t.name.startswith("layer."))
    assert record["bytes"] == held


def test_what_stays_float_is_counted() -> None:
    case = RecurrentCase(peepholes=True)
    (entry,) = rnnqc.lower(case.model(), "weight-only-int8").report.entries
    (note,) = (n for n in rnnqc.lower(case.model(), "weight-only-int8").report.notes if "weights stored in" in n)
    (stored,) = re.findall(r"stored in (\d+) bytes", note)
    parameters = case.parameters()
    assert entry.bytes == int(stored) + parameters["B"].nbytes + parameters["P"].nbytes


def test_rules_choose_the_matrices() -> None:
    recipe = INT8.with_overrides(["*.reverse.W.weight.bits=none", "*.R.weight.bits=4"])
    float_proto, model = _quantized(_layer("LSTM", direction="bidirectional"), recipe)
    _assert_float_with_dequantized_weights(float_proto, model.proto)
    (node,) = nodes_of(model, "LSTM")
    record = json.loads(info(node).metadata[WEIGHTS_TAG])
    assert (record["W"], record["R"]) == (["int8", "float32"], ["int4", "int4"])
    before, after = _Weights(float_proto)("W"), _Weights(model.proto)(node.inputs[1].name)
    np.testing.assert_array_equal(after[1], before[1])
    assert (after[0] != before[0]).any()


def test_a_float_layer_stays_as_it_is() -> None:
    model = Model.load(_layer("LSTM"))
    PassManager([Canonicalize()]).run(model)
    result = declines(QuantizeWeights(_recipe(bits=None)), model, "quantizes nothing")
    assert not result.modified


@pytest.mark.parametrize("name", RECIPES)
def test_a_file_that_was_quantized_before(name: str) -> None:
    """canonicalize folds what makes floats of the codes; the same codes come out again."""
    _, first = _quantized(_layer("LSTM", direction="bidirectional"), RECIPES[name])
    again = Model.load(first.proto)
    assert not QuantizeWeights(RECIPES[name])(again).modified
    _, second = _quantized(first.proto, RECIPES[name])
    values = []
    for model in (first, second):
        (node,) = nodes_of(model, "LSTM")
        values.append(_Weights(model.proto)(node.inputs[1].name))
        assert nodes_of(model, "Cast" if name == "float16" else "DequantizeLinear")
    np.testing.assert_allclose(values[0], values[1], rtol=1e-6)


def _two_layers_with_the_same_weights() -> onnx.ModelProto:
    proto = _layer("LSTM", size=6, inputs=6)
    squeeze = helper.make_node("Squeeze", ["Y", "axis"], ["X2"], name="squeeze")
    second = helper.make_node("LSTM", ["X2", "W", "R", "B"], ["Z"], name="second", hidden_size=6)
    proto.graph.node.extend([squeeze, second])
    proto.graph.initializer.append(numpy_helper.from_array(np.array([1], np.int64), "axis"))
    proto.graph.output[0].name = "Z"
    return proto


@pytest.mark.parametrize("name", RECIPES)
def test_shared_weights_are_stored_once(name: str) -> None:
    float_proto, model = _quantized(_two_layers_with_the_same_weights(), RECIPES[name])
    _assert_float_with_dequantized_weights(float_proto, model.proto)
    first, second = nodes_of(model, "LSTM")
    assert first.inputs[1] is second.inputs[1] and first.inputs[2] is second.inputs[2]
    assert len(nodes_of(model, "DequantizeLinear", "Cast")) == 2


def test_shared_weights_in_two_formats() -> None:
    recipe = INT8.with_overrides(["second.*.bits=4"])
    float_proto, model = _quantized(_two_layers_with_the_same_weights(), recipe)
    _assert_float_with_dequantized_weights(float_proto, model.proto)
    assert len(nodes_of(model, "DequantizeLinear")) == 4


def test_weights_of_an_outer_graph_are_stored_there() -> None:
    """They are stored and computed once for both branches or all iterations."""
    for placement in ("loop", "scan"):
        case = RecurrentCase(placement=placement, B=1, initial_h=True)  # type: ignore[arg-type]
        _, model = _quantized(case.model(), INT8)
        assert len([n for n in model.graph.nodes if n.op == "DequantizeLinear"]) == 2
        assert len(nodes_of(model, "DequantizeLinear")) == 2


@pytest.mark.parametrize("name", RECIPES)
def test_weights_of_a_subgraph_are_stored_there(name: str) -> None:
    proto = RecurrentCase(placement="if").model()
    held = {t.name: t for t in proto.graph.initializer}
    (choice,) = proto.graph.node
    for number, branch in enumerate(a.g for a in choice.attribute):
        (lstm,) = [n for n in branch.node if n.op_type == "LSTM"]
        for k in (1, 2):
            if lstm.input[k] not in held:
                continue  # R of the other branch is computed
            tensor = branch.initializer.add()
            tensor.CopyFrom(held[lstm.input[k]])
            tensor.name = lstm.input[k] = f"inner_{number}_{k}"
    float_proto, model = _quantized(proto, RECIPES[name])
    _assert_float_with_dequantized_weights(float_proto, model.proto)
    inner = [n.op for g in model.graphs() if g is not model.graph for n in g.nodes]
    assert inner.count("Cast" if name == "float16" else "DequantizeLinear") >= 3
    for graph in model.graphs():
        for node in (n for n in graph.nodes if n.op == "DequantizeLinear"):
            beside = [*graph_info(graph).initializers.values(), *(v for n in graph.nodes for v in n.outputs)]
            found = {id(v) for v in beside}
            assert found.issuperset(map(id, node.inputs)), "onnxruntime wants its constants beside it"


def test_equal_weights_of_two_branches_are_stored_once() -> None:
    """W and B are equal in the two branches, R is not."""
    proto = RecurrentCase(placement="if").model()
    (choice,) = proto.graph.node
    (lstm,) = [n for n in choice.attribute[0].g.node if n.op_type == "LSTM"]
    copy = proto.graph.initializer.add()
    copy.CopyFrom(next(t for t in proto.graph.initializer if t.name == lstm.input[1]))
    copy.name = lstm.input[1] = "equal"
    float_proto, model = _quantized(proto, INT8)
    _assert_float_with_dequantized_weights(float_proto, model.proto)
    assert len(nodes_of(model, "DequantizeLinear")) == 3


def test_compensated_codes() -> None:
    """Moments have the names of the cell's points; the codes have less error with them."""
    proto = _layer("LSTM", size=16, inputs=24)
    rng = np.random.default_rng(3)
    moments = {}
    for point, count in (("input", 24), ("hidden", 16)):
        x = rng.normal(size=(300, 5)) @ rng.normal(size=(5, count)) + 0.2 * rng.normal(size=(300, count))
        moments[f"layer.forward.{point}"] = x.T @ x / 300
    float_proto, plain = _quantized(proto, INT4)
    _, model = _quantized(proto, INT4, moments)
    _assert_float_with_dequantized_weights(float_proto, model.proto)
    for k, key, point in ((1, "W", "input"), (2, "R", "hidden")):
        array, moment = _Weights(float_proto)(key)[0].T, moments[f"layer.forward.{point}"]
        errors = [
            squared_error(_Weights(m.proto)(nodes_of(m, "LSTM")[0].inputs[k].name)[0].T - array, moment)
            for m in (plain, model)
        ]
        assert (errors[1] <= errors[0]).all() and errors[1].sum() < 0.5 * errors[0].sum()


def test_moments_of_another_model() -> None:
    other = Model.load(_layer("LSTM"))
    PassManager([Canonicalize()]).run(other)
    with pytest.raises(CompileError, match=r"nothing about cell 'layer\.forward'; cells: another\.forward.*calibrate"):
        QuantizeWeights(INT8, {"another.forward.input": np.eye(3)}).run(other)
    model = Model.load(_layer("LSTM"))
    PassManager([Canonicalize()]).run(model)
    with pytest.raises(CompileError, match=r"layer.forward.input.*\[7, 7\] for 3 inputs.*calibrate this model again"):
        QuantizeWeights(INT8, {"layer.forward.input": np.eye(7)}).run(model)


def _changed(key: str, change: Callable[[Array], Array]) -> Model:
    proto = _layer("LSTM")
    for tensor in proto.graph.initializer:
        if tensor.name == key:
            tensor.CopyFrom(numpy_helper.from_array(change(numpy_helper.to_array(tensor)), key))
    model = Model.load(proto)
    PassManager([Canonicalize()]).run(model)
    return model


def _nan(array: Array) -> Array:
    changed = array.copy()
    changed[0, 0, 0] = np.nan
    return changed


def test_declines_weights_that_are_not_finite() -> None:
    assert not declines(QuantizeWeights(INT8), _changed("R", _nan), "R is not finite").modified


def test_declines_weights_beyond_float16() -> None:
    model = _changed("W", lambda a: a * np.float32(1e6))
    assert not declines(QuantizeWeights(HALF), model, "beyond float16").modified
    assert QuantizeWeights(INT8).run(model).modified


def test_declines_computed_weights() -> None:
    proto = _layer("GRU")
    rows = [helper.make_tensor_value_info("W", TensorProto.FLOAT, [1, 18, 3])]
    proto.graph.input.extend(rows)
    kept = [t for t in proto.graph.initializer if t.name != "W"]
    del proto.graph.initializer[:]
    proto.graph.initializer.extend(kept)
    model = Model.load(proto)
    PassManager([Canonicalize()]).run(model)
    assert not declines(QuantizeWeights(INT8), model, "W is not constant").modified


def test_defaults_of_graph_inputs_are_named() -> None:
    proto = _layer("LSTM")
    proto.graph.input.append(helper.make_tensor_value_info("W", TensorProto.FLOAT, [1, 24, 3]))
    model = Model.load(proto)
    PassManager([Canonicalize()]).run(model)
    result = QuantizeWeights(INT8).run(model)
    model.check()
    assert any(r.outcome is Outcome.NOTE and "'W'" in r.found for r in result.remarks)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"bits": 16, "narrow": True}, "bits = 16.*2 to 8 bits"),
        ({"bits": 4, "narrow": True, "group_size": 32}, "group_size = 32.*one scale for each channel"),
        ({"bits": 4, "narrow": True, "wide_channels": 0.1}, "wide_channels = 0.1"),
        ({"bits": 8, "share": "x"}, "share = x.*scales of their own"),
        ({"bits": 8, "bias_correction": True}, "bias_correction = true.*biases as they are"),
        ({"bits": 8, "shift_limits": True}, "shift_limits = true"),
    ],
)
def test_formats_that_do_not_exist(settings: dict[str, Any], message: str) -> None:
    model = Model.load(_layer("LSTM"))
    PassManager([Canonicalize()]).run(model)
    with pytest.raises(CompileError, match=f"layer.forward.W.weight.*{message}"):
        QuantizeWeights(_recipe(**settings)).run(model)


@pytest.mark.parametrize(
    ("override", "message"),
    [("other.*.bits=4", "No quantization point matches"), ("*.hidden.bits=8", "is no weight")],
)
def test_overrides_without_effect(override: str, message: str) -> None:
    model = Model.load(_layer("LSTM"))
    PassManager([Canonicalize()]).run(model)
    recipe = Recipe("weights", "", (parse_override(override), *INT8.rules), 1)
    with pytest.raises(UsageError, match=message):
        QuantizeWeights(recipe).run(model)


REAL = (
    "dtln/model_1.onnx",
    "silero_vad/silero_vad_16k_op15.onnx",
    "vitis_rnn/imdb_lstm_torch.onnx",
    "vitis_rnn/imdb_gru_torch.onnx",
    "byte_sb_bidi_lstm/model.onnx",
    "gtcrn/gtcrn_simple.onnx",
    "rnnoise/rnnoise.onnx",
)


@pytest.mark.few(1)
@in_turn(path=REAL, name=RECIPES)
def test_real_models(shared: Callable[[str], Path], path: str, name: str) -> None:
    model = Model.load(shared(f"models/{path}"))
    PassManager([Canonicalize()]).run(model)
    float_proto = model.proto
    result = QuantizeWeights(RECIPES[name])(model)
    recurrent = [n for n in all_nodes(float_proto) if n.op_type in RECURRENT]
    assert result.statistics["nodes"] == len(recurrent) > 0
    feeds = None
    if path.startswith("silero_vad"):
        x = np.random.default_rng(0).normal(0, 0.1, (1, 576)).astype(np.float32)
        feeds = {"input": x, "state": np.zeros((2, 1, 128), np.float32), "sr": np.array(16000, np.int64)}
    _assert_float_with_dequantized_weights(float_proto, model.proto, 2e-5, feeds)
    stored = sum(json.loads(info(n).metadata[WEIGHTS_TAG])["bytes"] for n in nodes_of(model, *RECURRENT))
    values = {i for n in recurrent for i in n.input[1:3]}
    float_bytes = sum(array.nbytes for value, array in _Weights(float_proto).constants.items() if value in values)
    assert 0 < stored < {"int8": 0.4, "int4": 0.3, "float16": 0.51}[name] * float_bytes


@pytest.mark.parametrize("recipe", ["weight-only-int8", "fp16", "int8"])
def test_no_constant_of_a_layer_stays_a_graph_input(recipe: str) -> None:
    """onnxruntime warns of such constants in every session."""
    proto = RecurrentCase(peepholes=True).model()
    node = next(n for n in proto.graph.node if n.op_type == "LSTM")
    held = {t.name: t for t in proto.graph.initializer}
    for tensor in (held[n] for n in node.input if n in held):
        proto.graph.input.append(helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims)))
    lowered = rnnqc.lower(proto, recipe)
    assert not {v.name for v in lowered.proto.graph.input} & {t.name for t in lowered.proto.graph.initializer}
    (entry,) = lowered.report.entries
    assert entry.status == "lowered" and "the inputs go" in entry.reason
    for name in (node.input[k] for k in (1, 2, 3, 7)):
        assert repr(name) in entry.found
