"""How near a lowered model is to the float one on generated data of several magnitudes."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import islice

import onnx

from rnnqc.errors import CompileError
from rnnqc.evaluation.comparison import unlike_texts
from rnnqc.measure.comparison_feeds import FeedGenerator, generated_levels
from rnnqc.measure.verify import LevelComparison, compare_levels, worst_level

POOR_DB = 20.0
"""Below this a lowering is not passed over in silence."""
OWN_DATA = (
    "Resolution: compare on your own data (rnnqc verify FLOAT LOWERED --data DATA); --calibration DATA fits ranges to "
    "it, and --report OUT.html says where the loss is made."
)
LEAST_SECONDS = 1.0
"""Measuring is not given up before."""


@dataclass
class Measured:
    """The SQNR of a lowered model on generated data.

    Attributes:
        sqnr_db: Of each output the least of all levels; of values that are finite in both models.
        level: Of each output the level where it has that, such as "magnitude 10".
        levels: Of each level the SQNR of each output.
        unlike: A sentence for each output with values that are NaN or infinite in one of the models only.
        missing: Why nothing was measured, or not all levels; "" if all were.
    """

    sqnr_db: dict[str, float] = field(default_factory=dict)
    level: dict[str, str] = field(default_factory=dict)
    levels: dict[str, dict[str, float]] = field(default_factory=dict)
    unlike: list[str] = field(default_factory=list)
    missing: str = ""

    @property
    def worst(self) -> tuple[float, str, str] | None:
        """The least SQNR, its output and its level; None if nothing was measured."""
        if not self.sqnr_db:
            return None
        name = min(self.sqnr_db, key=lambda n: self.sqnr_db[n])
        return self.sqnr_db[name], name, self.level[name]

    @property
    def warning(self) -> str | None:
        """What there is to say of an SQNR below `POOR_DB`."""
        worst = self.worst
        if self.unlike:
            return f"{self.unlike[0]} Measured on generated data. {OWN_DATA}"
        if worst is None or worst[0] >= POOR_DB:
            return None
        return (
            f"output {worst[1]!r} has an SQNR of {self.summary} on generated data, less than {POOR_DB:g} dB. {OWN_DATA}"
        )

    @property
    def summary(self) -> str:
        """The least SQNR, where that is, and what it is on usual values."""
        assert self.worst is not None
        value, _, level = self.worst
        usual, values = next(iter(self.levels.items()))
        if len(self.levels) == 1:
            return f"{value:.1f} dB"
        if level == usual:
            return f"{value:.1f} dB ({level})"
        return f"{value:.1f} dB ({level}; at {usual} {min(values.values()):.1f} dB)"


def measure(
    reference: onnx.ModelProto,
    candidate: Callable[[], onnx.ModelProto],
    generator: FeedGenerator,
    seconds: float = math.inf,
    *,
    calibrated: bool = False,
) -> Measured:
    """Measures; what stands in the way is said in the result.

    Args:
        reference: The float model, as onnxruntime runs it.
        candidate: Makes the lowered one.
        generator: Of feeds.
        seconds: After this no further level is begun.
        calibrated: Ranges fit the user's data: only usual values are generated, since others lie beyond them.
    """
    start = time.perf_counter()
    measured = Measured()
    done: list[LevelComparison] = []
    try:
        levels = islice(generated_levels(generator.checked(), 2 if calibrated else 1), 1 if calibrated else None)
        for level in compare_levels(reference, candidate(), levels, timed=False, optimize=False):
            done.append(level)
            if time.perf_counter() - start > max(seconds, LEAST_SECONDS):
                measured.missing = (
                    f"up to {level.name}; more would take much longer than lowering does (--min-sqnr DB does it)."
                )
                break
    except CompileError as error:
        measured.missing = str(error)
    for name, (level_name, output) in worst_level(done).items():
        if not math.isnan(output.sqnr_db):
            measured.sqnr_db[name], measured.level[name] = output.sqnr_db, level_name
    measured.levels = {level.name: {o.name: o.sqnr_db for o in level.outputs} for level in done}
    measured.unlike = list(dict.fromkeys(text for level in done for text in unlike_texts(level.outputs)))
    return measured
