"""Plants small defects in the product, one at a time, and reports which test finds each.

    python scripts/planted_defects.py                    # all of tests/planted_defects/*.toml
    python scripts/planted_defects.py kernel 'AVX2 *'    # some, by the beginnings of their names
    python scripts/planted_defects.py --check            # only: does every text still occur exactly once?
    python scripts/planted_defects.py --root ../other    # the defects of this checkout in another one, with its tests

A defect has a text of the product, its replacement, the reason why it matters, and the tests that probably find it.
Texts are searched in all sources, so that a defect survives a move. Each is planted in a copy of the checkout; there
its tests run until one fails, and then all others if none does. A defect of the native library is compiled first;
`isa` names the instruction set of processors that show it.

Exit code 0: every defect was found. 1: one was not. 2: a text is missing, or occurs several times; with --check
also: a test that it names is missing.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import fnmatch
import functools
import os
import queue
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[1]
SOURCES = {"passes": (".py",), "rnnqc": (".py", ".toml"), "runtime_ops": (".py", ".cc", ".h", ".inc")}
LINKS = ("rnnqc/passes", "rnnqc/runtime_ops")
COMPILED = (".cc", ".h", ".inc")
# Parts of a path below runtime_ops/src, and the tests that call the code there.
LIKELY = {
    "gemm": ("kernels/test_kernels", "kernels/test_few_bits_kernels"),
    "dot": ("kernels/test_few_bits_kernels",),
    "products_s6": ("kernels/test_few_bits_kernels",),
    "quantize": ("kernels/test_kernels", "kernels/test_wide_kernels"),
    "gru_rnn": ("kernels/test_hidden_kernels", "operators/test_cells"),
    "fixed_point": (
        "fixed_point/test_grid_kernels",
        "fixed_point/test_grid_bytes",
        "fixed_point/test_grid",
        "operators/test_cells",
    ),
    "packing": ("kernels/test_few_bits_kernels", "kernels/test_kernels"),
    "packed_weights": ("operators/test_quant_lstm_cell", "operators/test_quant_linear", "operators/test_cells"),
    "kernels": ("kernels/test_kernels", "kernels/test_hidden_kernels"),
    "team": ("operators/test_threads",),
    "layer": ("operators/test_threads", "operators/test_cells"),
    "driver": (
        "operators/test_cells",
        "operators/test_quant_lstm_cell",
        "operators/test_quant_gru_cell",
        "operators/test_states_beyond_the_bound",
        "operators/test_threads",
    ),
    "lstm": ("operators/test_cells", "operators/test_quant_lstm_cell"),
}
SITE = """import sys
sys.meta_path[:] = [f for f in sys.meta_path if not type(f).__name__.startswith("ScikitBuild")]
"""
"""Removes the editable installation of another checkout from the import path when Python starts."""
NONE_COLLECTED = 5
"""pytest's exit code if there are no tests."""
FAILED = re.compile(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", re.MULTILINE)


@dataclass(frozen=True)
class Defect:
    """A small mistake.

    Attributes:
        name: A description of the mistake.
        old: A text that occurs once in the sources.
        new: Its replacement.
        why: Why it matters.
        tests: Files or folders below `tests` that probably find it; missing ones are ignored. Without any, the tests of
            the source's family.
        isa: The instruction set that shows it; empty for all.
    """

    name: str
    old: str
    new: str
    why: str
    tests: tuple[str, ...] = ()
    isa: str | None = None


def defects(folder: Path) -> list[Defect]:
    """Returns all defects of the files of a folder."""
    held = [d for path in sorted(folder.glob("*.toml")) for d in tomllib.loads(path.read_text("utf-8"))["defect"]]
    return [Defect(**{**d, "tests": tuple(d.get("tests", ()))}) for d in held]


def likely_tests(defect: Defect, place: Path) -> tuple[str, ...]:
    """Returns the tests to run first, below `tests`."""
    if defect.tests or place.suffix not in COMPILED:
        return defect.tests
    below = place.with_suffix("").as_posix().removeprefix("runtime_ops/src/")
    names = next((names for part, names in LIKELY.items() if part in below), ())
    return (*(f"runtime_ops/{name}.py" for name in names), "runtime_ops")


@functools.cache
def sources(root: Path) -> dict[Path, str]:
    """Returns the texts of all sources, by their paths relative to `root`."""
    paths = [p for folder in SOURCES for p in sorted((root / folder).rglob("*")) if p.suffix in SOURCES[folder]]
    texts = {path.relative_to(root): path for path in paths}
    return {p: path.read_text("utf-8") for p, path in texts.items() if not p.as_posix().startswith(LINKS)}


def place_of(defect: Defect, root: Path) -> Path | str:
    """Returns the file that has the text, relative to `root`, or a description of the error."""
    found = [path for path, text in sources(root).items() for _ in range(text.count(defect.old))]
    if len(found) == 1:
        return found[0]
    return "gone" if not found else f"{len(found)} times: {', '.join(sorted({str(f) for f in found}))}"


class Copy:
    """A copy of a checkout, in which defects are planted one after the other."""

    def __init__(self, root: Path, folder: Path, library: Path) -> None:
        self.root, self.folder, self.library = root, folder, library
        listed = subprocess.run(
            ["git", "-C", root, "ls-files", "-z", "-c", "-o", "--exclude-standard"], capture_output=True, check=True
        )
        for name in listed.stdout.decode().split("\0"):
            source, target = root / name, folder / name
            if name and (source.is_symlink() or source.is_file()):
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(source, target, follow_symlinks=False)
        (folder / ".site").mkdir()
        (folder / ".site" / "sitecustomize.py").write_text(SITE)

    def run(self, tests: list[str]) -> str | None:
        """Returns the first test that fails, or another error; None if all pass, or there are none."""
        path = os.pathsep.join([str(self.folder / ".site"), str(self.folder)])
        environment = os.environ | {
            "PYTHONPATH": path,
            "RNNQC_LIBRARY": str(self.library),
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist", *tests]
        done = subprocess.run(command, cwd=self.folder, env=environment, capture_output=True, text=True, check=False)
        if done.returncode in (0, NONE_COLLECTED):
            return None
        match = FAILED.search(done.stdout)
        if match is None:
            return f"pytest ended with {done.returncode}: {(done.stdout + done.stderr)[-300:]}"
        return match[1]

    def compile(self) -> str | None:
        """Compiles the library with little optimization; returns the compiler's message if it fails."""
        build = self.folder / "build" / "planted"
        if not (build / "build.ninja").is_file():
            options = ["-DRNNQC_TESTS=ON", "-DCMAKE_BUILD_TYPE=None", "-DCMAKE_CXX_FLAGS=-O1"]
            command = ["cmake", "-S", "runtime_ops", "-B", str(build), "-G", "Ninja", *options]
            subprocess.run(command, cwd=self.folder, capture_output=True, check=True)
        done = subprocess.run(["cmake", "--build", str(build)], cwd=self.folder, capture_output=True, text=True)
        self.library = build / "librnnqc_ops.so"
        return None if done.returncode == 0 else done.stdout[-300:]

    def has(self, isa: str) -> bool:
        """Whether this machine has an instruction set."""
        program = "from rnnqc import runtime_ops; runtime_ops.isa()"
        environment = os.environ | {"RNNQC_LIBRARY": str(self.library), "RNNQC_ISA": isa}
        done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, check=False)
        return done.returncode == 0

    def find(self, defect: Defect, rest: bool) -> str | None:
        """Returns the test that finds a defect; None if no test does."""
        place = place_of(defect, self.folder)
        assert isinstance(place, Path)
        source = self.folder / place
        text = source.read_text(encoding="utf-8")
        library = self.library
        try:
            source.write_text(text.replace(defect.old, defect.new), encoding="utf-8")
            if source.suffix in COMPILED and (said := self.compile()) is not None:
                return f"the compiler: {said}"
            if defect.isa is not None and not self.has(defect.isa):
                return f"not run: no {defect.isa} here"
            likely = [f"tests/{t}" for t in likely_tests(defect, place) if (self.folder / "tests" / t).exists()]
            # Separate runs: in one run, tests on arm64 would come first (tests/conftest.py).
            for i, tests in enumerate([*likely, "tests"] if rest else likely):
                if (found := self.run([tests, *(f"--ignore={t}" for t in likely[:i])])) is not None:
                    return found
            return None
        finally:
            source.write_text(text, encoding="utf-8")
            self.library = library


def main() -> int:
    """Runs the command."""
    arguments = _arguments()
    root = arguments.root.resolve()
    wanted = [f"{name}*" for name in arguments.names] or ["*"]
    chosen = [d for d in defects(arguments.defects) if any(fnmatch.fnmatch(d.name, w) for w in wanted)]
    places = {d.name: place_of(d, root) for d in chosen}
    missing = {name: place for name, place in places.items() if isinstance(place, str)}
    for name, place in missing.items():
        print(f"{name}: the text is {place}", file=sys.stderr)
    gone = [(d.name, t) for d in chosen for t in d.tests if not (root / "tests" / t).exists()]
    for name, test in gone:
        print(f"{name}: there is no tests/{test}", file=sys.stderr)
    if arguments.check:
        print(f"{len(chosen) - len(missing)} of {len(chosen)} defects can be planted")
        return 2 if missing or gone else 0
    chosen = [d for d in chosen if d.name not in missing]
    unfound = 0
    with tempfile.TemporaryDirectory(prefix="planted_") as folder:
        copies: queue.Queue[Copy] = queue.Queue()
        for k in range(arguments.jobs):
            copies.put(Copy(root, Path(folder) / str(k), arguments.library.resolve()))
        # Tests that cannot be imported would find every defect.
        broken = copies.queue[0].run(["--collect-only", "tests"]) if chosen else None
        if broken is not None:
            print(f"the tests cannot run here, without any defect: {broken}", file=sys.stderr)
            return 2

        def find(defect: Defect) -> str | None:
            copy = copies.get()
            try:
                return copy.find(defect, not arguments.likely_only)
            finally:
                copies.put(copy)

        with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
            futures = {pool.submit(find, d): d for d in chosen}
            for future in concurrent.futures.as_completed(futures):
                defect, found = futures[future], future.result()
                unfound += found is None
                print(f"| {defect.name} | {places[defect.name]} | {found or 'NOT FOUND'} |", flush=True)
    print(f"{len(chosen) - unfound} of {len(chosen)} defects were found, {len(missing)} could not be planted")
    return 2 if missing else 1 if unfound else 0


def _arguments() -> Any:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="patterns of names of defects, default: all")
    parser.add_argument("--defects", type=Path, default=ROOT / "tests" / "planted_defects", metavar="FOLDER")
    parser.add_argument("--root", type=Path, default=ROOT, metavar="FOLDER", help="the checkout, default: this one")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="how many at a time")
    parser.add_argument("--likely-only", action="store_true", help="not all tests where the likely ones find nothing")
    parser.add_argument("--check", action="store_true", help="only whether texts and tests are there")
    parser.add_argument("--library", type=Path, default=None, help="the native library, default: the installed one")
    arguments = parser.parse_args()
    if arguments.library is None:
        from rnnqc import runtime_ops

        arguments.library = runtime_ops.library_path()
    return arguments


if __name__ == "__main__":
    sys.exit(main())
