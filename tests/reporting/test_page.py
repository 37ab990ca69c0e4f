"""Pages of evidence: elements, charts, and how a page comes of numbers.

What these would catch: a text that becomes an element, a chart that leaves its frame or fails at the edges (one step,
no signal, equal values, infinite levels), a section without content, overrides that a shell takes for something else.
"""

from __future__ import annotations

import json
import math
import re
import shlex
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rnnqc.commands.shared.arguments import json_text
from rnnqc.ir import Model
from rnnqc.recipes.recipe import load_recipe
from rnnqc.recipes.recipe_record import RECIPE_KEY, RecipeRecord, read_record
from rnnqc.recipes.rules import Rule, parse_override
from rnnqc.reporting.charts import HEIGHT, WIDTH, histogram, level_chart, level_range, spark, ticks
from rnnqc.reporting.description import recipe_of
from rnnqc.reporting.elements import command, decibels, difference, document, element, name, percent, quoted, visible
from rnnqc.reporting.evidence import Curve, Evidence, LayerEvidence, LayerTime, OutputEvidence
from rnnqc.reporting.page import page
from rnnqc.search.findings import Bars, PointEvidence, Repair, Sensitivity
from rnnqc.search.overrides import exactly, settings_text
from tests.generate.layers import RecurrentCase
from tests.pages.report_pages import Page

HOSTILE = [
    '"><script>alert(1)</script>',
    "</style>",
    "a\u202eb\u2066",
    "\x00\x1b[31m\n",
    "<!--",
    "&lt;&#60;",
    "' onload='x",
]
LETTERS = "".join(map(chr, range(0x250))) + "\u0300\u2028\u202e\u2066\u3042\u6f22\ufeff\U0001f600\U000e0041"
"""Of all kinds: what hypothesis has to know of all of Unicode takes it two seconds."""


def _point(**changes: object) -> PointEvidence:
    bars = Bars(0.5, -4, [1, 0, 3, 900, 900, 3, 0, 1])
    point = PointEvidence(
        "l.forward.hidden", "uint8", 8, 0.01, 128, -1.28, 1.27, 1808, -2, 2, 0.004, 250, 256, 1, 30, bars
    )
    return replace(point, **changes)  # type: ignore[arg-type]


def _curve(levels: list[float | None]) -> Curve:
    return Curve("time step", list(range(1, len(levels) + 1)), levels, [40.0, 39.0, 38.0, 30.0], 0, True)


def _evidence(text: str = "model.onnx") -> Evidence:
    """Evidence with every kind of content."""
    entry = {"node": text, "op": "LSTM", "status": "lowered", "form": "fused", "reason": "", "found": "", "action": ""}
    entry |= {"cells": [], "float_bytes": 1000, "bytes": 250}
    floats = entry | {"status": "float", "form": "", "reason": f"{text}.", "found": text, "action": text}
    glob = exactly(f"{text}.hidden")
    repair = Repair(glob, settings_text([Rule(glob, {"bits": 16})]), text, 20.0, 31.5, 18.0, 30.0, 250, 300, ["qcdq"])
    return Evidence(
        text, text,
        {"source": text, "calls": 3, "states": [f"{text}:{text}"], "inputs": {text: "float32 [1, 2]"}},
        {"rnnqc": "0", "cpu": text},
        {"name": text, "builtin": False, "form": "fused", "unroll": False, "dims": {text: 3}, "calibrated": True,
         "overrides": [text],
         "rules": [{"points": text, "bits": None, "share": text, "signed": True}], "passes": [text]},
        [entry, floats],
        [text],
        {"float_file": 5000, "quantized_file": 2000, "float_weights": 1000, "quantized_weights": 250},
        20.0,
        [OutputEvidence(text, -math.inf, 0.5, 0.9, 0.25, _curve([3.0, None, math.inf, -4.0])),
         OutputEvidence("i", math.inf, 0.0, 1.0, 1.0)],
        [LayerEvidence(text, False, 25.0, _curve([25.0] * 9)), LayerEvidence(text, True, 25.0, None)],
        [_point(point=f"{text}.hidden"), _point(point="w", scale=None, low=None, high=None, codes_used=None)],
        19.0,
        [Sensitivity(glob, 1, "point", 31.0, 12.0, 0.93), Sensitivity("b", 4, "group", 18.0, -1.0, -0.26, ["bias"])],
        [text],
        [text],
        [repair],
        replace(repair, points=""),
        [LayerTime(text, "LSTM", [10, 1, 4], 100.0, 50.0, None)],
        text,
        {},
    )  # fmt: skip


