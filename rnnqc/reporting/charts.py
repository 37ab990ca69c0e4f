"""Charts as inline SVG. Sizes in pixels fit a phone; colours come from the style sheet."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from xml.etree.ElementTree import Element

from rnnqc.reporting.elements import element, short
from rnnqc.reporting.evidence import Curve, Values
from rnnqc.search.findings import PointEvidence

WIDTH, HEIGHT = 360, 200
LEFT, RIGHT, TOP, BOTTOM = 64, 12, 12, 40
SPARK_WIDTH, SPARK_HEIGHT = 120, 28
MARGIN_OF_RANGE = 1.5
"""A histogram shows at most this much of the range beyond the values, as a multiple of the span of the values."""


def svg(width: int, height: int, label: str, *children: Element, class_: str = "chart") -> Element:
    """An `<svg>` element with an accessible label."""
    return element(
        "svg", element("title", label), *children,
        viewBox=f"0 0 {width} {height}", width=width, height=height, role="img", aria_label=label, class_=class_,
    )  # fmt: skip


def _place(value: float) -> str:
    return f"{value:.1f}".rstrip("0").rstrip(".")


def ticks(low: float, high: float, count: int) -> list[float]:
    """Returns round numbers between `low` and `high`, about `count` of them."""
    if not high > low:
        return [low]
    raw = (high - low) / max(count, 1)
    unit = 10.0 ** math.floor(math.log10(raw))
    step = next(m * unit for m in (1, 2, 5, 10) if m * unit >= raw * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [k * step for k in range(first, math.floor(high / step + 1e-9) + 1)]


@dataclass(frozen=True)
class Axes:
    """The axes of a chart: the values at the ends of each, and their labels."""

    x_limits: tuple[float, float]
    y_limits: tuple[float, float]
    x_label: str
    y_label: str

    def x(self, value: float) -> float:
        """Returns the horizontal position of a value, in pixels."""
        low, high = self.x_limits
        return LEFT + (WIDTH - RIGHT - LEFT) * ((value - low) / (high - low))

    def y(self, value: float) -> float:
        """Returns the vertical position of a value, in pixels."""
        (low, high), bottom = self.y_limits, HEIGHT - BOTTOM
        return bottom - (bottom - TOP) * ((value - low) / (high - low))

    def drawn(self, x_ticks: Iterable[tuple[float, str]], y_ticks: Iterable[tuple[float, str]]) -> list[Element]:
        """Returns grid lines, tick labels and axis labels for values with their texts."""
        right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM
        made = []
        for value, text in y_ticks:
            at = _place(self.y(value))
            made.append(element("line", x1=LEFT, x2=right, y1=at, y2=at, class_="grid"))
            made.append(element("text", text, x=LEFT - 6, y=_place(self.y(value) + 4), class_="tick end"))
        for at, text in ((_place(self.x(v)), text) for v, text in x_ticks):
            made.append(element("line", x1=at, x2=at, y1=bottom, y2=bottom + 4, class_="axis"))
            made.append(element("text", text, x=at, y=bottom + 17, class_="tick middle"))
        made.append(element("line", x1=LEFT, x2=right, y1=bottom, y2=bottom, class_="axis"))
        middle = _place((TOP + bottom) / 2)
        made.append(element("text", self.x_label, x=_place((LEFT + right) / 2), y=HEIGHT - 5, class_="label middle"))
        turned = f"rotate(-90 10 {middle})"
        made.append(element("text", self.y_label, x=10, y=middle, class_="label middle", transform=turned))
        return made


def whole_ticks(low: float, high: float) -> list[tuple[float, str]]:
    """Returns about four integers between `low` and `high`, with their texts."""
    return [(v, f"{v:g}") for v in ticks(low, high, 4) if v == int(v)]


def level_range(curves: Sequence[Curve]) -> tuple[float, float]:
    """Returns limits in dB that contain the finite levels of all curves, rounded to multiples of 5 dB."""
    levels = [v for c in curves for v in c.sqnr_db if v is not None and math.isfinite(v)]
    if not levels:
        return 0.0, 60.0
    low, high = math.floor(min(levels) / 5) * 5, math.ceil(max(levels) / 5) * 5
    return (low, high) if high - low >= 10 else (low - 5, high + 5)


def level_chart(curve: Curve, limits: tuple[float, float], what: str) -> Element:
    """A line chart of SQNR over time."""
    low, high = limits
    axes = Axes((0, curve.stops[-1] if curve.stops else 1), limits, curve.unit, "SQNR (dB)")
    middles = [(start + stop) / 2 for start, stop in zip([0, *curve.stops[:-1]], curve.stops, strict=True)]
    levels = [None if level is None else min(max(level, low), high) for level in curve.sqnr_db]
    places = [None if v is None else (axes.x(at), axes.y(v)) for at, v in zip(middles, levels, strict=True)]
    grid = axes.drawn(whole_ticks(*axes.x_limits), [(v, f"{v:g}".replace("-", "−")) for v in ticks(low, high, 4)])
    return svg(WIDTH, HEIGHT, f"SQNR over time of {what}", *grid, *line(places, "curve"))


def value_chart(values: Values, what: str) -> Element:
    """A line chart of the values of both models over time."""
    numbers = [v for v in (*values.float_values, *values.quantized_values) if v is not None]
    low, high = (min(numbers), max(numbers)) if numbers else (0.0, 1.0)
    margin = (high - low) * 0.05 or abs(high) * 0.1 or 1.0
    low, high = low - margin, high + margin
    first = values.first
    axes = Axes((first, first + max(len(values.float_values) - 1, 1)), (low, high), values.unit, "value")
    y_ticks = [(v, short(v) if abs(v) > 1e-12 * (high - low) else "0") for v in ticks(low, high, 4)]
    paths = []
    for series, class_ in ((values.float_values, "curve reference"), (values.quantized_values, "curve")):
        places = enumerate(series, first)
        paths += line([None if v is None else (axes.x(k), axes.y(v)) for k, v in places], class_)
    grid = axes.drawn(whole_ticks(*axes.x_limits), y_ticks)
    return svg(WIDTH, HEIGHT, f"Values of {what}", *grid, *paths)


def line(places: Sequence[tuple[float, float] | None], class_: str) -> list[Element]:
    """A line through `places`. None makes a gap; a place between two gaps becomes a dot."""
    pieces: list[list[tuple[float, float]]] = [[]]
    for place in places:
        if place is None:
            pieces.append([])
        else:
            pieces[-1].append(place)
    made = []
    for piece in pieces:
        if len(piece) == 1:
            made.append(element("circle", cx=_place(piece[0][0]), cy=_place(piece[0][1]), r=2.5, class_="dot"))
        elif piece:
            path = "M" + "L".join(f"{_place(a)} {_place(b)}" for a, b in piece)
            made.append(element("path", d=path, class_=class_))
    return made


def _limits(point: PointEvidence) -> tuple[float, float]:
    """The horizontal limits of a histogram: all values, and the format's range up to `MARGIN_OF_RANGE` beyond them."""
    low, high = point.min, point.max
    if point.low is not None and point.high is not None:
        span = (high - low) or max(abs(high), 1e-30)
        low = min(low, max(point.low, low - MARGIN_OF_RANGE * span / 2))
        high = max(high, min(point.high, high + MARGIN_OF_RANGE * span / 2))
    width = point.bars.width
    low, high = min(low, point.bars.first * width), max(high, (point.bars.first + len(point.bars.counts)) * width)
    return (low, high) if high > low else (low - 1.0, high + 1.0)


