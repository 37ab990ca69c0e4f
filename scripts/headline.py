"""Writes the README's table of results, the picture at its top and the plot of whole models, from one recorded run.

    python scripts/headline.py            writes all three
    python scripts/headline.py --check    exit code 1 if one of them is out of date

All figures come from the table "Whole models" of docs/benchmarks.md: put a new run there first.
"""

from __future__ import annotations

import argparse
import math
import re
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BENCHMARKS = ROOT / "docs" / "benchmarks.md"
README = ROOT / "README.md"
PICTURE = ROOT / "docs" / "overview.svg"
PLOT = ROOT / "docs" / "whole_models.svg"
MARKS = ("<!-- results:begin -->\n", "<!-- results:end -->")
SHOWN = {
    "language model, 35 tokens": "WikiText-2 language model, 2 x LSTM 400, 35 tokens",
    "DTLN model_2": "DTLN speech enhancement, second model, 2 x LSTM 128, one frame",
    "Silero VAD, 16 kHz": "Silero voice activity detection, LSTM 128, one chunk",
    "RNNoise": "RNNoise noise suppression, 3 GRUs of 24 to 96, one frame",
    "IMDb LSTM, 500 tokens": "IMDb sentiment, LSTM 100, one review of 500 tokens",
}
"""Rows of the run that the README shows, with their names there."""
WIDE, SMALL = "language model, 35 tokens", "IMDb LSTM, 500 tokens"
"""The two models in the picture: wide layers, where stock onnxruntime gains, and small ones, where it loses."""


@dataclass(frozen=True)
class Way:
    """The result of one way for a model.

    Attributes:
        speed: Time of onnxruntime's float model over its time.
        share: Size of its file over that of the float file; None if the run does not have it.
        quality: SQNR in dB, or a word instead.
    """

    speed: float
    share: float | None = None
    quality: str = ""


@dataclass(frozen=True)
class Result:
    """A model of the run: the float file in kB, and each way by the heading of its column."""

    kilobytes: float
    ways: dict[str, Way]


def results(page: str) -> dict[str, Result]:
    """Returns the rows of the table "Whole models", by model.

    Raises:
        ValueError: A cell is not a figure of a way.
    """
    table = [line for line in page.split("## Whole models")[1].split("\n## ")[0].splitlines() if line.startswith("|")]
    heading, _, *rows = ([cell.strip() for cell in line.strip("|").split("|")] for line in table)
    found = {}
    for model, size, *cells in rows:
        ways = {name: _way(cell) for name, cell in zip(heading[2:], cells, strict=True) if re.match(r"\*?\*?\d", cell)}
        found[model] = Result(float(re.findall(r"(\d+) kB", size)[0]), ways)
    return found


def _way(cell: str) -> Way:
    match = re.fullmatch(r"\*{0,2}([\d.]+)x\*{0,2}(?:, ([\d.]+), (.+))?", cell)
    if match is None:
        raise ValueError(f"docs/benchmarks.md: {cell!r} is not '<speed>x, <share of the size>, <dB> dB'")
    speed, share, quality = match.groups()
    return Way(float(speed), float(share) if share else None, quality or "")


def table(run: dict[str, Result]) -> str:
    """Returns the README's table."""
    heading = (
        "| model, one call | float file | rnnqc file | SQNR | speed native | speed stock "
        "| `quantize_dynamic`: file, SQNR, speed |"
    )
    lines = [heading, "|---|---|---|---|---|---|---|"]
    for name, words in SHOWN.items():
        result = run[name]
        rnnqc, stock, dynamic = (result.ways[w] for w in ("rnnqc", "rnnqc stock", "`quantize_dynamic`"))
        assert rnnqc.share is not None and dynamic.share is not None
        unchanged = dynamic.quality == "equal"
        others = "quantizes nothing" if unchanged else f"{dynamic.share:.0%}, {dynamic.quality}, {dynamic.speed:.1f}x"
        lines.append(
            f"| {words} | {result.kilobytes / 1e3:.1f} MB | {rnnqc.share:.0%} | {rnnqc.quality} "
            f"| **{rnnqc.speed:.1f}x** | {stock.speed:.2g}x | {others} |"
        )
    return "\n".join(lines) + "\n"


