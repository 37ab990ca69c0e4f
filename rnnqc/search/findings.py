"""Findings about quantization points: what is known of their values, what they cost, which overrides help."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from rnnqc.errors import byte_count

WORTH_DB = 0.3
"""What is not worth a change of the model."""


def change_of_levels(worst: tuple[float, float], mean: tuple[float, float]) -> str:
    """In words: the SQNR of the worst output before and after a change, and of all, where that is another."""
    of_worst, of_all = (f"{before:.1f} -> {after:.1f} dB" for before, after in (worst, mean))
    return of_worst if worst == mean else f"worst output {of_worst}, all outputs together {of_all},"


@dataclass(frozen=True)
class Bars:
    """A histogram for looking at.

    Attributes:
        width: Of a bar.
        first: Bar k has the values from `(first + k) * width` on.
        counts: Of each bar.
    """

    width: float
    first: int
    counts: list[int]


@dataclass(frozen=True)
class PointEvidence:
    """The values of the float model at one quantization point, and what its number format makes of them.

    Attributes:
        point: `<cell>.<point>`.
        format: The number format for people, such as "int8 per channel".
        bits: Width of a quantized value.
        scale: Of formats with one scale; else None.
        zero_point: Of formats with one scale; else None.
        low: Lowest number that the format can represent; None where scales follow from rows or channels.
        high: Highest number.
        count: How many values.
        min: Smallest value.
        max: Largest value.
        clipped: Share of the values beyond the representable range.
        codes_used: How many quantized values occur; None where that is not counted.
        codes: How many there are.
        range_used: Share of the representable range between the smallest and the largest value; None without one.
        sqnr_db: Of this quantization alone.
        bars: The values.
    """

    point: str
    format: str
    bits: int
    scale: float | None
    zero_point: int | None
    low: float | None
    high: float | None
    count: int
    min: float
    max: float
    clipped: float
    codes_used: int | None
    codes: int
    range_used: float | None
    sqnr_db: float
    bars: Bars


@dataclass(frozen=True)
class Sensitivity:
    """What would be gained if some points, and they alone, were float.

    Attributes:
        points: Their glob, as overrides take it.
        members: How many points that are.
        also: Points that had to be float with them, because their formats follow from these.
        level: "cell", "kind" (points of all cells), "group" (points of one) or "point".
        sqnr_db: Of the outputs, with these points in float.
        gain_db: More than without.
        noise_share: Share of the noise of the outputs that goes away.
    """

    points: str
    members: int
    level: str
    sqnr_db: float
    gain_db: float
    noise_share: float
    also: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Repair:
    """An override that was tried on the model, in its own form.

    Attributes:
        points: What it is about.
        overrides: As `--set` takes them.
        reason: Why it was tried.
        sqnr_before: Of the outputs as the model is.
        sqnr_after: With the override, measured.
        worst_before: Of the worst output.
        worst_after: With the override.
        bytes_before: Of the recurrent weights.
        bytes_after: With the override.
        forms: Forms without integers that cells change to with it, such as "qcdq".
        members: How many points that quantize something it is about.
        call_us: The shortest time of the first call as the model is and with the override, in microseconds, if times
            were asked for.
        read_bytes: What the matmuls of a step read, before and with the override: matrices that are multiplied with
            more than 8 bits count twice.
        inside: The points of one that changes the same thing at some of the same points, gains as much and costs no
            more; "" of most.
    """

    points: str
    overrides: list[str]
    reason: str
    sqnr_before: float
    sqnr_after: float
    worst_before: float
    worst_after: float
    bytes_before: int
    bytes_after: int
    forms: list[str] = field(default_factory=list)
    members: int = 1
    read_bytes: tuple[int, int] = (0, 0)
    inside: str = ""
    call_us: tuple[float, float] | None = None

    @property
    def gain_db(self) -> float:
        """SQNR won."""
        return self.sqnr_after - self.sqnr_before

    @property
    def extra_bytes(self) -> int:
        """Bytes more that are stored, or that the matmuls of a step read, whichever is more."""
        return max(self.bytes_after - self.bytes_before, self.read_bytes[1] - self.read_bytes[0])

    @property
    def gain_per_byte(self) -> float:
        """SQNR won for each byte more; infinite where there is none."""
        return self.gain_db / self.extra_bytes if self.extra_bytes > 0 else math.inf

    @property
    def outcome(self) -> str:
        """What is won for what, in the figures of a verdict: those of the worst output come first."""
        levels = change_of_levels((self.worst_before, self.worst_after), (self.sqnr_before, self.sqnr_after))
        sizes = f"{byte_count(self.bytes_before)} -> {byte_count(self.bytes_after)}"
        cost = f" and weights {sizes}" if self.bytes_after != self.bytes_before else ""
        if not cost and self.extra_bytes > 0:
            cost = f" and matmuls that read {' -> '.join(map(byte_count, self.read_bytes))}"
        slower = f" in form {', '.join(self.forms)}, without integer arithmetic: much slower," if self.forms else ""
        return f"{levels}{cost}{slower}"
