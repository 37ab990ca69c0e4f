"""Measurements of quantization points: their values, their cost, and the overrides that help."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from rnnqc.errors import byte_count

WORTH_DB = 0.3
"""Smaller gains do not justify a change of the model."""


def change_of_levels(worst: tuple[float, float], mean: tuple[float, float]) -> str:
    """Words for the SQNR of the worst output before and after a change, and for the mean if it differs."""
    of_worst, of_all = (f"{before:.1f} -> {after:.1f} dB" for before, after in (worst, mean))
    return of_worst if worst == mean else f"worst output {of_worst}, all outputs together {of_all},"


@dataclass(frozen=True)
class Bars:
    """A histogram for display.

    Attributes:
        width: Width of a bar.
        first: Bar k has the values from `(first + k) * width` on.
        counts: Count of each bar.
    """

    width: float
    first: int
    counts: list[int]


@dataclass(frozen=True)
class PointEvidence:
    """The values of the float model at one quantization point, and the error of its number format.

    Attributes:
        point: `<cell>.<point>`.
        format: The number format for people, such as "int8 per channel".
        bits: Width of a quantized value.
        scale: Of formats with one scale; else None.
        zero_point: Of formats with one scale; else None.
        low: Lowest number that the format can represent; None for scales per row or channel.
        high: Highest number that the format can represent; None likewise.
        count: Number of values.
        min: Smallest value.
        max: Largest value.
        clipped: Share of the values beyond the representable range.
        codes_used: Number of quantized values that occur; None where that is not counted.
        codes: Number of quantized values that exist.
        range_used: Share of the representable range between the smallest and the largest value; None without a range.
        sqnr_db: SQNR of this quantization alone.
        bars: Histogram of the values.
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
    """The gain from leaving some points, and only these, in float.

    Attributes:
        points: Their glob, as overrides take it.
        members: Number of points.
        also: Points that had to be float with them, because their formats depend on them.
        level: "cell", "kind" (points of all cells), "group" (points of one) or "point".
        sqnr_db: SQNR of the outputs with these points in float.
        gain_db: The increase of SQNR.
        noise_share: Share of the outputs' noise that disappears.
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
        points: The glob of its points.
        overrides: The override as `--set` takes it.
        reason: Why it was tried.
        sqnr_before: SQNR of the outputs as the model is.
        sqnr_after: Measured SQNR with the override.
        worst_before: SQNR of the worst output.
        worst_after: SQNR of the worst output with the override.
        bytes_before: Bytes of the recurrent weights.
        bytes_after: Bytes of the recurrent weights with the override.
        forms: Non-integer forms that cells change to with it, such as "qcdq".
        members: The number of quantized points that it applies to.
        call_us: The shortest time of the first call as the model is and with the override, in microseconds, if times
            were requested.
        read_bytes: Bytes that the matmuls of a step read, before and with the override; matrices multiplied with more
            than 8 bits count twice.
        inside: The points of another repair that makes this one needless: it changes the same thing at some of the same
            points, gains as much and costs no more; "" if there is none.
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
        """The gain in SQNR."""
        return self.sqnr_after - self.sqnr_before

    @property
    def extra_bytes(self) -> int:
        """The increase of stored bytes or of bytes that the matmuls of a step read, whichever is more."""
        return max(self.bytes_after - self.bytes_before, self.read_bytes[1] - self.read_bytes[0])

    @property
    def gain_per_byte(self) -> float:
        """The gain in SQNR per additional byte; infinite without additional bytes."""
        return self.gain_db / self.extra_bytes if self.extra_bytes > 0 else math.inf

    @property
    def outcome(self) -> str:
        """A phrase for gain and cost, with the figures of the verdict: the worst output comes first."""
        levels = change_of_levels((self.worst_before, self.worst_after), (self.sqnr_before, self.sqnr_after))
        sizes = f"{byte_count(self.bytes_before)} -> {byte_count(self.bytes_after)}"
        cost = f" and weights {sizes}" if self.bytes_after != self.bytes_before else ""
        if not cost and self.extra_bytes > 0:
            cost = f" and matmuls that read {' -> '.join(map(byte_count, self.read_bytes))}"
        slower = f" in form {', '.join(self.forms)}, without integer arithmetic: much slower," if self.forms else ""
        return f"{levels}{cost}{slower}"
