"""`rnnqc tune`: the cheapest widths of weights, matrix by matrix, with which a model is still good enough on data.

Units of the search are the matrices W and R of every cell, and the activations that are multiplied with them. Weights
have 8 bits, or 4 bits, in groups of 32, 64 or whole columns; activations what the recipe says, or 16 bits. The cost is
the number of bytes of all recurrent weights, where those that 16-bit activations are multiplied with count twice: a
product for each byte.
"""

from __future__ import annotations

import glob
import json
import math
import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import onnx

from rnnqc.calibration.float_cells import decompose
from rnnqc.data.statistics import Statistics
from rnnqc.errors import CompileError, UsageError, located
from rnnqc.ir import Model
from rnnqc.lowering.lower import lower
from rnnqc.lowering.report import Lowered
from rnnqc.recipes.recipe import KINDS, Recipe, Rule, builtin_recipes, load_recipe
from rnnqc.search.greedy import Assignment, Found, Measured, search
from rnnqc.search.measure import Judge, Metric

Settings = Mapping[str, Any]
AS_THE_RECIPE: Settings = {}
AS_A_WHOLE: Settings = {"group_size": None, "wide_channels": 0.0}
WEIGHT_CHOICES: tuple[Settings, ...] = (
    {"bits": 8, **AS_A_WHOLE},
    {"bits": 4, "group_size": 32, "wide_channels": 0.0},
    {"bits": 4, "group_size": 64, "wide_channels": 0.0},
    {"bits": 4, **AS_A_WHOLE},
)
ACTIVATION_CHOICES: tuple[Settings, ...] = ({"bits": 16},)
COMPENSATION: Settings = {"compensation": True}
WEIGHTS, ACTIVATIONS = ("W.weight", "R.weight"), ("input", "hidden")
WIDE_BITS = 8
"""Activations of more bits take two products."""
UNSUITABLE = Measured(cost=2**63, damage=math.inf, quality=-math.inf)
"""A combination that cannot be lowered, such as groups with a recipe of per-tensor weights."""


@dataclass(frozen=True)
class Unit:
    """Something whose format is chosen: a quantization point.

    Attributes:
        point: Its path.
        choices: What may be set; the first is the recipe's own format.
    """

    point: str
    choices: tuple[Settings, ...]


