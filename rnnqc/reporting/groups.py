"""Overrides of many points at once. What sits in all of them, such as the bias of a rounding, shows at none alone.

Each is measured on the model in its own form, as overrides of single points are, within the same bounds. Tried are
roundings to nearest (of all points, of a kind, of a cell), what the user's own overrides set as the recipe has it,
ranges that cover the values, and the width of a kind of point.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

from rnnqc.formats.grids import is_power_of_two
from rnnqc.recipes.clipping import CLIPS, RANGE_KEYS
from rnnqc.recipes.recipe import KEYS, Rule, Settings, parse_override
from rnnqc.reporting.budget import Budget
from rnnqc.reporting.evidence import Repair, Sensitivity
from rnnqc.reporting.recurrences import point_of, quantized_points
from rnnqc.reporting.remaking import PARAMETERS, exactly, settings_text
from rnnqc.reporting.repairs import ENOUGH, WORTH_DB, Candidate, Repairer, is_biased
from rnnqc.reporting.sensitivity import KIND, kind_of, members

ALL = "*"
MOST_KINDS = 3
"""Of how many kinds wider codes are tried."""
UNDONE = frozenset((*RANGE_KEYS, "rounding")) - {"scale", "zero_point", "bits", "mode"}
"""Keys of the user's overrides that are tried as the recipe has them."""


class Groups:
    """The overrides that can be tried on a model.

    Args:
        repairer: The model.

    Attributes:
        untried: Overrides that the bounds left out.
        without_use: Candidates that gain nothing alone.
    """

    def __init__(self, repairer: Repairer) -> None:
        self.repairer = repairer
        self.points = list(quantized_points(repairer.recurrences))
        self.untried: list[str] = []
        self.without_use: list[Candidate] = []

    @property
    def count(self) -> int:
        """How many there are at most, those of widths by a guess."""
        widths = len({p["bits"] for r in self.repairer.recurrences.values() for p in r.points.values()}) > 1
        return (
            len(self._roundings())
            + len(self._own())
            + len(self._covering())
            + len(self._apart())
            + (MOST_KINDS if widths else 0)
        )

    def find(self, sensitivities: Sequence[Sensitivity], single: Sequence[Repair], budget: Budget) -> list[Repair]:
        """Those that gain more than any override of fewer points.

        Args:
            sensitivities: Of kinds of points.
            single: Overrides of single points.
            budget: How much may be measured.
        """
        found = self._rounded(budget)
        for candidate, glob in self._others():
            found += self._tried(glob, candidate, budget)
        found += self._widened(sensitivities, budget)
        kept: list[Repair] = []
        for repair in sorted(found, key=lambda r: (r.members, len(r.overrides), -r.gain_db, r.points)):
            inside, about = set(self._matching(repair.points)), _about(repair)
            rivals = [k for k in (*single, *kept) if not k.forms and _about(k) & about]
            fewer = [k.gain_db for k in rivals if set(self._matching(k.points)) <= inside]
            if repair.gain_db >= max(fewer, default=0.0) + WORTH_DB:
                kept.append(repair)
        return kept

    def _matching(self, glob: str, points: Iterable[str] | None = None) -> list[str]:
        rule = Rule(glob, {})
        return [p for p in (self.points if points is None else points) if rule.matches(p)]

    def _tried(self, glob: str, candidate: Candidate, budget: Budget) -> list[Repair]:
        """What a candidate gains, if that is worth anything."""
        if not budget.spend():
            self.untried += settings_text(candidate.rules)
            return []
        result = self.repairer.measured(glob, candidate, len(self._matching(glob)))
        if result is None or result.forms:
            return []
        if result.gain_db < WORTH_DB:
            self.without_use.append(candidate)
            return []
        return [result]

    def _roundings(self) -> list[str]:
        """Globs of points among which several are rounded to one side; all of them first."""
        recurrences = self.repairer.recurrences
        biased = [p for p in self.points if is_biased(point_of(recurrences, p))]
        if len(biased) < 2:
            return []
        kinds = [f"*.{kind}" for kind in dict.fromkeys(map(kind_of, biased))]
        cells = [f"{exactly(name)}.*" for name in recurrences]
        parts = [*(kinds if len(kinds) > 1 else ()), *(cells if len(cells) > 1 else ())]
        return [ALL, *(g for g in parts if len(self._matching(g, biased)) > 1)]

    def _rounded(self, budget: Budget) -> list[Repair]:
        """Of all points, and of the part of them that gains most if that is much of it."""
        every, *parts = self._roundings() or [""]
        whole = self._tried(every, self._rounding(every), budget) if every else []
        if not whole:
            return []
        found = [r for glob in parts for r in self._tried(glob, self._rounding(glob), budget)]
        best = max(found, key=lambda r: r.gain_db, default=None)
        return whole + ([best] if best is not None and 2.0 * best.gain_db >= whole[0].gain_db else [])

    def _rounding(self, glob: str) -> Candidate:
        return self.repairer.rounding(glob, self._matching(glob))

    def _others(self) -> list[tuple[Candidate, str]]:
        """Candidates that are neither roundings nor widths, and their globs."""
        tables = self.repairer.exact_tables("*.activation", self._tabulated())
        return [*self._own(), *self._covering(), *self._apart(), *((t, "*.activation") for t in tables)]

    def _tabulated(self) -> list[str]:
        found = [f"{r.name}.{p}" for r in self.repairer.recurrences.values() for p in r.points]
        return [p for p in found if p.endswith(".activation")]

    def _own(self) -> list[tuple[Candidate, str]]:
        """The user's overrides as the recipe has them, where it has one value for all of their points."""
        recipe = self.repairer.remaker.record.recipe
        rules, others = recipe.rules[: recipe.overrides], recipe.rules[recipe.overrides :]
        found = []
        for rule in rules:
            for key in (k for k in rule.settings if k in UNDONE):
                values = {next((r.settings[key] for r in others if key in r.settings and r.matches(p)), None)
                          for p in self._matching(rule.points)}  # fmt: skip
                if len(values) == 1 and values != {rule.settings[key]} and _accepted(key, *values):
                    reason = f"as the recipe has it, instead of {key} = {rule.settings[key]}"
                    found.append((Candidate((Rule(rule.points, {key: values.pop()}),), reason), rule.points))
        return found

    def _covering(self) -> list[tuple[Candidate, str]]:
        """Ranges that hold all values, where several points clip."""
        seen = [p for p in self.repairer.seen.values() if p.clipped > CLIPS and p.scale is not None]
        clipped = [p for p in seen if not p.point.endswith(PARAMETERS)]
        if len(clipped) < 2 or self.repairer.remaker.statistics is None:
            return []
        settings: Settings = {"range": "min-max"}
        settings |= {"pow2": True} if any(is_power_of_two(p.scale or 1.0) for p in clipped) else {}
        return [(Candidate((Rule(ALL, settings),), f"{len(clipped)} points clip; these ranges hold all values"), ALL)]

    def _apart(self) -> list[tuple[Candidate, str]]:
        """A scale of its own for every point that has the one of another."""
        settings = self.repairer.remaker.record.recipe.settings
        following = [p for p in self.points if not p.endswith(PARAMETERS) and settings(p).get("same_as")]
        biases = {settings(p).get("same_as") for p in self.points if p.endswith(".bias")}
        if len(following) < 2 or self.repairer.remaker.statistics is None:
            return []
        kept = [Rule("*.bias", {"same_as": target}) for target in biases if target and len(biases) == 1]
        reason = f"a scale of its own for each of the {len(following)} points that have the one of another"
        return [(Candidate((*kept, Rule(ALL, {"same_as": None})), reason), ALL)]

    def _widened(self, sensitivities: Sequence[Sensitivity], budget: Budget) -> list[Repair]:
        """More bits for the kinds of points that cost most."""
        costly = [s for s in sensitivities if s.level == KIND and s.gain_db >= WORTH_DB]
        found: list[Repair] = []
        for kind in sorted(costly, key=lambda s: (-s.gain_db, s.points))[:MOST_KINDS]:
            points = list(members(kind, self.repairer.recurrences))
            tried: list[Repair] = []
            for candidate in self.repairer.wider(kind.points, points):
                tried += self._tried(kind.points, candidate, budget)
                if tried and tried[-1].gain_db >= ENOUGH * kind.gain_db:
                    break
            found += [max(tried, key=lambda r: r.gain_db)] if tried else []
        return found


