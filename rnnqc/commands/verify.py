"""`rnnqc verify`: compares two models."""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rnnqc.commands.shared.arguments import (
    CHECK_FAILED,
    OK,
    Commands,
    add_command,
    add_data,
    add_repeated,
    add_state,
    document,
)
from rnnqc.commands.shared.terminal import colored, err, escape, new_table, out, progress_bar, tell
from rnnqc.measure.thresholds import MEASURES, Thresholds

if TYPE_CHECKING:
    from rnnqc.measure.compare import LevelComparison
    from rnnqc.measure.differences import OutputComparison
    from rnnqc.verification import Verification


def add(commands: Commands) -> None:
    """Adds the command's parser."""
    parser = add_command(
        commands,
        "verify",
        "compare a quantized model with the float one",
        "rnnqc verify model.onnx model.int8.onnx --min-sqnr 30",
        "rnnqc verify model.onnx model.int8.onnx --data samples.npz --min-equal tokens=0.99 --native",
    )
    parser.add_argument("float_model", metavar="FLOAT.onnx", help="the float model")
    parser.add_argument("quantized_model", metavar="QUANT.onnx", help="the model that it was lowered to")
    add_data(parser, required=False)
    add_state(
        parser, "the data is the calls of a stream: output OUT of one is input IN of the next, in each model its own"
    )
    for measure in MEASURES:
        text = f"fail (exit code 1) if an output, or output NAME, {measure.help}"
        add_repeated(parser, measure.option, f"[NAME=]{measure.unit}", text)
    parser.add_argument(
        "--native",
        action="store_true",
        help="also fail if the native library is not bit-exact with the standard operators",
    )
    parser.add_argument("--json", action="store_true", help="print every figure, of every step, as JSON")
    parser.set_defaults(command=run)


def run(a: argparse.Namespace) -> int:
    """Runs the command; returns the exit code."""
    from rnnqc.verification import verify

    asked = Thresholds.parse({m.option: getattr(a, m.name) for m in MEASURES}).asked
    thresholds = {m.name: asked.get(m.option) for m in MEASURES}
    with progress_bar("loading the models", spinner=True, counted=False) as update:
        found = verify(
            a.float_model, a.quantized_model, a.data, state=a.state, native=a.native, **thresholds,
            progress=lambda stage: update(description=stage),
        )  # fmt: skip
    if a.json:
        print(document(found.to_dict()))
    else:
        _print_found(found)
    for warning in found.warnings:
        tell(warning)
    for text in found.failures:
        err(f"[red]rnnqc: verify:[/red] {escape(text)}")
    return OK if found.ok else CHECK_FAILED


def _print_found(found: Verification) -> None:
    what = "call(s) of a stream" if found.states else "feed(s)"
    out(f"{found.feeds} {'generated' if found.generated else 'given'} {what}")
    _print([c for _, c in found.worst.values()])
    _print_over_time(found.levels)
    _print_levels(found.levels)
    for text in found.notes:
        out(f"note: {escape(text)}")
    if found.verdict is not None and (found.ok or found.verdict.level != "good"):
        out(colored(found.verdict))
    if found.native and all(c.same_bits for c in found.native):
        _print_native(found.native, found.optimized)


def _print_native(native: Sequence[OutputComparison], optimized: Sequence[OutputComparison]) -> None:
    """Prints which outputs were compared between the two ways to run a model, and whether they are the same."""
    inner = len(native) - len(optimized)
    cells = f"all outputs and the {inner} inner results of its cells" if inner else "all outputs"
    out(f"native library: bit-exact in {cells}, without onnxruntime's graph optimizations")
    other = [c for c in optimized if not c.same_bits]
    if not other:
        out("with onnxruntime's graph optimizations: bit-exact in all outputs")
        return
    texts = ", ".join(f"{escape(c.name)} by up to {c.max_abs:.3g}" for c in other)
    out(
        f"with onnxruntime's graph optimizations, which may fuse the float operators around the cells differently, "
        f"{len(other)} of {len(optimized)} outputs differ: {texts}"
    )


def _print_levels(compared: Sequence[LevelComparison]) -> None:
    """Prints the SQNR of each output on each kind of generated data; earlier figures are those of the worst."""
    if len(compared) < 2:
        return
    names = [o.name for o in compared[0].outputs]
    table = new_table("SQNR dB on generated data of", *(escape(n) for n in names))
    for level in compared:
        table.add_row(level.name, *(f"{o.sqnr_db:.1f}" for o in level.outputs))
    out(table)


def _print(comparison: Sequence[OutputComparison]) -> None:
    columns = ["output", "SQNR dB", "max abs difference", "cosine", "equal"]
    codes = any(c.equal_codes is not None for c in comparison)
    table = new_table(*columns, *(["equal quantized"] if codes else []))
    for c in comparison:
        share = [] if not codes else ["-"] if c.equal_codes is None else [f"{c.equal_codes:.1%}"]
        table.add_row(
            escape(c.name), f"{c.sqnr_db:.1f}", f"{c.max_abs:.3g}", f"{c.cosine:.6f}", f"{c.equal:.1%}", *share
        )
    out(table)


def _print_over_time(compared: Sequence[LevelComparison]) -> None:
    """Prints how errors develop over time on the data of the verdict, which comes first."""
    first = compared[0]
    timed = [(c.name, c.steps) for c in first.outputs if c.steps is not None and len(c.steps.sqnr_db) > 1]
    if timed:
        spans = max(len(s.spans_db) for _, s in timed)
        numbers = [str(k + 1) for k in range(spans)]
        title = "SQNR dB over time" + (f", {first.name}" if len(compared) > 1 else "")
        table = new_table(title, "steps", *numbers, "worst", "first quarter -> last: trend")
        for name, s in timed:
            levels = [f"{v:.1f}" for v in s.spans_db] + [""] * (spans - len(s.spans_db))
            worst = f"{s.unit} {s.worst}: {s.sqnr_db[s.worst]:.1f}" if s.sqnr_db[s.worst] < math.inf else "-"
            quarters = f"{s.quarters_db[0]:.1f} -> {s.quarters_db[-1]:.1f}: {s.trend}"
            table.add_row(escape(name), str(len(s.sqnr_db)), *levels, worst, quarters)
        out(table)
    untimed = [escape(c.name) for c in first.outputs if c.steps is None]
    if untimed:
        out(f"without time steps: {', '.join(untimed)} (no axis along which recurrent layers run is known)")
