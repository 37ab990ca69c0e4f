"""Reading LSTM nodes: what is invalid, what stays float, and what is made explicit.

What these would catch: a node that is lowered although it is not understood, a default that is not ONNX's, a message
that does not say what is wrong.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rnnqc.cells.activations import Activation
from rnnqc.errors import CompileError, NotHandled
from rnnqc.ir import Constant, Model, Node, Variable
from rnnqc.passes.graph.nodes.lstm_node import read_layer
from tests.generate.float_layer import Activation as OnnxActivation
from tests.generate.layers import RecurrentCase
from tests.passes.pass_testing import nodes_of


def _node(case: RecurrentCase | None = None, inputs: dict[int, Any] | None = None, **attributes: Any) -> Node:
    """The LSTM node of a case with changed attributes and inputs; arrays become constants."""
    model = Model.load((case or RecurrentCase()).model())
    model.infer_shapes()
    (node,) = nodes_of(model, "LSTM")
    node.__dict__["_test_model"] = model
    for key, value in attributes.items():
        if value is None:
            node.attrs.pop(key, None)
        else:
            node.attrs[key] = value
    for k, value in (inputs or {}).items():
        while len(node.inputs) <= k:
            node.inputs.append(Variable.empty())
        node.inputs[k] = Constant(f"input_{k}", value) if isinstance(value, np.ndarray) else value or Variable.empty()
    return node


def test_defaults_are_made_explicit() -> None:
    lstm = read_layer(_node(RecurrentCase(bias=False)))
    assert (lstm.name, lstm.hidden_size, lstm.input_size, lstm.directions) == ("the_lstm", 4, 3, (False,))
    assert lstm.activations == ((Activation("Sigmoid"), Activation("Tanh"), Activation("Tanh")),)
    assert (lstm.clip, lstm.input_forget, lstm.weights["P"]) == (None, False, None)
    np.testing.assert_array_equal(lstm.weights["B"], np.zeros((1, 32), np.float32))


def test_everything_given() -> None:
    activations = (OnnxActivation("HardSigmoid", 0.25, 0.5), OnnxActivation("Tanh"), OnnxActivation("Elu", 0.5))
    more = (OnnxActivation("Sigmoid"), OnnxActivation("ScaledTanh", 1.5, 0.5), OnnxActivation("LeakyRelu", 0.125))
    case = RecurrentCase(
        direction="bidirectional", activations=activations + more, clip=2.0, input_forget=True, peepholes=True
    )
    lstm = read_layer(_node(case))
    assert lstm.directions == (False, True)
    assert lstm.activations == (
        (Activation("HardSigmoid", 0.25, 0.5), Activation("Tanh"), Activation("Elu", 0.5)),
        (Activation("Sigmoid"), Activation("ScaledTanh", 1.5, 0.5), Activation("LeakyRelu", 0.125)),
    )
    assert (lstm.clip, lstm.input_forget) == (2.0, True)
    for key, value in case.parameters().items():
        np.testing.assert_array_equal(lstm.weights[key], value)


def test_hidden_size_from_the_shape_of_r() -> None:
    assert read_layer(_node(hidden_size=None)).hidden_size == 4


def test_infinite_clip_is_no_clip() -> None:
    assert read_layer(_node(clip=float("inf"))).clip is None


def test_missing_alphas_take_the_defaults() -> None:
    lstm = read_layer(_node(activations=["hardsigmoid", "Affine", "Elu"], activation_alpha=[0.3]))
    assert lstm.activations == (
        (Activation("HardSigmoid", 0.3, 0.5), Activation("Affine", 1.0, 0.0), Activation("Elu", 1.0)),
    )


@pytest.mark.parametrize(
    ("attributes", "inputs", "message"),
    [
        ({"direction": "sideways"}, {}, r"direction = 'sideways'.*forward, reverse, bidirectional"),
        ({"hidden_size": 0}, {}, r"hidden_size = 0.*a positive number"),
        (
            {"hidden_size": 5},
            {},
            r"input W has shape \[1, 16, 3\]; hidden_size 5 and 1 direction\(s\) need \[1, 20, \?\]",
        ),
        ({"direction": "bidirectional"}, {}, r"input W has shape \[1, 16, 3\].*2 direction\(s\) need \[2, 16, \?\]"),
        ({"clip": -1.0}, {}, r"clip = -1\.0.*a positive number"),
        ({"clip": 0.0}, {}, r"clip = 0\.0"),
        ({"clip": float("nan")}, {}, r"clip = nan"),
        ({"input_forget": 2}, {}, r"input_forget = 2.*0 or 1"),
        (
            {"activations": ["Sigmoid", "Tanh"]},
            {},
            r"2 activations for 1 direction\(s\).*3: f, g, h for each direction",
        ),
        ({"activations": ["Sigmoid", "Swish", "Tanh"]}, {}, r"activation 'Swish'.*Sigmoid"),
        (
            {"activations": ["Sigmoid", "Affine", "Tanh"], "activation_alpha": [float("inf")]},
            {},
            r"activation Affine with alpha = inf",
        ),
        ({}, {0: None}, r"input X is missing"),
        ({}, {1: None}, r"input W is missing"),
        ({}, {2: None}, r"input R is missing"),
        ({}, {1: np.zeros((16, 3), np.float32)}, r"input W has shape \[16, 3\].*rank 3"),
        ({}, {1: np.zeros((1, 16, 0), np.float32)}, r"W has no columns"),
        ({}, {1: np.zeros((1, 16, 2), np.float32)}, r"input X has shape \[5, 2, 3\].*need \[\?, \?, 2\]"),
        ({}, {2: np.zeros((1, 16, 5), np.float32)}, r"input R has shape \[1, 16, 5\].*need \[1, 16, 4\]"),
        ({}, {2: np.zeros((1, 16, 3), np.float32)}, r"proj_size = 3.*R \[1, 16, 3\]"),
        ({}, {3: np.zeros((1, 16), np.float32)}, r"input B has shape \[1, 16\].*need \[1, 32\]"),
        ({}, {4: np.zeros(2, np.int64)}, r"input sequence_lens is int64.*int32.*Cast"),
        ({}, {4: np.zeros((2, 1), np.int32)}, r"input sequence_lens has shape \[2, 1\].*rank 1"),
        ({}, {5: np.zeros((1, 2, 5), np.float32)}, r"input initial_h has shape \[1, 2, 5\].*need \[1, \?, 4\]"),
        ({}, {6: np.zeros((2, 2, 4), np.float32)}, r"input initial_c has shape \[2, 2, 4\]"),
        ({}, {7: np.zeros((1, 8), np.float32)}, r"input P has shape \[1, 8\].*need \[1, 12\]"),
    ],
)
def test_invalid(attributes: dict[str, Any], inputs: dict[int, Any], message: str) -> None:
    with pytest.raises(CompileError, match=rf"^Operator \"LSTM\" \(node 'the_lstm'\): .*{message}"):
        read_layer(_node(None, inputs, **attributes))


W = np.zeros((1, 16, 3), np.float32)
NAN = np.full((1, 16, 3), np.nan, np.float32)


@pytest.mark.parametrize(
    ("inputs", "reason", "found"),
    [
        ({1: Variable("v", np.float32, [1, 16, 3])}, "W is not constant.", "W is the graph input 'v'"),
        ({3: Variable("v", np.float32, [1, 32])}, "B is not constant.", "B is the graph input 'v'"),
        ({7: Variable("v", np.float32, [1, 12])}, "P is not constant.", "P is the graph input 'v'"),
        ({1: W.astype(np.float64)}, "W is float64.", "W of type float64"),
        ({1: W.astype(np.float16)}, "W is float16.", "W of type float16"),
        ({0: Variable("x", np.float64, [5, 2, 3])}, "X is float64.", "X of type float64"),
        ({1: NAN}, "W is not finite.", "NaN or infinity in W"),
        ({2: np.full((1, 16, 4), np.inf, np.float32)}, "R is not finite.", "NaN or infinity in R"),
    ],
)
def test_stays_float(inputs: dict[int, Any], reason: str, found: str) -> None:
    with pytest.raises(NotHandled) as caught:
        read_layer(_node(None, inputs))
    assert (caught.value.reason, caught.value.found) == (reason, found)
    assert caught.value.action


def test_unknown_hidden_size() -> None:
    with pytest.raises(NotHandled, match="the hidden size is not known"):
        read_layer(_node(None, {2: Variable("r", np.float32, None)}, hidden_size=None))


def test_no_output() -> None:
    node = _node()
    node.outputs.clear()
    with pytest.raises(NotHandled, match="nothing uses it"):
        read_layer(node)
