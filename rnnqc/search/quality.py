"""Judges lowered models on data: SQNR against the float model, or a metric of the user."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

from rnnqc.data.streaming import Outputs
from rnnqc.evaluation.numerics import sqnr_db
from rnnqc.lowering.executable import executable
from rnnqc.measure.differences import unlike_values
from rnnqc.measure.metrics import MetricFunction, called
from rnnqc.measure.runs import Calls, Runner, has_native

Array = npt.NDArray[Any]
LEAST_DB = -300.0
"""The lowest SQNR that counts where noise is averaged: finite, for outputs without any signal."""


@dataclass(frozen=True)
class Score:
    """The quality of a model on data.

    Attributes:
        levels: SQNR in dB of each float output, over all calls; minus infinity where values are NaN or infinite in only
            one of the models. Empty if a metric decides.
        metric: The metric of the user; None without one.
    """

    levels: Mapping[str, float]
    metric: float | None = None

    @property
    def quality(self) -> float:
        """The metric, or the SQNR of the worst output; more is better."""
        return min(self.levels.values(), default=math.inf) if self.metric is None else self.metric

    @property
    def damage(self) -> float:
        """An additive loss: noise-to-signal ratio of the worst output, or the metric with its sign reversed."""
        return _noise(self.quality) if self.metric is None else -self.metric

    @property
    def mean_db(self) -> float:
        """The mean noise-to-signal ratio of all outputs, as SQNR in dB."""
        return _decibels([_noise(level) for level in self.levels.values()])

    @property
    def worst_db(self) -> float:
        """The SQNR of the worst output in dB."""
        return min((_decibels([_noise(level)]) for level in self.levels.values()), default=math.inf)


def _noise(level: float) -> float:
    """Converts an SQNR to a noise-to-signal ratio."""
    return float(10.0 ** min(-LEAST_DB / 10.0, -level / 10.0))


def _decibels(ratios: Sequence[float]) -> float:
    mean = math.fsum(ratios) / len(ratios) if ratios else 0.0
    return -10.0 * math.log10(mean) if mean > 0.0 else math.inf


class Quality:
    """Compares models with the float model on data; holds the outputs of the float model.

    Args:
        model: The float model.
        calls: The data.
        metric: A function of the outputs and inputs of all calls; higher is better. None for SQNR.
        sequences: Whether outputs may be sequences of tensors, which have no score.

    Raises:
        CompileError: The model does not run.
    """

    def __init__(
        self, model: onnx.ModelProto, calls: Calls, metric: MetricFunction | None = None, *, sequences: bool = False
    ) -> None:
        self.calls = calls
        self._metric, self._sequences = metric, sequences
        self._native = has_native()
        self.reference = self.outputs(model)

    def outputs(self, model: onnx.ModelProto, *, optimize: bool = True) -> list[Outputs]:
        """Returns the outputs of every call.

        Args:
            model: The float model or a lowered one.
            optimize: Whether onnxruntime may optimize the graph. In form qcdq it must not: onnxruntime 1.31 turns
                DequantizeLinear and MatMul into MatMulNBits, which quantizes the other operand, too.

        Raises:
            CompileError: The model does not run.
        """
        runner = Runner(executable(model), native=self._native, optimize=optimize, sequences=self._sequences)
        return list(runner.outputs(self.calls))

    def score(self, outputs: Sequence[Outputs]) -> Score:
        """Scores the outputs of every call.

        Raises:
            UsageError: The metric fails or returns no number.
        """
        if self._metric is not None:
            return Score({}, self._measured(self._metric, outputs))
        return Score(
            {n: sqnr_db(a, b) if not unlike_values(a, b).any() else -math.inf for n, a, b in self._floats(outputs)}
        )

    @property
    def has_floats(self) -> bool:
        """Whether the model has a float output, which SQNR can judge."""
        return next(self._floats(self.reference), None) is not None

    @property
    def of_float(self) -> float:
        """The quality of the float model: infinite in dB."""
        return self._measured(self._metric, self.reference) if self._metric is not None else math.inf

    def _floats(self, outputs: Sequence[Outputs]) -> Iterator[tuple[str, Array, Array]]:
        """Yields name and values, in the float model and in the other, of each float output."""
        for name, first in self.reference[0].items():
            if isinstance(first, list):
                continue  # a sequence of tensors
            a, b = (np.concatenate([np.ravel(r[name]) for r in results]) for results in (self.reference, outputs))
            if a.dtype.kind == "f":
                yield name, a, b

    def _measured(self, metric: MetricFunction, outputs: Sequence[Outputs]) -> float:
        return called(metric, outputs, self.calls.feeds)
