"""`rnnqc tune`: the cheapest widths of weights, matrix by matrix, with which a model is still good enough on data.

Or the best widths with which it is small or fast enough.

Units of the search are the matrices W and R of every cell, and the activations that are multiplied with them. Weights
have 8 or 6 bits, 5 bits in groups of 32, or 4 bits in groups of 32, 64 or whole columns; activations what the recipe
says, or 16 bits. The cost is the number of bytes of all recurrent weights, where those that 16-bit activations are
multiplied with count twice: a matmul for each byte. With `rest="int8"` linear layers are units, too, and all weights
of the model count.
"""

from __future__ import annotations

import hashlib
import math
import os
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any

from rnnqc.calibration.float_cells import decompose
from rnnqc.data.given_data import Data
from rnnqc.data.state_hints import state_warnings
from rnnqc.data.statistics import Statistics
from rnnqc.errors import UsageError, located
from rnnqc.ir import Model, safe_name
from rnnqc.lowering.lower import lower
from rnnqc.lowering.options import REST_FLOAT
from rnnqc.lowering.report import Lowered
from rnnqc.measure.metrics import MetricFunction
from rnnqc.measure.runs import Calls, State
from rnnqc.passes import PassManager
from rnnqc.passes.cells.cell_graphs import parameters_of
from rnnqc.passes.linear.quantize_linear import FORM as LINEAR_FORM
from rnnqc.passes.pipeline import normal_form
from rnnqc.proto.given import Given
from rnnqc.recipes.recipe import KINDS, Recipe, load_recipe
from rnnqc.recipes.rules import Rule
from rnnqc.search.call_times import call_seconds
from rnnqc.search.greedy import UNKNOWN, Assignment, Found, Measured, descend, search, thinned
from rnnqc.search.quality import Quality
from rnnqc.search.trials import Trial, Trials
from rnnqc.search.tuned import Point, Settings, Tuned, Unit, rules_of, settings_of, with_rules

AS_THE_RECIPE: Settings = {}
AS_A_WHOLE: Settings = {"group_size": None, "wide_channels": 0.0}
WEIGHT_CHOICES: tuple[Settings, ...] = (
    {"bits": 8, **AS_A_WHOLE},
    {"bits": 6, **AS_A_WHOLE},
    {"bits": 5, "group_size": 32, "wide_channels": 0.0},
    {"bits": 4, "group_size": 32, "wide_channels": 0.0},
    {"bits": 4, "group_size": 64, "wide_channels": 0.0},
    {"bits": 4, **AS_A_WHOLE},
)
LINEAR_CHOICES = WEIGHT_CHOICES[:4]
ACTIVATION_CHOICES: tuple[Settings, ...] = ({"bits": 16},)
COMPENSATION: Settings = {"compensation": True}
WEIGHTS, ACTIVATIONS = ("W.weight", "R.weight"), ("input", "hidden")
MOST_POINTS = 8
"""How many points of the frontier are kept."""
MOST_TIMED = 16
"""How many assignments are timed where the time decides."""


