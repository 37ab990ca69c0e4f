"""The first section: what to change, ready to paste."""

from __future__ import annotations

import glob
import math
from collections.abc import Sequence
from pathlib import PurePath
from xml.etree.ElementTree import Element

from rnnqc.cells.forms import FUSED, INTEGER, WEIGHT_ONLY
from rnnqc.errors import byte_count
from rnnqc.lowering.options import REST_FLOAT
from rnnqc.proto.files import word_for
from rnnqc.recipes.rules import parse_override, rule_text
from rnnqc.reporting.elements import Child, command, decibels, difference, element, name, number, quoted
from rnnqc.reporting.evidence import CalibrationGain, Evidence
from rnnqc.reporting.tables import folded
from rnnqc.search.findings import WORTH_DB, Repair
from rnnqc.search.repairs import WORTH_A_FORM_DB

NOISE = 0.1
"""Relative differences of times below this may be noise."""


def repairs(evidence: Evidence) -> list[Child]:
    """Returns the gain of a calibration, the measured overrides, and the cost of `--rest int8`."""
    gain, rest = evidence.calibration, evidence.rest
    first = [_calibration(gain, evidence)] if gain is not None and gain.is_worth_it else []
    last: list[Child] = [] if rest is None else [element("p", rest.text.replace("->", "→"))]
    return [*first, *_overrides(evidence), *last]


def _calibration(gain: CalibrationGain, evidence: Evidence) -> Element:
    text = f"{gain.text[:1].upper()}{gain.text[1:]}.".replace("->", "→")
    data = evidence.data["source"]
    words = ["--calibration", quoted(data) if PurePath(data).suffix == ".npz" else "DATA"]
    words += ["--state", *map(quoted, evidence.data["states"])] if evidence.data["states"] else []
    return element("div", element("h3", "Calibrate"), element("p", text), command(" ".join(words)))


def _overrides(evidence: Evidence) -> list[Child]:
    if "sensitivity" in evidence.missing:
        return [element("p", f"Left out: {evidence.missing['sensitivity']}", class_="note")]
    left = left_out(evidence)
    if not evidence.repairs:
        return [element("p", _nothing(evidence, left), class_="note warning" if left else None)]
    intro = (
        "Each override below was applied to this model, in its own form, and measured on this data. "
        "Those that gain most for each byte come first. "
        "Put them in front of other options --set: the first match counts."
    )
    if all(r.members > 1 for r in evidence.repairs):
        intro += f" No override of a single point gains {WORTH_DB:g} dB or more: what is lost sits in many."
    shown = [r for r in evidence.repairs if not r.inside]
    others = [r for r in evidence.repairs if r.inside]
    made: list[Child] = [element("p", intro)]
    made.append(_table([*shown, *([evidence.together] if evidence.together is not None else [])], evidence))
    if others:
        text = element("p", "Parts of those above, or other ways to the same end: one or the other.")
        made.append(folded(len(others), "smaller changes", element("div", text, _table(others, evidence))))
    made += [element("p", left, class_="note warning")] if left else []
    return made


def left_out(evidence: Evidence) -> str:
    """A sentence on what was not measured; empty if everything was."""
    measured, meant = evidence.tried
    texts = [f"{meant - measured} of {meant} points and groups"] if measured < meant else []
    texts += [f"{len(evidence.untried)} override{'s' * (len(evidence.untried) > 1)}"] if evidence.untried else []
    return f"NOT measured, to bound the work (--models, --seconds): {' and '.join(texts)}." if texts else ""


def _nothing(evidence: Evidence, left: str) -> str:
    """A sentence on why no override is proposed."""
    if evidence.sqnr_db == math.inf:
        return "There is nothing to gain: the outputs are the same in both models."
    measured, meant = evidence.tried
    if left and not measured:
        return left
    least = f"gains {WORTH_DB:g} dB or more ({WORTH_A_FORM_DB:g} dB where it would take the integer form from a cell)"
    if left:
        return f"No override {least} among the {measured} of {meant} points and groups that were measured. {left}"
    data = "" if evidence.recipe["calibrated"] else ", or calibration data,"
    return (
        f"No override {least}: neither of a single point, nor of points of one kind or of all. What is lost is spread "
        f"over many points; a recipe with more bits{data} changes all of them."
    )


def _table(shown: Sequence[Repair], evidence: Evidence) -> Element:
    """A table of changes with their gain and cost; on a phone, a card for each."""
    rows = [_row(r, evidence) for r in shown]
    heads = ("Change", "Gain", "Worst output", "Weights", "Cost of a call")
    head = [element("th", h, class_="n" if k in (1, 2, 3) else None, scope="col") for k, h in enumerate(heads)]
    body = []
    for change, gain, worst, weights, time in rows:
        cells = [_cell(heads[1], gain, "n"), _cell(heads[2], worst, "n"), _cell(heads[3], weights, "n")]
        body.append(element("tr", element("td", change), cells, _cell(heads[4], time)))
    made = element("table", element("thead", element("tr", head)), element("tbody", body), class_="actions")
    return element("div", made, class_="scroll", tabindex="0", role="region", aria_label="What to do")


