"""Finds overrides of a recipe that match nothing, or that have no effect on any format."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from itertools import zip_longest
from typing import Any

import numpy as np

from rnnqc.cells.base import Cell
from rnnqc.counterparts import FORMATS, or_counterpart
from rnnqc.errors import CompileError, UsageError
from rnnqc.evaluation.numerics import same_bits
from rnnqc.formats.point_format import CHAINED, EMBEDDED, ROWS, PointFormat
from rnnqc.formats.rounding import Rounding
from rnnqc.recipes.keys import KEYS_OF_RULES, RANGE_KEYS, Settings, keys_of
from rnnqc.recipes.recipe import Points, Recipe
from rnnqc.recipes.rules import Rule, override_text

DATA_KEYS = ("compensation", "bias_correction", "equalize")


@dataclass(frozen=True)
class Resolution:
    """The result of resolving a recipe.

    Attributes:
        settings: The settings of each point.
        formats: The `PointFormat` of each point, without options that have no effect there; the name of a float type
            that weights are stored in; or a list of formats, one for each use.
        others: Other results of the recipe.
        written: For each cell everything that determines its part of the file, cheapest first; for a cell without an
            entry any other format changes the file.
    """

    settings: Mapping[str, Settings]
    formats: Mapping[str, Any]
    others: Any = None
    written: Mapping[str, Callable[[], Iterator[Any]]] = field(default_factory=dict)


def check_overrides(recipe: Recipe, cells: Points, elsewhere: Sequence[str] = ()) -> None:
    """Raises UsageError for an override that matches no quantization point of the named cells.

    Args:
        recipe: With overrides.
        cells: The cells.
        elsewhere: Paths of points outside cells.
    """
    missed = recipe.unmatched(cells, elsewhere)
    if missed:
        first = _most_like(missed[0], cells)
        points = list(cells[first])[:3] if isinstance(cells, Mapping) else ["W.weight", "R.weight"]
        if not points:
            raise UsageError(
                f"No quantization point matches {missed[0]!r}: nothing in {first!r} can be quantized.",
                supported="overrides of what is quantized",
                action="leave the override out; `rnnqc inspect` says why the layer stays float",
            )
        raise UsageError(
            f"No quantization point matches {missed[0]!r}.",
            supported="points such as " + ", ".join([*(f"{first}.{p}" for p in points), *elsewhere[:3]]),
            action=or_counterpart(
                "`rnnqc inspect` lists the cells, `rnnqc recipes --points` the points", missed[0], FORMATS
            ),
        )
    for glob, key, kind in recipe.without_effect(cells):
        raise UsageError(
            f"{glob}.{key}: no quantization point that matches understands {key!r}.",
            supported=f"{', '.join(keys_of(kind))} for {kind!r}",
            action="leave the override out",
        )


def _most_like(glob: str, cells: Collection[str]) -> str:
    """The first cell whose name contains most of the words of a pattern."""
    words = [w for w in re.split(r"[^a-z0-9_]+", glob.lower()) if w]
    return max(cells, key=lambda cell: sum(w in cell.lower() for w in words))


def points_of_types(cells: Sequence[Cell]) -> dict[str, list[str]]:
    """Maps each cell's name to the quantization points of its type."""
    return {c.name: [p.name for p in c.type.points] for c in cells}


def effects_of_overrides(recipe: Recipe, resolve: Callable[[Recipe], Resolution], calibrated: bool) -> dict[int, str]:
    """Returns for each override that matches a point why it has no effect; "" if it has one.

    Recipes with scales of an earlier lowering are skipped: these hide the effect of that lowering's overrides.

    Args:
        recipe: A recipe with overrides; only those of a single key are examined.
        resolve: Resolves a recipe.
        calibrated: Whether statistics exist.
    """
    overrides = recipe.rules[: recipe.overrides]
    if not overrides or recipe.held:
        return {}
    made = resolve(recipe)
    found: dict[int, str] = {}
    for number, rule in enumerate(overrides):
        if len(rule.settings) != 1:
            continue
        (key,) = rule.settings
        matched = [p for p in made.settings if rule.matches(p) and key in keys_of(p)]
        fronts = {p: _in_front(p, key, overrides[:number]) for p in matched}
        points = [p for p in matched if not fronts[p]]
        if matched and not points:
            first = matched[0]
            found[number] = f"{first}: {fronts[first]!r} stands in front of it, and the first that matches counts"
        elif points:
            found[number] = _why(key, points, made, resolve, recipe.without_override(number), calibrated)
    return found


def _in_front(point: str, key: str, rules: Sequence[Rule]) -> str:
    """The override among `rules` that sets the key of the point; "" for none."""
    texts = (override_text(r.points, key, r.settings[key]) for r in rules if key in r.settings and r.matches(point))
    return next(texts, "")


