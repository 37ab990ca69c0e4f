"""Which quantization points cost most: the outputs with one of them, or a few, in float, and everything else as it is.

Measured in form qcdq, which is made fastest: cells first where there are many, then groups of points of like kind (the
gates of a cell), then single points of the groups that matter. The order, and so what a bound leaves out, depends on
the measurements alone.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from rnnqc.diagnostics import CompileError
from rnnqc.pipeline import Lowered
from rnnqc.reporting.evidence import Sensitivity
from rnnqc.reporting.quality import Quality, mean_sqnr
from rnnqc.reporting.recurrences import ACCUMULATOR, Recurrence, quantized_points, recurrences_of
from rnnqc.reporting.remaking import QCDQ, Remaker, exactly, no_quantizer

CELL, GROUP, POINT = "cell", "group", "point"
BIAS = "bias"
"""Its format may be that of the products, which have none without those of their operands."""
MANY_CELLS = 3
LEVELS = (POINT, GROUP, CELL)
MOST_OF_IT = 0.8
MATTERS_DB = 0.05
"""Groups that gain less are not taken apart."""

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Bounds:
    """How much to measure.

    Attributes:
        models: How many models at most.
        seconds: For how long; what is measured depends on the speed of the machine then.
    """

    models: int = 150
    seconds: float = math.inf


@dataclass
class Found:
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
    """Points that are float together."""

    glob: str
    members: tuple[str, ...]
    level: str
    recurrence: str


def units_of(recurrence: Recurrence) -> list[Unit]:
    """The quantized points of a recurrence, of like points one unit; form qcdq has no tables."""
    whole = recurrence.points.get(ACCUMULATOR, {"bits": None})["bits"] is not None
    names = [p for p in recurrence.points if p in recurrence.quantized or (p == ACCUMULATOR and whole)]
    kinds: dict[str, list[str]] = {}
    for name in names:
        kinds.setdefault(recurrence.kind(name), []).append(name)
    units = []
    for kind, like in kinds.items():
        alone, members = len(like) == 1, tuple(f"{recurrence.name}.{n}" for n in like)
        glob = exactly(members[0]) if alone else f"{exactly(recurrence.name)}.*.{kind}"
        units.append(Unit(glob, members, POINT if alone else GROUP, recurrence.name))
    return units


class _Search:
    def __init__(
        self, remaker: Remaker, base: Lowered, quality: Quality, bounds: Bounds, progress: Progress | None
    ) -> None:
        self.remaker, self.quality, self.bounds, self.progress = remaker, quality, bounds, progress
        self.start = time.monotonic()
        self.count = 0
        self.expected = 0
        self.groups: Sequence[Unit] = ()
        self.recurrences = recurrences_of(base.model)
        self.found = Found(mean_sqnr(quality.ratios(quality.run_qcdq(base.proto))))

    @property
    def exhausted(self) -> bool:
        return self.count >= self.bounds.models or time.monotonic() - self.start > self.bounds.seconds

    def measure(self, unit: Unit) -> Sensitivity | None:
        """None where that cannot be lowered."""
        self.count += 1
        if self.progress is not None:
            self.progress(self.count, max(self.count, min(self.expected, self.bounds.models)))
        try:
            level, also = self._level([unit.glob], unit)
        except CompileError as error:
            try:
                level, also = self._level([unit.glob, exactly(f"{unit.recurrence}.{BIAS}")], unit)
            except CompileError:
                self.found.refused[unit.glob] = error.message
                return None
        gain = level - self.found.base_db if level != self.found.base_db else 0.0
        share = 1.0 - 10.0 ** (-gain / 10.0) if gain > -math.inf else -math.inf
        result = Sensitivity(unit.glob, len(unit.members), unit.level, level, gain, share, also)
        self.found.measured.append(result)
        return result

    def _level(self, globs: Sequence[str], unit: Unit) -> tuple[float, list[str]]:
        """SQNR with these points in float, and others that are float then."""
        lowered = self.remaker.lower([no_quantizer(g) for g in globs], QCDQ)
        level = mean_sqnr(self.quality.ratios(self.quality.run_qcdq(lowered.proto)))
        kept = quantized_points(recurrences_of(lowered.model))
        return level, [p for p in quantized_points(self.recurrences) if p not in kept and p not in unit.members]

    def run(self) -> Found:
        units = {name: units_of(r) for name, r in self.recurrences.items()}
        units = {name: found for name, found in units.items() if found}
        self.expected = sum(map(len, units.values())) + (len(units) if len(units) > MANY_CELLS else 0)
        if len(units) > MANY_CELLS:
            whole = [
                Unit(f"{exactly(name)}.*", tuple(m for u in found for m in u.members), CELL, name)
                for name, found in units.items()
            ]
            gains = dict(self._ranked(whole))
            units = dict(sorted(units.items(), key=lambda u: -gains.get(f"{exactly(u[0])}.*", 0.0)))
        groups = [u for found in units.values() for u in found]
        self.groups = groups
        ranked = self._ranked(groups)
        by_glob = {u.glob: u for u in groups}
        for glob, gain in ranked:
            unit = by_glob[glob]
            if unit.level == GROUP and gain > MATTERS_DB:
                singles = [Unit(exactly(m), (m,), POINT, unit.recurrence) for m in unit.members]
                self.expected += len(singles)
                self._ranked(singles)
        self.found.measured = sorted(self.found.measured, key=self._rank)
        return self.found

    def _rank(self, measured: Sensitivity) -> tuple[float, int, str]:
        """Worst first; a group right behind the one of its points that accounts for it."""
        gain = measured.gain_db
        if measured.level == GROUP:
            members = {exactly(m) for u in self.groups if u.glob == measured.points for m in u.members}
            best = max((s for s in self.found.measured if s.points in members), key=lambda s: s.gain_db, default=None)
            if best is not None and best.noise_share >= MOST_OF_IT * measured.noise_share:
                gain = min(gain, best.gain_db)
        return -gain, LEVELS.index(measured.level), measured.points

    def _ranked(self, units: Sequence[Unit]) -> list[tuple[str, float]]:
        """Measures units as far as the bounds allow; their globs and gains, the largest first."""
        gains: list[tuple[str, float]] = []
        for unit in units:
            if self.exhausted:
                self.found.left.append(unit.glob)
                continue
            result = self.measure(unit)
            if result is not None:
                gains.append((unit.glob, result.gain_db))
        return sorted(gains, key=lambda g: (-g[1], g[0]))


def find_sensitivities(
    remaker: Remaker, base: Lowered, quality: Quality, bounds: Bounds | None = None, progress: Progress | None = None
) -> Found:
    """Measures what each quantization point costs.

    Args:
        remaker: The model.
        base: It, in form qcdq.
        quality: The data.
        bounds: How much to measure.
        progress: Called with the number of models measured so far and how many there will be at least.
    """
    return _Search(remaker, base, quality, bounds or Bounds(), progress).run()


def members(sensitivity: Sensitivity, recurrences: Mapping[str, Recurrence]) -> Iterator[str]:
    """Names of the points of a measurement."""
    for recurrence in recurrences.values():
        for unit in units_of(recurrence):
            if sensitivity.points == unit.glob or sensitivity.points in {exactly(m) for m in unit.members}:
                yield from (m for m in unit.members if sensitivity.points in (unit.glob, exactly(m)))
