"""What `rnnqc dump` takes out of a model, put together for the tests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from brevitas_reference import Lstm

import rnnqc
from rnnqc.tracing.tensors import Tensor

Array = npt.NDArray[Any]
Steps = dict[str, Tensor]


def traced(model: onnx.ModelProto, feeds: Mapping[str, Array], native: bool = False, **state: Any) -> dict[str, Steps]:
    """All tensors of all cells."""
    parts: dict[str, dict[str, list[Tensor]]] = {}
    for piece in rnnqc.Tracer(model, native=native).trace([feeds], **state):
        for name, tensor in piece.tensors.items():
            parts.setdefault(piece.cell, {}).setdefault(name, []).append(tensor)
    assert parts
    return {cell: {n: concatenated(t) for n, t in tensors.items()} for cell, tensors in parts.items()}


def assert_follows_the_rule(steps: Steps, what: str) -> None:
    """Real values are codes times scales, one operation at a time."""
    assert sum(t.codes is not None for t in steps.values()) > 5, what
    for name, t in steps.items():
        assert t.values.ndim == 3, f"{what}: {name}"
        if t.codes is None:
            continue
        assert t.codes.dtype.kind in "iu" and t.codes.shape == t.values.shape, f"{what}: {name}"
        assert t.zero_point is not None
        real = (t.codes.astype(np.int64) - t.zero_point).astype(t.values.dtype)
        for factor in (t.row_scale, t.scale):
            if factor is not None:
                assert factor.dtype == t.values.dtype, f"{what}: {name}"
                real = real * factor
        assert real.tobytes() == t.values.tobytes(), f"{what}: {name}"


def assert_same(expected: dict[str, Steps], actual: dict[str, Steps], what: str) -> None:
    """Equal arrays under equal names."""
    assert list(expected) == list(actual), what
    for cell, steps in expected.items():
        assert list(steps) == list(actual[cell]), f"{what}: {cell}"
        for name, tensor in steps.items():
            one, other = tensor.arrays(), actual[cell][name].arrays()
            assert list(one) == list(other), f"{what}: {cell}: {name}"
            for key, array in one.items():
                assert array.dtype == other[key].dtype and array.shape == other[key].shape, f"{what}: {cell}: {key}"
                assert array.tobytes() == other[key].tobytes(), f"{what}: {cell}: {key}"


def concatenated(parts: list[Tensor]) -> Tensor:
    """Consecutive steps of one tensor."""

    def joined(arrays: list[Array | None]) -> Array | None:
        held = [a for a in arrays if a is not None]
        return np.concatenate(held) if held else None

    first = parts[0]
    zero = first.zero_point
    if zero is not None and zero.ndim:
        zero = joined([p.zero_point for p in parts])
    return replace(
        first,
        values=np.concatenate([p.values for p in parts]),
        codes=joined([p.codes for p in parts]),
        row_scale=joined([p.row_scale for p in parts]),
        zero_point=zero,
    )


def assert_equals_brevitas(lstm: Lstm, steps: Steps, what: str) -> None:
    """Values and codes of every quantizer in every step."""
    assert_follows_the_rule(steps, what)
    assert len(lstm.steps) > 12
    for name, (values, codes) in lstm.steps.items():
        tensor = steps[name]
        assert np.array_equal(tensor.values, values), f"{what}: {name}"
        if codes is None:
            continue
        assert tensor.codes is not None, f"{what}: {name}"
        different = np.argwhere(tensor.codes != codes)
        assert not len(different), f"{what}: {name}: {tensor.codes[tuple(different[0])]} at {different[0]}"
