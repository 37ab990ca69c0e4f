"""The folder of a reproducer: its files are recognizable, so that rnnqc never removes others."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from rnnqc.errors import UsageError
from rnnqc.proto.files import remove_files, write_folder

REPORT = "report.json"
DATA_FILES = ("before.onnx", "after.onnx", "feeds.npz")
REPRODUCER_FILES = (*DATA_FILES, REPORT)
"""In writing order: once the last one exists, all do."""
FILES, CREATED = "files", "folder_created"
_OTHER = "a folder that does not exist, or that holds a reproducer of rnnqc"


class ReproducerFolder:
    """A folder for a reproducer. Removes the files of an earlier run, and no others.

    Args:
        path: The folder; it need not exist.

    Raises:
        UsageError: It has files with the reproducer's names that rnnqc did not write.
        CompileError: The files cannot be removed.
    """

    def __init__(self, path: Path) -> None:
        check_reproducer(path)
        self.path = path
        created = bool(_report(path).get(CREATED))
        remove_files(path, REPRODUCER_FILES)
        if created and path.is_dir() and not any(path.iterdir()):
            path.rmdir()

    def write(self, data: Mapping[str, bytes], report: Mapping[str, Any]) -> None:
        """Writes the files of `DATA_FILES`, and then the report.

        Raises:
            CompileError: A file cannot be written.
        """
        known = {FILES: {name: _digest(content) for name, content in data.items()}, CREATED: not self.path.exists()}
        text = json.dumps({**report, **known}, indent=2) + "\n"
        write_folder(self.path, {**data, REPORT: text.encode()})


def check_reproducer(path: Path, inputs: Iterable[str] = ()) -> None:
    """Checks that writing a reproducer to a folder cannot destroy the user's files.

    Args:
        path: The folder.
        inputs: Files and folders that are read.

    Raises:
        UsageError: It is not a folder, has files with the reproducer's names that rnnqc did not write, or has an input.
    """
    if path.exists() and not path.is_dir():
        raise UsageError(f"reproducer: {path} is a file.", supported=_OTHER, action="choose another folder")
    held = [name for name in REPRODUCER_FILES if os.path.lexists(path / name)]
    digests = _report(path).get(FILES)
    known = digests if isinstance(digests, dict) else {}
    for name in held:
        if not known or (name != REPORT and _digest_of(path / name) != known.get(name)):
            raise UsageError(
                f"reproducer: {path / name} was not written by rnnqc, and would be removed.",
                supported=_OTHER,
                action="choose another folder, or move the file",
            )
    for source in filter(os.path.exists, inputs):
        if any(os.path.samefile(source, p) for p in (path, *(path / n for n in held)) if p.exists()):
            raise UsageError(
                f"reproducer: {source} is an input, and would be removed.",
                supported=_OTHER,
                action="choose another folder, or move the input",
            )


def _report(path: Path) -> Mapping[str, Any]:
    """Returns the report of an earlier run; empty if there is none."""
    try:
        data = json.loads((path / REPORT).read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return data if isinstance(data, dict) else {}


def _digest_of(path: Path) -> str:
    try:
        return _digest(path.read_bytes())
    except OSError:
        return ""


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