@dataclass
class Tuned:
    """The outcome of `tune`.

    Attributes:
        recipe: The recipe that was tuned.
        units: What was chosen among.
        found: The search.
        settings: What the best assignment sets, by point; nothing where the recipe's own format is best.
        weight_bytes: Bytes of the recurrent weights, at the start and at the end.
        call_seconds: Time of the first call, at the start and at the end.
        float_quality: Quality of the float model.
        decibels: Whether quality is SQNR in dB.
        silent: Cells that the statistics have not seen run; nothing was chosen for them.
        text: A recipe file that says the same.
    """

    recipe: Recipe
    units: list[Unit]
    found: Found
    settings: dict[str, Settings]
    weight_bytes: tuple[int, int]
    call_seconds: tuple[float, float]
    float_quality: float
    decibels: bool
    silent: Sequence[str] = ()
    text: str = ""

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready values."""
        found = self.found
        return {
            "start": asdict(found.start),
            "result": asdict(found.measured),
            "reached": found.reached,
            "tried": found.tried,
            "weight_bytes": list(self.weight_bytes),
            "call_seconds": list(self.call_seconds),
            "float_quality": self.float_quality,
            "settings": {point: dict(s) for point, s in self.settings.items()},
        }

    def worded(self, quality: float) -> str:
        """A quality for people."""
        return f"{quality:.2f} dB" if self.decibels else f"{quality:.6g}"


def tune(
    model: str | os.PathLike[str] | onnx.ModelProto,
    data: Iterable[Mapping[str, Any]] | str | os.PathLike[str],
    *,
    min_sqnr: float | None = None,
    metric: Metric | None = None,
    min_metric: float | None = None,
    recipe: str = "int8",
    stats: Statistics | str | os.PathLike[str] | None = None,
    state: Mapping[str, str] | Iterable[str] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Tuned:
    """Searches the cheapest widths with which a model is good enough.

    Args:
        model: A float model.
        data: Feeds to measure on: an iterable, or the name of an `.npz`, of a directory of `.npz`, or
            `module:function`. They are kept in memory.
        min_sqnr: The SQNR in dB that every output must have against the float model, over all data.
        metric: Instead: a function of the list of outputs and the list of inputs of all calls, each a dict of arrays by
            name. Higher is better.
        min_metric: The least value of `metric`.
        recipe: The recipe to begin with: its name, or a `.toml` file.
        stats: Statistics of a calibration, or their file. With them weights are error-compensated.
        state: Where the data is the calls of a stream: outputs by the input they become in the next call.
        progress: Called with the number of models measured so far and how many there are at least.

    Raises:
        CompileError: The model or the data cannot be handled.
        UsageError: The options contradict each other.
    """
    target = _target(min_sqnr, metric, min_metric)
    loaded = Model.load(model)
    source, proto = loaded.source, loaded.proto
    statistics = Statistics.load(stats) if isinstance(stats, str | os.PathLike) else stats
    chosen = load_recipe(recipe)
    with located(source):
        silent = frozenset(statistics.silent_cells) if statistics is not None else frozenset()
        units = _units(Model.load(proto), chosen, statistics is not None, silent)
        judge = Judge(proto, data, state, metric)
        sizes: dict[Assignment, int] = {}
        least = 1 + sum(len(u.choices) - 1 for u in units)

        def measure(assignment: Assignment) -> Measured:
            try:
                lowered = lower(proto, _with_rules(chosen, _settings(units, assignment)), stats=statistics)
            except CompileError:
                if not any(assignment):
                    raise
                return UNSUITABLE
            quality, damage = judge.judge(lowered.proto)
            sizes[assignment] = sum(e.bytes for e in lowered.report.entries)
            if progress is not None:
                progress(len(sizes), max(least, len(sizes)))
            return Measured(cost_of(lowered), damage, quality)

        found = search([len(u.choices) for u in units], measure, target)
        best = _settings(units, found.assignment)
        ends = [lower(proto, _with_rules(chosen, s), stats=statistics).proto for s in ({}, best)]
        before, after = judge.call_seconds(ends)
    both = sizes[(0,) * len(units)], sizes[found.assignment]
    tuned = Tuned(
        chosen, units, found, best, both, (before, after), judge.float_quality, metric is None, sorted(silent)
    )
    tuned.text = recipe_text(tuned)
    return tuned


def _target(min_sqnr: float | None, metric: Metric | None, min_metric: float | None) -> float:
    if (min_sqnr is None) == (metric is None) or (metric is None) != (min_metric is None):
        given = [
            n for n, v in (("min_sqnr", min_sqnr), ("metric", metric), ("min_metric", min_metric)) if v is not None
        ]
        raise UsageError(
            f"Goals given: {', '.join(given) or 'none'}.",
            supported="a least SQNR, or a metric and its least value",
            action="give --min-sqnr DB, or --metric MODULE:FUNCTION and --min-metric VALUE",
        )
    target = min_sqnr if min_sqnr is not None else min_metric
    assert target is not None
    if math.isnan(target):
        raise UsageError("The goal is not a number (NaN).", supported="numbers")
    return target


def _units(model: Model, recipe: Recipe, compensated: bool, silent: Collection[str] = ()) -> list[Unit]:
    """The matrices and activations of every cell of a float model that the statistics have seen run, in order."""
    decompose(model, "tune")
    units = []
    for cell in model.cells.values():
        if cell.name in silent:
            continue  # nothing that it does could be measured
        for name in WEIGHTS:
            point = f"{cell.name}.{name}"
            extra = COMPENSATION if compensated else {}
            own = {**AS_A_WHOLE, **recipe.settings(point)}
            choices = ({**choice, **extra} for choice in WEIGHT_CHOICES)
            units.append(Unit(point, (AS_THE_RECIPE, *(c for c in choices if c != {k: own.get(k) for k in c}))))
        if recipe.kind == KINDS[0]:
            units += [Unit(f"{cell.name}.{name}", (AS_THE_RECIPE, *ACTIVATION_CHOICES)) for name in ACTIVATIONS]
    return units


def _settings(units: Sequence[Unit], assignment: Assignment) -> dict[str, Settings]:
    """What an assignment sets, by point, where it is not the recipe's own format."""
    return {u.point: u.choices[c] for u, c in zip(units, assignment, strict=True) if c}


