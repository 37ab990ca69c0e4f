"""The scripts of docs/dump.md."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "dump.md").read_text(encoding="utf-8")
TRACE, COMPARE = re.findall(r"^```python\n(.*?)^```", PAGE, re.M | re.S)


def run(script: str, folder: Path, *arguments: str) -> str:
    """Runs a script; returns its output."""
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments], cwd=folder, capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout
