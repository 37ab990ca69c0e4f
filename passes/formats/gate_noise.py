"""The effect of an error in each pre-activation of a cell on its states, from calibration statistics.

The equations of the cell (`rnnqc.cells.equations`) run on mean squares instead of values; each value carries the mean
square of its derivative by every pre-activation. Factors are treated as independent.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from rnnqc.cells.base import Cell
from rnnqc.data.statistics import PointStatistics, Statistics

Vector = npt.NDArray[np.float64]


def gate_noise(cell: Cell, arrays: Mapping[str, npt.NDArray[np.float32]], statistics: Statistics | None) -> Vector:
    """Returns the noise-to-signal ratio in the states per squared error of each pre-activation, `[GH]`.

    This is the noise of one step in the hidden state with the gates as observed in the calibration, plus that in the
    state which the next step keeps a part of (the cell state of an LSTM) with all gates at their steepest: a counting
    unit has a forget gate near 1, where its slope vanishes, until other data makes it forget.

    Args:
        cell: The cell.
        arrays: R and, if the cell has it, hidden_bias.
        statistics: Statistics of a calibration. Without mean squares in it: the squares of the gates' mean slopes
            from -2 to 2.
    """
    found = None if statistics is None else _seen_noise(cell, arrays, statistics)
    if found is not None:
        return found
    slopes = [cell.gate_activation(k).slope for k in range(len(cell.type.gates))]
    return np.square(np.repeat(np.array(slopes, np.float64), cell.hidden_size))


def _seen_noise(cell: Cell, arrays: Mapping[str, npt.NDArray[np.float32]], statistics: Statistics) -> Vector | None:
    points = {p.name: s for p in cell.type.points if (s := statistics.points.get(f"{cell.name}.{p.name}")) is not None}
    try:
        usual, steep = (_NoiseStep(cell, arrays, points, steepest=s) for s in (False, True))
        shares = ((cell.type.step(usual)[0], usual.hidden), (cell.type.step(steep)[1], steep.state))
    except _MissingError:
        return None
    total = np.zeros((len(cell.type.gates), cell.hidden_size))
    for noisy, known in shares:
        power = known.square.sum()
        for gate, slopes in noisy.slopes.items() if power > 0.0 else ():
            total[gate] += (slopes.sum(axis=1) if slopes.ndim == 2 else slopes) / power
    return total.ravel()


class _MissingError(Exception):
    """The statistics lack the required values."""


@dataclass(frozen=True)
class _Noisy:
    """A value `[H]`.

    Attributes:
        mean: Mean of each unit.
        square: Mean square of each unit.
        slopes: For each gate, mean squares of the derivatives by its pre-activations: `[H]`, by that of the same unit,
            or `[H,H]`, by that of unit j in row j.
    """

    mean: Vector
    square: Vector
    slopes: Mapping[int, Vector] = field(default_factory=dict)


def _state(seen: PointStatistics) -> _Noisy:
    square = seen.channel_square
    if square is None and seen.second_moment is not None:
        square = np.diagonal(seen.second_moment)
    if square is None or seen.channel_mean is None:
        raise _MissingError
    return _Noisy(seen.channel_mean, np.asarray(square))


def _added(*terms: tuple[Mapping[int, Vector], Vector | float]) -> dict[int, Vector]:
    """The sums of squared derivatives, each mapping scaled by a factor per unit."""
    made: dict[int, Vector] = {}
    for slopes, factor in terms:
        for gate, own in slopes.items():
            term, known = own * factor, made.get(gate, np.zeros(1))
            if known.ndim != term.ndim:
                known, term = (np.diag(v) if v.ndim == 1 and len(v) > 1 else v for v in (known, term))
            made[gate] = known + term
    return made


class _NoiseStep:
    """`rnnqc.cells.equations.Step` on mean squares.

    Args:
        cell: The cell.
        arrays: R and, if the cell has it, hidden_bias.
        points: Statistics of the points of the cell.
        steepest: Whether to use the steepest slopes of activations instead of their mean ones.
    """

    def __init__(
        self,
        cell: Cell,
        arrays: Mapping[str, npt.NDArray[np.float32]],
        points: Mapping[str, PointStatistics],
        *,
        steepest: bool,
    ) -> None:
        self.cell, self.arrays, self.points, self.steepest = cell, arrays, points, steepest
        self.input_forget, self.linear_before_reset = cell.input_forget, cell.linear_before_reset
        self.hidden = self._seen("hidden")
        self.state = self._seen("cell_state") if cell.type.cell_state else self.hidden

    def _seen(self, point: str) -> _Noisy:
        if point not in self.points:
            raise _MissingError
        return _state(self.points[point])

    def _columns(self, k: int) -> Vector:
        size = self.cell.hidden_size
        return self.arrays["R"][:, k * size : (k + 1) * size].astype(np.float64)

    def gate(self, k: int, peephole: _Noisy | None = None) -> _Noisy:
        """Returns the activation of gate k."""
        return self._after(k, {})

    def _after(self, k: int, slopes: Mapping[int, Vector]) -> _Noisy:
        """Gate k for a pre-activation that has derivatives by those of others."""
        value, activation = self._seen(f"{self.cell.type.gates[k]}.activation"), self.cell.gate_activation(k)
        slope = activation.mean_slopes(value.mean, value.square)
        own = np.square(np.full_like(slope, activation.steepest_slope) if self.steepest else slope)
        return _Noisy(value.mean, value.square, {**_added((slopes, own)), k: own})

    def projected(self, k: int) -> _Noisy:
        """Placeholder for x W + B of gate k, whose value is unused."""
        return self.state

    def recurrent(self, k: int) -> _Noisy:
        """Returns h R of gate k."""
        columns, hidden = self._columns(k), self.points["hidden"]
        bias = np.asarray(self.arrays.get("hidden_bias", np.zeros(self.cell.hidden_size)), np.float64)
        if hidden.second_moment is None:
            raise _MissingError
        square = np.einsum("ju,ju->u", columns, hidden.second_moment @ columns) + np.square(bias)
        return _Noisy(np.zeros_like(square), square)

    def recurrent_of(self, k: int, value: _Noisy) -> _Noisy:
        """Returns value R of gate k; only its derivatives are used."""
        squares = np.square(self._columns(k))
        slopes = {g: s[:, None] * squares if s.ndim == 1 else s @ squares for g, s in value.slopes.items()}
        return _Noisy(value.mean, value.square, slopes)

    def activated(self, k: int, part: _Noisy, projected: _Noisy) -> _Noisy:
        """Returns the activation of gate k: of part + projected."""
        return self._after(k, part.slopes)

    def coupled(self, gate: _Noisy) -> _Noisy:
        """Returns 1 - gate."""
        return self.complement(gate)

    def complement(self, gate: _Noisy) -> _Noisy:
        """Returns 1 - gate."""
        return _Noisy(1.0 - gate.mean, 1.0 - 2.0 * gate.mean + gate.square, gate.slopes)

    def product(self, a: _Noisy, b: _Noisy, point: str) -> _Noisy:
        """Returns a * b."""
        return _Noisy(a.mean * b.mean, a.square * b.square, _added((a.slopes, b.square), (b.slopes, a.square)))

    def total(self, kept: _Noisy, added: _Noisy, point: str) -> _Noisy:
        """Returns kept + added."""
        square = kept.square + 2.0 * kept.mean * added.mean + added.square
        return _Noisy(kept.mean + added.mean, square, _added((kept.slopes, 1.0), (added.slopes, 1.0)))

    def squashed(self, state: _Noisy) -> _Noisy:
        """Returns the output activation of the cell state."""
        value, activation = self._seen("hidden.activation"), self.cell.output_activation
        assert activation is not None
        slope = np.square(activation.mean_slopes(value.mean, value.square))
        return _Noisy(value.mean, value.square, _added((state.slopes, slope)))
