"""The native library and Python on an emulated arm64 processor.

`RNNQC_ARM64_PYTHON` names an arm64 Python that this machine can start: `scripts/arm64_python.sh FOLDER` makes one.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.runs.commands import HANGS

ROOT = Path(__file__).resolve().parents[2]
TOOLCHAIN = ROOT / "runtime_ops" / "cmake" / "aarch64-linux-gnu.cmake"

LIBRARY = "librnnqc_ops.so"

# Processors of qemu: with all it has, matrix products (Armv8.6) too; with dot products (Armv8.2); without either.
MATRIX_PRODUCTS = "max"
DOT_PRODUCTS = "neoverse-n1"
NO_DOT_PRODUCTS = "cortex-a53"

_COMPILER = shutil.which("aarch64-linux-gnu-g++")
_CMAKE = shutil.which("cmake", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]))
_PYTHON = os.environ.get("RNNQC_ARM64_PYTHON")

NO_COMPILER = (
    None
    if _COMPILER and _CMAKE
    else "NOT BUILT for arm64: aarch64-linux-gnu-g++ (Debian: g++-aarch64-linux-gnu) or cmake is absent"
)
NO_PROCESSOR = NO_COMPILER or (
    None
    if _PYTHON
    else "NOT TESTED on arm64: set RNNQC_ARM64_PYTHON to what scripts/arm64_python.sh FOLDER prints (Debian: qemu-user)"
)


def build_library(folder: Path) -> None:
    """Cross-compiles the native library in `folder`, with warnings as errors."""
    assert _CMAKE is not None
    configure = ["-S", str(ROOT / "runtime_ops"), "-B", str(folder), "-DRNNQC_WERROR=ON", "-DRNNQC_TESTS=ON"]
    for arguments in ([*configure, f"-DCMAKE_TOOLCHAIN_FILE={TOOLCHAIN}"], ["--build", str(folder), "--parallel", "2"]):
        done = subprocess.run([_CMAKE, *arguments], capture_output=True, text=True, check=False, timeout=HANGS)
        assert done.returncode == 0, done.stdout + done.stderr


def run(library: Path, processor: str, *arguments: str, **environment: str) -> str:
    """Runs the emulated Python in the checkout; returns its standard output.

    Raises:
        AssertionError: it failed; the message is its output.
    """
    assert _PYTHON is not None
    inherited = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYTHON", "PYTEST", "RNNQC_", "QEMU_"))
    }
    own = {"RNNQC_LIBRARY": str(library), "QEMU_CPU": processor, "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [_PYTHON, *arguments],
        cwd=ROOT,
        env=inherited | own | environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=HANGS,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
