"""Writes a seed corpus for the fuzzer: small models, each with every way of lowering it in turn.

python fuzz/make_corpus.py FOLDER
"""

from __future__ import annotations

import sys
from pathlib import Path

from target import WAYS

TINY = Path(__file__).resolve().parents[1] / "models" / "tiny"


def main(folder: Path) -> None:
    """Writes the corpus."""
    folder.mkdir(parents=True, exist_ok=True)
    models = [path.read_bytes() for path in sorted(TINY.glob("*.onnx"))]
    for k, model in enumerate(models):
        (folder / f"seed_{k:03}").write_bytes(bytes([k % len(WAYS)]) + model)
    print(f"{len(models)} seeds in {folder}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
