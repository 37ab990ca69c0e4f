"""The two consoles of the command line. rich is imported at the first print: `--help` does not need it."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from rnnqc.codes import Told
    from rnnqc.measure.verdict import Verdict

_consoles: dict[str, Console] = {}
_quiet = False
WIDTH = 120
"""Width of tables that do not go to a terminal."""
EVERY = 10.0
"""Seconds between two progress lines if remarks do not go to a terminal."""
LEAST_NAME = 24
"""Names in a narrow table are shortened to no less than this."""


def escape(text: str) -> str:
    """Escapes `text` for rich, on one line: names may hold line breaks, terminal sequences and rich's own markup."""
    from rich.markup import escape as escape_markup

    return escape_markup("".join(c if c.isprintable() else " " if c.isspace() else repr(c)[1:-1] for c in text))


def reset(*, quiet: bool = False) -> None:
    """Resets the consoles to the current streams of the process.

    Args:
        quiet: Whether only remarks and errors are printed.
    """
    global _quiet
    _consoles.clear()
    _quiet = quiet


def _console(name: str) -> Console:
    """Returns the console of a stream. Without a terminal lines are not wrapped, so that they can be searched."""
    from rich.console import Console

    if name not in _consoles:
        stream: TextIO = getattr(sys, name)
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
        width = None if stream.isatty() else 400
        _consoles[name] = Console(file=stream, highlight=False, emoji=False, soft_wrap=True, width=width)
    return _consoles[name]


def out(content: object) -> None:
    """Prints a result."""
    if not _quiet:
        _console("stdout").print(content)


def err(content: object) -> None:
    """Prints a remark or an error."""
    _console("stderr").print(content)


def tell(text: Told, option: str = "") -> None:
    """Prints a warning or remark, and the option that it is about, if any."""
    err(f"[yellow]rnnqc:{f' {option}:' if option else ''}[/yellow] {escape(text)}")


def inform(text: str) -> None:
    """Prints a line about what is going to be done, unless only remarks and errors are asked for."""
    if not _quiet:
        err(f"rnnqc: {escape(text)}")


def colored(verdict: Verdict) -> str:
    """Formats a verdict as a line with a coloured level."""
    color = {"good": "green", "watch": "yellow", "bad": "red"}[verdict.level]
    return f"[{color}]{verdict.level}:[/{color}] {escape(verdict.text)}"


def new_table(*columns: str) -> Table:
    """Returns a table without lines."""
    from rich.table import Table

    return Table(*columns, box=None, pad_edge=False)


def width() -> int:
    """Returns the width of tables: that of the terminal, or 120 columns without one."""
    console = _console("stdout")
    return console.width if console.is_terminal else WIDTH


def shortened(text: str, most: int) -> str:
    """Shortens a name to `most` characters, keeping the beginning and more of the end, which says more."""
    if len(text) <= most:
        return text
    end = (most - 1) * 2 // 3
    return f"{text[: most - 1 - end]}…{text[len(text) - end :]}"


def out_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Prints a table no wider than `width`: shortens names in the first column, wraps other cells.

    Args:
        columns: The heads.
        rows: Plain text for each.
    """
    rest = sum(2 + max(map(len, column)) for column in list(zip(columns, *rows, strict=True))[1:])
    table = new_table(*columns)
    for first, *others in rows:
        table.add_row(*map(escape, [shortened(first, max(LEAST_NAME, width() - rest)), *others]))
    if not _quiet:
        _console("stdout").print(table, width=width(), soft_wrap=False, crop=False, overflow="fold")


@contextmanager
def progress_bar(
    description: str, *, spinner: bool = False, counted: bool = True, quiet: bool = False
) -> Iterator[Callable[..., Any]]:
    """Shows a bar among the remarks that vanishes at the end; without a terminal, prints a plain line now and then.

    Args:
        description: The initial text.
        spinner: Whether to show a moving sign in front.
        counted: Whether to show how much of how much is done.
        quiet: Show nothing.

    Yields:
        A function that updates the bar: it takes `description`, `completed` and `total`.
    """
    console = _console("stderr")
    if not console.is_terminal:
        yield _Lines(description, silent=quiet or _quiet).update
        return
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        SpinnerColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    first = (SpinnerColumn(),) if spinner else ()
    counts = (MofNCompleteColumn(), TimeRemainingColumn()) if counted else ()
    columns = (*first, TextColumn("{task.description}"), BarColumn(), *counts, TimeElapsedColumn())
    disable = quiet or _quiet
    with Progress(*columns, console=console, transient=True, disable=disable) as shown:
        bar = shown.add_task(description, total=None)
        yield lambda **changes: shown.update(bar, **changes)


class _Lines:
    """Progress as a plain line every `EVERY` seconds, if updated often enough; with an estimate of what is left.

    Args:
        description: The initial text.
        silent: Whether nothing is printed.
    """

    def __init__(self, description: str, *, silent: bool) -> None:
        self._description, self._silent = description, silent
        self._completed, self._total = 0, 0
        self._start = self._last = time.monotonic()
        self._begun: tuple[float, int] | None = None

    def update(self, *, description: str | None = None, completed: int = 0, total: int | None = None) -> None:
        """Stores the state of the bar, and prints it if the last line is old enough."""
        if description is not None and description != self._description:
            self._description, self._total, self._begun = description, 0, None
        self._completed, self._total = completed, total or self._total
        now = time.monotonic()
        self._begun = self._begun or (now, completed)
        if self._silent or now - self._last < EVERY:
            return
        self._last = now
        is_known = self._total > self._completed
        count = f" {self._completed} of {self._total}" if is_known else f" {self._completed}" if completed else ""
        err(f"rnnqc: {escape(self._description)}{count}, {now - self._start:.0f} s{self._left(now, *self._begun)}")

    def _left(self, now: float, begun: float, before: int) -> str:
        """Estimates the time left from the time that each of those counted so far has taken; "" without any."""
        done, left = self._completed - before, self._total - self._completed
        return f", about {(now - begun) * left / done:.0f} s left" if done > 0 and left > 0 else ""
