"""`rnnqc tune`: searches for widths."""

from __future__ import annotations

import argparse
import math
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from rnnqc.commands.shared.arguments import (
    CHECK_FAILED,
    OK,
    Commands,
    add_bindings,
    add_command,
    add_data,
    add_state,
    byte_count,
    decibels,
    document,
    milliseconds,
    number,
    pairs,
    values,
)
from rnnqc.commands.shared.terminal import colored, err, escape, inform, new_table, out, progress_bar, tell
from rnnqc.errors import UsageError, explained

if TYPE_CHECKING:
    from rnnqc.codes import Told
    from rnnqc.search.tuned import Tuned

SINGLE, COMBINED = "measuring single changes, models", "combining the best changes, models"


def add(commands: Commands) -> None:
    """Adds the command's parser."""
    parser = add_command(
        commands,
        "tune",
        "search the cheapest widths with which a model is good, small or fast enough",
        "rnnqc tune model.onnx --data samples.npz -o mine.toml --min-sqnr 30",
        "rnnqc tune model.onnx --data test.npz -o mine.toml --metric accuracy --min-metric 0.97",
        "rnnqc tune model.onnx --data samples.npz -o mine.toml --max-bytes 250000 --plot frontier.svg",
    )
    parser.add_argument("model", metavar="IN.onnx", help="the float model")
    add_data(parser, required=True)
    parser.add_argument("-o", "--output", required=True, metavar="OUT.toml", help="the recipe that was found")
    parser.add_argument("--min-sqnr", type=decibels, metavar="DB", help="the least SQNR of every output")
    parser.add_argument(
        "--metric", metavar="NAME",
        help="instead: accuracy, perplexity, or module:function, as `rnnqc evaluate` takes it; labels are in the data",
    )  # fmt: skip
    parser.add_argument("--min-metric", type=number, metavar="V", help="the least value of the metric")
    parser.add_argument("--max-metric", type=number, metavar="V", help="the most of the metric, where less is better")
    parser.add_argument(
        "--max-bytes", type=int, metavar="N", help="instead of a least quality: the bytes of weights allowed"
    )
    parser.add_argument(
        "--max-ms", type=milliseconds, metavar="MS", help="instead: what one call may take, with one thread"
    )
    parser.add_argument(
        "--seconds", type=number, metavar="S", default=math.inf,
        help="search for at most S seconds; how much that is depends on the machine",
    )  # fmt: skip
    parser.add_argument(
        "--models",
        type=int,
        metavar="N",
        help="measure at most N models; two runs find the same, unlike with --seconds",
    )
    parser.add_argument("--plot", metavar="OUT.svg", help="draw quality against bytes")
    parser.add_argument(
        "--stats", metavar="STATS.json", help="statistics of a calibration: weights are error-compensated"
    )
    parser.add_argument("--recipe", default="int8", metavar="NAME|FILE.toml", help="what to begin with, default int8")
    parser.add_argument(
        "--rest", choices=("float", "int8"), default="float",
        help="int8: store embeddings, linear layers and convolutions as int8, and search linear layers, too",
    )  # fmt: skip
    add_state(parser)
    add_bindings(parser)
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    parser.set_defaults(command=run)


def run(a: argparse.Namespace) -> int:
    """Runs the command; returns the exit code."""
    from rnnqc.proto.files import check_writable, write_atomically
    from rnnqc.search.tune import tune

    output, plot = Path(a.output), None if a.plot is None else Path(a.plot)
    for option, path, suffix in (("-o", output, ".toml"), ("--plot", plot, ".svg")):
        if path is None:
            continue
        check_writable(path, [a.model, a.data, a.stats, a.recipe])
        if path.suffix != suffix:
            raise UsageError(f"{option} {path}: is no {suffix} file.", supported=f"a name that ends in {suffix}")
    early: list[Told] = []
    with progress_bar("loading the model and the data") as update:

        def notify(message: Told) -> None:
            tell(message)
            early.append(message)

        def told(done: int, total: int) -> None:
            if not done:
                inform(_work(total, a))
            update(description=SINGLE if done < total else COMBINED, completed=done, total=total)

        tuned = tune(
            a.model,
            a.data,
            min_sqnr=a.min_sqnr,
            metric=a.metric,
            min_metric=a.min_metric,
            max_metric=a.max_metric,
            max_bytes=a.max_bytes,
            max_ms=a.max_ms,
            recipe=a.recipe,
            stats=a.stats,
            state=a.state,
            rest=a.rest,
            seconds=a.seconds,
            models=a.models,
            dims=pairs(a.dim, "--dim"),
            bind=values(a.bind, "--bind"),
            progress=told,
            notify=notify,
        )
    found = tuned.found
    if found.reached:
        write_atomically(output, tuned.text.encode())
    if plot is not None:
        from rnnqc.reporting.frontier import frontier_svg

        write_atomically(plot, frontier_svg(tuned).encode())
    if a.json:
        print(document({"model": a.model, "recipe": a.recipe, **tuned.to_dict()}))
    else:
        _print(tuned)
    for message in tuned.messages:
        if message not in early:
            tell(message)
    if not found.reached:
        text = explained(f"{_missed(tuned, a)}; nothing was written.", action=_instead(a))
        err(f"[red]rnnqc: tune:[/red] {escape(text)}")
        return CHECK_FAILED
    if not a.json:
        out(f"{escape(a.output)}: {len(tuned.settings)} rule(s) before recipe {escape(tuned.recipe.name)}")
        out(f"next: {escape(_next(a))}")
    return OK


