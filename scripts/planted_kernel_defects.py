"""Plant errors in the C++ sources, one at a time, and see that tests/runtime_ops finds each.

The errors are those of tests/planted_defects/kernels.toml. Each is written into the checkout, the libraries are built
in a folder of their own, the tests run, and the source is restored. The tests of the changed family run first, and all
others only if these pass.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ROOT / "runtime_ops" / "src"
TESTS = ROOT / "tests" / "runtime_ops"
# Parts of a path, and the tests that call what is there.
LIKELY = {
    "gemm": ("test_kernels", "test_int4_kernels"),
    "dot": ("test_int4_kernels",),
    "quantize": ("test_kernels", "test_wide_kernels"),
    "gru_rnn": ("test_hidden_kernels", "test_quant_gru_cell"),
    "fixed_point": ("test_grid_kernels", "test_grid_bytes", "test_grid"),
    "kernels": ("test_kernels", "test_hidden_kernels"),
    "team": ("test_threads",),
    "layer": ("test_threads", "test_quant_gru_cell", "test_grid"),
    "driver": ("test_quant_lstm_cell", "test_quant_gru_cell", "test_states_beyond_the_bound", "test_threads"),
    "lstm": ("test_quant_lstm_cell",),
}


def place(old: str) -> Path:
    """The one source that has this text.

    Raises:
        ValueError: none has it, or it occurs more than once.
    """
    found = [path for path in sorted(SOURCES.rglob("*")) if path.is_file() and old in path.read_text(encoding="utf-8")]
    if len(found) != 1 or found[0].read_text(encoding="utf-8").count(old) != 1:
        raise ValueError(f"{old!r} does not occur once: {[str(path.relative_to(ROOT)) for path in found]}")
    return found[0]


def likely(path: Path) -> list[Path]:
    """The test files to begin with."""
    for part, names in LIKELY.items():
        if part in path.relative_to(SOURCES).with_suffix("").as_posix():
            return [TESTS / f"{name}.py" for name in names]
    return []


def build(folder: Path) -> None:
    """Both libraries.

    Raises:
        subprocess.CalledProcessError: they cannot be built.
    """
    subprocess.run(["cmake", "--build", str(folder)], check=True, stdout=subprocess.DEVNULL)


def fails(folder: Path, files: list[Path]) -> bool:
    """Whether a test of these files fails, or kills the process."""
    library = folder / "librnnqc_ops.so"
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *map(str, files)]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, "RNNQC_LIBRARY": str(library)},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode in (0, 1) or done.returncode < 0:
        return done.returncode != 0
    raise RuntimeError(f"pytest ends with {done.returncode}: {done.stdout[-2000:]}{done.stderr[-2000:]}")


def found(defect: dict[str, str], folder: Path) -> bool:
    """Whether the tests find the error."""
    path = place(defect["old"])
    text = path.read_text(encoding="utf-8")
    first = likely(path)
    try:
        path.write_text(text.replace(defect["old"], defect["new"]), encoding="utf-8")
        build(folder)
        rest = [file for file in sorted(TESTS.glob("test_*.py")) if file not in first]
        return (bool(first) and fails(folder, first)) or fails(folder, rest)
    finally:
        path.write_text(text, encoding="utf-8")


def available(isa: str, folder: Path) -> bool:
    """Whether this machine has the instruction set."""
    program = "from rnnqc import runtime_ops; runtime_ops.isa()"
    environment = {**os.environ, "RNNQC_LIBRARY": str(folder / "librnnqc_ops.so"), "RNNQC_ISA": isa}
    return (
        subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, check=False).returncode
        == 0
    )


def main() -> int:
    """Return 1 if an error was missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="parts of the names of defects; all by default")
    parser.add_argument("--build", type=Path, default=ROOT / "build" / "planted", help="folder of the build")
    parser.add_argument("--check", action="store_true", help="only look for the places of all defects")
    options = parser.parse_args()
    defects = tomllib.loads((ROOT / "tests" / "planted_defects" / "kernels.toml").read_text(encoding="utf-8"))["defect"]
    if options.check:
        places = {place(defect["old"]) for defect in defects}
        print(f"{len(defects)} errors in {len(places)} files")
        return 0
    chosen = [d for d in defects if not options.names or any(name in d["name"] for name in options.names)]
    subprocess.run(
        ["cmake", "-S", str(ROOT / "runtime_ops"), "-B", str(options.build), "-DRNNQC_TESTS=ON"],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    build(options.build)
    missed = []
    for defect in chosen:
        if "isa" in defect and not available(defect["isa"], options.build):
            print(f"not run, no {defect['isa']}: {defect['name']}", flush=True)
            continue
        if found(defect, options.build):
            print(f"found: {defect['name']}", flush=True)
        else:
            missed.append(defect["name"])
            print(f"MISSED: {defect['name']} ({defect['why']})", flush=True)
    build(options.build)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