def _cell(head: str, content: Child, class_: str | None = None) -> Element:
    """A table cell. On a phone its head is shown beside it."""
    return element("td", element("div", content), class_=class_, data_label=head)


def _row(repair: Repair, evidence: Evidence) -> list[Child]:
    together = not repair.points
    title: list[Child] = ["Together, as far as cells keep their form"] if together else _title(repair)
    why: Child = None if together else element("p", f"{repair.reason[:1].upper()}{repair.reason[1:]}.", class_="soft")
    lines = [f"--set {' '.join(quoted(o) for o in repair.overrides)}"]
    change = [element("h3", title), why, command(*lines), folded_command(repair, evidence)]
    gain = element("b", difference(repair.gain_db), class_="gain")
    worst: list[Child] = [decibels(repair.worst_before), " → ", decibels(repair.worst_after)]
    return [change, gain, worst, _weights(repair), _time(repair)]


def _weights(repair: Repair) -> list[Child]:
    """Bytes of the recurrent weights before and after the change."""
    after = number(repair.bytes_after, byte_count(repair.bytes_after))
    if repair.bytes_after == repair.bytes_before:
        return ["stay ", after]
    return [number(repair.bytes_before, byte_count(repair.bytes_before)), " → ", after]


def _time(repair: Repair) -> list[Child]:
    """The time of a call before and after the change, or the bytes that its matmuls read."""
    slower: list[Child] = [element("p", _form_text(repair), class_="note warning")] if repair.forms else []
    if repair.call_us is not None:
        before, after = repair.call_us
        change = after / before - 1.0
        words = "about as now" if abs(change) < NOISE else f"{change:+.0%}".replace("-", "−")
        return [number(before, _duration(before)), " → ", number(after, _duration(after)), f" ({words})", *slower]
    first, then = repair.read_bytes
    same: list[Child] = ["matmuls read ", number(first, byte_count(first)), " → ", number(then, byte_count(then))]
    return slower or (["as now"] if first == then else same)


def _duration(microseconds: float) -> str:
    return f"{microseconds:.0f} µs" if microseconds < 1e4 else f"{microseconds / 1e3:.1f} ms"


def _title(repair: Repair) -> list[Child]:
    """The points and their number."""
    if repair.points == "*":
        return [f"All {repair.members} points"]
    return [name(plain(repair.points)), f" ({repair.members} points)" if repair.members > 1 else None]


def _form_text(repair: Repair) -> str:
    forms = ", ".join(repair.forms)
    return f"The form is then {forms}: there is no integer arithmetic for it, and it runs slower."


def folded_command(repair: Repair, evidence: Evidence) -> Element:
    """The whole command, and the overrides as rules of a recipe file."""
    recipe = evidence.recipe
    words = ["rnnqc", "lower", quoted(word_for(evidence.float_model, "MODEL")), "-o", quoted(new_name(evidence))]
    words += ["--recipe", quoted(recipe["name"]) if recipe["builtin"] else "RECIPE.toml"]
    words += map(quoted, recipe.get("statistics") or ["--stats", "STATS.json"]) if recipe["calibrated"] else []
    form, implied = recipe["form"], INTEGER if recipe["unroll"] else FUSED
    words += ["--form", form] if form not in (implied, WEIGHT_ONLY) else []
    words += ["--unroll"] if recipe["unroll"] else []
    words += ["--rest", recipe["rest"]] if recipe.get("rest", REST_FLOAT) != REST_FLOAT else []
    outputs = recipe.get("quantized_outputs") or []
    words += ["--quantized-outputs", *map(quoted, outputs)] if outputs else []
    words += ["--remove-sorting"] if recipe.get("remove_sorting") else []
    words += ["--bind", *(quoted(f"{k}={v}") for k, v in recipe["bind"].items())] if recipe.get("bind") else []
    words += ["--dim", *(quoted(f"{k}={v}") for k, v in recipe["dims"].items())] if recipe["dims"] else []
    lines = [" ".join(words) + " --set \\"]
    overrides = [quoted(o) for o in (*repair.overrides, *recipe["overrides"])]
    lines += [f"  {o} \\" for o in overrides[:-1]] + [f"  {o}" for o in overrides[-1:]]
    rules = [parse_override(o) for o in repair.overrides]
    toml = [line for r in rules for line in [*rule_text(r.points, r.settings).split("\n"), ""]][:-1]
    return element(
        "details",
        element("summary", "The whole command, and rules for a recipe file"),
        command(*lines),
        command(*toml),
    )


def new_name(evidence: Evidence) -> str:
    """Returns a file name for the changed model, beside the reported one and different from the float model's."""
    path = PurePath(word_for(evidence.quantized_model, "LOWERED.onnx"))
    made = path.with_name(f"{path.stem}.changed{path.suffix}")
    return str(made if made != PurePath(evidence.float_model) else path.with_name(f"{made.stem}.changed{path.suffix}"))


def plain(points: str) -> str:
    """Returns a glob without the brackets that escape special characters."""
    return points.replace("[[]", "[").replace("[*]", "*").replace("[?]", "?") if glob.has_magic(points) else points
