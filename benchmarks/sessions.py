"""Processor time to create sessions of a folder's models, in a process that runs and in a new one.

    python benchmarks/sessions.py MODELS_FOLDER [--models GLOB ...] [--recipe NAME] [--rounds N] [--new N]
        [--json OUT.json]

Every .onnx file in the folder and below is lowered with `rest="int8"`; files without anything to lower are left out.
Ways, all from a file and with default options: onnxruntime and the float model; `rnnqc.session` and the
lowered one, which registers the library's operators that it needs; `rnnqc.runtime_ops.register`, which registers them
all; the lowered model without the library. They take turns; times are medians of processor time in ms, "x" is the time
of float over that of `rnnqc.session`. In a new process (three last columns) the time from its start until the session
is there: float, `rnnqc.session`, `register`, imports included. What counts is the thread that creates the session: the
others of onnxruntime's pool spin for 40 ms after their creation, whatever the model is.
"""

from __future__ import annotations

import argparse
import fnmatch
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import onnxruntime as ort
from support.reporting import report

import rnnqc
from rnnqc.errors import CompileError

FLOAT, SESSION, REGISTER, STOCK = "float", "session", "register", "stock"
NEW = {
    FLOAT: "import onnxruntime; made = onnxruntime.InferenceSession(sys.argv[1])",
    SESSION: "import rnnqc; made = rnnqc.session(sys.argv[1])",
    REGISTER: (
        "import onnxruntime, rnnqc; options = onnxruntime.SessionOptions(); rnnqc.runtime_ops.register(options); "
        "made = onnxruntime.InferenceSession(sys.argv[1], options)"
    ),
}
"""Programs of a new process."""
_FATAL = 4


def creators(source: Path, lowered: Path) -> dict[str, Callable[[], object]]:
    """Returns for each way what creates a session."""

    def registered() -> object:
        options = ort.SessionOptions()
        rnnqc.runtime_ops.register(options)
        return ort.InferenceSession(lowered, options)

    return {
        FLOAT: lambda: ort.InferenceSession(source),
        SESSION: lambda: rnnqc.session(lowered),
        REGISTER: registered,
        STOCK: lambda: ort.InferenceSession(lowered),
    }


def medians(ways: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Returns the median of each way in milliseconds; the first round does not count."""
    times: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(rounds + 1):
        for way, create in ways.items():
            start = time.thread_time()
            create()
            times[way].append(time.thread_time() - start)
    return {way: 1e3 * statistics.median(t[1:]) for way, t in times.items()}


def in_new_processes(paths: Mapping[str, Path], rounds: int) -> dict[str, float]:
    """Returns the median of each way in milliseconds, from the start of Python on."""
    times: dict[str, list[float]] = {way: [] for way in paths}
    for _ in range(rounds):
        for way, path in paths.items():
            program = f"import sys, time; {NEW[way]}; print(time.thread_time())"
            done = subprocess.run([sys.executable, "-c", program, path], check=True, capture_output=True, text=True)
            times[way].append(float(done.stdout))
    return {way: 1e3 * statistics.median(t) for way, t in times.items()}


def measure(source: Path, name: str, folder: Path, a: argparse.Namespace) -> dict[str, Any] | None:
    """Returns the row of a model; None if nothing of it is lowered."""
    try:
        result = rnnqc.lower(source, a.recipe, rest="int8")
    except CompileError:
        return None
    if not result.report.is_changed:
        return None
    lowered = folder / "lowered.onnx"
    result.save(lowered)
    warm = medians(creators(source, lowered), a.rounds)
    new = in_new_processes({FLOAT: source, SESSION: lowered, REGISTER: lowered}, a.new)
    return {
        "model": name, "float kB": source.stat().st_size / 1e3, "kB": lowered.stat().st_size / 1e3, **warm,
        "x": warm[FLOAT] / warm[SESSION], **{f"new {way}": value for way, value in new.items()},
    }  # fmt: skip


def main() -> None:
    """Measures, prints, writes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", type=Path, metavar="MODELS_FOLDER")
    parser.add_argument("--models", dest="patterns", nargs="+", default=["*"], metavar="GLOB")
    parser.add_argument("--recipe", default="int8")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--new", type=int, default=5, help="new processes of each way and model")
    parser.add_argument("--json", type=Path)
    a = parser.parse_args()
    ort.set_default_logger_severity(_FATAL)
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        for path in sorted(a.models.rglob("*.onnx")):
            name = path.relative_to(a.models).as_posix()
            if any(fnmatch.fnmatchcase(name, p) for p in a.patterns):
                row = measure(path, name, Path(folder), a)
                rows += [] if row is None else [row]
    if not rows:
        raise SystemExit(f"{a.models}: no .onnx file that rnnqc lowers")
    if len(rows) > 1:
        sums = {k: sum(r[k] for r in rows) for k in rows[0] if k not in ("model", "x")}
        rows.append(
            {k: "all" if k == "model" else sums[FLOAT] / sums[SESSION] if k == "x" else sums[k] for k in rows[0]}
        )
    report(f"Processor time to create a session in ms, median of {a.rounds}", rows, a.json)


if __name__ == "__main__":
    main()
