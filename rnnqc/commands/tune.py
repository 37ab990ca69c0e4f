"""`rnnqc tune`: searches widths."""

from __future__ import annotations

import argparse
from pathlib import Path

from rnnqc.commands.common import (
    CHECK_FAILED,
    OK,
    Commands,
    add_command,
    add_data,
    add_state,
    byte_count,
    decibels,
    document,
    number,
)
from rnnqc.commands.terminal import colored, err, escape, new_table, out, progress_bar
from rnnqc.errors import UsageError


def add(commands: Commands) -> None:
    """Adds the command's parser."""
    parser = add_command(
        commands,
        "tune",
        "search the cheapest widths with which a model is good enough",
        "rnnqc tune model.onnx --data samples.npz -o mine.toml --min-sqnr 30",
        "rnnqc tune model.onnx --data test.npz -o mine.toml --metric mine:accuracy --min-metric 0.97",
    )
    parser.add_argument("model", metavar="IN.onnx", help="the float model")
    add_data(parser, required=True)
    parser.add_argument("-o", "--output", required=True, metavar="OUT.toml", help="the recipe that was found")
    parser.add_argument("--min-sqnr", type=decibels, metavar="DB", help="the least SQNR of every output")
    parser.add_argument(
        "--metric", metavar="MODULE:FUNCTION",
        help="instead: a function of the outputs and inputs of all calls, two lists of dicts; higher is better",
    )  # fmt: skip
    parser.add_argument("--min-metric", type=number, metavar="V", help="the least value of the metric")
    parser.add_argument(
        "--stats", metavar="STATS.json", help="statistics of a calibration: weights are error-compensated"
    )
    parser.add_argument("--recipe", default="int8", metavar="NAME|FILE.toml", help="what to begin with, default int8")
    parser.add_argument(
        "--rest", choices=("float", "int8"), default="float",
        help="int8: store embeddings, linear layers and convolutions as int8, and search linear layers, too",
    )  # fmt: skip
    add_state(parser)
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    parser.set_defaults(command=run)


def run(a: argparse.Namespace) -> int:
    """Runs the command; the exit code."""
    from rnnqc.measure.metrics import load_metric
    from rnnqc.proto.files import check_writable, write_atomically
    from rnnqc.search.tune import tune

    output = Path(a.output)
    check_writable(output, [a.model, a.data, a.stats, a.recipe])
    if not a.output.endswith(".toml"):
        raise UsageError(
            f"-o {a.output}: is no .toml file.", supported="a name that ends in .toml, as --recipe needs it"
        )
    metric = load_metric(a.metric) if a.metric else None
    with progress_bar("tuning") as update:
        tuned = tune(
            a.model,
            a.data,
            min_sqnr=a.min_sqnr,
            metric=metric,
            min_metric=a.min_metric,
            recipe=a.recipe,
            stats=a.stats,
            state=a.state,
            rest=a.rest,
            progress=lambda done, total: update(completed=done, total=total),
        )
    found, (start, end) = tuned.found, tuned.weight_bytes
    if found.reached:
        write_atomically(output, tuned.text.encode())
    if a.json:
        print(document({"model": a.model, "recipe": a.recipe, **tuned.to_dict()}))
    else:
        table = new_table("point", "format", "cost", "quality")
        table.add_row("", escape(tuned.recipe.name), str(found.start.cost), tuned.worded(found.start.quality))
        for step in found.steps:
            unit = tuned.units[step.unit]
            text = ", ".join(f"{k} = {str(v).lower()}" for k, v in unit.choices[step.after].items()) or "as the recipe"
            table.add_row(escape(unit.point), text, str(step.result.cost), tuned.worded(step.result.quality))
        out(table)
        before, after = (1e3 * s for s in tuned.call_seconds)
        out(
            f"{found.tried} assignments measured; weights {byte_count(start)} -> {byte_count(end)}, "
            f"one call {before:.3g} -> {after:.3g} ms, "
            f"{tuned.worded(found.start.quality)} -> {tuned.worded(found.measured.quality)}"
            + ("" if tuned.decibels else f"; float model {tuned.worded(tuned.float_quality)}")
        )
        if tuned.verdict is not None:
            out(colored(tuned.verdict))
    for text in tuned.messages:
        err(f"[yellow]rnnqc:[/yellow] {escape(text)}")
    if not found.reached:
        wanted = f"{a.min_sqnr:g} dB" if a.metric is None else f"{a.min_metric:g}"
        text = f"the best that was found has {tuned.worded(found.measured.quality)}, {wanted} asked for"
        err(f"[red]rnnqc: tune:[/red] {escape(text)}; nothing was written.")
        return CHECK_FAILED
    if not a.json:
        out(f"{escape(a.output)}: {len(tuned.settings)} rule(s) before recipe {escape(tuned.recipe.name)}")
    return OK
