"""The command line: lower, inspect, run, calibrate, tune, verify, bench, recipes, passes, doctor.

Exit codes: 0 done; 1 a check failed; 2 bad usage or bad input; 3 `--strict` found a recurrent node that stays float.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import platform
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn, TextIO

import numpy as np
from rich.console import Console
from rich.markup import escape as escape_markup
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from rnnqc.diagnostics import CompileError, InternalError, Outcome, Remark, RnnqcError, UsageError, located

OK, CHECK_FAILED, BAD_INPUT, STRICT = 0, 1, 2, 3
INTERRUPTED, TERMINATED = 130, 143


def escape(text: str) -> str:
    """`text` on one line, for rich: names in models may hold line breaks, terminal sequences and rich's own markup."""
    return escape_markup("".join(c if c.isprintable() else " " if c.isspace() else repr(c)[1:-1] for c in text))


def _console(stream: TextIO) -> Console:
    """Lines that are not for a terminal stay whole, so that they can be searched."""
    if hasattr(stream, "reconfigure"):
        stream.reconfigure(errors="backslashreplace")
    return Console(file=stream, highlight=False, soft_wrap=True, width=None if stream.isatty() else 400)


_out = _console(sys.stdout)
_err = _console(sys.stderr)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}.", action=f"see `{self.prog} --help`")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command.

    Args:
        argv: Arguments without the program's name; those of the process by default.

    Returns:
        The exit code.
    """
    global _out, _err
    _out, _err = _console(sys.stdout), _console(sys.stderr)
    try:
        with _orderly_termination():
            arguments = _parser().parse_args(_separated(sys.argv[1:] if argv is None else argv))
            return int(arguments.command(arguments))
    except InternalError as error:
        _err.print(f"[red]rnnqc: a check failed:[/red] {escape(str(error))}")
        return CHECK_FAILED
    except RnnqcError as error:
        _err.print(f"[red]rnnqc: error:[/red] {escape(str(error))}")
        return BAD_INPUT
    except SystemExit as stop:
        return int(stop.code or 0) if isinstance(stop.code, int) or stop.code is None else BAD_INPUT
    except KeyboardInterrupt:
        _err.print("rnnqc: interrupted")
        return INTERRUPTED
    except MemoryError:
        _err.print("[red]rnnqc: error:[/red] out of memory.")
        return BAD_INPUT
    except BrokenPipeError:
        sys.stderr.close()
        return OK
    except Exception as error:
        if os.environ.get("RNNQC_TRACEBACK"):
            raise
        frame = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{type(error).__name__} in {Path(frame.filename).name}:{frame.lineno}"
        _err.print(
            f"[red]rnnqc: internal error:[/red] {escape(str(error))} ({escape(place)}). "
            "Resolution: report it, with the model and the traceback that RNNQC_TRACEBACK=1 shows."
        )
        return CHECK_FAILED


@contextlib.contextmanager
def _orderly_termination() -> Iterator[None]:
    """Lets SIGTERM unwind as an exception does, so that no temporary file is left."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(TERMINATED))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


