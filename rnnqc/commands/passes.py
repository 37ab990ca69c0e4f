"""`rnnqc passes`: lists the passes."""

from __future__ import annotations

import argparse

from rnnqc.commands.shared.arguments import OK, Commands, add_command
from rnnqc.commands.shared.terminal import new_table, out


def add(commands: Commands) -> None:
    """Adds the command's parser."""
    parser = add_command(
        commands,
        "passes",
        "list the passes of the default pipeline",
        "rnnqc passes",
    )
    parser.add_argument("--markdown", action="store_true", help="as a table for documents")
    parser.set_defaults(command=run)


def run(a: argparse.Namespace) -> int:
    """Runs the command; returns the exit code."""
    from rnnqc.passes.pipeline import every_pass
    from rnnqc.recipes.recipe import load_recipe

    infos = [p.info for p in every_pass(load_recipe("int8"), load_recipe("weight-only-int8"))]
    if a.markdown:
        print("| pass | does | may change |\n|---|---|---|")
        for info in infos:
            print(f"| `{info.name}` | {info.summary} | {info.numerics} |")
        return OK
    table = new_table("pass", "does", "requires", "establishes", "may change")
    for info in infos:
        names = [", ".join(sorted(p.value for p in s)) for s in (info.requires, info.sets)]
        table.add_row(info.name, info.summary, *names, str(info.numerics))
    out(table)
    return OK
