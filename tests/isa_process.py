"""A Python process in which the native library uses an instruction set that the environment chooses."""

from __future__ import annotations

import os
import subprocess
import sys

from kernel_calls import library_of_tests


def run_with_isa(isa: str, script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs a script with `RNNQC_ISA`; what it prints is text. Only the library of the tests has the reference."""
    library = {"RNNQC_LIBRARY": str(library_of_tests())} if isa == "reference" else {}
    return subprocess.run(
        [sys.executable, "-c", script, *arguments],
        env={**os.environ, **library, "RNNQC_ISA": isa},
        capture_output=True,
        text=True,
        check=False,
    )
