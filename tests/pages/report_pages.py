"""Reading a page of `rnnqc report`: a strict parser that refuses what a page must not have."""

from __future__ import annotations

from dataclasses import dataclass, field
from html.parser import HTMLParser

VOID = frozenset({"meta", "link", "br", "wbr"})
ELEMENTS = VOID | {
    "html", "head", "title", "style", "body", "header", "nav", "main", "section", "footer", "div", "p", "h1", "h2",
    "h3", "b", "a", "small", "code", "pre", "span", "data", "dl", "dt", "dd", "ul", "li", "table", "thead", "tbody",
    "tr", "th", "td", "figure", "figcaption", "details", "summary", "svg", "path", "rect", "line", "text", "circle",
}  # fmt: skip
ATTRIBUTES = {
    "lang", "charset", "name", "content", "http-equiv", "rel", "href", "class", "id", "aria-label", "aria-hidden",
    "role", "tabindex", "scope", "value", "viewbox", "width", "height", "preserveaspectratio", "d", "x", "y", "x1",
    "x2", "y1", "y2", "cx", "cy", "r", "rx", "transform", "data-label",
}  # fmt: skip


@dataclass
class Page(HTMLParser):
    """A page, checked while it is read.

    Attributes:
        texts: The texts of every element, by name.
        values: The exact numbers of all `data` elements, with what people see.
        commands: What can be pasted.
        links: Targets of all links.
        ids: Of all elements.
    """

    texts: dict[str, list[str]] = field(default_factory=dict)
    values: list[tuple[str, str]] = field(default_factory=list)
    commands: list[str] = field(default_factory=list)
    links: list[str] = field(default_factory=list)
    ids: list[str] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    _stack: list[tuple[str, list[str]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__(convert_charrefs=True)

    @classmethod
    def read(cls, text: str) -> Page:
        """Parses a whole page and checks that everything is closed."""
        assert text.startswith("<!DOCTYPE html>\n")
        page = cls()
        page.feed(text)
        page.close()
        assert page._stack == []
        assert len(page.ids) == len(set(page.ids))
        targets = {link.removeprefix("#") for link in page.links if link.startswith("#")}
        assert targets <= set(page.ids)
        assert {link for link in page.links if not link.startswith("#")} <= {"data:,"}
        return page

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in ELEMENTS, tag
        names = [k for k, _ in attrs]
        assert set(names) <= ATTRIBUTES, (tag, names)
        assert len(names) == len(set(names))
        held = dict(attrs)
        self.counts[tag] = self.counts.get(tag, 0) + 1
        if "href" in held:
            self.links.append(held["href"] or "")
        if "id" in held:
            self.ids.append(held["id"] or "")
        if tag == "data":
            self.values.append((held["value"] or "", ""))
        if tag not in VOID:
            self._stack.append((f"{tag}.{held.get('class', '')}", []))

    def handle_endtag(self, tag: str) -> None:
        key, texts = self._stack.pop()
        kind, _, _ = key.partition(".")
        assert kind == tag, (kind, tag)
        text = "".join(texts)
        self.texts.setdefault(tag, []).append(text)
        if tag == "data":
            self.values[-1] = (self.values[-1][0], text)
        if key == "pre.command":
            self.commands.append(text)
        if self._stack:
            self._stack[-1][1].append(text)

    def handle_data(self, data: str) -> None:
        if self._stack:
            self._stack[-1][1].append(data)
        else:
            assert data.strip() == ""

    def handle_comment(self, data: str) -> None:
        raise AssertionError(f"a comment: {data}")

    def unknown_decl(self, data: str) -> None:
        raise AssertionError(f"a declaration: {data}")

    @property
    def text(self) -> str:
        """Everything that can be read."""
        return self.texts["body"][0]
