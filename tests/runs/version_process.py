"""Runs models in the onnxruntime that is found first, in a process of its own; needs numpy and onnxruntime alone.

    python version_process.py FOLDER RESULTS.npz LIBRARY

FOLDER has `<name>.onnx` and `<name>.npz` (the feeds). RESULTS has an array for each output, named
`<name>|<way>|<level>|<output>`, or the message of what failed under `<name>|<way>|<level>|error`.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort

LEVELS = ("ORT_ENABLE_ALL", "ORT_DISABLE_ALL")


def outputs(model: Path, feeds: dict[str, Any], level: str, library: str) -> dict[str, Any]:
    """Outputs by name; with the operators of `library` if that is not empty."""
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, level)
    if library:
        options.register_custom_ops_library(library)
    session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    return dict(zip([o.name for o in session.get_outputs()], session.run(None, feeds), strict=True))


def main() -> None:
    """Run everything and write what came out."""
    folder, results, library = sys.argv[1:]
    found: dict[str, Any] = {"version": np.array(ort.__version__)}
    for model in sorted(Path(folder).glob("*.onnx")):
        feeds = dict(np.load(model.with_suffix(".npz")))
        for way, path in (("stock", ""), ("native", library)):
            for level in LEVELS if way == "stock" else LEVELS[:1]:
                key = f"{model.stem}|{way}|{level}"
                print(key, flush=True)
                try:
                    made = outputs(model, feeds, level, path)
                except Exception as error:
                    found[f"{key}|error"] = np.array(str(error)[:400])
                else:
                    found |= {f"{key}|{name}": value for name, value in made.items()}
    np.savez(results, **found)


if __name__ == "__main__":
    main()