def tune(
    model: Given,
    data: Data,
    *,
    min_sqnr: float | None = None,
    metric: MetricFunction | None = None,
    min_metric: float | None = None,
    max_bytes: int | None = None,
    max_ms: float | None = None,
    recipe: str = "int8",
    stats: Statistics | str | os.PathLike[str] | None = None,
    state: State = None,
    rest: str = REST_FLOAT,
    seconds: float = math.inf,
    progress: Callable[[int, int], None] | None = None,
) -> Tuned:
    """Searches the cheapest widths with which a model is good enough, or the best with which it is small or fast.

    Examples:
        >>> import rnnqc
        >>> tuned = rnnqc.tune("models/digits_lstm.onnx", "models/digits_calibration.npz", min_sqnr=25)
        >>> tuned.found.reached, tuned.weight_bytes[1] < tuned.weight_bytes[0]
        (True, True)

    `tuned.save("digits.toml")` writes the recipe.

    Args:
        model: A float model: a path, a ModelProto, or a `torch.onnx.ONNXProgram`.
        data: What to measure on: data as `rnnqc.lower` takes it. It is kept in memory.
        min_sqnr: The SQNR in dB that every output must have against the float model, over all data.
        metric: Instead of SQNR: a function of the list of outputs and the list of inputs of all calls, each a dict of
            arrays by name. Higher is better.
        min_metric: The least value of `metric`.
        max_bytes: Instead of a least quality: the bytes of weights allowed. Those that 16-bit activations are
            multiplied with count twice.
        max_ms: Instead of a least quality: the milliseconds of the first call allowed, with one thread. Times differ
            from run to run, and so may what is found.
        recipe: The recipe to begin with: its name, or a `.toml` file.
        stats: Statistics of a calibration, or their file. With them weights are error-compensated.
        state: Where the data is the calls of a stream: outputs by the input they become in the next call.
        rest: "int8": the weights around the recurrent layers are stored as int8, and linear layers that become integer
            are searched, too; lowering needs the same option then.
        seconds: For how long to search; the best of what was measured by then is what was found, which depends on the
            speed of the machine.
        progress: Called with the number of models measured so far and how many there are at least.

    Raises:
        CompileError: The model or the data cannot be handled.
        UsageError: The options contradict each other.
    """
    target = _target(min_sqnr, metric, min_metric, max_bytes, max_ms)
    time_left = _clock(seconds)
    loaded = Model.load(model)
    source, proto = loaded.source, loaded.proto
    PassManager(normal_form()).run(loaded)  # there recovered steps are nodes
    statistics = Statistics.of(stats)
    chosen = load_recipe(recipe)

    def lowered_with(rules: Sequence[Rule]) -> Lowered:
        return lower(proto, with_rules(chosen, rules), stats=statistics, rest=rest)

    with located(source):
        silent = sorted(statistics.silent_cells) if statistics is not None else []
        units = _units(Model.load(proto), chosen, statistics is not None, silent)
        units += _linear_units(lowered_with(()), chosen) if rest != REST_FLOAT else []
        calls = Calls.of(data, proto, state)
        quality = Quality(proto, calls, metric)
        _check_outputs(quality, metric)
        trials = Trials(lowered_with, quality)
        counts, measure = [len(u.choices) for u in units], _measure(units, trials, progress)
        if max_ms is None:
            found = search(counts, measure, target, limit=max_bytes, time_left=time_left)
        else:
            found = descend(counts, measure, time_left)

        def seconds_of(assignments: Sequence[Assignment]) -> list[float]:
            models = [lowered_with(rules_of(settings_of(units, a))).proto for a in assignments]
            return call_seconds(models, calls.feeds[0])

        if max_ms is not None:
            _end_in_time(found, seconds_of, max_ms / 1e3)
        best = settings_of(units, found.assignment)
        shown = thinned(found.frontier, MOST_POINTS)
        before, after, *times = seconds_of([(0,) * len(units), found.assignment, *(a for a, _ in shown)])
        frontier = [Point(m, t, settings_of(units, a)) for (a, m), t in zip(shown, times, strict=True)]
        start, end = (
            trials.of(rules).weight_bytes + trials.of(rules).rest_bytes for rules in (rules_of({}), rules_of(best))
        )
        odd = state_warnings((proto, loaded.proto), calls.carried, len(calls.pieces))
    return Tuned(
        chosen, units, found, best, (start, end), (before, after), quality.of_float, metric is None, silent, rest,
        frontier, odd,
    )  # fmt: skip


def _clock(seconds: float) -> Callable[[], float]:
    """Gives the share of so many seconds that is left.

    Raises:
        UsageError: They are none.
    """
    if not seconds > 0:
        raise UsageError(f"The search cannot take {seconds} seconds.", supported="more than 0")
    start = time.monotonic()
    return lambda: max(0.0, 1.0 - (time.monotonic() - start) / seconds)


def _check_outputs(quality: Quality, metric: MetricFunction | None) -> None:
    """Refuses SQNR as the judge of a model that puts out no floats.

    Raises:
        UsageError: As said.
    """
    if metric is None and not quality.has_floats:
        names = ", ".join(quality.reference[0])
        raise UsageError(
            f"no output is of floats: {names}.",
            supported="SQNR of floats; of classes and tokens a metric of yours",
            action="give --metric MODULE:FUNCTION, with --min-metric VALUE or a limit of bytes or time",
        )


