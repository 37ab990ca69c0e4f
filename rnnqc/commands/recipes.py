"""`rnnqc recipes`: lists recipes, points and keys."""

from __future__ import annotations

import argparse

from rich.table import Table

from rnnqc.commands.common import OK, Commands
from rnnqc.commands.terminal import escape, out


def add(commands: Commands) -> None:
    """Adds the command's parser."""
    parser = commands.add_parser("recipes", help="list recipes, quantization points and keys")
    parser.add_argument("recipe", nargs="?", metavar="NAME", help="print the rules of one recipe")
    parser.add_argument("--markdown", action="store_true", help="the recipes alone, as a table for documents")
    parser.set_defaults(command=run)


def run(a: argparse.Namespace) -> int:
    """Runs the command; the exit code."""
    from rnnqc.cells.types import CELL_TYPES, all_points
    from rnnqc.passes.analysis.custom_cell import MEANINGS
    from rnnqc.recipes.keys import KEYS
    from rnnqc.recipes.recipe import builtin_recipes, recipe_text

    if a.recipe:
        print(recipe_text(a.recipe), end="")
        return OK
    if a.markdown:
        print("| recipe | what it is |\n|---|---|")
        for recipe in builtin_recipes():
            print(f"| `{recipe.name}` | {recipe.summary} |")
        return OK
    table = Table("recipe", "summary", box=None, pad_edge=False)
    for recipe in builtin_recipes():
        table.add_row(recipe.name, escape(recipe.summary))
    out(table)
    out("\nQuantization points, below a cell's name (as in `--set '*.W.weight.bits=4'`):")
    table = Table("point", "of", "meaning", box=None, pad_edge=False)
    for name, types in all_points().items():
        of = "" if len(types) == len(CELL_TYPES) else ", ".join(t.op for t in types)
        meanings = dict.fromkeys(p.meaning for t in types for p in t.points if p.name == name)
        table.add_row(name, of, "; ".join(meanings))
    out(table)
    out("\nOf custom cells, below the name of the loop (`rnnqc inspect --json` lists them):")
    table = Table("point", "meaning", box=None, pad_edge=False)
    for name, meaning in MEANINGS:
        table.add_row(escape(name), meaning)
    out(table)
    out("\nKeys:")
    table = Table("key", "values", "meaning", box=None, pad_edge=False)
    for name, key in KEYS.items():
        table.add_row(name, key.accepts, key.meaning)
    out(table)
    return OK
