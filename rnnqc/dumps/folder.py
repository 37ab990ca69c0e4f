"""The folder of a dump: checks whether it may be replaced, and replaces it."""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
from pathlib import Path
from typing import Any

from rnnqc.dumps.text import FRAME, SHAPES
from rnnqc.errors import CompileError

INDEX = "index.json"
FORMAT = 1
_OTHER = "choose another output"


def check_folder(target: Path, *, overwrite: bool) -> None:
    """Checks that a dump can be written to `target`.

    Raises:
        CompileError: It is a file, or a non-empty folder that must not be replaced.
    """
    if not target.exists() and not target.is_symlink():
        return
    if not target.is_dir():
        raise CompileError(f"{target}: is not a folder.", supported="a new folder", action=_OTHER)
    if not any(target.iterdir()):
        return
    if not overwrite:
        raise CompileError(
            f"{target}: is not empty.",
            supported="a new or empty folder",
            action=f"{_OTHER}, or give --overwrite to replace the dump in it",
        )
    try:
        foreign = _foreign(target)
    except _NoDumpError as error:
        raise CompileError(
            f"{target}: holds something else than a dump ({error}).", supported="replacing a dump", action=_OTHER
        ) from error
    if foreign is not None:
        raise CompileError(
            f"{target}: holds something else than a dump ({foreign} is not among the files that {INDEX} names).",
            supported="replacing a dump and nothing else",
            action=f"{_OTHER}, or move what is not the dump's",
        )


def replace_folder(temporary: Path, target: Path, *, overwrite: bool) -> None:
    """Moves a new dump to `target`; the old contents stay if that fails.

    Args:
        temporary: The new dump, a folder beside the target.
        target: The folder to replace, not a symbolic link.
        overwrite: As in `check_folder`, which runs again because computing the dump took time.

    Raises:
        CompileError: As `check_folder`.
        OSError: The folder cannot be replaced.
    """
    check_folder(target, overwrite=overwrite)
    mask = os.umask(0)
    os.umask(mask)
    temporary.chmod(0o777 & ~mask)
    if not target.exists():
        os.replace(temporary, target)
        return
    aside = Path(tempfile.mkdtemp(dir=temporary.parent, prefix=".rnnqc.", suffix=".old"))
    old = aside / "dump"
    replaced = False
    try:
        os.replace(target, old)
        os.replace(temporary, target)
        replaced = True
    except BaseException:
        _put_back(old, target)
        raise
    finally:
        if replaced or not old.exists():
            shutil.rmtree(aside, ignore_errors=True)


def _put_back(old: Path, target: Path) -> None:
    if not old.exists():
        return
    try:
        os.replace(old, target)
    except OSError as error:
        raise CompileError(
            f"{target}: cannot be written ({error.strerror or error}). The dump that was there is {old} now.",
            action=_OTHER,
        ) from error


class _NoDumpError(Exception):
    """A folder that is not a dump, with the reason."""


def _foreign(folder: Path) -> str | None:
    """Returns an entry of a dump's folder that the index does not name; None if there is none.

    Raises:
        _NoDumpError: The index is missing or invalid.
    """
    path = folder / INDEX
    if path.is_symlink() or not path.is_file():
        raise _NoDumpError(f"{INDEX} is missing")
    try:
        index = json.loads(path.read_bytes())
        named = _Named(index)
    except OSError as error:
        raise _NoDumpError(f"{INDEX} cannot be read: {error.strerror or error}") from error
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise _NoDumpError(f"{INDEX} is not that of a dump of format {FORMAT}") from error
    for entry in sorted(os.scandir(folder), key=lambda e: e.name):
        if entry.is_file(follow_symlinks=False):
            if entry.name not in named.files:
                return entry.name
        elif not entry.is_dir(follow_symlinks=False) or not named.has_frame(entry.name):
            return entry.name
        else:
            for inner in sorted(os.scandir(entry.path), key=lambda e: e.name):
                if not inner.is_file(follow_symlinks=False) or inner.name not in named.texts:
                    return f"{entry.name}/{inner.name}"
    return None


class _Named:
    """The files and folders that an index names.

    Raises:
        KeyError, TypeError, AttributeError, ValueError, OverflowError: It is not an index.
    """

    def __init__(self, index: Any) -> None:
        if index["format"] != FORMAT:
            raise ValueError(index["format"])
        cells = list(index["cells"].values())
        self.texts = {name for cell in cells for name in cell.get("text", {}).values()}
        self.files = {INDEX, *(cell["file"] for cell in cells), *([SHAPES] if self.texts else [])}
        firsts = [(int(cell["first_step"]), int(cell["steps"])) for cell in cells if cell["steps"]]
        self._steps = [(first, first + count) for first, count in firsts]

    def has_frame(self, name: str) -> bool:
        """Whether `name` is the folder of a step."""
        match = re.fullmatch(f"{FRAME}(0|[1-9][0-9]{{0,17}})", name)
        return match is not None and any(low <= int(match[1]) < high for low, high in self._steps)
