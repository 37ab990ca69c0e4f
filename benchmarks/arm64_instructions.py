"""Instructions that an emulated arm64 processor executes for one call of an LSTM layer: float, and each set of kernels.

Counts, no times: instructions take different times, and memory takes none here. They show what a kernel saves where no
such machine is at hand.

    python benchmarks/arm64_instructions.py LIBRARY

LIBRARY is librnnqc_ops.so for arm64 (CONTRIBUTING.md), RNNQC_ARM64_PYTHON an emulated Python with onnxruntime. A plugin of
qemu counts; gcc builds it.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
from layers import Layer

import rnnqc

PLUGIN = Path(__file__).with_suffix(".c")
KERNELS = ("portable", "neon", "neondot", "neoni8mm")
SHAPES = ("1x1x256x256", "100x1x64x128", "24x2x128x128", "24x16x128x128")
RUN = """
import sys
import numpy as np
import onnxruntime as ort

model, library, calls = sys.argv[1:]
options = ort.SessionOptions()
options.intra_op_num_threads = 1
if library:
    options.register_custom_ops_library(library)
session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
shape = [d if isinstance(d, int) else 1 for d in session.get_inputs()[0].shape]
feeds = {session.get_inputs()[0].name: np.random.default_rng(0).normal(0, 1, shape).astype(np.float32)}
for _ in range(int(calls)):
    session.run(None, feeds)
"""


def instructions(python: str, plugin: Path, arguments: list[str], environment: Mapping[str, str]) -> int:
    """Of a whole process that makes so many calls as the last argument says."""
    inherited = {n: v for n, v in os.environ.items() if not n.startswith(("PYTHON", "RNNQC_", "QEMU_"))}
    own = {"QEMU_CPU": "max", "QEMU_PLUGIN": str(plugin), "PYTHONHASHSEED": "0", **environment}
    command = [python, "-c", RUN, *arguments]
    done = subprocess.run(command, env=inherited | own, capture_output=True, text=True, check=False)
    found = re.search(r"instructions: (\d+)", done.stderr)
    if done.returncode != 0 or found is None:
        raise SystemExit(f"arm64_instructions: the emulated Python failed:\n{done.stderr[-2000:]}")
    return int(found[1])


def of_a_call(python: str, plugin: Path, model: Path, library: str, environment: Mapping[str, str]) -> float:
    """What more calls add to a process."""
    few, many = 2, 6
    count = [instructions(python, plugin, [str(model), library, str(n)], environment) for n in (few, many)]
    return (count[1] - count[0]) / (many - few)


def main() -> None:
    """Prints a row for each shape, in millions of instructions."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library", type=Path)
    library = parser.parse_args().library.resolve(strict=True)
    python = os.environ.get("RNNQC_ARM64_PYTHON")
    if not python:
        raise SystemExit("arm64_instructions: set RNNQC_ARM64_PYTHON to what scripts/arm64_python.sh FOLDER prints")
    print("| TxBxIxH | float | " + " | ".join(KERNELS) + " |", "|---" * (len(KERNELS) + 2) + "|", sep="\n")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        plugin = folder / "plugin.so"
        subprocess.run(["gcc", "-shared", "-fPIC", "-O2", "-o", plugin, PLUGIN], check=True)
        for shape in SHAPES:
            model = Layer.parse(shape).model()
            onnx.save(model, folder / "float.onnx")
            rnnqc.lower(model, strict=True).save(folder / "lowered.onnx")
            counts = [of_a_call(python, plugin, folder / "float.onnx", "", {})]
            for isa in KERNELS:
                counts.append(of_a_call(python, plugin, folder / "lowered.onnx", str(library), {"RNNQC_ISA": isa}))
            cells = [f"{counts[0] / 1e6:.2f}", *(f"{c / 1e6:.2f} ({counts[0] / c:.1f})" for c in counts[1:])]
            print(f"| {shape} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
