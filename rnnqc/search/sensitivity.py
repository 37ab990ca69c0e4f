"""Finds the quantization points that cost most: measures the outputs with one or a few of them in float.

Measured in form qcdq, which lowers fastest: all points of a kind first, then cells if there are many, then groups of
similar points (the gates of a cell), costly kinds and cells first, then single points of the groups that matter. Only
measurements decide the order, and so what a bound leaves out.
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
"""A bias may take its format from the matmuls, which have none without the formats of their operands."""
MANY_CELLS = 3
LEVELS = (POINT, GROUP, KIND, CELL)
MOST_OF_IT = 0.8
FOR_OVERRIDES = 0.4
"""The share of the time bound that is kept for overrides, which follow from the measurements."""
ENOUGH_FOR_CELLS = 3
"""Whole cells are measured only if the budget allows this many models per cell, as no override follows from them."""
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
        refused: Globs of points without which the model cannot be lowered, and why.
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
    """Returns the quantized points of a recurrence, similar points as one unit; form qcdq has no tables."""
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
    """Returns units of all points with the same last part of the name, over all cells, unless one cell has them all."""
    units = [u for r in recurrences.values() for u in units_of(r)]
    known = {frozenset(u.members) for u in units}
    kinds: dict[str, list[str]] = {}
    for member in (m for u in units for m in u.members):
        kinds.setdefault(kind_of(member), []).append(member)
    made = [Unit(f"*.{kind}", tuple(members), KIND, f"*.{BIAS}") for kind, members in kinds.items()]
    return [u for u in made if len(u.members) > 1 and frozenset(u.members) not in known]


def kind_of(point: str) -> str:
    """Returns the last part of the name: points of all cells that share it are tried together."""
    return point.rpartition(".")[2]


def members(sensitivity: Sensitivity, recurrences: Mapping[str, Recurrence]) -> Iterator[str]:
    """Yields the names of the points of a measurement."""
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
    """Measures how much each quantization point costs.

    Args:
        trials: Trials of the model in form qcdq.
        base: The unchanged model in that form.
        recurrences: Its recurrences.
        budget: How much to measure.
        kept: The number of models to leave for other purposes.
        progress: Called with the number of models measured so far and the least total number.
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
        """Returns the units of all cells, the seemingly costliest first, so that bounds do not drop important ones.

        The estimate is the noise share of its kind of point in all cells, times that of its cell; a share that was not
        measured counts as 1. Among equals, cells take turns.
        """
        shares = {s.points: max(0.0, s.noise_share) for s in self.found.measured}
        guesses: list[tuple[float, int, int]] = []
        for k, (name, found) in enumerate(units.items()):
            of_cell = shares.get(f"{exactly(name)}.*", 1.0)
            guesses += [(-of_cell * shares.get(f"*.{kind_of(u.members[0])}", 1.0), j, k) for j, u in enumerate(found)]
        cells = list(units.values())
        return [cells[k][j] for _, j, k in sorted(guesses)]

    def _ranked(self, units: Sequence[Unit]) -> list[tuple[str, float]]:
        """Measures units as far as the bounds allow; returns their globs and gains, the largest first."""
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
        """Measures a unit; None if the model cannot be lowered with it in float."""
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
        """Lowers the model with a unit in float; if that fails, with the biases in float, too."""
        try:
            return self.trials.of([in_float(unit.glob)])
        except CompileError:
            more = self.trials.tried([in_float(unit.glob), in_float(unit.biases)])
            if more is None:
                raise
            return more

    def _rank(self, measured: Sensitivity) -> tuple[float, int, str]:
        """Sort key: worst first; a group follows the single point that accounts for it."""
        gain = measured.gain_db
        if measured.level in (GROUP, KIND):
            members = {exactly(m) for u in self.groups if u.glob == measured.points for m in u.members}
            best = max((s for s in self.found.measured if s.points in members), key=lambda s: s.gain_db, default=None)
            if best is not None and best.noise_share >= MOST_OF_IT * measured.noise_share:
                gain = min(gain, best.gain_db)
        return -gain, LEVELS.index(measured.level), measured.points