@pytest.mark.parametrize("text", HOSTILE)
def test_any_text_is_only_text(text: str) -> None:
    read, plain = Page.read(page(_evidence(text))), Page.read(page(_evidence("x" * len(visible(text)))))
    counts = {k: n for k, n in read.counts.items() if k != "wbr"}  # where a name may be broken
    assert counts == {k: n for k, n in plain.counts.items() if k != "wbr"}
    assert visible(text) in read.text
    assert not any(c in read.text for c in text if not c.isprintable() and c != "\n")


@pytest.mark.slow
@given(st.text(max_size=40))
def test_no_text_escapes(text: str) -> None:
    made = Page.read(document([], [element("p", name(text), text, title=None, aria_label=text), command(text, text)]))
    assert made.counts.keys() <= {"html", "head", "body", "p", "code", "wbr", "pre", "span"}
    assert made.texts["p"] == [visible(text) * 2]
    assert made.commands == [f"{visible(text)}\n{visible(text)}"]


def test_the_sections_are_all_there() -> None:
    read = Page.read(page(_evidence()))
    assert read.texts["h2"] == [
        "What to do", "What was lowered", "Accuracy over time", "Ranges and clipping", "Sensitivity", "Time",
        "How this was made",
    ]  # fmt: skip
    assert read.counts["svg"] >= 5
    assert "(−10.0 dB); growing" in read.text
    assert "NOT measured" in read.text
    assert "runs slower" in read.text


def test_the_worst_output_is_on_top() -> None:
    outputs = [OutputEvidence(n, level, 0.5, 0.9, 0.25) for n, level in (("a", 41.5), ("b", 12.25), ("c", 30.0))]
    text = Page.read(page(replace(_evidence(), outputs=outputs))).text
    after = text[text.index("Worst output") :]
    assert re.match(r"Worst output\s*12\.2 dB\s*worst of 3 outputs", after), after[:60]


@pytest.mark.parametrize("name", ["int8", "pow2-int8", "weight-only-int4"])
def test_the_whole_command_names_a_recipe_only_if_it_means_that_one(name: str, tmp_path: Path) -> None:
    """A recipe file may be called as a built-in one: the command would make another model."""
    same, other = tmp_path / "same.toml", tmp_path / "other.toml"
    same.write_text(f"name = '{name}'\nbase = '{name}'\n")
    other.write_text(f"name = '{name}'\nbase = '{name}'\n[[rule]]\npoints = '*.weight'\nbits = 3\n")
    expected = {name: f" --recipe {name} ", str(same): f" --recipe {name} ", str(other): " --recipe RECIPE.toml "}
    for source, words in expected.items():
        recipe = load_recipe(source).with_overrides(["*.weight.bits=5", "*.weight.symmetric=true"])
        record = read_record({RECIPE_KEY: RecipeRecord(recipe, "fused").text}, "model.onnx")
        described = recipe_of(record, Model.load(RecurrentCase().model()))
        evidence = replace(_evidence(), recipe=described)
        assert words in Page.read(page(evidence)).commands[1], source


def test_an_empty_report() -> None:
    missing = dict.fromkeys(("layers", "points", "sensitivity", "times"), "nothing there.")
    evidence = Evidence(
        "a.onnx", "b.onnx", {"source": "generated", "calls": 1, "states": [], "inputs": {}}, {}, {"passes": []},
        sizes={"float_file": 1, "quantized_file": 1}, missing=missing,
    )  # fmt: skip
    assert Page.read(page(evidence)).text.count("nothing there.") >= 4


