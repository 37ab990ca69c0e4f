"""Scales input channels by powers of two so that one scale suits them all, and W by the inverse.

The quantized values of an input share one scale. If the magnitudes of its channels differ much, as those of spectra do,
small channels get few quantized values. With x / s and s W instead of x and W every product is the same float, since s
are powers of two.
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
"""Typical data: the largest value of a channel is 4 times its usual size, the largest of a row 3 times."""


def wanted(settings: Settings) -> bool:
    """Whether a recipe requests it: `equalize`, for an input with per-row dynamic scales."""
    return bool(settings.get("equalize") and settings.get("bits") and settings.get("mode") == DYNAMIC)


def channel_scales(
    seen: PointStatistics, weights: npt.NDArray[np.float32], bits: tuple[int, int | None] = (8, 8)
) -> npt.NDArray[np.float64] | None:
    """Returns powers of two `[I]` by which to divide the channels of an input; None if that gains little.

    They halve, in the logarithm, the differences between the sizes of channels relative to those of their weights.
    Sizes are largest magnitudes: a rarely active channel must not determine the scale when it is active.

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
    """The noise of the matmul, up to a factor, from quantizing the input, and the weights unless already quantized."""
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
    """Divides the input of a decomposed `cell` by `scales`, multiplies its W, and returns the adapted statistics."""
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
    """Returns the statistics of an input with divided channels: per-channel values adapted, the others unchanged."""
    moment, largest, mean = seen.second_moment, seen.channel_max, seen.channel_mean
    return replace(
        seen,
        second_moment=None if moment is None else moment / np.outer(scales, scales),
        channel_max=None if largest is None else largest / scales,
        channel_mean=None if mean is None else mean / scales,
    )
