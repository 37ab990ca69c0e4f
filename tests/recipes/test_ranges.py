"""Range rules: from statistics to the range, the scale and the zero point.

What these would catch: a constant or a sign of a formula wrong, a limit applied before the rule, a search that ends
worse than without one, votes for fix positions that are not asked.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rnnqc.calibration.point_observer import PointObserver, Values
from rnnqc.data.statistics import PointStatistics
from rnnqc.errors import UsageError
from rnnqc.formats.fix_position import fix_position
from rnnqc.formats.format import Format
from rnnqc.formats.format_request import FormatRequest
from rnnqc.formats.histogram import Histogram
from rnnqc.formats.rounding import Rounding
from rnnqc.recipes.ranges import RULES, RangeRule, limited, range_of, scale_of_statistics

SYMMETRIC, ASYMMETRIC = FormatRequest(8), FormatRequest(8, symmetric=False)
FORMATS = (SYMMETRIC, ASYMMETRIC, FormatRequest(4), FormatRequest(4, symmetric=False), FormatRequest(2, narrow=True))
GATES = PointStatistics(
    shape=(10, 6000),
    count=60000,
    calls=1,
    min=-15.612003326416016,
    max=15.450967788696289,
    avg_min=-6.393781979404043,
    avg_max=5.522592915806375,
    mean=-0.7798242293363614,
    std=1.3385719958875721,
    mean_abs_dev=1.0,
    histogram=Histogram(16.0, -1, np.array([40000, 20000])),
)
"""`rnn.cells.0.eltwiseadd_gate` of Distiller's `manual_lstm_pretrained_stats.yaml`; b is made up."""


def observed(*calls: npt.ArrayLike) -> PointStatistics:
    """The statistics of some calls, each a vector or a batch of rows."""
    observer = PointObserver()
    for call in calls:
        array = np.asarray(call, np.float32)
        observer.update(Values(array.reshape(1, -1 if array.ndim == 2 else 1, array.shape[-1])))
    statistics = observer.statistics
    assert statistics is not None
    return statistics


def _error(values: npt.NDArray[np.float32], format_: FormatRequest, grid: tuple[float, int]) -> float:
    encoding = Format(format_.bits, format_.signed, (grid[0],), zero_point=grid[1], narrow=format_.narrow)
    return float(np.square(encoding.dequantize(encoding.quantize(values)).astype(np.float64) - values).sum())


def _distributions() -> dict[str, npt.NDArray[np.float32]]:
    rng = np.random.default_rng(5)
    normal = rng.standard_normal(20000)
    return {
        "normal": normal,
        "laplace": rng.laplace(size=20000),
        "outliers": np.append(normal * 0.1, [7.0, -9.0]),
        "one side": np.abs(normal) ** 3,
        "all negative": -1.0 - rng.random(20000),
        "sigmoid": 1.0 / (1.0 + np.exp(-3.0 * normal)),
        "shifted": rng.laplace(size=20000) + 4.0,
    }


DISTRIBUTIONS = {name: values.astype(np.float32) for name, values in _distributions().items()}


def test_min_max_and_average() -> None:
    assert range_of(GATES, RangeRule(), SYMMETRIC) == (GATES.min, GATES.max)
    assert range_of(GATES, RangeRule("average"), ASYMMETRIC) == (GATES.avg_min, GATES.avg_max)


def test_limits_of_gates_as_distiller_has_them() -> None:
    """The published numbers: -15.612/15.451/-6.394/5.523 become -6/6/-6/5.523."""
    assert range_of(GATES, RangeRule(limit=6.0), ASYMMETRIC) == (-6.0, 6.0)
    assert range_of(GATES, RangeRule("average", limit=6.0), ASYMMETRIC) == (-6.0, GATES.avg_max)
    assert range_of(GATES, RangeRule("average", limit=4.0), ASYMMETRIC) == (-4.0, 4.0)
    assert scale_of_statistics(GATES, RangeRule(limit=6.0), SYMMETRIC)[0] == np.float32(6.0 / 127)


def test_a_range_outside_its_limit_collapses() -> None:
    assert limited(7.0, 9.0, 6.0) == (6.0, 6.0)
    assert limited(-9.0, -7.0, 6.0) == (-6.0, -6.0)
    assert limited(-1.0, 2.0, 6.0) == (-1.0, 2.0)