def scales_alone(held: Any) -> Any:
    """Returns a format of weights without settings that only affect their quantized values."""
    if not isinstance(held, PointFormat):
        return held
    if held.format is not None:
        plain = replace(
            held.format, signed=True, narrow=False, zero_point=0, zero_points=(), rounding=Rounding.HALF_EVEN
        )
        held = replace(held, format=plain)
    return replace(held, compensation=False, bias_correction=False, shift_limits=False)


def idle_overrides(recipe: Recipe, effects: Sequence[Mapping[int, str]]) -> list[str]:
    """Returns a sentence for each override that has no effect in any pass."""
    texts = []
    for number, rule in enumerate(recipe.rules[: recipe.overrides]):
        reasons = [e[number] for e in effects if number in e]
        if reasons and all(reasons):
            ((key, value),) = rule.settings.items()
            texts.append(f"override {override_text(rule.points, key, value)!r} changes nothing: {reasons[0]}.")
    return texts


def _why(
    key: str,
    points: Sequence[str],
    made: Resolution,
    resolve: Callable[[Recipe], Resolution],
    without: Recipe,
    calibrated: bool,
) -> str:
    try:
        other = resolve(without)
    except CompileError:  # without the override there are no formats
        return ""
    unlike = _unlike(made.formats, other.formats)
    if made.others != other.others or not _are_written_alike(unlike, made, other):
        return ""
    before = {p: other.settings.get(p, {}) for p in points}
    reasons = [_reason(key, p, made, before[p], calibrated) for p in points]
    what = "the numbers in the file" if unlike else "the number formats"
    first = next((r for r in reasons if r), f"{what} are the same with it and without")
    return f"{points[reasons.index(first)] if first in reasons else points[0]}: {first}"


def _unlike(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """The points whose formats differ."""
    return [p for p in dict.fromkeys((*one, *other)) if one.get(p) != other.get(p)]


def _are_written_alike(points: Collection[str], one: Resolution, other: Resolution) -> bool:
    """Whether the different formats of these points result in the same file."""
    cells = {p: next((c for c in one.written if p.startswith(f"{c}.")), "") for p in points}
    if not other.written.keys() >= set(cells.values()):
        return False
    return all(
        _are_same(a, b)
        for c in dict.fromkeys(cells.values())
        for a, b in zip_longest(one.written[c](), other.written[c]())
    )


def _are_same(one: Any, other: Any) -> bool:
    """Whether two values are equal; arrays bit for bit."""
    if one is other:
        return True
    if type(one) is not type(other):
        return False
    if isinstance(one, np.ndarray):
        return same_bits(one, other)
    if is_dataclass(one):
        return all(_are_same(getattr(one, f.name), getattr(other, f.name)) for f in fields(one))
    if isinstance(one, Mapping):
        return one.keys() == other.keys() and all(_are_same(v, other[k]) for k, v in one.items())
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(_are_same(a, b) for a, b in zip(one, other, strict=True))
    return bool(one == other)


def _reason(key: str, point: str, made: Resolution, before: Settings, calibrated: bool) -> str:
    """Why a key has no effect at one point; "" if unknown."""
    s, held = made.settings[point], made.formats.get(point)
    if before.get(key) == s.get(key) and (key in before or s.get(key) is None):
        return "the recipe says so already"
    if isinstance(held, str):
        return f"the weights are stored as {held}"
    if not isinstance(held, PointFormat) or held.is_float:
        return "the point is float"
    if key in DATA_KEYS and not calibrated:
        return "there is no calibration data"
    if s.get("same_as"):
        return f"it has the format of {s['same_as']!r} (same_as), unless same_as = none"
    if held.mode == CHAINED:
        return "it reads the quantized values of the layer before directly (chain), unless chain = false"
    if held.mode == EMBEDDED:
        return "it reads the quantized rows of the embedding directly (chain), unless chain = false"
    if held.on_grid:
        return "its values come quantized, in this format (chain), unless chain = false"
    if key == "bits" and s.get("table") and held.static is None:
        return "values of its table have no scale of their own, unless mode = static or a scale is given"
    if key == "rounded_output" and f"{point.rpartition('.')[0]}.cell_state" not in made.settings:
        return "its outputs are the states that it keeps"
    if key == "zero_point" and held.mode == ROWS:
        return "each row has a zero point of its own (mode = dynamic-row)"
    scaled = key in (*RANGE_KEYS, "share")
    if scaled and "scale" in s:
        return "its scale is given"
    if scaled and s.get("mode") in ("dynamic-row", "bounded", "activation", "product"):
        return f"its scale follows from mode = {s['mode']}"
    if key in KEYS_OF_RULES and s.get("range", "min-max") not in KEYS_OF_RULES[key]:
        return f"range = {s.get('range', 'min-max')} does not use it"
    return ""
