"""Error-compensated rounding of weight matrices from the second moments of their inputs.

A matrix `[K,n]` multiplies rows `[K]`. A rounding error E changes the results by `x E`, in the mean square by
`tr(E^T G E)` with `G = mean(x^T x)`: errors in different rows of a channel can cancel where inputs are correlated.
Rows are rounded one after the other, and later rows make up for the error of earlier ones (Frantar et al. 2022, GPTQ,
arXiv 2210.17323); then each quantized value is chosen again, given all others, until nothing improves. See
docs/compensation.md.

Channels are independent. They are processed in blocks, so temporaries stay small compared with the model.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from rnnqc.formats.codebooks import VALUES
from rnnqc.formats.format import Format
from rnnqc.formats.known_results import KnownResults
from rnnqc.formats.rounding import Rounding, round_to_integer
from rnnqc.formats.weights import group_multipliers, quantize_codebooks, quantize_matrix, quantize_with_multipliers

FloatArray = npt.NDArray[np.float32]
DoubleArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

DAMPING = 0.02
"""Added to the diagonal of G, as a share of its mean: few samples say little about small eigenvalues."""
SWEEPS = 4
BLOCK = 32
COLUMNS = 1024


class Choices(Protocol):
    """The values that each entry of a matrix `[K,n]` may take, and their quantized values."""

    def columns(self, chosen: slice) -> Choices:
        """Returns the choices for some of the columns."""

    def nearest(self, row: int, values: DoubleArray) -> DoubleArray:
        """Returns the allowed values nearest to the values `[n]` of one row."""

    def codes(self, values: DoubleArray) -> IntArray:
        """Returns the quantized values of allowed values, `[K,n]`."""

    def values(self, codes: npt.ArrayLike) -> DoubleArray:
        """Returns the real values of quantized values `[K,n]`."""


@dataclass(frozen=True)
class Lattice:
    """Evenly spaced choices for each entry of a matrix `[K,n]`: `step * (code - zero_point)` for integers in a range.

    Attributes:
        step: `[S,n]`, positive.
        low: Lowest quantized value, `[S,n]`.
        high: Highest quantized value, `[S,n]`.
        zero_point: Quantized 0, `[S,n]`.
        part: Which of the S rows above applies to each row of the matrix, `[K]`.
        stride: Distance between quantized values, `[S]`: 2 for the values -1 and +1 of one bit.
    """

    step: DoubleArray
    low: DoubleArray
    high: DoubleArray
    zero_point: DoubleArray
    part: IntArray
    stride: IntArray

    @classmethod
    def of_format(cls, format_: Format, shape: tuple[int, int], limit: npt.ArrayLike | None = None) -> Lattice:
        """Makes the lattice of a number format.

        Args:
            format_: One scale, or one for each column.
            shape: K and n.
            limit: Largest magnitude of a quantized value minus the zero point, one for each column, where that is less
                than the format allows.
        """
        row = (1, shape[1])
        low, high = (np.full(row, float(v)) for v in (format_.minimum, format_.maximum))
        zero = np.broadcast_to(format_.all_zero_points.astype(np.float64), row)
        if limit is not None:
            bound = np.asarray(limit, np.float64).reshape(1, -1)
            low, high = np.maximum(low, zero - bound), np.minimum(high, zero + bound)
        step = np.broadcast_to(np.asarray(format_.scale, np.float32).astype(np.float64), row)
        stride = np.array([2 if format_.bits == 1 else 1])
        return cls(step, low, high, zero, np.zeros(shape[0], np.int64), stride)

    @classmethod
    def of_groups(
        cls, scale: FloatArray, multipliers: npt.NDArray[np.uint8], bits: int, size: int, rows: int
    ) -> Lattice:
        """Makes the lattice of symmetric values of `bits` times integer multipliers of groups `[ceil(K / size),n]`."""
        step = multipliers.astype(np.float64) * np.asarray(scale, np.float32).astype(np.float64)
        top = np.full(step.shape, 2.0 ** (bits - 1) - 1)
        return cls(step, -top, top, np.zeros(step.shape), np.arange(rows) // size, np.ones(len(step), np.int64))

    def columns(self, chosen: slice) -> Lattice:
        """Returns the lattice of some of the columns."""
        names = ("step", "low", "high", "zero_point")
        return replace(self, **{n: np.ascontiguousarray(getattr(self, n)[:, chosen]) for n in names})

    def nearest(self, row: int, values: DoubleArray) -> DoubleArray:
        """Returns the lattice values nearest to the values `[n]` of one row."""
        s = self.part[row]
        step, low, zero, stride = self.step[s], self.low[s], self.zero_point[s], self.stride[s]
        above = round_to_integer((values / step + (zero - low)) / stride, Rounding.HALF_EVEN)
        codes = np.clip(low + stride * above, low, self.high[s])
        return np.asarray((codes - zero) * step)

    def codes(self, values: DoubleArray) -> IntArray:
        """Returns the quantized values of values on the lattice, `[K,n]`."""
        p = self.part
        return np.asarray(np.rint(values / self.step[p]) + self.zero_point[p]).astype(np.int64)

    def values(self, codes: npt.ArrayLike) -> DoubleArray:
        """Returns the real values of quantized values `[K,n]`."""
        p = self.part
        return np.asarray((np.asarray(codes, np.float64) - self.zero_point[p]) * self.step[p])


@dataclass(frozen=True)
class Codebooks:
    """Choices of sixteen values for each group of rows and column; they need not be evenly spaced.

    Attributes:
        step: Real value of 1 LSB, `[n]`.
        entries: Quantized values of each group and column, ascending, `[G,n,16]`.
        part: The group of each row, `[K]`.
    """

    step: DoubleArray
    entries: DoubleArray
    part: IntArray

    def columns(self, chosen: slice) -> Codebooks:
        """Returns the choices for some of the columns."""
        return replace(self, step=self.step[chosen], entries=np.ascontiguousarray(self.entries[:, chosen]))

    def nearest(self, row: int, values: DoubleArray) -> DoubleArray:
        """Returns the allowed values nearest to the values `[n]` of one row; the lower one at equal distance."""
        entries = self.entries[self.part[row]]
        above = (values / self.step)[:, None] > (entries[:, 1:] + entries[:, :-1]) / 2
        return np.asarray(np.take_along_axis(entries, above.sum(axis=1)[:, None], axis=1)[:, 0] * self.step)

    def codes(self, values: DoubleArray) -> IntArray:
        """Returns the quantized values of allowed values, `[K,n]`."""
        return np.asarray(np.rint(values / self.step)).astype(np.int64)

    def values(self, codes: npt.ArrayLike) -> DoubleArray:
        """Returns the real values of quantized values `[K,n]`."""
        return np.asarray(np.asarray(codes, np.float64) * self.step)


def squared_error(error: npt.ArrayLike, moment: npt.ArrayLike) -> DoubleArray:
    """Returns the mean squared change `[n]` of a matmul by a weight error `[K,n]`: the diagonal of `E^T G E`."""
    e, g = np.asarray(error, np.float64), np.asarray(moment, np.float64)
    return np.asarray(np.einsum("kn,kn->n", e, g @ e))


def bias_correction(error: npt.ArrayLike, mean: npt.ArrayLike) -> FloatArray:
    """Returns the correction of a bias `[n]` that removes the mean effect of a weight error.

    Args:
        error: The weights in use minus the intended ones, `[K,n]`.
        mean: Mean of the inputs, `[K]`.
    """
    return np.asarray(-(np.asarray(mean, np.float64) @ np.asarray(error, np.float64)), np.float32)


def compensate(
    array: npt.ArrayLike,
    plain: npt.ArrayLike,
    lattice: Choices,
    moment: npt.ArrayLike,
    damping: float = DAMPING,
    sweeps: int = SWEEPS,
) -> IntArray:
    """Returns quantized values `[K,n]` that change the matmul less than `plain` ones, and in no channel more.

    Args:
        array: The weights, `[K,n]`.
        plain: Quantized values by plain rounding, the fallback.
        lattice: The allowed values.
        moment: Uncentred second moments of the inputs, `[K,K]`, up to a positive factor; zeros for dead inputs.
        damping: See `DAMPING`.
        sweeps: How many times each quantized value is chosen again at most.
    """
    w, codes = np.asarray(array), np.array(plain, np.int64)
    g = _normalized(moment)
    if g is None:
        return codes
    damped = g + damping * np.eye(len(g))
    orders = [(order, factor) for order in _orders(g) if (factor := _factor(damped, order)) is not None]
    for chosen in _slices(w.shape[1], COLUMNS):
        part = lattice.columns(chosen)
        target = w[:, chosen].astype(np.float64)
        first = part.values(codes[:, chosen])
        best, least = first.copy(), squared_error(first - target, damped)
        for order, factor in orders:
            values = _round_in_order(target, part, order, factor)
            noise = squared_error(values - target, damped)
            better = noise < least
            best[:, better], least[better] = values[:, better], noise[better]
        best = _choose_again(target, best, part, damped, sweeps)
        better = squared_error(best - target, g) < squared_error(first - target, g)
        codes[:, chosen] = np.where(better, part.codes(best), codes[:, chosen])
    return codes


_COMPENSATED = KnownResults(2**25)


def compensate_once(array: npt.ArrayLike, plain: npt.ArrayLike, lattice: Choices, moment: npt.ArrayLike) -> IntArray:
    """Returns what `compensate` returns, and computes it once: a search lowers the same matrices many times."""
    w, rounded, g = np.asarray(array), np.asarray(plain), np.asarray(moment)
    parts = [w, rounded, type(lattice).__name__, *(v for _, v in sorted(vars(lattice).items())), g]
    return _COMPENSATED.of(parts, lambda: compensate(w, rounded, lattice, g))


def compensate_matrix(
    format_: Format, array: FloatArray, moment: npt.ArrayLike, narrow_bits: int | None = None
) -> npt.NDArray[Any]:
    """Returns the quantized values of `rnnqc.formats.weights.quantize_matrix`, compensated.

    Args:
        format_: One scale, or one for each column.
        array: `[K,n]`.
        moment: As for `compensate`.
        narrow_bits: Channels whose plainly rounded values fit into this many bits stay within them: those that are not
            wide channels.
    """
    plain = quantize_matrix(format_, array)
    limit = None
    if narrow_bits is not None:
        top = 2 ** (narrow_bits - 1) - 1
        limit = np.where(np.abs(plain.astype(np.int64)).max(axis=0) <= top, top, format_.maximum)
    lattice = Lattice.of_format(format_, array.shape, limit)
    return compensate_once(array, plain, lattice, moment).astype(format_.dtype)


def compensate_groups(
    array: FloatArray, scale: FloatArray, bits: int, group_size: int, rounding: Rounding, moment: npt.ArrayLike
) -> npt.NDArray[np.int8]:
    """Returns the quantized values of `rnnqc.formats.weights.quantize_groups`, with its multipliers, compensated.

    Args:
        array: `[K,n]`.
        scale: Real value of one int8 step, one or one for each channel.
        bits: Width of a quantized value before multiplication.
        group_size: Rows of a group.
        rounding: Rounding of the plain values; compensated ones are rounded to nearest.
        moment: As for `compensate`.
    """
    multipliers = group_multipliers(array, scale, bits, group_size, rounding)
    plain = quantize_with_multipliers(array, scale, bits, group_size, rounding, multipliers)
    factors = multipliers[np.arange(len(array)) // group_size].astype(np.int64)
    lattice = Lattice.of_groups(scale, multipliers, bits, group_size, len(array))
    return (compensate_once(array, plain // factors, lattice, moment) * factors).astype(np.int8)


def compensate_codebooks(
    array: FloatArray, scale: FloatArray, group_size: int, moment: npt.ArrayLike
) -> npt.NDArray[np.int8]:
    """Returns compensated quantized values of groups that each use one codebook and one multiplier.

    First, each group uses the codebook that fits its weights best. Then each group uses the one that fits best what the
    errors of the other groups require, and each channel keeps the better of the two results.

    Args:
        array: `[K,n]`.
        scale: Real value of one int8 step, one or one for each channel.
        group_size: Rows of a group.
        moment: As for `compensate`.
    """
    step = np.broadcast_to(np.asarray(scale, np.float32).astype(np.float64), array.shape[1:])
    part = np.arange(len(array)) // group_size

    def made(plain: npt.NDArray[np.int8], chosen: IntArray) -> IntArray:
        return compensate_once(array, plain, Codebooks(step, VALUES[chosen].astype(np.float64), part), moment)

    codes = made(*quantize_codebooks(array, scale, group_size))
    g = _normalized(moment)
    if g is None:
        return codes.astype(np.int8)
    damped = g + DAMPING * np.eye(len(g))
    wanted = np.empty(array.shape, np.float32)
    for columns in _slices(array.shape[1], COLUMNS):
        wanted[:, columns] = _left_to_groups(array[:, columns], codes[:, columns] * step[columns], group_size, damped)
    again = made(*quantize_codebooks(wanted, scale, group_size, np.diagonal(damped)))
    for columns in _slices(array.shape[1], COLUMNS):
        first, second = (squared_error(c[:, columns] * step[columns] - array[:, columns], g) for c in (codes, again))
        codes[:, columns] = np.where(second < first, again[:, columns], codes[:, columns])
    return codes.astype(np.int8)


def _slices(count: int, size: int) -> Iterator[slice]:
    return (slice(start, min(start + size, count)) for start in range(0, count, size))


def _normalized(moment: npt.ArrayLike) -> DoubleArray | None:
    """Returns the moments, symmetric and with a mean diagonal of 1; None if they are zero or not finite."""
    g = np.asarray(moment, np.float64)
    mean = float(np.mean(np.diagonal(g)))
    if not np.isfinite(g).all() or mean <= 0.0:
        return None
    return np.asarray((g + g.T) / (2.0 * mean))


def _orders(g: DoubleArray) -> list[IntArray]:
    """Returns two orders of rows: strongest inputs first, while most later rows can compensate; and unchanged."""
    return [np.argsort(-np.diagonal(g), kind="stable"), np.arange(len(g))]


def _factor(damped: DoubleArray, order: IntArray) -> DoubleArray | None:
    """Returns upper triangular U with `U^T U = inverse(G)` up to a factor for each row, diagonal 1; rows in `order`.

    With `G = V V^T`, V upper triangular, it is the inverse of V. None if G is numerically singular.
    """
    try:
        upper = np.linalg.inv(np.linalg.cholesky(damped[np.ix_(order[::-1], order[::-1])])[::-1, ::-1])
    except np.linalg.LinAlgError:
        return None
    upper = np.triu(upper / np.diagonal(upper)[:, None])
    return np.asarray(upper) if np.isfinite(upper).all() else None


def _left_to_groups(target: FloatArray, values: DoubleArray, group_size: int, g: DoubleArray) -> DoubleArray:
    """Returns the optimal real values for the rows of each group, given the values of all other groups."""
    error, wanted = values - target, np.empty(values.shape)
    for start in range(0, len(g), group_size):
        rows = slice(start, start + group_size)
        own = g[rows, rows]
        wanted[rows] = target[rows] - np.linalg.solve(own, g[rows] @ error - own @ error[rows])
    return wanted


def _round_in_order(target: DoubleArray, lattice: Choices, order: IntArray, factor: DoubleArray) -> DoubleArray:
    """Rounds rows in `order` to allowed values `[K,n]`; later rows compensate the error of earlier ones."""
    work, values = target[order], np.empty_like(target)
    for rows in _slices(len(order), BLOCK):
        lost = np.empty((rows.stop - rows.start, work.shape[1]))
        for k, row in enumerate(range(rows.start, rows.stop)):
            values[order[row]] = lattice.nearest(int(order[row]), work[row])
            lost[k] = work[row] - values[order[row]]
            inside = slice(row + 1, rows.stop)
            work[inside] -= np.outer(factor[row, inside], lost[k])
        work[rows.stop :] -= factor[rows, rows.stop :].T @ lost
    return values


def _choose_again(
    target: DoubleArray, values: DoubleArray, lattice: Choices, g: DoubleArray, sweeps: int
) -> DoubleArray:
    """Replaces each entry by the best one given all others of its channel, for at most `sweeps` sweeps."""
    values = values.copy()
    strong = np.diagonal(g) > 0.0
    for _ in range(sweeps):
        pull = g @ (values - target)
        moved = False
        for rows in _slices(len(g), BLOCK):
            change = np.zeros((rows.stop - rows.start, values.shape[1]))
            for k, row in enumerate(range(rows.start, rows.stop)):
                if not strong[row]:
                    continue
                wanted = lattice.nearest(row, values[row] - pull[row] / g[row, row])
                change[k] = wanted - values[row]
                if change[k].any():
                    values[row] = wanted
                    pull[row + 1 : rows.stop] += np.outer(g[row + 1 : rows.stop, row], change[k])
            if change.any():
                moved = True
                pull[rows.stop :] += g[rows.stop :, rows] @ change
        if not moved:
            break
    return values


def shrunk(moment: npt.ArrayLike, mean: npt.ArrayLike, rows: int) -> DoubleArray:
    """Estimates second moments from few rows by shrinking the correlations between channels.

    Correlations about the mean shrink towards 0 by the factor with the least expected error for normally distributed
    rows (Chen, Wiesel, Eldar, Hero 2010, "Shrinkage algorithms for MMSE covariance estimation", arXiv 0907.4698: OAS).
    With many rows they hardly change.

    Args:
        moment: Uncentred second moments of `rows` rows, `[K,K]`.
        mean: Mean of the rows, `[K]`.
        rows: At least 1.
    """
    g, mu = np.asarray(moment, np.float64), np.asarray(mean, np.float64)
    of_mean = np.outer(mu, mu)
    centred = g - of_mean
    spread = np.sqrt(np.maximum(np.diagonal(centred), 0.0))
    spread = np.where(spread > 0, spread, 1.0)
    c = centred / np.outer(spread, spread)
    size, squares, power = len(c), np.square(c).sum(), np.trace(c) ** 2
    most = (rows + 1 - 2 / size) * (squares - power / size)
    part = min(1.0, ((1 - 2 / size) * squares + power) / most) if most > 0 else 1.0
    kept = of_mean + (1 - part) * centred
    np.fill_diagonal(kept, np.diagonal(g))
    return np.asarray(kept)
