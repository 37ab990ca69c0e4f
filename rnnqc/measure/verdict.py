"""Whether a lowered model is near enough to the float one, in words: the same for `report`, `verify` and `tune`."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Level = Literal["good", "watch", "bad"]
LEVELS: tuple[Level, ...] = ("good", "watch", "bad")
"""From best to worst."""
GOOD_DB, WATCH_DB = 30.0, 20.0
"""The worst output is good from 30 dB on (an error of 3 % of its values), to be watched from 20 dB on (10 %)."""
SAME = 0.99
"""The share of equal values from which an output is good whatever its SQNR, as of token numbers."""
GOOD_LOSS, WATCH_LOSS = 0.005, 0.02
"""Of an accuracy, in its own unit; of a perplexity twice that, relative to the float model's."""


@dataclass(frozen=True)
class Judged:
    """The figures of one output that a verdict is made of.

    Attributes:
        name: The output; "" where it is only known to be the worst of several.
        sqnr_db: Signal-to-quantization-noise ratio.
        equal: Share of equal values.
        unlike: How many values are NaN or infinite in one of the models only.
        growing: Whether the error grows over time.
        varying_db: The SQNR of what varies, where nearly all of the output is its mean.
    """

    name: str
    sqnr_db: float
    equal: float
    unlike: int = 0
    growing: bool = False
    varying_db: float = math.inf

    @property
    def level(self) -> Level:
        """The verdict on this output alone."""
        if self.unlike:
            return "bad"
        near = self.sqnr_db >= GOOD_DB or self.equal >= SAME
        if near and not self.growing and not self.hides:
            return "good"
        return "watch" if near or self.sqnr_db >= WATCH_DB else "bad"

    @property
    def hides(self) -> bool:
        """Whether the SQNR hides that what varies is much worse."""
        return self.varying_db < WATCH_DB <= self.sqnr_db and self.equal < SAME


@dataclass(frozen=True)
class Task:
    """What a metric makes of the two models.

    Attributes:
        metric: Its name.
        value: Of the lowered model.
        reference: Of the float model.
    """

    metric: str
    value: float
    reference: float

    @property
    def level(self) -> Level | None:
        """The verdict on the task; None of a metric whose direction and unit nobody said."""
        if self.metric == "accuracy":
            loss = self.reference - self.value
        elif self.metric == "perplexity":
            loss = (self.value / self.reference - 1.0) / 2.0
        else:
            return None
        return "good" if loss <= GOOD_LOSS else "watch" if loss <= WATCH_LOSS else "bad"

    @property
    def text(self) -> str:
        """Both figures."""
        form = ".2%" if self.metric == "accuracy" else ".5g"
        return f"{self.metric} {self.reference:{form}} -> {self.value:{form}}"


@dataclass(frozen=True)
class Verdict:
    """A verdict.

    Attributes:
        level: "good", "watch" or "bad".
        figure: The one number that it is about.
        text: What it means, as sentences.
    """

    level: Level
    figure: str
    text: str

    @property
    def line(self) -> str:
        """On one line."""
        return f"{self.level}: {self.text}"


def error_share(sqnr_db: float) -> str:
    """The error as a share of the values (root mean squares)."""
    share = 100.0 * 10.0 ** (-sqnr_db / 20.0) if sqnr_db > -math.inf else math.inf
    return "more than all" if share >= 100.0 else f"{share:.2g} %"


def verdict_of(outputs: Iterable[Judged], task: Task | None = None) -> Verdict | None:
    """The verdict on a lowered model; None without outputs that can be compared.

    Args:
        outputs: Each output.
        task: What a metric says, if one was asked for. Accuracy and perplexity decide, whatever the outputs' SQNR.
    """
    judged = list(outputs)
    if not judged:
        return None
    worst = max(judged, key=lambda o: (LEVELS.index(o.level), o.unlike, -o.sqnr_db))
    level = worst.level if task is None or task.level is None or worst.unlike else task.level
    said = _said(worst, len(judged), worst.sqnr_db == min(o.sqnr_db for o in judged))
    if task is not None:
        return Verdict(level, task.text, f"{task.text}. {said[:1].upper()}{said[1:]}")
    advice = {
        "good": "",
        "watch": " Measure the task (rnnqc evaluate) before you ship it.",
        "bad": " Do not ship it like this.",
    }
    exact = worst.sqnr_db == math.inf and not worst.unlike
    figure = "bit-exact" if exact and worst.equal == 1.0 else f"{worst.sqnr_db:.1f} dB"
    return Verdict(level, figure.replace("-", "−") if not exact else figure, said + advice[level])


def _said(worst: Judged, count: int, is_least: bool) -> str:
    """What the worst output says; `is_least`: no output has less SQNR."""
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
    return f"{text}, and grows over time." if worst.growing else f"{text}."
