"""Overrides of many points on the page of a report: roundings, tables, ranges and widths that no single point shows.

What these would catch: a page that says that nothing helps where a bias sits in every value, an override that cannot be
pasted or does something else than the page says, one that is no better than that of a single point, and sentences about
what was measured that are not so.
"""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

import rnnqc
from rnnqc.measure.compare import compare_models
from rnnqc.reporting.evidence import Curve, Evidence, OutputEvidence
from rnnqc.reporting.gather import gather
from rnnqc.reporting.page import page
from rnnqc.reporting.subject import Options, Subject
from rnnqc.search.findings import Repair, Sensitivity
from rnnqc.search.trials import Bounds
from tests.generate.recurrences import RecurrenceCase
from tests.pages.report_pages import Page
from tests.runs.commands import in_process
from tests.runs.sessions import Array, save_arrays
from tests.subjects.protos import of_nodes

T, B, I, H = 12, 2, 6, 8  # noqa: E741
Feeds = list[dict[str, Array]]
GATES = {"LSTM": 4, "GRU": 3}


def _layers(op: str) -> tuple[onnx.ModelProto, Feeds]:
    """Two layers in a row, and data."""
    rng = np.random.default_rng(0)
    stored, nodes, size, value = {"axes": np.array([1])}, [], I, "X"
    for k in range(2):
        for m, width in (("W", size), ("R", H)):
            stored[f"{m}{k}"] = rng.normal(0, 2 / np.sqrt(H), (1, GATES[op] * H, width)).astype(np.float32)
        nodes.append(helper.make_node(op, [value, f"W{k}", f"R{k}"], [f"y{k}"], name=f"layer_{k}", hidden_size=H))
        value, size = ("Y" if k else "between"), H
        nodes.append(helper.make_node("Squeeze", [f"y{k}", "axes"], [value]))
    model = of_nodes(nodes, {"X": ["T", "B", I]}, {"Y": ["T", "B", H]}, stored)
    return model, [{"X": rng.normal(0, 1, (T, B, I)).astype(np.float32)} for _ in range(3)]


def _highway() -> tuple[onnx.ModelProto, Feeds]:
    made = RecurrenceCase(op="highway", form="scan", time=5, I=12, H=16, initial="zeros")
    return made.model(), [made.feeds(seed) for seed in range(4)]


def _report(
    model: onnx.ModelProto, data: Feeds, recipe: str, overrides: list[str], bounds: Bounds | None = None
) -> Evidence:
    """Returns the page's numbers; checks that every printed override gives the figures stated."""
    statistics = rnnqc.calibrate(model, data)
    lowered = rnnqc.lower(model, recipe, stats=statistics, overrides=overrides)
    subject = Subject(model, lowered.proto, "f.onnx", "q.onnx", 1, 1, statistics=statistics, data=data)
    evidence = gather(subject, Options(bounds=bounds or Bounds(80)))
    printed = [shlex.split(c)[1:] for c in Page.read(page(evidence)).commands if c.startswith("--set ")]
    shown = [*evidence.repairs, *([evidence.together] if evidence.together is not None else [])]
    shown.sort(key=lambda r: bool(r.inside))  # what overlaps a better one is folded away behind the rest
    assert printed == [r.overrides for r in shown]
    for words, repair in zip(printed, shown, strict=True):
        again = rnnqc.lower(model, recipe, stats=statistics, overrides=[*words, *overrides])
        level = min(c.sqnr_db for c in compare_models(model, again.proto, data))
        assert level == pytest.approx(repair.worst_after, abs=1e-6), repair
    return evidence


