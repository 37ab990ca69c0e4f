"""`rnnqc verify`: compares two models."""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table

from rnnqc.commands.common import CHECK_FAILED, OK, Commands, add_data, add_repeated, add_state, json_text
from rnnqc.commands.terminal import err, escape, out
from rnnqc.commands.thresholds import MEASURES, Thresholds
from rnnqc.errors import CompileError, UsageError, located

if TYPE_CHECKING:
    import onnx

    from rnnqc.measure.compare import LevelComparison
    from rnnqc.measure.differences import OutputComparison
    from rnnqc.measure.feeds import Level

FEEDS, STREAM = 2, 16
"""Generated feeds of each kind, or calls of a stream."""


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
        "--native",
        action="store_true",
        help="also fail if the native library is not bit-exact with the standard operators",
    )
    parser.add_argument("--json", action="store_true", help="every figure, of every step")
    parser.set_defaults(command=run)


def run(a: argparse.Namespace) -> int:
    """Runs the command; the exit code."""
    thresholds = Thresholds.parse({m.option: getattr(a, m.option[2:].replace("-", "_")) for m in MEASURES})
    reference, candidate = _models(a)
    thresholds.check([o.name for o in reference.graph.output])
    with located(a.float_model):
        levels = _levels(a.data, reference, candidate, a.state)
    try:
        found = _compared(a, reference, candidate, levels)
    except CompileError as error:
        if not a.data:
            error.action = "check that the models run in onnxruntime; give data that fits them with --data"
        raise
    failures = found.failures(thresholds)
    if a.json:
        print(json_text(_json_data(a, found, thresholds, failures)))
    else:
        _print_found(a, found)
    for text in _large_inputs(levels):
        err(f"[yellow]rnnqc:[/yellow] {escape(text)}")
    for text in failures:
        err(f"[red]rnnqc: verify:[/red] {escape(text)}")
    return CHECK_FAILED if failures else OK


@dataclass(frozen=True)
class _Found:
    """What the comparisons came to.

    Attributes:
        feeds: How many feeds, or calls of a stream.
        levels: Of the float model and the lowered one.
        native: Of the lowered model without and with the native library; empty if it was not asked for.
        optimized: The same with onnxruntime's graph optimizations.
    """

    feeds: int
    levels: list[LevelComparison]
    native: list[OutputComparison]
    optimized: list[OutputComparison]

    @property
    def worst(self) -> dict[str, tuple[str, OutputComparison]]:
        """Of each output the comparison with the least SQNR, with the name of its level."""
        from rnnqc.measure.compare import worst_level

        return worst_level(self.levels)

    def failures(self, thresholds: Thresholds) -> list[str]:
        """A sentence for everything that is not as asked for."""
        from rnnqc.measure.differences import unlike_texts

        unlike = dict.fromkeys(text for level in self.levels for text in unlike_texts(level.outputs))
        return [*unlike, *thresholds.violations(self.levels), *_other_bits(self.native)]


def _models(a: argparse.Namespace) -> tuple[onnx.ModelProto, onnx.ModelProto]:
    """The two models as onnxruntime can run them."""
    from rnnqc.data.binding import bound_like
    from rnnqc.lowering.executable import executable
    from rnnqc.proto.files import load_proto

    loaded = []
    for path in (a.float_model, a.quantized_model):
        with located(path):
            loaded.append(load_proto(Path(path)))
    _check_order(a, *loaded)
    with located(a.float_model):
        reference = executable(bound_like(*loaded))
    with located(a.quantized_model):
        return reference, executable(loaded[1])


def _json_data(a: argparse.Namespace, found: _Found, thresholds: Thresholds, failures: Sequence[str]) -> dict[str, Any]:
    native = [{"name": c.name, "same_bits": c.same_bits, "equal": c.equal} for c in found.native]
    optimized = [{"name": c.name, "same_bits": c.same_bits, "max_abs": c.max_abs} for c in found.optimized]
    return {
        "feeds": found.feeds,
        "generated": a.data is None,
        "states": list(a.state),
        "outputs": [{**_described(c), "level": level} for level, c in found.worst.values()],
        "levels": {level.name: {o.name: o.sqnr_db for o in level.outputs} for level in found.levels},
        "native": native or None,
        "native_optimized": optimized or None,
        "min_sqnr_db": thresholds.everywhere("--min-sqnr"),
        "thresholds": {k: {n or "*": t for n, t in v.items()} for k, v in thresholds.asked.items()},
        "failures": list(failures),
        "ok": not failures,
    }


def _print_found(a: argparse.Namespace, found: _Found) -> None:
    what = "call(s) of a stream" if a.state else "feed(s)"
    out(f"{found.feeds} {'given' if a.data else 'generated'} {what}")
    _print([c for _, c in found.worst.values()])
    _print_levels(found.levels)
    if found.native and all(c.same_bits for c in found.native):
        _print_native(found.native, found.optimized)


