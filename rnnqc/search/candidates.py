"""Overrides that may improve a lowered model: for a few points, and for many at once.

For the points of one measurement: round to nearest instead of one way, exact activations, a scale that suits the
values, more bits, float. For many points, because a bias shared by all of them does not show at any single one:
roundings (of all points, of a kind, of a cell), the recipe's setting instead of the user's override, ranges that cover
all values, a separate scale for each point.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rnnqc.cells.tables import PIECEWISE_LINEAR
from rnnqc.cells.vitis_tables import VITIS
from rnnqc.formats.format import Format
from rnnqc.formats.point_format import STATIC, PointFormat
from rnnqc.formats.rounding import Rounding
from rnnqc.formats.scales import is_power_of_two, power_of_two_from
from rnnqc.recipes.clipping import CLIPS, RANGE_KEYS
from rnnqc.recipes.keys import Settings, accepts, keys_of
from rnnqc.recipes.recipe import Recipe
from rnnqc.recipes.rules import Rule
from rnnqc.search.findings import PointEvidence
from rnnqc.search.overrides import Override, exactly, in_float
from rnnqc.search.recurrences import Recurrence, point_of, quantized_points
from rnnqc.search.relowering import PARAMETERS
from rnnqc.search.sensitivity import kind_of

ALL = "*"
LEFT = "left in float"
CLIPPED = 1e-4
"""From this share of clipped values on, another scale is tried."""
UNUSED = 0.25
WIDTHS = (4, 8, 16)
WEIGHT_WIDTHS = (5, 6)
"""Further widths of weights: they take fewer bytes than 8 bits, and keep their groups."""
BIASED = {Rounding.FLOOR: "down", Rounding.CEIL: "up", Rounding.TOWARD_ZERO: "towards zero"}
"""Directed roundings, whose errors have a nonzero mean."""
TO_NEAREST: Settings = {"rounding": "half_even"}
UNDONE = frozenset((*RANGE_KEYS, "rounding")) - {"scale", "zero_point", "bits", "mode"}
"""Keys of the user's overrides for which the recipe's own setting is tried."""


class Candidates:
    """The overrides to try on a lowered model.

    Args:
        recipe: The recipe of the model, overrides in front.
        recurrences: The recurrences of the model.
        seen: Measured values of each point.
        calibrated: Whether there are statistics of a calibration.

    Attributes:
        points: The names of all points with a number format, in order.
    """

    def __init__(
        self, recipe: Recipe, recurrences: Mapping[str, Recurrence], seen: Mapping[str, PointEvidence], calibrated: bool
    ) -> None:
        self.recurrences = recurrences
        self.points = list(quantized_points(recurrences))
        self._recipe, self._seen, self._calibrated = recipe, seen, calibrated

    def matching(self, glob: str, points: Iterable[str] | None = None) -> list[str]:
        """Returns those of `points`, by default all, that match a glob."""
        rule = Rule(glob, {})
        return [p for p in (self.points if points is None else points) if rule.matches(p)]

    def for_points(self, glob: str, points: Sequence[str]) -> list[Override]:
        """Returns overrides for the points of one measurement, the cheapest first; the last leaves them in float."""
        found = [self._to_nearest(glob, points)] if any(map(self._is_biased, points)) else []
        found += self._exact_tables(glob, points)
        found += self._ranges(glob, points)
        found += self.wider(glob, points)
        return [*found, Override(glob, (in_float(glob),), LEFT, len(points))]

    def wider(self, glob: str, points: Sequence[str]) -> list[Override]:
        """Returns overrides with more bits for all of `points`, the fewest bits first."""
        held = [self._point(p).bits or 0 for p in points]
        if not held or not all("bits" in keys_of(p) for p in points):
            return []
        least, most = min(held), max(held)
        extra, now = self._undone(points), f"{least}" if least == most else f"{least} to {most}"
        follow = any(self._recipe.settings(p).get("same_as") for p in points)
        ways: list[tuple[Settings, str]] = [
            ({}, ""),
            *([({"same_as": None}, ", and a scale of its own")] if follow else []),
        ]
        widths: dict[int, Settings] = dict.fromkeys(WIDTHS, extra)
        if all(p.endswith(".weight") for p in points):
            widths |= {bits: {k: v for k, v in extra.items() if k != "group_size"} for bits in WEIGHT_WIDTHS}
        return [
            Override(
                glob, (Rule(glob, {"bits": bits, **more, **own}),), f"{bits} bits instead of {now}{text}", len(points)
            )
            for bits, more in sorted(widths.items())
            for own, text in ways
            if bits >= most and bits > least
        ]

    def roundings(self) -> list[Override]:
        """Returns overrides that round to nearest instead of one way: for all points, then by kind and by cell."""
        biased = [p for p in self.points if self._is_biased(p)]
        if len(biased) < 2:
            return []
        kinds = [f"*.{kind}" for kind in dict.fromkeys(map(kind_of, biased))]
        cells = [f"{exactly(name)}.*" for name in self.recurrences]
        parts = [*(kinds if len(kinds) > 1 else ()), *(cells if len(cells) > 1 else ())]
        globs = [ALL, *(g for g in parts if len(self.matching(g, biased)) > 1)]
        return [self._to_nearest(g, self.matching(g)) for g in globs]

    def for_many(self) -> list[Override]:
        """Returns overrides for many points, other than roundings and widths."""
        return [*self._as_the_recipe(), *self._covering(), *self._apart()]

    def tables(self) -> list[Override]:
        """Returns exact activations: of gates, of all points in cells with small tables, of values of custom cells."""
        found = [f"{r.name}.{p}" for r in self.recurrences.values() for p in r.points]
        made: list[Override] = []
        for glob in ("*.activation", "*_gate.activation", "*.value"):
            tabulated = self._exact_tables(glob, self.matching(glob, found))
            made += [Override(glob, t.rules, t.reason, len(self.matching(glob))) for t in tabulated]
        return made

    @property
    def has_several_widths(self) -> bool:
        """Whether points have different numbers of bits."""
        return len({p.bits for r in self.recurrences.values() for p in r.points.values()}) > 1

    def _point(self, path: str) -> PointFormat:
        return point_of(self.recurrences, path)

    def _is_biased(self, path: str) -> bool:
        """Whether the rounding of a format makes errors whose mean is not zero."""
        point = self._point(path)
        return point.mode == STATIC and point.integers.rounding in BIASED

    def _to_nearest(self, glob: str, points: Sequence[str]) -> Override:
        """Returns an override that rounds `points` to nearest."""
        sides = dict.fromkeys(BIASED[self._point(p).integers.rounding] for p in points if self._is_biased(p))
        reason = f"rounded to nearest instead of {' or '.join(sides)}"
        return Override(glob, (Rule(glob, TO_NEAREST),), reason, len(points))

    def _exact_tables(self, glob: str, points: Sequence[str]) -> list[Override]:
        """Replaces tables that have fewer entries than their arguments have values.

        Piecewise linear tables only for gates: an exact table of the output activation takes 262 kB.
        """
        tables = {self._point(p).table for p in points}
        if VITIS in tables:
            reason = "exact activations instead of tables of 2048 entries"
        elif PIECEWISE_LINEAR in tables and all("_gate." in p for p in points):
            reason = "exact activations of gates instead of piecewise-linear ones, 33 to 66 kB in the file"
        else:
            return []
        return [Override(glob, (Rule(glob, {"table": "exact"}),), reason, len(points))]

    def _ranges(self, glob: str, points: Sequence[str]) -> list[Override]:
        """Returns scales that suit the values, for those of `points` with a single scale that does not."""
        rules = {p: rule for p in points if (rule := self._range_rule(p)) is not None}
        if not rules:
            return []
        seen = [self._seen[p] for p in rules]
        clipped = [p.clipped for p in seen if p.clipped > CLIPPED]
        shares = clipped or [p.range_used or 0.0 for p in seen]
        many = "" if len(shares) == 1 else f"at {len(shares)} points, "
        low, high = f"{min(shares):.2%}", f"{max(shares):.2%}"
        text = f"{many}{low if low == high else f'{low} to {high}'} of the "
        text += "values lie beyond the range of the format" if clipped else "range of the format are used"
        return [Override(glob, tuple(rules.values()), text, len(points))]

    def _range_rule(self, name: str) -> Rule | None:
        seen = self._seen.get(name)
        if seen is None or seen.scale is None or seen.low is None or seen.range_used is None:
            return None
        if name.endswith(PARAMETERS) or "scale" not in keys_of(name):
            return None
        if seen.clipped <= CLIPPED and seen.range_used >= UNUSED:
            return None
        own: Settings = {"same_as": None} if self._recipe.settings(name).get("same_as") else {}
        return Rule(exactly(name), {**_scale_for(self._point(name).complete, seen), **own})

    def _undone(self, points: Sequence[str]) -> dict[str, Any]:
        """Returns settings that reset formats of narrow weights when these get more bits."""
        held = [self._point(p) for p in points]
        undone: dict[str, Any] = {"group_size": None} if any(p.group_size for p in held) else {}
        undone |= {"codebook": None} if any(p.codebook for p in held) else {}
        return undone | ({"wide_channels": 0.0} if any(p.wide_channels for p in held) else {})

    def _as_the_recipe(self) -> list[Override]:
        """Returns the recipe's setting for each user override, if it is the same for all points of that override."""
        rules, others = self._recipe.rules[: self._recipe.overrides], self._recipe.rules[self._recipe.overrides :]
        found = []
        for rule in rules:
            points = self.matching(rule.points)
            for key in (k for k in rule.settings if k in UNDONE):
                values = {next((r.settings[key] for r in others if key in r.settings and r.matches(p)), None)
                          for p in points}  # fmt: skip
                if len(values) == 1 and values != {rule.settings[key]} and accepts(key, *values):
                    reason = f"as the recipe has it, instead of {key} = {rule.settings[key]}"
                    found.append(Override(rule.points, (Rule(rule.points, {key: values.pop()}),), reason, len(points)))
        return found

    def _covering(self) -> list[Override]:
        """Returns ranges that contain all values, if several points clip."""
        seen = [p for p in self._seen.values() if p.clipped > CLIPS and p.scale is not None]
        clipped = [p for p in seen if not p.point.endswith(PARAMETERS)]
        if len(clipped) < 2 or not self._calibrated:
            return []
        settings: Settings = {"range": "min-max"}
        settings |= {"pow2": True} if any(is_power_of_two(p.scale or 1.0) for p in clipped) else {}
        reason = f"{len(clipped)} points clip; these ranges hold all values"
        return [Override(ALL, (Rule(ALL, settings),), reason, len(self.points))]

    def _apart(self) -> list[Override]:
        """Returns a separate scale for every point that shares the scale of another."""
        settings = self._recipe.settings
        following = [p for p in self.points if not p.endswith(PARAMETERS) and settings(p).get("same_as")]
        biases = {settings(p).get("same_as") for p in self.points if p.endswith(".bias")}
        if len(following) < 2 or not self._calibrated:
            return []
        kept = [Rule("*.bias", {"same_as": target}) for target in biases if target and len(biases) == 1]
        reason = f"a scale of its own for each of the {len(following)} points that have the one of another"
        return [Override(ALL, (*kept, Rule(ALL, {"same_as": None})), reason, len(self.points))]


def _scale_for(held: Format, seen: PointEvidence) -> dict[str, Any]:
    """Returns scale and zero point that cover the values; stays symmetric, or a power of two, if the format is."""
    bits, zero_point = held.bits, held.zero_point
    top = 2 ** (bits - 1) - 1
    low, high = min(seen.min, 0.0), max(seen.max, 0.0)
    symmetric = held.is_symmetric or zero_point == 2 ** (bits - 1)
    old = held.scale[0]
    scale = max(-low, high) / top if symmetric else (high - low) / (2**bits - 1)
    if is_power_of_two(old):
        return {"scale": float(power_of_two_from(scale))} if scale > 0 else {"scale": old}
    scale = _rounded_up(scale)
    if symmetric or (not held.signed and zero_point == 0 and low == 0.0):
        return {"scale": scale}
    lowest = -(2 ** (bits - 1)) if held.signed else 0
    return {"scale": scale, "zero_point": lowest + round(-low / scale)}


def _rounded_up(scale: float) -> float:
    """Rounds up to four digits."""
    unit = 10.0 ** (math.floor(math.log10(scale)) - 3) if scale > 0.0 else 1.0
    return float(f"{math.ceil(scale / unit - 1e-9) * unit:.6g}")
