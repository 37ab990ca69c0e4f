"""The outcome of `rnnqc tune`, and its recipe file."""

from __future__ import annotations

import glob
import os
from bisect import bisect
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from rnnqc.codes import Code, Told, all_told, told
from rnnqc.errors import byte_count
from rnnqc.lowering.options import REST_FLOAT
from rnnqc.measure.differences import OutputComparison
from rnnqc.measure.verdict import Judged, Verdict, verdict_of
from rnnqc.proto.files import write_atomically
from rnnqc.recipes.recipe import Recipe, is_builtin
from rnnqc.recipes.rules import Rule, rule_text, toml
from rnnqc.results import Result
from rnnqc.search.greedy import Assignment, Found, Measured, thinned

Settings = Mapping[str, Any]


@dataclass(frozen=True)
class Unit:
    """Something whose format is chosen: a quantization point, or the same point of several layers with shared weights.

    Attributes:
        point: Its path.
        choices: The possible settings; the first is the recipe's own format.
        more: The same point of further layers with these weights, which are stored once only if the format is the same.
        layer: Its cell or operator.
        size: The number of its weights, or of the weights that it is multiplied with.
        bits: Its width in the recipe; None where that is float.
    """

    point: str
    choices: tuple[Settings, ...]
    more: tuple[str, ...] = ()
    layer: str = ""
    size: int = 0
    bits: int | None = None

    @property
    def points(self) -> tuple[str, ...]:
        """The paths of all its points."""
        return (self.point, *self.more)

    @property
    def name(self) -> str:
        """A name for people."""
        return self.point + (f" and {len(self.more)} more" if self.more else "")


@dataclass(frozen=True)
class Point:
    """A point of the frontier: no other measured assignment beats it.

    Attributes:
        measured: Cost and quality.
        seconds: Time of the first call.
        settings: The settings, by quantization point.
    """

    measured: Measured
    seconds: float
    settings: Mapping[str, Settings]


def shown_frontier(found: Found, most: int) -> list[tuple[Assignment, Measured]]:
    """Returns at most `most` points of the frontier, evenly spread, including both ends and the chosen one."""
    shown = thinned(found.frontier, most)
    costs = [m.cost for _, m in shown]
    chosen = next((p for p in found.frontier if p[0] == found.assignment), None)
    if chosen is not None and chosen not in shown and most > 2:
        above = bisect(costs, chosen[1].cost)
        shown[above - 1 if above > 1 else above] = chosen
    return shown


def settings_of(units: Sequence[Unit], assignment: Assignment) -> dict[str, Settings]:
    """Returns the settings of an assignment, by point, where they differ from the recipe's own format."""
    return {p: u.choices[c] for u, c in zip(units, assignment, strict=True) if c for p in u.points}


def rules_of(settings: Mapping[str, Settings]) -> tuple[Rule, ...]:
    """Converts settings by point to rules."""
    return tuple(Rule(glob.escape(point), s) for point, s in settings.items())


def with_rules(recipe: Recipe, rules: Sequence[Rule]) -> Recipe:
    """Returns the recipe that a file with `rules` in front is read as (see `recipe_text`)."""
    if not rules:
        return recipe
    own = len(rules) + (0 if is_builtin(recipe) else len(recipe.rules))
    return replace(recipe, rules=(*rules, *recipe.rules), own=own)


