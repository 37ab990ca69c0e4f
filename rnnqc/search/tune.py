"""`rnnqc tune`: finds the cheapest widths of weights, matrix by matrix, with which a model is good enough on data.

Or the best widths with which it is small or fast enough.

Units of the search are the matrices W and R of every cell, and the activations that are multiplied with them. Weights
have 8 or 6 bits, 5 bits in groups of 32, or 4 bits in groups of 32, 64 or whole columns; activations the recipe's
width or 16 bits. The cost is the number of bytes of all recurrent weights, where those multiplied with 16-bit
activations count twice, for a matmul of each byte. With `rest="int8"` linear layers are units, too, and all weights of
the model count.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import onnx

from rnnqc.codes import Code, Told, all_told, told
from rnnqc.data.binding import bound_model
from rnnqc.data.feeds import true_inputs
from rnnqc.data.given_data import LABEL, Data
from rnnqc.data.state_hints import state_warnings
from rnnqc.data.statistics import Statistics
from rnnqc.errors import UsageError, located
from rnnqc.ir import Model
from rnnqc.lowering.lower import lower
from rnnqc.lowering.options import REST_FLOAT, LowerOptions
from rnnqc.lowering.recovery import normal_form_of
from rnnqc.lowering.reports.report import Lowered
from rnnqc.measure.chosen_metric import is_falling, metric_function
from rnnqc.measure.compare import unit_outputs
from rnnqc.measure.differences import OutputComparison
from rnnqc.measure.metrics import BUILTIN, MetricFunction
from rnnqc.measure.runs import Calls, State
from rnnqc.measure.tally import tallied
from rnnqc.measure.time_axes import output_axes
from rnnqc.passes.analysis.deciding_inputs import deciding_inputs
from rnnqc.proto.given import Given
from rnnqc.recipes.recipe import load_recipe
from rnnqc.recipes.rules import Rule
from rnnqc.search.call_times import Kept, call_seconds
from rnnqc.search.greedy import UNKNOWN, Assignment, Found, Measured, descend, search, thinned
from rnnqc.search.quality import Quality
from rnnqc.search.trials import Trial, Trials
from rnnqc.search.tuned import Point, Tuned, Unit, rules_of, settings_of, shown_frontier, with_rules
from rnnqc.search.units import in_turns, linear_units, units_of

MOST_POINTS = 8
"""The largest number of frontier points that are kept."""
MOST_TIMED = 16
"""The largest number of assignments that are timed if the time decides."""
METRIC_GOALS = ("min_metric", "max_metric")


def tune(
    model: Given,
    data: Data,
    *,
    min_sqnr: float | None = None,
    metric: str | MetricFunction | None = None,
    min_metric: float | None = None,
    max_metric: float | None = None,
    max_bytes: int | None = None,
    max_ms: float | None = None,
    recipe: str = "int8",
    stats: Statistics | str | os.PathLike[str] | None = None,
    state: State = None,
    rest: str = REST_FLOAT,
    seconds: float = math.inf,
    models: int | None = None,
    dims: Mapping[str, int] | None = None,
    bind: Mapping[str, Any] | None = None,
    progress: Callable[[int, int], None] | None = None,
    notify: Callable[[Told], None] | None = None,
) -> Tuned:
    """Searches for the cheapest widths with which a model is good enough, or the best with which it is small or fast.

    Examples:
        >>> import rnnqc
        >>> tuned = rnnqc.tune("models/digits_lstm.onnx", "models/digits_calibration.npz", min_sqnr=25)
        >>> tuned.found.reached, tuned.weight_bytes[1] < tuned.weight_bytes[0]
        (True, True)

        `tuned.save("digits.toml")` writes the recipe.

    Args:
        model: A float model: a path, a ModelProto, or a `torch.onnx.ONNXProgram`.
        data: What to measure on: data as `rnnqc.lower` takes it, with labels beside the inputs if a metric reads
            them. It is kept in memory.
        min_sqnr: The SQNR in dB that every output must have against the float model, over all data.
        metric: Instead of SQNR: a metric as `rnnqc.evaluate` takes it: "accuracy", "perplexity", the name
            `module:function`, or a function of the list of outputs and the list of feeds of all calls, each a dict of
            arrays by name. More is better, except for perplexity, and if `max_metric` is given.
        min_metric: The least acceptable value of `metric`.
        max_metric: The largest acceptable value, if less is better.
        max_bytes: Instead of a least quality: the largest number of bytes of weights. Weights multiplied with 16-bit
            activations count twice.
        max_ms: Instead of a least quality: the most milliseconds of the first call, with one thread. Times differ from
            run to run, and so may the result.
        recipe: The recipe to begin with: its name, or a `.toml` file.
        stats: Statistics of a calibration, or their file. With them weights are error-compensated.
        state: If the data is the calls of a stream: outputs by the input they become in the next call.
        rest: "int8": the weights around the recurrent layers are stored as int8, and linear layers that become integer
            are searched, too; lowering needs the same option then.
        seconds: How long to search; the result is the best found in that time, which depends on the speed of the
            machine.
        models: The largest number of models to measure; the result is the best of them, the same in every run.
        dims: Symbolic dimensions that lowering binds, by name (see `rnnqc.lower`).
        bind: Values of inputs that lowering binds, by name; the data needs no arrays for them.
        progress: Called with the number of models measured so far and the least total number.
        notify: Called before the search with each of the messages that follow from the model and the data alone.

    Raises:
        CompileError: The model or the data cannot be handled.
        UsageError: The options contradict each other.
    """
    falling = is_falling(metric) or max_metric is not None
    target = _target(min_sqnr, metric, min_metric, max_metric, max_bytes, max_ms)
    clock = _clock(seconds, models)
    chosen = load_recipe(recipe)
    statistics = Statistics.of(stats)
    sizes = {} if dims is None else dict(dims)
    loaded = bound_model(model, {}, bind or {})
    source, proto, deciding = loaded.source, loaded.proto, deciding_inputs(loaded)

    def lowered_with(rules: Sequence[Rule]) -> Lowered:
        return lower(ready, with_rules(chosen, rules), stats=statistics, rest=rest)

    with located(source):
        calls = Calls.of(data, proto, state, labels=LABEL if metric is not None else None)
        judge = None if metric is None else _judge(metric, proto, calls, falling=falling)
        ready = normal_form_of(proto, LowerOptions(chosen, dims=sizes))  # shows recovered steps as nodes
        odd = all_told(Code.STATES, state_warnings((proto, ready), calls.carried, len(calls.pieces)))
        if deciding and statistics is None:
            odd.append(told(Code.UNSEEN_CELL, _branches(deciding)))
        if notify is not None:
            for message in odd:
                notify(message)
        silent = sorted(statistics.silent_cells) if statistics is not None else []
        units = units_of(Model.load(ready), chosen, statistics is not None, silent)
        units += linear_units(lowered_with(()), chosen) if rest != REST_FLOAT else []
        quality = Quality(proto, calls, judge)
        _check_outputs(quality, metric)
        kept = Kept(lowered_with, lambda a: rules_of(settings_of(units, a)), (0,) * len(units))
        trials = Trials(kept.lowered, quality)

        def time_left() -> float:
            return clock(trials.count)

        found = _searched(units, _measure(units, trials, kept, progress), target, max_bytes, max_ms, time_left)
        times = _timed(found, kept, calls, max_ms, time_left)
        best = settings_of(units, found.assignment)
        frontier = [Point(m, times[a], settings_of(units, a)) for a, m in shown_frontier(found, MOST_POINTS)]
        start, end = (
            trials.of(rules).weight_bytes + trials.of(rules).rest_bytes for rules in (rules_of({}), rules_of(best))
        )
        outputs = _compared(proto, calls, quality, kept.of(found.assignment))
    return Tuned(
        chosen, units, found, best, (start, end), (times[found.path[0][0]], times[found.assignment]),
        quality.of_float, metric is None, outputs, silent, rest, frontier, odd, falling,
    )  # fmt: skip


def _branches(deciding: Iterable[str]) -> str:
    """A warning about layers in branches that the data may not run: there is nothing that they could lose."""
    return (
        f"input {' and '.join(map(repr, deciding))} decides which branches run: a layer of a branch that this data "
        "does not run got the cheapest formats. Resolution: --stats STATS.json of `rnnqc calibrate` on this data; then "
        "such layers keep the recipe's formats."
    )


def _searched(
    units: Sequence[Unit],
    measure: Callable[[Assignment], Measured],
    target: float | None,
    max_bytes: int | None,
    max_ms: float | None,
    time_left: Callable[[], float],
) -> Found:
    """Searches for the cheapest assignment that is good enough, or follows one path down if a time limit decides."""
    counts = [len(u.choices) for u in units]

    def order(cheaper: bool) -> list[tuple[int, int]]:
        return in_turns(units, cheaper=cheaper)

    if max_ms is None:
        return search(counts, measure, target, limit=max_bytes, time_left=time_left, order=order)
    return descend(counts, measure, time_left, order)


def _timed(
    found: Found, kept: Kept, calls: Calls, max_ms: float | None, time_left: Callable[[], float]
) -> dict[Assignment, float]:
    """Returns the seconds of a call for the assignments that are shown; cuts the path back to a limit of time."""
    shown = [a for a, _ in thinned(found.frontier, MOST_POINTS)]
    models = _to_time(found, shown, kept, time_left, whole_path=max_ms is not None)
    times = dict(zip(models, call_seconds(list(models.values()), calls.feeds[0]), strict=True))
    if max_ms is not None:
        _end_in_time(found, times, max_ms / 1e3)
    return times


def _compared(
    proto: onnx.ModelProto, calls: Calls, quality: Quality, lowered: onnx.ModelProto
) -> list[OutputComparison]:
    """Compares the outputs of a lowered model with those of the float model."""
    results, names = quality.outputs(lowered), ("the float model", "the lowered model")
    tallies = tallied(calls, quality.reference, results, output_axes(proto), names, unit_outputs(proto))
    return [tally.result() for tally in tallies.values()]


def _clock(seconds: float, models: int | None) -> Callable[[int], float]:
    """Returns a function from the number of measured models to the share left of time or models, whichever is less.

    Raises:
        UsageError: `seconds` or `models` is not positive.
    """
    if not seconds > 0:
        raise UsageError(f"The search cannot take {seconds} seconds.", supported="more than 0")
    if models is not None and models < 1:
        raise UsageError(f"The search cannot measure {models} models.", supported="1 or more")
    start, most = time.monotonic(), math.inf if models is None else models
    return lambda count: max(0.0, 1.0 - max((time.monotonic() - start) / seconds, count / most))


def _judge(metric: str | MetricFunction, proto: onnx.ModelProto, calls: Calls, *, falling: bool) -> MetricFunction:
    """Returns the metric as a function of which more is better.

    Raises:
        UsageError: There is no such metric.
    """
    inputs, outputs = {i.name for i in true_inputs(proto)}, [o.name for o in proto.graph.output]
    function = metric_function(metric, inputs, outputs, calls.carried)
    return (lambda results, feeds: -function(results, feeds)) if falling else function


def _check_outputs(quality: Quality, metric: str | MetricFunction | None) -> None:
    """Refuses SQNR for a model without float outputs.

    Raises:
        UsageError: No output is a float.
    """
    if metric is None and not quality.has_floats:
        names = ", ".join(quality.reference[0])
        raise UsageError(
            f"no output is of floats: {names}.",
            supported="SQNR of floats; of classes and tokens a metric of yours",
            action="give --metric NAME, with --min-metric VALUE or a limit of bytes or time",
        )


def _target(
    min_sqnr: float | None,
    metric: str | MetricFunction | None,
    min_metric: float | None,
    max_metric: float | None,
    max_bytes: int | None,
    max_ms: float | None,
) -> float | None:
    """Returns the required quality; None if the goal limits bytes or time."""
    goals = {
        "min_sqnr": min_sqnr, "min_metric": min_metric, "max_metric": max_metric, "max_bytes": max_bytes,
        "max_ms": max_ms,
    }  # fmt: skip
    given = {name: value for name, value in goals.items() if value is not None}
    contradict = "min_sqnr" in given if metric is not None else not given.keys().isdisjoint(METRIC_GOALS)
    if len(given) != 1 or contradict:
        names = [*(["metric"] if metric is not None else []), *given]
        raise UsageError(
            f"Goals given: {', '.join(names) or 'none'}.",
            supported="one of: a least SQNR, a metric and its least value (or the most of one where less is better), "
            "the most bytes, the most milliseconds",
            action="give --min-sqnr DB, or --metric NAME and --min-metric VALUE or --max-metric VALUE, or "
            "--max-bytes N or --max-ms MS, with --metric or without",
        )
    wrong = METRIC_GOALS[0] if is_falling(metric) else METRIC_GOALS[1]
    if wrong in given and metric in BUILTIN:
        better, right = ("less", "--max-metric") if is_falling(metric) else ("more", "--min-metric")
        raise UsageError(f"Of {metric} {better} is better.", supported=right, action=f"give {right} VALUE")
    ((name, goal),) = given.items()
    if math.isnan(goal):
        raise UsageError("The goal is not a number (NaN).", supported="numbers")
    return -goal if name == METRIC_GOALS[1] else None if name.startswith("max") else goal


def _to_time(
    found: Found, shown: Sequence[Assignment], kept: Kept, time_left: Callable[[], float], *, whole_path: bool
) -> dict[Assignment, onnx.ModelProto]:
    """Returns the models to time, each once: the start, the frontier, and the result or some of the way to it.

    Without time left, only the best and the last of the way are lowered again.
    """
    path = found.path
    needed = [path[0][0], *shown, path[-1][0]]
    further: list[Assignment] = []
    if whole_path:
        needed.append(max(path, key=lambda place: place[1].quality)[0])
        further = [a for a, _ in thinned(path, MOST_TIMED)]
    models = {a: kept.of(a) for a in dict.fromkeys(needed)}
    for assignment in dict.fromkeys(further):
        if assignment not in models and (kept.has(assignment) or time_left() > 0):
            models[assignment] = kept.of(assignment)
    return models


def _end_in_time(found: Found, times: Mapping[Assignment, float], most: float) -> None:
    """Cuts the path back to the best assignment that takes at most `most` seconds; else to the fastest."""
    path = found.path
    places = [k for k, (assignment, _) in enumerate(path) if assignment in times]
    quick = [k for k in places if times[path[k][0]] <= most]
    best = max(quick, key=lambda k: path[k][1].quality) if quick else min(places, key=lambda k: times[path[k][0]])
    found.end_at(best, reached=bool(quick))


def _measure(
    units: Sequence[Unit], trials: Trials, kept: Kept, progress: Callable[[int, int], None] | None
) -> Callable[[Assignment], Measured]:
    """Returns the measuring function: `UNKNOWN` for an assignment that cannot be lowered, an error for the recipe."""
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
        made = Measured(trial.cost + trial.rest_bytes, trial.score.damage, trial.score.quality)
        kept.note(assignment, made)
        return made

    return measure
