"""The ONNX operators LSTM, GRU and RNN in numpy float64, with every attribute and every optional input.

One step, gates in ONNX order (`clip` limits the bracketed pre-activations only). LSTM, gates i, o, f, c:

    i = act0([x Wi' + h Ri' + bi + Pi c]),  f = act0([x Wf' + h Rf' + bf + Pf c])  or  1 - i
    c' = f c + i act1([x Wc' + h Rc' + bc]),  o = act0([x Wo' + h Ro' + bo + Po c']),  h' = o act2(c')

GRU, gates z, r, h, the latter with `linear_before_reset` 0 or 1; RNN:

    z = act0([x Wz' + h Rz' + bz]),  r = act0([x Wr' + h Rr' + br])
    n = act1([x Wh' + (r h) Rh' + Rbh + Wbh])  or  act1([x Wh' + r (h Rh' + Rbh) + Wbh]),  h' = (1 - z) n + z h

    h' = act0([x W' + h R' + b])

Where the ONNX text is silent the rules are onnxruntime's: rows at or beyond a sequence's length are zero in Y, a
sequence of length 0 has zero Y_h and Y_c whatever its initial state, alphas and betas are consumed in order by the
activations that take them, and a missing one has the default of `DEFAULT_ARGUMENTS`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import onnx

FloatArray = npt.NDArray[np.floating[Any]]
IntArray = npt.NDArray[np.integer[Any]]
Direction = Literal["forward", "reverse", "bidirectional"]
Function = Callable[[FloatArray], FloatArray]

USES_ALPHA = frozenset({"Affine", "LeakyRelu", "ThresholdedRelu", "ScaledTanh", "HardSigmoid", "Elu"})
USES_BETA = frozenset({"Affine", "ScaledTanh", "HardSigmoid"})
# onnxruntime's; the ONNX operators of the same names differ for ThresholdedRelu and Affine, so state those explicitly.
DEFAULT_ARGUMENTS = {"LeakyRelu": (0.01, 0.0), "HardSigmoid": (0.2, 0.5), "Elu": (1.0, 0.0)}


@dataclass(frozen=True)
class Activation:
    """One entry of the `activations` attribute; None leaves alpha or beta out of the model."""

    name: str
    alpha: float | None = None
    beta: float | None = None

    def function(self) -> Function:
        """The activation as a function of a float64 array."""
        alpha, beta = DEFAULT_ARGUMENTS.get(self.name, (0.0, 0.0))
        # The model stores float32.
        alpha = alpha if self.alpha is None else float(np.float32(self.alpha))
        beta = beta if self.beta is None else float(np.float32(self.beta))
        return _FUNCTIONS[self.name](alpha, beta)


def _sigmoid(v: FloatArray) -> FloatArray:
    return np.asarray(0.5 + 0.5 * np.tanh(0.5 * v))


_FUNCTIONS: dict[str, Callable[[float, float], Function]] = {
    "Sigmoid": lambda a, b: _sigmoid,
    "Tanh": lambda a, b: np.tanh,
    "Relu": lambda a, b: lambda v: np.maximum(v, 0.0),
    "Affine": lambda a, b: lambda v: a * v + b,
    "LeakyRelu": lambda a, b: lambda v: np.where(v >= 0.0, v, a * v),
    "ThresholdedRelu": lambda a, b: lambda v: np.where(v > a, v, 0.0),
    "ScaledTanh": lambda a, b: lambda v: a * np.tanh(b * v),
    "HardSigmoid": lambda a, b: lambda v: np.clip(a * v + b, 0.0, 1.0),
    "Elu": lambda a, b: lambda v: np.where(v >= 0.0, v, a * np.expm1(np.minimum(v, 0.0))),
    "Softsign": lambda a, b: lambda v: v / (1.0 + np.abs(v)),
    "Softplus": lambda a, b: lambda v: np.logaddexp(0.0, v),
}
ACTIVATION_NAMES = tuple(_FUNCTIONS)
DEFAULT_ACTIVATIONS = (Activation("Sigmoid"), Activation("Tanh"), Activation("Tanh"))
OPS = ("LSTM", "GRU", "RNN")
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
FLAGS = {"LSTM": ("input_forget",), "GRU": ("linear_before_reset",)}
DEFAULTS = {"LSTM": DEFAULT_ACTIVATIONS, "GRU": DEFAULT_ACTIVATIONS[:2], "RNN": DEFAULT_ACTIVATIONS[1:2]}


@dataclass(frozen=True)
class LayerOutputs:
    """Float64 outputs, shaped as the operator shapes them for the given layout; `Y_c` of LSTM only, zeros otherwise."""

    Y: FloatArray
    Y_h: FloatArray
    Y_c: FloatArray


def float_layer(
    x: FloatArray,
    w: FloatArray,
    r: FloatArray,
    b: FloatArray | None = None,
    sequence_lens: IntArray | None = None,
    initial_h: FloatArray | None = None,
    initial_c: FloatArray | None = None,
    p: FloatArray | None = None,
    *,
    op: str = "LSTM",
    direction: Direction = "forward",
    activations: Sequence[Activation] | None = None,
    clip: float | None = None,
    input_forget: bool = False,
    linear_before_reset: bool = False,
    layout: int = 0,
) -> LayerOutputs:
    """Compute one ONNX LSTM, GRU or RNN node; G is the number of its gates.

    Args:
        x: `[T,B,I]`, or `[B,T,I]` for layout 1.
        w: `[D,GH,I]`.
        r: `[D,GH,H]`.
        b: `[D,2GH]`.
        sequence_lens: `[B]`, each 0 .. T.
        initial_h: `[D,B,H]`, or `[B,D,H]` for layout 1.
        initial_c: as `initial_h`; LSTM only.
        p: `[D,3H]`, in the order i, o, f; LSTM only.
        op: "LSTM", "GRU" or "RNN".
        direction: decides D.
        activations: three per direction of LSTM, two of GRU, one of RNN.
        clip: limit of the pre-activations.
        input_forget: LSTM: couple the gates, f = 1 - i.
        linear_before_reset: GRU: the reset gate multiplies the product with R, with its bias.
        layout: 0 or 1.

    Raises:
        ValueError: if a shape, a length or the number of activations does not fit, or the operator has no such input.
    """
    if op != "LSTM" and (initial_c is not None or p is not None):
        raise ValueError(f"{op} has neither initial_c nor P")
    gates, per_direction = GATES[op], len(DEFAULTS[op])
    directions = 2 if direction == "bidirectional" else 1
    if layout == 1:
        x = np.swapaxes(x, 0, 1)
        initial_h = None if initial_h is None else np.swapaxes(initial_h, 0, 1)
        initial_c = None if initial_c is None else np.swapaxes(initial_c, 0, 1)
    steps, batch, _ = x.shape
    hidden = r.shape[2]
    if w.shape != (directions, gates * hidden, x.shape[2]) or r.shape != (directions, gates * hidden, hidden):
        raise ValueError(f"W {w.shape} and R {r.shape} do not fit X {x.shape} and direction {direction}")
    chosen = list(activations) if activations is not None else list(DEFAULTS[op]) * directions
    if len(chosen) != per_direction * directions:
        raise ValueError(f"{len(chosen)} activations for {directions} direction(s)")
    lens = np.full(batch, steps) if sequence_lens is None else np.asarray(sequence_lens)
    if lens.shape != (batch,) or (lens < 0).any() or (lens > steps).any():
        raise ValueError(f"sequence_lens {lens} outside 0 .. {steps} or not [{batch}]")

    y = np.zeros((steps, directions, batch, hidden))
    y_h = np.zeros((directions, batch, hidden))
    y_c = np.zeros((directions, batch, hidden))
    for d in range(directions):
        functions = tuple(a.function() for a in chosen[per_direction * d : per_direction * (d + 1)])
        biases = np.zeros((2, gates * hidden)) if b is None else b[d].astype(np.float64).reshape(2, gates * hidden)
        peephole = np.zeros(3 * hidden) if p is None else p[d].astype(np.float64)
        recurrent = r[d].astype(np.float64).reshape(gates, hidden, hidden)
        backward = direction == "reverse" or d == 1
        for row, length in enumerate(lens):
            h = np.zeros(hidden) if initial_h is None else initial_h[d, row].astype(np.float64)
            c = np.zeros(hidden) if initial_c is None else initial_c[d, row].astype(np.float64)
            order = range(length - 1, -1, -1) if backward else range(length)
            for t in order:
                given = (w[d].astype(np.float64) @ x[t, row].astype(np.float64) + biases[0]).reshape(gates, hidden)
                parts = _Parts(given, recurrent, biases[1].reshape(gates, hidden), functions, clip)
                if op == "LSTM":
                    h, c = _lstm_step(parts, h, c, np.split(peephole, 3), input_forget)
                else:
                    h = (
                        _gru_step(parts, h, linear_before_reset)
                        if op == "GRU"
                        else parts.gate(0, 0, parts.product(0, h))
                    )
                y[t, d, row] = h
            if length > 0:
                y_h[d, row], y_c[d, row] = h, c
    if layout == 1:
        return LayerOutputs(np.transpose(y, (2, 0, 1, 3)), np.swapaxes(y_h, 0, 1), np.swapaxes(y_c, 0, 1))
    return LayerOutputs(y, y_h, y_c)


@dataclass(frozen=True)
class _Parts:
    """The operands of all steps: x W + Wb `[G,H]`, R `[G,H,H]`, Rb `[G,H]`."""

    given: FloatArray
    recurrent: FloatArray
    bias: FloatArray
    functions: tuple[Function, ...]
    clip: float | None

    def product(self, k: int, h: FloatArray) -> FloatArray:
        """Returns h R + Rb of gate k."""
        return np.asarray(self.recurrent[k] @ h + self.bias[k])

    def gate(self, k: int, activation: int, added: FloatArray | float) -> FloatArray:
        """The activation of x W + Wb of gate k and what is added."""
        limit = np.inf if self.clip is None else float(np.float32(self.clip))
        return self.functions[activation](np.clip(self.given[k] + added, -limit, limit))


def _lstm_step(
    s: _Parts, h: FloatArray, c: FloatArray, peephole: Sequence[FloatArray], input_forget: bool
) -> tuple[FloatArray, FloatArray]:
    p_i, p_o, p_f = peephole
    i = s.gate(0, 0, s.product(0, h) + p_i * c)
    f = 1.0 - i if input_forget else s.gate(2, 0, s.product(2, h) + p_f * c)
    new_c = f * c + i * s.gate(3, 1, s.product(3, h))
    o = s.gate(1, 0, s.product(1, h) + p_o * new_c)
    return o * s.functions[2](new_c), new_c


def _gru_step(s: _Parts, h: FloatArray, linear_before_reset: bool) -> FloatArray:
    z, r = s.gate(0, 0, s.product(0, h)), s.gate(1, 0, s.product(1, h))
    n = s.gate(2, 1, r * s.product(2, h) if linear_before_reset else s.product(2, r * h))
    return np.asarray((1.0 - z) * n + z * h)


def run_node(node: onnx.NodeProto, inputs: Sequence[npt.NDArray[Any] | None]) -> LayerOutputs:
    """Compute a recurrent NodeProto from its attributes; `inputs` in operator order, None or short for absent ones.

    Raises:
        ValueError: for an attribute that the operator does not have.
    """
    attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    attributes.pop("hidden_size", None)
    direction = attributes.pop("direction", b"forward").decode()
    alphas = iter(attributes.pop("activation_alpha", []))
    betas = iter(attributes.pop("activation_beta", []))
    names = [n.decode() for n in attributes.pop("activations", [])]
    activations = [Activation(n, _take(alphas, n in USES_ALPHA), _take(betas, n in USES_BETA)) for n in names]
    clip = attributes.pop("clip", None)
    flags: dict[str, Any] = {n: bool(attributes.pop(n, 0)) for n in FLAGS.get(node.op_type, ())}
    layout = attributes.pop("layout", 0)
    if attributes:
        raise ValueError(f"unknown {node.op_type} attributes {sorted(attributes)}")
    return float_layer(
        *inputs,  # type: ignore[arg-type]
        op=node.op_type,
        direction=direction,
        activations=activations or None,
        clip=clip,
        layout=layout,
        **flags,
    )


def _take(values: Iterator[float], needed: bool) -> float | None:
    return next(values, None) if needed else None
