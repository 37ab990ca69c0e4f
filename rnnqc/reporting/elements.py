"""Elements of a page. Every text and attribute is escaped, and no name of a model can make an element or hide a part.

Names may hold line breaks, control characters and marks that turn the direction of writing: those are written out.
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
"""Elements with a line break behind them."""
LONG = 44
"""Characters of a name that may be broken into lines everywhere."""


def visible(text: str) -> str:
    """`text` with everything written out that has no shape of its own."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def element(tag: str, *children: Child, **attributes: Any) -> Element:
    """An element; `class_` stands for `class`, other underscores for hyphens, attributes that are None are left out."""
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
    """A name of a model or of a file, which may be broken into lines behind its parts."""
    parts = re.findall(r"[^/._]*[/._]+|[^/._]+", text)
    broken = [element("wbr") if k % 2 else parts[k // 2] for k in range(max(0, 2 * len(parts) - 1))]
    return element("code", broken, class_="name long" if len(text) > LONG else "name")


def command(*lines: str) -> Element:
    """Something to paste."""
    return element("pre", element("code", "", *_broken(lines)), class_="command")


def _broken(lines: Iterable[str]) -> list[Element]:
    """Lines with real breaks between them."""
    made = [element("span", line, class_="line") for line in lines]
    for shown in made[:-1]:
        shown.tail = "\n"
    return made


def quoted(word: str) -> str:
    """`word` as a shell takes it."""
    return shlex.quote(word)


def number(value: float | None, text: str) -> Element:
    """A number for people, with its exact value for programs."""
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
    """A difference of levels."""
    if math.isinf(value):
        return number(value, "all of it" if value > 0 else "−∞ dB")
    text = f"{value:+.1f} dB" if abs(value) >= 0.05 else "0.0 dB"
    return number(value, text.replace("-", "−"))


def percent(value: float) -> Element:
    """A share."""
    if value == 0.0:
        return number(value, "0")
    whole = 0.1 <= abs(value) < 0.995 or abs(value) >= 1.0  # what is not all is not 100 %
    text = f"{value:.0%}" if whole else f"{value:.1%}" if abs(value) >= 0.001 else f"{1e6 * value:.0f} ppm"
    return number(value, text.replace("-", "−"))


def real(value: float | None) -> Element:
    """A value of a tensor."""
    return number(value, "–" if value is None else short(value))


def short(value: float) -> str:
    """Three digits."""
    text = f"{value:.3g}"
    if "e" in text and 1e-4 <= abs(value) < 1e6:
        text = f"{value:.0f}" if abs(value) >= 100 else f"{value:.6f}".rstrip("0")
    return text.replace("-", "−")


def document(head: Iterable[Element], body: Iterable[Element]) -> str:
    """A whole page."""
    page = element("html", element("head", head), element("body", body), lang="en")
    text = ElementTree.tostring(page, encoding="unicode", method="html", short_empty_elements=False)
    text = text.replace("</wbr>", "")  # Python 3.10 does not know that it has no end; texts have no "<"
    return f"<!DOCTYPE html>\n{text}\n"
