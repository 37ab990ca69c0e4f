"""Float weights stored as int8 in small groups, for operators that compute with floats."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from rnnqc.formats.scales import symmetric_scale
from rnnqc.ir import Model, Value, constant_array, safe_name
from rnnqc.ir.builder import Builder
from rnnqc.passes.analysis.rest_weights import RestWeight
from rnnqc.passes.analysis.weight_groups import Groups, groups_of
from rnnqc.passes.rest.int8_weights import BITS

LARGEST = 127


def grouped(model: Model, weight: RestWeight) -> tuple[Value, Mapping[str, int]]:
    """Stores a weight as int8 in groups of one output channel, with a float16 scale each.

    Scales of which float16 has no normal number are float32.

    Returns:
        A value with the floats that the int8 values stand for, made where the weight stands by operators that
        onnxruntime folds when a session is created; and the sizes of what is stored, by name.
    """
    array = constant_array(weight.value)
    assert array is not None
    groups = groups_of(weight.shape, weight.axis)
    values, scale = quantized_groups(array, groups)
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


def quantized_groups(array: npt.NDArray[np.float32], groups: Groups) -> tuple[npt.NDArray[np.int8], npt.NDArray[Any]]:
    """int8 values `groups.shape` of a weight, and scales `groups.scale_shape`, float16 or float32."""
    cut = array.reshape(groups.shape)
    scale = stored_scale(np.abs(cut).max(axis=groups.axes, keepdims=True, initial=0.0))
    steps = np.rint(cut / scale.astype(np.float32))
    return np.clip(steps, -LARGEST, LARGEST).astype(np.int8), scale


def stored_scale(largest: npt.NDArray[np.float32]) -> npt.NDArray[Any]:
    """The least float16 scales with which int8 reaches the largest magnitudes; float32 where that is not normal."""
    exact = symmetric_scale(largest, BITS)
    with np.errstate(over="ignore", under="ignore"):
        half = exact.astype(np.float16)
    half = np.where(half.astype(np.float64) < exact, np.nextafter(half, np.float16(np.inf)), half)
    limits = np.finfo(np.float16)
    is_normal = np.isfinite(half) & (half >= limits.tiny)
    return half if is_normal.all() else exact.astype(np.float32)
