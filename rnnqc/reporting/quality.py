"""Runs models on the data of a report and says how far their outputs are from the float model's."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

from rnnqc.feeds import Feeds
from rnnqc.numerics import max_abs, sqnr_db
from rnnqc.reporting.evidence import Curve, OutputEvidence
from rnnqc.tuning.measure import NOISE_OF_SILENCE, Judge, Outputs

Array = npt.NDArray[Any]
PIECES = 160
"""About how many pieces a curve has."""


class Quality:
    """The outputs of the float model on data, and how others compare.

    Args:
        model: The float model, as onnxruntime can run it.
        feeds: The data.
        state: Outputs by the input they become in the next call.
    """

    def __init__(self, model: onnx.ModelProto, feeds: Sequence[Feeds], state: Mapping[str, str]) -> None:
        self._judge = Judge(model, feeds, state)
        self.feeds = self._judge.feeds
        self.reference = self._judge.reference
        self.stream = bool(state)

    def run(self, model: onnx.ModelProto) -> list[Outputs]:
        """Outputs of every call."""
        return self._judge.outputs(model)

    def run_qcdq(self, model: onnx.ModelProto) -> list[Outputs]:
        """Outputs of every call of a model in form qcdq.

        onnxruntime 1.31 makes MatMulNBits of a DequantizeLinear and a MatMul, which quantizes the other operand, too.
        """
        return self._judge.outputs(model, optimize=False)

    def ratios(self, outputs: Sequence[Outputs]) -> dict[str, float]:
        """Noise-to-signal ratio of every output of floats."""
        result = {}
        for name in self.reference[0]:
            a, b = _whole(self.reference, name), _whole(outputs, name)
            if a.dtype.kind == "f":
                level = sqnr_db(a, b)
                result[name] = min(10.0 ** (-level / 10.0), NOISE_OF_SILENCE) if level > -math.inf else NOISE_OF_SILENCE
        return result

    def outputs(self, outputs: Sequence[Outputs]) -> list[OutputEvidence]:
        """How each output compares."""
        found = []
        for name in self.reference[0]:
            a, b = _whole(self.reference, name), _whole(outputs, name)
            if a.dtype.kind not in "fiub":
                continue
            curve = None
            if self.stream and a.dtype.kind == "f":
                calls = [(_flat(r[name])[None], _flat(o[name])[None]) for r, o in zip(self.reference, outputs, strict=True)]
                curve = curve_of(calls, "call")
            equal = float(np.mean(a == b)) if a.size else 1.0
            found.append(OutputEvidence(name, sqnr_db(a, b), max_abs(a, b), _cosine(a, b), equal, curve))
        return found


def mean_sqnr(ratios: Mapping[str, float]) -> float:
    """Decibels of the mean noise-to-signal ratio."""
    mean = math.fsum(ratios.values()) / len(ratios) if ratios else 0.0
    return -10.0 * math.log10(mean) if mean > 0.0 else math.inf


def worst_sqnr(ratios: Mapping[str, float]) -> float:
    """Decibels of the worst output."""
    return min((mean_sqnr({k: v}) for k, v in ratios.items()), default=math.inf)


def curve_of(pairs: Sequence[tuple[Array, Array]], unit: str) -> Curve:
    """Signal and noise over the first axis.

    Args:
        pairs: Values of the float model and of the other `[steps, n]`. Sequences begin together; the calls of a stream
            (unit "call", or steps of it) follow each other.
        unit: What the steps are.
    """
    if unit == "call":
        signal = np.concatenate([_power(a) for a, _ in pairs])
        noise = np.concatenate([_power(a.astype(np.float64) - b) for a, b in pairs])
        sizes = np.concatenate([np.full(len(a), a.shape[1]) for a, _ in pairs])
    else:
        steps = max((len(a) for a, _ in pairs), default=0)
        signal, noise, sizes = np.zeros(steps), np.zeros(steps), np.zeros(steps)
        for a, b in pairs:
            signal[: len(a)] += _power(a)
            noise[: len(a)] += _power(a.astype(np.float64) - b)
            sizes[: len(a)] += a.shape[1]
    count = min(PIECES, len(signal))
    stops = [round((k + 1) * len(signal) / count) for k in range(count)] if count else []
    starts = [0, *stops[:-1]]
    levels: list[float | None] = []
    errors = []
    for start, stop in zip(starts, stops, strict=True):
        s, n, size = (float(v[start:stop].sum()) for v in (signal, noise, sizes))
        levels.append(None if s == 0.0 else math.inf if n == 0.0 else 10.0 * math.log10(s / n))
        errors.append(math.sqrt(n / size) if size else 0.0)
    return Curve(unit, stops, levels, errors)


def _power(array: Array) -> npt.NDArray[np.float64]:
    return np.asarray(np.square(array.astype(np.float64)).sum(axis=1))


def _flat(array: Array) -> Array:
    return np.asarray(array).ravel()


def _whole(results: Sequence[Outputs], name: str) -> Array:
    return np.concatenate([_flat(r[name]) for r in results])


def _cosine(x: Array, y: Array) -> float:
    a, b = x.astype(np.float64), y.astype(np.float64)
    norm = float(np.linalg.norm(a) * np.linalg.norm(b))
    return float(a @ b) / norm if norm else 1.0 if not a.any() and not b.any() else 0.0