INK, MUTED, LINE = "#1f2933", "#52606d", "#9aa5b1"
FLOAT, DYNAMIC, STOCK, NATIVE = "#7b8794", "#b08d00", "#0072b2", "#d55e00"
FONT = "font-family=\"system-ui,-apple-system,'Segoe UI',Roboto,'DejaVu Sans',Arial,sans-serif\""

HEAD = (
    '<defs><marker id="head" viewBox="0 0 10 10" refX="8" refY="5" markerWidth="6" markerHeight="6" orient="auto">'
    f'<path d="M0 0L10 5L0 10z" fill="{LINE}"/></marker></defs>'
)


def text(x: float, y: float, words: str, size: int = 15, colour: str = INK, extra: str = "") -> str:
    """Returns one line of text; `extra` holds further attributes."""
    return f'<text x="{x}" y="{y}" font-size="{size}" fill="{colour}" {extra}>{words}</text>'


def box(x: float, y: float, width: float, height: float, colour: str, lines: tuple[str, ...]) -> str:
    """Returns a rounded box with centred lines, the first of them bold."""
    middle, top = x + width / 2, y + height / 2 - 11 * (len(lines) - 1) + 5
    centred = 'text-anchor="middle"'
    frame = f'x="{x}" y="{y}" width="{width}" height="{height}" stroke="{colour}"'
    drawn = [f'<rect {frame} rx="9" fill="#fff" stroke-width="2"/>']
    for k, line in enumerate(lines):
        bold = f'{centred} font-weight="600"' if k == 0 else centred
        drawn.append(text(middle, top + 22 * k, line, 16 if k == 0 else 13, INK if k == 0 else MUTED, bold))
    return "\n".join(drawn)


def arrow(path: str) -> str:
    """Returns a line with an arrowhead."""
    return f'<path d="{path}" fill="none" stroke="{LINE}" stroke-width="2.5" marker-end="url(#head)"/>'


def bars(x: float, y: float, title: str, note: str, ways: dict[str, Way], widest: float) -> str:
    """Returns speeds as bars below a title; 1 is onnxruntime's float model."""
    drawn = [text(x, y, title, 15, INK, 'font-weight="600"'), text(x, y + 20, note, 13, MUTED)]
    rows = {
        "float": (1.0, FLOAT),
        "quantize_dynamic": (ways["`quantize_dynamic`"].speed, DYNAMIC),
        "rnnqc, stock": (ways["rnnqc stock"].speed, STOCK),
        "rnnqc, native": (ways["rnnqc"].speed, NATIVE),
    }
    for k, (name, (speed, colour)) in enumerate(rows.items()):
        top = y + 32 + 25 * k
        length = max(2.0, 250 * speed / widest)
        drawn.append(text(x + 128, top + 14, name, 13, INK, 'text-anchor="end"'))
        drawn.append(f'<rect x="{x + 136}" y="{top}" width="{length:.1f}" height="18" rx="3" fill="{colour}"/>')
        drawn.append(text(x + 142 + round(length, 1), top + 14, f"{speed:.2g}x", 13, INK))
    return "\n".join(drawn)


def picture(run: dict[str, Result]) -> str:
    """Returns the SVG of the picture: the steps from file to session, and two models' speeds."""
    wide, small = run[WIDE], run[SMALL]
    share = wide.ways["rnnqc"].share
    assert share is not None
    before, after = wide.kilobytes / 1e3, share * wide.kilobytes / 1e3
    widest = max(r.ways["rnnqc"].speed for r in (wide, small))
    summary = (
        f"rnnqc lower makes one quantized file of a float model ({before:.0f} MB to {after:.0f} MB); it runs in any "
        "onnxruntime with standard operators, and faster with rnnqc's native library, with the same bits."
    )
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="920" height="400" viewBox="0 0 920 400" {FONT} role="img">',
        f"<title>{summary}</title>",
        HEAD,
        '<rect x="1" y="1" width="918" height="398" rx="12" fill="#f8fafc" stroke="#d5dce3"/>',
        box(24, 66, 190, 88, FLOAT, ("model.onnx", "float LSTM, GRU, RNN", f"{before:.0f} MB")),
        arrow("M214 110H346"),
        text(280, 98, "rnnqc lower", 14, INK, 'text-anchor="middle" font-weight="600"'),
        text(280, 132, "no data needed", 13, MUTED, 'text-anchor="middle"'),
        box(350, 66, 190, 88, INK, ("model.int8.onnx", "one file for everywhere", f"{after:.0f} MB")),
        arrow("M540 92C580 92 570 56 616 56"),
        arrow("M540 128C580 128 570 166 616 166"),
        box(620, 22, 276, 68, STOCK, ("stock", "onnxruntime from 1.19 on, nothing else")),
        box(620, 132, 276, 68, NATIVE, ("native", "onnxruntime and rnnqc's library")),
        text(758, 116, "&#8597; the same bits", 14, MUTED, 'text-anchor="middle"'),
        '<path d="M24 222H896" stroke="#d5dce3" stroke-width="1.5"/>',
        bars(
            24,
            252,
            "Wide layers: language model, LSTM 400",
            "speed of a call, onnxruntime's float = 1",
            wide.ways,
            widest,
        ),
        bars(478, 252, "Small layers: IMDb sentiment, LSTM 100", "stock pays for every time step", small.ways, widest),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


