"""Tiny recurrent models for tests, each exercising one thing; made with onnx.helper alone and byte-reproducible.

A model is a function marked with ``@_tiny(what it exercises)`` that receives a generator seeded from its name.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

INPUT, HIDDEN = 3, 5
OPSET = 17
IR_VERSIONS = {7: 3, OPSET: 8, 22: 10}
"""Opset -> the IR version that was current with it."""

Array = npt.NDArray[np.generic]
Shape = Sequence[int | str]
Builder = Callable[[np.random.Generator], onnx.ModelProto]


@dataclass(frozen=True)
class TinyModel:
    """One model: file stem, what it exercises, and whether onnxruntime's CPU provider has a kernel for it."""

    name: str
    exercises: str
    builder: Builder
    runs: bool

    def build(self) -> onnx.ModelProto:
        """Make the model; every call gives the same bytes."""
        return self.builder(np.random.default_rng(zlib.crc32(self.name.encode())))


TINY_MODELS: list[TinyModel] = []


def _tiny(exercises: str, *, runs: bool = True) -> Callable[[Builder], Builder]:
    def add(builder: Builder) -> Builder:
        TINY_MODELS.append(TinyModel(builder.__name__, exercises, builder, runs))
        return builder

    return add


def _weights(
    rng: np.random.Generator, *, size: int = INPUT, directions: int = 1, gates: int = 4, suffix: str = ""
) -> dict[str, Array]:
    """Initializers ``W [D,gH,size]``, ``R [D,gH,H]`` and ``B [D,2gH]`` in float32, standard deviation 1/2."""
    shapes = {
        "W": (directions, gates * HIDDEN, size),
        "R": (directions, gates * HIDDEN, HIDDEN),
        "B": (directions, 2 * gates * HIDDEN),
    }
    return {name + suffix: rng.normal(0.0, 0.5, shape).astype(np.float32) for name, shape in shapes.items()}


def _value(name: str, shape: Shape, dtype: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, dtype, list(shape))


def _x() -> onnx.ValueInfoProto:
    return _value("X", ["T", "B", INPUT])


def _y(name: str = "Y", directions: int = 1) -> onnx.ValueInfoProto:
    return _value(name, ["T", directions, "B", HIDDEN])


def _state(name: str, directions: int = 1) -> onnx.ValueInfoProto:
    return _value(name, [directions, "B", HIDDEN])


def _lstm(inputs: str = "X W R B", outputs: str = "Y", *, name: str = "lstm", **attributes: Any) -> onnx.NodeProto:
    """An LSTM node; names are separated by blanks, ``-`` is an absent one."""
    sources, results = ([part.replace("-", "") for part in text.split()] for text in (inputs, outputs))
    return helper.make_node("LSTM", sources, results, name=name, hidden_size=HIDDEN, **attributes)


def _tensors(arrays: Mapping[str, Array]) -> list[onnx.TensorProto]:
    return [numpy_helper.from_array(array, name) for name, array in arrays.items()]


def _model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[onnx.ValueInfoProto],
    outputs: Sequence[onnx.ValueInfoProto],
    initializers: Mapping[str, Array],
    *,
    opset: int = OPSET,
    functions: Sequence[onnx.FunctionProto] = (),
) -> onnx.ModelProto:
    graph = helper.make_graph(nodes, "tiny", inputs, outputs, _tensors(initializers))
    opsets = [helper.make_opsetid("", opset), *(helper.make_opsetid(function.domain, 1) for function in functions)]
    model = helper.make_model(graph, opset_imports=opsets, functions=functions, producer_name="rnnqc tiny models")
    model.ir_version = IR_VERSIONS[opset]
    return model


def _single(rng: np.random.Generator, outputs: str = "Y", **attributes: Any) -> onnx.ModelProto:
    """X -> one LSTM -> Y (and Y_h, Y_c when named)."""
    directions = 2 if attributes.get("direction") == "bidirectional" else 1
    values = [_y(directions=directions) if name == "Y" else _state(name, directions) for name in outputs.split()]
    return _model([_lstm(outputs=outputs, **attributes)], [_x()], values, _weights(rng, directions=directions))


@_tiny("one forward LSTM, the plainest case; Y, Y_h and Y_c")
def lstm_forward(rng: np.random.Generator) -> onnx.ModelProto:
    return _single(rng, "Y Y_h Y_c")


@_tiny("direction reverse")
def lstm_reverse(rng: np.random.Generator) -> onnx.ModelProto:
    return _single(rng, "Y Y_h Y_c", direction="reverse")


