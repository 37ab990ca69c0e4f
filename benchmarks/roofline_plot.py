"""Plots the results of peers.py against the limits of the machine.

    python benchmarks/roofline_plot.py PEERS.json OUT.svg      .svg, .png or .pdf; needs matplotlib

Each number of threads has a column of panels. The upper one is the roofline: GMAC/s over the multiply-accumulates per
byte of weights that a sequence reads at least (W once, R in every step, in the way's own width), below the rates at
which weights stream from each cache and the peak of int8 products. Shapes are numbered; a number that would cover
another one moves to the right. The lower one shows every way by shape, with the roofline of the shape (roofline.py) as
a bar.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from roofline import LEVELS, bits_of, limits_of, macs, streamed_bytes
from support.layers import Layer

Record = dict[str, Any]
# Okabe and Ito's colours, distinguishable with colour blindness and, with the markers, in grey.
STYLES = {
    "rnnqc int8": ("#d55e00", "o", 7),
    "rnnqc int4": ("#e69f00", "p", 7),
    "onednn int8": ("#56b4e9", "D", 5),
    "openvino int8": ("#009e73", "^", 6),
    "ort int8": ("#0072b2", "s", 5),
    "torch int8": ("#cc79a7", "v", 6),
    "ort float": ("#666666", "x", 6),
}
"""Colour, marker, size; of ways with this prefix the fastest is drawn."""
NUMBERED = ("rnnqc int8", "rnnqc int4", "ort float")
"""The ways in the upper panels."""
SMALLEST = 1 / 400
"""The lower end of the axes as a share of the peak. Slower ways have a hollow marker at this end."""


def gmacs(record: Record, style: str) -> float | None:
    """Returns the GMAC/s of the fastest way with that name; None if there is none."""
    times = [w["min_us"] for n, w in record["ways"].items() if n.startswith(style) and " @ " not in n]
    return 1e-3 * macs(Layer.parse(record["shape"])) / min(times) if times else None


def draw(records: Sequence[Record], path: Path) -> None:
    """Writes the plot."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt
    from matplotlib.ticker import NullFormatter

    mpl.rcParams.update({"font.size": 9, "svg.hashsalt": "rnnqc", "axes.axisbelow": True})
    counts = sorted({r["threads"] for r in records})
    figure, panels = plt.subplots(2, len(counts), figsize=(7 * len(counts), 10.5), squeeze=False)
    margin = 0.12 / len(counts)
    figure.subplots_adjust(margin, 0.13, 1 - margin / 3, 0.97, wspace=0.12, hspace=0.14)
    for threads, above, below in zip(counts, *panels, strict=True):
        of_count = [r for r in records if r["threads"] == threads]
        peak = max(r["limits"]["peak"] for r in of_count)
        for panel in (above, below):
            panel.set(yscale="log", ylim=(peak * SMALLEST, peak * 1.7), ylabel="GMAC/s")
            panel.axhline(peak, color="black", lw=1.2)
            panel.grid(True, which="major", color="#dddddd", lw=0.6)
        above.set_title(f"{threads} thread{'s' if threads > 1 else ''}", fontsize=11)
        _roofline(above, of_count, threads, peak)
        _by_shape(below, of_count, peak)
        for axis in (above.xaxis, above.yaxis, below.yaxis):
            axis.set_major_formatter("{x:g}")
            axis.set_minor_formatter(NullFormatter())
    handles: dict[str, Any] = {}
    for panel in panels[1]:
        handles.update(zip(*reversed(panel.get_legend_handles_labels()), strict=True))
    columns = 5 if len(counts) == 1 else len(handles)
    figure.legend(handles.values(), handles.keys(), loc="lower center", ncols=columns, frameon=False)
    figure.savefig(path, dpi=160)
    plt.close(figure)


