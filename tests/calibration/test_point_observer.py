"""Statistics of a point, piece by piece: their definitions, and that no grouping of the pieces changes a bit.

What these would catch: sums that depend on order, histograms that lose or move counts when they grow, padding that
counts, votes for fix positions that are not those of the single calls, a mean absolute deviation about something else.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from rnnqc.calibration.call_fix_positions import fix_positions_of_calls
from rnnqc.calibration.gate_extremes import GateExtremes
from rnnqc.calibration.growing_histogram import GrowingHistogram
from rnnqc.calibration.point_observer import (
    MOST_PARTS,
    NotFiniteError,
    PointObserver,
    SampleExtremes,
    Values,
    call_percentile,
)
from rnnqc.calibration.reproducible import ReproducibleSum
from rnnqc.calibration.second_moment import second_moment
from rnnqc.data.statistics import SPANS, PointStatistics
from rnnqc.formats.fix_position import fix_position
from rnnqc.formats.percentile import CALLS
from rnnqc.formats.rounding import Rounding

Array = npt.NDArray[Any]
FLOATS = st.floats(-(2.0**100), 2.0**100, allow_nan=False, width=32)


# ---- sums ----------------------------------------------------------------------------------------------------------


def groupings(parts: Sequence[Any], seed: int) -> list[list[list[Any]]]:
    """Ways of cutting a list into consecutive groups, the last one with its parts shuffled."""
    chooser = random.Random(seed)
    shuffled = list(parts)
    chooser.shuffle(shuffled)
    cuts = sorted(chooser.sample(range(1, len(parts)), min(2, len(parts) - 1)))
    bounds = [0, *cuts, len(parts)]
    return [[list(parts)], [[p] for p in parts], [list(parts[a:b]) for a, b in itertools.pairwise(bounds)], [shuffled]]


@given(st.lists(hnp.arrays(np.float64, 3, elements=FLOATS), min_size=1, max_size=8), st.integers(1, 4))
def test_any_order_and_grouping_of_a_sum_has_the_same_bits(terms: list[Array], limbs: int) -> None:
    results = set()
    for grouping in groupings(terms, len(terms)):
        total = ReproducibleSum((3,), limbs)
        for group in grouping:
            part = ReproducibleSum((3,), limbs)
            for term in group:
                part.add(term)
            total.merge(part)
        results.add((total.value.tobytes(), total.top, tuple(limb.tobytes() for limb in total.limbs)))
    assert len(results) == 1


def test_sums_of_numbers_are_those_of_arrays() -> None:
    """Single numbers have a separate implementation without arrays."""
    rng = np.random.default_rng(5)
    for spread in (60, 900):
        number, vector = ReproducibleSum(), ReproducibleSum((1,))
        for _ in range(200):
            term = math.ldexp(rng.normal(), int(rng.integers(-spread, spread)))
            number.add(np.float64(term))
            vector.add([term])
        assert number.top == vector.top
        assert [int(limb) for limb in number.limbs] == [int(limb[0]) for limb in vector.limbs]
        assert float(number.value) == float(vector.value[0])


@given(st.lists(FLOATS, min_size=1, max_size=20))
def test_a_sum_is_exact_up_to_its_last_digit(numbers: list[float]) -> None:
    total = ReproducibleSum()
    for number in numbers:
        total.add(number)
    exact = sum(map(Fraction, numbers))
    largest = max(map(abs, numbers))
    bound = len(numbers) * largest * 2.0**-60 + 2.0**-52 * abs(float(exact))
    assert abs(Fraction(float(total.value)) - exact) <= Fraction(bound)


def test_a_sum_by_hand() -> None:
    total = ReproducibleSum()
    for number in (2.0**90, 2.0**31, -(2.0**90), 1.0):
        total.add(number)
    assert float(total.value) == 2.0**31, "1 is below the last digit of 2**90"
    small = ReproducibleSum()
    for number in (1e-30, 1.0, 1e-30):
        small.add(number)
    assert float(small.value) == 1.0 and float(ReproducibleSum().value) == 0.0


def test_many_terms_at_once_are_as_one_by_one() -> None:
    """Also at places of a vector, and where a term is so large that earlier digits are dropped."""
    rng = np.random.default_rng(6)
    for spread in (10, 300, 1000):
        terms = np.ldexp(rng.standard_normal((20, 6)), rng.integers(-spread, spread, (20, 6)))
        places = rng.integers(0, 4, 20)
        one_by_one, together = ReproducibleSum((6,)), ReproducibleSum((6,))
        vector, at_places = ReproducibleSum((4,)), ReproducibleSum((4,))
        for term, place in zip(terms, places, strict=True):
            one_by_one.add(term)
            vector.add(np.where(np.arange(4) == place, term[0], 0.0))
        together.add_all(terms)
        at_places.add_at(places, terms[:, 0])
        for a, b in ((one_by_one, together), (vector, at_places)):
            assert a.top == b.top and [v.tolist() for v in a.limbs] == [v.tolist() for v in b.limbs]


def test_the_arguments_of_a_sum_stay() -> None:
    term = np.array([1.5, 2.5])
    total = ReproducibleSum((2,))
    total.add(term)
    total.add_all(term[None])
    total.add_at(np.array([0, 0]), term)
    assert term.tolist() == [1.5, 2.5]


@pytest.mark.parametrize("rows", [1, 7, 4096])
def test_second_moments_are_exact_for_whole_numbers_and_near_otherwise(rows: int) -> None:
    rng = np.random.default_rng(rows)
    whole = rng.integers(-1000, 1000, (rows, 5)).astype(np.float64)
    assert (second_moment(whole) == whole.T @ whole).all()
    real = rng.standard_normal((rows, 5)) * [1e-3, 1, 10, 1, 1]
    np.testing.assert_allclose(second_moment(real), real.T @ real, atol=rows * 1e-4)
    assert (second_moment(np.zeros((rows, 2))) == 0).all()
    with pytest.raises(ValueError, match="4097 rows"):
        second_moment(np.zeros((4097, 1)))


# ---- histograms ----------------------------------------------------------------------------------------------------


@given(st.lists(hnp.arrays(np.float32, st.integers(1, 6), elements=FLOATS), min_size=2, max_size=6))
def test_any_order_and_grouping_of_a_histogram_has_the_same_bins(parts: list[Array]) -> None:
    results = set()
    for grouping in groupings(parts, len(parts)):
        whole = GrowingHistogram()
        for group in grouping:
            part = GrowingHistogram()
            for values in group:
                part.add(values.astype(np.float64), float(np.abs(values).max()))
            whole.merge(part)
        h = whole.histogram
        results.add((h.width, h.first, h.counts.tobytes(), whole.sums.value.tobytes()))
    assert len(results) == 1
    values = np.concatenate(parts).astype(np.float64)
    assert h.total == values.size and whole.sums.value.sum() == pytest.approx(values.sum(), rel=1e-9, abs=1e20)
    counts, _ = np.histogram(values, bins=h.edges)
    # numpy closes the last bin; this one is half open like the others.
    np.testing.assert_array_equal(np.histogram(values, np.append(h.edges, np.inf))[0][:-1], h.counts)
    assert counts.sum() == values.size
    assert h.counts[0] and h.counts[-1], "no empty bins at the ends"


def test_a_histogram_by_hand() -> None:
    grown = GrowingHistogram()
    for values in ([0.25, 0.5, 0.75], [-1.0, 1000.0]):
        grown.add(np.array(values), max(map(abs, values)))
    h = grown.histogram
    assert (h.width, h.first, h.total) == (0.5, -2, 5)
    assert h.counts[:4].tolist() == [1, 0, 1, 2] and h.counts[-1] == 1 and h.edges[-1] == 1000.5
    assert h.centers[0] == -0.75
    magnitudes = h.magnitudes
    # The bin of -1.0 reaches from -1 to -0.5: its magnitudes lie between 0.5 and 1.
    assert magnitudes.first == 0 and magnitudes.counts[:3].tolist() == [1, 3, 0] and magnitudes.total == 5


@pytest.mark.parametrize("values", [[0.0, 0.0], [-3.0], [5.0], [-0.0, 2.0**-149], [2.0**127], [-1.0, -2.0]])
def test_odd_histograms(values: list[float]) -> None:
    grown = GrowingHistogram()
    grown.add(np.array(values), max(map(abs, values)))
    h = grown.histogram
    assert h.total == h.magnitudes.total == len(values)
    assert h.edges[0] <= min(values) < h.edges[-1] and h.edges[0] <= max(values) < h.edges[-1]
    for percent in (0.0, 50.0, 100.0):
        assert min(values) - h.width <= h.percentile(percent) <= max(values) + h.width


def test_zeros_do_not_widen_the_bins() -> None:
    values = np.array([-3e-5, 1e-5, 2e-5])
    alone, mixed = GrowingHistogram(), GrowingHistogram()
    for histogram in (alone, mixed):
        histogram.add(values, 3e-5)
    mixed.add(np.zeros(7), 0.0)
    assert mixed.histogram.width == alone.histogram.width == 2.0**-26
    assert mixed.histogram.total == 10


def test_percentiles_are_within_a_bin() -> None:
    values = np.random.default_rng(0).standard_normal(10_000)
    grown = GrowingHistogram()
    grown.add(values, float(np.abs(values).max()))
    h = grown.histogram
    for percent in (0.1, 5, 50, 95, 99.9):
        for data, histogram in ((values, h), (np.abs(values), h.magnitudes)):
            found, wanted = histogram.percentile(percent), percent / 100 * data.size
            assert (data < found - h.width).sum() <= wanted <= (data <= found + h.width).sum()


@pytest.mark.parametrize("scale", [1e-20, 1.0, 300.0])
@pytest.mark.parametrize("shift", [0.0, 2.0])
def test_mean_absolute_deviation(scale: float, shift: float) -> None:
    values = (np.random.default_rng(1).standard_normal(5000) + shift) * scale
    grown = GrowingHistogram()
    for part in np.split(values, 5):
        grown.add(part, float(np.abs(part).max()))
    exact = np.abs(values - values.mean()).mean()
    assert grown.mean_abs_dev(float(values.mean())) == pytest.approx(exact, rel=1e-5)


# ---- fix positions and percentiles of calls ------------------------------------------------------------------------


@given(
    hnp.arrays(np.float32, st.tuples(st.integers(1, 5), st.integers(1, 7)), elements=st.floats(-8, 8, width=32)),
    st.sampled_from([2, 4, 8, 16]),
)
def test_votes_are_the_fix_positions_of_the_calls(values: Array, bits: int) -> None:
    found = fix_positions_of_calls(values, [bits], SPANS["mse"])[bits]
    assert set(found) == set(SPANS)
    for k, row in enumerate(values):
        assert found["max"][k] == fix_position(row, bits, SPANS["max"])
        for rounding in (Rounding.HALF_AWAY, Rounding.HALF_EVEN, Rounding.HALF_UP, Rounding.HALF_EVEN_UP):
            assert found["mse"][k] == fix_position(row, bits, SPANS["mse"], rounding=rounding)
        assert found["mse-floor"][k] == fix_position(row, bits, SPANS["mse-floor"], rounding=Rounding.FLOOR)


def test_many_calls_at_once() -> None:
    """More than one block."""
    values = np.random.default_rng(2).standard_normal((700, 100)) * np.geomspace(1e-3, 1e3, 700)[:, None]
    values = values.astype(np.float32)
    for bits, found in fix_positions_of_calls(values, (8, 16), 5).items():
        assert found["mse"].tolist() == [fix_position(row, bits, 5) for row in values]
        assert found["mse-floor"].tolist() == [fix_position(row, bits, 5, rounding=Rounding.FLOOR) for row in values]


@pytest.mark.parametrize(("count", "k"), [(1, 1), (4, 4), (50_000, 50_000), (50_001, 50_000), (200_000, 199_998)])
def test_the_percentile_of_a_call_is_the_kth_value(count: int, k: int) -> None:
    """k = floor(0.01 * 99.999 * n + 0.5)."""
    values = np.random.default_rng(3).permutation(np.arange(1, count + 1)).astype(np.float32)
    values[::2] *= -1
    assert call_percentile(values) == k


# ---- the whole -----------------------------------------------------------------------------------------------------


SQUARES = {"squares": True}


def observe(pieces: Sequence[Values], groups: Sequence[int], **options: bool) -> PointStatistics:
    """The statistics when consecutive pieces go to observers of their own that are merged."""
    total = PointObserver(**options)
    start = 0
    for size in groups:
        part = PointObserver(**options)
        for piece in pieces[start : start + size]:
            part.update(piece)
            part.flush()
        total.merge(part)
        start += size
    assert start == len(pieces)
    result = total.statistics
    assert result is not None
    return result


def pieces_of(seed: int, steps: bool = True) -> list[Values]:
    rng = np.random.default_rng(seed)
    pieces = []
    for k in range(6):
        array = rng.standard_normal((1 + k, 2, 3)).astype(np.float32) * np.float32(4.0**k)
        valid = rng.random((1 + k, 2)) < 0.7 if k % 2 else None
        if valid is not None:
            array[~valid] = np.nan
        pieces.append(Values(array, valid, steps))
    return pieces


@pytest.mark.parametrize("steps", [True, False])
def test_any_grouping_of_the_pieces_gives_the_same_bytes(steps: bool) -> None:
    pieces = pieces_of(0, steps)
    texts = {
        repr(
            [observe(pieces, groups, **options).as_dict() for options in ({"channels": True, "moments": True}, SQUARES)]
        )
        for groups in ([6], [1] * 6, [2, 4], [5, 1], [3, 3])
    }
    assert len(texts) == 1


def test_small_pieces_together_are_as_the_large_one() -> None:
    """Buffered pieces are reduced as if they had arrived in one piece."""
    array = np.random.default_rng(5).standard_normal((50, 2, 3)).astype(np.float32)
    whole, parts = PointObserver(True, True), PointObserver(True, True)
    whole.update(Values(array))
    for k, step in enumerate(array):
        parts.update(Values(step[None], begins=k == 0))
    assert whole.statistics is not None and parts.statistics is not None
    assert whole.statistics.as_dict() == parts.statistics.as_dict()


@pytest.mark.parametrize("shape", [(1, 1, 1), (1, 1, 128), (2, 3, 2), (5, 1, 7), (40, 2, 1), (3, 2, 40)])
def test_parts_together_are_as_each_alone(shape: tuple[int, ...]) -> None:
    """Parts of one shape are reduced together: each has the same sums, and a bin width of its own, before."""
    rng = np.random.default_rng(7)
    for options in ({"channels": True, "moments": True}, SQUARES):
        together, alone = PointObserver(**options), PointObserver(**options)
        for _ in range(2 * MOST_PARTS + 3):
            array = rng.standard_normal(shape) * 2.0 ** rng.integers(-20, 20)
            for observer in (together, alone):
                observer.update(Values(array.astype(np.float32)))
                observer.flush()
            alone.settle()
        assert together.statistics is not None and alone.statistics is not None
        assert together.statistics.as_dict() == alone.statistics.as_dict()


@pytest.mark.parametrize("batch", [1, 3])
def test_extremes_of_gates_together_are_as_run_by_run(batch: int) -> None:
    """Runs of one shape are reduced together; the samples of a run are summed as float64 first."""
    rng = np.random.default_rng(8)
    observers, expected = [PointObserver() for _ in range(4)], SampleExtremes()
    gates = GateExtremes(observers)
    for k in range(30):
        arrays = rng.standard_normal((4, 1 + k // 10, batch, 5)).astype(np.float32)
        valid = None if k % 3 else rng.random(arrays.shape[1:3]) < 0.5
        gates.update(list(arrays), valid)
        lows, highs = arrays.min(axis=(0, 3)), arrays.max(axis=(0, 3))
        if valid is not None:
            lows, highs = lows[valid], highs[valid]
        if lows.size:
            expected.add_runs(lows.reshape(1, -1), highs.reshape(1, -1))
    gates.flush()
    for observer in observers:
        assert (observer.gates[4].count, observer.gates[4].averages) == (expected.count, expected.averages)


def test_by_hand() -> None:
    """Two calls of two samples of two values, one sample of the second call is padding."""
    array = np.array([[[1, -2], [3, 4]], [[5, 6], [np.nan, 99]]], np.float32)
    valid = np.array([[True, True], [True, False]])
    found = observe([Values(array, valid)], [1], channels=True, moments=True)
    assert (found.shape, found.count, found.calls, found.min, found.max) == ((2, 2), 6, 2, -2.0, 6.0)
    assert found.avg_min == pytest.approx((-2 + 3 + 5) / 3) and found.avg_max == pytest.approx((1 + 4 + 6) / 3)
    assert found.mean == pytest.approx(17 / 6)
    assert found.std == pytest.approx(np.std([1, -2, 3, 4, 5, 6]))
    assert found.mean_abs_dev == pytest.approx(np.mean(np.abs(np.array([1, -2, 3, 4, 5, 6]) - 17 / 6)))
    assert found.call_percentiles == (4.0, 6.0)
    assert found.channel_max is not None and found.channel_max.tolist() == [5.0, 6.0]
    assert found.channel_mean is not None and found.channel_mean.tolist() == [3.0, pytest.approx(8 / 3)]
    squares = observe([Values(array, valid)], [1], squares=True)
    assert squares.channel_mean is not None and squares.channel_mean.tolist() == [3.0, pytest.approx(8 / 3)]
    assert squares.channel_square is not None
    assert squares.channel_square.tolist() == pytest.approx([35 / 3, 56 / 3])
    expected = np.array([[35, -2 + 12 + 30], [40, 4 + 16 + 36]]) / 3
    np.testing.assert_allclose(found.second_moment, expected, rtol=1e-6)  # type: ignore[arg-type]
    # 8 bits: 4 / 127.5 and 6 / 127.5 need 2**-4 at least; whole numbers are exact there.
    assert found.fix_positions[8] == {"max": {4: 2}, "mse": {4: 2}, "mse-floor": {4: 2}}


def test_the_whole_as_one_call() -> None:
    array = np.array([[[1, -2], [3, 4]], [[5, 6], [np.nan, 99]]], np.float32)
    valid = np.array([[True, True], [True, False]])
    found = observe([Values(array, valid, steps=False)], [1])
    assert (found.shape, found.count, found.calls) == ((2, 2, 2), 6, 1)
    assert (found.avg_min, found.avg_max) == ((-2 + 3) / 2, (6 + 4) / 2)
    assert found.call_percentiles == (6.0,)
    # Votes come from the steps.
    assert found.fix_positions[8]["max"] == {4: 2}


def test_steps_of_padding_alone_do_not_vote() -> None:
    array, valid = np.array([[[1.0]], [[np.nan]]], np.float32), np.array([[True], [False]])
    for steps in (False, True):
        found = observe([Values(array, valid, steps=steps)], [1])
        assert sum(found.fix_positions[8]["mse"].values()) == 1


def test_a_sample_of_one_value_is_averaged_over_the_calls() -> None:
    array = np.array([[[1], [3]], [[5], [-7]]], np.float32)
    found = observe([Values(array)], [1])
    assert (found.avg_min, found.avg_max) == ((1 - 7) / 2, (3 + 5) / 2)


def test_the_first_calls_keep_their_percentiles_in_order() -> None:
    array = np.arange(1, 2 * CALLS + 1, dtype=np.float32).reshape(-1, 1, 1)
    expected = tuple(float(k) for k in range(1, CALLS + 1))
    pieces = [Values(a) for a in np.split(array, 8)]
    for groups in ([8], [1] * 8, [3, 5]):
        found = observe(pieces, groups)
        assert found.call_percentiles == expected and found.calls == 2 * CALLS


def test_second_moments_beyond_float32_are_left_out() -> None:
    rows = np.full((1, 2, 3), 1e25, np.float32)
    assert observe([Values(rows)], [1], channels=True, moments=True).second_moment is None


def test_constant_values_do_not_deviate() -> None:
    found = observe([Values(np.full((3, 2, 2), 0.1, np.float32))] * 5, [5])
    assert (found.std, found.mean_abs_dev) == (0.0, 0.0) and found.mean == found.min == found.max


def test_nothing_and_padding_alone_are_no_statistics() -> None:
    observer = PointObserver()
    observer.update(Values(np.full((2, 1, 3), np.nan, np.float32), np.zeros((2, 1), np.bool_)))
    assert observer.statistics is None


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_refused_and_adds_nothing(value: float) -> None:
    observer = PointObserver()
    array = np.ones((2, 1, 3), np.float32)
    observer.update(Values(array), 4)
    array = array.copy()
    array[1, 0, 2] = value
    observer.update(Values(array), 7)
    with pytest.raises(NotFiniteError):
        observer.flush()
    assert observer.count == 0 and observer.first_not_finite == 7
