"""Elements of an HTML page. Every text and attribute is escaped, so no name in a model can inject markup.

Line breaks, control characters and bidirectional marks in names are shown as escape sequences.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Iterable
from typing import Any, Union
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

Child = Union[Element, str, None, "Iterable[Child]"]
_BLOCKS = frozenset(("section", "div", "tr", "figure", "details", "li", "p", "h1", "h2", "h3", "main", "dd"))
"""Elements that are followed by a line break."""
LONG = 44
"""Names longer than this many characters may break at any character."""


def visible(text: str) -> str:
    """Returns `text` with non-printable characters as escape sequences."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def element(tag: str, *children: Child, **attributes: Any) -> Element:
    """Makes an element. `class_` means `class`, other underscores become hyphens, None attributes are omitted."""
    made = Element(tag, {_name(k): visible(str(v)) for k, v in attributes.items() if v is not None})
    _append(made, children)
    if tag in _BLOCKS:
        made.tail = "\n"
    return made


def _name(key: str) -> str:
    return key if key == "viewBox" or key == "preserveAspectRatio" else key.rstrip("_").replace("_", "-")


def _append(parent: Element, children: Iterable[Child]) -> None:
    for child in children:
        if child is None:
            continue
        if isinstance(child, Element):
            parent.append(child)
        elif isinstance(child, str):
            if len(parent):
                parent[-1].tail = (parent[-1].tail or "") + visible(child)
            else:
                parent.text = (parent.text or "") + visible(child)
        else:
            _append(parent, child)


def name(text: str) -> Element:
    """The name of a model or file. It may break after `/`, `.` and `_`."""
    parts = re.findall(r"[^/._]*[/._]+|[^/._]+", text)
    broken = [element("wbr") if k % 2 else parts[k // 2] for k in range(max(0, 2 * len(parts) - 1))]
    return element("code", broken, class_="name long" if len(text) > LONG else "name")


def command(*lines: str) -> Element:
    """A command block to copy and paste."""
    return element("pre", element("code", "", *_broken(lines)), class_="command")


def _broken(lines: Iterable[str]) -> list[Element]:
    """One `<span>` per line, separated by real line breaks."""
    made = [element("span", line, class_="line") for line in lines]
    for shown in made[:-1]:
        shown.tail = "\n"
    return made


def quoted(word: str) -> str:
    """Returns `word` quoted for a shell."""
    return shlex.quote(word)


def number(value: float | None, text: str) -> Element:
    """A formatted number that carries its exact value in the attribute `value`."""
    exact = None if value is None else repr(value) if math.isfinite(value) else str(value)
    return element("data", text, value="" if exact is None else exact)


def decibels(value: float | None) -> Element:
    """A level in dB."""
    if value is None:
        return number(None, "–")
    if math.isinf(value):
        return number(value, "exact" if value > 0 else "no signal")
    return number(value, f"{value:.1f} dB".replace("-", "−"))


def difference(value: float) -> Element:
    """A signed difference of two levels in dB."""
    if math.isinf(value):
        return number(value, "all of it" if value > 0 else "−∞ dB")
    text = f"{value:+.1f} dB" if abs(value) >= 0.05 else "0.0 dB"
    return number(value, text.replace("-", "−"))


def percent(value: float) -> Element:
    """A share as a percentage, or as ppm where it is tiny."""
    if value == 0.0:
        return number(value, "0")
    whole = 0.1 <= abs(value) < 0.995 or abs(value) >= 1.0  # below 100 %, rounding must not show 100 %
    text = f"{value:.0%}" if whole else f"{value:.1%}" if abs(value) >= 0.001 else f"{1e6 * value:.0f} ppm"
    return number(value, text.replace("-", "−"))


def real(value: float | None) -> Element:
    """A tensor value, rounded for display."""
    return number(value, "–" if value is None else short(value))


def short(value: float) -> str:
    """Returns `value` with three significant digits."""
    text = f"{value:.3g}"
    if "e" in text and 1e-4 <= abs(value) < 1e6:
        text = f"{value:.0f}" if abs(value) >= 100 else f"{value:.6f}".rstrip("0")
    return text.replace("-", "−")


def document(head: Iterable[Element], body: Iterable[Element]) -> str:
    """Returns a whole HTML page as text."""
    page = element("html", element("head", head), element("body", body), lang="en")
    text = ElementTree.tostring(page, encoding="unicode", method="html", short_empty_elements=False)
    text = text.replace("</wbr>", "")  # Python 3.10 does not know that wbr is a void element; texts contain no "<"
    return f"<!DOCTYPE html>\n{text}\n"
