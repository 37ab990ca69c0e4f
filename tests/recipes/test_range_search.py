"""Searches on histograms, against sums one by one.

What these would catch: an antiderivative that jumps between two codes, bins beyond the ends counted as inside, a
divergence of the wrong two distributions.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rnnqc.formats.format import Format
from rnnqc.formats.format_request import FormatRequest
from rnnqc.formats.histogram import Histogram
from rnnqc.recipes.range_search import ENTROPY_BINS, SMOOTHING, bin_edges, least_divergence, squared_error

POINTS = 4000
FORMATS = st.sampled_from(
    [
        FormatRequest(1),
        FormatRequest(2, narrow=True),
        FormatRequest(3),
        FormatRequest(4, symmetric=False),
        FormatRequest(3, signed=False),
    ]
)


@given(
    FORMATS,
    st.integers(-6, 2),
    st.lists(st.integers(0, 9), min_size=1, max_size=8).filter(any),
    st.floats(0.05, 3.0),
    st.integers(0, 3),
)
def test_squared_error_is_the_integral(
    format_: FormatRequest, first: int, counts: list[int], scale: float, zero: int
) -> None:
    """By the sum over many values spread evenly in each bin; bins are wider and narrower than a code."""
    histogram = Histogram(0.5, first, np.array(counts, np.int64))
    zero_point = 0 if format_.symmetric and format_.signed else format_.minimum + zero
    edges = bin_edges(histogram, -100.0, 100.0)
    found = squared_error(edges, histogram.counts.astype(float), format_, scale, zero_point)
    encoding = Format(format_.bits, format_.signed, (scale,), zero_point=zero_point, narrow=format_.narrow)
    expected = 0.0
    for k, count in enumerate(counts):
        x = (first + k + (np.arange(POINTS) + 0.5) / POINTS) * 0.5
        expected += count * float(np.square(encoding.dequantize(encoding.quantize(x)) - x).mean())
    assert found == pytest.approx(expected, rel=2e-3, abs=1e-6)


def test_bins_end_at_the_extremes() -> None:
    edges = bin_edges(Histogram(1.0, -2, np.array([1, 1, 1, 1])), -1.5, 1.25)
    assert edges.tolist() == [-1.5, -1.0, 0.0, 1.0, 1.25]


def test_values_at_one_point() -> None:
    edges = bin_edges(Histogram(1.0, 0, np.array([5])), 0.3, 0.3)
    assert squared_error(edges, np.array([5.0]), FormatRequest(8), 0.25, 0) == pytest.approx(5 * 0.05**2)
    assert squared_error(edges, np.array([5.0]), FormatRequest(1), 0.25, 0) == pytest.approx(5 * 0.05**2)


def _divergence(counts: list[float], end: int, levels: int) -> float:
    """Bin by bin."""
    p = counts[:end]
    p[-1] += sum(counts[end:])
    q = [0.0] * end
    for level in range(levels):
        members = range(level * end // levels, (level + 1) * end // levels)
        used = [k for k in members if p[k] > 0]
        for k in used:
            q[k] = sum(counts[j] for j in members) / len(used)
    smooth = []
    for values in (p, q):
        holes, total = sum(v == 0 for v in values), sum(values)
        taken = SMOOTHING / end * holes / (end - holes)
        smooth.append([SMOOTHING / end if v == 0 else max(v / total - taken, SMOOTHING * 1e-6) for v in values])
    return sum(a * math.log(a / b) for a, b in zip(*smooth, strict=True))


@pytest.mark.few(1)
@pytest.mark.parametrize("bits", [3, 5])
def test_divergence_is_the_definition(bits: int) -> None:
    rng = np.random.default_rng(bits)
    magnitudes = np.minimum(rng.laplace(size=5000, scale=100.0).__abs__(), ENTROPY_BINS - 1).astype(int)
    counts = np.bincount(magnitudes, minlength=ENTROPY_BINS)
    counts[-1] = max(counts[-1], 1)
    histogram = Histogram(1.0, 0, counts)
    low, high = least_divergence(histogram, 0.0, float(ENTROPY_BINS), FormatRequest(bits, signed=False))
    levels = 2**bits
    ends = sorted({*range(levels, ENTROPY_BINS, max(1, levels // 8)), ENTROPY_BINS})
    sparse = [e for e in ends if e % 32 == 0 or e == round(high)]
    divergences = {e: _divergence([float(c) for c in counts], e, levels) for e in sparse}
    assert low == 0.0
    assert round(high) in divergences
    assert divergences[round(high)] <= min(divergences.values()) * (1 + 1e-9)
    assert high < ENTROPY_BINS
