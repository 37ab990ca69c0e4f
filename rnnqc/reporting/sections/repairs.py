"""The section that comes first: what to change, ready to paste."""

from __future__ import annotations

import glob
import math
from pathlib import PurePath
from xml.etree.ElementTree import Element

from rnnqc.errors import byte_count
from rnnqc.recipes.rules import parse_override, rule_text
from rnnqc.reporting.elements import Child, command, decibels, difference, element, name, number, quoted
from rnnqc.reporting.evidence import Evidence
from rnnqc.search.findings import Repair
from rnnqc.search.repairs import WORTH_A_FORM_DB, WORTH_DB


def repairs(evidence: Evidence) -> list[Child]:
    """Overrides that were measured, best first."""
    if "sensitivity" in evidence.missing:
        return [element("p", f"Left out: {evidence.missing['sensitivity']}", class_="note")]
    left = left_out(evidence)
    if not evidence.repairs:
        return [element("p", _nothing(evidence, left), class_="note warning" if left else None)]
    intro = (
        "Each override below was applied to this model, in its own form, and measured on this data. "
        "Put them in front of other options --set: the first match counts."
    )
    if all(r.members > 1 for r in evidence.repairs):
        intro += f" No override of a single point gains {WORTH_DB:g} dB or more: what is lost sits in many."
    made: list[Child] = [element("p", intro)]
    made += [_repair(r, evidence) for r in evidence.repairs]
    if evidence.together is not None:
        made.append(_repair(evidence.together, evidence))
    made += [element("p", left, class_="note warning")] if left else []
    return made


def left_out(evidence: Evidence) -> str:
    """What was not measured, as a sentence; empty if that is nothing."""
    measured, meant = evidence.tried
    texts = [f"{meant - measured} of {meant} points and groups"] if measured < meant else []
    texts += [f"{len(evidence.untried)} override{'s' if len(evidence.untried) > 1 else ''} of groups of points"] * bool(
        evidence.untried
    )
    return f"NOT measured, to bound the work (--models, --seconds): {' and '.join(texts)}." if texts else ""


def _nothing(evidence: Evidence, left: str) -> str:
    """Why no override is proposed."""
    if evidence.sqnr_db == math.inf:
        return "There is nothing to gain: the outputs are those of the float model."
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


def _repair(repair: Repair, evidence: Evidence) -> Element:
    together = not repair.points
    title: list[Child] = ["Together, as far as cells keep their form"] if together else _title(repair)
    why = None if together else element("p", f"{repair.reason[:1].upper()}{repair.reason[1:]}.", class_="soft")
    arrow: list[Child] = [decibels(repair.sqnr_before), " → ", decibels(repair.sqnr_after), " "]
    worst: list[Child] = ["Worst output ", decibels(repair.worst_before), " → ", decibels(repair.worst_after)]
    size: list[Child] = ["; weights stay ", number(repair.bytes_after, byte_count(repair.bytes_after))]
    if repair.bytes_after != repair.bytes_before:
        size = [
            "; weights ", number(repair.bytes_before, byte_count(repair.bytes_before)), " → ",
            number(repair.bytes_after, byte_count(repair.bytes_after)),
        ]  # fmt: skip
    lines = [f"--set {' '.join(quoted(o) for o in repair.overrides)}"]
    return element(
        "div",
        element("h3", title),
        why,
        element("p", element("b", difference(repair.gain_db)), ": ", arrow, class_="gain"),
        element("p", worst, size, ".", class_="soft small"),
        element("p", _form_text(repair), class_="note warning") if repair.forms else None,
        command(*lines),
        folded_command(repair, evidence),
        class_="repair",
    )


def _title(repair: Repair) -> list[Child]:
    """The points, and how many they are."""
    if repair.points == "*":
        return [f"All {repair.members} points"]
    return [name(plain(repair.points)), f" ({repair.members} points)" if repair.members > 1 else None]


def _form_text(repair: Repair) -> str:
    forms = ", ".join(repair.forms)
    return f"The form is then {forms}: there is no integer arithmetic for it, and it runs slower."


def folded_command(repair: Repair, evidence: Evidence) -> Element:
    """The whole command, and the same as rules of a recipe file."""
    recipe = evidence.recipe
    words = ["rnnqc", "lower", quoted(evidence.float_model), "-o", quoted(new_name(evidence))]
    words += ["--recipe", quoted(recipe["name"]) if recipe["builtin"] else "RECIPE.toml"]
    words += map(quoted, recipe.get("statistics") or ["--stats", "STATS.json"]) if recipe["calibrated"] else []
    words += (
        ["--form", recipe["form"]] if recipe["form"] in ("integer", "qcdq", "qonnx") and not recipe["unroll"] else []
    )
    words += ["--unroll"] if recipe["unroll"] else []
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
    """A name for the model with overrides, beside the one that the page is about."""
    path = PurePath(evidence.quantized_model)
    made = path.with_name(f"{path.stem}.changed{path.suffix}")
    return str(made if made != PurePath(evidence.float_model) else path.with_name(f"{made.stem}.changed{path.suffix}"))


def plain(points: str) -> str:
    """A glob for reading: without the marks that take the meaning from its special characters."""
    return points.replace("[[]", "[").replace("[*]", "*").replace("[?]", "?") if glob.has_magic(points) else points
