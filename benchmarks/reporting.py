"""What the benchmarks share: the table, and the JSON file that says where it was measured."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from rnnqc.timing import environment

_WIDEST = 400
"""Characters of a line; a table is no wider than it has to be, and a number is never cut."""


def _text(value: object) -> str:
    """Three digits at least, one after the point up to 1000."""
    if not isinstance(value, float):
        return str(value)
    return f"{value:.3g}" if abs(value) < 10 else f"{value:.1f}" if abs(value) < 1000 else f"{value:.0f}"


def print_table(title: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """Print the rows as a table whose columns are the keys of the first."""
    table = Table(title=title, caption=", ".join(environment().values()))
    for column in rows[0]:
        table.add_column(column, justify="right", no_wrap=not isinstance(rows[0][column], float))
    for row in rows:
        table.add_row(*map(_text, row.values()))
    Console(width=_WIDEST).print(table)


def report(title: str, rows: Sequence[Mapping[str, Any]], json_path: Path | None) -> None:
    """Print the rows as a table; write them with the environment as JSON."""
    print_table(title, rows)
    if json_path is not None:
        data = {"title": title, "environment": environment(), "rows": list(rows)}
        json_path.write_text(json.dumps(data, indent=2) + "\n")