def _roofline(panel: Any, records: Sequence[Record], threads: int, peak: float) -> None:
    at: list[tuple[float, float, str, str]] = []
    for number, record in enumerate(records, 1):
        layer = Layer.parse(record["shape"])
        for style in NUMBERED:
            y = gmacs(record, style)
            if y is not None:
                x = macs(layer) / streamed_bytes(layer, bits_of(style))
                at.append((x, max(y, peak * SMALLEST * 1.1), str(number), STYLES[style][0]))
    left, right = min(x for x, *_ in at) / 1.5, max(x for x, *_ in at) * 1.6
    panel.set(xscale="log", xlim=(left, right), xlabel="MAC for each byte of weights")
    isa = records[0]["limits"]["isa"]
    panel.text(right / 1.06, peak * 1.06, f"{isa}: {peak:.0f} GMAC/s", ha="right", fontsize=8)
    decades = math.log(right / left), math.log(1.7 / SMALLEST)
    box = panel.get_position()
    across, up = box.width * panel.figure.get_figwidth(), box.height * panel.figure.get_figheight()
    slope = math.degrees(math.atan2(up / decades[1], across / decades[0]))
    for level, size in LEVELS.items():
        rate = max(r["limits"]["rates"][str(size * threads)] for r in records)
        panel.plot([left, peak / rate], [left * rate, peak], color="black", lw=1.0)
        panel.annotate(
            f"{level}: {rate:.0f} GB/s", (left * 1.1, left * 1.1 * rate), (-2, 3), textcoords="offset points",
            fontsize=8, rotation=slope, rotation_mode="anchor",
        )  # fmt: skip
    placed: list[tuple[float, float]] = []
    wide, high = 0.028 * decades[0], 0.034 * decades[1]
    for x, y, text, color in sorted(at):
        u, v = math.log(x), math.log(y)
        while any(abs(u - a) < wide and abs(v - b) < high for a, b in placed):
            u += wide / 4
        placed.append((u, v))
        where = (math.exp(u), math.exp(v))
        panel.plot(*where, marker="o", ms=11, color=color, mec="white", mew=0.6)
        panel.annotate(text, where, color="white", fontsize=7, ha="center", va="center_baseline", weight="bold")


def _by_shape(panel: Any, records: Sequence[Record], peak: float) -> None:
    styles = {k: v for k, v in STYLES.items() if any(gmacs(r, k) is not None for r in records)}
    step = 0.8 / len(styles)
    for bits, line in ((8, "-"), (4, ":")):
        for at, record in enumerate(records):
            layer = Layer.parse(record["shape"])
            limit = 1e-3 * macs(layer) / limits_of(record).microseconds(layer, bits)
            label = f"roofline int{bits}" if at == 0 else None
            panel.plot([at - 0.45, at + 0.45], [limit, limit], color="black", lw=1.6, ls=line, label=label)
    for k, (style, (color, marker, size)) in enumerate(styles.items()):
        points = [(at + step * (k - (len(styles) - 1) / 2), gmacs(r, style)) for at, r in enumerate(records)]
        inside = [(x, y) for x, y in points if y is not None and y >= peak * SMALLEST * 1.1]
        slower = [(x, peak * SMALLEST * 1.1) for x, y in points if y is not None and y < peak * SMALLEST * 1.1]
        panel.plot(*zip(*inside, strict=True), ls="", marker=marker, color=color, ms=size, label=style)
        if slower:
            panel.plot(*zip(*slower, strict=True), ls="", marker=marker, color=color, ms=size, mfc="none")
    names = [f"{n}:  {r['shape']}" for n, r in enumerate(records, 1)]
    panel.set_xticks(range(len(records)), names, rotation=38, ha="right", rotation_mode="anchor", fontsize=8)
    panel.set(xlim=(-0.6, len(records) - 0.4))
    panel.grid(False, axis="x")
    for at in range(len(records) - 1):
        panel.axvline(at + 0.5, color="#eeeeee", lw=0.8)


def main() -> None:
    """Reads and draws."""
    if len(sys.argv) != 3:
        raise SystemExit(__doc__)
    source, target = (Path(a) for a in sys.argv[1:])
    draw(json.loads(source.read_text())["records"], target)


if __name__ == "__main__":
    main()