def test_n_std() -> None:
    low, high = GATES.mean - 2 * GATES.std, GATES.mean + 2 * GATES.std
    assert range_of(GATES, RangeRule("n-std", n_std=2.0), ASYMMETRIC) == (low, high)
    assert range_of(GATES, RangeRule("n-std", n_std=20.0), ASYMMETRIC) == (GATES.min, GATES.max)
    assert range_of(GATES, RangeRule("n-std", n_std=2.0, limit=3.0), ASYMMETRIC) == (-3.0, high)


ALPHA: dict[str, tuple[dict[int, float], dict[int, float]]] = {
    "laplace": (
        {1: 1.86, 2: 2.83, 3: 3.89, 4: 5.03, 5: 6.2, 6: 7.41, 7: 8.64, 8: 9.89},
        {1: 2.83, 2: 3.89, 3: 5.02, 4: 6.2, 5: 7.41, 6: 8.64, 7: 9.89, 8: 11.16},
    ),
    "gauss": (
        {1: 1.24, 2: 1.71, 3: 2.15, 4: 2.55, 5: 2.93, 6: 3.28, 7: 3.61, 8: 3.92},
        {1: 1.71, 2: 2.15, 3: 2.55, 4: 2.93, 5: 3.28, 6: 3.61, 7: 3.92, 8: 4.2},
    ),
}


@pytest.mark.parametrize("bits", range(1, 9))
@pytest.mark.parametrize("rule", ["gauss", "laplace"])
def test_analytical_clipping(rule: str, bits: int) -> None:
    spread = 1.5 if rule == "laplace" else GATES.std
    statistics = dataclasses.replace(GATES, mean_abs_dev=1.5)
    alpha = spread * ALPHA[rule][0][bits]
    bound = abs(GATES.mean) + alpha
    assert range_of(statistics, RangeRule(rule), FormatRequest(bits)) == pytest.approx((-bound, bound), rel=1e-12)
    if bits == 1:
        return
    asymmetric = FormatRequest(bits, symmetric=False)
    low = max(GATES.avg_min, GATES.mean - alpha)
    assert range_of(statistics, RangeRule(rule), asymmetric) == pytest.approx((low, low + 2 * alpha), rel=1e-12)
    half = spread * ALPHA[rule][1][bits]
    low = max(GATES.avg_min, GATES.mean - half)
    found = range_of(statistics, RangeRule(rule, half_range=True), asymmetric)
    assert found == pytest.approx((low, low + half), rel=1e-12)


@pytest.mark.parametrize("percent", [50.0, 90.0, 99.0, 99.9, 100.0])
@pytest.mark.parametrize("name", list(DISTRIBUTIONS))
def test_percentile(name: str, percent: float) -> None:
    values = DISTRIBUTIONS[name]
    statistics = observed(values)
    rule, width = RangeRule("percentile", percentile=percent), statistics.histogram.width
    low, high = range_of(statistics, rule, SYMMETRIC)
    assert low == (0.0 if values.min() >= 0 else -high)
    for ends, x in (((-np.inf, high), np.abs(values)), (range_of(statistics, rule, ASYMMETRIC), values)):
        inside, outside = ((ends[0] + d * width < x) & (x < ends[1] - d * width) for d in (2, -2))
        assert inside.mean() * 100 <= percent <= outside.mean() * 100 + 1e-9
    low, high = range_of(statistics, rule, ASYMMETRIC)
    if percent == 100.0:
        assert (low, high) == (values.min(), values.max())


def _brevitas_calls(signed: bool) -> list[npt.NDArray[np.float32]]:
    calls = []
    for step in range(20):
        x = np.abs(((np.arange(40) * 37 + 11 * step) % 101 - 50) / np.float32(8 + step % 5)).astype(np.float32)
        calls.append(x * np.where(np.arange(40) % 2, 1, -1 if signed else 1).astype(np.float32))
    return calls


def test_percentiles_of_calls_as_brevitas_averages_them() -> None:
    """Scales of Brevitas 0.11.0: `act_quant.scale()` of a QuantIdentity after these calls in training mode."""
    rule = RangeRule("ema-percentile")
    signed = scale_of_statistics(observed(*_brevitas_calls(True)), rule, FormatRequest(8, levels="min-code"))
    assert signed == (pytest.approx(0.04002411663532257, rel=1e-6), 0)
    unsigned = scale_of_statistics(observed(*_brevitas_calls(False)), rule, FormatRequest(8, signed=False))
    assert unsigned == (pytest.approx(0.020090537145733833, rel=1e-6), 0)


