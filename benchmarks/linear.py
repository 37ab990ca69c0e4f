"""Time of one linear layer: integer with the native library and in stock onnxruntime, and onnxruntime's own operators.

    python benchmarks/linear.py [--shapes KxN ...] [--rows B ...] [--ways NAME ...] [--rounds N] [--threads N]
        [--json OUT.json]

Ways: onnxruntime's float MatMul, its MatMulNBits of 8 and 4 bits (blocks of 32, accuracy level 4: int8 input), its
DynamicQuantizeMatMul (`quantize_dynamic` of a MatMul; one scale for all rows), and rnnqc's int8 and 4-bit layers
(groups of 32). Weights and inputs are random. Sessions take turns; times are minima, of one call with bound inputs and
outputs; "x" is the float time over the way's, "dB" the SQNR of its outputs to float, "share" the fraction of the
roofline of the matmul alone (`roofline.py`).
"""

from __future__ import annotations

import argparse
import fnmatch
import logging
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import QuantType, quantize_dynamic
from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer
from roofline import Limits, Meter
from support.reporting import report
from support.turns import WorkerError

import rnnqc
from rnnqc.evaluation.numerics import sqnr_db
from rnnqc.passes import Canonicalize, PassManager
from rnnqc.passes.linear.quantize_linear import QuantizeLinear
from rnnqc.recipes.recipe import load_recipe
from rnnqc.timing import bound_run, session_options, take_turns, timings

Array = npt.NDArray[Any]
SHAPES = ("128x257", "640x1030", "1024x1024", "400x33278")
FLOAT, INT8, INT4, STOCK = "ort float", "rnnqc int8", "rnnqc int4", "rnnqc int8 stock"
PEERS = ("ort 8-bit blocks", "ort 4-bit blocks", "ort dynamic")
WAYS = (FLOAT, *PEERS, INT8, INT4, STOCK)
_NATIVE = (INT8, INT4)
BITS = {INT8: 8, INT4: 4, STOCK: 8}
"""The ways to compare with the roofline, and the bits of their weights."""


def float_model(inputs: int, outputs: int) -> onnx.ModelProto:
    """Returns one MatMul and Add over `[rows,K]`."""
    rng = np.random.default_rng([inputs, outputs])
    weight = (rng.standard_normal((inputs, outputs)) / np.sqrt(inputs)).astype(np.float32)
    bias = rng.standard_normal(outputs).astype(np.float32)
    nodes = [helper.make_node("MatMul", ["X", "W"], ["P"], name="fc"), helper.make_node("Add", ["P", "B"], ["Y"])]
    values = [
        helper.make_tensor_value_info(n, TensorProto.FLOAT, ["rows", k]) for n, k in (("X", inputs), ("Y", outputs))
    ]
    held = [numpy_helper.from_array(weight, "W"), numpy_helper.from_array(bias, "B")]
    graph = helper.make_graph(nodes, "linear", values[:1], values[1:], held)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def model_of(way: str, model: onnx.ModelProto) -> onnx.ModelProto:
    """Converts the float model for a way."""
    if way in (INT8, INT4, STOCK):
        loaded = rnnqc.Model.load(model)
        recipe = load_recipe("w4a8" if way == INT4 else "int8")
        PassManager([Canonicalize(), QuantizeLinear(recipe, least_weights=1)]).run(loaded)
        return loaded.proto
    if way == "ort dynamic":
        with tempfile.TemporaryDirectory() as folder:
            source, made = os.path.join(folder, "in.onnx"), os.path.join(folder, "out.onnx")
            onnx.save(model, source)
            quantize_dynamic(source, made, weight_type=QuantType.QInt8, per_channel=True)
            return onnx.load(made)
    if way in PEERS:
        copy = onnx.ModelProto.FromString(model.SerializeToString())
        bits = 8 if "8" in way else 4
        quantizer = MatMulNBitsQuantizer(copy, bits=bits, block_size=32, is_symmetric=True, accuracy_level=4)
        quantizer.process()
        return quantizer.model.model
    return model


def measure(
    inputs: int, outputs: int, rows: int, ways: Sequence[str], rounds: int, threads: int, limits: Limits | None
) -> list[dict[str, Any]]:
    """Measures a row of the table for each way."""
    model = float_model(inputs, outputs)
    x = np.random.default_rng([rows, inputs]).standard_normal((rows, inputs)).astype(np.float32)
    sessions: dict[str, ort.InferenceSession] = {
        way: rnnqc.session(model_of(way, model), native=way in _NATIVE, options=session_options(threads))
        for way in ways
    }
    measured = timings(take_turns({w: bound_run(s, {"X": x}) for w, s in sessions.items()}, rounds))
    expected = sessions[FLOAT].run(None, {"X": x})[0]
    made = []
    for timing in measured:
        row: dict[str, Any] = {"K x N": f"{inputs}x{outputs}", "B": rows, "way": timing.name, "us": timing.min_us}
        row["x"] = measured[0].min_us / timing.min_us
        row["dB"] = sqnr_db(expected, sessions[timing.name].run(None, {"X": x})[0])
        row["share"] = ""
        if limits is not None and timing.name in BITS:
            least = limits.product_microseconds(rows, inputs, outputs, BITS[timing.name])
            row["share"] = least / timing.min_us
        made.append(row)
    return made


def _limits(sizes: Sequence[int], threads: int) -> Limits | None:
    """Returns the limits of this machine; None without a compiler."""
    try:
        meter = Meter(threads)
    except (WorkerError, OSError) as error:
        print(f"no roofline: {error}")
        return None
    try:
        meter.prepare_sizes(sizes)
        for _ in range(5):
            meter.burst(0.1)
        return meter.limits
    finally:
        meter.worker.close()


def main() -> None:
    """Measures, prints, writes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", nargs="+", default=list(SHAPES), metavar="KxN")
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 8], metavar="B")
    parser.add_argument("--ways", nargs="+", default=["*"], help=f"patterns of {', '.join(WAYS)}")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    logging.disable(logging.WARNING)  # of onnxruntime's quantizers
    ways = [w for w in WAYS if w == FLOAT or any(fnmatch.fnmatch(w, p) for p in arguments.ways)]
    shapes = [tuple(map(int, shape.split("x"))) for shape in arguments.shapes]
    limits = _limits([k * n * bits // 8 for k, n in shapes for bits in (8, 4)], arguments.threads)
    rows = [
        row
        for k, n in shapes
        for count in arguments.rows
        for row in measure(k, n, count, ways, arguments.rounds, arguments.threads, limits)
    ]
    report(f"One linear layer, {arguments.threads} thread(s), {arguments.rounds} rounds", rows, arguments.json)


if __name__ == "__main__":
    main()
