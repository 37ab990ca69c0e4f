"""Imports functions that users name as `module:function`."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rnnqc.errors import UsageError


@contextmanager
def importable_working_folder() -> Iterator[None]:
    """Makes modules of the working folder importable, as with `python -m`."""
    folder = str(Path.cwd())
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        if folder in sys.path:
            sys.path.remove(folder)


def check_names_a_module(source: str, named: str) -> None:
    """Refuses the path of a file where a module is expected; messages call it `named`.

    Raises:
        UsageError: `source` is the path of a file.
    """
    module, _, name = source.partition(":")
    if module.endswith(".py"):
        path = Path(module)
        elsewhere = "" if path.parent == Path() else f", in the folder {path.parent}"
        raise UsageError(
            f"{named}: {module} is a file.", supported="module:function", action=f"write {path.stem}:{name}{elsewhere}"
        )


def named_object(source: str) -> Any:
    """Returns the object named by `module:name`; raises any error that the import raises."""
    module, _, name = source.partition(":")
    return getattr(importlib.import_module(module), name)