def _large_inputs(levels: Sequence[Level]) -> list[str]:
    """A sentence for each input that is larger than the values quantized layers compute with."""
    from rnnqc.data.large_inputs import LargeInputs

    large = LargeInputs()
    for feed in (f for level in levels for f in level.feeds):
        large.look(feed)
    return large.texts


def _check_order(a: argparse.Namespace, reference: onnx.ModelProto, candidate: onnx.ModelProto) -> None:
    """Refuses the two models in the wrong order: the noise would be set against the quantized signal.

    Raises:
        UsageError: The first one is lowered, the second one is not.
    """
    from rnnqc.ir import Model
    from rnnqc.passes.analysis.find_recurrent_nodes import lowered_nodes

    lowered = []
    for path, proto in ((a.float_model, reference), (a.quantized_model, candidate)):
        with located(path):
            lowered.append(bool(lowered_nodes(Model.load(proto))))
    if lowered == [True, False]:
        raise UsageError(
            f"{a.float_model} is a lowered model, and {a.quantized_model} is not.",
            supported="rnnqc verify FLOAT.onnx QUANT.onnx",
            action=f"swap the two: rnnqc verify {a.quantized_model} {a.float_model}",
        )


def _levels(data: str | None, reference: Any, candidate: Any, state: Sequence[str]) -> list[Level]:
    """What to run on: feeds, or the calls of a stream; of several magnitudes where they are generated."""
    from rnnqc.data.feeds import open_feeds, with_dimensions_of
    from rnnqc.data.streaming import checked, state_pairs
    from rnnqc.measure.feeds import FeedGenerator, Level, generated_levels

    carried = state_pairs(state, reference)
    if data is not None:
        given = checked(open_feeds(data, reference, carried), reference, None, carried, True, filled=True)
        return [Level("given data", list(given))]
    generator = FeedGenerator(with_dimensions_of(reference, candidate)).checked()
    return list(generated_levels(generator, STREAM if carried else FEEDS, carried))


def _compared(a: argparse.Namespace, reference: Any, candidate: Any, levels: Sequence[Level]) -> _Found:
    """Compares the models, and with --native the lowered one without and with the native library."""
    from rnnqc.measure.compare import LevelComparison, compare_levels, compare_models, compare_native

    names = (a.float_model, a.quantized_model)
    feeds = [feed for level in levels for feed in level.feeds]
    if a.data is None:
        compared = list(compare_levels(reference, candidate, levels, names=names, state=a.state))
    else:
        (level,) = levels
        outputs = compare_models(reference, candidate, feeds, names=names, state=a.state)
        compared = [LevelComparison(level.name, outputs)]
    native, optimized = (
        compare_native(candidate, feeds, name=a.quantized_model, state=a.state, optimize=o) if a.native else []
        for o in (False, True)
    )
    return _Found(len(feeds), compared, native, optimized)


def _other_bits(native: Sequence[OutputComparison]) -> list[str]:
    texts = []
    for c in native:
        if not c.same_bits:
            step = next((t for t, share in enumerate(c.steps.equal) if share < 1.0), None) if c.steps else None
            where = f", first at {c.steps.unit} {step}" if c.steps and step is not None else ""
            share = f"{1 - c.equal:.2%} of values differ{where}"
            texts.append(f"output {c.name!r}: the native library is not bit-exact ({share}).")
    return texts


def _print_native(native: Sequence[OutputComparison], optimized: Sequence[OutputComparison]) -> None:
    """What of the two ways to run a model was compared, and is the same."""
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


def _described(c: OutputComparison) -> dict[str, Any]:
    data = asdict(c)
    if c.steps is not None:
        data["steps"] |= {"count": len(c.steps.sqnr_db), "worst": c.steps.worst, "growing": c.steps.growing}
    return data


def _print_levels(compared: Sequence[LevelComparison]) -> None:
    """The SQNR of each output on each kind of generated data; the figures before are those of the worst."""
    if len(compared) < 2:
        return
    names = [o.name for o in compared[0].outputs]
    table = Table("SQNR dB on generated data of", *(escape(n) for n in names), box=None, pad_edge=False)
    for level in compared:
        table.add_row(level.name, *(f"{o.sqnr_db:.1f}" for o in level.outputs))
    out(table)


def _print(comparison: Sequence[OutputComparison]) -> None:
    columns = ["output", "SQNR dB", "max abs difference", "cosine", "equal"]
    codes = any(c.equal_codes is not None for c in comparison)
    table = Table(*columns, *(["equal quantized"] if codes else []), box=None, pad_edge=False)
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