PLOTTED = {
    "`quantize_dynamic`": ("quantize_dynamic", DYNAMIC),
    "OpenVINO, int8 weights": ("OpenVINO, int8 weights", "#009e73"),
    "rnnqc stock": ("rnnqc, stock", STOCK),
    "rnnqc": ("rnnqc, native", NATIVE),
}
"""Columns of the run in the plot, with their names and colours there."""
LEFT, RIGHT, ROW, SLOWEST, FASTEST = 250, 890, 27, 1 / 8, 8


def plot(run: dict[str, Result]) -> str:
    """Returns the SVG of the plot: every model's speeds in a row, a dot for each way, on a logarithmic axis."""

    def at(speed: float) -> float:
        share = math.log(max(SLOWEST, min(FASTEST, speed)) / SLOWEST) / math.log(FASTEST / SLOWEST)
        return round(LEFT + (RIGHT - LEFT) * share, 1)

    bottom = 84 + ROW * len(run)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 920 {bottom + 34}" {FONT} role="img">',
        "<title>Speed of whole models against onnxruntime's float, one dot for each way</title>",
        f'<rect x="1" y="1" width="918" height="{bottom + 32}" rx="12" fill="#f8fafc" stroke="#d5dce3"/>',
    ]
    for k, (words, colour) in enumerate(PLOTTED.values()):
        parts += [
            f'<circle cx="{90 + 205 * k}" cy="28" r="6" fill="{colour}"/>',
            text(102 + 205 * k, 33, words, 13),
        ]
    for speed in (1 / 8, 1 / 4, 1 / 2, 1, 2, 4, 8):
        colour, width = (INK, 1.5) if speed == 1 else ("#d5dce3", 1)
        parts.append(f'<path d="M{at(speed)} 56V{bottom}" stroke="{colour}" stroke-width="{width}"/>')
        parts.append(text(at(speed), bottom + 20, f"{speed:g}x", 13, MUTED, 'text-anchor="middle"'))
    for k, (model, result) in enumerate(run.items()):
        y = 78 + ROW * k
        parts.append(text(LEFT - 14, y + 5, model, 13, INK, 'text-anchor="end"'))
        parts.append(f'<path d="M{LEFT} {y}H{RIGHT}" stroke="#e4e9ee"/>')
        shown = ((result.ways[way].speed, colour) for way, (_, colour) in PLOTTED.items() if way in result.ways)
        parts += [f'<circle cx="{at(speed)}" cy="{y}" r="6" fill="{colour}"/>' for speed, colour in shown]
    return "\n".join([*parts, "</svg>"]) + "\n"


def main() -> int:
    """Writes the table and the pictures, or compares them; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; say what is out of date")
    check = parser.parse_args().check
    run = results(BENCHMARKS.read_text(encoding="utf-8"))
    readme = README.read_text(encoding="utf-8")
    before, rest = readme.split(MARKS[0])
    _, after = rest.split(MARKS[1])
    made = {README: before + MARKS[0] + table(run) + MARKS[1] + after, PICTURE: picture(run), PLOT: plot(run)}
    stale = [p for p, content in made.items() if not p.exists() or p.read_text(encoding="utf-8") != content]
    for path in stale:
        if check:
            print(f"{path.relative_to(ROOT)} is out of date: run python scripts/headline.py", file=sys.stderr)
        else:
            path.write_text(made[path], encoding="utf-8")
    return int(check and bool(stale))


if __name__ == "__main__":
    sys.exit(main())
