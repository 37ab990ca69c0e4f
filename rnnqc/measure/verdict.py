"""Judges in words whether a lowered model is close enough to the float one, for `report`, `verify` and `tune`."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from rnnqc.measure.differences import OutputComparison

Level = Literal["good", "watch", "bad"]
LEVELS: tuple[Level, ...] = ("good", "watch", "bad")
"""From best to worst."""
GOOD_DB, WATCH_DB = 30.0, 20.0
"""The worst output is good from 30 dB on (an error of 3 % of its values), to be watched from 20 dB on (10 %)."""
SAME = 0.99
"""An output with this share of equal values is good whatever its SQNR; this suits token numbers."""
GOOD_LOSS, WATCH_LOSS = 0.005, 0.02
"""Allowed loss of accuracy, in its own unit; for perplexity twice that, relative to the float model's."""

NEGLIGIBLE = 0.01
"""An error of a value from 0 to 1 that is never larger says nothing against the model where the value is near zero."""

SHOWS_LITTLE = "every output has one value on this data, so this comparison shows little"
"""Of models whose outputs saturate on noise, say: any other model that saturates would be as good."""


RISES = " Compare on data on which it rises, or measure the task (rnnqc evaluate), before you ship it."


@dataclass(frozen=True)
class Judged:
    """The figures of one output that a verdict is based on.

    Attributes:
        name: The output; "" if it is only known to be the worst of several.
        sqnr_db: Signal-to-quantization-noise ratio.
        equal: Share of equal values.
        unlike: How many values are NaN or infinite in only one of the models.
        growing: Whether the error grows over time.
        varying_db: SQNR of the deviation from the mean, if the output is nearly constant.
        constant: Whether the output does not vary at all on the data.
        near_zero: Whether it has values from 0 to 1 that are all but zero on the data.
        max_abs: Largest absolute difference.
    """

    name: str
    sqnr_db: float
    equal: float
    unlike: int = 0
    growing: bool = False
    varying_db: float = math.inf
    constant: bool = False
    near_zero: bool = False
    max_abs: float = math.inf

    @classmethod
    def of(cls, output: OutputComparison, *, varying: bool = True) -> Judged:
        """Returns the figures of a comparison; `varying`: the deviation from the mean counts."""
        growing = output.steps is not None and output.steps.growing
        deviation_db = output.varying_db if varying else math.inf
        return cls(
            output.name, output.sqnr_db, output.equal, output.unlike, growing, deviation_db, output.constant,
            output.near_zero, output.max_abs,
        )  # fmt: skip

    @property
    def level(self) -> Level:
        """The verdict on this output alone."""
        if self.unlike:
            return "bad"
        near = self.sqnr_db >= GOOD_DB or self.equal >= SAME
        if near and not self.growing and not self.hides:
            return "good"
        return "watch" if near or self.sqnr_db >= WATCH_DB or self.is_negligible else "bad"

    @property
    def is_negligible(self) -> bool:
        """Whether a low SQNR shows little, because the output is near zero on the data and the error is tiny, too."""
        return self.near_zero and self.sqnr_db < GOOD_DB and self.max_abs <= NEGLIGIBLE

    @property
    def hides(self) -> bool:
        """Whether the SQNR hides a much larger relative error in the deviation from the mean."""
        return self.varying_db < WATCH_DB <= self.sqnr_db and self.equal < SAME


@dataclass(frozen=True)
class Task:
    """The values of a metric for the two models.

    Attributes:
        metric: Its name.
        value: Value for the lowered model.
        reference: Value for the float model.
    """

    metric: str
    value: float
    reference: float

    @property
    def level(self) -> Level | None:
        """The verdict on the task; None for a metric whose direction and unit are unknown."""
        if self.metric == "accuracy":
            loss = self.reference - self.value
        elif self.metric == "perplexity":
            loss = (self.value / self.reference - 1.0) / 2.0
        else:
            return None
        return "good" if loss <= GOOD_LOSS else "watch" if loss <= WATCH_LOSS else "bad"

    @property
    def text(self) -> str:
        """Both values."""
        form = ".2%" if self.metric == "accuracy" else ".5g"
        return f"{self.metric} {self.reference:{form}} -> {self.value:{form}}"


@dataclass(frozen=True)
class Verdict:
    """A verdict.

    Attributes:
        level: "good", "watch" or "bad".
        figure: The one number that it is about.
        text: Its meaning, in sentences.
    """

    level: Level
    figure: str
    text: str

    @property
    def line(self) -> str:
        """The verdict on one line."""
        return f"{self.level}: {self.text}"


def error_share(sqnr_db: float) -> str:
    """Formats the error as a share of the values (root mean squares)."""
    share = 100.0 * 10.0 ** (-sqnr_db / 20.0) if sqnr_db > -math.inf else math.inf
    return "more than all" if share >= 100.0 else f"{share:.2g} %"


def verdict_of(outputs: Iterable[Judged], task: Task | None = None) -> Verdict | None:
    """Returns the verdict on a lowered model; None without comparable outputs.

    Args:
        outputs: Each output.
        task: The metric, if one was requested. Accuracy and perplexity decide, whatever the outputs' SQNR.
    """
    judged = list(outputs)
    if not judged:
        return None
    worst = max(judged, key=lambda o: (LEVELS.index(o.level), o.unlike, -o.sqnr_db))
    is_of_task = task is not None and task.level is not None
    level = worst.level if task is None or task.level is None or worst.unlike else task.level
    said = _said(worst, len(judged), worst.sqnr_db == min(o.sqnr_db for o in judged))
    shows_little = level == "good" and not is_of_task and all(o.constant for o in judged)
    if shows_little:
        level, said = "watch", f"{said} {SHOWS_LITTLE.capitalize()}; give data on which they vary (--data)."
    if task is not None:
        return Verdict(level, task.text, f"{task.text}. {said[:1].upper()}{said[1:]}")
    advice = {
        "good": "",
        "watch": " Measure the task (rnnqc evaluate) before you ship it.",
        "bad": " Do not ship it like this.",
    }
    exact = worst.sqnr_db == math.inf and not worst.unlike
    figure = "bit-exact" if exact and worst.equal == 1.0 else f"{worst.sqnr_db:.1f} dB"
    advised = "" if shows_little else RISES if worst.is_negligible else advice[level]
    return Verdict(level, figure.replace("-", "−") if not exact else figure, said + advised)


def _said(worst: Judged, count: int, is_least: bool) -> str:
    """Describes the worst output; `is_least`: no output has a lower SQNR."""
    which = "the worst" if is_least or worst.unlike else "one"
    what = f"output {worst.name!r}" if count == 1 else f"{worst.name!r}, {which} of {count} outputs,"
    what = what if worst.name else "the worst output"
    if worst.unlike:
        return f"{what} has {worst.unlike} value(s) that are NaN or infinite in one of the models only."
    if worst.sqnr_db == math.inf:
        return f"{what} is the same in both models."
    text = f"{what} has {worst.sqnr_db:.1f} dB: its error is {error_share(worst.sqnr_db)} of its values"
    text += f", {worst.equal:.1%} of them are equal" if worst.equal >= SAME and worst.sqnr_db < GOOD_DB else ""
    if worst.hides:
        text += f", but {error_share(worst.varying_db)} of what varies: nearly all of the output is its mean"
    text += ", and grows over time" if worst.growing else ""
    if worst.is_negligible:
        text += f"; but these are near zero on this data, of a range from 0 to 1, and {worst.max_abs:.2g} off at most"
    return f"{text}."
