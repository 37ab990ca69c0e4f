"""Tests of the entry point: interrupts while the command is still being imported."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

MODEL = Path(__file__).resolve().parents[1] / "models" / "digits_lstm.onnx"
PROGRAM = """
import os, signal, sys

signal.signal(signal.SIGINT, signal.default_int_handler)  # shells let jobs in the background ignore it


class Interrupts:
    def find_spec(self, name, path=None, target=None):
        if name == sys.argv[1]:
            sys.argv[1] = ""
            os.kill(os.getpid(), signal.SIGINT)


from rnnqc.cli import main

sys.meta_path.insert(0, Interrupts())
code = main(sys.argv[2:])
assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
sys.exit(code)
"""


@pytest.mark.few(2)
@pytest.mark.parametrize("module", ["rnnqc.commands.program", "argparse", "numpy", "onnxruntime.capi", "rich.console"])
def test_an_interrupt_during_an_import(module: str, tmp_path: Path) -> None:
    """It ends the command in one line, whatever the module that is being imported makes of exceptions."""
    output = tmp_path / "o.onnx"
    command = ["lower", str(MODEL), "-o", str(output)]
    done = subprocess.run([sys.executable, "-c", PROGRAM, module, *command], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "rnnqc: interrupted\n")
    assert not output.exists()


def test_without_an_interrupt_the_handler_is_as_before() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM, "", "passes"], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
