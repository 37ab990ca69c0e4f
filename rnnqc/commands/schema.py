"""`rnnqc schema`: prints the JSON schema of a command's --json."""

from __future__ import annotations

import argparse
import json

from rnnqc.commands.shared.arguments import OK, Commands, add_command

NAMES = ("inspect", "lower", "verify", "evaluate", "bench", "tune", "report")


def add(commands: Commands) -> None:
    """Adds the command's parser."""
    parser = add_command(
        commands, "schema", "print the JSON schema of what a command gives with --json", "rnnqc schema verify"
    )
    parser.add_argument("of", choices=NAMES, metavar="COMMAND", help=", ".join(NAMES))
    parser.set_defaults(command=run)


def run(a: argparse.Namespace) -> int:
    """Runs the command; returns the exit code."""
    from rnnqc.commands.shared.schemas import schema

    print(json.dumps(schema(a.of), indent=2))
    return OK