def _work(singles: int, a: argparse.Namespace) -> str:
    """Describes how much is going to be measured; `singles`: how many models with one change or none."""
    ends = [f"{a.models} models (--models)"] if a.models is not None else []
    ends += [f"{a.seconds:g} seconds (--seconds)"] if math.isfinite(a.seconds) else []
    text = (
        f"{singles} models are measured first, the recipe's own and one for each change of a single point; then "
        "combinations of the best changes, mostly up to twice as many"
    )
    return f"{text}; it ends after {' or '.join(ends)}" if ends else text


def _next(a: argparse.Namespace) -> str:
    """Returns the command that lowers with the recipe found."""
    from rnnqc.proto.files import word_for

    model = Path(word_for(a.model, "MODEL"))
    words = ["rnnqc", "lower", str(model), "-o", str(model.with_name(f"{model.stem}.tuned{model.suffix or '.onnx'}"))]
    words += ["--recipe", a.output, *(["--stats", a.stats] if a.stats else [])]
    words += [word for option in ("dim", "bind") for text in getattr(a, option) or () for word in (f"--{option}", text)]
    return shlex.join([*words, *(["--rest", a.rest] if a.rest != "float" else [])])


def _print(tuned: Tuned) -> None:
    """Prints the changes, the frontier and the outcome."""
    found, (start, end) = tuned.found, tuned.weight_bytes
    table = new_table("point", "format", "cost", "quality")
    table.add_row("", escape(tuned.recipe.name), f"{found.start.cost} B", tuned.worded(found.start.quality))
    for step in found.steps:
        unit = tuned.units[step.unit]
        text = ", ".join(f"{k} = {str(v).lower()}" for k, v in unit.choices[step.after].items()) or "as the recipe"
        table.add_row(escape(unit.name), text, f"{step.result.cost} B", tuned.worded(step.result.quality))
    out(table)
    if tuned.frontier:
        table = new_table("frontier: cost", "quality", "one call")
        for point in tuned.frontier:
            text = f"{1e3 * point.seconds:.3g} ms"
            table.add_row(f"{point.measured.cost} B", tuned.worded(point.measured.quality), text)
        out(table)
    kind = "recurrent weights" if tuned.rest == "float" else "weights"
    out(f"cost: bytes of {kind}; those that 16-bit activations are multiplied with count twice")
    before, after = (1e3 * s for s in tuned.call_seconds)
    out(
        f"{found.tried} assignments measured; weights {byte_count(start)} -> {byte_count(end)}, "
        f"one call {before:.3g} -> {after:.3g} ms, "
        f"{tuned.worded(found.start.quality)} -> {tuned.worded(found.measured.quality)}"
        + ("" if tuned.decibels else f"; float model {tuned.worded(tuned.float_quality)}")
    )
    out("one call: the shortest run of the first call, one thread; all of these models took turns")
    if tuned.verdict is not None and tuned.found.reached:
        out(colored(tuned.verdict))


def _instead(a: argparse.Namespace) -> str:
    """Advice if the goal was not reached."""
    if a.max_bytes is not None or a.max_ms is not None:
        return "ask for more, or begin with a recipe of fewer bits (--recipe w4a8)"
    calibrated = "" if a.stats else "--stats of `rnnqc calibrate` rounds weights together; "
    return f"{calibrated}`rnnqc report FLOAT LOWERED --data DATA` says where the rest of the loss is made"


def _missed(tuned: Tuned, a: argparse.Namespace) -> str:
    """Describes the best result if the goal was not reached."""
    measured = tuned.found.measured
    if a.max_bytes is not None:
        return f"the smallest that was found has {measured.cost} bytes, at most {a.max_bytes} asked for"
    if a.max_ms is not None:
        took = 1e3 * tuned.call_seconds[1]
        return f"a call of the fastest that was found takes {took:.3g} ms, at most {a.max_ms:g} asked for"
    goal = a.min_metric if a.max_metric is None else a.max_metric
    wanted = f"{a.min_sqnr:g} dB" if a.metric is None else f"{goal:g}"
    return f"the best that was found has {tuned.worded(measured.quality)}, {wanted} asked for"
