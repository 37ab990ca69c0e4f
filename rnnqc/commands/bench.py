"""`rnnqc bench`: measures speed."""

from __future__ import annotations

import argparse

from rnnqc.commands.shared.arguments import OK, Commands, add_command, add_repeated, add_state, document, pairs
from rnnqc.commands.shared.terminal import escape, new_table, out, progress_bar, tell


def add(commands: Commands) -> None:
    """Adds the command's parser."""
    parser = add_command(
        commands,
        "bench",
        "measure a model stock and native, next to the float model (needs the native library)",
        "rnnqc bench model.int8.onnx --against model.onnx --dim T=100",
        "rnnqc bench model.onnx --threads 2 --json",
        "rnnqc bench vad.int8.onnx --against vad.onnx -i calls.npz --state h:hn --state c:cn",
    )
    parser.add_argument("model", metavar="MODEL", help="a lowered model, or a float one, which is lowered on the fly")
    parser.add_argument("--against", metavar="FLOAT.onnx", help="the float model that MODEL was lowered from")
    parser.add_argument("--threads", type=int, default=1, metavar="N", help="threads of every session, default 1")
    parser.add_argument("--rounds", type=int, default=10, metavar="N", help="turns of every session, default 10")
    parser.add_argument(
        "-i", "--input", "--data", metavar="DATA",
        help="as --data of other commands; the first sample is measured, or a call in the middle of a stream",
    )  # fmt: skip
    add_state(parser, "carry states: samples are calls, of which one in the middle is measured")
    add_repeated(parser, "--dim", "NAME=N", "sizes of symbolic dimensions for generated inputs; several may follow")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    parser.set_defaults(command=run)


def run(a: argparse.Namespace) -> int:
    """Runs the command; returns the exit code."""
    from rnnqc.timing import NATIVE, bench

    with progress_bar("measuring", quiet=a.json) as update:
        result = bench(
            a.model, a.against, threads=a.threads, rounds=a.rounds, inputs=a.input, state=a.state,
            dims=pairs(a.dim, "--dim"), progress=lambda done, total: update(completed=done, total=total),
        )  # fmt: skip
    for text in result.messages:
        tell(text)
    if a.json:
        print(document({"model": a.model, "against": a.against, **result.to_dict()}))
        return OK
    out(f"{escape(a.model)}: {escape(result.headline)}")
    base = result.timings[0].name
    table = new_table("way", "runs", "minimum us", "median us", f"{base} / way")
    for t in result.timings:
        name = f"{t.name} ({result.isa})" if t.name == NATIVE else t.name
        table.add_row(name, str(t.runs), f"{t.min_us:.1f}", f"{t.median_us:.1f}", f"{t.speedup:.2f}x")
    out(table)
    return OK
