"""Overrides that reduce the largest errors, each measured on the model in its own form before it is proposed.

First overrides for the points that cost most, then overrides for many points that gain more than any for fewer, then
the combination of those that can be combined.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from rnnqc.recipes.rules import Rule, parse_override
from rnnqc.search.candidates import Candidates
from rnnqc.search.findings import WORTH_DB, Repair, Sensitivity
from rnnqc.search.overrides import Override
from rnnqc.search.recurrences import Recurrence
from rnnqc.search.sensitivity import CELL, KIND, members
from rnnqc.search.trials import Budget, Trial, Trials

MOST = 5
"""The number of repairs of few points that are looked for."""
MOST_KINDS = 3
"""Wider values are tried for this many kinds of points."""
WORTH_A_FORM_DB = 3.0
"""An override that makes a cell lose the integer form has to gain this much."""
ENOUGH = 0.8
"""A cheaper override is good enough with this share of the gain of float."""
FLOAT = "float"
SUITABLE = ("fused", "integer", "products", "qonnx")
"""Forms without a loss."""


class Repairs:
    """Tries overrides and chooses among them.

    Args:
        trials: Trials of the model in its own form.
        before: The model as it is.
        candidates: The overrides to try.
        budget: How many overrides of many points may be tried, and how long overrides of any kind are tried.
        progress: Called with the number of overrides measured so far.

    Attributes:
        untried: Overrides that the budget left out.
    """

    def __init__(
        self,
        trials: Trials,
        before: Trial,
        candidates: Candidates,
        budget: Budget,
        progress: Callable[[int], None] | None = None,
    ) -> None:
        self.untried: list[str] = []
        self._progress, self._count = progress, 0
        self._trials, self._before, self._budget = trials, before, budget
        self._candidates = candidates
        self._recurrences: Mapping[str, Recurrence] = candidates.recurrences
        self._without_use: list[Override] = []

    @property
    def most_of_many(self) -> int:
        """The largest number of overrides of many points; for widths an estimate."""
        made = self._candidates
        return len(made.roundings()) + len(made.for_many()) + (MOST_KINDS if made.has_several_widths else 0)

    def of_few(self, sensitivities: Sequence[Sensitivity]) -> list[Repair]:
        """Returns repairs of the points, and groups of similar points of a cell, that cost most."""
        found: list[Repair] = []
        mended: set[str] = set()
        for sensitivity in sensitivities:
            if len(found) == MOST or sensitivity.gain_db < WORTH_DB:
                break
            points = list(members(sensitivity, self._recurrences))
            if sensitivity.level in (CELL, KIND) or not points or mended & set(points):
                continue
            repair = self._first_good(sensitivity, points)
            if repair is not None:
                found.append(repair)
                mended |= {*points, *(sensitivity.also if repair.forms else ())}
        return found

    def of_many(self, sensitivities: Sequence[Sensitivity], few: Sequence[Repair]) -> list[Repair]:
        """Returns repairs of many points that gain more than any override of a part of these points.

        Args:
            sensitivities: Sensitivities of kinds of points.
            few: Overrides of few points.
        """
        found = self._rounded()
        for override in (*self._candidates.for_many(), *self._candidates.tables()):
            found += self._worth(override)
        found += self._widened(sensitivities)
        kept: list[Repair] = []
        for repair in sorted(found, key=lambda r: (r.members, len(r.overrides), -r.gain_db, r.points)):
            inside, about = set(self._candidates.matching(repair.points)), _about(repair)
            rivals = [k for k in (*few, *kept) if not k.forms and _about(k) & about]
            fewer = [k.gain_db for k in rivals if set(self._candidates.matching(k.points)) <= inside]
            if repair.gain_db >= max(fewer, default=0.0) + WORTH_DB:
                kept.append(repair)
        return kept

    def apart(self, repairs: Sequence[Repair]) -> list[Repair]:
        """Sorts repairs, best value first, and sets `inside` of those that another one makes needless.

        The other one changes the same thing at some of the same points, gains about as much, and costs no more bytes. A
        repair that makes a cell lose the integer form is `inside` of any that changes the same thing.
        """
        made: list[Repair] = []
        kept: list[tuple[Repair, set[tuple[str, str]]]] = []
        for repair in sorted(repairs, key=lambda r: (bool(r.forms), -r.gain_per_byte, -r.gain_db, r.members, r.points)):
            changed = self._changed([parse_override(o) for o in repair.overrides])
            rivals = (k for k, subjects in kept if subjects & changed and (repair.forms or _makes_needless(k, repair)))
            inside = next((k.points for k in rivals), "")
            made.append(replace(repair, inside=inside))
            if not inside:
                kept.append((repair, changed))
        return made

    def together(self, repairs: Sequence[Repair]) -> Repair | None:
        """Combines the repairs that keep the form of cells; None if that is no better than the best of them.

        Of two repairs of one thing the first is used. Overrides that gain nothing alone, as roundings may, are added if
        they help now: other errors may have hidden their effect.

        Args:
            repairs: In any order; those that gain most are combined first.
        """
        keeping = sorted((r for r in repairs if not r.forms), key=lambda r: (-r.gain_db, r.members, r.points))
        taken: set[tuple[str, str]] = set()
        chosen: list[Sequence[Rule]] = []
        for rules in ([parse_override(o) for o in r.overrides] for r in keeping):
            if not self._changed(rules) & taken:
                taken |= self._changed(rules)
                chosen.append(rules)
        if not chosen or self._budget.is_late:
            return None
        best = keeping[0]
        made = self._all_of(chosen) if len(chosen) > 1 else best
        for override in self._without_use:
            if made is None or self._changed(override.rules) & taken or not self._budget.spend():
                continue
            more = self._all_of([*chosen, override.rules])
            if more is not None and not more.forms and more.gain_db >= made.gain_db + WORTH_DB:
                made = more
                chosen.append(override.rules)
                taken |= self._changed(override.rules)
        return made if made is not None and made.gain_db >= best.gain_db + WORTH_DB else None

    def _measured(self, override: Override) -> Repair | None:
        """Measures an override; None if the model cannot be lowered with it, or loses formats."""
        trial, before = self._trials.tried(override.rules), self._before
        self._count += 1
        if self._progress is not None:
            self._progress(self._count)
        if trial is None:
            return None
        lost = before.points.keys() - trial.points.keys()
        if any(r.matches(p) for r in override.rules if r.settings.get("bits") for p in lost):
            return None
        return Repair(
            override.points,
            override.texts,
            override.reason,
            before.score.mean_db,
            trial.score.mean_db,
            before.score.worst_db,
            trial.score.worst_db,
            before.weight_bytes,
            trial.weight_bytes,
            sorted({trial.forms.get(n, FLOAT) for n, form in before.forms.items()
                    if trial.forms.get(n) not in (form, *SUITABLE)}),
            override.members,
            (before.cost, trial.cost),
        )  # fmt: skip

    def _first_good(self, sensitivity: Sensitivity, points: Sequence[str]) -> Repair | None:
        """Returns the first candidate that is good enough, else the best; None if none is worth it."""
        tried: list[Repair] = []
        for override in self._candidates.for_points(sensitivity.points, points):
            if self._budget.is_late:
                self.untried += override.texts
                break
            result = self._measured(override)
            if result is None or result.gain_db < (WORTH_A_FORM_DB if result.forms else WORTH_DB):
                continue
            if result.gain_db >= ENOUGH * sensitivity.gain_db and not result.forms:
                return result
            tried.append(result)
        return max(tried, key=lambda r: (not r.forms, r.gain_db), default=None)

    def _worth(self, override: Override) -> list[Repair]:
        """Returns an override of many points as a repair if it gains enough."""
        if not self._budget.spend():
            self.untried += override.texts
            return []
        result = self._measured(override)
        if result is None or result.forms:
            return []
        if result.gain_db < WORTH_DB:
            self._without_use.append(override)
            return []
        return [result]

    def _rounded(self) -> list[Repair]:
        """Tries rounding to nearest: for all points, and for the best part of them if it gives half of that gain."""
        roundings = self._candidates.roundings()
        whole = self._worth(roundings[0]) if roundings else []
        if not whole:
            return []
        found = [r for part in roundings[1:] for r in self._worth(part)]
        best = max(found, key=lambda r: r.gain_db, default=None)
        return whole + ([best] if best is not None and 2.0 * best.gain_db >= whole[0].gain_db else [])

    def _widened(self, sensitivities: Sequence[Sensitivity]) -> list[Repair]:
        """Tries more bits for the kinds of points that cost most."""
        costly = [s for s in sensitivities if s.level == KIND and s.gain_db >= WORTH_DB]
        found: list[Repair] = []
        for kind in sorted(costly, key=lambda s: (-s.gain_db, s.points))[:MOST_KINDS]:
            count = len(self._candidates.matching(kind.points))
            tried: list[Repair] = []
            for override in self._candidates.wider(kind.points, list(members(kind, self._recurrences))):
                tried += self._worth(replace(override, members=count))
                if tried and tried[-1].gain_db >= ENOUGH * kind.gain_db:
                    break
            found += [max(tried, key=lambda r: r.gain_db)] if tried else []
        return found

    def _all_of(self, chosen: Iterable[Sequence[Rule]]) -> Repair | None:
        """Measures several overrides as one."""
        rules = tuple(itertools.chain(*chosen))
        return self._measured(Override("", rules, "all of these", len({p for p, _ in self._changed(rules)})))

    def _changed(self, rules: Iterable[Rule]) -> set[tuple[str, str]]:
        """Returns pairs of a point and the aspect that rules change about it."""
        return {(p, what) for r in rules for p in self._before.points if r.matches(p) for what in _subjects(r)}


def _makes_needless(one: Repair, other: Repair) -> bool:
    """Whether `one` makes `other` needless: it costs no more bytes and gains about as much."""
    return one.extra_bytes <= other.extra_bytes and other.gain_db < one.gain_db + WORTH_DB


def _about(repair: Repair) -> set[str]:
    """Returns the aspects that a repair changes."""
    return {what for o in repair.overrides for what in _subjects(parse_override(o))}


def _subjects(rule: Rule) -> set[str]:
    """Returns the aspects that a rule changes, such as rounding or range; a float point has all of them."""
    if rule.settings.get("bits", 0) is None:
        return {"rounding", "bits", "range", "table"}
    return {k if k in ("rounding", "bits", "table") else "range" for k in rule.settings}
