"""Tables that scroll inside themselves."""

from __future__ import annotations

from collections.abc import Sequence
from xml.etree.ElementTree import Element

from rnnqc.reporting.elements import Child, element

Row = Sequence[Child]


def table(caption: str, heads: Sequence[str], rows: Sequence[Row], numeric: str = "") -> Element:
    """A table.

    Args:
        caption: For those who do not see it.
        heads: Of the columns.
        rows: A row with classes for its cells is a list of elements `td`.
        numeric: A character for each column: "n" aligns to the right, "l" is wide.
    """
    kinds = [{"n": "n", "l": "long"}.get(c) for c in numeric.ljust(len(heads))]
    head = [element("th", h, class_="n" if k == "n" else None, scope="col") for h, k in zip(heads, kinds, strict=True)]
    body = [element("tr", [_cell(c, k) for c, k in zip(row, kinds, strict=True)]) for row in rows]
    made = element("table", element("thead", element("tr", head)), element("tbody", body), aria_label=caption)
    return element("div", made, class_="scroll", tabindex="0", role="region", aria_label=caption)


def _cell(child: Child, kind: str | None) -> Element:
    if isinstance(child, Element) and child.tag == "td":
        if kind:
            child.set("class", " ".join(filter(None, (kind, child.get("class")))))
        return child
    return element("td", child, class_=kind)


def section(key: str, title: str, content: Sequence[Child], said: Sequence[Child] = ()) -> Element:
    """A folded section: its subtitle on one line, the content to unfold. Print shows everything."""
    line = element("span", said, class_="said") if said else None
    top = element("summary", element("h2", title), line)
    return element("section", element("details", top, content), id=key, aria_label=title)


def folded(count: int, what: str, content: Element) -> Element:
    """A `<details>` element with `count` and `what` as its summary."""
    return element("details", element("summary", f"{count} {what}"), content)
