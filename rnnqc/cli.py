"""The entry point of the command `rnnqc`: it imports the rest, because an interrupt may come before that is done."""

from __future__ import annotations

import os
import signal
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import FrameType


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command.

    Args:
        argv: Arguments without the program's name; those of the process by default.

    Returns:
        The exit code.
    """
    ours = signal.getsignal(signal.SIGINT) is signal.default_int_handler and _handle(_interrupt)
    try:
        from rnnqc.commands.program import run_command

        return run_command(sys.argv[1:] if argv is None else argv)
    except KeyboardInterrupt:  # before or after the command itself
        return _told()
    finally:
        if ours:
            _handle(signal.default_int_handler)


def _handle(handler: signal._HANDLER) -> bool:
    """Sets the handler of interrupts; False in a thread, which cannot."""
    try:
        signal.signal(signal.SIGINT, handler)
    except ValueError:
        return False
    return True


def _interrupt(number: int, frame: FrameType | None) -> None:
    """Raises KeyboardInterrupt; in the middle of an import, which may lose or replace exceptions, ends the process."""
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            os._exit(_told())
        frame = frame.f_back
    raise KeyboardInterrupt


def _told() -> int:
    os.write(2, b"rnnqc: interrupted\n")
    return 128 + signal.SIGINT
