"""The common interface of all results: text, HTML for notebooks, JSON-ready values, and rows for tables."""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import Any

from rnnqc.codes import Told
from rnnqc.wording import worded

Row = dict[str, Any]


class Result:
    """A result for people and for programs.

    `print(result)` shows the headline, the rows, messages and hints, a notebook shows them as HTML,
    `pandas.DataFrame(result.rows)` is the table, and `result.to_dict()` has everything.
    """

    @property
    def headline(self) -> str:
        """A summary in one sentence."""
        raise NotImplementedError

    @property
    def rows(self) -> list[Row]:
        """A table: one dict for each row, with the same keys in each."""
        raise NotImplementedError

    @property
    def shown(self) -> list[Row]:
        """The rows formatted for people, with the same keys, for `print` and notebooks."""
        return self.rows

    @property
    def messages(self) -> list[Told]:
        """The warnings of the command line that are not in the rows: a sentence each, with its code."""
        return []

    @property
    def hints(self) -> list[str]:
        """Other output of the command line: a sentence each."""
        return []

    def to_dict(self) -> Row:
        """Returns everything as JSON-ready values."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return f"<rnnqc.{type(self).__name__}: {one_line(worded(self.headline))}>"

    def __str__(self) -> str:
        return "\n".join([one_line(worded(self.headline)), *_text_rows(self.shown), *self._told])

    def _repr_html_(self) -> str:
        listed = "".join(f"<li>{html.escape(text)}</li>" for text in self._told)
        text = f"<p>{html.escape(one_line(worded(self.headline)))}</p>{_html_table(self.shown)}"
        return text + (f"<ul>{listed}</ul>" if listed else "")

    @property
    def _told(self) -> list[str]:
        """Messages and hints, a line each."""
        texts = [*(f"warning: {text}" for text in self.messages), *(f"note: {text}" for text in self.hints)]
        return [one_line(worded(text)) for text in texts]


def _text_rows(rows: Sequence[Row]) -> list[str]:
    """Returns the lines of a table with aligned columns."""
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
    """Formats a value of a row for people, on one line."""
    return one_line("" if value is None else f"{value:.5g}" if isinstance(value, float) else worded(str(value)))


def one_line(text: str) -> str:
    """Returns a text on one line: names in models may hold line breaks and terminal sequences."""
    return "".join(c if c.isprintable() else " " for c in text)
