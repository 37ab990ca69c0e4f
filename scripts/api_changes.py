"""Lists what has been removed from the public Python API since a release.

    python scripts/api_changes.py              since the last tag v*; does nothing if there is none
    python scripts/api_changes.py REF          since a tag, branch or commit

Public are the names in `__all__` of rnnqc, rnnqc.passes and rnnqc.runtime_ops, with the parameters of their functions
and the public members of their classes. Modules inside may change. Needs griffe, but no installation of rnnqc: sources
are read, not imported. Exit code 1: something that programs use is gone or requires other arguments.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import griffe

ROOT = Path(__file__).resolve().parent.parent
MODULES = ("", "passes", "runtime_ops")
"""Modules of the package whose `__all__` is public."""


def exported(package: griffe.Module) -> set[str]:
    """Returns the paths of the public objects: where they are exported, and where they are defined."""
    paths = set()
    for name in MODULES:
        module = package[name] if name else package
        for member in module.exports or ():
            found = module.members.get(str(member))
            paths.add(f"{module.path}.{member}")
            if found is not None and found.is_alias:
                paths.add(found.target_path)
    return paths


def removed(old: griffe.Module, new: griffe.Module) -> Iterator[str]:
    """Yields names that are not exported any more. griffe does not report one that still exists as an inner module."""
    for name in MODULES:
        before, after = (package[name] if name else package for package in (old, new))
        for member in sorted({str(m) for m in before.exports or ()} - {str(m) for m in after.exports or ()}):
            yield f"{before.path}.{member}: exported no longer"


def changes(old: griffe.Module, new: griffe.Module) -> list[str]:
    """Returns the changes that break programs, one line each."""
    public = exported(old)
    lines = set(removed(old, new))
    for change in griffe.find_breaking_changes(old, new):
        path = change.obj.path
        if any(path == p or path.startswith(f"{p}.") for p in public):
            lines.add(change.explain(griffe.ExplanationStyle.MARKDOWN).strip())
    return sorted(lines)


def load(folder: Path) -> griffe.Module:
    """Loads the package rnnqc from a folder, independent of the working directory."""
    package = griffe.load("rnnqc", search_paths=[folder], resolve_aliases=True, try_relative_path=False)
    assert isinstance(package, griffe.Module)
    return package


def last_tag() -> str:
    """Returns the newest tag of a release; empty if there is none."""
    command = ["git", "-C", str(ROOT), "describe", "--tags", "--abbrev=0", "--match", "v*"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def main() -> int:
    """Compares and prints; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ref", nargs="?", help="default: the last tag v*")
    ref = parser.parse_args().ref or last_tag()
    if not ref:
        print("no release is tagged yet: nothing to compare with")
        return 0
    old = griffe.load_git("rnnqc", ref=ref, repo=ROOT, search_paths=["."], resolve_aliases=True)
    assert isinstance(old, griffe.Module)
    found = changes(old, load(ROOT))
    print("\n".join(found) if found else f"nothing public was taken away since {ref}")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
