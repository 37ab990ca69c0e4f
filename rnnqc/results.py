"""What the results of all functions have: text, HTML for notebooks, JSON-ready values, and rows for tables."""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import Any

Row = dict[str, Any]


class Result:
    """A result for people and for programs.

    `print(result)` shows the headline and the rows, a notebook shows them as HTML, `pandas.DataFrame(result.rows)` is
    the table, and `result.to_dict()` has everything.
    """

    @property
    def headline(self) -> str:
        """One sentence."""
        raise NotImplementedError

    @property
    def rows(self) -> list[Row]:
        """A table: one dict for each row, with the same keys in each."""
        raise NotImplementedError

    def to_dict(self) -> Row:
        """Everything, as JSON-ready values."""
        raise NotImplementedError

    def __str__(self) -> str:
        return "\n".join([self.headline, *_text_rows(self.rows)])

    def _repr_html_(self) -> str:
        return f"<p>{html.escape(self.headline)}</p>{_html_table(self.rows)}"


def _text_rows(rows: Sequence[Row]) -> list[str]:
    """The lines of a table with aligned columns."""
    if not rows:
        return []
    table = [list(rows[0]), *([cell_text(v) for v in row.values()] for row in rows)]
    widths = [max(len(line[k]) for line in table) for k in range(len(table[0]))]
    return ["  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)).rstrip() for line in table]


def _html_table(rows: Sequence[Row]) -> str:
    if not rows:
        return ""
    head = "".join(f"<th>{html.escape(name)}</th>" for name in rows[0])
    body = "".join(
        "<tr>" + "".join(f"<td>{html.escape(cell_text(v))}</td>" for v in row.values()) + "</tr>" for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def cell_text(value: Any) -> str:
    """A value of a row, for people, on one line."""
    text = "" if value is None else f"{value:.5g}" if isinstance(value, float) else str(value)
    return "".join(c if c.isprintable() else " " for c in text)
