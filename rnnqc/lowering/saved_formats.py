"""Saves the formats of a lowering as a recipe file: every point with its scale, so that lowering needs no data."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from rnnqc.errors import UsageError
from rnnqc.lowering.reports.report import Lowered
from rnnqc.proto.files import write_atomically
from rnnqc.recipes.recipe import is_builtin
from rnnqc.recipes.recipe_record import RECIPE_KEY, read_record
from rnnqc.recipes.rules import Rule, rule_text, rules_digest, toml

STATISTICS = ".stats.json"


def save_formats(lowered: Lowered, path: str | os.PathLike[str]) -> None:
    """Writes a recipe file with every format of a lowering, and a copy of its statistics beside it.

    Args:
        lowered: A model that a recipe has lowered now.
        path: The file, which has to end in `.toml`; statistics go to `<path>.stats.json`.

    Raises:
        UsageError: The model was not lowered by a recipe, or the name is not that of a recipe file.
        CompileError: A file cannot be written.
    """
    target = Path(path)
    if target.suffix != ".toml":
        raise UsageError(f"{target}: no name of a recipe file.", supported="names that end in .toml")
    text, statistics = formats_text(lowered, f"{target.name}{STATISTICS}"), lowered.statistics
    if statistics is not None:
        statistics.save(target.with_name(f"{target.name}{STATISTICS}"))
    write_atomically(target, text.encode())


def formats_text(lowered: Lowered, statistics: str) -> str:
    """Returns the recipe file; `statistics` is the name of the file with the statistics, if there are any."""
    origin = read_record(lowered.model.metadata, "The lowered model")
    if origin is None or not lowered.report.is_changed:
        raise UsageError(
            "Formats of a model that no recipe has quantized now.",
            supported="a float model with recurrent layers, lowered by a recipe",
            action="lower the float model; formats that a file has already, such as an export of Brevitas, are what "
            "rnnqc inspect LOWERED prints",
        )
    recipe, held = origin.recipe, lowered.statistics is not None
    rules = [(p, p.rule_of(path)) for path, p in lowered.formats.items()]
    more = recipe.rules[: recipe.overrides] if is_builtin(recipe) else _unsaid(recipe.rules, [r for _, r in rules])
    every = [*(r for _, r in rules), *more]
    head = [
        f"# Every number format of a model lowered with {recipe.name!r}. Without an edit the lowered file is the same.",
        *([f"# {statistics} is read for what is no format: how weights were rounded together."] if held else []),
        f"name = {toml(f'{recipe.name}-formats')}",
        f"summary = {toml(f'{recipe.name}, the formats of one model')}",
        f"base = {toml(recipe.name)}" if is_builtin(recipe) else f"kind = {toml(recipe.kind)}",
        *([f"statistics = {toml(statistics)}"] if held else []),
        f"origin = {toml(lowered.model.metadata[RECIPE_KEY])}",
        f"digest = {toml(rules_digest(every))}",
    ]
    blocks = ["\n".join(head)]
    for point, rule in rules:
        static = point.format.static
        limits = ": {:g} .. {:g}".format(*static.range) if static is not None and len(static.scale) == 1 else ""
        note = f"# {point.source}{limits}\n" if point.source else ""
        blocks.append(note + rule_text(rule.points, rule.settings))
    blocks += [rule_text(r.points, r.settings) for r in more]
    return "\n\n".join(blocks) + "\n"


def _unsaid(rules: Iterable[Rule], before: Iterable[Rule]) -> list[Rule]:
    """Removes from `rules` what rules `before` them set for the same glob, as in an edited formats file."""
    said = {r.points: r.settings for r in before}
    left = [
        replace(r, settings={k: v for k, v in r.settings.items() if k not in said.get(r.points, {})}) for r in rules
    ]
    return [r for r in left if r.settings]
