"""Overrides that mend what costs most, each measured on the model in its own form before it is proposed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rnnqc.cells.vitis_tables import VITIS
from rnnqc.errors import CompileError
from rnnqc.formats.grids import is_power_of_two, power_of_two_from
from rnnqc.lowering.report import Lowered
from rnnqc.recipes.recipe import Rule, Settings, keys_of
from rnnqc.reporting.evidence import PointEvidence, Repair, Sensitivity
from rnnqc.reporting.quality import Quality, mean_sqnr, worst_sqnr
from rnnqc.reporting.recurrences import Recurrence, point_of, quantized_points, recurrences_of
from rnnqc.reporting.remaking import Remaker, exactly, settings_text, weights_of
from rnnqc.reporting.sensitivity import CELL, KIND, members

MOST = 5
"""How many repairs are looked for."""
WORTH_DB = 0.3
"""What is not worth an override."""
ENOUGH = 0.8
"""Share of the gain of floats with which a cheaper override is good enough."""
CLIPPED = 1e-4
"""Share of values beyond a range from which on another scale is tried."""
FLOAT = "float"
LEFT = "left in float"
SUITABLE = ("fused", "integer", "products", "qonnx")
"""Forms that nothing is lost with."""
UNUSED = 0.25
WIDTHS = (4, 8, 16)
BIASED = {"floor": "down", "ceil": "up", "toward_zero": "towards zero"}
"""Roundings to one side, whose errors have a mean."""
TO_NEAREST: Settings = {"rounding": "half_even"}
WORTH_A_FORM_DB = 3.0
"""What is not worth an override that takes the integer form from a cell."""


@dataclass(frozen=True)
class Candidate:
    """An override to try."""

    rules: tuple[Rule, ...]
    reason: str


class Repairer:
    """Tries overrides.

    Args:
        remaker: The model.
        quality: The data.
        lowered: The model, made again.
        seen: What is known of each point.
    """

    def __init__(self, remaker: Remaker, quality: Quality, lowered: Lowered, seen: Mapping[str, PointEvidence]) -> None:
        self.remaker, self.quality, self.seen = remaker, quality, seen
        self.lowered = lowered
        self.recurrences = recurrences_of(lowered.model)
        self.before = quality.ratios(quality.run(lowered.proto))
        self._measured: dict[tuple[str, ...], Repair | None] = {}

    def repair(self, sensitivity: Sensitivity) -> Repair | None:
        """The first candidate that is good enough, or the best; None if none is worth anything."""
        points = list(members(sensitivity, self.recurrences))
        tried: list[Repair] = []
        for candidate in self._candidates(sensitivity, points):
            result = self.measured(sensitivity.points, candidate, len(points))
            if result is None or result.gain_db < (WORTH_A_FORM_DB if result.forms else WORTH_DB):
                continue
            if result.gain_db >= ENOUGH * sensitivity.gain_db and not result.forms:
                return result
            tried.append(result)
        return max(tried, key=lambda r: (not r.forms, r.gain_db), default=None)

    def measured(self, points: str, candidate: Candidate, members: int = 1) -> Repair | None:
        """What an override of `members` points does; None if the model cannot be lowered with it, or loses formats."""
        key = tuple(settings_text(candidate.rules))
        if key not in self._measured:
            self._measured[key] = self._measure(points, candidate, members)
        return self._measured[key]

    def _measure(self, points: str, candidate: Candidate, members: int) -> Repair | None:
        try:
            lowered = self.remaker.lower(candidate.rules, pinned=False)
            ratios = self.quality.ratios(self.quality.run(lowered.proto))
        except CompileError:
            return None
        made = recurrences_of(lowered.model)
        lost = quantized_points(self.recurrences).keys() - quantized_points(made).keys()
        if any(r.matches(p) for r in candidate.rules if r.settings.get("bits") for p in lost):
            return None
        was, now = ({r.name: r.form for r in rs.values()} for rs in (self.recurrences, made))
        return Repair(
            points,
            settings_text(candidate.rules),
            candidate.reason,
            mean_sqnr(self.before),
            mean_sqnr(ratios),
            worst_sqnr(self.before),
            worst_sqnr(ratios),
            weights_of(self.lowered),
            weights_of(lowered),
            sorted({now.get(n, FLOAT) for n in was if now.get(n) not in (was[n], *SUITABLE)}),
            members,
        )

    def _candidates(self, sensitivity: Sensitivity, points: Sequence[str]) -> list[Candidate]:
        found = []
        if any(is_biased(point_of(self.recurrences, p)) for p in points):
            found.append(self.rounding(sensitivity.points, points))
        found += self.exact_tables(sensitivity.points, points)
        ranges = [r for r in map(self._range_rule, points) if r is not None]
        if ranges:
            found.append(Candidate(tuple(ranges), self._why_another_range([r.points for r in ranges], points)))
        found += self.wider(sensitivity.points, points)
        found.append(Candidate((Rule(sensitivity.points, {"bits": None}),), LEFT))
        return found

    def rounding(self, glob: str, points: Sequence[str]) -> Candidate:
        """To nearest, for all of `points` that are rounded to one side."""
        held = [point_of(self.recurrences, p) for p in points]
        sides = dict.fromkeys(BIASED[p["rounding"]] for p in held if is_biased(p))
        return Candidate((Rule(glob, TO_NEAREST),), f"rounded to nearest instead of {' or '.join(sides)}")

    def wider(self, glob: str, points: Sequence[str]) -> list[Candidate]:
        """More bits for all of `points` that have fewer, the fewest first."""
        widths = [int(point_of(self.recurrences, p).get("bits") or 0) for p in points]
        if not widths or not all("bits" in keys_of(p) for p in points):
            return []
        least, most = min(widths), max(widths)
        extra, now = _undone(self.recurrences, points), f"{least}" if least == most else f"{least} to {most}"
        follow = any(self.remaker.record.recipe.settings(p).get("same_as") for p in points)
        ways: list[tuple[Settings, str]] = [
            ({}, ""),
            *([({"same_as": None}, ", and a scale of its own")] if follow else []),
        ]
        return [
            Candidate((Rule(glob, {"bits": bits, **extra, **own}),), f"{bits} bits instead of {now}{more}")
            for bits in WIDTHS
            for own, more in ways
            if bits >= most and bits > least
        ]

    def exact_tables(self, glob: str, points: Sequence[str]) -> list[Candidate]:
        """Activations without the error of tables that have fewer entries than their arguments have codes."""
        if not any(point_of(self.recurrences, p).get("table") == VITIS for p in points):
            return []
        return [Candidate((Rule(glob, {"table": "exact"}),), "exact activations instead of tables of 2048 entries")]

    def _range_rule(self, name: str) -> Rule | None:
        """A scale that suits the values, for a format with one scale that does not."""
        seen = self.seen.get(name)
        if seen is None or seen.scale is None or seen.low is None or seen.range_used is None:
            return None
        if name.endswith((".weight", ".bias")) or "scale" not in keys_of(name):
            return None
        if seen.clipped <= CLIPPED and seen.range_used >= UNUSED:
            return None
        follows = self.remaker.record.recipe.settings(name).get("same_as")
        own: Settings = {"same_as": None} if follows else {}
        return Rule(exactly(name), {**_scale_for(point_of(self.recurrences, name), seen), **own})

    def _why_another_range(self, globs: Sequence[str], points: Sequence[str]) -> str:
        """What is wrong with the ranges of those of `points` that `globs` are."""
        seen = [self.seen[p] for p in points if exactly(p) in globs]
        clipped = [p.clipped for p in seen if p.clipped > CLIPPED]
        shares = clipped or [p.range_used or 0.0 for p in seen]
        many = "" if len(shares) == 1 else f"at {len(shares)} points, "
        low, high = f"{min(shares):.2%}", f"{max(shares):.2%}"
        text = f"{many}{low if low == high else f'{low} to {high}'} of the "
        return text + ("values lie beyond the range of the format" if clipped else "range of the format are used")


def is_biased(point: Mapping[str, Any]) -> bool:
    """Whether the rounding of a format makes errors whose mean is not zero."""
    return point.get("mode") == "static" and point.get("rounding") in BIASED


def _scale_for(point: Mapping[str, Any], seen: PointEvidence) -> dict[str, Any]:
    """Scale and zero point that cover the values: symmetric where the format is, a power of two where it is one."""
    bits, zero_point = int(point["bits"]), int(point["zero_point"])
    top = 2 ** (bits - 1) - 1
    low, high = min(seen.min, 0.0), max(seen.max, 0.0)
    symmetric = (point["signed"] and zero_point == 0) or zero_point == 2 ** (bits - 1)
    old = float(point["scale"][0])
    scale = max(-low, high) / top if symmetric else (high - low) / (2**bits - 1)
    if is_power_of_two(old):
        return {"scale": float(power_of_two_from(scale))} if scale > 0 else {"scale": old}
    scale = _rounded_up(scale)
    if symmetric or (not point["signed"] and zero_point == 0 and low == 0.0):
        return {"scale": scale}
    lowest = -(2 ** (bits - 1)) if point["signed"] else 0
    return {"scale": scale, "zero_point": lowest + round(-low / scale)}


def _rounded_up(scale: float) -> float:
    """Four digits, not below."""
    unit = 10.0 ** (math.floor(math.log10(scale)) - 3) if scale > 0.0 else 1.0
    return float(f"{math.ceil(scale / unit - 1e-9) * unit:.6g}")


def _undone(recurrences: Mapping[str, Recurrence], points: Sequence[str]) -> dict[str, Any]:
    """What has to be taken back where weights of few bits get more."""
    held = [point_of(recurrences, p) for p in points]
    undone: dict[str, Any] = {"group_size": None} if any(p.get("group_size") for p in held) else {}
    return undone | ({"wide_channels": 0.0} if any(p.get("wide_channels") for p in held) else {})


def find_repairs(repairer: Repairer, sensitivities: Sequence[Sensitivity]) -> list[Repair]:
    """Repairs for the points, and groups of like points of a cell, that cost most."""
    found: list[Repair] = []
    mended: set[str] = set()
    for sensitivity in sensitivities:
        if len(found) == MOST or sensitivity.gain_db < WORTH_DB:
            break
        points = set(members(sensitivity, repairer.recurrences))
        if sensitivity.level in (CELL, KIND) or not points or points & mended:
            continue
        repair = repairer.repair(sensitivity)
        if repair is not None:
            found.append(repair)
            mended |= points | (set(sensitivity.also) if repair.forms else set())
    return found