@pytest.mark.slow
def test_a_bias_that_sits_in_every_value() -> None:
    """Rounded down everywhere: no single point gains much, all together do. (The tables would hide it.)"""
    evidence = _report(*_highway(), "pow2-int16", ["*.value.table=exact"])
    best, *others = evidence.repairs
    assert best.overrides == ["*.rounding=half_even"]
    biases = 2
    assert best.members == len(evidence.points) + biases > 20
    assert best.gain_db > 10 > 1 > max(r.gain_db for r in others if r.members == 1)
    read = Page.read(page(evidence))
    assert f"All {best.members} points" in read.text
    assert "Rounded to nearest instead of down." in read.text
    [gained] = [d for d in read.texts["div"] if d.startswith("To be gained")]
    assert f"+{best.gain_db:.1f} dB" in gained
    assert f"with one override of {best.members} points" in gained
    assert "no override helps" not in read.text


@pytest.mark.slow
@pytest.mark.parametrize("op", ["LSTM", pytest.param("GRU", marks=pytest.mark.slow)])
def test_tables_hide_roundings_of_layers(op: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The coarse tables come first; without their errors, rounding to nearest gains as much again, as stated."""
    model, data = _layers(op)
    evidence = _report(model, data, "pow2-int16", [])
    best, together = evidence.repairs[0], evidence.together
    assert best.overrides == ["*.activation.table=exact"]
    assert together is not None
    assert together.overrides[0] == best.overrides[0]
    assert any(o.endswith(".rounding=half_even") for o in together.overrides)
    assert together.gain_db > best.gain_db + 6
    [gained] = [d for d in Page.read(page(evidence)).texts["div"] if d.startswith("To be gained")]
    assert f"+{together.gain_db:.1f} dB together" in gained
    source, samples, out = (tmp_path / n for n in ("model.onnx", "data.npz", "out.onnx"))
    onnx.save(model, source)
    save_arrays(samples, {"X": np.stack([f["X"] for f in data])})
    commands = [c for c in Page.read(page(evidence)).commands if c.startswith("--set ")]
    [printed] = [c for c in commands if shlex.split(c)[1:] == together.overrides]
    given = ["lower", source, "-o", out, "--recipe", "pow2-int16", "--calibration", samples, *shlex.split(printed)]
    assert in_process(capfd, *given).code == 0
    [after] = compare_models(model, onnx.load(out), data)
    # Calibrated on the same data, but three samples at a time.
    assert after.sqnr_db == pytest.approx(together.sqnr_after, abs=2.0)


@pytest.mark.slow
def test_tables_hide_roundings_of_custom_cells() -> None:
    evidence = _report(*_highway(), "pow2-int16", [])
    best, together = evidence.repairs[0], evidence.together
    assert best.overrides == ["*.value.table=exact"]
    assert together is not None
    assert together.overrides == [*best.overrides, "*.rounding=half_even"]
    assert together.gain_db > best.gain_db + 6


@pytest.mark.slow
def test_an_override_of_the_user_is_taken_back() -> None:
    evidence = _report(*_highway(), "pow2-int16", ["*.max_fix_position=15"])
    best = evidence.repairs[0]
    assert best.overrides == ["*.max_fix_position=12"]
    assert best.gain_db > 30
    assert best.reason == "as the recipe has it, instead of max_fix_position = 15"
    assert any("override '*.max_fix_position=15' clips" in w for w in evidence.warnings)


def test_more_bits_for_a_kind_of_point() -> None:
    evidence = _report(*_layers("LSTM"), "brevitas-int8", ["*.hidden.bits=4"], Bounds(12))
    found = {r.overrides[0]: r for r in evidence.repairs}
    both = found.get("*.hidden.bits=8") or found["*.hidden.bits=16"]
    assert both.members == 2
    single = [r.gain_db for r in evidence.repairs if r.points in ("layer_0.forward.hidden", "layer_1.forward.hidden")]
    assert both.gain_db > max(single, default=0.0) + 0.3
    [kind] = [s for s in evidence.sensitivities if s.points == "*.hidden"]
    assert (kind.level, kind.members) == ("kind", 2)


@pytest.mark.slow
def test_scales_of_their_own() -> None:
    """With one scale for the cell, 8 bits are too few."""
    evidence = _report(*_layers("GRU"), "pow2-int8-floor", [], Bounds(40))
    [apart] = [r for r in evidence.repairs if r.overrides[-1] == "*.same_as=none"]
    assert apart.gain_db > 3


@pytest.mark.slow
def test_groups_keep_to_the_bounds() -> None:
    """Nothing is said of an override that was not tried."""
    evidence = _report(*_highway(), "pow2-int16", [], Bounds(4))
    assert len(evidence.sensitivities) == 4
    assert evidence.repairs == []
    assert "*.rounding=half_even" in evidence.untried
    text = Page.read(page(evidence)).text
    assert "NOT measured" in text and " overrides." in text
    assert "no override helps" not in text
    more = _report(*_highway(), "pow2-int16", [], Bounds(10))
    assert len(more.sensitivities) == 8
    assert more.repairs[0].overrides == ["*.rounding=half_even"]


def test_outputs_that_are_exact_have_no_curve() -> None:
    """They have no dB values to plot; for hidden states the page says what is left out."""
    curves = [Curve("time step", [1, 2], [np.inf, level], [np.inf] * 4, 0, False) for level in (np.inf, 30.0)]
    for curve, shown in zip(curves, (0, 1), strict=True):
        output = OutputEvidence("y", np.inf, 0.0, 1.0, 1.0, curve)
        text = page(replace(EMPTY, outputs=[output], missing={"layers": "why.", "times": "no."}))
        assert Page.read(text).counts.get("figure", 0) == shown
        assert "Hidden states left out: why." in text


RECIPE = {"name": "int8", "form": "fused", "calibrated": False, "passes": [], "unroll": False, "dims": {},
          "builtin": True, "overrides": [], "rules": []}  # fmt: skip
EMPTY = Evidence(
    "f.onnx", "q.onnx", {"source": "given", "calls": 1, "states": [], "inputs": {}}, {}, RECIPE,
    sizes={"float_file": 1, "quantized_file": 1}, base_sqnr_db=30.0, sqnr_db=30.0,
    sensitivities=[Sensitivity("a.input", 1, "point", 30.1, 0.1, 0.02)], missing={"times": "no."},
)  # fmt: skip
SINGLE = Repair("a.input", ["a.input.bits=16"], "16 bits instead of 8", 30.0, 31.0, 30.0, 31.0, 9, 9)
GROUP = replace(SINGLE, points="*", overrides=["*.rounding=half_even"], sqnr_after=35.0, members=7)


@pytest.mark.parametrize(
    ("changes", "card", "said", "unsaid"),
    [
        ({}, "nothingno override helps", "No override gains 0.3 dB or more", "NOT measured"),
        ({"sqnr_db": np.inf}, "nothingthe outputs are exact", "There is nothing to gain", "spread"),
        ({"unmeasured": ["b.input"]}, "unknownnothing among the 1 of 2", "1 of 2 points and groups.", "no override"),
        ({"unmeasured": ["b.input"], "sensitivities": []}, "not measurednone of the 1", "1 of 1 points", "No override"),
        ({"untried": ["*.rounding=half_even"]}, "unknown", "models, --seconds): 1 override.", "is spread over"),
        ({"repairs": [SINGLE]}, "+1.0 dBwith one override, see", "16 bits instead of 8.", "of a single point gains"),
        ({"repairs": [GROUP]}, "+5.0 dBwith one override of 7 points", "No override of a single point", "NOT"),
        ({"repairs": [GROUP, SINGLE]}, "+5.0 dBwith one override of 7 points", "All 7 points", "of a single point"),
        ({"repairs": [SINGLE], "unmeasured": ["b.input"]}, "+1.0 dBwith one", "NOT measured", "No override"),
    ],
)  # fmt: skip
def test_what_is_said_of_what_was_measured(changes: dict[str, Any], card: str, said: str, unsaid: str) -> None:
    read = Page.read(page(replace(EMPTY, **changes)))
    [gained] = [d.removeprefix("To be gained") for d in read.texts["div"] if d.startswith("To be gained")]
    assert gained.strip().startswith(card)
    first = read.texts["section"][0]
    assert said in first
    assert unsaid not in first
