"""The activations of ONNX recurrent operators, described once.

Defines for every activation its function, its default alpha and beta, the interval of its values, and how the integer
cell evaluates it: by a table over its argument's quantized values, by a table added to `max(x, 0)`, or by the exact
float operations (see docs/quant_lstm_cell.md, "Activations").
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from rnnqc.cells.tables import SIGMOID_LIMIT, TANH_LIMIT

Array = npt.NDArray[Any]
TABLE, RELU_TABLE = "table", "relu_table"
RESIDUAL_LIMIT = 16.0


@dataclass(frozen=True)
class Activation:
    """An activation with its parameters.

    Attributes:
        name: As ONNX spells it.
        alpha: First parameter.
        beta: Second parameter.
    """

    name: str
    alpha: float = 0.0
    beta: float = 0.0

    @property
    def kind(self) -> str:
        """How the integer cell evaluates it: "table", "relu_table", or its own name (exact float operations)."""
        return _TABLE[self.name].kind or self.name

    @property
    def bounds(self) -> tuple[float, float] | None:
        """The interval of its values; None if there is none."""
        return _TABLE[self.name].bounds(self.alpha, self.beta)

    @property
    def limit(self) -> float:
        """The argument's magnitude beyond which a table may saturate."""
        limit = _TABLE[self.name].limit
        if self.name == "ScaledTanh":
            return limit / max(abs(self.beta), 2.0**-20)
        return limit

    @property
    def saturates(self) -> bool:
        """Whether the value is constant (to table precision) beyond `limit`."""
        return _TABLE[self.name].saturates

    @property
    def slope(self) -> float:
        """Its mean slope from -2 to 2, that is the share of an argument's error that reaches the value."""
        return round(abs(float(self(np.array(2.0)) - self(np.array(-2.0)))) / 4.0, 4)

    @property
    def steepest_slope(self) -> float:
        """The largest magnitude of its slope between -16 and 16."""
        points = np.arange(-16.0, 16.0 + 2.0**-6, 2.0**-6)
        return round(float(np.abs(np.diff(self(points))).max()) * 2.0**6, 4)

    def mean_slopes(self, mean: Array, square: Array) -> Array:
        """Computes mean slopes from the means of values and of their squares; for other activations `slope`.

        The slope of a sigmoid s is `s - s^2`, that of a tanh t is `1 - t^2`.
        """
        if self.name == "Sigmoid":
            return np.asarray(mean - square)
        if self.name == "Tanh":
            return np.asarray(1.0 - square)
        return np.full(np.shape(square), self.slope)

    def __call__(self, x: Array) -> Array:
        """Returns the value, elementwise, in the dtype of `x`."""
        return np.asarray(_TABLE[self.name].function(x, self.alpha, self.beta))

    def residual(self, x: Array) -> Array:
        """Returns, for kind "relu_table", the value minus `max(x, 0)`."""
        return np.asarray(self(x) - np.maximum(x, 0.0))


@dataclass(frozen=True)
class _Entry:
    function: Callable[[Array, float, float], Array]
    bounds: Callable[[float, float], tuple[float, float] | None]
    defaults: tuple[float, float]
    kind: str
    limit: float
    saturates: bool


def _sigmoid(x: Array) -> Array:
    e = np.exp(-np.abs(x))
    return np.asarray(np.where(x >= 0, 1.0 / (1.0 + e), e / (1.0 + e)))


def _between(low: float, high: float) -> Callable[[float, float], tuple[float, float] | None]:
    return lambda alpha, beta: (low, high)


def _unbounded(alpha: float, beta: float) -> None:
    return None


_TABLE: dict[str, _Entry] = {
    "Sigmoid": _Entry(lambda x, a, b: _sigmoid(x), _between(0.0, 1.0), (0.0, 0.0), TABLE, SIGMOID_LIMIT, True),
    "Tanh": _Entry(lambda x, a, b: np.tanh(x), _between(-1.0, 1.0), (0.0, 0.0), TABLE, TANH_LIMIT, True),
    "Relu": _Entry(lambda x, a, b: np.maximum(x, 0.0), _unbounded, (0.0, 0.0), "", 0.0, False),
    "Affine": _Entry(lambda x, a, b: a * x + b, _unbounded, (1.0, 0.0), "", 0.0, False),
    "LeakyRelu": _Entry(lambda x, a, b: np.where(x < 0, a * x, x), _unbounded, (0.01, 0.0), "", 0.0, False),
    "ThresholdedRelu": _Entry(lambda x, a, b: np.where(x > a, x, 0.0), _unbounded, (1.0, 0.0), "", 0.0, False),
    "ScaledTanh": _Entry(
        lambda x, a, b: a * np.tanh(b * x), lambda a, b: (-abs(a), abs(a)), (1.0, 1.0), TABLE, TANH_LIMIT, True
    ),
    "HardSigmoid": _Entry(lambda x, a, b: np.clip(a * x + b, 0.0, 1.0), _between(0.0, 1.0), (0.2, 0.5), "", 0.0, True),
    "Elu": _Entry(
        lambda x, a, b: np.where(x < 0, a * np.expm1(np.minimum(x, 0.0)), x),
        _unbounded,
        (1.0, 0.0),
        RELU_TABLE,
        RESIDUAL_LIMIT,
        False,
    ),
    "Softsign": _Entry(lambda x, a, b: x / (1.0 + np.abs(x)), _between(-1.0, 1.0), (0.0, 0.0), "", 0.0, False),
    "Softplus": _Entry(
        lambda x, a, b: np.maximum(x, 0.0) + np.log1p(np.exp(-np.abs(x))),
        _unbounded,
        (0.0, 0.0),
        RELU_TABLE,
        RESIDUAL_LIMIT,
        False,
    ),
}

ACTIVATION_NAMES = tuple(_TABLE)
PARAMETER_LIMIT = 2.0**20


def make_activation(name: str, alpha: float | None = None, beta: float | None = None) -> Activation:
    """Returns an activation by name (ONNX accepts any case), with ONNX's default parameters.

    Raises:
        KeyError: No such activation.
        ValueError: A parameter is not finite or beyond 2**20.
    """
    canonical = {n.lower(): n for n in _TABLE}[name.lower()]
    entry = _TABLE[canonical]
    a = entry.defaults[0] if alpha is None else float(alpha)
    b = entry.defaults[1] if beta is None else float(beta)
    if not (math.isfinite(a) and math.isfinite(b) and max(abs(a), abs(b)) <= PARAMETER_LIMIT):
        raise ValueError(f"alpha = {a}, beta = {b}")
    return Activation(canonical, a, b)


def takes_alpha(name: str) -> bool:
    """Whether ONNX assigns an `activation_alpha` entry to the activation."""
    return name.lower() in ("affine", "leakyrelu", "thresholdedrelu", "scaledtanh", "hardsigmoid", "elu")


def takes_beta(name: str) -> bool:
    """Whether ONNX assigns an `activation_beta` entry to the activation."""
    return name.lower() in ("affine", "scaledtanh", "hardsigmoid")
