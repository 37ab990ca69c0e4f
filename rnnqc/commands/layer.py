"""`rnnqc layer`: makes a layer from a model of its cell, or a stack of layers."""

from __future__ import annotations

import argparse
from pathlib import Path

from rnnqc.commands.shared.arguments import OK, Commands, add_command, add_state
from rnnqc.commands.shared.terminal import escape, out


def add(commands: Commands) -> None:
    """Adds the command's parser."""
    parser = add_command(
        commands,
        "layer",
        "make a layer of a model of its cell (one step), or a stack of layers",
        "rnnqc layer cell.onnx -o layer.onnx --state h:h_next",
        "rnnqc layer forward.onnx backward.onnx -o layer.onnx --bidirectional",
    )
    parser.add_argument(
        "cells", nargs="+", metavar="CELL.onnx", help="x and states in, the states after the step out; the lowest first"
    )
    parser.add_argument("-o", "--output", required=True, metavar="OUT.onnx", help="the model of the layer")
    add_state(
        parser, "a state and what becomes of it; by default the inputs after the first and the first outputs, in order"
    )
    parser.add_argument("--reverse", action="store_true", help="run from the last step to the first")
    directions = parser.add_mutually_exclusive_group()
    directions.add_argument("--alternate", action="store_true", help="run every second layer the other way")
    directions.add_argument(
        "--bidirectional", action="store_true", help="two cells make a layer: one forward, the other backward"
    )
    parser.add_argument("--lengths", action="store_true", help="add an input sequence_lens")
    parser.add_argument("--initial-states", action="store_true", help="make the initial states inputs")
    parser.set_defaults(command=run)


def run(a: argparse.Namespace) -> int:
    """Runs the command; returns the exit code."""
    from rnnqc.layers.stack import stack
    from rnnqc.proto.files import check_writable, serialized, write_atomically

    check_writable(Path(a.output), a.cells)
    made = stack(
        a.cells,
        alternate=a.alternate,
        bidirectional=a.bidirectional,
        reverse=a.reverse,
        state=a.state,
        lengths=a.lengths,
        initial_states=a.initial_states,
    )
    write_atomically(Path(a.output), serialized(made, a.output))
    inputs, outputs = (", ".join(v.name for v in values) for values in (made.graph.input, made.graph.output))
    out(escape(f"{a.output}: {inputs} -> {outputs}"))
    return OK
