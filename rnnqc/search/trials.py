"""Trials: a float model lowered with some rules before the recipe's, compared with the float model on data."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from rnnqc.cells.stages import points_of
from rnnqc.data.streaming import Outputs
from rnnqc.errors import CompileError
from rnnqc.formats.point_format import FLOAT
from rnnqc.lowering.options import REST_FLOAT
from rnnqc.lowering.reports.report import Lowered
from rnnqc.recipes.rules import Rule
from rnnqc.search.overrides import settings_text
from rnnqc.search.quality import Quality, Score
from rnnqc.search.recurrences import quantized_points, recurrences_of

WIDE_BITS = 8
"""Activations of more bits need two matmuls."""


@dataclass(frozen=True)
class Trial:
    """A lowered model, measured.

    Attributes:
        score: How close its outputs are to those of the float model.
        weight_bytes: Bytes of its recurrent weights.
        rest_bytes: Bytes of the weights around the recurrent layers, with `rest="int8"`; otherwise 0.
        cost: `weight_bytes`, but weights multiplied with more than 8 bits count twice, for a matmul of each byte.
        forms: The form of each recurrence, by name.
        points: The names of all points with a number format, in order.
    """

    score: Score
    weight_bytes: int
    rest_bytes: int
    cost: int
    forms: Mapping[str, str]
    points: Mapping[str, None]


class Trials:
    """Lowers a model with rules, each combination once, and measures the result.

    Args:
        lower: Lowers the float model with rules before those of its recipe.
        quality: Compares with the float model.
        optimize: Whether onnxruntime may optimize the lowered models.
    """

    def __init__(self, lower: Callable[[Sequence[Rule]], Lowered], quality: Quality, *, optimize: bool = True) -> None:
        self._lower, self._quality, self._optimize = lower, quality, optimize
        self._known: dict[tuple[str, ...], Trial | None] = {}

    @property
    def count(self) -> int:
        """The number of combinations tried."""
        return len(self._known)

    def of(self, rules: Sequence[Rule]) -> Trial:
        """Measures the model with rules.

        Raises:
            CompileError: It cannot be lowered with them, or does not run.
        """
        key = tuple(settings_text(rules))
        known = self._known.get(key)
        if known is None:
            self._known[key] = known = self.measured(self._lower(rules))
        return known

    def tried(self, rules: Sequence[Rule]) -> Trial | None:
        """Measures the model with rules; None if it cannot be lowered with them, or does not run."""
        key = tuple(settings_text(rules))
        if key not in self._known:
            try:
                lowered = self._lower(rules)
                outputs = self._outputs(lowered)
            except CompileError:
                self._known[key] = None
            else:
                self._known[key] = self._trial(lowered, outputs)
        return self._known[key]

    def measured(self, lowered: Lowered) -> Trial:
        """Measures a model that was already lowered.

        Raises:
            CompileError: It does not run.
        """
        return self._trial(lowered, self._outputs(lowered))

    def _outputs(self, lowered: Lowered) -> list[Outputs]:
        return self._quality.outputs(lowered.proto, optimize=self._optimize)

    def _trial(self, lowered: Lowered, outputs: Sequence[Outputs]) -> Trial:
        recurrences, rest = recurrences_of(lowered.model), lowered.report.rest
        return Trial(
            self._quality.score(outputs),
            sum(e.bytes for e in lowered.report.entries),
            rest.bytes if rest.option != REST_FLOAT else 0,
            cost_of(lowered),
            {r.name: r.form for r in recurrences.values()},
            quantized_points(recurrences),
        )


def cost_of(lowered: Lowered) -> int:
    """Returns the bytes of the recurrent weights of all layers; those multiplied with more than 8 bits count twice.

    The bytes of a layer are divided between W and R in the ratio of I and H.
    """
    total = 0.0
    for entry in lowered.report.entries:
        cells = [lowered.model.cells[name] for name in entry.cells if name in lowered.model.cells]
        again = 0.0
        for cell in cells:
            rows = {"input": cell.input_size, "hidden": cell.hidden_size}
            wide = sum(n for k, n in rows.items() if (points_of(cell).get(k, FLOAT).bits or 0) > WIDE_BITS)
            again += wide / (cell.input_size + cell.hidden_size) / len(cells)
        total += entry.bytes * (1 + again)
    return round(total)


@dataclass(frozen=True)
class Bounds:
    """Limits of the measurements.

    Attributes:
        models: The largest number of models.
        seconds: The longest time; the result then depends on the speed of the machine.
    """

    models: int = 150
    seconds: float = math.inf


class Budget:
    """The remainder of the bounds.

    Args:
        bounds: They apply from now on.
    """

    def __init__(self, bounds: Bounds) -> None:
        self.bounds = bounds
        self.count = 0
        self._start = self._first = time.monotonic()

    def spend(self, kept: int = 0, kept_time: float = 0.0) -> bool:
        """Takes one model; False if only `kept` ones are left, or only the share `kept_time` of the time."""
        if self._is_late(kept_time) or self.count + kept >= self.bounds.models:
            return False
        if not self.count:
            self._first = time.monotonic()
        self.count += 1
        return True

    def left(self, kept: int = 0, kept_time: float = 0.0) -> float:
        """Returns how many more models may be taken, assuming they take as long as those before."""
        now = time.monotonic()
        time_left = self.bounds.seconds * (1.0 - kept_time) - (now - self._start)
        each = (now - self._first) / self.count if self.count else 0.0
        models = self.bounds.models - self.count - kept
        return max(0.0, min(models, time_left / each if each > 0.0 else math.inf))

    @property
    def is_late(self) -> bool:
        """Whether no time is left."""
        return self._is_late(0.0)

    def _is_late(self, kept_time: float) -> bool:
        return time.monotonic() - self._start >= self.bounds.seconds * (1.0 - kept_time)
