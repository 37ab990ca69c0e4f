"""Sections about the whole model: the facts at the top, the list of layers, how model and page were made."""

from __future__ import annotations

import math
from typing import Any
from xml.etree.ElementTree import Element

from rnnqc.errors import byte_count
from rnnqc.reporting.elements import Child, decibels, difference, element, name, number
from rnnqc.reporting.evidence import Evidence
from rnnqc.reporting.tables import folded, table


def facts(evidence: Evidence) -> Element:
    """Returns the most important numbers."""
    lowered = sum(e["status"] == "lowered" for e in evidence.entries)
    total = len(evidence.entries)
    sizes = evidence.sizes
    cards: list[tuple[str, list[Child]]] = []
    if evidence.outputs:
        worst = min(evidence.outputs, key=lambda o: (o.unlike == 0, o.sqnr_db))
        many = f"worst of {len(evidence.outputs)} outputs" if len(evidence.outputs) > 1 else "the only output"
        many += f"; {worst.unlike} value(s) NaN or infinite in one model only" if worst.unlike else ""
        if len(evidence.outputs) > 1 or worst.unlike:
            cards.append(("Worst output", [decibels(worst.sqnr_db), element("small", many)]))
        cards.append(("Outputs, all together", [decibels(evidence.sqnr_db), element("small", "SQNR against float")]))
    cards.append(
        ("Recurrent layers", [number(lowered, f"{lowered} of {total}"), element("small", _floats(total - lowered))])
    )
    if sizes.get("float_weights"):
        cards.append(("Recurrent weights", _change(sizes["float_weights"], sizes["quantized_weights"])))
    cards.append(("File", _change(sizes["float_file"], sizes["quantized_file"])))
    if evidence.base_sqnr_db is not None:
        cards.append(("To be gained", _to_be_gained(evidence)))
    return element("dl", [element("div", element("dt", k), element("dd", v)) for k, v in cards], class_="facts")


def _to_be_gained(evidence: Evidence) -> list[Child]:
    """Returns the best override, or why there is none."""
    measured, meant = evidence.tried
    best = evidence.best_repair
    if best is not None:
        how = "with one override" if len(best.overrides) == 1 else f"with {len(best.overrides)} overrides"
        how += f" of {best.members} points" if best.members > 1 else ""
        more: list[Child] = []
        if evidence.together is not None:
            more = [difference(evidence.together.gain_db), " together, "]
        return [difference(best.gain_db), element("small", f"{how}, ", more, "see below")]
    if measured == meant and not evidence.untried:
        exact = evidence.sqnr_db == math.inf
        return [number(0.0, "nothing"), element("small", "the outputs are exact" if exact else "no override helps")]
    if not measured:
        return ["not measured", element("small", f"none of the {meant} points and groups")]
    found = f"nothing among the {measured} of {meant} points and groups that were measured"
    return ["unknown", element("small", found)]


def _floats(count: int) -> str:
    return (
        "lowered; none stays float"
        if count == 0
        else f"lowered; {count} stay float"
        if count > 1
        else "lowered; 1 stays float"
    )


def _change(before: int, after: int) -> list[Child]:
    share = f"{after / before:.0%} of {byte_count(before)}" if before else ""
    return [number(after, byte_count(after)), element("small", share)]


def layers_table(evidence: Evidence) -> list[Child]:
    """Returns the table of layers: what was lowered, what was not, and why."""
    if not evidence.entries:
        return [element("p", "The model has no recurrent layer.")]
    rows = []
    for entry in evidence.entries:
        floats = entry["status"] == "float"
        label = "stays float" if floats else entry["form"]
        before, after = entry["float_bytes"], entry["bytes"]
        rows.append(
            [
                name(entry["node"]),
                entry["op"],
                element("span", label, class_="badge float" if floats else "badge"),
                number(before, byte_count(before)) if before else "–",
                number(after, byte_count(after)),
                _why(entry),
            ]
        )
    heads = ("Node", "Operator", "Form", "Weights before", "after", "Remarks")
    made: list[Child] = [table("Recurrent layers", heads, rows, "   nnl")]
    made += [element("p", text, class_="note warning") for text in evidence.warnings]
    return made


def _why(entry: dict[str, Any]) -> list[Child]:
    summary = [f"{entry['summary']}. "] if entry.get("summary") else []
    if not entry["reason"]:
        return [*summary] or ["–"]
    made: list[Child] = [*summary, entry["reason"]]
    if entry["found"]:
        made += [element("br"), element("b", "Found: "), entry["found"], "."]
    if entry["action"]:
        made += [element("br"), element("b", "Resolution: "), entry["action"], "."]
    return made


def making(evidence: Evidence) -> list[Child]:
    """Returns data, recipe, versions, and the meaning of the numbers."""
    data, recipe = evidence.data, evidence.recipe
    facts_: list[tuple[str, Child]] = [
        ("Data", f"{data['source']}: {_calls(data)}"),
        ("Inputs", [[name(k), f" {v}", element("br")] for k, v in data["inputs"].items()]),
    ]
    if data["states"]:
        facts_.append(("States carried", [[name(s), element("br")] for s in data["states"]]))
    if "name" in recipe:
        facts_.append(("Recipe", [name(recipe["name"]), f", form {recipe['form']}"]))
        if recipe["overrides"]:
            facts_.append(("Overrides", [[name(o), element("br")] for o in recipe["overrides"]]))
    facts_.append(("Passes", ", ".join(recipe["passes"])))
    facts_.append(("Versions", ", ".join(f"{k} {v}" for k, v in evidence.versions.items())))
    made: list[Child] = [element("dl", [[element("dt", k), element("dd", v)] for k, v in facts_], class_="list")]
    if evidence.remade:
        made.append(element("p", evidence.remade, class_="note"))
    if recipe.get("rules"):
        rows: list[list[Child]] = [
            [name(r["points"]), ", ".join(f"{k} = {_value(v)}" for k, v in r.items() if k != "points")]
            for r in recipe["rules"]
        ]
        made.append(
            folded(
                len(rows),
                "rules of the recipe",
                table("Rules, the first that has a key counts", ("Points", "Settings"), rows),
            )
        )
    made.append(element("h3", "Words"))
    made.append(element("dl", [[element("dt", k), element("dd", v)] for k, v in WORDS], class_="list"))
    return made


def _calls(data: dict[str, Any]) -> str:
    count = "1 call" if data["calls"] == 1 else f"{data['calls']} calls"
    return f"{count} of a stream" if data["states"] else count


def _value(value: Any) -> str:
    return "none" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


_SQNR = (
    "Signal-to-quantization-noise ratio against the float model: 10 log10 of the power of the values over the power of "
    "the error. 6 dB more halve the error; 40 dB are an error of 1 %."
)
_POINT = (
    "A place in a cell where values are quantized. Its path, such as lstm.forward.W.weight, is what --set and "
    "recipes take; rnnqc recipes --points lists all."
)
WORDS = (
    ("SQNR", _SQNR),
    ("Outputs, all together", "The noise-to-signal ratios of all float outputs, averaged, in dB."),
    ("Quantization point", _POINT),
    ("Clipped", "Share of the values outside the range of the format, which saturate."),
    ("Chained", "A layer reads the quantized hidden state of the layer before without another quantization."),
)
