"""Stores float weights as int8 in small groups, for operators that compute in float."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from rnnqc.formats.compensation import Lattice, compensate_once
from rnnqc.formats.scales import power_of_two_from, symmetric_scale
from rnnqc.formats.weights import blocks
from rnnqc.ir import Model, Value, constant_array, safe_name
from rnnqc.ir.builder import Builder
from rnnqc.passes.analysis.linear_sites import Layout
from rnnqc.passes.analysis.rest_weights import RestWeight
from rnnqc.passes.analysis.weight_groups import Groups, groups_of
from rnnqc.passes.rest.int8_weights import BITS, LARGEST_HALF, not_below

FloatArray = npt.NDArray[np.float32]
LARGEST = 127
WIDER = tuple(1 + k / 256 for k in range(1, 32))
"""Multiples of the least scale of a group that are tried: the few weights of a group fit one of them by chance."""
LEAST_HALF = 2.0**-20
"""From here on, rounding up to float16 adds at most a sixteenth."""


@dataclass(frozen=True)
class Multiplied:
    """The values that the matrix of a weight multiplies.

    Attributes:
        moment: Second moments of the values, `[K,K]`.
        layout: Where the matrix `[K,n]` stands in the weight.
    """

    moment: npt.NDArray[Any]
    layout: Layout


def grouped(model: Model, weight: RestWeight, multiplied: Multiplied | None = None) -> tuple[Value, Mapping[str, int]]:
    """Stores a weight as int8 in groups of one output channel, each with a float16 scale.

    Scales are float32 if those of channels are too small or too large for float16. Groups with small values have a step
    of at least 2^-24, which is at most a sixteenth of the channel's step. With `multiplied` the values of a channel are
    rounded together, on the scales of plain rounding.

    Returns:
        A value with the dequantized weight, computed in the graph of the weight by operators that onnxruntime folds
        when it creates a session; and the sizes of the stored constants, by name.
    """
    array = constant_array(weight.value)
    assert array is not None
    groups = groups_of(weight.shape, weight.axis)
    values, scale = quantized_groups(array, groups)
    if multiplied is not None:
        values = _compensated(array, values, scale, groups, multiplied)
    name = safe_name(weight.value.name)
    stored = model.add_initializer(f"{name}.int8", values, weight.graph)
    scales = model.add_initializer(f"{name}.scale", scale, weight.graph)
    b = Builder(model, prefix=name)
    factor: Value = scales if scale.dtype == np.float32 else b.cast(scales, np.float32, "scale.cast")
    floats = b.op("Mul", [b.cast(stored, np.float32, "int8.cast"), factor], "groups")
    shape = model.add_initializer(f"{name}.shape", np.array(weight.shape, np.int64), weight.graph)
    made = b.op("Reshape", [floats, shape], "floats")
    weight.graph.nodes[:0] = b.nodes
    return made, {stored.name: values.nbytes, scales.name: scale.nbytes}


def quantized_groups(array: FloatArray, groups: Groups) -> tuple[npt.NDArray[np.int8], npt.NDArray[Any]]:
    """Returns int8 values and scales of a weight.

    The scale of a group has the least squared error of several candidates: from the largest magnitude of the group, of
    its channel and of all weights, the least power of two not below that of the group, and multiples of that of the
    group. So weights that are int8 values already, as after quantization-aware training, do not change.

    Returns:
        int8 values `groups.shape`, and scales `groups.scale_shape`, float16 or float32.
    """
    cut = array.reshape(groups.shape)
    others = tuple(k for k in range(cut.ndim) if k != groups.channel)
    of_channel = np.abs(cut).max(axis=others, keepdims=True)
    of_group = np.abs(cut).max(axis=groups.axes, keepdims=True)
    ranges = [symmetric_scale(m, BITS) for m in (of_group, of_channel, of_channel.max())]
    exact = [np.broadcast_to(s, groups.scale_shape) for s in (*ranges, power_of_two_from(ranges[0]))]
    exact += [factor * exact[0] for factor in WIDER]
    fits = ranges[1].min(initial=1.0) >= LEAST_HALF and max(s.max(initial=0.0) for s in exact) <= LARGEST_HALF
    dtype = np.float16 if fits else np.float32
    stored = [not_below(s, dtype) for s in exact]
    values, scale = np.empty(cut.shape, np.int8), np.empty(groups.scale_shape, dtype)
    for rows in blocks(len(cut)):
        values[rows], scale[rows] = _best(cut[rows], [s[rows] for s in stored], groups.axes)
    return values, scale


def _compensated(
    array: FloatArray,
    values: npt.NDArray[np.int8],
    scale: npt.NDArray[Any],
    groups: Groups,
    multiplied: Multiplied,
) -> npt.NDArray[np.int8]:
    """int8 values with less error of the products than the given ones; in no channel with more."""
    layout = multiplied.layout

    def matrix(part: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return layout.matrix(np.broadcast_to(part, groups.shape))

    step = matrix(scale.astype(np.float64))
    top, rows = np.full(step.shape, float(LARGEST)), np.arange(len(step))
    lattice = Lattice(step, -top, top, np.zeros(step.shape), rows, np.ones(len(rows), np.int64))
    codes = compensate_once(matrix(array.reshape(groups.shape)), matrix(values), lattice, multiplied.moment)
    return layout.weight(codes).reshape(groups.shape).astype(np.int8)


def _best(
    part: FloatArray, scales: Sequence[npt.NDArray[Any]], axes: tuple[int, ...]
) -> tuple[FloatArray, npt.NDArray[Any]]:
    """Returns multiples of the scale with the least error in each group, and that scale; the first of equals."""
    tried = []
    for scale in scales:
        step = scale.astype(np.float32)
        steps = np.clip(np.rint(part / step), -LARGEST, LARGEST)
        tried.append((np.square(steps * step - part, dtype=np.float64).sum(axis=axes, keepdims=True), steps, scale))
    error, values, best = tried[0]
    for other, steps, scale in tried[1:]:
        is_better = other < error
        error = np.where(is_better, other, error)
        values, best = np.where(is_better, steps, values), np.where(is_better, scale, best)
    return values, best
