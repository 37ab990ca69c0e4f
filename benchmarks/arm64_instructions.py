"""Instructions that an emulated arm64 processor executes for one call of an LSTM layer: float, and each set of kernels.

These are counts, not times: instructions take different times, and memory accesses take none here. They show what a
kernel saves if no such machine is available.

    python benchmarks/arm64_instructions.py LIBRARY

LIBRARY is librnnqc_ops.so for arm64 (CONTRIBUTING.md), RNNQC_ARM64_PYTHON an emulated Python with onnxruntime. A qemu
plugin counts; gcc builds it.
"""

from __future__ import annotations

import argparse
import itertools
import os
import re
import subprocess
import tempfile
from pathlib import Path

import onnx
from support.layers import IR_VERSION, OPSET, Layer

import rnnqc

PLUGIN = Path(__file__).parent / "native" / "arm64_instructions.c"
PROCESSOR = "max,sve=off,sme=off"
"""A qemu CPU that runs all sets of kernels, with vectors of 128 bits, as on small processors."""
KERNELS = ("portable", "neon", "neondot", "neoni8mm")
SHAPES = ("1x1x256x256", "100x1x64x128", "24x2x128x128", "24x16x128x128")
RUN = """
import os
import sys
import numpy as np
import onnxruntime as ort

model, library = sys.argv[1:]
options = ort.SessionOptions()
options.intra_op_num_threads = 1
if library:
    options.register_custom_ops_library(library)
session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
shape = [d if isinstance(d, int) else 1 for d in session.get_inputs()[0].shape]
feeds = {session.get_inputs()[0].name: np.random.default_rng(0).normal(0, 1, shape).astype(np.float32)}
session.run(None, feeds)
for _ in range(4):
    os.getpgid(0)  # the plugin prints its count
    session.run(None, feeds)
os.getpgid(0)
"""


def of_a_call(python: str, plugin: Path, model: Path, library: str, isa: str) -> int:
    """Returns the smallest count of several calls, including Python's share."""
    inherited = {n: v for n, v in os.environ.items() if not n.startswith(("PYTHON", "RNNQC_", "QEMU_"))}
    own = {"QEMU_CPU": PROCESSOR, "QEMU_PLUGIN": str(plugin), "RNNQC_ISA": isa}
    command = [python, "-c", RUN, str(model), library]
    done = subprocess.run(command, env=inherited | own, capture_output=True, text=True, check=False)
    counts = [int(n) for n in re.findall(r"instructions: (\d+)", done.stderr)]
    if done.returncode != 0 or len(counts) < 2:
        raise SystemExit(f"arm64_instructions: the emulated Python failed:\n{done.stderr[-2000:]}")
    return min(after - before for before, after in itertools.pairwise(counts))


def nothing() -> onnx.ModelProto:
    """Returns a model that computes nothing, to measure the overhead of a call."""
    values = [onnx.helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, [1]) for n in ("X", "Y")]
    graph = onnx.helper.make_graph([onnx.helper.make_node("Identity", ["X"], ["Y"])], "nothing", values[:1], values[1:])
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", OPSET)], ir_version=IR_VERSION)


def main() -> None:
    """Prints a row for each shape, in millions of instructions, without the overhead of a call."""
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
        onnx.save(nothing(), folder / "nothing.onnx")
        anyway = of_a_call(python, plugin, folder / "nothing.onnx", "", "")
        for shape in SHAPES:
            model = Layer.parse(shape).model()
            onnx.save(model, folder / "float.onnx")
            rnnqc.lower(model, strict=True).save(folder / "lowered.onnx")
            in_float = of_a_call(python, plugin, folder / "float.onnx", "", "") - anyway
            counts = [of_a_call(python, plugin, folder / "lowered.onnx", str(library), isa) - anyway for isa in KERNELS]
            cells = [f"{in_float / 1e6:.2f}", *(f"{c / 1e6:.2f} ({in_float / c:.1f})" for c in counts)]
            print(f"| {shape} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