def _parser() -> argparse.ArgumentParser:
    from rnnqc import __version__

    parser = _Parser(
        prog="rnnqc", description="Quantizes recurrent layers of ONNX models and runs them in onnxruntime."
    )
    parser.add_argument("--version", action="version", version=f"rnnqc {__version__}")
    commands = parser.add_subparsers(dest="name", required=True, parser_class=_Parser, metavar="COMMAND")

    lower = commands.add_parser("lower", help="lower a float model to a quantized one")
    lower.add_argument("model", metavar="IN.onnx")
    lower.add_argument("-o", "--output", required=True, metavar="OUT.onnx")
    lower.add_argument(
        "--recipe", metavar="NAME|FILE.toml",
        help="default int8, or none for a model that brings its own quantization; `rnnqc recipes` lists them",
    )  # fmt: skip
    source = lower.add_mutually_exclusive_group()
    source.add_argument(
        "--calibration", metavar="DATA", help="calibrate with an .npz, a directory of .npz, or module:function"
    )
    source.add_argument("--stats", metavar="STATS.json", help="statistics of `rnnqc calibrate`")
    lower.add_argument(
        "--state", action="append", default=[], metavar="IN:OUT",
        help="the calibration data is the calls of a stream: output OUT of one is input IN of the next",
    )  # fmt: skip
    lower.add_argument(
        "--form",
        choices=("fused", "integer", "qcdq", "qonnx"),
        default=None,
        help="default fused; qonnx: Brevitas' cells",
    )
    lower.add_argument(
        "--unroll", action="store_true", help="write loops out; needs static sequence lengths, implies --form integer"
    )
    lower.add_argument(
        "--dim", action="append", default=[], metavar="NAME=N", help="bind symbolic dimensions; several may follow"
    )
    lower.add_argument(
        "--set",
        action="append",
        default=[],
        dest="overrides",
        metavar="PATH=VALUE",
        help="override a recipe entry, the first match wins; several may follow",
    )
    lower.add_argument("--strict", action="store_true", help="fail (exit code 3) if a recurrent node stays float")
    lower.add_argument(
        "--verify", action="store_true", help="compare the numerics after every pass with what it declares"
    )
    lower.add_argument("--min-sqnr", type=_decibels, metavar="DB", help="fail if an output has less, on generated data")
    lower.add_argument("--json", metavar="OUT.json", dest="json_path", help="write the report")
    _verbosity(lower)
    lower.set_defaults(command=_lower)

    inspect = commands.add_parser("inspect", help="list recurrent layers and what lowering would do with each")
    inspect.add_argument("model", metavar="MODEL")
    inspect.add_argument("--json", action="store_true")
    inspect.set_defaults(command=_inspect)

    run = commands.add_parser("run", help="run a model on an .npz of inputs")
    run.add_argument("model", metavar="MODEL")
    run.add_argument("-i", "--input", required=True, metavar="IN.npz")
    run.add_argument("-o", "--output", required=True, metavar="OUT.npz")
    run.add_argument("--stock", action="store_true", help="without the native library")
    run.add_argument(
        "--state", action="append", default=[], metavar="IN:OUT",
        help="carry states: the leading axis of other arrays counts calls; output OUT of one is input IN of the next",
    )  # fmt: skip
    run.set_defaults(command=_run)

    calibrate = commands.add_parser("calibrate", help="measure the values at quantization points on data")
    calibrate.add_argument("model", metavar="IN.onnx")
    calibrate.add_argument(
        "--data", required=True, metavar="DATA", help=".npz, a directory of .npz, or module:function"
    )
    calibrate.add_argument("-o", "--output", required=True, metavar="STATS.json")
    calibrate.add_argument(
        "--state", action="append", default=[], metavar="IN:OUT",
        help="carry states: samples are calls, output OUT of one is input IN of the next",
    )  # fmt: skip
    calibrate.add_argument("--num-samples", type=int, metavar="N", help="use N samples, the first ones")
    calibrate.add_argument("--seed", type=int, metavar="S", help="draw the N samples at random")
    calibrate.add_argument("--processes", type=int, default=1, metavar="N", help="default 1; the file is the same")
    calibrate.add_argument(
        "--scheduler", metavar="ADDRESS", help="work on the machines of this dask scheduler; the file is the same"
    )
    calibrate.add_argument(
        "--no-moments", action="store_false", dest="moments",
        help="leave out second moments, which error-compensated rounding needs",
    )  # fmt: skip
    calibrate.set_defaults(command=_calibrate)

    layer = commands.add_parser("layer", help="make a layer of a model of its cell (one step)")
    layer.add_argument("cell", metavar="CELL.onnx", help="x and states in, the states after the step out")
    layer.add_argument("-o", "--output", required=True, metavar="OUT.onnx")
    layer.add_argument(
        "--state", action="append", default=[], metavar="IN:OUT",
        help="a state and what becomes of it; by default the inputs after the first and the first outputs, in order",
    )  # fmt: skip
    layer.add_argument("--reverse", action="store_true", help="run from the last step to the first")
    layer.add_argument("--lengths", action="store_true", help="add an input sequence_lens")
    layer.add_argument("--initial-states", action="store_true", help="make the initial states inputs")
    layer.set_defaults(command=_layer)

    tune = commands.add_parser("tune", help="search the cheapest widths with which a model is good enough")
    tune.add_argument("model", metavar="IN.onnx")
    tune.add_argument("--data", required=True, metavar="DATA", help=".npz, a directory of .npz, or module:function")
    tune.add_argument("-o", "--output", required=True, metavar="OUT.toml", help="the recipe that was found")
    tune.add_argument("--min-sqnr", type=_decibels, metavar="DB", help="the least SQNR of every output")
    tune.add_argument(
        "--metric", metavar="MODULE:FUNCTION",
        help="instead: a function of the outputs and inputs of all calls, two lists of dicts; higher is better",
    )  # fmt: skip
    tune.add_argument("--min-metric", type=_number, metavar="V", help="the least value of the metric")
    tune.add_argument(
        "--stats", metavar="STATS.json", help="statistics of a calibration: weights are error-compensated"
    )
    tune.add_argument("--recipe", default="int8", metavar="NAME|FILE.toml", help="what to begin with, default int8")
    tune.add_argument(
        "--state", action="append", default=[], metavar="IN:OUT",
        help="carry states: samples are calls, output OUT of one is input IN of the next",
    )  # fmt: skip
    tune.add_argument("--json", action="store_true")
    tune.set_defaults(command=_tune)

    verify = commands.add_parser("verify", help="compare a quantized model with the float one")
    verify.add_argument("float_model", metavar="FLOAT.onnx")
    verify.add_argument("quantized_model", metavar="QUANT.onnx")
    verify.add_argument(
        "--data", metavar="DATA", help=".npz, a directory of .npz, or module:function; generated by default"
    )
    verify.add_argument("--min-sqnr", type=_decibels, metavar="DB", help="fail (exit code 1) if an output has less")
    verify.add_argument("--json", action="store_true")
    verify.set_defaults(command=_verify)

    bench = commands.add_parser("bench", help="measure a model stock and native, next to the float model")
    bench.add_argument("model", metavar="MODEL", help="a lowered model, or a float one, which is lowered on the fly")
    bench.add_argument("--against", metavar="FLOAT.onnx", help="the float model that MODEL was lowered from")
    bench.add_argument("--threads", type=int, default=1, metavar="N", help="threads of every session, default 1")
    bench.add_argument("--rounds", type=int, default=10, metavar="N", help="turns of every session, default 10")
    bench.add_argument("-i", "--input", metavar="IN.npz", help="inputs; generated by default")
    bench.add_argument(
        "--dim", action="append", default=[], metavar="NAME=N",
        help="sizes of symbolic dimensions for generated inputs; several may follow",
    )  # fmt: skip
    bench.add_argument("--json", action="store_true")
    bench.set_defaults(command=_bench)

    recipes = commands.add_parser("recipes", help="list recipes, quantization points and keys")
    recipes.add_argument("recipe", nargs="?", metavar="NAME", help="print the rules of one recipe")
    recipes.set_defaults(command=_recipes)
    passes = commands.add_parser("passes", help="list the passes of the default pipeline")
    passes.add_argument("--markdown", action="store_true", help="as a table for documents")
    passes.set_defaults(command=_passes)
    doctor = commands.add_parser("doctor", help="check the installation")
    doctor.set_defaults(command=_doctor)
    return parser