def _height(count: int, most: int) -> float:
    """The height of a bar on a logarithmic scale: 0 for no value, 1 for `most`."""
    return 0.0 if count == 0 else (1.0 + math.log(count)) / (1.0 + math.log(most))


Box = tuple[float, float, float, float]
"""Left, right, top and bottom in pixels."""


def _range(point: PointEvidence, limits: tuple[float, float], box: Box) -> list[Element]:
    """Returns a rectangle for the range of the format, if it has one."""
    if point.low is None or point.high is None:
        return []
    (left, right, top, bottom), (low, high) = box, limits
    x0, x1 = (left + (right - left) * (min(max(v, low), high) - low) / (high - low) for v in (point.low, point.high))
    width = _place(max(x1 - x0, 1.0))
    return [element("rect", x=_place(x0), y=top, width=width, height=bottom - top, class_="range")]


def _bars(point: PointEvidence, limits: tuple[float, float], box: Box) -> list[Element]:
    """Returns one path for the bars inside the format's range and one for the clipped bars."""
    left, right, top, bottom = box
    low, high = limits
    bars, scale = point.bars, (right - left) / (high - low)
    most = max(bars.counts, default=1)
    inside: list[str] = []
    outside: list[str] = []
    for k, count in enumerate(bars.counts):
        if not count:
            continue
        start, stop = (bars.first + k) * bars.width, (bars.first + k + 1) * bars.width
        x0, x1 = left + (start - low) * scale, left + (stop - low) * scale
        level = bottom - (bottom - top) * _height(count, most)
        end = max(x1 - 0.4, x0 + 0.6)
        shape = f"M{_place(x0)} {_place(bottom)}V{_place(level)}H{_place(end)}V{_place(bottom)}Z"
        beyond = (point.high is not None and start >= point.high) or (point.low is not None and stop <= point.low)
        (outside if beyond and point.clipped > 0.0 else inside).append(shape)
    kinds = (("bar", inside), ("bar clipped", outside))
    return [element("path", d="".join(paths), class_=class_) for class_, paths in kinds if paths]


