"""How the outputs of a lowered model compare with the float model's, over time, too."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from rnnqc.data.streaming import Outputs
from rnnqc.measure.tally import OutputTally, tallied
from rnnqc.measure.time_axes import TimeAxis
from rnnqc.reporting.evidence import Curve, OutputEvidence, Values
from rnnqc.reporting.values import values_of
from rnnqc.search.quality import Quality

PIECES = 160
"""About how many pieces a curve has."""


def output_evidence(
    quality: Quality, outputs: Sequence[Outputs], axes: Mapping[str, TimeAxis], names: tuple[str, str]
) -> list[OutputEvidence]:
    """How each output of numbers compares.

    Args:
        quality: Outputs of the float model.
        outputs: Those of the lowered one, call by call.
        axes: The time axes of outputs.
        names: The names that messages give the two models.

    Raises:
        CompileError: The models have different outputs.
    """
    found = []
    for name, tally in tallied(quality.calls, quality.reference, outputs, axes, names).items():
        kind = np.asarray(quality.reference[0][name]).dtype.kind
        if kind not in "fiub":
            continue
        seen = tally.result()
        curve = curve_of(tally) if kind == "f" else None
        held = (name, seen.sqnr_db, seen.max_abs, seen.cosine, seen.equal, curve, seen.unlike, seen.first_unlike)
        values = _values(name, quality, outputs, axes, curve) if kind == "f" else None
        found.append(OutputEvidence(*held, values, seen.varying_db))
    return found


def _values(
    name: str, quality: Quality, outputs: Sequence[Outputs], axes: Mapping[str, TimeAxis], curve: Curve | None
) -> Values | None:
    """The values with the largest error; an axis that not all calls have is no axis."""
    calls = quality.calls
    pair = [np.asarray(o[name]) for o in quality.reference], [np.asarray(o[name]) for o in outputs]
    found = {axes[name].of(x, p.feed) for x, p in zip(pair[0], calls.pieces, strict=True)} if name in axes else {None}
    axis = found.pop() if len(found) == 1 else None
    restarts = [p.restart for p in calls.pieces] if calls.carried else []
    unit = None if curve is None or (axis is None and not restarts) else curve.unit
    return values_of(*pair, axis, restarts, unit)


def curve_of(tally: OutputTally) -> Curve | None:
    """SQNR over time, in at most about `PIECES` pieces; None of what has no steps."""
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