def _verbosity(parser: argparse.ArgumentParser) -> None:
    group = parser.add_mutually_exclusive_group()
    group.add_argument("-q", "--quiet", action="store_true", help="errors and float layers only")
    group.add_argument("-v", "--verbose", action="store_true", help="all remarks and the time of each pass")


def _decibels(text: str) -> float:
    value = float(text)
    if math.isnan(value):
        raise ValueError(text)
    return value


def _number(text: str) -> float:
    return _decibels(text)


_number.__name__ = "number"
_decibels.__name__ = "number of decibels"  # what argparse calls it in messages


# Options that take several values, and what is in every value.
_MANY = {"--dim": "=", "--set": "=", "--state": ":"}


def _separated(argv: Sequence[str]) -> list[str]:
    """Gives every value of `--dim A=1 B=2` an option of its own: argparse would take the model for a value, too."""
    result: list[str] = []
    option, given = "", 0
    for text in argv:
        if option and (given == 0 or _MANY[option] in text) and not text.startswith("-"):
            result.append(f"{option}={text}")
            given += 1
            continue
        if option and given == 0:
            result.append(option)  # argparse says what is missing
        option, given = (text, 0) if text in _MANY else ("", 0)
        if not option:
            result.append(text)
    return [*result, option] if option and given == 0 else result


def _pairs(texts: Sequence[str], option: str) -> dict[str, int]:
    result: dict[str, int] = {}
    for text in texts:
        name, separator, size = text.rpartition("=")
        if not (separator and name and size.isascii() and size.isdecimal() and len(size) < 19):
            raise UsageError(
                f"{option} {text!r}: not of the form NAME=N.",
                supported="sizes from 1 on",
                action=f"for example {option} T=100",
            )
        if result.setdefault(name, int(size)) != int(size):
            raise UsageError(
                f"{option} {name} has two values, {result[name]} and {size}.", supported="one", action="leave one out"
            )
    return result


