"""Running the command line in this process or in one of its own."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.runs.forked_commands import COMMAND, server


@dataclass(frozen=True)
class Result:
    """The result of a command."""

    code: int
    out: str
    err: str

    @property
    def text(self) -> str:
        """Both streams."""
        return self.out + self.err


Command = Callable[..., Result]
HANGS = 1800
"""Seconds after which a process counts as one that hangs; on a busy machine every process takes long."""


def in_process(capfd: pytest.CaptureFixture[str], *arguments: str | Path) -> Result:
    """`rnnqc.cli.main` with these arguments; argparse's SystemExit counts as its return value."""
    from rnnqc.cli import main

    capfd.readouterr()
    try:
        code = main([str(a) for a in arguments])
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else 2 if stop.code else 0
    captured = capfd.readouterr()
    return Result(code, captured.out, captured.err)


def in_subprocess(
    *arguments: str | Path,
    seconds: int = 120,
    memory: int | None = None,
    file_size: int | None = None,
    program: str = COMMAND,
) -> Result:
    """A command in a process of its own, with limits; see `forked_commands`.

    Args:
        arguments: Of the command.
        seconds: Of processor time at most, which other processes hardly change.
        memory: Bytes of address space at most.
        file_size: Bytes of a file at most.
        program: Python, instead of that of the command.

    Raises:
        AssertionError: It took more processor time.
    """
    limits = {resource.RLIMIT_CPU: (seconds, seconds + 5)}
    limits |= {resource.RLIMIT_AS: (memory, memory)} if memory is not None else {}
    limits |= {resource.RLIMIT_FSIZE: (file_size, file_size)} if file_size is not None else {}
    done = server().run(program, [str(a) for a in arguments], limits)
    assert done.returncode != -signal.SIGXCPU, f"took more than {seconds} s of processor time: {arguments}"
    return Result(done.returncode, done.stdout, done.stderr)


def in_new_python(*arguments: str | Path) -> Result:
    """`python -m rnnqc` with these arguments; strings have other hashes than in this process.

    Raises:
        subprocess.TimeoutExpired: It hangs.
    """
    seed = "1" if os.environ.get("PYTHONHASHSEED") != "1" else "2"
    done = subprocess.run(
        [sys.executable, "-m", "rnnqc", *[str(a) for a in arguments]],
        capture_output=True,
        text=True,
        timeout=HANGS,
        env=os.environ | {"PYTHONHASHSEED": seed},
        check=False,
    )
    return Result(done.returncode, done.stdout, done.stderr)
