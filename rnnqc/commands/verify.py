"""`rnnqc verify`: compares two models."""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table

from rnnqc.commands.common import CHECK_FAILED, OK, Commands, add_data, add_repeated, add_state, json_text
from rnnqc.commands.terminal import err, escape, out
from rnnqc.commands.thresholds import MEASURES, Thresholds
from rnnqc.diagnostics import CompileError, located

if TYPE_CHECKING:
    from rnnqc.verify import OutputComparison


def add(commands: Commands) -> None:
    """Adds the command's parser."""
    parser = commands.add_parser("verify", help="compare a quantized model with the float one")
    parser.add_argument("float_model", metavar="FLOAT.onnx")
    parser.add_argument("quantized_model", metavar="QUANT.onnx")
    add_data(parser, required=False)
    add_state(
        parser, "the data is the calls of a stream: output OUT of one is input IN of the next, in each model its own"
    )
    for measure in MEASURES:
        text = f"fail (exit code 1) if an output, or output NAME, {measure.help}"
        add_repeated(parser, measure.option, f"[NAME=]{measure.unit}", text)
    parser.add_argument(
        "--native", action="store_true", help="also fail if the native library gives other bits than standard operators"
    )
    parser.add_argument("--json", action="store_true", help="every figure, of every step")
    parser.set_defaults(command=run)


def run(a: argparse.Namespace) -> int:
    """Runs the command; the exit code."""
    from rnnqc.comparison import unlike_texts
    from rnnqc.files import load_proto
    from rnnqc.large_inputs import LargeInputs
    from rnnqc.pipeline import executable
    from rnnqc.verify import compare_models, compare_native

    thresholds = Thresholds.parse({m.option: getattr(a, m.option[2:].replace("-", "_")) for m in MEASURES})
    protos = []
    for path in (a.float_model, a.quantized_model):
        with located(path):
            protos.append(executable(load_proto(Path(path))))
    reference, candidate = protos
    thresholds.check([o.name for o in reference.graph.output])
    with located(a.float_model):
        feeds = _feeds(a.data, reference, candidate, a.state)
    native = []
    try:
        comparison = compare_models(
            reference, candidate, feeds, names=(a.float_model, a.quantized_model), state=a.state
        )
        if a.native:
            native = compare_native(candidate, feeds, name=a.quantized_model, state=a.state)
    except CompileError as error:
        if not a.data:
            error.action = "check that the models run in onnxruntime; give data that fits them with --data"
        raise
    failures = [*unlike_texts(comparison), *thresholds.violations(comparison), *_other_bits(native)]
    if a.json:
        data = {
            "feeds": len(feeds),
            "generated": a.data is None,
            "states": list(a.state),
            "outputs": [_described(c) for c in comparison],
            "native": [{"name": c.name, "same_bits": c.same_bits, "equal": c.equal} for c in native] or None,
            "min_sqnr_db": thresholds.everywhere("--min-sqnr"),
            "thresholds": {k: {n or "*": t for n, t in v.items()} for k, v in thresholds.asked.items()},
            "failures": failures,
            "ok": not failures,
        }
        print(json_text(data))
    else:
        what = "call(s) of a stream" if a.state else "feed(s)"
        out(f"{len(feeds)} {'given' if a.data else 'generated'} {what}")
        _print(comparison)
        if native and all(c.same_bits for c in native):
            out("native library: the same bits")
    large = LargeInputs()
    for feed in feeds:
        large.look(feed)
    for text in large.texts:
        err(f"[yellow]rnnqc:[/yellow] {escape(text)}")
    for text in failures:
        err(f"[red]rnnqc: verify:[/red] {escape(text)}")
    return CHECK_FAILED if failures else OK


def _feeds(data: str | None, reference: Any, candidate: Any, state: Sequence[str]) -> list[Any]:
    """What to run on: feeds, or the calls of a stream."""
    from rnnqc.comparison_feeds import generated_feeds, generated_stream
    from rnnqc.feeds import open_feeds, with_dimensions_of
    from rnnqc.streaming import checked, state_pairs

    carried = state_pairs(state, reference)
    if data is not None:
        return list(checked(open_feeds(data, reference, carried), reference, None, carried, True, filled=True))
    bound = with_dimensions_of(reference, candidate)
    return generated_stream(bound, carried) if carried else generated_feeds(bound, 4)


def _other_bits(native: Sequence[OutputComparison]) -> list[str]:
    texts = []
    for c in native:
        if not c.same_bits:
            step = next((t for t, share in enumerate(c.steps.equal) if share < 1.0), None) if c.steps else None
            where = f", first at {c.steps.unit} {step}" if c.steps and step is not None else ""
            share = f"{1 - c.equal:.2%} of values{where}"
            texts.append(f"output {c.name!r}: the native library gives other bits ({share}).")
    return texts


def _described(c: OutputComparison) -> dict[str, Any]:
    data = asdict(c)
    if c.steps is not None:
        data["steps"] |= {"count": len(c.steps.sqnr_db), "worst": c.steps.worst, "growing": c.steps.growing}
    return data


def _print(comparison: Sequence[OutputComparison]) -> None:
    columns = ["output", "SQNR dB", "max |difference|", "cosine", "equal"]
    codes = any(c.equal_codes is not None for c in comparison)
    table = Table(*columns, *(["equal codes"] if codes else []), box=None, pad_edge=False)
    for c in comparison:
        share = [] if not codes else ["-"] if c.equal_codes is None else [f"{c.equal_codes:.1%}"]
        table.add_row(
            escape(c.name), f"{c.sqnr_db:.1f}", f"{c.max_abs:.3g}", f"{c.cosine:.6f}", f"{c.equal:.1%}", *share
        )
    out(table)
    timed = [(c.name, c.steps) for c in comparison if c.steps is not None and len(c.steps.sqnr_db) > 1]
    if timed:
        spans = max(len(s.spans_db) for _, s in timed)
        numbers = [str(k + 1) for k in range(spans)]
        table = Table("SQNR dB over time", "steps", *numbers, "worst", "trend", box=None, pad_edge=False)
        for name, s in timed:
            levels = [f"{v:.1f}" for v in s.spans_db] + [""] * (spans - len(s.spans_db))
            worst = f"{s.unit} {s.worst}: {s.sqnr_db[s.worst]:.1f}" if s.sqnr_db[s.worst] < math.inf else "-"
            table.add_row(escape(name), str(len(s.sqnr_db)), *levels, worst, "growing" if s.growing else "steady")
        out(table)
    untimed = [escape(c.name) for c in comparison if c.steps is None]
    if untimed:
        out(f"without time steps: {', '.join(untimed)} (no axis along which recurrent layers run is known)")
