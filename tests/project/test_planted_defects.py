"""Every defect that scripts/planted_defects.py plants has its place in the sources.

What this would catch: a source that was changed, so that nobody knows any more whether its tests would find the defect.
A moved or reworded text is to be put right in `tests/planted_defects`.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_every_planted_defect_has_its_place() -> None:
    command = [sys.executable, ROOT / "scripts" / "planted_defects.py", "--check"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