@dataclass(repr=False)
class Tuned(Result):
    """The outcome of `tune`.

    Attributes:
        recipe: The recipe that was tuned.
        units: The points that formats were chosen for.
        found: The search.
        settings: The settings of the best assignment, by point; none where the recipe's own format is best.
        weight_bytes: Bytes of the recurrent weights, with `rest="int8"` of all weights, at the start and at the end.
        call_seconds: Time of the first call, at the start and at the end.
        float_quality: Quality of the float model.
        decibels: Whether quality is SQNR in dB.
        outputs: The outputs of the result, compared with the float model's.
        silent: Cells that never ran in the calibration; they keep the recipe's formats.
        rest: How the weights around the recurrent layers are stored: "float" or "int8".
        frontier: Measured assignments that nothing beats, the cheapest first; at most eight, evenly spread.
        warnings: A sentence for each state that the data carries oddly or not at all.
        falling: Whether less of the metric is better; the search has it with its sign reversed.
    """

    recipe: Recipe
    units: list[Unit]
    found: Found
    settings: dict[str, Settings]
    weight_bytes: tuple[int, int]
    call_seconds: tuple[float, float]
    float_quality: float
    decibels: bool
    outputs: Sequence[OutputComparison] = ()
    silent: Sequence[str] = ()
    rest: str = REST_FLOAT
    frontier: Sequence[Point] = ()
    warnings: Sequence[Told] = ()
    falling: bool = False

    @property
    def verdict(self) -> Verdict | None:
        """Whether the outputs are close enough, in the words of `rnnqc.report`; None where a metric decides."""
        return verdict_of(map(Judged.of, self.outputs)) if self.decibels else None

    @property
    def headline(self) -> str:
        """Cost and quality, before and after."""
        found, (start, end) = self.found, self.weight_bytes
        qualities = f"{self.worded(found.start.quality)} -> {self.worded(found.measured.quality)}"
        verdict = "" if found.reached else "; the goal was not reached"
        verdict += "" if self.verdict is None else f"; {self.verdict.line}"
        return f"{self.recipe.name}, tuned: weights {byte_count(start)} -> {byte_count(end)}, {qualities}{verdict}"

    @property
    def unseen_layers(self) -> list[str]:
        """Cells and operators without any measured change; empty if the search was complete."""
        unseen = set(self.found.unseen)
        seen = {unit.layer for k, unit in enumerate(self.units) if k not in unseen}
        return list(dict.fromkeys(unit.layer for unit in self.units if unit.layer not in seen))

    @property
    def messages(self) -> list[Told]:
        """Messages on cells that never ran, a search that ended early, and states that are carried oddly."""
        silent = (f"cell {cell!r} never ran in the calibration; it keeps the recipe's formats." for cell in self.silent)
        texts = all_told(Code.UNSEEN_CELL, silent)
        if self.found.ended_early:
            done, all_of_them = self.found.alone
            unseen = f" Never looked at: {', '.join(self.unseen_layers)}." if self.unseen_layers else ""
            text = (
                f"the search ended before it was done, as asked: {self.found.tried} assignments were measured, {done} "
                f"of {all_of_them} changes of a single point among them; with more of --seconds or --models it may "
                f"find something better.{unseen}"
            )
            texts.append(told(Code.SEARCH_ENDED, text))
        return [*texts, *self.warnings]

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The changes that were kept, in order, each with the result."""
        return [
            {
                "point": self.units[s.unit].name,
                "format": ", ".join(f"{k} = {str(v).lower()}" for k, v in self.units[s.unit].choices[s.after].items()),
                "cost": s.result.cost,
                "quality": self.said(s.result.quality),
            }
            for s in self.found.steps
        ]

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the recipe file."""
        write_atomically(Path(path), self.text.encode())

    @property
    def text(self) -> str:
        """The recipe file."""
        return recipe_text(self)

    def to_dict(self) -> dict[str, Any]:
        """Returns JSON-ready values."""
        found = self.found
        return {
            "start": {**asdict(found.start), "quality": self.said(found.start.quality)},
            "result": {**asdict(found.measured), "quality": self.said(found.measured.quality)},
            "reached": found.reached,
            "tried": found.tried,
            "ended_early": found.ended_early,
            "unseen_layers": self.unseen_layers,
            "weight_bytes": list(self.weight_bytes),
            "call_seconds": list(self.call_seconds),
            "float_quality": self.said(self.float_quality),
            "settings": {point: dict(s) for point, s in self.settings.items()},
            "frontier": [
                {
                    "cost": p.measured.cost,
                    "quality": self.said(p.measured.quality),
                    "call_seconds": p.seconds,
                    "settings": {point: dict(s) for point, s in p.settings.items()},
                }
                for p in self.frontier
            ],
        }

    def said(self, quality: float) -> float:
        """Converts a quality of the search to the sign of the user's metric."""
        return -quality if self.falling else quality

    def worded(self, quality: float) -> str:
        """Formats a quality of the search for people."""
        return f"{quality:.2f} dB" if self.decibels else f"{self.said(quality):.6g}"


def recipe_text(tuned: Tuned) -> str:
    """Returns a recipe file: the rules that tuning found, each with its effect, before the recipe's own."""
    found, recipe = tuned.found, tuned.recipe
    builtin = is_builtin(recipe)
    start, end = tuned.weight_bytes
    qualities = f"{tuned.worded(found.start.quality)} -> {tuned.worded(found.measured.quality)}"
    compensated = any(s.get("compensation") for s in tuned.settings.values())
    kind = "recurrent weights" if tuned.rest == REST_FLOAT else "weights"
    head = [
        f"# {recipe.name}, tuned: {start} -> {end} bytes of {kind}, {qualities}.",
        *([f"# With --rest {tuned.rest}; lowering needs it, too."] if tuned.rest != REST_FLOAT else []),
        *(["# With the statistics of a calibration; lowering needs them, too (--stats)."] if compensated else []),
        f"name = {toml(f'{recipe.name}-tuned')}",
        f"summary = {toml(f'{recipe.name}, tuned for one model')}",
        f"base = {toml(recipe.name)}" if builtin else f"kind = {toml(recipe.kind)}",
    ]
    blocks = ["\n".join(head)]
    last = {s.unit: s for s in found.steps}
    for number, unit in enumerate(tuned.units):
        if unit.point in tuned.settings:
            step = last[number]
            note = (
                f"# When this was chosen: cost {step.cost_before} -> {step.result.cost}, "
                f"{tuned.worded(step.quality_before)} -> {tuned.worded(step.result.quality)}."
            )
            rules = [rule_text(glob.escape(point), tuned.settings[point]) for point in unit.points]
            blocks.append("\n\n".join([f"{note}\n{rules[0]}", *rules[1:]]))
    if not builtin:
        blocks += [rule_text(r.points, r.settings) for r in recipe.rules]
    return "\n\n".join(blocks) + "\n"
