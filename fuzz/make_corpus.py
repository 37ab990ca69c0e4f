"""Writes a seed corpus for the fuzzer: the tiny models and generated ones, float and lowered, each with a way in turn.

python fuzz/make_corpus.py FOLDER
"""

from __future__ import annotations

import sys
from pathlib import Path

from target import WAYS

import rnnqc
from rnnqc import testing
from rnnqc.testing.recurrences import FORMS

TINY = Path(__file__).resolve().parents[1] / "models" / "tiny"


GENERATED = 400
LARGEST = 16000


def seeds() -> list[bytes]:
    """Models as bytes."""
    tiny = [path.read_bytes() for path in sorted(TINY.glob("*.onnx"))]
    lowered = [rnnqc.lower(rnnqc.Model.load(path).proto, form=form).proto for path in TINY.glob("lstm_[fs]*.onnx")
               for form in ("fused", "integer", "qcdq")]  # fmt: skip
    written = [
        testing.RecurrenceCase(op=op, form=form, I=2, H=3, time=2) for op in ("LSTM", "GRU", "RNN") for form in FORMS
    ]
    made = [
        *(case.model() for case in written),
        *(testing.generate(seed).model() for seed in range(GENERATED)),
        *lowered,
    ]
    return [m for m in (*tiny, *(proto.SerializeToString() for proto in made)) if len(m) <= LARGEST]


def main(folder: Path) -> None:
    """Writes the corpus."""
    folder.mkdir(parents=True, exist_ok=True)
    models = seeds()
    for k, model in enumerate(models):
        (folder / f"seed_{k:03}").write_bytes(bytes([k % len(WAYS)]) + model)
    print(f"{len(models)} seeds in {folder}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
