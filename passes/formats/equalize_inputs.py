"""Scales the channels of an input by powers of two so that one scale suits them all; W takes the inverse.

The quantized values of an input share one scale. Where its channels differ much in size - magnitudes of a spectrum do
- small channels are left with few quantized values. With x / s and s W in place of x and W every product is the same
float, for s are powers of two.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from rnnqc.cells.base import Cell
from rnnqc.data.statistics import PointStatistics, Statistics
from rnnqc.formats.weight_grids import HIGHEST, comes_quantized
from rnnqc.ir import CELL_TAG, Constant, Graph, Model, constant_array, graph_info, info
from rnnqc.ir.builder import Builder
from rnnqc.passes.cells.boundary import boundary_of
from rnnqc.recipes.keys import Settings

DYNAMIC = "dynamic-row"
LEAST_GAIN = 2.0
"""Less noise by less than this factor (3 dB) is not worth a multiplication of the input."""
SMALLEST = 2.0**-6
"""Channels and rows smaller than this part of the largest count as that large: little is known of silent ones."""
PEAK, LOUD = 4.0, 3.0
"""What data shows, roughly: the largest value of a channel is 4 times its usual size, the largest of a row 3 times."""


def wanted(settings: Settings) -> bool:
    """Whether a recipe asks for it: `equalize`, of an input whose scales follow from its rows."""
    return bool(settings.get("equalize") and settings.get("bits") and settings.get("mode") == DYNAMIC)


def channel_scales(
    seen: PointStatistics, weights: npt.NDArray[np.float32], bits: tuple[int, int | None] = (8, 8)
) -> npt.NDArray[np.float64] | None:
    """Powers of two `[I]` by which to divide the channels of an input; None where little is gained.

    They halve, on a logarithmic scale, the differences between the sizes of channels over those of their weights. Sizes
    are largest magnitudes: a channel that is rarely there must not set the scale when it is.

    Args:
        seen: Statistics of the input.
        weights: W `[I,GH]`.
        bits: Widths of the input's quantized values and of those of W, None for float.
    """
    if seen.channel_max is None or len(seen.channel_max) != len(weights):
        return None
    size, rows = np.asarray(seen.channel_max), np.sqrt(np.mean(np.square(weights, dtype=np.float64), axis=1))
    if not (np.isfinite(size).all() and size.any() and rows.any()):
        return None
    size, rows = (np.maximum(v, v.max() * SMALLEST) for v in (size / PEAK, rows))
    ratio = np.sqrt(size / rows)
    scales = np.asarray(2.0 ** np.round(np.log2(ratio / np.exp(np.mean(np.log(ratio))))))
    before, after = _noise(size, weights, bits), _noise(size / scales, weights * scales[:, None], bits)
    return scales if before > LEAST_GAIN * after else None


def _noise(size: npt.NDArray[np.float64], weights: npt.NDArray[Any], bits: tuple[int, int | None]) -> float:
    """Of the products, up to a factor: what the quantized input and weights add, if these are not quantized already."""
    weights = weights.astype(np.float64)
    noise = (LOUD * size.max() / (2 ** bits[0] - 1)) ** 2 * np.sum(weights**2)
    if bits[1] is not None:
        top = max(1, 2 ** (bits[1] - 1) - 1)
        if top <= HIGHEST and comes_quantized(weights, -top, top):
            return float(noise)
        step = np.abs(weights).max(axis=0) / top
        noise += np.sum(step**2) * np.sum(size**2)
    return float(noise)


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
    weight = model.add_initializer(f"{cell.name}/W.equalized", scaled).name
    model.cells[cell.name] = replace(cell, x=equalized.name, W=weight)
    name = f"{cell.name}.input"
    return replace(statistics, points={**statistics.points, name: divided(statistics.points[name], scales)})


def divided(seen: PointStatistics, scales: npt.NDArray[np.float64]) -> PointStatistics:
    """Statistics of an input whose channels are divided: what concerns them; the rest is about it as it was."""
    moment, largest, mean = seen.second_moment, seen.channel_max, seen.channel_mean
    return replace(
        seen,
        second_moment=None if moment is None else moment / np.outer(scales, scales),
        channel_max=None if largest is None else largest / scales,
        channel_mean=None if mean is None else mean / scales,
    )
