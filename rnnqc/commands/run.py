"""`rnnqc run`: runs a model on arrays."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rnnqc.commands.common import OK, Commands
from rnnqc.commands.terminal import escape, out
from rnnqc.diagnostics import CompileError, located


def add(commands: Commands) -> None:
    """Adds the command's parser."""
    parser = commands.add_parser("run", help="run a model on an .npz of inputs")
    parser.add_argument("model", metavar="MODEL")
    parser.add_argument("-i", "--input", required=True, metavar="IN.npz")
    parser.add_argument("-o", "--output", required=True, metavar="OUT.npz")
    parser.add_argument("--stock", action="store_true", help="without the native library")
    parser.add_argument(
        "--state", action="append", default=[], metavar="IN:OUT",
        help="carry states: the leading axis of other arrays counts calls; output OUT of one is input IN of the next",
    )  # fmt: skip
    parser.set_defaults(command=run)


def run(a: argparse.Namespace) -> int:
    """Runs the command; the exit code."""
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
        out(f"{escape(name)}: {value.dtype} {list(value.shape)}")
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