def _about(repair: Repair) -> set[str]:
    """What its rules are about."""
    return {what for o in repair.overrides for what in _subjects(parse_override(o))}


def _accepted(key: str, value: object) -> bool:
    try:
        KEYS[key].parse(value)
    except (ValueError, TypeError):
        return False
    return True


def combined(repairer: Repairer, repairs: Sequence[Repair], groups: Groups, budget: Budget) -> Repair | None:
    """What keeps the form of cells, all in one, if that is better than each; of two for one thing the first.

    Roundings and the like that gain nothing alone may do so behind others, whose errors hide theirs.

    Args:
        repairer: The model.
        repairs: Best first.
        groups: With what gains nothing alone.
        budget: How much may be measured.
    """
    taken: set[tuple[str, str]] = set()
    paths = list(quantized_points(repairer.recurrences))

    def about(rules: Iterable[Rule]) -> set[tuple[str, str]]:
        return {(p, what) for r in rules for p in paths if r.matches(p) for what in _subjects(r)}

    chosen: list[Sequence[Rule]] = []
    for rules in ([parse_override(o) for o in r.overrides] for r in repairs if not r.forms):
        if not about(rules) & taken:
            taken |= about(rules)
            chosen.append(rules)
    if not chosen:
        return None

    def measured() -> Repair | None:
        every = Candidate(tuple(itertools.chain(*chosen)), "all of these")
        return repairer.measured("", every, len({p for p, _ in about(every.rules)}))

    best = next(r for r in repairs if not r.forms)
    made = measured() if len(chosen) > 1 else best
    for candidate in groups.without_use:
        if made is None or about(candidate.rules) & taken or not budget.spend():
            continue
        chosen.append(candidate.rules)
        more = measured()
        if more is not None and not more.forms and more.gain_db >= made.gain_db + WORTH_DB:
            made = more
            taken |= about(candidate.rules)
        else:
            chosen.pop()
    return made if made is not None and made.gain_db >= best.gain_db + WORTH_DB else None


def _subjects(rule: Rule) -> set[str]:
    """What a rule is about, where another rule may not be about it, too; a point in float has nothing else."""
    if rule.settings.get("bits", 0) is None:
        return {"rounding", "bits", "range", "table"}
    return {k if k in ("rounding", "bits", "table") else "range" for k in rule.settings}
