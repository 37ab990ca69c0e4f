"""Scales the channels of an input by powers of two so that codes of one scale suit them all; W takes the inverse.

The codes of an input share one scale. Where its channels differ much in size - magnitudes of a spectrum do - small
channels are left with few codes. With x / s and s W in place of x and W every product is the same float, for s are
powers of two.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from rnnqc.builder import Builder
from rnnqc.cells.base import Cell
from rnnqc.ir import CELL_TAG, Constant, Graph, Model, constant_array, graph_info, info
from rnnqc.passes.emit_lstm import boundary_of
from rnnqc.recipe import Settings
from rnnqc.statistics import PointStatistics, Statistics

DYNAMIC = "dynamic-row"
LEAST_GAIN = 2.0
"""Less noise by less than this factor (3 dB) is not worth a multiplication of the input."""
SMALLEST = 2.0**-12
"""Channels and rows smaller than this part of the largest count as that large: nothing is known of silent ones."""


def wanted(settings: Settings) -> bool:
    """Whether a recipe asks for it: `equalize`, of an input whose scales follow from its rows."""
    return bool(settings.get("equalize") and settings.get("bits") and settings.get("mode") == DYNAMIC)


def channel_scales(seen: PointStatistics, weights: npt.NDArray[np.float32]) -> npt.NDArray[np.float64] | None:
    """Powers of two `[I]` by which to divide the channels of an input; None where little is gained.

    They halve, on a logarithmic scale, the differences between the sizes of channels over those of their weights.

    Args:
        seen: Statistics of the input.
        weights: W `[I,4H]`.
    """
    if seen.second_moment is None:
        return None
    size = np.sqrt(np.maximum(np.diagonal(seen.second_moment), 0.0))
    rows = np.sqrt(np.mean(np.square(weights, dtype=np.float64), axis=1))
    if len(size) != len(rows) or not (np.isfinite(size).all() and size.any() and rows.any()):
        return None
    size, rows = (np.maximum(v, v.max() * SMALLEST) for v in (size, rows))
    ratio = np.sqrt(size / rows)
    scales = np.asarray(2.0 ** np.round(np.log2(ratio / np.exp(np.mean(np.log(ratio))))))
    return scales if _noise(size, rows) > LEAST_GAIN * _noise(size / scales, rows * scales) else None


def _noise(size: npt.NDArray[np.float64], rows: npt.NDArray[np.float64]) -> float:
    """Of the products, up to a factor: the same step in all channels, as large as the largest channel makes it."""
    return float(size.max() ** 2 * np.sum(rows**2))


def equalize_input(
    model: Model, graph: Graph, cell: Cell, statistics: Statistics, scales: npt.NDArray[np.float64]
) -> Statistics:
    """Divides the input of a decomposed `cell` by `scales`, multiplies its W, and returns the statistics of that."""
    held = constant_array(graph_info(model.graph).initializers[cell.W])
    assert held is not None
    scaled = (held * scales[:, None]).astype(np.float32)
    builder = Builder(model, prefix=cell.name)
    factor = model.add_initializer(f"{cell.name}/input.factor", (1 / scales).astype(np.float32), graph)
    x = boundary_of(model, graph, cell).x
    equalized = builder.op("Mul", [x, factor], "input.equalized")
    equalized.dtype, equalized.shape = x.dtype, None if isinstance(x, Constant) else x.shape
    first = next(n for n in graph.nodes if info(n).metadata.get(CELL_TAG) == cell.name)
    model.insert_nodes(graph, first, builder.nodes)
    cell.x = equalized.name
    cell.W = model.add_initializer(f"{cell.name}/W.equalized", scaled).name
    name = f"{cell.name}.input"
    return replace(statistics, points={**statistics.points, name: _divided(statistics.points[name], scales)})


def _divided(seen: PointStatistics, scales: npt.NDArray[np.float64]) -> PointStatistics:
    """What concerns single channels; the rest is about the input as it was."""
    moment, largest, mean = seen.second_moment, seen.channel_max, seen.channel_mean
    return replace(
        seen,
        second_moment=None if moment is None else moment / np.outer(scales, scales),
        channel_max=None if largest is None else largest / scales,
        channel_mean=None if mean is None else mean / scales,
    )
