"""Vitis AI's arithmetic on IMDb: powers of two, 16 and 8 bits, aligned cell tensors or not, floor or nearest rounding.

python benchmarks/vitis.py MODELS_FOLDER DATA_FOLDER [--reviews 500 5000] [--json OUT.json]

Accuracy, share of decisions as in float, and mean difference of the probability, over the first reviews of the test
data; calibrated on 50 reviews of the training data, in batches of 10.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from support.layers import Array
from support.reporting import report
from support.variants import FLOAT, Built, Variant, build
from tasks import Imdb, agreement

import rnnqc

CALIBRATION_REVIEWS = 50
NEAREST = ("*.weight.rounding=half_away", "*.bias.rounding=half_away", "*.rounding=half_even")
UNALIGNED = ("*.bias.same_as=input_product", "*.same_as=none")
ROWS = (
    Variant(FLOAT),
    Variant("W16A16, aligned, floor", "pow2-int16", (), True),
    Variant("W16A16, aligned, floor, exact gates", "pow2-int16", ("*.activation.table=exact",), True),
    Variant("W16A16, unaligned, floor", "pow2-int16", UNALIGNED, True),
    Variant("W16A16, aligned, to nearest", "pow2-int16", NEAREST, True),
    Variant("W16A16, unaligned, to nearest", "pow2-int16", (*UNALIGNED, *NEAREST), True),
    Variant("W8A16, aligned, floor", "pow2-w8a16", (), True),
    Variant("W8A16, unaligned, floor", "pow2-w8a16", UNALIGNED, True),
    Variant("W8A16, unaligned, to nearest", "pow2-w8a16", (*UNALIGNED, *NEAREST), True),
    Variant("W8A8, aligned, floor", "pow2-int8-floor", (), True),
    Variant("W8A8, aligned, to nearest", "pow2-int8-floor", NEAREST, True),
    Variant("W8A8, unaligned, floor", "pow2-int8-floor", UNALIGNED, True),
    Variant("W8A8, unaligned, to nearest", "pow2-int8", (), True),
)


def measure(models: Path, data: Path, counts: list[int], threads: int) -> list[dict[str, Any]]:
    """Returns one row for each of `ROWS`, with columns for each number of reviews."""
    task = Imdb(models, data, 1.0)
    task.tokens, task.labels = task.tokens[: max(counts)], task.labels[: max(counts)]
    task.other = task.other[:CALIBRATION_REVIEWS]
    model = onnx.load(task.models["model"])
    statistics = rnnqc.calibrate(model, task.calibration({})["model"])
    rows: list[dict[str, Any]] = []
    reference: Array | None = None
    for variant in ROWS:
        built: Built = build(variant, model, lambda: statistics, threads)
        got = task.outputs({"model": built.session})["prob"]
        reference = got if reference is None else reference
        row: dict[str, Any] = {"variant": variant.label}
        for count in counts:
            wanted, value = reference[:count], got[:count]
            row[f"{count}: accuracy"] = f"{100 * float(np.mean((value > 0.5) == task.labels[:count])):.2f} %"
            row[f"{count}: agreement"] = agreement(wanted, value)
            row[f"{count}: difference"] = f"{float(np.abs(value - wanted).mean()):.4f}"
        rows.append({**row, "form": built.form})
        print(rows[-1], flush=True)
    return rows


def main() -> None:
    """Measures, prints, writes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", type=Path, metavar="MODELS_FOLDER")
    parser.add_argument("data", type=Path, metavar="DATA_FOLDER")
    parser.add_argument("--reviews", type=int, nargs="+", default=[500, 5000])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path)
    a = parser.parse_args()
    rows = measure(a.models, a.data, a.reviews, a.threads)
    report(f"IMDb in Vitis' arithmetic, {CALIBRATION_REVIEWS} reviews to calibrate", rows, a.json)


if __name__ == "__main__":
    main()
