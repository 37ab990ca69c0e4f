"""The whole command line: combines the commands.

Exit codes: 0 done; 1 a check failed; 2 bad usage or bad input; 3 `--strict` found a recurrent node that stays float.
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import functools
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from typing import NoReturn

from rnnqc.codes import Code, told
from rnnqc.commands import (
    bench,
    calibrate,
    completion,
    doctor,
    dump,
    evaluate,
    inspect,
    layer,
    lower,
    passes,
    recipes,
    report,
    run,
    schema,
    tune,
    verify,
)
from rnnqc.commands.shared import terminal
from rnnqc.commands.shared.arguments import BAD_INPUT, CHECK_FAILED, INTERRUPTED, OK, TERMINATED
from rnnqc.commands.shared.terminal import err, escape
from rnnqc.counterparts import COMMANDS, FORMATS, OPTIONS, counterpart, or_counterpart
from rnnqc.errors import InternalError, RnnqcError, UsageError
from rnnqc.wording import command_line

_COMMANDS = (
    lower,
    inspect,
    run,
    calibrate,
    layer,
    tune,
    verify,
    evaluate,
    report,
    dump,
    bench,
    recipes,
    passes,
    doctor,
    schema,
    completion,
)
"""The commands, in the order of `--help`."""


USUAL_WAY = """\
rnnqc quantizes recurrent layers of ONNX models and runs them in onnxruntime. The usual way:

  rnnqc inspect model.onnx                                 which layers it has, and what lowering would do with each
  rnnqc lower model.onnx -o model.int8.onnx                quantize them; --calibration samples.npz for more accuracy
  rnnqc verify model.onnx model.int8.onnx                  compare the two
  rnnqc run model.int8.onnx -i inputs.npz -o outputs.npz   run it

`rnnqc --help` lists all commands, `rnnqc COMMAND --help` explains one, with examples."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        action = f"see `{self.prog} --help`"
        if "invalid choice" in message and "argument COMMAND" in message:
            given = message.split("'")[1]
            near = difflib.get_close_matches(given, [c.__name__.rpartition(".")[2] for c in _COMMANDS], 1)
            theirs = or_counterpart(action, given, COMMANDS)
            action = f"{near[0]} may be meant; {action}" if near and theirs == action else theirs
        raise UsageError(f"{message}.", action=action)


def run_command(argv: Sequence[str]) -> int:
    """Runs one command; returns the exit code."""
    with command_line():
        return _run(argv)


def _run(argv: Sequence[str]) -> int:
    terminal.reset()
    given = _separated(argv)
    if not given:
        sys.stderr.write(f"{USUAL_WAY}\n")
        return BAD_INPUT
    verbose = False
    try:
        with _orderly_termination():
            arguments = _parsed(given)
            terminal.reset(quiet=arguments.quiet)
            verbose, start = arguments.verbose, time.perf_counter()
            code = int(arguments.command(arguments))
            if verbose:
                err(f"{time.perf_counter() - start:8.3f} s  rnnqc {arguments.name}")
            return code
    except InternalError as error:
        err(f"[red]rnnqc: a check failed:[/red] {escape(told(error.code, str(error)))}")
        return CHECK_FAILED
    except RnnqcError as error:
        err(f"[red]rnnqc: error:[/red] {escape(told(error.code, str(error)))}")
        return BAD_INPUT
    except SystemExit as stop:
        return int(stop.code or 0) if isinstance(stop.code, int) or stop.code is None else BAD_INPUT
    except KeyboardInterrupt:
        err("rnnqc: interrupted")
        return INTERRUPTED
    except MemoryError:
        err(f"[red]rnnqc: error:[/red] {escape(told(Code.MEMORY, 'out of memory.'))}")
        return BAD_INPUT
    except BrokenPipeError:
        sys.stderr.close()
        return OK
    except Exception as error:
        if verbose or os.environ.get("RNNQC_TRACEBACK"):
            raise
        frame = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{type(error).__name__} in {os.path.basename(frame.filename)}:{frame.lineno}"
        text = f"{error} ({place}). Resolution: report it, with the model and the traceback that -v shows."
        err(f"[red]rnnqc: internal error:[/red] {escape(told(Code.INTERNAL, text))}")
        return CHECK_FAILED


