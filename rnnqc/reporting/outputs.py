"""How the outputs of a lowered model compare with the float model's, over time, too."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from rnnqc.data.streaming import Outputs
from rnnqc.measure.tally import OutputTally, tallied
from rnnqc.measure.time_axes import TimeAxis
from rnnqc.reporting.evidence import Curve, OutputEvidence
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
        found.append(OutputEvidence(*held))
    return found


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
