"""Scales and zero points of weight matrices: per tensor, per gate, or per output channel."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rnnqc.errors import UsageError
from rnnqc.formats.fix_position import CANDIDATES, fix_position, scale_of
from rnnqc.formats.format_request import FormatRequest
from rnnqc.formats.percentile import kth_smallest
from rnnqc.formats.rounding import Rounding
from rnnqc.formats.weight_grids import HIGHEST, own_steps
from rnnqc.formats.weights import blocks

FloatArray = npt.NDArray[np.float32]
Vector = npt.NDArray[np.float64]
Fitted = tuple[Vector, npt.NDArray[np.int64]]
"""Scales and zero points, one each for every group of output channels."""
GRANULARITIES = ("per-channel", "per-gate", "per-tensor")
RATIOS = np.concatenate([[1.0], np.arange(110, 100, -1) / 100.0, np.arange(99, 4, -1) / 100.0])
"""Factors for the range of a matrix in the search for the least squared error; 1 comes first."""
FINE = np.linspace(-0.009, 0.009, 7)
"""Offsets then tried around the best factor."""


@dataclass(frozen=True)
class WeightRule:
    """How the scales of a weight matrix follow from it.

    Attributes:
        name: One of `WEIGHT_RULES`.
        granularity: One of `GRANULARITIES`.
        percentile: Rule "percentile": how many of 100 weights are inside the range.
        limit: Weights are clipped to this magnitude.
        gates: Number of gates among the output channels, for granularity "per-gate".

    Raises:
        UsageError: An unknown rule or granularity, or a parameter is missing or out of range.
    """

    name: str = "min-max"
    granularity: str = "per-channel"
    percentile: float | None = None
    limit: float | None = None
    gates: int = 1

    def __post_init__(self) -> None:
        """Checks the values; raises UsageError."""
        if self.name not in WEIGHT_RULES:
            raise UsageError(f"range = {self.name!r} of weights.", supported=", ".join(WEIGHT_RULES))
        if self.granularity not in GRANULARITIES:
            raise UsageError(f"granularity = {self.granularity!r}.", supported=", ".join(GRANULARITIES))
        if self.name == "percentile" and not 0.0 < (self.percentile or 0.0) <= 100.0:
            raise UsageError(
                f"range = 'percentile' of weights with percentile = {self.percentile}.",
                supported="percentile = a number above 0, up to 100",
            )
        if self.limit is not None and not 0.0 < self.limit < np.inf:
            raise UsageError(f"limit = {self.limit} of weights.", supported="a number above 0")


def fit_weights(
    array: FloatArray, rule: WeightRule, request: FormatRequest
) -> tuple[FloatArray, npt.NDArray[np.int64]]:
    """Returns scales and zero points of a weight matrix.

    W and R share their scales if `array` stacks them vertically. With the rules "min-max" and "mse", weights that are
    already multiples of a step within the format keep that step as their scale, and so their values.

    Args:
        array: `[K, n]`, one output channel per column, the columns of a gate together.
        rule: How the scales follow from it.
        request: The requested properties of the format.

    Returns:
        float32 scales and int64 zero points, `[n]`; `[1]` for granularity per-tensor.

    Raises:
        UsageError: A weight is not finite, there are none, the columns do not divide into gates, or the rule does not
            suit the format.
    """
    if array.ndim != 2 or array.size == 0 or not np.isfinite(array).all():
        raise UsageError(
            f"Weights of shape {list(array.shape)} are no matrix of finite numbers.", supported="finite weights [K, n]"
        )
    columns = array.shape[1]
    if rule.granularity == "per-gate" and columns % rule.gates:
        raise UsageError(f"granularity = per-gate of {columns} output channels.", supported=f"{rule.gates} gates alike")
    if rule.limit is not None:
        array = np.clip(array, np.float32(-rule.limit), np.float32(rule.limit))
    groups = {"per-channel": columns, "per-gate": rule.gates, "per-tensor": 1}[rule.granularity]
    scale, zero_point = WEIGHT_RULES[rule.name](array, groups, rule, request)
    scale = _with_own_steps(array, scale, rule, request)
    if rule.granularity == "per-gate":
        scale, zero_point = np.repeat(scale, columns // groups), np.repeat(zero_point, columns // groups)
    return scale.astype(np.float32), zero_point


def _with_own_steps(array: FloatArray, scale: Vector, rule: WeightRule, request: FormatRequest) -> Vector:
    """Returns the steps if the weights of all groups are multiples of steps that the format allows; else `scale`."""
    is_plain = request.symmetric and request.signed and not request.zero_point
    if rule.name not in ("min-max", "mse") or not is_plain or request.bits < 2 or request.maximum > HIGHEST:
        return scale
    columns = array.reshape(len(array), len(scale), -1).swapaxes(1, 2).reshape(-1, len(scale))
    steps = own_steps(columns, request.minimum, request.maximum)
    return scale if steps is None or (request.finished(steps) != steps).any() else steps


def _extremes(array: FloatArray, groups: int) -> tuple[Vector, Vector]:
    low = array.min(axis=0).reshape(groups, -1).min(axis=1)
    high = array.max(axis=0).reshape(groups, -1).max(axis=1)
    return low.astype(np.float64), high.astype(np.float64)


def _min_max(array: FloatArray, groups: int, rule: WeightRule, request: FormatRequest) -> Fitted:
    return request.fit(*_extremes(array, groups))


def _percentile(array: FloatArray, groups: int, rule: WeightRule, request: FormatRequest) -> Fitted:
    assert rule.percentile is not None
    members = _members(array, groups)
    if request.symmetric:
        bound = np.array([kth_smallest(np.abs(m), rule.percentile) for m in members])
        return request.fit(np.where(_extremes(array, groups)[0] < 0.0, -bound, 0.0), bound)
    inside = (100.0 + rule.percentile) / 2.0
    high = np.array([kth_smallest(m, inside) for m in members])
    low = np.array([-kth_smallest(-m, inside) for m in members])
    return request.fit(np.minimum(low, high), np.maximum(low, high))


def _members(array: FloatArray, groups: int) -> list[Vector]:
    return [part.astype(np.float64).ravel() for part in np.split(array, groups, axis=1)]


def _mean(array: FloatArray, groups: int, rule: WeightRule, request: FormatRequest) -> Fitted:
    if request.integers.size > 3 or not (request.symmetric and request.signed):
        raise UsageError(
            f"range = 'mean' of weights with bits = {request.bits}.", supported="binary and narrow ternary formats"
        )
    total = np.zeros(array.shape[1])
    for rows in blocks(len(array)):
        total += np.abs(array[rows]).sum(axis=0, dtype=np.float64)
    mean = total.reshape(groups, -1).mean(axis=1) / len(array)
    return request.fit(-mean, mean)


def _pow2(array: FloatArray, groups: int, rule: WeightRule, request: FormatRequest) -> Fitted:
    if not (request.signed and request.symmetric) or request.zero_point or request.bits < 2:
        raise UsageError(
            f"range = {rule.name!r} of weights with bits = {request.bits}, signed = {str(request.signed).lower()}, "
            f"symmetric = {str(request.symmetric).lower()}.",
            supported="signed symmetric formats of 2 bits or more",
        )
    candidates = CANDIDATES if rule.name == "pow2-mse" else 1
    positions = [
        fix_position(m, request.bits, candidates, rounding=Rounding.HALF_AWAY, largest=request.max_fix_position)
        for m in _members(array, groups)
    ]
    return np.array([scale_of(p) for p in positions]), np.zeros(groups, np.int64)


def _mse(array: FloatArray, groups: int, rule: WeightRule, request: FormatRequest) -> Fitted:
    low, high = _extremes(array, groups)
    search = _Search(array, groups, low, high, request)
    if request.bits == 1:  # the mean is optimal
        search.try_scales(*_mean(array, groups, rule, request))
        return search.scale, search.zero_point
    for ratio in RATIOS:
        search.try_ratios(np.full(groups, ratio), np.full(groups, ratio))
    if not request.symmetric:
        for ratio in RATIOS[::2]:
            search.try_ratios(np.full(groups, ratio), search.above)
        for ratio in RATIOS[::2]:
            search.try_ratios(search.below, np.full(groups, ratio))
    below, above = search.below.copy(), search.above.copy()
    for difference in FINE:
        search.try_ratios(below + difference, above + difference)
    return search.scale, search.zero_point


class _Search:
    """The best scale and zero point of each group so far, by the sum of squared errors."""

    def __init__(self, array: FloatArray, groups: int, low: Vector, high: Vector, request: FormatRequest) -> None:
        self.array, self.groups, self.low, self.high, self.request = array, groups, low, high, request
        self.below, self.above = np.ones(groups), np.ones(groups)
        self.scale, self.zero_point = request.fit(low, high)
        self.error = self._errors(self.scale, self.zero_point)

    def try_ratios(self, below: Vector, above: Vector) -> None:
        """Tries ranges whose ends are the weights' extremes times these factors, `[groups]`."""
        better = self.try_scales(*self.request.fit(self.low * below, self.high * above))
        self.below, self.above = np.where(better, below, self.below), np.where(better, above, self.above)

    def try_scales(self, scale: Vector, zero_point: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Keeps the scales that are better; returns where they are."""
        error = self._errors(scale, zero_point)
        better = np.asarray(error < self.error)
        self.error = np.where(better, error, self.error)
        self.scale = np.where(better, scale, self.scale)
        self.zero_point = np.where(better, zero_point, self.zero_point)
        return better

    def _errors(self, scale: Vector, zero_point: npt.NDArray[np.int64]) -> Vector:
        """Returns the sum of squared errors of each group, rounding to nearest, computed in blocks of rows."""
        repeat = self.array.shape[1] // self.groups
        step = np.repeat(scale.astype(np.float32), repeat)
        least = np.repeat(np.float32(self.request.minimum) - zero_point.astype(np.float32), repeat)
        most = np.repeat(np.float32(self.request.maximum) - zero_point.astype(np.float32), repeat)
        total = np.zeros(self.array.shape[1])
        for rows in blocks(len(self.array)):
            part = self.array[rows]
            if self.request.bits == 1:
                codes = np.where(part < 0, np.float32(-1), np.float32(1))
            else:
                codes = part / step
                np.rint(codes, out=codes)
                np.clip(codes, least, most, out=codes)
            codes *= step
            codes -= part
            total += np.einsum("ij,ij->j", codes, codes)
        return np.asarray(total.reshape(self.groups, -1).sum(axis=1))


WEIGHT_RULES: Mapping[str, Callable[[FloatArray, int, WeightRule, FormatRequest], Fitted]] = {
    "min-max": _min_max,
    "mse": _mse,
    "percentile": _percentile,
    "mean": _mean,
    "pow2-mse": _pow2,
    "pow2-max": _pow2,
}
"""The rules by name."""
