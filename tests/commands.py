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


@dataclass(frozen=True)
class Result:
    """What a command left behind."""

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
    **variables: str,
) -> Result:
    """`python -m rnnqc` with these arguments, limits and environment variables.

    Args:
        arguments: Of the command.
        seconds: Of processor time at most, which other processes hardly change.
        memory: Bytes of address space at most.
        file_size: Bytes of a file at most.
        variables: Of the environment.

    Raises:
        AssertionError: It took more processor time.
        subprocess.TimeoutExpired: It hangs.
    """

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 5))
        if memory is not None:
            resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
        if file_size is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (file_size, file_size))

    done = subprocess.run(
        [sys.executable, "-m", "rnnqc", *[str(a) for a in arguments]],
        capture_output=True,
        text=True,
        timeout=HANGS,
        env=os.environ | variables,
        preexec_fn=limit,
        check=False,
    )
    assert done.returncode != -signal.SIGXCPU, f"took more than {seconds} s of processor time: {arguments}"
    return Result(done.returncode, done.stdout, done.stderr)
