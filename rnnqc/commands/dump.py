"""`rnnqc dump`: writes every tensor of every cell, step by step."""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rnnqc.commands.shared.arguments import CHECK_FAILED, OK, Commands, add_command, add_repeated, add_states_of_arrays
from rnnqc.commands.shared.terminal import err, escape, out, progress_bar
from rnnqc.errors import UsageError, located

if TYPE_CHECKING:
    from rnnqc.dumps.differences import Choice


def add(commands: Commands) -> None:
    """Adds the command's parser."""
    parser = add_command(
        commands,
        "dump",
        "write every tensor of the cells of a lowered or float model, step by step",
        "rnnqc dump model.int8.onnx -i inputs.npz -o dump",
        "rnnqc dump model.int8.onnx -i inputs.npz -o dump --row 0 --steps 0:10 --compare theirs",
    )
    parser.add_argument("model", metavar="MODEL", help="a lowered model, a float one, or one that Brevitas exported")
    parser.add_argument("-i", "--input", required=True, metavar="IN.npz", help="data, as `rnnqc run` takes it")
    parser.add_argument("-o", "--output", required=True, metavar="DIR", help="a new folder")
    parser.add_argument("--stock", action="store_true", help="without the native library; the arrays are the same")
    add_states_of_arrays(parser)
    add_repeated(parser, "--cells", "GLOB", "only cells with such names")
    parser.add_argument("--row", type=_row, metavar="N", help="only this row of the batch, from 0")
    parser.add_argument("--steps", metavar="A:B", help="only steps A to B, B not included")
    parser.add_argument(
        "--text", action=argparse.BooleanOptionalAction, default=False,
        help="text, too: DIR/frame_T/NAME.txt, a number on each line, of row 0 or of --row",
    )  # fmt: skip
    parser.add_argument(
        "--compare", metavar="DIR2",
        help="compare with the .npz files in DIR2; exit code 1, step and tensor if something differs",
    )  # fmt: skip
    parser.add_argument("--codes", action="store_true", help="of --compare: quantized values alone")
    add_repeated(parser, "--only", "GLOB", "of --compare: only tensors and parameters with such names")
    parser.add_argument("--atol", type=_limit, metavar="X", help="of --compare: by how much real values may differ")
    parser.add_argument("--overwrite", action="store_true", help="replace the dump in DIR")
    parser.set_defaults(command=run)


def run(a: argparse.Namespace) -> int:
    """Runs the command; returns the exit code."""
    from rnnqc.dumps.differences import Choice
    from rnnqc.dumps.dump import dump

    steps = _steps(a.steps)
    without = [o for o, given in (("--codes", a.codes), ("--only", a.only), ("--atol", a.atol is not None)) if given]
    if a.compare is None and without:
        raise UsageError(
            f"{without[0]}: there is nothing to compare.", supported="with --compare", action="give --compare DIR2"
        )
    if a.compare is not None and not Path(a.compare).is_dir():
        raise UsageError(f"--compare {a.compare}: no such folder.", action="check the path")
    if a.compare is not None and os.path.exists(a.output) and os.path.samefile(a.compare, a.output):
        raise UsageError(
            f"--compare {a.compare}: is the output, which is written first.",
            supported="another implementation's folder",
            action="choose another output",
        )
    with progress_bar("steps written") as update, located(a.model):
        index = dump(
            a.model, a.input, a.output, native=not a.stock, state=a.state, cells=a.cells or ["*"],
            row=a.row, steps=steps, text=a.text, overwrite=a.overwrite, progress=lambda done: update(completed=done),
        )  # fmt: skip
    for name, cell in index["cells"].items():
        made = f"{cell['steps']} steps of {len(cell['tensors'])} tensors in {escape(cell['file'])}"
        out(f"{escape(name)}: {made if cell['runs'] else 'was not run'}")
    if a.compare is None:
        return OK
    return _compare(Path(a.output), index, Path(a.compare), Choice(a.codes, a.only or ["*"], a.atol or 0.0))


def _compare(folder: Path, index: Mapping[str, Any], other: Path, choice: Choice) -> int:
    """Prints the first difference of each cell and of all cells; returns the exit code."""
    from rnnqc.dumps.compare import compare, not_compared

    made = compare(folder, index, other, choice)
    for text in not_compared(made):
        err(f"Not compared: {escape(text)}")
    for cell, compared in made.cells.items():
        count = f"{compared.values} values"
        if compared.first is None:
            out(f"{escape(cell)}: {compared.arrays} arrays agree, {count}")
        else:
            out(f"{escape(str(compared.first))} ({compared.different} of {count} differ)")
    text = f"Compared: {made.values} values, {made.values - made.different} equal, {made.different} different"
    if not made.differences:
        out(text)
        return OK
    out(f"{text}; the first one is {escape(str(made.differences[0]))}")
    return CHECK_FAILED


def _row(text: str) -> int:
    value = int(text)
    if value < 0:
        raise ValueError(text)
    return value


_row.__name__ = "row"


def _limit(text: str) -> float:
    value = float(text)
    if not 0 <= value < math.inf:
        raise ValueError(text)
    return value


_limit.__name__ = "difference"


def _steps(text: str | None) -> tuple[int | None, int | None]:
    """Parses `--steps A:B`."""
    if text is None:
        return None, None
    begin, separator, end = text.partition(":")
    if separator and all(not part or (part.isascii() and part.isdecimal() and len(part) < 19) for part in (begin, end)):
        low, high = (int(part) if part else None for part in (begin, end))
        if high is None or (low or 0) < high:
            return low, high
    raise UsageError(
        f"--steps {text!r}: not of the form A:B with A < B.",
        supported="steps from 0 on, B not included; either may be left out",
        action="for example --steps 0:10",
    )
