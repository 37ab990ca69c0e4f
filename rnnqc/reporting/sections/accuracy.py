"""Sections about the error of outputs and layers, and the run time of layers."""

from __future__ import annotations

import math
from xml.etree.ElementTree import Element

from rnnqc.measure.differences import trend, unlike_text
from rnnqc.reporting.charts import gauge, level_chart, level_range
from rnnqc.reporting.elements import Child, decibels, difference, element, name, number, percent, real
from rnnqc.reporting.evidence import Curve, Evidence
from rnnqc.reporting.sections.verdict import values_figure
from rnnqc.reporting.tables import table


def accuracy(evidence: Evidence) -> list[Child]:
    """Returns a table of the outputs, and charts of SQNR over time for outputs and layers."""
    rows = [
        [
            name(o.name),
            decibels(o.sqnr_db),
            real(o.max_abs),
            number(o.cosine, f"{o.cosine:.6f}"),
            percent(o.equal),
        ]
        for o in evidence.outputs
    ]
    made: list[Child] = [
        table("Outputs", ("Output", "SQNR", "Largest error", "Cosine", "Equal values"), rows, " nnnn"),
    ]
    if any(o.unlike for o in evidence.outputs):
        text = "The other figures are of the values that are finite in both."
        unlike = [unlike_text(o.name, o.unlike, o.first_unlike) for o in evidence.outputs if o.unlike]
        made += [element("p", t, class_="note warning") for t in (*unlike, text)]
    shown = [(c.cell, "Hidden states", c.sqnr_db, c.curve) for c in evidence.layers]
    shown += [(o.name, "Output", o.sqnr_db, o.curve) for o in evidence.outputs]
    shown = [s for s in shown if s[3] is not None and any(v is not None and math.isfinite(v) for v in s[3].sqnr_db)]
    curves = [curve for *_, curve in shown if curve is not None]
    if "layers" in evidence.missing:
        made.append(element("p", f"Hidden states left out: {evidence.missing['layers']}", class_="note"))
    if curves:
        text = (
            "The hidden states of every layer, and outputs with an axis of time, against the float model, step by "
            "step. All charts have one scale. An error that accumulates as states are carried on is called growing: in "
            "the last quarter it is larger than in the first, by itself and against the signal."
        )
        limits = level_range(curves)
        made.append(element("p", text))
        figures = [_figure(what, kind, level, curve, limits) for what, kind, level, curve in shown if curve is not None]
        made.append(element("div", figures, class_="charts"))
    drawn = [o for o in evidence.outputs if o.values is not None]
    if drawn:
        text = "The values of each output where its error is largest, of the float and of the quantized model."
        made += [element("p", text), element("div", [values_figure(o) for o in drawn], class_="charts")]
    return made


def _figure(what: str, kind: str, level: float, curve: Curve, limits: tuple[float, float]) -> Element:
    caption: list[Child] = [f"{kind}: ", decibels(level), " over all"]
    if len(curve.quarters_db) == 4:
        first, last = curve.quarters_db[0], curve.quarters_db[-1]
        caption += ["; first quarter ", decibels(first), ", last ", decibels(last)]
        caption += [" (", difference(last - first), ")"] if math.isfinite(last - first) else []
    said = trend(curve.stops[-1], growing=curve.growing)
    caption += ["; ", element("span", said, class_="bad") if curve.growing else said]
    return element(
        "figure",
        element("h3", name(what)),
        level_chart(curve, limits, what),
        element("figcaption", caption, "."),
    )


def times(evidence: Evidence) -> list[Child]:
    """Returns a table of the run time of each layer."""
    if not evidence.times:
        return [element("p", f"Left out: {evidence.missing.get('times', 'nothing was measured.')}", class_="note")]
    longest = max(max(t.float_us, t.stock_us, t.native_us or 0.0) for t in evidence.times)
    rows: list[list[Child]] = []
    for t in evidence.times:
        ways = [("float", t.float_us), ("stock", t.stock_us), ("native", t.native_us)]
        for way, microseconds in ways:
            if microseconds is None:
                continue
            ratio = t.float_us / microseconds
            first = way == "float"
            rows.append(
                [
                    name(t.node) if first else "",
                    " × ".join(map(str, t.shape)) if first and t.shape else "",
                    way,
                    number(microseconds, _time(microseconds)),
                    gauge(microseconds / longest),
                    number(ratio, f"{ratio:.2f}×") if not first else "1",
                ]
            )
    text = (
        "Each layer alone, on what it gets in the first call (T × B × I), one thread, the shortest of many runs that "
        f"take turns, on {evidence.versions.get('cpu', 'this machine')}. Stock: standard "
        "operators only; native: with rnnqc's library."
    )
    heads = ("Layer", "Shape", "Way", "Time", "", "Float / way")
    return [element("p", text), table("Time of each layer", heads, rows, "   n n")]


def _time(microseconds: float) -> str:
    return f"{microseconds:.1f} µs" if microseconds < 1e4 else f"{microseconds / 1e3:.1f} ms"