def test_json_has_no_infinity() -> None:
    data = json.loads(json_text(_evidence().to_dict()))
    assert data["outputs"][0]["sqnr_db"] == "-inf"
    assert data["repairs"][0]["sqnr_after"] == 31.5


@pytest.mark.parametrize("levels", [[30.0], [None], [math.inf], [None, 3.0, None, 4.0, 5.0], [30.0] * 160, [-1e9, 1e9]])
def test_curves_stay_in_their_frame(levels: list[float | None]) -> None:
    curve = _curve(levels)
    low, high = level_range([curve])
    assert low < high
    _assert_inside(level_chart(curve, (low, high), "x"))


@pytest.mark.parametrize(
    "point",
    [
        _point(),
        _point(low=-1e-6, high=1e-6, clipped=1.0),
        _point(low=-1e9, high=1e9),
        _point(low=None, high=None),
        _point(min=0.0, max=0.0, bars=Bars(2.0**-160, 0, [7])),
        _point(min=3e38, max=3e38, bars=Bars(2.0**116, 2047, [10**12])),
        _point(low=5.0, high=9.0, clipped=1.0),
    ],
)
def test_histograms_stay_in_their_frame(point: PointEvidence) -> None:
    _assert_inside(histogram(point))
    spark(point)


def _assert_inside(svg: ET.Element) -> None:
    for e in svg.iter():
        for key, limit in (("x", WIDTH), ("x1", WIDTH), ("x2", WIDTH), ("cx", WIDTH), ("y", HEIGHT), ("y1", HEIGHT)):
            if key in e.attrib:
                assert 0 <= float(e.attrib[key]) <= limit, ET.tostring(e)
        for letter, numbers in re.findall(r"([MLHV])([^A-Z]*)", e.attrib.get("d", "")):
            found = [float(n) for n in numbers.split()]
            limits = {"H": (WIDTH,), "V": (HEIGHT,)}.get(letter, (WIDTH, HEIGHT))
            assert all(0 <= n <= top for n, top in zip(found, limits, strict=True)), ET.tostring(e)


def test_values_beyond_the_range_are_marked() -> None:
    classes = [e.get("class") for e in histogram(_point(low=-0.6, high=0.6, clipped=0.01)).iter()]
    assert "bar clipped" in classes
    assert "bar clipped" not in [e.get("class") for e in histogram(_point(low=-2.0, high=2.0, clipped=0.0)).iter()]


@pytest.mark.parametrize(("low", "high"), [(0, 1), (-3.7, 12.2), (35, 45), (0, 1e-9), (2, 2)])
def test_ticks(low: float, high: float) -> None:
    found = ticks(low, high, 4)
    assert 1 <= len(found) <= 9
    assert all(low - 1e-12 <= t <= high + 1e-12 for t in found)


def test_numbers_for_people() -> None:
    def text(made: ET.Element) -> tuple[str | None, str | None]:
        return made.text, made.get("value")

    assert text(decibels(38.61375)) == ("38.6 dB", "38.61375")
    assert text(decibels(math.inf)) == ("exact", "inf")
    assert text(decibels(None)) == ("–", "")
    assert text(difference(-0.01)) == ("0.0 dB", "-0.01")
    assert text(difference(3.25)) == ("+3.2 dB", "3.25")
    assert [percent(v).text for v in (0.0, 0.5, 0.0123, 0.0000134)] == ["0", "50%", "1.2%", "13 ppm"]


@given(st.text(LETTERS, min_size=1, max_size=30))
def test_an_override_names_its_point_whatever_the_name(text: str) -> None:
    """Also through a shell, and through the parser of overrides."""
    path = f"{text}.forward.hidden"
    [written] = settings_text([Rule(exactly(path), {"bits": 16})])
    assert written.isprintable()
    assert shlex.split(quoted(written)) == [written]
    rule = parse_override(written)
    assert rule.matches(path)
    assert rule.settings == {"bits": 16}
    assert not rule.matches(f"{path}x")
