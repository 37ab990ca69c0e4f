"""The ONNX LSTM operator in numpy float64, with every attribute and every optional input.

One step, gates in ONNX order i, o, f, c (`clip` limits the bracketed pre-activations only):

    i = act0([x Wi' + h Ri' + bi + Pi c]),  f = act0([x Wf' + h Rf' + bf + Pf c])  or  1 - i
    c' = f c + i act1([x Wc' + h Rc' + bc]),  o = act0([x Wo' + h Ro' + bo + Po c']),  h' = o act2(c')

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


@dataclass(frozen=True)
class LstmOutputs:
    """Float64 outputs, shaped as the operator shapes them for the given layout."""

    Y: FloatArray
    Y_h: FloatArray
    Y_c: FloatArray


def float_lstm(
    x: FloatArray,
    w: FloatArray,
    r: FloatArray,
    b: FloatArray | None = None,
    sequence_lens: IntArray | None = None,
    initial_h: FloatArray | None = None,
    initial_c: FloatArray | None = None,
    p: FloatArray | None = None,
    *,
    direction: Direction = "forward",
    activations: Sequence[Activation] | None = None,
    clip: float | None = None,
    input_forget: bool = False,
    layout: int = 0,
) -> LstmOutputs:
    """Compute one ONNX LSTM node.

    Args:
        x: `[T,B,I]`, or `[B,T,I]` for layout 1.
        w: `[D,4H,I]`.
        r: `[D,4H,H]`.
        b: `[D,8H]`.
        sequence_lens: `[B]`, each 0 .. T.
        initial_h: `[D,B,H]`, or `[B,D,H]` for layout 1.
        initial_c: as `initial_h`.
        p: `[D,3H]`, in the order i, o, f.
        direction: decides D.
        activations: three per direction.
        clip: limit of the pre-activations.
        input_forget: couple the gates, f = 1 - i.
        layout: 0 or 1.

    Raises:
        ValueError: if a shape, a length or the number of activations does not fit.
    """
    directions = 2 if direction == "bidirectional" else 1
    if layout == 1:
        x = np.swapaxes(x, 0, 1)
        initial_h = None if initial_h is None else np.swapaxes(initial_h, 0, 1)
        initial_c = None if initial_c is None else np.swapaxes(initial_c, 0, 1)
    steps, batch, _ = x.shape
    hidden = r.shape[2]
    if w.shape != (directions, 4 * hidden, x.shape[2]) or r.shape != (directions, 4 * hidden, hidden):
        raise ValueError(f"W {w.shape} and R {r.shape} do not fit X {x.shape} and direction {direction}")
    chosen = list(activations) if activations is not None else list(DEFAULT_ACTIVATIONS) * directions
    if len(chosen) != 3 * directions:
        raise ValueError(f"{len(chosen)} activations for {directions} direction(s)")
    lens = np.full(batch, steps) if sequence_lens is None else np.asarray(sequence_lens)
    if lens.shape != (batch,) or (lens < 0).any() or (lens > steps).any():
        raise ValueError(f"sequence_lens {lens} outside 0 .. {steps} or not [{batch}]")

    y = np.zeros((steps, directions, batch, hidden))
    y_h = np.zeros((directions, batch, hidden))
    y_c = np.zeros((directions, batch, hidden))
    for d in range(directions):
        functions = tuple(a.function() for a in chosen[3 * d : 3 * d + 3])
        bias = np.zeros(4 * hidden) if b is None else b[d, : 4 * hidden].astype(np.float64) + b[d, 4 * hidden :]
        peephole = np.zeros(3 * hidden) if p is None else p[d].astype(np.float64)
        backward = direction == "reverse" or d == 1
        for row, length in enumerate(lens):
            h = np.zeros(hidden) if initial_h is None else initial_h[d, row].astype(np.float64)
            c = np.zeros(hidden) if initial_c is None else initial_c[d, row].astype(np.float64)
            order = range(length - 1, -1, -1) if backward else range(length)
            for t in order:
                pre = w[d].astype(np.float64) @ x[t, row].astype(np.float64) + r[d].astype(np.float64) @ h + bias
                h, c = _step(pre, c, peephole, functions, clip, input_forget)
                y[t, d, row] = h
            if length > 0:
                y_h[d, row], y_c[d, row] = h, c
    if layout == 1:
        return LstmOutputs(np.transpose(y, (2, 0, 1, 3)), np.swapaxes(y_h, 0, 1), np.swapaxes(y_c, 0, 1))
    return LstmOutputs(y, y_h, y_c)


def _step(
    pre: FloatArray,
    c: FloatArray,
    peephole: FloatArray,
    functions: tuple[Function, ...],
    clip: float | None,
    input_forget: bool,
) -> tuple[FloatArray, FloatArray]:
    gate, cell, output = functions
    limit = np.inf if clip is None else float(np.float32(clip))
    pre_i, pre_o, pre_f, pre_c = np.split(pre, 4)
    p_i, p_o, p_f = np.split(peephole, 3)
    i = gate(np.clip(pre_i + p_i * c, -limit, limit))
    f = 1.0 - i if input_forget else gate(np.clip(pre_f + p_f * c, -limit, limit))
    new_c = f * c + i * cell(np.clip(pre_c, -limit, limit))
    o = gate(np.clip(pre_o + p_o * new_c, -limit, limit))
    return o * output(new_c), new_c


def run_node(node: onnx.NodeProto, inputs: Sequence[npt.NDArray[Any] | None]) -> LstmOutputs:
    """Compute an LSTM NodeProto from its attributes; `inputs` in operator order, None or short for absent ones.

    Raises:
        ValueError: for an attribute that the LSTM operator does not have.
    """
    attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    attributes.pop("hidden_size", None)
    direction = attributes.pop("direction", b"forward").decode()
    alphas = iter(attributes.pop("activation_alpha", []))
    betas = iter(attributes.pop("activation_beta", []))
    names = [n.decode() for n in attributes.pop("activations", [])]
    activations = [Activation(n, _take(alphas, n in USES_ALPHA), _take(betas, n in USES_BETA)) for n in names]
    clip = attributes.pop("clip", None)
    input_forget = bool(attributes.pop("input_forget", 0))
    layout = attributes.pop("layout", 0)
    if attributes:
        raise ValueError(f"unknown LSTM attributes {sorted(attributes)}")
    return float_lstm(
        *inputs,  # type: ignore[arg-type]
        direction=direction,
        activations=activations or None,
        clip=clip,
        input_forget=input_forget,
        layout=layout,
    )


def _take(values: Iterator[float], needed: bool) -> float | None:
    return next(values, None) if needed else None
