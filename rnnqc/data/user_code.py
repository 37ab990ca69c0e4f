"""Functions that users name as `module:function`."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


@contextmanager
def importable_working_folder() -> Iterator[None]:
    """Modules of the working folder can be imported, as with `python -m`."""
    folder = str(Path.cwd())
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        if folder in sys.path:
            sys.path.remove(folder)


def named_object(source: str) -> Any:
    """What `module:name` names; raises whatever the import does."""
    module, _, name = source.partition(":")
    return getattr(importlib.import_module(module), name)
