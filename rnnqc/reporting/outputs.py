"""Compares the outputs of a lowered model with the float model's, also over time."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence

import numpy as np

from rnnqc.data.streaming import Outputs
from rnnqc.measure.compare import judged
from rnnqc.measure.tally import OutputTally, tallied
from rnnqc.measure.time_axes import TimeAxis
from rnnqc.reporting.evidence import Curve, OutputEvidence, Values
from rnnqc.reporting.values import values_of
from rnnqc.search.quality import Quality

PIECES = 160
"""The approximate number of pieces of a curve."""


def output_evidence(
    quality: Quality,
    outputs: Sequence[Outputs],
    axes: Mapping[str, TimeAxis],
    names: tuple[str, str],
    unit: Collection[str] = (),
    *,
    given: bool = True,
) -> list[OutputEvidence]:
    """Compares each numeric output.

    Args:
        quality: Outputs of the float model.
        outputs: Outputs of the lowered model, call by call.
        axes: The time axes of outputs.
        names: The names of the two models in messages.
        unit: Outputs that a sigmoid makes.
        given: Whether the data is the user's; those near zero on generated data are judged by their full scale.

    Raises:
        CompileError: The models have different outputs.
    """
    found = []
    for name, tally in tallied(quality.calls, quality.reference, outputs, axes, names, unit).items():
        kind = np.asarray(quality.reference[0][name]).dtype.kind
        if kind not in "fiub":
            continue
        [seen] = [tally.result()] if given else judged([tally.result()])
        curve = curve_of(tally) if kind == "f" else None
        held = (name, seen.sqnr_db, seen.max_abs, seen.cosine, seen.equal, curve, seen.unlike, seen.first_unlike)
        values = _values(name, quality, outputs, axes, curve) if kind == "f" else None
        found.append(OutputEvidence(*held, values, seen.varying_db, seen.constant, seen.near_zero))
    return found


def _values(
    name: str, quality: Quality, outputs: Sequence[Outputs], axes: Mapping[str, TimeAxis], curve: Curve | None
) -> Values | None:
    """Returns the values with the largest error. A time axis counts only if it is the same in all calls."""
    calls = quality.calls
    pair = [np.asarray(o[name]) for o in quality.reference], [np.asarray(o[name]) for o in outputs]
    found = {axes[name].of(x, p.feed) for x, p in zip(pair[0], calls.pieces, strict=True)} if name in axes else {None}
    axis = found.pop() if len(found) == 1 else None
    restarts = [p.restart for p in calls.pieces] if calls.carried else []
    unit = None if curve is None or (axis is None and not restarts) else curve.unit
    return values_of(*pair, axis, restarts, unit)


def curve_of(tally: OutputTally) -> Curve | None:
    """Returns SQNR over time in about `PIECES` pieces at most; None for fewer than two steps."""
    steps = tally.result().steps
    if steps is None or len(steps.sqnr_db) < 2:
        return None
    spans = tally.spans(PIECES)
    return Curve(
        steps.unit,
        [stop for stop, _ in spans],
        [None if level == -math.inf else level for _, level in spans],
        list(steps.quarters_db),
        steps.worst,
        steps.growing,
    )
