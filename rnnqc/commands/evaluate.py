"""`rnnqc evaluate`: evaluates a metric of a task on a model and on the float model."""

from __future__ import annotations

import argparse
import warnings

from rnnqc.codes import Told
from rnnqc.commands.shared.arguments import (
    CHECK_FAILED,
    OK,
    Commands,
    add_command,
    add_data,
    add_state,
    document,
    number,
)
from rnnqc.commands.shared.terminal import err, escape, new_table, out, progress_bar, tell


def add(commands: Commands) -> None:
    """Adds the command's parser."""
    parser = add_command(
        commands,
        "evaluate",
        "measure a task: accuracy, perplexity, or a function of yours",
        "rnnqc evaluate model.int8.onnx --data test.npz --metric accuracy --against model.onnx",
        "rnnqc evaluate model.int8.onnx --data words.npz --metric perplexity --max-metric 120",
    )
    parser.add_argument("model", metavar="MODEL", help="a float or a lowered model")
    add_data(parser, required=True)
    parser.add_argument(
        "--metric", required=True, metavar="NAME",
        help="accuracy, perplexity, or module:function, of the outputs and the arrays of all calls, two lists of dicts",
    )  # fmt: skip
    parser.add_argument("--against", metavar="FLOAT.onnx", help="the float model, whose figure stands beside")
    add_state(parser, "the data is the calls of a stream: output OUT of one is input IN of the next, in each model")
    parser.add_argument("--output", metavar="NAME", help="the output that is judged; by default the first")
    parser.add_argument(
        "--labels", metavar="NAME", help="the array of labels; by default the only one that is no input, or `label`"
    )
    parser.add_argument("--min-metric", type=number, metavar="V", help="fail (exit code 1) if the metric is below V")
    parser.add_argument("--max-metric", type=number, metavar="V", help="fail (exit code 1) if the metric is above V")
    parser.add_argument("--stock", action="store_true", help="without the native library")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    parser.set_defaults(command=run)


def run(a: argparse.Namespace) -> int:
    """Runs the command; returns the exit code."""
    from rnnqc.scores import evaluate

    with progress_bar("evaluating") as update, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = evaluate(
            a.model,
            a.data,
            a.metric,
            against=a.against,
            state=a.state,
            output=a.output,
            labels=a.labels,
            native=not a.stock,
            progress=lambda done, total: update(completed=done, total=total),
        )
    for warning in caught:
        if issubclass(warning.category, UserWarning):
            tell(Told(str(warning.message)))
    failures = []
    if a.min_metric is not None and not found.value >= a.min_metric:
        failures.append(f"{found.metric} is {found.value:.6g}, at least {a.min_metric:g} asked for")
    if a.max_metric is not None and not found.value <= a.max_metric:
        failures.append(f"{found.metric} is {found.value:.6g}, at most {a.max_metric:g} asked for")
    if a.json:
        print(
            document(
                {
                    "model": a.model,
                    "against": a.against,
                    "metric": found.metric,
                    "output": found.output or None,
                    "labels": found.labels or None,
                    "calls": found.calls,
                    "value": found.value,
                    "reference": found.reference,
                    "failures": failures,
                    "ok": not failures,
                }
            )
        )
    else:
        shown = found.shown
        table = new_table(*map(escape, shown[0]))
        for row in shown:
            table.add_row(*map(escape, row.values()))
        out(escape(found.headline))
        out(table)
    for text in failures:
        err(f"[red]rnnqc: evaluate:[/red] {escape(text)}")
    return CHECK_FAILED if failures else OK
