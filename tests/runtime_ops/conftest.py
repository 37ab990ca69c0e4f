"""Fixtures for the native library: its symbols."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from rnnqc import runtime_ops


@pytest.fixture(scope="session")
def library_symbols() -> set[str]:
    """Names the library defines and exports."""
    nm = shutil.which("nm")
    if nm is None:
        pytest.skip("nm is not installed: exported symbols cannot be listed")
    command = [nm, "-D", "--defined-only", str(runtime_ops.library_path())]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    return {line.split()[-1] for line in lines}