def histogram(point: PointEvidence) -> Element:
    """A histogram of the values at a point, with the range of its format."""
    low, high = limits = _limits(point)
    most = max(point.bars.counts, default=1)
    axes = Axes(limits, (0.0, 1.0), "value", "how many (log)")
    box = LEFT, WIDTH - RIGHT, TOP, HEIGHT - BOTTOM
    made = _range(point, limits, box) + _bars(point, limits, box)
    for edge in (point.low, point.high):
        if edge is not None and low <= edge <= high:
            at = _place(axes.x(edge))
            made.append(element("line", x1=at, x2=at, y1=TOP, y2=HEIGHT - BOTTOM, class_="edge"))
    powers = [10**k for k in range(19) if 10**k <= most]
    powers = powers[:: max(1, math.ceil(len(powers) / 4))]
    y_ticks = [(_height(p, most), f"{p}" if p < 1_000 else f"1e{len(str(p)) - 1}") for p in powers]
    x_ticks = [(v, short(v) if abs(v) > 1e-12 else "0") for v in ticks(low, high, 5)]
    return svg(WIDTH, HEIGHT, f"Histogram of {point.point}", *axes.drawn(x_ticks, y_ticks), *made)


def spark(point: PointEvidence) -> Element:
    """A small histogram without axes, for one row of a table."""
    limits = _limits(point)
    made = _range(point, limits, (0, SPARK_WIDTH, 0, SPARK_HEIGHT))
    made += _bars(point, limits, (0, SPARK_WIDTH, 2, SPARK_HEIGHT))
    return svg(SPARK_WIDTH, SPARK_HEIGHT, f"Histogram of {point.point}", *made, class_="spark")


def gauge(share: float) -> Element:
    """A horizontal bar of length |share|, at most 1. Negative shares have another colour."""
    width = 100.0 * min(1.0, abs(share))
    bar = element("rect", x=0, y=0, width=_place(width), height=8, rx=1, class_="bar" if share >= 0 else "bar negative")
    return element(
        "svg", bar, viewBox="0 0 100 8", width=100, height=8, aria_hidden="true", class_="gauge",
        preserveAspectRatio="none",
    )  # fmt: skip
