"""Renders the evidence as one self-contained HTML page: no network, no script, no other file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import resources
from xml.etree.ElementTree import Element

from rnnqc.reporting.elements import Child, document, element, name
from rnnqc.reporting.evidence import Evidence
from rnnqc.reporting.sections.accuracy import accuracy, times
from rnnqc.reporting.sections.formats import points, sensitivity
from rnnqc.reporting.sections.model import facts, layers_table, making
from rnnqc.reporting.sections.repairs import repairs
from rnnqc.reporting.sections.verdict import verdict
from rnnqc.reporting.tables import section

SECTIONS: Sequence[tuple[str, str, str, Callable[[Evidence], list[Child]]]] = (
    ("layers", "What was lowered", "each recurrent layer, its form and sizes", layers_table),
    ("accuracy", "Accuracy over time", "outputs and layers, step by step", accuracy),
    ("points", "Ranges and clipping", "values against the range of their format", points),
    ("sensitivity", "Sensitivity", "what each point costs", sensitivity),
    ("times", "Time", "of each layer: float, stock, native", times),
    ("making", "How this was made", "data, recipe, versions, words", making),
)
"""The folded sections: key, title, subtitle, and the function that makes the content."""
NOTHING = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
"""The content security policy of the page: inline styles and data images only."""


def page(evidence: Evidence) -> str:
    """Returns the page. The same evidence gives the same text."""
    title = f"{evidence.quantized_model} – rnnqc report"
    head = [
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", http_equiv="Content-Security-Policy", content=NOTHING),
        element("meta", name="color-scheme", content="light dark"),
        element("meta", name="referrer", content="no-referrer"),
        element("title", title),
        element("link", rel="icon", href="data:,"),
        style(),
    ]
    top = element(
        "header",
        element(
            "div",
            element("h1", "Report on ", name(evidence.quantized_model)),
            element("p", "lowered from ", name(evidence.float_model), *_how(evidence), class_="lead"),
            element("p", evidence.mismatch, class_="note warning") if evidence.mismatch else None,
            verdict(evidence),
            facts(evidence),
            class_="wrap",
        ),
    )
    first = element("section", element("h2", "What to do"), repairs(evidence), id="repairs", aria_label="What to do")
    shown = [section(key, title, make(evidence), [said]) for key, title, said, make in SECTIONS]
    body = [
        top,
        element("main", element("div", first, element("div", shown, class_="evidence"), class_="wrap")),
        element("footer", element("div", _footer(evidence), class_="wrap")),
    ]
    return document(head, body)


def style() -> Element:
    """The style sheet of pages and charts."""
    made = Element("style")
    made.text = (resources.files("rnnqc.reporting") / "style.css").read_text(encoding="utf-8")
    return made


def _how(evidence: Evidence) -> list[Child]:
    recipe = evidence.recipe
    if "name" not in recipe:
        return []
    calibrated = ", calibrated" if recipe["calibrated"] else ""
    return [", recipe ", name(recipe["name"]), f", form {recipe['form']}{calibrated}"]


def _footer(evidence: Evidence) -> str:
    versions = ", ".join(f"{k} {v}" for k, v in evidence.versions.items() if k != "cpu")
    return f"Made by rnnqc report with {versions}. This page loads nothing and runs no script."
