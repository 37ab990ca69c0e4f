"""Merges the calibration statistics of cells with equal weights: the steps of an unrolled decoder, or tied layers.

The data that a matrix multiplies determines its rounding and the scales of its rows. If several cells have the same
matrix, the data of all of them counts: its quantized values are the same in each, and stored once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from rnnqc.cells.equations import RESET_HIDDEN
from rnnqc.data.statistics import PointStatistics, Statistics

MULTIPLIED = {"W": ("input",), "R": ("hidden", RESET_HIDDEN)}
"""The points whose values W and R are multiplied with."""


def merge_for_shared_weights(
    statistics: Statistics, arrays: Mapping[str, Mapping[str, npt.NDArray[Any]]]
) -> Statistics:
    """Returns the statistics, merged over all cells that share a matrix where they concern it.

    Args:
        statistics: Statistics of a calibration.
        arrays: W and R of the cells, as floats.
    """
    merged: dict[str, PointStatistics] = {}
    for key, points in MULTIPLIED.items():
        groups: dict[tuple[Any, ...], list[str]] = {}
        for cell, held in arrays.items():
            if key in held:
                groups.setdefault((held[key].shape, held[key].tobytes()), []).append(cell)
        for cells in groups.values():
            for point in (*points, *(_gate_points(statistics, cells[0]) if len(cells) > 1 else ())):
                names = [f"{c}.{point}" for c in cells if f"{c}.{point}" in statistics.points]
                if len(names) > 1:
                    merged |= dict(zip(names, _merged([statistics.points[n] for n in names]), strict=True))
    return replace(statistics, points={**statistics.points, **merged}) if merged else statistics


def _gate_points(statistics: Statistics, cell: str) -> list[str]:
    """The points that determine which channels of a matrix are wide."""
    points = statistics.points.items()
    return [p.removeprefix(f"{cell}.") for p, s in points if p.startswith(f"{cell}.") and s.channel_square is not None]


def _merged(points: Sequence[PointStatistics]) -> list[PointStatistics]:
    weights = [p.count for p in points]
    largest = [p.channel_max for p in points if p.channel_max is not None]
    moments = [p.second_moment for p in points if p.second_moment is not None]
    if len(largest) == len(points):
        points = [replace(p, channel_max=np.max(largest, axis=0)) for p in points]
    if len(moments) == len(points):
        points = [replace(p, second_moment=np.average(moments, axis=0, weights=weights)) for p in points]
    squares = [p.channel_square for p in points if p.channel_square is not None]
    means = [p.channel_mean for p in points if p.channel_mean is not None]
    if len(means) == len(points):
        points = [replace(p, channel_mean=np.average(means, axis=0, weights=weights)) for p in points]
    if len(squares) == len(means) == len(points):
        points = [replace(p, channel_square=np.average(squares, axis=0, weights=weights)) for p in points]
    return list(points)
