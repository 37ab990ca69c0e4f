"""Which quantization points cost most: the outputs with one of them, or a few, in float, and everything else as it is.

Measured in form qcdq, which is made fastest: all points of a kind first, then cells where there are many, then groups
of points of like kind (the gates of a cell), those of costly kinds and cells first, then single points of the groups
that matter. The order, and so what a bound leaves out, depends on the measurements alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from rnnqc.errors import CompileError
from rnnqc.formats.point_format import FLOAT
from rnnqc.search.findings import Sensitivity
from rnnqc.search.overrides import exactly, in_float
from rnnqc.search.recurrences import ACCUMULATOR, Recurrence
from rnnqc.search.trials import Budget, Trial, Trials

CELL, KIND, GROUP, POINT = "cell", "kind", "group", "point"
BIAS = "bias"
"""Its format may be that of the matmuls, which have none without those of their operands."""
MANY_CELLS = 3
LEVELS = (POINT, GROUP, KIND, CELL)
MOST_OF_IT = 0.8
FOR_OVERRIDES = 0.4
"""The share of a bound of time that is kept for the overrides which follow from the measurements."""
ENOUGH_FOR_CELLS = 3
"""For how many models a cell there must be room that cells as a whole are measured: no override follows from these."""
MATTERS_DB = 0.05
"""Groups that gain less are not divided."""

Progress = Callable[[int, int], None]


@dataclass
class Sensitivities:
    """The outcome.

    Attributes:
        base_db: SQNR of the outputs with everything quantized.
        measured: Worst first.
        left: Globs that the bounds left out.
        refused: Globs without which the model cannot be lowered, and why.
    """

    base_db: float
    measured: list[Sensitivity] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Unit:
    """Points that are float together; `biases` is the glob of the biases of their cells."""

    glob: str
    members: tuple[str, ...]
    level: str
    biases: str


def units_of(recurrence: Recurrence) -> list[Unit]:
    """The quantized points of a recurrence, of like points one unit; form qcdq has no tables."""
    whole = not recurrence.points.get(ACCUMULATOR, FLOAT).is_float
    names = [p for p in recurrence.points if p in recurrence.quantized or (p == ACCUMULATOR and whole)]
    kinds: dict[str, list[str]] = {}
    for name in names:
        kinds.setdefault(recurrence.kind(name), []).append(name)
    units = []
    for kind, like in kinds.items():
        alone, members = len(like) == 1, tuple(f"{recurrence.name}.{n}" for n in like)
        glob = exactly(members[0]) if alone else f"{exactly(recurrence.name)}.*.{kind}"
        units.append(Unit(glob, members, POINT if alone else GROUP, _biases(recurrence.name)))
    return units


def kinds_of(recurrences: Mapping[str, Recurrence]) -> list[Unit]:
    """All points whose names end alike, of all cells; but those that are the units of one cell already."""
    units = [u for r in recurrences.values() for u in units_of(r)]
    known = {frozenset(u.members) for u in units}
    kinds: dict[str, list[str]] = {}
    for member in (m for u in units for m in u.members):
        kinds.setdefault(kind_of(member), []).append(member)
    made = [Unit(f"*.{kind}", tuple(members), KIND, f"*.{BIAS}") for kind, members in kinds.items()]
    return [u for u in made if len(u.members) > 1 and frozenset(u.members) not in known]


def kind_of(point: str) -> str:
    """The last part of the name: points of all cells that have it in common are tried together."""
    return point.rpartition(".")[2]


def members(sensitivity: Sensitivity, recurrences: Mapping[str, Recurrence]) -> Iterator[str]:
    """Names of the points of a measurement."""
    units = (
        kinds_of(recurrences) if sensitivity.level == KIND else [u for r in recurrences.values() for u in units_of(r)]
    )
    for unit in units:
        if sensitivity.points == unit.glob or sensitivity.points in {exactly(m) for m in unit.members}:
            yield from (m for m in unit.members if sensitivity.points in (unit.glob, exactly(m)))


def find_sensitivities(
    trials: Trials,
    base: Trial,
    recurrences: Mapping[str, Recurrence],
    budget: Budget,
    kept: int = 0,
    progress: Progress | None = None,
) -> Sensitivities:
    """Measures what each quantization point costs.

    Args:
        trials: Of the model in form qcdq.
        base: The model in that form as it is.
        recurrences: Its recurrences.
        budget: How much to measure.
        kept: How many models to leave for something else.
        progress: Called with the number of models measured so far and how many there will be at least.
    """
    return _Search(trials, base, recurrences, budget, kept, progress).run()


def _biases(recurrence: str) -> str:
    return exactly(f"{recurrence}.{BIAS}")


class _Search:
    def __init__(
        self,
        trials: Trials,
        base: Trial,
        recurrences: Mapping[str, Recurrence],
        budget: Budget,
        kept: int,
        progress: Progress | None,
    ) -> None:
        self.trials, self.base, self.recurrences = trials, base, recurrences
        self.budget, self.kept, self.progress = budget, kept, progress
        self.expected = 0
        self.groups: Sequence[Unit] = ()
        self.found = Sensitivities(base.score.mean_db)

    def run(self) -> Sensitivities:
        units = {name: units_of(r) for name, r in self.recurrences.items()}
        units = {name: found for name, found in units.items() if found}
        kinds = kinds_of(self.recurrences)
        self.expected = len(kinds) + sum(map(len, units.values())) + (len(units) if len(units) > MANY_CELLS else 0)
        self._ranked(kinds)
        if len(units) > MANY_CELLS:
            whole = [
                Unit(f"{exactly(name)}.*", tuple(m for u in found for m in u.members), CELL, _biases(name))
                for name, found in units.items()
            ]
            if self.budget.left(self.kept, FOR_OVERRIDES) >= ENOUGH_FOR_CELLS * len(whole):
                self._ranked(whole)
            else:
                self.found.left += [u.glob for u in whole]
        groups = self._costliest_first(units)
        self.groups = [*groups, *kinds]
        by_glob = {u.glob: u for u in groups}
        for glob, gain in self._ranked(groups):
            unit = by_glob[glob]
            if unit.level == GROUP and gain > MATTERS_DB:
                singles = [Unit(exactly(m), (m,), POINT, unit.biases) for m in unit.members]
                self.expected += len(singles)
                self._ranked(singles)
        self.found.measured = sorted(self.found.measured, key=self._rank)
        return self.found

    def _costliest_first(self, units: Mapping[str, Sequence[Unit]]) -> list[Unit]:
        """The units of all cells, those first that seem to cost most, so that no bound leaves out a cell that matters.

        The guess is the share of the noise that its kind of point has in all cells, times that of its cell; what was
        not measured may have all of it. Between equals cells take turns.
        """
        shares = {s.points: max(0.0, s.noise_share) for s in self.found.measured}
        guesses: list[tuple[float, int, int]] = []
        for k, (name, found) in enumerate(units.items()):
            of_cell = shares.get(f"{exactly(name)}.*", 1.0)
            guesses += [(-of_cell * shares.get(f"*.{kind_of(u.members[0])}", 1.0), j, k) for j, u in enumerate(found)]
        cells = list(units.values())
        return [cells[k][j] for _, j, k in sorted(guesses)]

    def _ranked(self, units: Sequence[Unit]) -> list[tuple[str, float]]:
        """Measures units as far as the bounds allow; their globs and gains, the largest first."""
        gains: list[tuple[str, float]] = []
        for unit in units:
            if not self.budget.spend(self.kept, FOR_OVERRIDES):
                self.found.left.append(unit.glob)
                continue
            result = self._measure(unit)
            if result is not None:
                gains.append((unit.glob, result.gain_db))
        return sorted(gains, key=lambda g: (-g[1], g[0]))

    def _measure(self, unit: Unit) -> Sensitivity | None:
        """None where that cannot be lowered."""
        if self.progress is not None:
            count, most = self.budget.count, self.budget.bounds.models
            self.progress(count, max(count, min(self.expected, most)))
        try:
            trial = self._in_float(unit)
        except CompileError as error:
            self.found.refused[unit.glob] = error.message
            return None
        level, base = trial.score.mean_db, self.found.base_db
        gain = level - base if level != base else 0.0
        share = 1.0 - 10.0 ** (-gain / 10.0) if gain > -math.inf else -math.inf
        also = [p for p in self.base.points if p not in trial.points and p not in unit.members]
        result = Sensitivity(unit.glob, len(unit.members), unit.level, level, gain, share, also)
        self.found.measured.append(result)
        return result

    def _in_float(self, unit: Unit) -> Trial:
        """The model with the points of a unit in float, or these and the biases whose formats follow from them."""
        try:
            return self.trials.of([in_float(unit.glob)])
        except CompileError:
            more = self.trials.tried([in_float(unit.glob), in_float(unit.biases)])
            if more is None:
                raise
            return more

    def _rank(self, measured: Sensitivity) -> tuple[float, int, str]:
        """Worst first; a group right behind the one of its points that accounts for it."""
        gain = measured.gain_db
        if measured.level in (GROUP, KIND):
            members = {exactly(m) for u in self.groups if u.glob == measured.points for m in u.members}
            best = max((s for s in self.found.measured if s.points in members), key=lambda s: s.gain_db, default=None)
            if best is not None and best.noise_share >= MOST_OF_IT * measured.noise_share:
                gain = min(gain, best.gain_db)
        return -gain, LEVELS.index(measured.level), measured.points
