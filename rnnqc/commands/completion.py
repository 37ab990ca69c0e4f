"""`rnnqc completion`: prints the script that makes a shell complete commands, options and files."""

from __future__ import annotations

import argparse

from rnnqc.commands.shared.arguments import OK, Commands, add_command
from rnnqc.errors import UsageError

SHELLS = ("bash", "zsh", "fish")
INSTALL = "pip install shtab"

_FILES = {
    **dict.fromkeys(("onnx", "npz", "json", "toml", "html", "MODEL", "DATA"), "FILE"),
    **dict.fromkeys(("DIR", "DIR2"), "DIRECTORY"),
}
"""Whether an argument is a file or a folder, by its placeholder in the help or the suffix of that."""


def add(commands: Commands) -> None:
    """Adds the command's parser."""
    parser = add_command(
        commands,
        "completion",
        f"print the completion script of a shell; needs shtab ({INSTALL})",
        "rnnqc completion bash > ~/.local/share/bash-completion/completions/rnnqc",
        "rnnqc completion zsh > ~/.zfunc/_rnnqc",
        "rnnqc completion fish > ~/.config/fish/completions/rnnqc.fish",
    )
    parser.add_argument("shell", choices=SHELLS, metavar="SHELL", help=", ".join(SHELLS))
    parser.set_defaults(command=run)


def run(a: argparse.Namespace) -> int:
    """Runs the command; returns the exit code."""
    try:
        import shtab
    except ImportError as error:
        raise UsageError("shtab is not installed.", supported="with shtab", action=INSTALL) from error
    for command in a.parsers.values():
        for action in command._actions:
            kind = _FILES.get(str(action.metavar).rpartition(".")[2].rpartition("|")[2])
            if kind is not None:
                action.complete = getattr(shtab, kind)
    if a.shell not in shtab.SUPPORTED_SHELLS:
        raise UsageError(
            f"the installed shtab has no {a.shell}.", supported=", ".join(shtab.SUPPORTED_SHELLS), action=INSTALL
        )
    print(shtab.complete(a.parser, a.shell))
    return OK
