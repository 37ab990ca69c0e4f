"""The command line: puts the commands of `rnnqc.commands` together.

Exit codes: 0 done; 1 a check failed; 2 bad usage or bad input; 3 `--strict` found a recurrent node that stays float.
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import os
import signal
import sys
import threading
import traceback
from collections.abc import Iterator, Sequence
from typing import NoReturn

from rnnqc.commands import (
    bench,
    calibrate,
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
    terminal,
    tune,
    verify,
)
from rnnqc.commands.common import BAD_INPUT, CHECK_FAILED, INTERRUPTED, OK, TERMINATED
from rnnqc.commands.terminal import err, escape
from rnnqc.counterparts import COMMANDS, OPTIONS, counterpart, or_counterpart
from rnnqc.errors import InternalError, RnnqcError, UsageError

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
)
"""In the order in which `--help` lists them."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        action = f"see `{self.prog} --help`"
        if "invalid choice" in message and "argument COMMAND" in message:
            action = or_counterpart(action, message.split("'")[1], COMMANDS)
        raise UsageError(f"{message}.", action=action)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command.

    Args:
        argv: Arguments without the program's name; those of the process by default.

    Returns:
        The exit code.
    """
    terminal.reset()
    try:
        with _orderly_termination():
            arguments = _parsed(_separated(sys.argv[1:] if argv is None else argv))
            return int(arguments.command(arguments))
    except InternalError as error:
        err(f"[red]rnnqc: a check failed:[/red] {escape(str(error))}")
        return CHECK_FAILED
    except RnnqcError as error:
        err(f"[red]rnnqc: error:[/red] {escape(str(error))}")
        return BAD_INPUT
    except SystemExit as stop:
        return int(stop.code or 0) if isinstance(stop.code, int) or stop.code is None else BAD_INPUT
    except KeyboardInterrupt:
        err("rnnqc: interrupted")
        return INTERRUPTED
    except MemoryError:
        err("[red]rnnqc: error:[/red] out of memory.")
        return BAD_INPUT
    except BrokenPipeError:
        sys.stderr.close()
        return OK
    except Exception as error:
        if os.environ.get("RNNQC_TRACEBACK"):
            raise
        frame = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{type(error).__name__} in {os.path.basename(frame.filename)}:{frame.lineno}"
        err(
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


def _parsed(argv: Sequence[str]) -> argparse.Namespace:
    """The arguments of a command.

    Raises:
        UsageError: It does not have some of them, or lacks others.
    """
    commands: dict[str, argparse.ArgumentParser] = {}
    try:
        arguments, unknown = _parser(commands).parse_known_args(argv)
    except UsageError as error:
        error.action = or_counterpart(error.action, " ".join(a for a in argv if a.startswith("--")), OPTIONS)
        raise
    if unknown:
        raise _unknown(unknown, commands[arguments.name])
    return arguments


# What the same is called in other commands.
_OTHER_NAMES = {"--data": "--calibration", "--calibration": "--data"}
# As other programs have them.
_REPLACING = ("--overwrite", "--force", "--yes", "-f", "-y")


def _unknown(arguments: Sequence[str], command: argparse.ArgumentParser) -> UsageError:
    """What to say of arguments that a command does not have: which option may have been meant."""
    options = [o for action in command._actions for o in action.option_strings]
    given = next((a.partition("=")[0] for a in arguments if a.startswith("-")), "")
    near = [o for o in (_OTHER_NAMES.get(given), *difflib.get_close_matches(given, options, 1)) if o in options]
    theirs = counterpart(given.lstrip("-"), OPTIONS)
    if theirs:
        action = f"{theirs}; "
    elif given in _REPLACING and "--output" in options and "--overwrite" not in options:
        action = "leave it out, an output that exists is replaced; "
    else:
        action = f"{near[0]} may be meant; " if near else ""
    return UsageError(f"unrecognized arguments: {' '.join(arguments)}.", action=f"{action}see `{command.prog} --help`")


def _parser(added: dict[str, argparse.ArgumentParser]) -> argparse.ArgumentParser:
    """The parser of all commands; those of each are put into `added`, by name."""
    from rnnqc import __version__

    parser = _Parser(
        prog="rnnqc", description="Quantizes recurrent layers of ONNX models and runs them in onnxruntime."
    )
    parser.add_argument("--version", action="version", version=f"rnnqc {__version__}")
    commands = parser.add_subparsers(dest="name", required=True, parser_class=_Parser, metavar="COMMAND")
    for command in _COMMANDS:
        command.add(commands)
    added.update(commands.choices)
    return parser


# Options that take several values, and what is in every value.
_MANY = {"--bind": "=", "--dim": "=", "--set": "=", "--state": ":"}


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