def _lower(a: argparse.Namespace) -> int:
    from rnnqc.files import check_writable, write_atomically
    from rnnqc.passes.instruments import NOT_COMPARED
    from rnnqc.pipeline import lower

    output = Path(a.output)
    read = [a.stats, a.calibration, a.recipe]
    check_writable(output, [a.model, *read])
    if a.json_path:
        check_writable(Path(a.json_path), read)
    if a.json_path and Path(a.json_path).resolve() in (output.resolve(), Path(a.model).resolve()):
        raise UsageError(f"--json {a.json_path}: is the model.", action="choose another file for the report")
    start = time.perf_counter()
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=_err, transient=True, disable=a.quiet or not _err.is_terminal) as progress:
        task = progress.add_task("load", total=None)

        def tell(name: str) -> None:
            progress.update(task, description=name)

        lowered = lower(
            a.model, a.recipe, a.form, calibration=a.calibration, stats=a.stats, state=a.state,
            unroll=a.unroll, dims=_pairs(a.dim, "--dim"), overrides=a.overrides, verify=a.verify,
            reproducer=f"{a.output}.reproducer" if a.verify else None, measure=a.min_sqnr is not None, progress=tell,
        )  # fmt: skip
    report = lowered.report
    for entry in report.entries:
        if entry.reason:
            _err.print(f"[yellow]rnnqc:[/yellow] {escape(entry.explanation)}")
    if not report.entries:
        _err.print("[yellow]rnnqc:[/yellow] the model has no recurrent layer; nothing was quantized.")
    for warning in report.warnings:
        _err.print(f"[yellow]rnnqc:[/yellow] {escape(warning)}")
    for name in sorted({n for n, text in report.checks if text.startswith(NOT_COMPARED)}):
        reason = "onnxruntime does not run the model before it"
        _err.print(f"[yellow]rnnqc: --verify:[/yellow] pass {name!r} was not compared: {reason}.")
    code = OK
    if a.strict and report.float_entries:
        count = len(report.float_entries)
        _err.print(f"[red]rnnqc: --strict:[/red] {count} recurrent node(s) stay float; nothing was written.")
        code = STRICT
    below = {n: v for n, v in report.sqnr_db.items() if a.min_sqnr is not None and v < a.min_sqnr}
    if code == OK and below:
        name, value = min(below.items(), key=lambda p: p[1])
        text = f"output {name!r} has {value:.1f} dB, {a.min_sqnr:g} dB asked for; nothing was written."
        _err.print(f"[red]rnnqc: --min-sqnr:[/red] {escape(text)}")
        code = CHECK_FAILED
    if a.json_path:
        data = {k: v for k, v in report.as_dict().items() if k != "seconds"}  # two runs write the same bytes
        write_atomically(Path(a.json_path), (_json(data) + "\n").encode())
    if code == OK:
        lowered.save(output)
    if not a.quiet and report.entries:
        _print_entries(report)
        if code == OK:
            sizes = f"{_bytes(report.float_bytes)} -> {_bytes(report.bytes)}"
            _out.print(f"{escape(a.output)}: {sizes}, {time.perf_counter() - start:.1f} s")
    if not a.quiet and code == OK:
        if a.verify:
            _out.print(f"verified: {len({n for n, _ in report.checks})} passes changed no more than they declare")
        if report.sqnr_db:
            name, value = min(report.sqnr_db.items(), key=lambda p: p[1])
            _out.print(f"SQNR on generated data: at least {value:.1f} dB (output {escape(repr(name))})")
    if a.verbose:
        for note in report.notes:
            _err.print(escape(note))
        for name, seconds in report.seconds:
            _err.print(f"{seconds:8.3f} s  {name}")
        for name, text in report.checks:
            _err.print(f"verified {escape(name)}: {escape(text)}")
    return code


def _print_entries(report: Any) -> None:
    table = Table("node", "op", "status", "weights", box=None, pad_edge=False)
    for e in report.entries:
        status = f"{e.status} ({e.form})" if e.form else e.status
        weights = f"{_bytes(e.float_bytes)} -> {_bytes(e.bytes)}" if e.status == "lowered" else _bytes(e.float_bytes)
        table.add_row(
            escape(e.node),
            e.op,
            status + (f": {escape(e.reason)}" if e.reason and e.status == "lowered" else ""),
            weights,
        )
    _out.print(table)


def _bytes(count: int) -> str:
    return (
        f"{count} B" if count < 10_000 else f"{count / 1e3:.0f} kB" if count < 10_000_000 else f"{count / 1e6:.1f} MB"
    )


def _json(data: Any) -> str:
    return json.dumps(_finite(data), indent=2, sort_keys=True, allow_nan=False)


def _finite(data: Any) -> Any:
    """JSON has no infinity: "inf" instead."""
    if isinstance(data, dict):
        return {k: _finite(v) for k, v in data.items()}
    if isinstance(data, list | tuple):
        return [_finite(v) for v in data]
    if isinstance(data, float) and not math.isfinite(data):
        return str(data)
    return data


