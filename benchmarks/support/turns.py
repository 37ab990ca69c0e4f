"""Processes that take turns: one measures while the others are stopped, so that no thread pool spins during its burst.

A worker is any program that answers each line on its standard input with one line of JSON:

    (at its start)          {"version": ...}, or {"missing": what to install}
    prepare ...             {...}, or {"error": text}
    burst SECONDS           its result
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

SOURCES = Path(__file__).resolve().parents[1] / "native"
"""C and C++ sources."""
Reply = dict[str, Any]
PATIENCE = 300


def _end_with_parent() -> None:
    """Kills the process with its parent: a stopped process would outlive it."""
    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)


class WorkerError(Exception):
    """A worker ended, or reports that it cannot do what it was asked for."""


@contextmanager
def processors(count: int) -> Iterator[None]:
    """Limits processes that start inside to `count` processors, if the system can: they cannot use more threads."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(before)[-count:])
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


class Worker:
    """A process that runs only while it answers."""

    def __init__(self, name: str, command: Sequence[str | Path], environment: Mapping[str, str] | None = None) -> None:
        self.name = name
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the process
        self._process = subprocess.Popen(
            [str(c) for c in command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env={**os.environ, **(environment or {})},
            preexec_fn=_end_with_parent if sys.platform == "linux" else None,
        )

    def receive(self) -> Reply:
        """Returns the next answer.

        Raises:
            WorkerError: There is none, or it reports a missing package or an error.
        """
        assert self._process.stdout is not None
        if not select.select([self._process.stdout], [], [], PATIENCE)[0]:
            raise WorkerError(f"no answer for {PATIENCE} s")
        line = self._process.stdout.readline()
        if not line:
            self._errors.seek(0)
            said = self._errors.read().decode(errors="replace").strip().splitlines()
            raise WorkerError(f"ended with code {self._process.wait()}: {said[-1] if said else 'without a word'}")
        answer: Reply = json.loads(line)
        for key in ("missing", "error"):
            if key in answer:
                raise WorkerError(str(answer[key]))
        return answer

    def send(self, text: str) -> None:
        """Sends a request; call `receive` for the answer.

        Raises:
            WorkerError: The process has ended.
        """
        assert self._process.stdin is not None
        self._process.send_signal(signal.SIGCONT)
        try:
            self._process.stdin.write(text + "\n")
            self._process.stdin.flush()
        except OSError as error:
            raise WorkerError(f"ended with code {self._process.wait()}") from error

    def stop(self) -> None:
        """Stops all its threads until the next request; returns once they are stopped, or the process has ended."""
        if self._process.poll() is not None:
            return
        self._process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def ask(self, text: str) -> Reply:
        """Sends a request and returns the answer; stops the process again.

        Raises:
            WorkerError: See `receive`.
        """
        self.send(text)
        try:
            return self.receive()
        finally:
            self.stop()

    def burst(self, seconds: float) -> Reply:
        """Runs one turn.

        Raises:
            WorkerError: See `receive`.
        """
        return self.ask(f"burst {seconds}")

    def close(self) -> None:
        """Ends the process."""
        self._process.kill()
        self._process.wait()
        self._errors.close()


def wait_until_quiet(most: float) -> bool:
    """Waits until only this process can run, for at most `most` seconds; returns whether that was reached."""
    stat = Path("/proc/stat")
    end = time.monotonic() + most
    while stat.exists():
        running = [line for line in stat.read_text().splitlines() if line.startswith("procs_running")]
        if not running or int(running[0].split()[1]) <= 1:
            return True
        if time.monotonic() >= end:
            return False
        time.sleep(0.005)
    return True


def compiled(source: str, flags: Sequence[str] = ()) -> Path:
    """Returns the program compiled from a C++ file in `native/`, compiling it if needed.

    Raises:
        WorkerError: There is no compiler, or it fails.
    """
    compiler = os.environ.get("CXX") or next((c for c in ("c++", "g++", "clang++") if shutil.which(c)), "")
    if not compiler:
        raise WorkerError("needs a C++17 compiler (g++ or clang)")
    path = SOURCES / source
    command = [compiler, "-O2", "-std=c++17", "-pthread", str(path)]
    texts = [p.read_bytes() for p in (path, *sorted(SOURCES.glob("*.h")))]
    key = hashlib.sha256(repr((command, flags)).encode() + b"".join(texts)).hexdigest()[:16]
    folder = Path(tempfile.gettempdir()) / f"rnnqc_benchmarks_{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    program = folder / f"{path.stem}_{key}"
    if not program.exists():
        partial = program.with_suffix(f".{os.getpid()}")
        done = subprocess.run([*command, "-o", str(partial), *flags], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise WorkerError(f"{source} does not compile: {done.stderr.strip().splitlines()[0]}")
        partial.rename(program)
    return program
