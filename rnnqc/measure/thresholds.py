"""Thresholds of `verify`: for all outputs, or for one."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rnnqc.errors import UsageError

if TYPE_CHECKING:  # the command's parser needs the table of measures without importing onnxruntime
    from rnnqc.measure.compare import LevelComparison
    from rnnqc.measure.differences import OutputComparison


@dataclass(frozen=True)
class Measure:
    """A figure that can have a threshold.

    Attributes:
        option: The option that sets it.
        unit: The unit of its value, for the help.
        help: The failure, for the help.
        value: Returns the figure.
        least: Whether the threshold is a minimum; else a maximum.
        text: A value and a threshold in words.
        within: The possible values of a threshold.
    """

    option: str
    unit: str
    help: str
    value: Callable[[OutputComparison], float]
    least: bool
    text: Callable[[float, float], str]
    within: tuple[float, float] = (-math.inf, math.inf)

    @property
    def name(self) -> str:
        """The name of the argument in Python."""
        return self.option[2:].replace("-", "_")

    def fails(self, found: float, asked: float) -> bool:
        """Whether `found` violates the threshold; NaN does."""
        return not (found >= asked if self.least else found <= asked)


def _codes(c: OutputComparison) -> float:
    return c.equal if c.equal_codes is None else c.equal_codes


def _of_whole_numbers(name: str, measure: Measure, levels: Sequence[LevelComparison]) -> str:
    """Advice to use --min-equal for integer outputs, such as classes or tokens, whose distances mean nothing."""
    outputs = [c for level in levels for c in level.outputs if c.name == name]
    if measure.option == "--min-equal" or not all(c.whole_numbers for c in outputs):
        return ""
    least = min(c.equal for c in outputs)
    return f"; of its whole numbers {least:.2%} are equal, which --min-equal {name}=SHARE judges"


MEASURES = (
    Measure(
        "--min-sqnr", "DB", "has less", lambda c: c.sqnr_db, True,
        lambda v, t: f"has {v:.1f} dB, {t:g} dB asked for",
    ),
    Measure(
        "--max-abs", "D", "is further off anywhere", lambda c: c.max_abs, False,
        lambda v, t: f"is {v:.3g} off somewhere, at most {t:g} asked for", (0.0, math.inf),
    ),
    Measure(
        "--min-cosine", "C", "has a smaller cosine similarity", lambda c: c.cosine, True,
        lambda v, t: f"has cosine similarity {v:.9g}, {t:.9g} asked for", (-1.0, 1.0),
    ),
    Measure(
        "--min-equal", "SHARE", "has a smaller share of equal values", _codes, True,
        lambda v, t: f"is equal in {v:.4%}, {t:.4%} asked for", (0.0, 1.0),
    ),
)  # fmt: skip


def _check_within(option: str, value: float, text: str) -> None:
    """Raises UsageError for an impossible threshold."""
    low, high = next(m.within for m in MEASURES if m.option == option)
    if not low <= value <= high:
        raise UsageError(
            f"{option} {text!r}: {value:g} is no such value.",
            supported=f"{low:g} to {high:g}" if math.isfinite(high) else f"from {low:g} on",
            action="give a share: 0.5 for 50 %" if option == "--min-equal" else "give another threshold",
        )


@dataclass(frozen=True)
class Thresholds:
    """The thresholds: by option, then by the name of an output, or "" for all others."""

    asked: Mapping[str, Mapping[str, float]]

    @classmethod
    def parse(cls, given: Mapping[str, Sequence[str]]) -> Thresholds:
        """Parses texts `VALUE` or `NAME=VALUE` by option.

        Raises:
            UsageError: A text is neither, or there are two values for one output.
        """
        asked: dict[str, dict[str, float]] = {}
        for option, texts in given.items():
            for text in texts:
                name, _, number = text.rpartition("=")
                try:
                    value = float(number)
                except ValueError:
                    value = math.nan
                if math.isnan(value):
                    raise UsageError(
                        f"{option} {text!r}: not of the form NUMBER or NAME=NUMBER.",
                        supported="a threshold for all outputs, or for the output NAME",
                        action=f"for example {option} 0.5 or {option} logits=0.5",
                    )
                _check_within(option, value, text)
                if asked.setdefault(option, {}).setdefault(name, value) != value:
                    what = f"output {name!r}" if name else "all outputs"
                    raise UsageError(
                        f"{option}: two values for {what}, {asked[option][name]:g} and {value:g}.",
                        supported="one",
                        action="leave one out",
                    )
        return cls(asked)

    @classmethod
    def of(cls, given: Mapping[str, float | Mapping[str, float] | None]) -> Thresholds:
        """Makes thresholds from numbers by option, or by option and name of an output.

        Raises:
            UsageError: A number is not a possible threshold.
        """
        asked = {
            option: dict(value) if isinstance(value, Mapping) else {"": float(value)}
            for option, value in given.items()
            if value is not None
        }
        for option, values in asked.items():
            for value in values.values():
                _check_within(option, value, f"{value:g}")
        return cls(asked)

    def everywhere(self, option: str) -> float | None:
        """Returns the threshold for all outputs."""
        return self.asked.get(option, {}).get("")

    def check(self, outputs: Iterable[str]) -> None:
        """Checks that thresholds are for outputs that exist.

        Raises:
            UsageError: One is not.
        """
        known = list(outputs)
        for option, values in self.asked.items():
            for name in values:
                if name and name not in known:
                    raise UsageError(
                        f"{option} {name}={values[name]:g}: the model has no output {name!r}.",
                        supported=", ".join(known),
                        action="name an output of the model",
                    )

    def violations(self, levels: Sequence[LevelComparison]) -> list[str]:
        """Returns one sentence for each violated threshold and output, for the level that violates it most.

        Args:
            levels: The comparison on each kind of data.
        """
        texts = []
        for measure in MEASURES:
            asked = self.asked.get(measure.option, {})
            for name in dict.fromkeys(c.name for level in levels for c in level.outputs):
                threshold = asked.get(name, asked.get(""))
                if threshold is None:
                    continue
                found = [(measure.value(c), level.name) for level in levels for c in level.outputs if c.name == name]
                failing = [f for f in found if measure.fails(f[0], threshold)]
                if failing:
                    value, where = min(failing) if measure.least else max(failing)
                    said = measure.text(value, threshold) + _of_whole_numbers(name, measure, levels)
                    texts.append(f"{measure.option}: output {name!r} {said}{f' ({where})' if len(levels) > 1 else ''}.")
        return texts