def _inspect(a: argparse.Namespace) -> int:
    from rnnqc.ir import Model
    from rnnqc.passes import DecomposeLstm, PassManager, ReadQuantLstmCell
    from rnnqc.passes.inventory import lowered_nodes, recurrent_nodes
    from rnnqc.passes.lost_layers import ACTION, independent_outputs
    from rnnqc.passes.normal_form import normal_form
    from rnnqc.pipeline import brings_its_own

    model = Model.load(a.model)
    opset = model.opset
    independent = independent_outputs(model)
    earlier = lowered_nodes(model)
    with located(a.model):
        PassManager(normal_form(keep_codes=brings_its_own(model))).run(model)
        present = recurrent_nodes(model)
        remarks = [*ReadQuantLstmCell()(model).remarks, *DecomposeLstm()(model).remarks]
        refused = {r.node: r for r in remarks if r.outcome is Outcome.FLOAT}
        notes: dict[str, list[Remark]] = {}
        for remark in remarks:
            if remark.outcome is Outcome.NOTE and remark.action:
                notes.setdefault(remark.node, []).append(remark)
    nodes = [n.refused(refused[n.path]) if n.path in refused and not n.form else n for n in present] + earlier
    cells: dict[str, list[str]] = {}
    for cell in model.cells.values():
        cells.setdefault(cell.node, []).append(cell.name)
    if a.json:
        entries = [
            {
                "node": n.path, "op": n.op, "attributes": n.attributes, "weight_bytes": n.weight_bytes,
                "lowering": n.status, "form": n.form, "cells": cells.get(n.path, []),
                "reason": n.refusal[0], "found": n.refusal[1], "action": n.refusal[2],
                "notes": [{"reason": r.reason, "found": r.found, "action": r.action} for r in notes.get(n.path, [])],
            }
            for n in nodes
        ]  # fmt: skip
        print(_json({"model": a.model, "opset": opset, "nodes": entries, "independent_outputs": independent}))
        return OK
    _out.print(f"{escape(a.model)}: operator set {opset}, {len(nodes)} recurrent node(s)")
    table = Table("node", "op", "I", "H", "T", "B", "direction", "options", "lowering", box=None, pad_edge=False)
    for n in nodes:
        at = n.attributes
        options = [*at.get("inputs", []), *([f"clip={at['clip']:g}"] if at.get("clip") else [])]
        options += ["input_forget"] if at.get("input_forget") else []
        options += at.get("activations", [])
        options += [at["type"]] if at.get("type") else []
        sizes = [
            str(at.get(k) if at.get(k) is not None else "?")
            for k in ("input_size", "hidden_size", "sequence_length", "batch")
        ]
        verdict = {
            "lowered": "will be lowered: " + (" ".join(cells.get(n.path, [])) or f"{at.get('products', 0)} products"),
            "float": f"float: {n.refusal[0]} Found: {n.refusal[1]}. Resolution: {n.refusal[2]}.",
            "done": f"done ({n.form})",
        }[n.status]
        for r in notes.get(n.path, []):
            verdict += f". Note: {r.reason} Found: {r.found}. Resolution: {r.action}."
        table.add_row(*map(escape, (n.path, n.op, *sizes, str(at.get("direction") or ""), " ".join(options), verdict)))
    if nodes:
        _out.print(table)
    if independent:
        names = ", ".join(map(repr, independent))
        _err.print(f"[yellow]rnnqc:[/yellow] no input has an influence on output {escape(names)}; {escape(ACTION)}.")
    return OK


def _run(a: argparse.Namespace) -> int:
    import onnxruntime as ort

    from rnnqc.evaluate import run_session
    from rnnqc.feeds import check_feed, npz_bytes, read_npz
    from rnnqc.files import check_writable, load_proto, write_atomically
    from rnnqc.session import session

    check_writable(Path(a.output), [a.model, a.input])
    proto = load_proto(Path(a.model))
    feeds = read_npz(Path(a.input))
    if not a.state:
        check_feed(feeds, proto, a.input)
    options = ort.SessionOptions()
    options.log_severity_level = 4
    with located(a.model):
        live = session(proto, native=not a.stock, options=options)
        results = _run_streaming(live, proto, feeds, a.state, a.input) if a.state else run_session(live, feeds)
        write_atomically(Path(a.output), npz_bytes(results))
    for name, value in results.items():
        _out.print(f"{escape(name)}: {value.dtype} {list(value.shape)}")
    return OK


