"""The planted errors of the kernels name places that exist.

What this would catch: an error that an edit of the sources has left without its place, so that nobody plants it any
more. `scripts/planted_kernel_defects.py` plants them.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_every_error_has_one_place() -> None:
    script = ROOT / "scripts" / "planted_kernel_defects.py"
    done = subprocess.run([sys.executable, str(script), "--check"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.split()[0]) >= 25
