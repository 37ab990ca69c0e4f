"""Searches on a histogram: the range with the least squared error, and the one that keeps the most information.

Values are assumed to be spread evenly within a bin. So errors are integrals, exact also where a bin is narrower or
wider than a quantized value.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from rnnqc.formats.format_request import FormatRequest
from rnnqc.formats.histogram import Histogram

Vector = npt.NDArray[np.float64]
RATIO = 0.97
CANDIDATES = 160
"""Each candidate for an end of the range is 0.97 of the one before; the last one is below 1 % of the first."""
THINNEST = 1e-6
"""A bin that spans less of a quantized value counts as a point: a difference of integrals would be all rounding."""
COARSE = 20
ROUNDS = 2
SMOOTHING = 1e-4
"""Smoothing gives each empty bin this probability over the number of bins, taken from the others."""
ENTROPY_BINS = 2048


def bin_edges(histogram: Histogram, low: float, high: float) -> Vector:
    """Returns the bounds of the bins, limited to `low` and `high`."""
    return np.asarray(np.clip(histogram.edges, low, high))


def squared_error(edges: Vector, counts: Vector, request: FormatRequest, scale: float, zero_point: int) -> float:
    """Sums the squared errors of rounding to the nearest quantized value, for values spread evenly in bins.

    Args:
        edges: `[n + 1]`, ascending.
        counts: `[n]`.
        request: The format.
        scale: Its scale.
        zero_point: Its zero point.
    """
    if request.bits == 1:
        return _binary_error(edges, counts, scale)
    units = edges / scale
    nearest = np.rint(units)
    np.clip(nearest, request.minimum - zero_point, request.maximum - zero_point, out=nearest)
    # An antiderivative of (x - Q(x))**2: every quantized value passed adds 1/12, the one in progress adds
    # (u - k)**3 / 3.
    off = units - nearest
    integral = nearest / 12.0 + off * off * off / 3.0  # pow is 40 times slower, and its results depend on the platform
    extent = units[1:] - units[:-1]
    point = off[:-1] ** 2
    mean = np.divide(integral[1:] - integral[:-1], extent, out=point, where=extent > THINNEST)
    return float(np.dot(counts, np.maximum(mean, 0.0, out=mean))) * scale * scale


def _binary_error(edges: Vector, counts: Vector, scale: float) -> float:
    """The squared error for the values -scale and scale; the antiderivative is of (|x| - scale)**2."""
    units = edges / scale
    off = np.abs(units) - 1.0
    integral = np.sign(units) * (off * off * off + 1.0) / 3.0
    extent = np.diff(units)
    point = off[:-1] ** 2
    mean = np.divide(np.diff(integral), extent, out=point, where=extent > THINNEST)
    return float(np.dot(counts, np.maximum(mean, 0.0))) * scale * scale


def least_squared_error(histogram: Histogram, low: float, high: float, request: FormatRequest) -> tuple[float, float]:
    """Finds the range within `low` and `high` whose format has the least squared error; the whole is a candidate.

    Returns:
        Its ends, symmetric about zero for a symmetric format.
    """
    values = np.asarray(histogram.counts, np.int64)
    return _least_squared_error(histogram.width, histogram.first, values.tobytes(), low + 0.0, high + 0.0, request)


@functools.lru_cache(maxsize=256)  # lowered again, for example to another form, a model has the same histograms
def _least_squared_error(
    width: float, first: int, held: bytes, low: float, high: float, request: FormatRequest
) -> tuple[float, float]:
    histogram = Histogram(width, first, np.frombuffer(held, np.int64))
    edges, counts = bin_edges(histogram, low, high), histogram.counts.astype(np.float64)

    def cost(below: float, above: float) -> float:
        return squared_error(edges, counts, request, *request.fit_one(below, above))

    return _search(cost, low, high, request)


def _search(
    cost: Callable[[float, float], float], low: float, high: float, request: FormatRequest
) -> tuple[float, float]:
    factors = RATIO ** np.arange(CANDIDATES)
    if request.symmetric or request.zero_point is not None:
        bound = max(-low, high)
        below = 0.0 if low >= 0.0 else -bound
        best = _least(lambda f: cost(f * below, f * bound), factors)
        best = _least(lambda f: cost(f * below, f * bound), [best, *(best * np.linspace(1 / RATIO, RATIO, 17))[1:-1]])
        return min(best, 1.0) * below, min(best, 1.0) * bound
    below, above = min(low, 0.0), max(high, 0.0)
    coarse = factors[:: CANDIDATES // COARSE]
    pairs = [(f, g) for f in (coarse if below < 0.0 else [1.0]) for g in (coarse if above > 0.0 else [1.0])]
    f, g = min(pairs, key=lambda pair: cost(pair[0] * below, pair[1] * above))
    for _ in range(ROUNDS):
        f = _least(lambda v: cost(v * below, g * above), [f, *factors]) if below < 0.0 else f  # noqa: B023
        g = _least(lambda v: cost(f * below, v * above), [g, *factors]) if above > 0.0 else g  # noqa: B023
    return f * below, g * above


def _least(cost: Callable[[float], float], candidates: npt.ArrayLike) -> float:
    """Returns the candidate with the least cost, the first of equals."""
    values = np.asarray(candidates, np.float64)
    return float(values[int(np.argmin([cost(float(v)) for v in values]))])


def least_divergence(histogram: Histogram, low: float, high: float, request: FormatRequest) -> tuple[float, float]:
    """Finds the range whose quantized distribution keeps most information: least Kullback-Leibler divergence.

    After S. Migacz, "8-bit Inference with TensorRT" (GTC 2017): compares the distribution clipped to a range, values
    beyond it in its end bins, with the same bins averaged over as many groups as there are quantized values. Zeros are
    smoothed as in MXNet.

    Returns:
        Its ends, symmetric about zero for a symmetric format.
    """
    if request.symmetric or request.zero_point is not None:
        bound = max(-low, high)
        counts = _resampled(np.abs(bin_edges(histogram, low, high)), histogram.counts, 0.0, bound)
        levels = max(1, request.integers.size // (2 if low < 0.0 or request.signed else 1))
        last = _best_end(counts, levels)
        return (0.0 if low >= 0.0 else -bound * last / counts.size), bound * last / counts.size
    below, above = min(low, 0.0), max(high, 0.0)
    counts = _resampled(bin_edges(histogram, low, high), histogram.counts, below, above)
    zero = round(-below / (above - below) * counts.size) if above > below else 0
    starts = np.unique(np.linspace(0, max(zero - 1, 0), COARSE).astype(int)) if zero else np.array([0])
    ends = np.unique(np.linspace(min(zero + 1, counts.size), counts.size, COARSE).astype(int))[::-1]
    pairs = [(s, e) for s in starts for e in ends if e - s >= min(request.integers.size, counts.size)]
    divergences = [_divergence(counts, s, e, request.integers.size) for s, e in pairs]
    start, end = pairs[int(np.argmin(divergences))]
    width = (above - below) / counts.size
    return float(below + start * width), float(below + end * width)


def _resampled(edges: Vector, counts: npt.NDArray[np.int64], low: float, high: float) -> Vector:
    """Moves the values to `ENTROPY_BINS` bins of equal width from `low` to `high`, each old bin at its middle."""
    middles = (edges[:-1] + edges[1:]) / 2.0
    return np.asarray(
        np.histogram(middles, ENTROPY_BINS, (low, high if high > low else low + 1.0), weights=counts)[0], np.float64
    )


def _best_end(counts: Vector, levels: int) -> int:
    """Returns the end of the range from 0 with the least divergence, the widest of equals."""
    ends = np.unique(np.append(np.arange(min(levels, counts.size), counts.size, max(1, levels // 8)), counts.size))[
        ::-1
    ]
    return int(ends[int(np.argmin([_divergence(counts, 0, int(e), levels) for e in ends]))])


def _divergence(counts: Vector, start: int, end: int, levels: int) -> float:
    inside = counts[start:end]
    clipped = inside.copy()
    clipped[0] += counts[:start].sum()
    clipped[-1] += counts[end:].sum()
    groups = np.unique(np.arange(min(levels, inside.size)) * inside.size // min(levels, inside.size))
    used = clipped > 0.0
    total = np.add.reduceat(inside, groups)
    filled = np.add.reduceat(used.astype(np.float64), groups)
    sizes = np.diff(np.append(groups, inside.size))
    mean = np.divide(total, filled, out=np.zeros_like(total), where=filled > 0.0)
    quantized = np.where(used, np.repeat(mean, sizes), 0.0)
    p, q = _smoothed(clipped), _smoothed(quantized)
    return float(np.dot(p, np.log(p / q))) if p is not None and q is not None else np.inf


def _smoothed(counts: Vector) -> Vector | None:
    """Returns probabilities, with `SMOOTHING` for each empty bin, taken from the others; None if all bins are empty."""
    empty = counts == 0.0
    holes, used = int(empty.sum()), int((~empty).sum())
    if used == 0:
        return None
    p = counts / counts.sum()
    taken = SMOOTHING / counts.size * holes / used
    p = np.where(empty, SMOOTHING / counts.size, p - taken)
    return np.asarray(np.maximum(p, SMOOTHING * 1e-6))