def _run_streaming(live: Any, proto: Any, feeds: dict[str, Any], states: Sequence[str], source: str) -> dict[str, Any]:
    from rnnqc.calibration.samples import state_pairs
    from rnnqc.evaluate import run_session
    from rnnqc.feeds import check_feed, true_inputs, zeros_of

    inputs = {i.name for i in true_inputs(proto)}
    carried = state_pairs(states, proto)
    varying = sorted(inputs - set(carried))
    missing = [n for n in varying if n not in feeds]
    if missing:
        raise CompileError(
            f"{source}: no array for input {missing[0]!r}; arrays: {', '.join(sorted(feeds)) or 'none'}.",
            supported=f"arrays named {', '.join(varying)}",
            action="name the arrays as the model's inputs",
        )
    counts = {feeds[n].shape[0] if feeds[n].ndim else 0 for n in varying}
    if len(counts) != 1 or 0 in counts:
        raise CompileError(
            f"{source}: arrays of {sorted(counts)} calls.",
            supported="one leading axis, from 1 on, in every array that is not carried",
            action="stack the inputs of the calls",
        )
    current = {n: feeds[n] for n in carried if n in feeds}
    for declared in true_inputs(proto):
        if declared.name in carried and declared.name not in current:
            if any(not d.HasField("dim_value") for d in declared.type.tensor_type.shape.dim):
                raise CompileError(
                    f"{source}: no array for the first {declared.name!r}, whose shape the model does not fix.",
                    supported="zeros by default, where the shape is fixed",
                    action="give its first value in the data",
                )
            current[declared.name] = zeros_of(declared)
    collected: dict[str, list[Any]] = {}
    for call in range(counts.pop()):
        feed = {**{n: feeds[n][call] for n in varying}, **current}
        check_feed(feed, proto, source)
        results = run_session(live, feed)
        current = {n: results[o] for n, o in carried.items()}
        for name, value in results.items():
            collected.setdefault(name, []).append(value)
    return {name: values[-1] if name in carried.values() else np.stack(values) for name, values in collected.items()}


def _layer(a: argparse.Namespace) -> int:
    from rnnqc.files import check_writable, serialized, write_atomically
    from rnnqc.layer import layer

    check_writable(Path(a.output), [a.cell])
    made = layer(a.cell, state=a.state, reverse=a.reverse, lengths=a.lengths, initial_states=a.initial_states)
    write_atomically(Path(a.output), serialized(made, a.output))
    inputs, outputs = (", ".join(v.name for v in values) for values in (made.graph.input, made.graph.output))
    _out.print(escape(f"{a.output}: {inputs} -> {outputs}"))
    return OK


def _calibrate(a: argparse.Namespace) -> int:
    from rnnqc.calibrate import calibrate
    from rnnqc.files import check_writable

    check_writable(Path(a.output), [a.model, a.data])
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    start = time.perf_counter()
    with Progress(*columns, console=_err, transient=True, disable=not _err.is_terminal) as shown:
        bar = shown.add_task("calibrating", total=None)
        statistics = calibrate(
            a.model,
            a.data,
            state=a.state,
            limit=a.num_samples,
            seed=a.seed,
            processes=a.processes,
            scheduler=a.scheduler,
            moments=a.moments,
            progress=lambda done, total: shown.update(bar, completed=done, total=total),
        )
    statistics.save(a.output)
    for cell in statistics.silent_cells:
        _err.print(f"[yellow]rnnqc:[/yellow] cell {escape(repr(cell))} never ran on this data; nothing is known of it.")
    samples, points = statistics.settings["samples"], len(statistics.points)
    seconds = time.perf_counter() - start
    _out.print(f"{escape(a.output)}: {points} quantization points, {samples} sample(s), {seconds:.1f} s")
    return OK