def test_the_percentile_of_a_call_is_brevitas_kth_value() -> None:
    values = (((np.arange(120000) * 7919) % 120011 - 50000) / 1000).astype(np.float32)
    scale, _ = scale_of_statistics(observed(values), RangeRule("ema-percentile"), FormatRequest(8, levels="min-code"))
    assert scale == pytest.approx(0.546945333480835, rel=1e-7)
    assert scale != pytest.approx(float(np.abs(values).max()) / 128, rel=1e-6)


@pytest.mark.few(6)
@pytest.mark.parametrize("format_", FORMATS)
@pytest.mark.parametrize("name", list(DISTRIBUTIONS))
def test_least_squares_is_no_worse_than_min_max(name: str, format_: FormatRequest) -> None:
    values = DISTRIBUTIONS[name]
    statistics = observed(values)
    plain = _error(values, format_, scale_of_statistics(statistics, RangeRule(), format_))
    best = _error(values, format_, scale_of_statistics(statistics, RangeRule("mse"), format_))
    assert best <= plain * (1 + 1e-3)
    if format_.bits == 4 and name in ("normal", "laplace", "outliers"):
        assert best < plain / 1.5


@pytest.mark.few(3)
@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("name", list(DISTRIBUTIONS))
def test_least_squares_is_the_least(name: str, bits: int) -> None:
    """Against 400 scales tried on the values themselves."""
    values, format_ = DISTRIBUTIONS[name], FormatRequest(bits)
    found = _error(values, format_, scale_of_statistics(observed(values), RangeRule("mse"), format_))
    bound = float(np.abs(values).max())
    least = min(_error(values, format_, format_.fit_one(-b, b)) for b in np.geomspace(bound / 200, bound, 400))
    assert found <= least * 1.02


@pytest.mark.few(3)
@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("name", ["one side", "shifted", "outliers"])
def test_least_squares_asymmetric_is_near_the_least(name: str, bits: int) -> None:
    values, format_ = DISTRIBUTIONS[name], FormatRequest(bits, symmetric=False)
    found = _error(values, format_, scale_of_statistics(observed(values), RangeRule("mse"), format_))
    low, high = float(min(values.min(), 0)), float(max(values.max(), 0))
    ends = np.geomspace(0.02, 1.0, 16)
    below = ends if low < 0 else [1.0]
    least = min(_error(values, format_, format_.fit_one(low * f, high * g)) for f in below for g in ends)
    assert found <= least * 1.05


def test_least_squares_of_wide_codes_clips_nothing_that_matters() -> None:
    values = DISTRIBUTIONS["normal"]
    statistics = observed(values)
    low, high = range_of(statistics, RangeRule("mse"), FormatRequest(16))
    assert high == pytest.approx(float(np.abs(values).max()), rel=0.01)
    assert low == -high


@pytest.mark.parametrize("format_", [SYMMETRIC, ASYMMETRIC])
def test_least_squares_with_powers_of_two(format_: FormatRequest) -> None:
    """Candidates are compared by the scales they are rounded to."""
    powers = dataclasses.replace(format_, bits=4, pow2=True)
    values = DISTRIBUTIONS["outliers"]
    found = scale_of_statistics(observed(values), RangeRule("mse"), powers)
    assert math.frexp(found[0])[0] == 0.5
    error = _error(values, powers, found)
    assert all(_error(values, powers, (found[0] * f, 0)) >= error * 0.99 for f in (0.25, 0.5, 2.0, 4.0))


@pytest.mark.parametrize("format_", [SYMMETRIC, ASYMMETRIC])
def test_entropy_cuts_tails_and_keeps_what_has_none(format_: FormatRequest) -> None:
    statistics = observed(DISTRIBUTIONS["outliers"])
    low, high = range_of(statistics, RangeRule("entropy"), format_)
    assert -9.0 < low < 0.0 < high < 7.0
    inside = (DISTRIBUTIONS["outliers"] >= low) & (DISTRIBUTIONS["outliers"] <= high)
    assert inside.mean() > 0.99
    uniform = observed(np.linspace(-1.0, 1.0, 50000))
    low, high = range_of(uniform, RangeRule("entropy"), format_)
    assert (low, high) == pytest.approx((-1.0, 1.0), abs=0.02)


def test_entropy_of_more_codes_than_bins_cuts_nothing() -> None:
    values = DISTRIBUTIONS["outliers"]
    low, high = range_of(observed(values), RangeRule("entropy"), FormatRequest(16))
    assert (low, high) == (-9.0, 9.0)


