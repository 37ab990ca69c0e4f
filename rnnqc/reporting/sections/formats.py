"""Sections about quantization points: ranges, clipping, and the effect on the outputs."""

from __future__ import annotations

from collections.abc import Mapping
from xml.etree.ElementTree import Element

from rnnqc.recipes.clipping import CLIPS
from rnnqc.reporting.charts import gauge, histogram, spark
from rnnqc.reporting.elements import Child, decibels, difference, element, name, number, percent, real
from rnnqc.reporting.evidence import Evidence
from rnnqc.reporting.sections.repairs import plain
from rnnqc.reporting.tables import folded, table
from rnnqc.search.findings import PointEvidence, Repair, Sensitivity

LARGE = 6
"""The number of points with a large histogram."""
ROWS = 40
"""The number of table rows that are not folded."""


def points(evidence: Evidence) -> list[Child]:
    """Returns ranges, histograms and clipping of every point, worst first."""
    if "points" in evidence.missing:
        return [element("p", f"Left out: {evidence.missing['points']}", class_="note")]
    text = (
        "What the float model computes at each quantization point on this data, against the range of its format. "
        f"First points that clip more than {CLIPS:.1%}, then those whose own quantization error is largest. "
        "Pre-activations beyond the "
        "interval on which their activation changes do not count as clipped."
    )
    kinds = (("inside", "values"), ("outside", "values beyond the range"), ("range", "representable range"))
    legend = [element("span", element("span", "", class_=f"key {k}"), what, class_="legend") for k, what in kinds]
    key = element("p", legend, "Heights are logarithmic.", class_="soft small")
    made: list[Child] = [element("p", text), key]
    made.append(element("div", [_figure(p) for p in evidence.points[:LARGE]], class_="charts"))
    first, rest = evidence.points[:ROWS], evidence.points[ROWS:]
    made.append(_points_table(first))
    if rest:
        made.append(folded(len(rest), "more points", _points_table(rest)))
    return made


def _figure(point: PointEvidence) -> Element:
    clipped: list[Child] = [percent(point.clipped), " clipped"] if point.clipped else ["nothing clipped"]
    codes: list[Child] = []
    if point.codes_used is not None:
        codes = ["; ", number(point.codes_used, f"{point.codes_used:,}"), f" of {point.codes:,} values used"]
    return element(
        "figure",
        element("h3", name(point.point)),
        histogram(point),
        element("figcaption", f"{point.format}; ", clipped, codes, "; ", decibels(point.sqnr_db), " alone."),
    )


def _points_table(shown: list[PointEvidence]) -> Element:
    rows: list[list[Child]] = []
    for p in shown:
        clipped = percent(p.clipped)
        representable: Child = [real(p.low), " … ", real(p.high)] if p.low is not None else _by(p)
        unused: Child = "–" if p.codes_used is None else percent(1.0 - p.codes_used / p.codes)
        rows.append(
            [
                name(p.point),
                decibels(p.sqnr_db),
                element("td", clipped, class_="bad") if p.clipped > CLIPS else clipped,
                spark(p),
                [real(p.min), " … ", real(p.max)],
                representable,
                unused,
                element("td", p.format, class_="whole"),
            ]
        )
    heads = ("Point", "SQNR alone", "Clipped", "Values", "Observed", "Representable", "Unused values", "Format")
    return table("Quantization points", heads, rows, " nn nnn ")


def _by(point: PointEvidence) -> str:
    return "by row" if " row" in point.format else "by channel"


def sensitivity(evidence: Evidence) -> list[Child]:
    """Returns the sensitivity of the outputs to each point, worst first."""
    if "sensitivity" in evidence.missing:
        return [element("p", f"Left out: {evidence.missing['sensitivity']}", class_="note")]
    made: list[Child] = [
        element(
            "p",
            "What the outputs gain if the points of a row, and they alone, are left in float. Measured in form qcdq (",
            decibels(evidence.base_sqnr_db),
            " with everything quantized), in which gates are no tables. Gains do not add up; a negative one means that "
            "errors cancel.",
        )
    ]
    count = len(evidence.sensitivities)
    text = f"{count} measurements"
    if evidence.unmeasured:
        left = len(evidence.unmeasured)
        text += f"; {left} points or groups were NOT measured, to bound the work (--models, --seconds): "
    made.append(
        element("p", text, [[name(u), " "] for u in evidence.unmeasured] if evidence.unmeasured else ".", class_="note")
    )
    most = max((abs(s.gain_db) for s in evidence.sensitivities if abs(s.gain_db) < 1e9), default=0.0) or 1.0
    mended = {r.points: r for r in evidence.repairs}
    shown, rest = evidence.sensitivities[:ROWS], evidence.sensitivities[ROWS:]
    made.append(_sensitivity_table(shown, most, mended))
    if rest:
        made.append(folded(len(rest), "more measurements", _sensitivity_table(rest, most, mended)))
    return made


def _sensitivity_table(shown: list[Sensitivity], most: float, mended: Mapping[str, Repair]) -> Element:
    rows: list[list[Child]] = []
    for s in shown:
        notes = [f"{s.members} points"] if s.members > 1 else []
        follow = [p.removeprefix(f"{p.partition('.')[0]}.") for p in s.also]
        notes += [f"and {follow[0]}" if len(follow) == 1 else f"and {len(follow)} that follow"] if follow else []
        count = f" ({', '.join(notes)})" if notes else ""
        rows.append(
            [
                [name(plain(s.points)), count],
                difference(s.gain_db),
                gauge(s.gain_db / most),
                decibels(s.sqnr_db),
                percent(s.noise_share) if s.noise_share > 0 else "–",
                element("a", "override", href="#repairs") if s.points in mended else "",
            ]
        )
    heads = ("Left in float", "Gain", "", "SQNR then", "Share of the noise", "")
    return table("Sensitivity of the outputs", heads, rows, " n nn ")