def _tune(a: argparse.Namespace) -> int:
    from rnnqc.files import check_writable, write_atomically
    from rnnqc.tune import tune
    from rnnqc.tuning.measure import load_metric

    output = Path(a.output)
    check_writable(output, [a.model, a.data, a.stats, a.recipe])
    if not a.output.endswith(".toml"):
        raise UsageError(
            f"-o {a.output}: is no .toml file.", supported="a name that ends in .toml, as --recipe needs it"
        )
    metric = load_metric(a.metric) if a.metric else None
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=_err, transient=True, disable=not _err.is_terminal) as shown:
        bar = shown.add_task("tuning", total=None)
        tuned = tune(
            a.model,
            a.data,
            min_sqnr=a.min_sqnr,
            metric=metric,
            min_metric=a.min_metric,
            recipe=a.recipe,
            stats=a.stats,
            state=a.state,
            progress=lambda done, total: shown.update(bar, completed=done, total=total),
        )
    found, (start, end) = tuned.found, tuned.weight_bytes
    if found.reached:
        write_atomically(output, tuned.text.encode())
    if a.json:
        print(_json({"model": a.model, "recipe": a.recipe, **tuned.as_dict()}))
    else:
        table = Table("point", "format", "cost", "quality", box=None, pad_edge=False)
        table.add_row("", escape(tuned.recipe.name), str(found.start.cost), tuned.worded(found.start.quality))
        for step in found.steps:
            unit = tuned.units[step.unit]
            text = ", ".join(f"{k} = {str(v).lower()}" for k, v in unit.choices[step.after].items()) or "as the recipe"
            table.add_row(escape(unit.point), text, str(step.result.cost), tuned.worded(step.result.quality))
        _out.print(table)
        before, after = (1e3 * s for s in tuned.call_seconds)
        _out.print(
            f"{found.tried} assignments measured; weights {_bytes(start)} -> {_bytes(end)}, one call {before:.3g} -> "
            f"{after:.3g} ms, {tuned.worded(found.start.quality)} -> {tuned.worded(found.measured.quality)}"
            + ("" if tuned.decibels else f"; float model {tuned.worded(tuned.float_quality)}")
        )
    for cell in tuned.silent:
        text = f"cell {cell!r} never ran in the calibration; it keeps the recipe's formats"
        _err.print(f"[yellow]rnnqc:[/yellow] {escape(text)}.")
    if not found.reached:
        wanted = f"{a.min_sqnr:g} dB" if a.metric is None else f"{a.min_metric:g}"
        text = f"the best that was found has {tuned.worded(found.measured.quality)}, {wanted} asked for"
        _err.print(f"[red]rnnqc: tune:[/red] {escape(text)}; nothing was written.")
        return CHECK_FAILED
    if not a.json:
        _out.print(f"{escape(a.output)}: {len(tuned.settings)} rule(s) in front of recipe {escape(tuned.recipe.name)}")
    return OK


def _verify(a: argparse.Namespace) -> int:
    from rnnqc.feeds import load_feeds, with_dimensions_of
    from rnnqc.files import load_proto
    from rnnqc.pipeline import executable, generated_feeds
    from rnnqc.verify import compare_models

    protos = []
    for path in (a.float_model, a.quantized_model):
        with located(path):
            protos.append(executable(load_proto(Path(path))))
    reference, candidate = protos
    with located(a.float_model):
        feeds = (
            load_feeds(a.data, reference) if a.data else generated_feeds(with_dimensions_of(reference, candidate), 4)
        )
    try:
        comparison = compare_models(reference, candidate, feeds, names=(a.float_model, a.quantized_model))
    except CompileError as error:
        if not a.data:
            error.action = "check that the models run in onnxruntime; give data that fits them with --data"
        raise
    worst = min((c.sqnr_db for c in comparison), default=math.inf)
    failed = a.min_sqnr is not None and worst < a.min_sqnr
    if a.json:
        data = {
            "feeds": len(feeds),
            "outputs": [vars(c) for c in comparison],
            "min_sqnr_db": a.min_sqnr,
            "ok": not failed,
        }
        print(_json(data))
    else:
        _out.print(f"{len(feeds)} {'given' if a.data else 'generated'} feed(s)")
        table = Table("output", "SQNR dB", "max |difference|", "cosine", "equal", box=None, pad_edge=False)
        for c in comparison:
            table.add_row(escape(c.name), f"{c.sqnr_db:.1f}", f"{c.max_abs:.3g}", f"{c.cosine:.6f}", f"{c.equal:.1%}")
        _out.print(table)
    if failed:
        name = min(comparison, key=lambda c: c.sqnr_db).name
        text = f"output {name!r} has {worst:.1f} dB, {a.min_sqnr:g} dB asked for."
        _err.print(f"[red]rnnqc: --min-sqnr:[/red] {escape(text)}")
    return CHECK_FAILED if failed else OK


def _bench(a: argparse.Namespace) -> int:
    from rnnqc.bench import NATIVE, bench

    result = bench(a.model, a.against, threads=a.threads, rounds=a.rounds, inputs=a.input, dims=_pairs(a.dim, "--dim"))
    for entry in result.float_entries:
        _err.print(f"[yellow]rnnqc:[/yellow] {escape(entry.explanation)}")
    if not any(t.name == NATIVE for t in result.timings):
        _err.print("[yellow]rnnqc:[/yellow] no recurrent layer of the model was lowered; it was measured as it is.")
    if a.json:
        print(_json({"model": a.model, "against": a.against, **result.as_dict()}))
        return OK
    shapes = escape(", ".join(f"{name} {text}" for name, text in result.inputs.items()))
    origin = "generated" if result.generated else "given"
    _out.print(f"{escape(a.model)}: {result.threads} thread(s), {origin} inputs {shapes}")
    base = result.timings[0].name
    table = Table("way", "runs", "minimum us", "median us", f"{base} / way", box=None, pad_edge=False)
    for t in result.timings:
        name = f"{t.name} ({result.isa})" if t.name == NATIVE else t.name
        table.add_row(name, str(t.runs), f"{t.min_us:.1f}", f"{t.median_us:.1f}", f"{t.speedup:.2f}x")
    _out.print(table)
    return OK