@_tiny("direction bidirectional, initial states")
def lstm_bidirectional(rng: np.random.Generator) -> onnx.ModelProto:
    return _model(
        [_lstm("X W R B - h0 c0", "Y Y_h Y_c", direction="bidirectional")],
        [_x(), _state("h0", 2), _state("c0", 2)],
        [_y(directions=2), _state("Y_h", 2), _state("Y_c", 2)],
        _weights(rng, directions=2),
    )


@_tiny("streaming: initial states as inputs, Y_h and Y_c as outputs")
def lstm_states(rng: np.random.Generator) -> onnx.ModelProto:
    return _model(
        [_lstm("X W R B - h0 c0", "Y hn cn")],
        [_x(), _state("h0"), _state("c0")],
        [_y(), _state("hn"), _state("cn")],
        _weights(rng),
    )


@_tiny("no bias; only Y_h is used")
def lstm_last_state(rng: np.random.Generator) -> onnx.ModelProto:
    weights = _weights(rng)
    del weights["B"]
    return _model([_lstm("X W R", "- Y_h")], [_x()], [_state("Y_h")], weights)


@_tiny("peephole weights")
def lstm_peepholes(rng: np.random.Generator) -> onnx.ModelProto:
    peepholes = rng.normal(0.0, 0.5, (1, 3 * HIDDEN)).astype(np.float32)
    node = _lstm("X W R B - - - P", "Y Y_h Y_c")
    return _model([node], [_x()], [_y(), _state("Y_h"), _state("Y_c")], _weights(rng) | {"P": peepholes})


@_tiny("sequence_lens, bidirectional")
def lstm_sequence_lens(rng: np.random.Generator) -> onnx.ModelProto:
    return _model(
        [_lstm("X W R B lengths", "Y Y_h Y_c", direction="bidirectional")],
        [_x(), _value("lengths", ["B"], TensorProto.INT32)],
        [_y(directions=2), _state("Y_h", 2), _state("Y_c", 2)],
        _weights(rng, directions=2),
    )


@_tiny("layout 1 (batch first), which onnxruntime's CPU kernel refuses", runs=False)
def lstm_layout1(rng: np.random.Generator) -> onnx.ModelProto:
    return _model(
        [_lstm("X W R B - h0 c0", "Y Y_h Y_c", layout=1)],
        [_value("X", ["B", "T", INPUT]), *(_value(name, ["B", 1, HIDDEN]) for name in ("h0", "c0"))],
        [_value("Y", ["B", "T", 1, HIDDEN]), *(_value(name, ["B", 1, HIDDEN]) for name in ("Y_h", "Y_c"))],
        _weights(rng),
    )


@_tiny("clip of the pre-activations")
def lstm_clip(rng: np.random.Generator) -> onnx.ModelProto:
    return _single(rng, "Y Y_c", clip=0.5)


@_tiny("input_forget = 1 (coupled gates)")
def lstm_input_forget(rng: np.random.Generator) -> onnx.ModelProto:
    return _single(rng, "Y Y_c", input_forget=1)


@_tiny("activations HardSigmoid (own alpha and beta), Softsign, Tanh")
def lstm_hard_sigmoid(rng: np.random.Generator) -> onnx.ModelProto:
    names = ["HardSigmoid", "Softsign", "Tanh"]
    return _single(rng, "Y Y_c", activations=names, activation_alpha=[0.25], activation_beta=[0.5])


@_tiny("activations Sigmoid, Relu, LeakyRelu, different in the two directions")
def lstm_relu(rng: np.random.Generator) -> onnx.ModelProto:
    names = ["Sigmoid", "Relu", "LeakyRelu", "Sigmoid", "Tanh", "Relu"]
    return _single(rng, "Y", direction="bidirectional", activations=names, activation_alpha=[0.125])


@_tiny("LSTM in both branches of an If; weights in the outer graph and in a branch")
def lstm_in_if(rng: np.random.Generator) -> onnx.ModelProto:
    inner = _weights(rng, suffix="_inner")
    outer_branch = helper.make_graph([_lstm(outputs="Y_then", name="lstm_then")], "then", [], [_y("Y_then")])
    inner_branch = helper.make_graph(
        [_lstm("X W_inner R_inner B_inner", "Y_else", name="lstm_else", direction="reverse")],
        "else",
        [],
        [_y("Y_else")],
        _tensors(inner),
    )
    node = helper.make_node(
        "If", ["condition"], ["Y"], name="branch", then_branch=outer_branch, else_branch=inner_branch
    )
    return _model([node], [_x(), _value("condition", [], TensorProto.BOOL)], [_y()], _weights(rng))


