"""Runs models on the data of a report and says how far their outputs are from the float model's."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

from rnnqc.data.feeds import Feeds
from rnnqc.data.streaming import Outputs, calls_of, run_calls
from rnnqc.evaluation.comparison import OutputTally, unlike_values
from rnnqc.evaluation.evaluate import make_session, run_session
from rnnqc.evaluation.numerics import sqnr_db
from rnnqc.lowering.executable import executable
from rnnqc.measure.verify import output_axes
from rnnqc.reporting.evidence import Curve, OutputEvidence
from rnnqc.search.measure import NOISE_OF_SILENCE, has_native

Array = npt.NDArray[Any]
PIECES = 160
"""About how many pieces a curve has."""


class Quality:
    """The outputs of the float model on data, and how others compare.

    Args:
        model: The float model, as onnxruntime can run it.
        feeds: The data.
        carried: Outputs by the input they become in the next call.
    """

    def __init__(self, model: onnx.ModelProto, feeds: Sequence[Feeds], carried: Mapping[str, str]) -> None:
        self.carried = carried
        self.calls = list(calls_of(feeds, model, carried))
        self._native = has_native()
        self._model = model
        self.reference = self.run(model)

    def run(self, model: onnx.ModelProto) -> list[Outputs]:
        """Outputs of every call."""
        return self._run(model, optimize=True)

    def run_qcdq(self, model: onnx.ModelProto) -> list[Outputs]:
        """Outputs of every call of a model in form qcdq.

        onnxruntime 1.31 makes MatMulNBits of a DequantizeLinear and a MatMul, which quantizes the other operand, too.
        """
        return self._run(model, optimize=False)

    def _run(self, model: onnx.ModelProto, optimize: bool) -> list[Outputs]:
        session = make_session(executable(model), native=self._native, optimize=optimize)
        run = partial(run_session, session, sequences=True)
        return list(run_calls(run, self.calls, self.carried))

    def ratios(self, outputs: Sequence[Outputs]) -> dict[str, float]:
        """Noise-to-signal ratio of every output of floats; as bad as can be with values that are NaN in one only."""
        result = {}
        for name, first in self.reference[0].items():
            if is_sequence(first):
                continue
            a, b = (np.concatenate([np.ravel(r[name]) for r in results]) for results in (self.reference, outputs))
            if a.dtype.kind == "f":
                level = sqnr_db(a, b) if not unlike_values(a, b).any() else -math.inf
                result[name] = min(10.0 ** (-level / 10.0), NOISE_OF_SILENCE) if level > -math.inf else NOISE_OF_SILENCE
        return result

    def outputs(self, outputs: Sequence[Outputs]) -> list[OutputEvidence]:
        """How each output of numbers compares."""
        axes = output_axes(self._model)
        found = []
        for name, first in self.reference[0].items():
            if is_sequence(first) or np.asarray(first).dtype.kind not in "fiub":
                continue
            axis = axes[name].of(np.asarray(first), self.calls[0].feed) if name in axes else None
            tally = self.tally(name, [(r[name], o[name]) for r, o in zip(self.reference, outputs, strict=True)], axis)
            seen = tally.result()
            curve = curve_of(tally) if np.asarray(first).dtype.kind == "f" else None
            held = (name, seen.sqnr_db, seen.max_abs, seen.cosine, seen.equal, curve, seen.unlike, seen.first_unlike)
            found.append(OutputEvidence(*held))
        return found

    def tally(self, name: str, pairs: Sequence[tuple[Array, Array]], axis: int | None) -> OutputTally:
        """Everything about one value of every call; `axis` is time, or None."""
        tally = OutputTally(name, axis, bool(self.carried))
        for (a, b), call in zip(pairs, self.calls, strict=True):
            tally.add(np.asarray(a), np.asarray(b), call.restart)
        return tally


def is_sequence(value: Any) -> bool:
    """Whether an output is a sequence of tensors."""
    return isinstance(value, list)


def mean_sqnr(ratios: Mapping[str, float]) -> float:
    """Decibels of the mean noise-to-signal ratio."""
    mean = math.fsum(ratios.values()) / len(ratios) if ratios else 0.0
    return -10.0 * math.log10(mean) if mean > 0.0 else math.inf


def worst_sqnr(ratios: Mapping[str, float]) -> float:
    """Decibels of the worst output."""
    return min((mean_sqnr({k: v}) for k, v in ratios.items()), default=math.inf)


def curve_of(tally: OutputTally) -> Curve | None:
    """SQNR over time, in at most about `PIECES` pieces; None of what has no steps."""
    steps = tally.result().steps
    if steps is None or len(steps.sqnr_db) < 2:
        return None
    levels = [None if v == -math.inf else v for _, v in tally.spans(PIECES)]
    return Curve(
        steps.unit,
        [stop for stop, _ in tally.spans(PIECES)],
        levels,
        list(steps.quarters_db),
        steps.worst,
        steps.growing,
    )
