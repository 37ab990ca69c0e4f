"""Derives range, scale and zero point of a quantization point from its statistics.

The rules, their formulas and sources are described in docs/ranges.md.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from rnnqc.data.statistics import PointStatistics
from rnnqc.errors import UsageError
from rnnqc.formats.fix_position import fix_position, mode_of, position_of, scale_of
from rnnqc.formats.format_request import FormatRequest, check_range
from rnnqc.formats.rounding import Rounding
from rnnqc.recipes.range_search import least_divergence, least_squared_error

EMA_NEW = 0.1
"""Brevitas: the weight of a new call in the moving average of percentiles."""
LAPLACE = (1.05, 1.86, 2.83, 3.89, 5.03, 6.2, 7.41, 8.64, 9.89)
LAPLACE_HALF = (1.86, 2.83, 3.89, 5.02, 6.2, 7.41, 8.64, 9.89, 11.16)
GAUSS = (math.nan, 1.24, 1.71, 2.15, 2.55, 2.93, 3.28, 3.61, 3.92)
GAUSS_HALF = (math.nan, 1.71, 2.15, 2.55, 2.93, 3.28, 3.61, 3.92, 4.2)
"""By bits: the best clipping of a distribution in units of its mean absolute deviation, or of its standard deviation
(https://arxiv.org/abs/1810.05723), as tabulated in Distiller.
"""
Range = tuple[float, float]


@dataclass(frozen=True)
class RangeRule:
    """How a range follows from statistics; parameters of rules other than `name` have no effect.

    Attributes:
        name: One of `RULES`.
        percentile: Rule "percentile": how many of 100 values are inside the range.
        n_std: Rule "n-std": how many standard deviations the range extends to either side of the mean.
        half_range: Rules "gauss" and "laplace", asymmetric: the distribution is one-sided, as after Relu.
        limit: The range is clipped to plus and minus this.
        rounding: Rule "pow2-mse": how reals become integers; everything but `floor` counts as to nearest.

    Raises:
        UsageError: An unknown rule, or a parameter of it is missing or out of range.
    """

    name: str = "min-max"
    percentile: float | None = None
    n_std: float | None = None
    half_range: bool = False
    limit: float | None = None
    rounding: Rounding = Rounding.HALF_EVEN

    def __post_init__(self) -> None:
        """Checks the values; raises UsageError."""
        if self.name not in RULES:
            raise UsageError(f"range = {self.name!r}.", supported=", ".join(RULES))
        self._check("percentile", self.percentile, "percentile", "a number above 0, up to 100", 100.0)
        self._check("n_std", self.n_std, "n-std", "a number above 0")
        if self.limit is not None and not (self.limit > 0.0 and math.isfinite(self.limit)):
            raise UsageError(f"limit = {self.limit}.", supported="a number above 0")

    def _check(self, key: str, value: float | None, rule: str, accepts: str, most: float = math.inf) -> None:
        if self.name != rule:
            return
        if value is None:
            raise UsageError(f"range = {rule!r} without {key}.", supported=f"{key} = {accepts}")
        if not (0.0 < value <= most and math.isfinite(value)):
            raise UsageError(f"{key} = {value}.", supported=accepts)


def _min_max(s: PointStatistics, rule: RangeRule, request: FormatRequest) -> Range:
    return s.min, s.max


def _average(s: PointStatistics, rule: RangeRule, request: FormatRequest) -> Range:
    return s.avg_min, s.avg_max


def _n_std(s: PointStatistics, rule: RangeRule, request: FormatRequest) -> Range:
    assert rule.n_std is not None
    return max(s.min, s.mean - rule.n_std * s.std), min(s.max, s.mean + rule.n_std * s.std)


def _aciq(s: PointStatistics, rule: RangeRule, request: FormatRequest) -> Range:
    laplace = rule.name == "laplace"
    if request.bits >= len(LAPLACE):
        raise UsageError(
            f"range = {rule.name!r} with bits = {request.bits}.", supported=f"1 to {len(LAPLACE) - 1} bits"
        )
    if rule.half_range and request.symmetric:
        raise UsageError("half_range = true with symmetric = true.", supported="asymmetric integers")
    factors = (LAPLACE_HALF if rule.half_range else LAPLACE) if laplace else (GAUSS_HALF if rule.half_range else GAUSS)
    alpha = (s.mean_abs_dev if laplace else s.std) * factors[request.bits]
    if request.symmetric:
        bound = abs(s.mean) + alpha
        return (0.0 if s.min >= 0.0 else -bound), bound
    low = max(s.avg_min, s.mean - alpha)
    return low, low + (alpha if rule.half_range else 2.0 * alpha)


def _percentile(s: PointStatistics, rule: RangeRule, request: FormatRequest) -> Range:
    assert rule.percentile is not None
    if request.symmetric:
        bound = min(s.histogram.magnitudes.percentile(rule.percentile), max(-s.min, s.max))
        return (0.0 if s.min >= 0.0 else -bound), bound
    outside = (100.0 - rule.percentile) / 2.0
    low, high = s.histogram.percentile(outside), s.histogram.percentile(100.0 - outside)
    return min(max(low, s.min), s.max), max(min(high, s.max), s.min)


def _ema_percentile(s: PointStatistics, rule: RangeRule, request: FormatRequest) -> Range:
    if not s.call_percentiles:
        raise UsageError(
            "range = 'ema-percentile' of statistics without percentiles of calls.",
            supported="statistics with call_percentiles",
            action="calibrate again",
        )
    bound = s.call_percentiles[0]
    for new in s.call_percentiles[1:]:
        bound = (1.0 - EMA_NEW) * bound + EMA_NEW * new
    return (0.0 if s.min >= 0.0 else -bound), (0.0 if s.max <= 0.0 and not request.symmetric else bound)


def _mse(s: PointStatistics, rule: RangeRule, request: FormatRequest) -> Range:
    return least_squared_error(s.histogram, s.min, s.max, request)


def _entropy(s: PointStatistics, rule: RangeRule, request: FormatRequest) -> Range:
    return least_divergence(s.histogram, s.min, s.max, request)


RULES: Mapping[str, Callable[[PointStatistics, RangeRule, FormatRequest], Range] | None] = {
    "min-max": _min_max,
    "average": _average,
    "n-std": _n_std,
    "gauss": _aciq,
    "laplace": _aciq,
    "percentile": _percentile,
    "ema-percentile": _ema_percentile,
    "mse": _mse,
    "entropy": _entropy,
    "pow2-mse": None,
    "pow2-max": None,
}
"""Range functions by rule; rules without a function find a fix position instead of a range."""


def range_of(statistics: PointStatistics, rule: RangeRule, request: FormatRequest) -> Range:
    """Returns the range of real numbers that the quantized values of a point have to cover.

    Args:
        statistics: Statistics of the point.
        rule: How the range follows from them; not one of the two rules for powers of two.
        request: The requested properties of the format.

    Returns:
        Its ends, not more than `rule.limit` from zero; a range wholly outside the limit is the limit.

    Raises:
        UsageError: The statistics are empty or not finite, or the rule does not suit the format.
    """
    _check_statistics(statistics)
    function = RULES[rule.name]
    if function is None:
        raise UsageError(f"range = {rule.name!r} finds a scale, no range.", supported="scale_of_statistics")
    low, high = function(statistics, rule, request)
    check_range(low, high)
    return (low, high) if rule.limit is None else limited(low, high, rule.limit)


def limited(low: float, high: float, limit: float) -> Range:
    """Clips the range to plus and minus `limit`; one wholly outside collapses to that bound."""
    return min(max(low, -limit), limit), min(max(high, -limit), limit)


def scale_of_statistics(statistics: PointStatistics, rule: RangeRule, request: FormatRequest) -> tuple[float, int]:
    """Returns scale (rounded to float32) and zero point of a quantization point.

    Args:
        statistics: Statistics of the point; for a group that shares a scale, those of `merge_for_sharing`.
        rule: How the range follows from them.
        request: The requested properties of the format.

    Raises:
        UsageError: As `range_of`, or a rule for powers of two with quantized values that are not symmetric and signed.
    """
    if RULES[rule.name] is not None:
        return request.fit_one(*range_of(statistics, rule, request))
    _check_statistics(statistics)
    if not (request.signed and request.symmetric) or request.zero_point or request.bits < 2:
        raise UsageError(
            f"range = {rule.name!r} with bits = {request.bits}, signed = {str(request.signed).lower()}, "
            f"symmetric = {str(request.symmetric).lower()}.",
            supported="signed symmetric integers of 2 bits or more",
        )
    return scale_of(_fix_position(statistics, rule, request)), 0


def _fix_position(s: PointStatistics, rule: RangeRule, request: FormatRequest) -> int:
    kind, largest = rule.name.removeprefix("pow2-"), request.max_fix_position
    wanted = "mse-floor" if kind == "mse" and rule.rounding is Rounding.FLOOR else kind
    kinds = s.fix_positions.get(request.bits, {wanted: {}})
    if wanted not in kinds:
        raise UsageError(
            f"range = {rule.name!r} with rounding = {rule.rounding.value!r} of statistics without {wanted!r} in "
            f"fix_positions.",
            supported="fix positions searched with that rounding",
            action="calibrate again",
        )
    votes = kinds[wanted]
    if votes:
        # The cap applies to every vote, not to their mode: votes above it count together.
        capped: Counter[int] = Counter()
        for found, count in votes.items():
            capped[found if largest is None else min(found, largest)] += count
        position = mode_of(capped)
    else:
        extremes = fix_position([s.min, s.max], request.bits, 1)
        position = extremes
        if kind == "mse":
            # There are no votes for this width: search once over all values instead.
            powers = FormatRequest(request.bits, narrow=request.narrow, pow2=True)
            low, high = least_squared_error(s.histogram, s.min, s.max, powers)
            position = max(extremes, position_of(powers.fit_one(low, high)[0]))
    if rule.limit is not None:
        position = max(position, fix_position([-rule.limit, rule.limit], request.bits, 1))
    return position if largest is None else min(position, largest)


def _check_statistics(s: PointStatistics) -> None:
    if s.count < 1 or not int(s.histogram.counts.sum()):
        raise UsageError("The statistics are empty.", supported="at least one value", action="calibrate with data")
    check_range(s.min, s.max)
    check_range(s.avg_min, s.avg_max)
    if not all(map(math.isfinite, (s.mean, s.std, s.mean_abs_dev))) or s.std < 0.0 or s.mean_abs_dev < 0.0:
        raise UsageError(
            f"mean = {s.mean}, std = {s.std}, mean_abs_dev = {s.mean_abs_dev} in the statistics.",
            supported="finite numbers, deviations not below 0",
            action="check the statistics file",
        )
