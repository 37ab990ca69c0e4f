"""The two consoles of the command line."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TextIO

from rich.console import Console
from rich.markup import escape as escape_markup
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, TextColumn, TimeElapsedColumn


def escape(text: str) -> str:
    """`text` on one line, for rich: names in models may hold line breaks, terminal sequences and rich's own markup."""
    return escape_markup("".join(c if c.isprintable() else " " if c.isspace() else repr(c)[1:-1] for c in text))


def _console(stream: TextIO) -> Console:
    """Lines that are not for a terminal stay whole, so that they can be searched."""
    if hasattr(stream, "reconfigure"):
        stream.reconfigure(errors="backslashreplace")
    return Console(file=stream, highlight=False, emoji=False, soft_wrap=True, width=None if stream.isatty() else 400)


_out = _console(sys.stdout)
_err = _console(sys.stderr)


def reset() -> None:
    """Makes the consoles anew, on the streams that the process has now."""
    global _out, _err
    _out, _err = _console(sys.stdout), _console(sys.stderr)


def out(content: object) -> None:
    """Prints a result."""
    _out.print(content)


def err(content: object) -> None:
    """Prints a remark or an error."""
    _err.print(content)


@contextmanager
def progress_bar(
    description: str, *first: ProgressColumn, counted: bool = True, quiet: bool = False
) -> Iterator[Callable[..., Any]]:
    """A bar among the remarks, where these go to a terminal; it vanishes at the end.

    Args:
        description: What is shown at first.
        first: Columns in front.
        counted: Whether to show how much of how much is done.
        quiet: Show nothing.

    Yields:
        What changes the bar: it takes `description`, `completed` and `total`.
    """
    columns = (*first, TextColumn("{task.description}"), BarColumn())
    counts = (MofNCompleteColumn(),) if counted else ()
    disable = quiet or not _err.is_terminal
    with Progress(*columns, *counts, TimeElapsedColumn(), console=_err, transient=True, disable=disable) as shown:
        bar = shown.add_task(description, total=None)
        yield lambda **changes: shown.update(bar, **changes)