@contextlib.contextmanager
def _orderly_termination() -> Iterator[None]:
    """Makes SIGTERM unwind like an exception, so that no temporary file is left."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(TERMINATED))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


def _parsed(argv: Sequence[str]) -> argparse.Namespace:
    """Parses the arguments of a command.

    Raises:
        UsageError: An argument is unknown or missing.
    """
    parser, commands = _parsers()
    try:
        arguments, unknown = parser.parse_known_args(argv)
    except UsageError as error:
        error.action = "; ".join(filter(None, (_theirs(argv), error.action)))
        raise
    if unknown:
        raise _unknown(unknown, commands[arguments.name])
    arguments.parser, arguments.parsers = parser, commands  # for commands that describe commands
    return arguments


def _theirs(arguments: Sequence[str]) -> str:
    """Translates an option of another tool, and its value if that is a command here; "" if there is none."""
    options = " ".join(a for a in arguments if a.startswith("--"))
    option, of_formats = counterpart(options, OPTIONS), counterpart(options, FORMATS)
    option = option or (of_formats and f"with --set, {of_formats}")
    return option and or_counterpart(option, " ".join(a for a in arguments if not a.startswith("-")), COMMANDS)


# Names of the same option in other commands.
_OTHER_NAMES = {"--data": "--calibration", "--calibration": "--data"}
# Options of other programs that replace an output.
_REPLACING = ("--overwrite", "--force", "--yes", "-f", "-y")


def _unknown(arguments: Sequence[str], command: argparse.ArgumentParser) -> UsageError:
    """Makes the error for unknown arguments, with the option that may have been meant."""
    options = [o for action in command._actions for o in action.option_strings]
    given = next((a.partition("=")[0] for a in arguments if a.startswith("-")), "")
    near = [o for o in (_OTHER_NAMES.get(given), *difflib.get_close_matches(given, options, 1)) if o in options]
    theirs = _theirs(arguments)
    if theirs:
        action = f"{theirs}; "
    elif given in _REPLACING and "--output" in options and "--overwrite" not in options:
        action = "leave it out, an output that exists is replaced; "
    elif not given and "--against" in options:
        action = "one model is measured, a float one beside it is named by --against; "
    else:
        action = f"{near[0]} may be meant; " if near else ""
    return UsageError(f"unrecognized arguments: {' '.join(arguments)}.", action=f"{action}see `{command.prog} --help`")


@functools.cache
def _parsers() -> tuple[argparse.ArgumentParser, Mapping[str, argparse.ArgumentParser]]:
    """Returns the parser of all commands, and the parsers of each, by name."""
    parser = _Parser(
        prog="rnnqc", description="Quantizes recurrent layers of ONNX models and runs them in onnxruntime.",
        epilog="the usual way:\n" + USUAL_WAY.split("\n\n", 2)[1], formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--version", action=_Version, nargs=0, help="print the version")
    commands = parser.add_subparsers(dest="name", required=True, parser_class=_Parser, metavar="COMMAND")
    for command in _COMMANDS:
        command.add(commands)
    return parser, commands.choices


class _Version(argparse.Action):
    """Looks the version up on demand, because that takes longer than making all parsers."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        from rnnqc import __version__

        sys.stdout.write(f"rnnqc {__version__}\n")
        parser.exit()


# Options that take several values, and the character in every value.
_MANY = {"--bind": "=", "--dim": "=", "--set": "=", "--state": ":"}


def _separated(argv: Sequence[str]) -> list[str]:
    """Repeats the option for every value of `--dim A=1 B=2`: argparse would take the model for a value, too."""
    result: list[str] = []
    option, given = "", 0
    for text in argv:
        if option and (given == 0 or _MANY[option] in text) and not text.startswith("-"):
            result.append(f"{option}={text}")
            given += 1
            continue
        if option and given == 0:
            result.append(option)  # argparse reports what is missing
        option, given = (text, 0) if text in _MANY else ("", 0)
        if not option:
            result.append(text)
    return [*result, option] if option and given == 0 else result