def _with_rules(recipe: Recipe, settings: Mapping[str, Settings]) -> Recipe:
    rules = tuple(Rule(glob.escape(point), s) for point, s in settings.items())
    return replace(recipe, rules=(*rules, *recipe.rules))


def cost_of(lowered: Lowered) -> int:
    """Bytes of the recurrent weights of all layers; those multiplied with more than 8 bits count twice.

    W and R share the bytes of a layer as their sizes I and H do.
    """
    total = 0.0
    for entry in lowered.report.entries:
        cells = [lowered.model.cells[name] for name in entry.cells if name in lowered.model.cells]
        again = 0.0
        for cell in cells:
            rows = {"input": cell.input_size, "hidden": cell.hidden_size}
            wide = sum(n for k, n in rows.items() if (cell.points.get(k, {}).get("bits") or 0) > WIDE_BITS)
            again += wide / (cell.input_size + cell.hidden_size) / len(cells)
        total += entry.bytes * (1 + again)
    return round(total)


def recipe_text(tuned: Tuned) -> str:
    """A recipe file: the rules that tuning found, each with what it did, in front of the recipe's own."""
    found, recipe = tuned.found, tuned.recipe
    builtin = recipe in builtin_recipes()  # a file of the user may have the name of one
    start, end = tuned.weight_bytes
    qualities = f"{tuned.worded(found.start.quality)} -> {tuned.worded(found.measured.quality)}"
    compensated = any(s.get("compensation") for s in tuned.settings.values())
    head = [
        f"# {recipe.name}, tuned: {start} -> {end} bytes of recurrent weights, {qualities}.",
        *(["# With the statistics of a calibration; lowering needs them, too (--stats)."] if compensated else []),
        f"name = {_toml(f'{recipe.name}-tuned')}",
        f"summary = {_toml(f'{recipe.name}, tuned for one model')}",
        f"base = {_toml(recipe.name)}" if builtin else f"kind = {_toml(recipe.kind)}",
    ]
    blocks = ["\n".join(head)]
    last = {s.unit: s for s in found.steps}
    for number, unit in enumerate(tuned.units):
        if unit.point in tuned.settings:
            step = last[number]
            note = (
                f"# When this was chosen: cost {step.cost_before} -> {step.result.cost}, "
                f"{tuned.worded(step.quality_before)} -> {tuned.worded(step.result.quality)}."
            )
            blocks.append(f"{note}\n{rule_text(glob.escape(unit.point), tuned.settings[unit.point])}")
    if not builtin:
        blocks += [rule_text(r.points, r.settings) for r in recipe.rules]
    return "\n\n".join(blocks) + "\n"


def rule_text(points: str, settings: Settings | Mapping[str, Any]) -> str:
    """A rule as a recipe file has it."""
    return "\n".join(["[[rule]]", f"points = {_toml(points)}", *(f"{k} = {_toml(v)}" for k, v in settings.items())])


def _toml(value: Any) -> str:
    if value is None:
        return '"none"'
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        # JSON's strings are TOML's basic strings, but for the one control character that JSON lets stand.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return repr(value)
