"""The tensors of `rnnqc dump`, assembled for the tests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

import rnnqc
from rnnqc.tracing.tensors import Tensor
from tests.subjects.brevitas.models import draw_feeds, one_cell, random_lstm
from tests.subjects.brevitas.reference import Lstm, Quant

Array = npt.NDArray[Any]
Steps = dict[str, Tensor]
BREVITAS: dict[str, dict[str, Any]] = {
    "plain": {},
    "reverse": {"reverse": True},
    "coupled": {"cifg": True},
    "no bias": {"bias": False},
    "4 bits": {"weight_bits": 4, "changes": {"*": {"bits": 6}}},
    "binary": {"weight_bits": 1},
    "zero points": {"changes": {"output": {"zero_point": 5.0}, "cell_state": {"zero_point": -9.0}}},
    "floor": {"changes": {"*": {"mode": "FLOOR"}}},
    "asymmetric weights": {"weight_narrow": 0, "weight_zero_point": 3.0, "per_channel": True},
}
"""Cells as Brevitas exports them, by what is special."""
POWERS_OF_TWO = [
    "*.weight.granularity=per-tensor", f"*.weight.scale={2.0**-7}", "*.bias.bits=none", f"*.scale={2.0**-6}",
]  # fmt: skip
"""Overrides of `brevitas-int8` that make float sums exact: all forms have the same codes."""


def brevitas_like(name: str) -> tuple[Lstm, onnx.ModelProto, dict[str, Array]]:
    """One of `BREVITAS`, the model of it, and data; the cell has run on them."""
    lstm = random_lstm(len(name), pow2=True, **BREVITAS[name])
    feeds = dict(draw_feeds(lstm, len(name), False, True))
    lstm.run(lstm.quantizers["output"](feeds["x"]))
    return lstm, one_cell(lstm, feeds), feeds


def traced(model: onnx.ModelProto, feeds: Mapping[str, Array], native: bool = False, **state: Any) -> dict[str, Steps]:
    """All tensors of all cells."""
    return traced_with_parameters(model, feeds, native, **state)[0]


def traced_with_parameters(
    model: onnx.ModelProto, feeds: Mapping[str, Array], native: bool = False, **state: Any
) -> tuple[dict[str, Steps], dict[str, dict[str, Array]]]:
    """All tensors and parameters of all cells."""
    parts: dict[str, dict[str, list[Tensor]]] = {}
    tracer = rnnqc.Tracer(model, native=native)
    for piece in tracer.trace([feeds], **state):
        for name, tensor in piece.tensors.items():
            parts.setdefault(piece.cell, {}).setdefault(name, []).append(tensor)
    assert parts
    steps = {cell: {n: concatenated(t) for n, t in tensors.items()} for cell, tensors in parts.items()}
    return steps, {cell: tracer.weights(cell) for cell in steps}


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


def assert_weights_of_brevitas(lstm: Lstm, weights: Mapping[str, Array], what: str) -> None:
    """Codes, zero points and biases of all gates; gate f of a coupled cell has none that matter."""
    order = [0, 3, 1, 2]  # ONNX's i, o, f, c of Brevitas' i, f, c, o
    used = np.repeat([True, True, not lstm.cifg, True], lstm.R[0].shape[0])

    def columns(arrays: list[Array]) -> Array:
        return np.concatenate([np.asarray(arrays[k]).T for k in order], axis=-1)[..., used]

    for key, matrices in (("W", lstm.W), ("R", lstm.R)):
        codes = columns([q.codes(m) for q, m in zip(lstm.weight, matrices, strict=True)])
        assert np.array_equal(weights[f"{key}.weight.codes"][:, used], codes), f"{what}: {key}"
        zeros = columns([_zeros(q, m) for q, m in zip(lstm.weight, matrices, strict=True)])[0]
        held = np.broadcast_to(weights.get(f"{key}.weight.zero_point", 0), used.shape)[used]
        assert np.array_equal(held, zeros), f"{what}: {key}"
    if lstm.bias is not None:
        quantizers = lstm.bias_quant or [None] * 4
        biases = [b if q is None else q(b) for q, b in zip(quantizers, lstm.bias, strict=True)]
        assert np.array_equal(weights["bias"][used], columns(biases)), what


def _zeros(quantizer: Quant, matrix: Array) -> Array:
    """The zero point of each weight; binary ones have none."""
    bipolar = quantizer.bits == 1 and quantizer.signed
    return np.broadcast_to(0 if bipolar else np.asarray(quantizer.zero_point), matrix.shape)