@_tiny("LSTM in the body of a Loop, states carried")
def lstm_in_loop(rng: np.random.Generator) -> onnx.ModelProto:
    body = helper.make_graph(
        [
            _lstm("X W R B - h_in c_in", "Y_step h_out c_out"),
            helper.make_node("Identity", ["keep_in"], ["keep_out"]),
        ],
        "body",
        [
            _value("step", [], TensorProto.INT64),
            _value("keep_in", [], TensorProto.BOOL),
            _state("h_in"),
            _state("c_in"),
        ],
        [_value("keep_out", [], TensorProto.BOOL), _state("h_out"), _state("c_out"), _y("Y_step")],
    )
    node = helper.make_node("Loop", ["trips", "", "h0", "c0"], ["hn", "cn", "Y"], name="loop", body=body)
    return _model(
        [node],
        [_x(), _value("trips", [], TensorProto.INT64), _state("h0"), _state("c0")],
        [_state("hn"), _state("cn"), _value("Y", ["N", "T", 1, "B", HIDDEN])],
        _weights(rng),
    )


@_tiny("LSTM in the body of a Scan over chunks, states carried")
def lstm_in_scan(rng: np.random.Generator) -> onnx.ModelProto:
    body = helper.make_graph(
        [_lstm("chunk W R B - h_in c_in", "Y_chunk h_out c_out")],
        "body",
        [_state("h_in"), _state("c_in"), _value("chunk", ["T", "B", INPUT])],
        [_state("h_out"), _state("c_out"), _y("Y_chunk")],
    )
    node = helper.make_node("Scan", ["h0", "c0", "X"], ["hn", "cn", "Y"], name="scan", body=body, num_scan_inputs=1)
    return _model(
        [node],
        [_value("X", ["N", "T", "B", INPUT]), _state("h0"), _state("c0")],
        [_state("hn"), _state("cn"), _value("Y", ["N", "T", 1, "B", HIDDEN])],
        _weights(rng),
    )


@_tiny("LSTM in a model-local function that is called twice with different weights")
def lstm_in_function(rng: np.random.Generator) -> onnx.ModelProto:
    body = [
        _lstm("x w r b", "y4"),
        helper.make_node("Constant", [], ["axis"], value_ints=[1]),
        helper.make_node("Squeeze", ["y4", "axis"], ["y"]),
    ]
    opsets = [helper.make_opsetid("", OPSET)]
    encoder = helper.make_function("tiny.local", "Encoder", ["x", "w", "r", "b"], ["y"], body, opsets)
    calls = [
        helper.make_node("Encoder", ["X", "W", "R", "B"], ["hidden"], name="first", domain="tiny.local"),
        helper.make_node("Encoder", ["hidden", "W_2", "R_2", "B_2"], ["Y"], name="second", domain="tiny.local"),
    ]
    weights = _weights(rng) | _weights(rng, size=HIDDEN, suffix="_2")
    return _model(calls, [_x()], [_value("Y", ["T", "B", HIDDEN])], weights, functions=[encoder])


@_tiny("weights computed in the graph: gates reordered i,f,c,o -> i,o,f,c by Slice, Concat and Unsqueeze")
def lstm_weights_computed(rng: np.random.Generator) -> onnx.ModelProto:
    shapes = {"w_ih": (4 * HIDDEN, INPUT), "w_hh": (4 * HIDDEN, HIDDEN), "b_ih": (4 * HIDDEN,), "b_hh": (4 * HIDDEN,)}
    arrays: dict[str, Array] = {name: rng.normal(0.0, 0.5, shape).astype(np.float32) for name, shape in shapes.items()}
    arrays |= {f"at_{gate}": np.array([gate * HIDDEN], np.int64) for gate in range(5)}
    arrays["axis_0"] = np.array([0], np.int64)
    nodes = []
    for name in shapes:
        parts = [f"{name}_{gate}" for gate in range(4)]
        for gate, part in enumerate(parts):
            nodes.append(helper.make_node("Slice", [name, f"at_{gate}", f"at_{gate + 1}", "axis_0"], [part]))
        nodes.append(helper.make_node("Concat", [parts[gate] for gate in (0, 3, 1, 2)], [f"{name}_iofc"], axis=0))
    nodes += [
        helper.make_node("Concat", ["b_ih_iofc", "b_hh_iofc"], ["b_iofc"], axis=0),
        helper.make_node("Unsqueeze", ["w_ih_iofc", "axis_0"], ["W"]),
        helper.make_node("Unsqueeze", ["w_hh_iofc", "axis_0"], ["R"]),
        helper.make_node("Unsqueeze", ["b_iofc", "axis_0"], ["B"]),
        _lstm(),
    ]
    return _model(nodes, [_x()], [_y()], arrays)


