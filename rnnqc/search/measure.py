"""How good a lowered model is on data: SQNR against the float model, or a metric of the user."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime as ort

from rnnqc import runtime_ops
from rnnqc.data.feeds import Feeds
from rnnqc.data.streaming import Outputs, calls_of, run_calls, state_pairs
from rnnqc.data.user_code import importable_working_folder, named_object
from rnnqc.errors import UsageError
from rnnqc.evaluation.comparison import unlike_values
from rnnqc.evaluation.evaluate import make_session, run_session
from rnnqc.evaluation.numerics import sqnr_db

Array = npt.NDArray[Any]
Metric = Callable[[Sequence[Outputs], Sequence[Feeds]], float]
ROUNDS = 10
NOISE_OF_SILENCE = 1e30
"""The damage of an output without any signal: larger than every other, finite."""


def load_metric(source: str) -> Metric:
    """The function `module:function`; modules of the working folder are found, too.

    Raises:
        UsageError: There is none.
    """
    module, separator, name = source.partition(":")
    if not separator or not module or not name:
        raise UsageError(f"--metric {source!r}.", supported="module:function", action="for example my_task:accuracy")
    try:
        with importable_working_folder():
            function: Metric = named_object(source)
    except Exception as error:
        raise UsageError(
            f"--metric {source!r}: cannot be loaded ({type(error).__name__}: {error}).",
            supported="module:function",
            action="import it in Python to see the error in full",
        ) from error
    if not callable(function):
        raise UsageError(f"--metric {source!r}: is a {type(function).__name__}.", supported="a function")
    return function


class Judge:
    """Runs models on data and says how good they are.

    Args:
        model: The float model.
        data: Feeds, or the name of an `.npz`, of a directory of `.npz`, or `module:function`.
        state: Outputs by the input they become in the next call, or texts `IN:OUT`.
        metric: Higher is better; None for the least SQNR in dB of all outputs.

    Raises:
        CompileError: The data does not fit, or the model does not run.
    """

    def __init__(
        self,
        model: onnx.ModelProto,
        data: Iterable[Mapping[str, Any]] | str | os.PathLike[str],
        state: Mapping[str, str] | Iterable[str] | None = None,
        metric: Metric | None = None,
    ) -> None:
        self._carried = state_pairs(state, model)
        self._metric = metric
        self._calls = list(calls_of(data, model, self._carried))
        self.feeds: list[Feeds] = [c.feed for c in self._calls]
        self._native = has_native()
        self._reference = self.outputs(model)

    def outputs(self, model: onnx.ModelProto) -> list[Outputs]:
        """Outputs of every call, in order."""
        session = make_session(model, native=self._native)
        return list(run_calls(partial(run_session, session), self._calls, self._carried))

    def call_seconds(self, models: Sequence[onnx.ModelProto]) -> list[float]:
        """The shortest of some runs of the first call, for each model; they take turns."""
        sessions = [make_session(model, native=self._native) for model in models]
        least = [math.inf] * len(sessions)
        for _ in range(ROUNDS):
            for k, session in enumerate(sessions):
                start = time.perf_counter()
                run_session(session, self.feeds[0])
                least[k] = min(least[k], time.perf_counter() - start)
        return least

    def judge(self, model: onnx.ModelProto) -> tuple[float, float]:
        """Quality, and damage as a number that adds up: noise to signal ratio, or the metric with its sign turned.

        Raises:
            UsageError: The metric fails or gives no number.
        """
        outputs = self.outputs(model)
        if self._metric is not None:
            quality = self._called(self._metric, outputs)
            return quality, -quality
        levels = [sqnr_db(*pair) if not unlike_values(*pair).any() else -math.inf for pair in self._floats(outputs)]
        quality = min(levels, default=math.inf)
        return quality, min(10 ** (-quality / 10), NOISE_OF_SILENCE) if quality > -math.inf else NOISE_OF_SILENCE

    def _floats(self, outputs: Sequence[Outputs]) -> Iterable[tuple[Array, Array]]:
        for name in self._reference[0]:
            sides = [np.concatenate([np.ravel(r[name]) for r in results]) for results in (self._reference, outputs)]
            if sides[0].dtype.kind == "f":
                yield sides[0], sides[1]

    def _called(self, metric: Metric, outputs: Sequence[Outputs]) -> float:
        try:
            value = float(metric(outputs, self.feeds))
        except Exception as error:
            raise UsageError(
                f"the metric failed ({type(error).__name__}: {error}).",
                supported="a function of the outputs and the inputs of all calls that returns a number",
                action="call it in Python to see the error in full",
            ) from error
        if math.isnan(value):
            raise UsageError("the metric is not a number (NaN).", supported="numbers; more is better")
        return value

    @property
    def float_quality(self) -> float:
        """Quality of the float model: infinite in dB."""
        return self._called(self._metric, self._reference) if self._metric is not None else math.inf


def has_native() -> bool:
    """Whether there is a native library; results are the same bits without it, later."""
    try:
        runtime_ops.register(ort.SessionOptions())
    except (OSError, RuntimeError):
        return False
    return True
