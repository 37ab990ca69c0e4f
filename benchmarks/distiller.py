"""The seven rows of Distiller's LSTM notebook on WikiText-2: from float to everything in int8 with averaged ranges.

python benchmarks/distiller.py MODELS_FOLDER DATA_FOLDER [--rows GLOB ...] [--limit STEPS] [--json OUT.json] [--resume]

Model and data are those of `perplexity.py`; perplexity is measured on the validation text, as in the notebook, in 10
streams and pieces of 35 steps. The published figures are for another model (2 layers of 1500, trained with dropout), so
only ratios to float are comparable. docs/from_distiller.md lists the other differences.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper
from perplexity import Split, Statistics, measure, read_ids, streams
from support.layers import Array
from support.reporting import report
from support.variants import FLOAT, Variant, chosen

TEXT = "valid"
FLOAT_ELEMENTS = ("*.acc.bits=none", "*.activation.bits=none", "*.cell_state*.bits=none")
"""Keeps float what Distiller calls eltwise operations, and the activations between them: fp16 in the notebook."""


@dataclass(frozen=True)
class Row:
    """One row of the notebook.

    Attributes:
        variant: The quantization of the recurrent layers and, with `rest`, of encoder and decoder.
        published: The perplexity in the notebook.
        half: Whether encoder and decoder have float16 values.
    """

    variant: Variant
    published: float
    half: bool = False


ROWS = (
    Row(Variant(FLOAT), 86.79),
    Row(Variant("symmetric, per tensor", "distiller-sym", ("*.acc.limit=none",), True, "int8"), 104.20),
    Row(Variant("asymmetric, per channel, clipped to 6", "distiller-asym", (), True, "int8"), 100.45),
    Row(Variant("fp16", "fp16"), 86.80, half=True),
    Row(Variant("int8 matmuls, fp16 for the rest", "distiller-asym", FLOAT_ELEMENTS, True), 86.77, half=True),
    Row(Variant("AVG, fp16 encoder and decoder", "distiller-avg", (), True), 88.96, half=True),
    Row(Variant("AVG, everything int8", "distiller-avg", (), True, "int8"), 88.85),
)


def with_half_tables(model: onnx.ModelProto, names: tuple[str, ...] = ("e.weight", "d.bias")) -> onnx.ModelProto:
    """Returns a copy whose encoder and decoder have the nearest float16 values, as floats."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for tensor in copy.graph.initializer:
        if tensor.name in names:
            rounded: Array = numpy_helper.to_array(tensor).astype(np.float16).astype(np.float32)
            tensor.CopyFrom(numpy_helper.from_array(rounded, tensor.name))
    return copy


def table(measured: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns the rows with their ratios to float, next to those of the notebook."""
    published = {row.variant.label: row.published for row in ROWS}
    reference = next(r[TEXT] for r in measured if r["model"] == FLOAT)
    return [
        {
            "model": r["model"],
            "perplexity": f"{r[TEXT]:.2f}",
            "to float": f"{r[TEXT] / reference:.4f}",
            "published": f"{published[r['model']]:.2f}",
            "published, to float": f"{published[r['model']] / published[FLOAT]:.4f}",
            "form": r["form"],
        }
        for r in measured
    ]


def main() -> None:
    """Measures, prints, writes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", type=Path, metavar="MODELS_FOLDER")
    parser.add_argument("data", type=Path, metavar="DATA_FOLDER")
    parser.add_argument("--rows", nargs="+", default=[], metavar="GLOB", help="labels; the float row is always there")
    parser.add_argument("--limit", type=int, metavar="STEPS", help="that many steps of the text")
    parser.add_argument("--calibration", type=int, default=40, metavar="N", help="pieces of training text, default 40")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--resume", action="store_true", help="keep the rows that the JSON file's neighbour has")
    a = parser.parse_args()
    model = onnx.load(a.models / "wikitext2_lm" / "wikitext2_lm.onnx")
    split, half = Split(model), Split(with_half_tables(model))
    folder = a.data / "wikitext-2"
    texts = {TEXT: streams(read_ids(folder, TEXT))}
    statistics = Statistics(split, folder, a.calibration)
    raw = a.json.with_suffix(".rows.json") if a.json else None
    rows = json.loads(raw.read_text()) if a.resume and raw is not None and raw.exists() else []
    wanted = {v.label for v in chosen(a.rows, [row.variant for row in ROWS])}
    for row in ROWS:
        if row.variant.label not in wanted or row.variant.label in {r["model"] for r in rows}:
            continue
        rows.append(measure(row.variant, half if row.half else split, texts, statistics, a.threads, a.limit))
        print(rows[-1], flush=True)
        if raw is not None:
            raw.write_text(json.dumps(rows, indent=2) + "\n")
    labels = [row.variant.label for row in ROWS]
    rows.sort(key=lambda r: labels.index(r["model"]))
    report("Distiller's seven rows, WikiText-2 validation text", table(rows), a.json)


if __name__ == "__main__":
    main()