def _recipes(a: argparse.Namespace) -> int:
    from rnnqc.cells.types import ALL_POINTS, CELL_TYPES
    from rnnqc.recipe import KEYS, builtin_recipes, recipe_text

    if a.recipe:
        print(recipe_text(a.recipe), end="")
        return OK
    table = Table("recipe", "summary", box=None, pad_edge=False)
    for recipe in builtin_recipes():
        table.add_row(recipe.name, escape(recipe.summary))
    _out.print(table)
    _out.print("\nQuantization points, below a cell's name (as in `--set '*.W.weight.bits=4'`):")
    table = Table("point", "of", "meaning", box=None, pad_edge=False)
    for point in ALL_POINTS:
        types = [t.op for t in CELL_TYPES.values() if point in t.points]
        table.add_row(point.name, "" if len(types) == len(CELL_TYPES) else ", ".join(types), point.meaning)
    _out.print(table)
    _out.print("\nKeys:")
    table = Table("key", "values", "meaning", box=None, pad_edge=False)
    for name, key in KEYS.items():
        table.add_row(name, key.accepts, key.meaning)
    _out.print(table)
    return OK


def _passes(a: argparse.Namespace) -> int:
    from rnnqc.passes import Unroll, WriteQonnx
    from rnnqc.pipeline import default_passes
    from rnnqc.recipe import load_recipe

    infos = []
    weights_only = default_passes(load_recipe("weight-only-int8"), "weight-only", False)
    for pass_ in [*default_passes(load_recipe("int8"), "fused", False), Unroll(), WriteQonnx(), *weights_only]:
        if pass_.info not in infos:
            infos.append(pass_.info)
    if a.markdown:
        print("| pass | does | may change |\n|---|---|---|")
        for info in infos:
            print(f"| `{info.name}` | {info.summary} | {info.numerics} |")
        return OK
    table = Table("pass", "does", "requires", "establishes", "may change", box=None, pad_edge=False)
    for info in infos:
        names = [", ".join(sorted(p.value for p in s)) for s in (info.requires, info.sets)]
        table.add_row(info.name, info.summary, *names, str(info.numerics))
    _out.print(table)
    return OK


def _doctor(a: argparse.Namespace) -> int:
    import onnx
    import onnxruntime as ort

    from rnnqc import __version__, runtime_ops

    _out.print(f"rnnqc {__version__}, Python {platform.python_version()}, {platform.machine()}")
    _out.print(
        f"onnx {onnx.__version__} (operator sets up to {onnx.defs.onnx_opset_version()}), onnxruntime {ort.__version__}"
    )
    _out.print(f"RNNQC_ISA={os.environ.get('RNNQC_ISA', '')!r}, RNNQC_LIBRARY={os.environ.get('RNNQC_LIBRARY', '')!r}")
    try:
        _out.print(f"native library {escape(str(runtime_ops.library_path()))}, kernels: {runtime_ops.isa()}")
    except (OSError, RuntimeError) as error:
        _err.print(f"[red]native library:[/red] {escape(str(error))}")
        return CHECK_FAILED
    same = _self_test()
    _out.print(
        "self test: stock and native give the same bits" if same else "[red]self test: stock and native differ[/red]"
    )
    return OK if same else CHECK_FAILED


def _self_test() -> bool:
    """Lowers a small LSTM and runs it stock and native."""
    import onnx

    from rnnqc.pipeline import lower
    from rnnqc.session import session

    rng = np.random.default_rng(0)
    hidden = 16
    arrays = {
        "W": rng.normal(0, 0.3, (1, 4 * hidden, 8)).astype(np.float32),
        "R": rng.normal(0, 0.3, (1, 4 * hidden, hidden)).astype(np.float32),
    }
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("LSTM", ["X", "W", "R"], ["Y"], hidden_size=hidden)],
        "self_test",
        [onnx.helper.make_tensor_value_info("X", onnx.TensorProto.FLOAT, ["T", "B", 8])],
        [onnx.helper.make_tensor_value_info("Y", onnx.TensorProto.FLOAT, ["T", 1, "B", hidden])],
        [onnx.numpy_helper.from_array(v, k) for k, v in arrays.items()],
    )
    proto = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=10)
    lowered = lower(proto).proto
    feeds = {"X": rng.normal(0, 1, (9, 2, 8)).astype(np.float32)}
    a, b = (np.asarray(session(lowered, native=n).run(None, feeds)[0]) for n in (False, True))
    return a.tobytes() == b.tobytes()
