"""Overrides that mend what costs most, each measured on the model in its own form before it is proposed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rnnqc.diagnostics import CompileError
from rnnqc.grids import is_power_of_two, power_of_two_from
from rnnqc.pipeline import Lowered
from rnnqc.recipe import Rule, keys_of, parse_override
from rnnqc.reporting.evidence import PointEvidence, Repair, Sensitivity
from rnnqc.reporting.quality import Quality, mean_sqnr, worst_sqnr
from rnnqc.reporting.recurrences import Recurrence, point_of, quantized_points, recurrences_of
from rnnqc.reporting.remaking import Remaker, exactly, settings_text, weights_of
from rnnqc.reporting.sensitivity import CELL, members

MOST = 5
"""How many repairs are looked for."""
WORTH_DB = 0.3
"""What is not worth an override."""
ENOUGH = 0.8
"""Share of the gain of floats with which a cheaper override is good enough."""
CLIPPED = 1e-4
"""Share of values beyond a range from which on another scale is tried."""
CLIPS = 1e-3
"""Share from which on a point is said to clip: ranges by percentiles leave out less on purpose."""
FLOAT = "float"
SUITABLE = ("fused", "integer", "products", "qonnx")
"""Forms that nothing is lost with."""
UNUSED = 0.25
WIDTHS = (4, 8, 16)
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

    def repair(self, sensitivity: Sensitivity) -> Repair | None:
        """The first candidate that is good enough, or the best; None if none is worth anything."""
        points = list(members(sensitivity, self.recurrences))
        tried: list[Repair] = []
        for candidate in self._candidates(sensitivity, points):
            result = self.measured(sensitivity.points, candidate)
            if result is None or result.gain_db < (WORTH_A_FORM_DB if result.forms else WORTH_DB):
                continue
            if result.gain_db >= ENOUGH * sensitivity.gain_db and not result.forms:
                return result
            tried.append(result)
        return max(tried, key=lambda r: (not r.forms, r.gain_db), default=None)

    def measured(self, points: str, candidate: Candidate) -> Repair | None:
        """What an override does; None if the model cannot be lowered with it, or a point that it quantizes is float."""
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
        )

    def _candidates(self, sensitivity: Sensitivity, points: Sequence[str]) -> list[Candidate]:
        found = []
        ranges = [r for r in (self._range_rule(p) for p in points) if r is not None]
        if ranges:
            found.append(Candidate(tuple(r for r, _ in ranges), "; ".join(dict.fromkeys(why for _, why in ranges))))
        widths = {point_of(self.recurrences, p).get("bits") or 0 for p in points}
        for bits in WIDTHS if widths else ():
            if bits > max(widths) and all("bits" in keys_of(p) for p in points):
                extra = _undone(self.recurrences, points)
                rule = Rule(sensitivity.points, {"bits": bits, **extra})
                found.append(Candidate((rule,), f"{bits} bits instead of {max(widths)}"))
                if ranges:
                    continue
        found.append(Candidate((Rule(sensitivity.points, {"bits": None}),), FLOAT))
        return found

    def _range_rule(self, name: str) -> tuple[Rule, str] | None:
        """A scale that suits the values, for a format with one scale that does not."""
        seen = self.seen.get(name)
        if seen is None or seen.scale is None or seen.low is None or seen.range_used is None:
            return None
        if name.endswith((".weight", ".bias")) or "scale" not in keys_of(name):
            return None
        if seen.clipped > CLIPPED:
            why = f"{seen.clipped:.2%} of the values lie beyond the range of the format"
        elif seen.range_used < UNUSED:
            why = f"the values take {seen.range_used:.1%} of the range of the format"
        else:
            return None
        point = point_of(self.recurrences, name)
        return Rule(exactly(name), _scale_for(point, seen)), why


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


def find_repairs(repairer: Repairer, sensitivities: Sequence[Sensitivity]) -> tuple[list[Repair], Repair | None]:
    """Repairs for what costs most, best first, and together those that keep the form of cells."""
    found: list[Repair] = []
    rules: list[Rule] = []
    mended: set[str] = set()
    for sensitivity in sensitivities:
        if len(found) == MOST or sensitivity.gain_db < WORTH_DB:
            break
        points = set(members(sensitivity, repairer.recurrences))
        if sensitivity.level == CELL or not points or points & mended:
            continue
        repair = repairer.repair(sensitivity)
        if repair is not None:
            found.append(repair)
            mended |= points | (set(sensitivity.also) if repair.forms else set())
            rules += map(parse_override, repair.overrides) if not repair.forms else ()
    found.sort(key=lambda r: (bool(r.forms), -r.gain_db, r.points))
    if sum(not r.forms for r in found) < 2:
        return found, None
    return found, repairer.measured("", Candidate(tuple(rules), "all of these"))
