"""Running models in tests and comparing what they give."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime as ort

from tests.runs.processors import product_branch

Array = npt.NDArray[Any]
Outputs = dict[str, Array]
LEVELS = ("ORT_DISABLE_ALL", "ORT_ENABLE_BASIC", "ORT_ENABLE_EXTENDED", "ORT_ENABLE_ALL")
"""onnxruntime's optimizations."""


def options(level: str = "ORT_ENABLE_ALL", threads: int = 1) -> ort.SessionOptions:
    """Session options that print errors only, with what form qcdq needs on x86 without VNNI (docs/brevitas.md)."""
    chosen = ort.SessionOptions()
    chosen.log_severity_level = 3
    chosen.intra_op_num_threads = threads
    chosen.graph_optimization_level = getattr(ort.GraphOptimizationLevel, level)
    if product_branch() == "uint8":
        chosen.add_session_config_entry("session.disable_quant_qdq", "1")
    return chosen


def plain_session(model: onnx.ModelProto | Path) -> ort.InferenceSession:
    """A session without any custom library, optimizations off."""
    source = model.SerializeToString() if isinstance(model, onnx.ModelProto) else str(model)
    return ort.InferenceSession(source, options("ORT_DISABLE_ALL"), providers=["CPUExecutionProvider"])


def run(session: ort.InferenceSession, feeds: Mapping[str, Array]) -> Outputs:
    """All outputs by name."""
    names = [o.name for o in session.get_outputs()]
    return dict(zip(names, session.run(names, dict(feeds)), strict=True))


def save_arrays(path: Path, arrays: Mapping[str, Array]) -> None:
    """Write an .npz file."""
    np.savez(path, **arrays)  # type: ignore[arg-type]


def assert_same_bits(expected: Mapping[str, Array], actual: Mapping[str, Array], what: str) -> None:
    """Fail, naming output, first place and both values, unless dtype, shape and bytes agree."""
    assert list(actual) == list(expected), f"{what}: outputs {list(actual)} instead of {list(expected)}"
    for name, wanted in expected.items():
        got = actual[name]
        assert (got.dtype, got.shape) == (wanted.dtype, wanted.shape), (
            f"{what}: {name} is {got.dtype}{got.shape} instead of {wanted.dtype}{wanted.shape}"
        )
        if np.ascontiguousarray(got).tobytes() == np.ascontiguousarray(wanted).tobytes():
            continue
        bits = np.uint32 if wanted.dtype == np.float32 else wanted.dtype
        different = np.ascontiguousarray(got).view(bits) != np.ascontiguousarray(wanted).view(bits)
        first = tuple(int(k[0]) for k in np.nonzero(different))
        raise AssertionError(
            f"{what}: {name} differs at {int(different.sum())} of {different.size} places, first {list(first)}: "
            f"{got[first]!r} instead of {wanted[first]!r}"
        )


def assert_close(expected: Mapping[str, Array], actual: Mapping[str, Array], tolerance: float, what: str) -> None:
    """Fail unless the largest error of each output is within `tolerance` of max(1, its largest magnitude)."""
    assert list(actual) == list(expected), f"{what}: outputs {list(actual)} instead of {list(expected)}"
    for name, wanted in expected.items():
        got = actual[name]
        assert got.shape == wanted.shape, f"{what}: {name} is {got.shape} instead of {wanted.shape}"
        assert np.isfinite(got).all(), f"{what}: {name} is not finite"
        scale = max(1.0, float(np.abs(wanted).max(initial=0.0)))
        error = np.abs(got.astype(np.float64) - wanted)
        worst = float(error.max(initial=0.0))
        assert worst <= tolerance * scale, (
            f"{what}: {name} is off by {worst:.3g} (allowed {tolerance * scale:.3g}) at "
            f"{np.unravel_index(int(error.argmax()), error.shape)}"
        )


def sqnr(reference: Array | Iterable[Array], value: Array | Iterable[Array]) -> float:
    """Signal to quantization noise ratio in dB, over all elements; infinite for equal arrays."""
    wanted = _flat(reference)
    noise = wanted - _flat(value)
    power = float(noise @ noise)
    return float("inf") if power == 0.0 else 10.0 * float(np.log10(float(wanted @ wanted) / power))


def _flat(value: Array | Iterable[Array]) -> Array:
    arrays = [value] if isinstance(value, np.ndarray) else list(value)
    return np.concatenate([np.asarray(a, np.float64).ravel() for a in arrays])
