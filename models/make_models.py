"""Regenerate the models and arrays of this folder and the tables of its README.

Without an option: the tiny models and the tables. With `--data` also the arrays (needs scikit-learn; the text depends
on the Python release), with `--train` also the trained models (needs torch). `--check` writes nothing and fails if a
tiny model or a table would change.
"""

from __future__ import annotations

import argparse
import hashlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import onnxruntime as ort
from model_scores import FOLDER, SCORES
from tiny_models import TINY_MODELS

README = FOLDER / "README.md"
TRAINED = {
    "digits_lstm.onnx": "LSTM 8 -> 64 and Linear, batch first, dynamic batch, no states",
    "pydoc_lstm.onnx": "tied embedding 112, two LSTM layers 112, dynamic time and batch, states in and out",
}
ARRAYS = {
    "digits_train.npz": "`x` float [n,8,8], `label` int64 [n]",
    "digits_calibration.npz": "`x` float [8 feeds,32,8,8], from the training images",
    "digits_test.npz": "`x` float [n,8,8], `label` int64 [n]",
    "pydoc_train.npz": "`codes` uint8 [n], `vocabulary` int32: code -> Unicode code point",
    "pydoc_calibration.npz": "`tokens` int64 [4 feeds,128,8], `h0`, `c0` zeros [4 feeds,2,8,112], training text",
    "pydoc_test.npz": "`codes`, `vocabulary` as above",
}


def tiny_files() -> dict[Path, bytes]:
    """Path and serialized bytes of every tiny model."""
    return {
        FOLDER / "tiny" / f"{tiny.name}.onnx": tiny.build().SerializeToString(deterministic=True)
        for tiny in TINY_MODELS
    }


def score(path: Path) -> str:
    """Measure a trained model in float on its test arrays, written as in the README."""
    measure, text = SCORES[path.name]
    return text.format(measure(ort.InferenceSession(path, providers=["CPUExecutionProvider"])))


def readme() -> str:
    """The README with its tables made anew from the files in this folder."""
    text = README.read_text(encoding="utf-8")
    for name, rows in {"trained": _trained_rows(), "arrays": _array_rows(), "tiny": _tiny_rows()}.items():
        block = re.compile(rf"(<!-- {name}:begin -->\n).*?(<!-- {name}:end -->)", re.DOTALL)
        table = "\n".join("| " + " | ".join(row) + " |" for row in rows) + "\n"
        match = block.search(text)
        if match is None:
            raise SystemExit(f"{README}: found no block from '<!-- {name}:begin -->' to its end; restore it")
        text = text[: match.end(1)] + table + text[match.start(2) :]
    return text


def _trained_rows() -> Iterator[list[str]]:
    yield ["file", "what it exercises", "figure of the float model", "bytes", "sha256"]
    yield ["---"] * 5
    for name, exercises in TRAINED.items():
        yield [f"`{name}`", exercises, score(FOLDER / name), *_size_and_hash(FOLDER / name)]


def _array_rows() -> Iterator[list[str]]:
    yield ["file", "arrays", "bytes", "sha256"]
    yield ["---"] * 4
    for name, arrays in ARRAYS.items():
        yield [f"`{name}`", arrays, *_size_and_hash(FOLDER / name)]


def _tiny_rows() -> Iterator[list[str]]:
    yield ["file", "what it exercises", "bytes", "sha256"]
    yield ["---"] * 4
    for tiny in TINY_MODELS:
        name = f"tiny/{tiny.name}.onnx"
        yield [f"`{name}`", tiny.exercises, *_size_and_hash(FOLDER / name)]


def _size_and_hash(path: Path) -> tuple[str, str]:
    data = path.read_bytes()
    return str(len(data)), f"`{hashlib.sha256(data).hexdigest()}`"


def _check() -> int:
    files = tiny_files()
    changed = [path for path, data in files.items() if not path.is_file() or path.read_bytes() != data]
    changed += sorted(set((FOLDER / "tiny").glob("*.onnx")) - set(files))
    if not changed and README.read_text(encoding="utf-8") != readme():
        changed.append(README)
    for path in changed:
        print(f"{path.relative_to(FOLDER)}: differs from what make_models.py makes; run it without --check")
    return 1 if changed else 0


def _write_arrays() -> None:
    import numpy as np
    from model_data import digits, pydoc

    for name, arrays in (digits() | pydoc()).items():
        np.savez_compressed(FOLDER / name, allow_pickle=False, **arrays)


def main() -> int:
    """Run the command line; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", action="store_true", help="also rebuild the arrays")
    parser.add_argument("--train", action="store_true", help="also train and export the trained models")
    parser.add_argument("--check", action="store_true", help="write nothing, exit 1 if something would change")
    options = parser.parse_args()
    if options.check:
        return _check()
    if options.data:
        _write_arrays()
    if options.train:
        from trained_models import train

        for name in TRAINED:
            train(name.removesuffix("_lstm.onnx"), FOLDER)
    (FOLDER / "tiny").mkdir(exist_ok=True)
    for path, data in tiny_files().items():
        path.write_bytes(data)
    README.write_text(readme(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