def _target(
    min_sqnr: float | None,
    metric: MetricFunction | None,
    min_metric: float | None,
    max_bytes: int | None,
    max_ms: float | None,
) -> float | None:
    """The least quality, None where what the model takes is limited."""
    goals = {"min_sqnr": min_sqnr, "min_metric": min_metric, "max_bytes": max_bytes, "max_ms": max_ms}
    given = {name: value for name, value in goals.items() if value is not None}
    contradict = "min_sqnr" in given if metric is not None else "min_metric" in given
    if len(given) != 1 or contradict:
        names = [*(["metric"] if metric is not None else []), *given]
        raise UsageError(
            f"Goals given: {', '.join(names) or 'none'}.",
            supported="one of: a least SQNR, a metric and its least value, the most bytes, the most milliseconds",
            action="give --min-sqnr DB, or --metric MODULE:FUNCTION and --min-metric VALUE, or --max-bytes N or "
            "--max-ms MS, with --metric or without",
        )
    ((name, goal),) = given.items()
    if math.isnan(goal):
        raise UsageError("The goal is not a number (NaN).", supported="numbers")
    return None if name.startswith("max") else goal


def _end_in_time(found: Found, seconds_of: Callable[[Sequence[Assignment]], list[float]], most: float) -> None:
    """Goes back to the best of what a search to the cheapest kept, of those that take at most so many seconds."""
    finest = max(range(len(found.path)), key=lambda k: found.path[k][1].quality)
    places = sorted({finest, *thinned(range(len(found.path)), MOST_TIMED)})
    times = dict(zip(places, seconds_of([found.path[k][0] for k in places]), strict=True))
    quick = [k for k in places if times[k] <= most]
    best = max(quick, key=lambda k: found.path[k][1].quality) if quick else min(places, key=times.__getitem__)
    found.end_at(best, reached=bool(quick))


def _units(model: Model, recipe: Recipe, compensated: bool, silent: Collection[str] = ()) -> list[Unit]:
    """The matrices and activations of every cell of a float model that the statistics have seen run, in order."""
    decompose(model, "tune")
    extra = COMPENSATION if compensated else {}
    alike: dict[tuple[Any, ...], Unit] = {}
    for cell in model.cells.values():
        if cell.name in silent:
            continue  # nothing that it does could be measured
        held = {k: hashlib.sha256(a.tobytes()).digest() for k, a in parameters_of(model, cell).items()}
        both = held.get("W"), held.get("R")
        for name in WEIGHTS:
            own = {**AS_A_WHOLE, **recipe.settings(f"{cell.name}.{name}")}
            choices = tuple(c for choice in WEIGHT_CHOICES if (c := {**choice, **extra}) != {k: own.get(k) for k in c})
            _add(alike, (name, held.get(name[0]), repr(own)), f"{cell.name}.{name}", (AS_THE_RECIPE, *choices))
        for name in ACTIVATIONS if recipe.kind == KINDS[0] else ():
            _add(alike, (name, both), f"{cell.name}.{name}", (AS_THE_RECIPE, *ACTIVATION_CHOICES))
    return list(alike.values())


def _add(alike: dict[tuple[Any, ...], Unit], key: tuple[Any, ...], point: str, choices: tuple[Settings, ...]) -> None:
    """Adds a point to the unit of the same weights; the first one makes it."""
    known = alike.get(key)
    alike[key] = Unit(point, choices) if known is None else replace(known, more=(*known.more, point))


def _linear_units(lowered: Lowered, recipe: Recipe) -> list[Unit]:
    """The weights of linear layers that became integer, but for those that several operators share."""
    entries, units = lowered.report.rest.entries, []
    shared = {e.shares for e in entries}
    for entry in entries:
        if entry.form == LINEAR_FORM and not entry.shares and entry.node not in shared:
            point = f"{safe_name(entry.node)}.weight"
            own = {**AS_A_WHOLE, **recipe.settings(point)}
            choices = (c for c in LINEAR_CHOICES if c != {k: own.get(k) for k in c})
            units.append(Unit(point, (AS_THE_RECIPE, *choices)))
    return units


def _measure(
    units: Sequence[Unit], trials: Trials, progress: Callable[[int, int], None] | None
) -> Callable[[Assignment], Measured]:
    """Cost and quality of an assignment; `UNKNOWN` where it cannot be lowered, but for the recipe itself."""
    least = 1 + sum(len(u.choices) - 1 for u in units)
    if progress is not None:
        progress(trials.count, least)

    def measure(assignment: Assignment) -> Measured:
        rules = rules_of(settings_of(units, assignment))
        trial: Trial | None = trials.tried(rules) if rules else trials.of(rules)
        if progress is not None:
            progress(trials.count, max(least, trials.count))
        if trial is None:
            return UNKNOWN
        return Measured(trial.cost + trial.rest_bytes, trial.score.damage, trial.score.quality)

    return measure
