"""A chart of the frontier of `rnnqc tune`: quality against bytes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

from rnnqc.errors import byte_count
from rnnqc.reporting.charts import HEIGHT, WIDTH, Axes, line, svg, ticks
from rnnqc.reporting.elements import element
from rnnqc.reporting.page import style
from rnnqc.search.greedy import Measured
from rnnqc.search.tuned import Tuned

MARGIN = 0.05
"""Margin on both sides of an axis, as a share of the range of the values."""


def frontier_svg(tuned: Tuned) -> str:
    """Returns an SVG of quality against bytes: a line for the frontier, a ring for the recipe, a dot for the choice."""
    start, chosen = tuned.found.start, tuned.found.measured
    points = [p.measured for p in tuned.frontier]
    shown = [m for m in (*points, start, chosen) if math.isfinite(m.quality)]
    costs, qualities = _range([m.cost for m in shown]), _range([m.quality for m in shown])
    axes = Axes(costs, qualities, "bytes of weights", "SQNR (dB)" if tuned.decibels else "metric")

    def mark(m: Measured, what: str, **attributes: object) -> list[Element]:
        if not math.isfinite(m.quality):
            return []
        title = element("title", f"{what}: {byte_count(m.cost)}, {tuned.worded(m.quality)}")
        return [element("circle", title, cx=f"{axes.x(m.cost):.1f}", cy=f"{axes.y(m.quality):.1f}", **attributes)]

    x_ticks = [(v, byte_count(round(v))) for v in ticks(*costs, 4)]
    y_ticks = [(v, f"{tuned.said(v):g}".replace("-", "−")) for v in ticks(*qualities, 4)]
    places = [(axes.x(m.cost), axes.y(m.quality)) for m in points if math.isfinite(m.quality)]
    made = svg(
        WIDTH, HEIGHT, f"Frontier of {tuned.recipe.name}",
        style(),
        element("rect", width="100%", height="100%", fill="var(--page)"),
        *axes.drawn(x_ticks, y_ticks),
        *line(places, "curve"),
        *(c for p in tuned.frontier for c in mark(p.measured, f"{1e6 * p.seconds:.0f} us", r=2.5, class_="dot")),
        *mark(start, tuned.recipe.name, r=5, fill="none", stroke="var(--soft)"),
        *mark(chosen, "chosen", r=4.5, class_="dot"),
    )  # fmt: skip
    made.set("xmlns", "http://www.w3.org/2000/svg")
    return ElementTree.tostring(made, encoding="unicode") + "\n"


def _range(values: Sequence[float]) -> tuple[float, float]:
    """Returns the limits of an axis."""
    low, high = min(values, default=0.0), max(values, default=1.0)
    margin = MARGIN * (high - low) or max(1.0, abs(high) * MARGIN)
    return low - margin, high + margin