@_tiny("weights held by Constant nodes")
def lstm_constant_nodes(rng: np.random.Generator) -> onnx.ModelProto:
    constants = [helper.make_node("Constant", [], [tensor.name], value=tensor) for tensor in _tensors(_weights(rng))]
    return _model([*constants, _lstm()], [_x()], [_y()], {})


@_tiny("weights that are graph inputs, so there is nothing to quantize ahead of time")
def lstm_weights_as_inputs(rng: np.random.Generator) -> onnx.ModelProto:
    weights = _weights(rng)
    inputs = [_value(name, array.shape) for name, array in weights.items()]
    return _model([_lstm()], [_x(), *inputs], [_y()], {})


@_tiny("two LSTM nodes that share all weights")
def lstm_shared_weights(rng: np.random.Generator) -> onnx.ModelProto:
    nodes = [_lstm(outputs="Y", name="left"), _lstm("X_2 W R B", "Y_2", name="right")]
    return _model(nodes, [_x(), _value("X_2", ["T", "B", INPUT])], [_y(), _y("Y_2")], _weights(rng))


@_tiny("two stacked layers, the first bidirectional")
def lstm_two_layers(rng: np.random.Generator) -> onnx.ModelProto:
    nodes = [
        _lstm(outputs="Y_1", name="layer_1", direction="bidirectional"),
        helper.make_node("Transpose", ["Y_1"], ["by_batch"], perm=[0, 2, 1, 3]),
        helper.make_node("Reshape", ["by_batch", "joined"], ["X_2"]),
        _lstm("X_2 W_2 R_2 B_2", "Y", name="layer_2"),
    ]
    weights = _weights(rng, directions=2) | _weights(rng, size=2 * HIDDEN, suffix="_2")
    return _model(nodes, [_x()], [_y()], weights | {"joined": np.array([0, 0, -1], np.int64)})


@_tiny("opset 7, IR version 3: initializers are graph inputs too")
def lstm_opset7(rng: np.random.Generator) -> onnx.ModelProto:
    weights = _weights(rng)
    nodes = [_lstm(outputs="Y_4"), helper.make_node("Squeeze", ["Y_4"], ["Y"], axes=[1])]
    inputs = [_x(), *(_value(name, array.shape) for name, array in weights.items())]
    return _model(nodes, inputs, [_value("Y", ["T", "B", HIDDEN])], weights, opset=7)


@_tiny("opset 22, IR version 10 (needs onnxruntime 1.20)")
def lstm_opset22(rng: np.random.Generator) -> onnx.ModelProto:
    return _model([_lstm()], [_x()], [_y()], _weights(rng), opset=22)


@_tiny("names with blanks, slashes, colons, quotes, brackets and non-ASCII letters; nodes without a name")
def lstm_escaped_names(rng: np.random.Generator) -> onnx.ModelProto:
    names = {"W": "enc/lstm::W[0]", "R": 'R "quoted" <&>', "B": "b\\ias, été"}
    weights = {names[name]: array for name, array in _weights(rng).items()}
    x, hidden, y = "audio in/frames:0", "enc.lstm{hidden}", "sortie=été #1"
    nodes = [
        helper.make_node("LSTM", [x, *names.values()], [hidden], hidden_size=HIDDEN),
        helper.make_node("Relu", [hidden], [y]),
    ]
    steps, batch = "frame count", "batch/size"
    return _model(nodes, [_value(x, [steps, batch, INPUT])], [_value(y, [steps, 1, batch, HIDDEN])], weights)


@_tiny("GRU, linear_before_reset 1, bidirectional")
def gru_bidirectional(rng: np.random.Generator) -> onnx.ModelProto:
    attributes: dict[str, Any] = {"hidden_size": HIDDEN, "linear_before_reset": 1, "direction": "bidirectional"}
    node = helper.make_node("GRU", ["X", "W", "R", "B"], ["Y"], name="gru", **attributes)
    return _model([node], [_x()], [_y(directions=2)], _weights(rng, directions=2, gates=3))


@_tiny("RNN with Relu")
def rnn_relu(rng: np.random.Generator) -> onnx.ModelProto:
    node = helper.make_node("RNN", ["X", "W", "R", "B"], ["Y"], name="rnn", hidden_size=HIDDEN, activations=["Relu"])
    return _model([node], [_x()], [_y()], _weights(rng, gates=1))