@pytest.mark.parametrize("rule", list(RULES))
@pytest.mark.parametrize("value", [0.0, 2.5, -1.5])
def test_constants(rule: str, value: float) -> None:
    """Every rule gives a grid that holds the only value there is."""
    parameters: dict[str, Any] = {"percentile": {"percentile": 99.0}, "n-std": {"n_std": 3.0}}.get(rule, {})
    statistics = observed(np.full(40, value))
    grid = scale_of_statistics(statistics, RangeRule(rule, **parameters), SYMMETRIC)
    assert _error(np.array([value], np.float32), SYMMETRIC, grid) <= (abs(value) / 100) ** 2
    if not rule.startswith("pow2"):
        scale, zero_point = scale_of_statistics(statistics, RangeRule(rule, **parameters), ASYMMETRIC)
        assert _error(np.array([value], np.float32), ASYMMETRIC, (scale, zero_point)) <= (abs(value) / 100) ** 2


def test_positive_values_have_their_zero_at_the_lowest_unsigned_code() -> None:
    statistics = observed(DISTRIBUTIONS["sigmoid"])
    for name in ("min-max", "mse", "entropy", "gauss", "laplace", "ema-percentile"):
        scale, zero_point = scale_of_statistics(statistics, RangeRule(name), FormatRequest(8, signed=False))
        assert zero_point == 0
        assert scale > 0.5 / 255


def _fix_positions(
    calls: list[npt.NDArray[np.float32]], bits: int, candidates: int, rounding: Rounding = Rounding.HALF_AWAY
) -> int:
    found = [fix_position(c, bits, candidates, rounding=rounding) for c in calls]
    return min(set(found), key=lambda p: (-found.count(p), p))


@pytest.mark.parametrize("bits", [8, 16])
def test_fix_positions_are_the_mode_of_the_calls(bits: int) -> None:
    rng = np.random.default_rng(3)
    calls = [rng.laplace(size=30).astype(np.float32) * s for s in (0.1, 0.2, 0.2, 0.3, 1.0, 8.0)]
    statistics = observed(*calls)
    for rule, candidates in (("pow2-max", 1), ("pow2-mse", 5)):
        expected = _fix_positions(calls, bits, candidates)
        assert scale_of_statistics(statistics, RangeRule(rule), FormatRequest(bits)) == (2.0**-expected, 0)
    floor = _fix_positions(calls, bits, 5, Rounding.FLOOR)
    rule = RangeRule("pow2-mse", rounding=Rounding.FLOOR)
    assert scale_of_statistics(statistics, rule, FormatRequest(bits)) == (2.0**-floor, 0)
    capped = scale_of_statistics(statistics, RangeRule("pow2-max"), FormatRequest(bits, max_fix_position=3))
    assert capped == (2.0**-3, 0)


@pytest.mark.parametrize("rounding", Rounding)
def test_the_votes_of_the_rounding_count(rounding: Rounding) -> None:
    """All roundings to nearest make the same errors; ceil counts as one of them."""
    votes = {8: {"max": {3: 1}, "mse": {4: 1}, "mse-floor": {5: 1}}}
    statistics = dataclasses.replace(observed(np.ones(1)), fix_positions=votes)
    expected = 5 if rounding is Rounding.FLOOR else 4
    for rule, position in (("pow2-mse", expected), ("pow2-max", 3)):
        found = scale_of_statistics(statistics, RangeRule(rule, rounding=rounding), FormatRequest(8))
        assert found == (2.0**-position, 0)


def test_every_vote_is_capped_before_the_mode_is_taken() -> None:
    calls = [np.float32([2.0**-p, -(2.0**-p)]) for p in (6, 7, 8, 4, 4)]
    positions = [fix_position(c, 8, 1) for c in calls]
    assert positions == [12, 13, 14, 10, 10]
    for largest, expected in ((None, 10), (14, 10), (12, 12), (11, 11), (10, 10)):
        found = scale_of_statistics(observed(*calls), RangeRule("pow2-max"), FormatRequest(8, max_fix_position=largest))
        assert found == (2.0**-expected, 0), largest


def test_statistics_without_the_votes_of_a_rounding() -> None:
    statistics = observed(np.linspace(-1.0, 1.0, 50))
    older = {8: {k: v for k, v in statistics.fix_positions[8].items() if k != "mse-floor"}}
    old = dataclasses.replace(statistics, fix_positions=older)
    assert scale_of_statistics(old, RangeRule("pow2-mse"), FormatRequest(8))[1] == 0
    with pytest.raises(UsageError, match=r"'pow2-mse' with rounding = 'floor'.*'mse-floor'.*calibrate again"):
        scale_of_statistics(old, RangeRule("pow2-mse", rounding=Rounding.FLOOR), FormatRequest(8))


