"""The output of benchmarks: a table, and a JSON file that describes the machine."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from rnnqc.timing import environment

_WIDEST = 400
"""Characters of a line; a table is no wider than needed, and numbers are never cut."""


def _text(value: object) -> str:
    """Formats floats: three significant digits below 10, one decimal below 1000, none above."""
    if not isinstance(value, float):
        return str(value)
    return f"{value:.3g}" if abs(value) < 10 else f"{value:.1f}" if abs(value) < 1000 else f"{value:.0f}"


def print_table(title: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """Prints the rows as a table; its columns are the keys of the first row."""
    table = Table(title=title, caption=", ".join(environment().values()))
    for column in rows[0]:
        table.add_column(column, justify="right", no_wrap=not isinstance(rows[0][column], float))
    for row in rows:
        table.add_row(*map(_text, row.values()))
    Console(width=_WIDEST).print(table)


def report(title: str, rows: Sequence[Mapping[str, Any]], json_path: Path | None) -> None:
    """Prints the rows as a table; writes them with the environment as JSON."""
    print_table(title, rows)
    if json_path is not None:
        data = {"title": title, "environment": environment(), "rows": list(rows)}
        json_path.write_text(json.dumps(data, indent=2) + "\n")
