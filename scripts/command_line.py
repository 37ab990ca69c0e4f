"""Prints the reference of the command line as Markdown, generated from the parser.

python scripts/command_line.py > command_line.md
"""

from __future__ import annotations

import argparse
import html
import os
import re
from collections.abc import Iterator

from rnnqc.commands.program import _parsers

INTRODUCTION = """# Command line

`rnnqc COMMAND --help` prints the same. Options that take several values, such as `--set`, may also be repeated. Exit
codes: 0 done, 1 a check failed, 2 bad usage or bad input, 3 `--strict` found something that stays float
([more](what_is_lowered.md#exit-codes)).
"""


def _cell(text: str) -> str:
    """Returns text for a cell of a table: quoted names become code, nothing else is markup."""
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(p if p.startswith("`") else re.sub(r"([*_<>\[\]])", r"\\\1", p) for p in parts).replace("|", "\\|")


def _name(action: argparse.Action) -> str:
    """Returns an argument as it is written on the command line."""
    value = action.metavar or ("|".join(map(str, action.choices)) if action.choices else "")
    value = value if isinstance(value, str) else " ".join(value)
    if not action.option_strings:
        return value or action.dest
    takes = action.nargs != 0
    return ", ".join(action.option_strings) + (f" {value or action.dest.upper()}" if takes else "")


def _rows(command: argparse.ArgumentParser) -> Iterator[str]:
    for action in command._actions:
        if action.dest == "help" or action.help == argparse.SUPPRESS:
            continue
        words = _cell(" ".join((action.help or "").replace("%%", "%").split()))
        required = "**required**" if action.option_strings and action.required else ""
        name = html.escape(_name(action)).replace("|", "&#124;")  # a bar would end the cell
        yield f"| <code>{name}</code> | {'; '.join(filter(None, (required, words)))} |"


def _section(name: str, summary: str, command: argparse.ArgumentParser) -> Iterator[str]:
    usage = command.format_usage().rstrip().removeprefix("usage: ").replace("\n" + " " * len("usage: "), "\n")
    text = (command.description or summary).strip()
    first = text[:1].upper() + text[1:] + ("" if text.endswith((".", ":")) else ".")
    yield from (f"## rnnqc {name}", "", _cell(first), "", "```text", usage, "```", "")
    rows = list(_rows(command))
    if rows:
        yield from ("| argument | meaning |", "|---|---|", *rows, "")
    if command.epilog:
        yield from ("```text", command.epilog.strip(), "```", "")


def page() -> str:
    """Returns the whole page."""
    os.environ["COLUMNS"] = "84"  # argparse wraps at this width on any terminal
    parser, commands = _parsers()
    (subparsers,) = (a for a in parser._actions if isinstance(a, argparse._SubParsersAction))
    lines = []
    for choice in subparsers._choices_actions:
        lines += _section(choice.dest, choice.help or "", commands[choice.dest])
    return INTRODUCTION + "\n" + "\n".join(lines)


if __name__ == "__main__":
    print(page())
