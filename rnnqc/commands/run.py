"""`rnnqc run`: runs a model on arrays."""

from __future__ import annotations

import argparse
import warnings
from functools import partial
from pathlib import Path

from rnnqc.codes import Code, Told, all_told
from rnnqc.commands.shared.arguments import OK, Commands, add_command, add_states_of_arrays
from rnnqc.commands.shared.terminal import escape, out, tell
from rnnqc.errors import located


def add(commands: Commands) -> None:
    """Adds the command's parser."""
    parser = add_command(
        commands,
        "run",
        "run a model on an .npz of inputs",
        "rnnqc run model.int8.onnx -i inputs.npz -o outputs.npz",
        "rnnqc run vad.int8.onnx -i calls.npz -o outputs.npz --state h:hn --state c:cn",
    )
    parser.add_argument("model", metavar="MODEL", help="a float or a lowered model")
    parser.add_argument("-i", "--input", required=True, metavar="IN.npz", help="arrays by name of input")
    parser.add_argument("-o", "--output", required=True, metavar="OUT.npz", help="arrays by name of output")
    parser.add_argument(
        "--stock", action="store_true", help="run without the native library, in standard operators; same bits"
    )
    add_states_of_arrays(parser)
    parser.set_defaults(command=run)


def run(a: argparse.Namespace) -> int:
    """Runs the command; returns the exit code."""
    from rnnqc.data.feeds import check_feed
    from rnnqc.data.large_inputs import LargeInputs
    from rnnqc.data.npz import npz_bytes, read_npz
    from rnnqc.data.state_pairs import state_pairs
    from rnnqc.data.streaming import calls_of, run_calls, stacked
    from rnnqc.evaluation.evaluate import quantized_outputs, run_session
    from rnnqc.evaluation.session_options import quiet_options
    from rnnqc.formats.quantized_outputs import described_outputs, real_values
    from rnnqc.ir import CELLS_KEY
    from rnnqc.proto.files import check_writable, load_proto, write_atomically
    from rnnqc.sessions import session

    check_writable(Path(a.output), [a.model, a.input])
    proto = load_proto(Path(a.model))
    carried = state_pairs(a.state, proto)
    if carried:
        with located(a.input):
            calls = list(calls_of(a.input, proto, carried))
    else:
        feeds = read_npz(Path(a.input))
        check_feed(feeds, proto, a.input)
    large = LargeInputs()
    if any(p.key == CELLS_KEY for p in proto.metadata_props):
        for feed in [call.feed for call in calls] if carried else [feeds]:
            large.look(feed)
    with located(a.model), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        live = session(proto, native=not a.stock, options=quiet_options())
        run_call, formats = partial(run_session, live, stored=True), quantized_outputs(live)
        real = partial(real_values, formats=formats)
        results = stacked(list(run_calls(run_call, calls, carried, real)), carried) if carried else run_call(feeds)
        write_atomically(Path(a.output), npz_bytes(results))
    warned = [Told(str(w.message)) for w in caught]
    for warning in [*warned, *all_told(Code.LARGE_INPUT, large.texts)]:
        tell(warning)
    for name, value in results.items():
        out(f"{escape(name)}: {value.dtype} {list(value.shape)}")
    for text in described_outputs(formats):
        out(f"quantized output {escape(text)}")
    return OK
