"""The top of the page: the verdict in words, one number, and the values of the worst output over time."""

from __future__ import annotations

import math
from xml.etree.ElementTree import Element

from rnnqc.reporting.charts import value_chart
from rnnqc.reporting.elements import Child, decibels, element, name
from rnnqc.reporting.evidence import Evidence, OutputEvidence


def verdict(evidence: Evidence) -> Element | None:
    """Whether the lowered model is close enough, and the values that show it; None without outputs."""
    found = evidence.verdict
    if found is None:
        return None
    figure = found.figure[:1].upper() + found.figure[1:]
    text = found.text.removeprefix(f"{found.figure}. ")
    said = text[:1].upper() + text[1:]
    words = element(
        "div",
        element("p", element("span", found.level.capitalize(), class_=f"level {found.level}"), class_="small"),
        element("p", figure.replace("->", "→"), class_="figure"),
        element("p", said.replace("->", "→")),
        element("p", _data(evidence), class_="soft small"),
    )
    worst = min(evidence.outputs, key=lambda o: (o.unlike == 0, o.sqnr_db))
    drawn = worst if worst.values is not None else next((o for o in evidence.outputs if o.values is not None), None)
    return element("div", words, None if drawn is None else values_figure(drawn), class_=f"verdict {found.level}")


def _data(evidence: Evidence) -> str:
    """A phrase that names the data."""
    count, source = evidence.data["calls"], evidence.data["source"]
    calls = f"{count} call{'' if count == 1 else 's'}"
    if source == "generated":
        return f"On {calls} of generated data: give --data for a verdict on yours."
    return f"On {calls} of {'the given data' if source == 'given' else source}."


def values_figure(output: OutputEvidence) -> Element:
    """A chart of the values of an output that have the largest error."""
    values = output.values
    assert values is not None
    keys = (("reference", "float"), ("inside", "quantized"))
    legend = [element("span", element("span", "", class_=f"key {k}"), what, class_="legend") for k, what in keys]
    level: list[Child] = ["; ", decibels(output.sqnr_db), " over all"] if math.isfinite(output.sqnr_db) else []
    return element(
        "figure",
        element("h3", name(output.name)),
        value_chart(values, output.name),
        element("figcaption", legend, f"Where the error is largest: {values.where}", level, "."),
    )
