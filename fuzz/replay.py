"""Lowers inputs of the fuzzer again and says what comes of each.

python fuzz/replay.py FILE...
"""

from __future__ import annotations

import sys
import traceback
from pathlib import Path

from target import Target


def main(paths: list[Path]) -> int:
    """Exit code 1 if a defect is left."""
    target, left = Target(), 0
    for path in paths:
        refused = target.refused
        try:
            target.lower(path.read_bytes())
            print(f"{path}: {'refused' if target.refused > refused else 'lowered'}")
        except Exception:
            left += 1
            print(f"{path}: {traceback.format_exc()}")
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(main([Path(p) for p in sys.argv[1:]]))