def test_fix_positions_of_other_widths() -> None:
    values = DISTRIBUTIONS["outliers"]
    statistics = observed(values)
    assert scale_of_statistics(statistics, RangeRule("pow2-max"), FormatRequest(4)) == (
        2.0 ** -fix_position(values, 4, 1),
        0,
    )
    assert scale_of_statistics(statistics, RangeRule("pow2-mse"), FormatRequest(4))[0] <= 2.0 ** -fix_position(
        values, 4, 3
    )


def test_limit_of_a_fix_position() -> None:
    statistics = observed(np.linspace(-20.0, 20.0, 100))
    assert scale_of_statistics(statistics, RangeRule("pow2-max"), SYMMETRIC)[0] == 2.0**-2
    assert scale_of_statistics(statistics, RangeRule("pow2-max", limit=6.0), SYMMETRIC)[0] == 2.0**-4


@given(st.floats(0.01, 100.0), st.sampled_from(["min-max", "mse", "entropy", "average", "gauss", "laplace"]))
def test_scaling_the_values_scales_the_range(factor: float, rule: str) -> None:
    """By powers of two exactly, as the bins scale too."""
    exponent = round(math.log2(factor))
    values = DISTRIBUTIONS["shifted"][:2000]
    plain = range_of(observed(values), RangeRule(rule), ASYMMETRIC)
    scaled = range_of(observed(values * 2.0**exponent), RangeRule(rule), ASYMMETRIC)
    assert scaled == pytest.approx(tuple(v * 2.0**exponent for v in plain), rel=1e-9)


def test_parameters_of_other_rules_have_no_effect() -> None:
    """A recipe may give them to all points, and an override another rule to some."""
    rule = RangeRule("mse", percentile=-1.0, n_std=math.nan, half_range=True)
    assert range_of(GATES, rule, SYMMETRIC) == range_of(GATES, RangeRule("mse"), SYMMETRIC)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": "minmax"}, "range = 'minmax'.*min-max, average, n-std, gauss, laplace, percentile"),
        ({"name": "n-std"}, "range = 'n-std' without n_std"),
        ({"name": "n-std", "n_std": 0.0}, "n_std = 0.0"),
        ({"name": "n-std", "n_std": -1.0}, "n_std = -1.0"),
        ({"name": "n-std", "n_std": math.nan}, "n_std = nan"),
        ({"name": "percentile"}, "without percentile"),
        ({"name": "percentile", "percentile": 101.0}, "percentile = 101.0.*up to 100"),
        ({"name": "percentile", "percentile": 0.0}, "percentile = 0.0"),
        ({"limit": 0.0}, "limit = 0.0"),
        ({"limit": math.nan}, "limit = nan"),
    ],
)
def test_refused_rules(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        RangeRule(**arguments)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"count": 0}, "empty"),
        ({"histogram": Histogram(1.0, 0, np.zeros(0, np.int64))}, "empty"),
        ({"min": 16.0}, "its minimum is above its maximum"),
        ({"avg_min": 6.0}, "its minimum is above its maximum"),
        ({"max": math.nan}, "not finite"),
        ({"mean": math.nan}, "mean = nan"),
        ({"std": -1.0}, "std = -1.0"),
    ],
)
@pytest.mark.parametrize("rule", ["min-max", "pow2-max"])
def test_refused_statistics(rule: str, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        scale_of_statistics(dataclasses.replace(GATES, **changes), RangeRule(rule), SYMMETRIC)


@pytest.mark.parametrize(
    ("rule", "format_", "message"),
    [
        (RangeRule("laplace"), FormatRequest(9), "'laplace' with bits = 9.*1 to 8 bits"),
        (RangeRule("gauss", half_range=True), SYMMETRIC, "half_range = true with symmetric = true"),
        (RangeRule("pow2-mse"), ASYMMETRIC, "'pow2-mse' with .*symmetric = false"),
        (RangeRule("pow2-max"), FormatRequest(8, signed=False), "'pow2-max' with .*signed = false"),
        (RangeRule("ema-percentile"), SYMMETRIC, "without percentiles of calls"),
    ],
)
def test_refused_combinations(rule: RangeRule, format_: FormatRequest, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        scale_of_statistics(GATES, rule, format_)
