"""Plants small defects in the product, one at a time, and says which test finds each.

    python scripts/planted_defects.py                    # all of tests/planted_defects.toml
    python scripts/planted_defects.py --only 'kernel*'   # some, by name
    python scripts/planted_defects.py --check            # only: is every text still there, once?
    python scripts/planted_defects.py --root ../other    # the defects of this checkout in another one, with its tests

A defect is a text of the product, what stands there instead, why it matters, and the tests that are likely to find it.
Texts are searched in all sources, so that a defect survives a move. Each is planted in a copy of the checkout; there
its tests run until one fails, and all others if none does. A defect of the native library is compiled first.

Exit code 0: every defect was found. 1: one was not. 2: a text is missing, or stands in several places.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import fnmatch
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
SLOWLY_COMPILED = ("AVX512VNNI", "AVX512VBMI", "AMXINT8", "AVXVNNI")
SITE = """import sys
sys.meta_path[:] = [f for f in sys.meta_path if not type(f).__name__.startswith("ScikitBuild")]
"""
"""Takes the editable installation of another checkout out of the way; Python runs it at its start."""
FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+)", re.MULTILINE)


@dataclass(frozen=True)
class Defect:
    """A small mistake.

    Attributes:
        name: What is wrong.
        old: A text that stands in one place of the sources.
        new: What stands there instead.
        why: Why it matters.
        tests: Files or folders below `tests` that are likely to find it, of which those that are there count.
    """

    name: str
    old: str
    new: str
    why: str
    tests: tuple[str, ...]


def defects(path: Path) -> list[Defect]:
    """All defects of a file."""
    held = tomllib.loads(path.read_text(encoding="utf-8"))["defect"]
    return [Defect(d["name"], d["old"], d["new"], d["why"], tuple(d["tests"])) for d in held]


def place_of(defect: Defect, root: Path) -> Path | str:
    """The file that has the text, relative to `root`, or what is wrong."""
    found = [
        path.relative_to(root)
        for folder, endings in SOURCES.items()
        for path in sorted((root / folder).rglob("*"))
        if path.suffix in endings and not path.relative_to(root).as_posix().startswith(LINKS)
        for _ in range(path.read_text(encoding="utf-8").count(defect.old))
    ]
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
        """The first test that fails, or what else went wrong; None if all pass."""
        path = os.pathsep.join([str(self.folder / ".site"), str(self.folder)])
        environment = os.environ | {
            "PYTHONPATH": path,
            "RNNQC_LIBRARY": str(self.library),
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist", *tests]
        done = subprocess.run(command, cwd=self.folder, env=environment, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            return None
        match = FAILED.search(done.stdout)
        if match is None:
            return f"pytest ended with {done.returncode}: {(done.stdout + done.stderr)[-300:]}"
        return match[1]

    def compile(self) -> str | None:
        """Compiles the library, hardly optimized and without the kernels that take longest; what the compiler said."""
        build = self.folder / "build" / "planted"
        if not (build / "build.ninja").is_file():
            options = ["-DCMAKE_BUILD_TYPE=None", "-DCMAKE_CXX_FLAGS=-O1"]
            options += [f"-DRNNQC_HAS_{isa}=OFF" for isa in SLOWLY_COMPILED]
            command = ["cmake", "-S", "runtime_ops", "-B", str(build), "-G", "Ninja", *options]
            subprocess.run(command, cwd=self.folder, capture_output=True, check=True)
        done = subprocess.run(["cmake", "--build", str(build)], cwd=self.folder, capture_output=True, text=True)
        self.library = build / "librnnqc_ops.so"
        return None if done.returncode == 0 else done.stdout[-300:]

    def find(self, defect: Defect, rest: bool) -> str | None:
        """The test that finds a defect; None if no test does."""
        place = place_of(defect, self.folder)
        assert isinstance(place, Path)
        source = self.folder / place
        text = source.read_text(encoding="utf-8")
        library = self.library
        try:
            source.write_text(text.replace(defect.old, defect.new), encoding="utf-8")
            if source.suffix in COMPILED and (said := self.compile()) is not None:
                return f"the compiler: {said}"
            likely = [f"tests/{t}" for t in defect.tests if (self.folder / "tests" / t).exists()]
            found = self.run(likely) if likely else None
            if found is None and rest:
                found = self.run(["tests", *(f"--ignore={t}" for t in likely)])
            return found
        finally:
            source.write_text(text, encoding="utf-8")
            self.library = library


def main() -> int:
    """Runs the command."""
    arguments = _arguments()
    root = arguments.root.resolve()
    chosen = [d for d in defects(arguments.defects) if fnmatch.fnmatch(d.name, arguments.only)]
    places = {d.name: place_of(d, root) for d in chosen}
    missing = {name: place for name, place in places.items() if isinstance(place, str)}
    for name, place in missing.items():
        print(f"{name}: the text is {place}", file=sys.stderr)
    if arguments.check:
        print(f"{len(chosen) - len(missing)} of {len(chosen)} defects can be planted")
        return 2 if missing else 0
    chosen = [d for d in chosen if d.name not in missing]
    unfound = 0
    with tempfile.TemporaryDirectory(prefix="planted_") as folder:
        copies: queue.Queue[Copy] = queue.Queue()
        for k in range(arguments.jobs):
            copies.put(Copy(root, Path(folder) / str(k), arguments.library.resolve()))

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
    parser.add_argument("--defects", type=Path, default=ROOT / "tests" / "planted_defects.toml", metavar="FILE")
    parser.add_argument("--root", type=Path, default=ROOT, metavar="FOLDER", help="the checkout, default: this one")
    parser.add_argument("--only", default="*", metavar="PATTERN", help="names of defects")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="how many at a time")
    parser.add_argument("--likely-only", action="store_true", help="not all tests where the likely ones find nothing")
    parser.add_argument("--check", action="store_true", help="only whether every text stands in one place")
    parser.add_argument("--library", type=Path, default=None, help="the native library, default: the installed one")
    arguments = parser.parse_args()
    if arguments.library is None:
        from rnnqc import runtime_ops

        arguments.library = runtime_ops.library_path()
    return arguments


if __name__ == "__main__":
    sys.exit(main())
