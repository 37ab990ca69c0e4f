"""`rnnqc recipes`: lists recipes, points and keys."""

from __future__ import annotations

import argparse

from rnnqc.commands.shared.arguments import OK, Commands, add_command
from rnnqc.commands.shared.terminal import escape, new_table, out


def add(commands: Commands) -> None:
    """Adds the command's parser."""
    parser = add_command(
        commands,
        "recipes",
        "list recipes, quantization points and keys",
        "rnnqc recipes",
        "rnnqc recipes int8",
        "rnnqc recipes --points",
    )
    parser.add_argument("recipe", nargs="?", metavar="NAME", help="print the rules of one recipe")
    parser.add_argument("--points", action="store_true", help="list quantization points, and the keys that rules set")
    parser.add_argument("--markdown", action="store_true", help="the recipes alone, as a table for documents")
    parser.set_defaults(command=run)


def run(a: argparse.Namespace) -> int:
    """Runs the command; returns the exit code."""
    from rnnqc.recipes.recipe import builtin_recipes, recipe_text

    if a.recipe:
        print(recipe_text(a.recipe), end="")
        return OK
    if a.markdown:
        print("| recipe | what it is |\n|---|---|")
        for recipe in builtin_recipes():
            print(f"| `{recipe.name}` | {recipe.summary} |")
        return OK
    if a.points:
        _print_points()
        return OK
    table = new_table("recipe", "summary")
    for recipe in builtin_recipes():
        table.add_row(recipe.name, escape(recipe.summary))
    out(table)
    out("\n`rnnqc recipes NAME` prints the rules of one, `rnnqc recipes --points` what rules can set.")
    return OK


def _print_points() -> None:
    """Prints the quantization points, and the keys."""
    from rnnqc.cells.types import CELL_TYPES, all_points
    from rnnqc.passes.analysis.custom_cell import MEANINGS
    from rnnqc.recipes.keys import KEYS

    out("Quantization points, below a cell's name (as in `--set '*.W.weight.bits=4'`):")
    table = new_table("point", "of", "meaning")
    for name, types in all_points().items():
        of = "" if len(types) == len(CELL_TYPES) else ", ".join(t.op for t in types)
        meanings = dict.fromkeys(p.meaning for t in types for p in t.points if p.name == name)
        table.add_row(name, of, "; ".join(meanings))
    out(table)
    out("\nOf custom cells, below the name of the loop (`rnnqc inspect --json` lists them):")
    table = new_table("point", "meaning")
    for name, meaning in MEANINGS:
        table.add_row(escape(name), meaning)
    out(table)
    out("\nKeys:")
    table = new_table("key", "values", "meaning")
    for name, key in KEYS.items():
        table.add_row(name, key.accepts, key.meaning)
    out(table)
