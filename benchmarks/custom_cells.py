"""Layers of custom cells: float, and quantized in standard operators and with the native library.

    python benchmarks/custom_cells.py [--cells highway ...] [--units 32 256] [--recipes int8 ...] [--rounds N]
        [--threads N] [--json OUT.json]

Four cells with as many inputs as units, over 100 steps of one row: an LSTM with a highway connection (AllenNLP's), one
with a recurrent projection of a memory twice as wide, one with LayerNorm, and the sLSTM of xLSTM with one matrix for
all units. The float layer is the same loop in onnxruntime. Sessions take turns; ratios compare minima. SQNR is that of
Y on data that was not used for calibration. With random weights the cell with LayerNorm is chaotic from 256 units on:
errors of any kind grow from step to step.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from support.reporting import report

import rnnqc
from rnnqc.evaluation.numerics import sqnr_db
from rnnqc.timing import FLOAT, NATIVE, STOCK, bound_run, session_options, take_turns, timings

Array = npt.NDArray[Any]
_HEADER = '<ir_version: 8, opset_import: ["": 17]>'
_LSTM = """
  i, f, g, o = Split <axis = 1> (gates)
  [input] iv = Sigmoid (i) [forget] fv = Sigmoid (f) [new] gv = Tanh (g) [output] ov = Sigmoid (o)
  [kept] kept = Mul (fv, c) [added] added = Mul (iv, gv) [memory] c_next = Add (kept, added)
"""
CELLS = {
    "highway": """cell (float[B,{I}] x, float[B,{H}] h, float[B,{H}] c)
    => (float[B,{H}] h_next, float[B,{H}] c_next) {{
  [from_x] px = Gemm (x, W, b) [from_h] ph = Gemm (h, R, rb)
  xi, xf, xg, xo, xr, skip = Split <axis = 1> (px)
  hi, hf, hg, ho, hr = Split <axis = 1> (ph)
  [i_sum] i = Add (xi, hi) [f_sum] f = Add (xf, hf) [g_sum] g = Add (xg, hg)
  [o_sum] o = Add (xo, ho) [r_sum] r = Add (xr, hr)
  [input] iv = Sigmoid (i) [forget] fv = Sigmoid (f) [new] gv = Tanh (g) [output] ov = Sigmoid (o)
  [way] rv = Sigmoid (r)
  [added] added = Mul (iv, gv) [kept] kept = Mul (fv, c) [memory] c_next = Add (added, kept)
  [memory_tanh] t = Tanh (c_next) [out] out = Mul (ov, t) [through] through = Mul (rv, out)
  one = Constant <value = float {{1.0}}> ()
  [rest] rest = Sub (one, rv) [around] around = Mul (rest, skip) [hidden] h_next = Add (through, around)
}}""",
    "projection": """cell (float[B,{I}] x, float[B,{H}] h, float[B,{M}] c)
    => (float[B,{H}] h_next, float[B,{M}] c_next) {{
  [from_x] px = Gemm (x, W, b) [from_h] ph = MatMul (h, R) [sum] gates = Add (px, ph)"""
    + _LSTM
    + """
  [memory_tanh] t = Tanh (c_next) [wide] wide = Mul (ov, t) [project] h_next = MatMul (wide, P)
}}""",
    "layernorm": """cell (float[B,{I}] x, float[B,{H}] h, float[B,{H}] c)
    => (float[B,{H}] h_next, float[B,{H}] c_next) {{
  [from_x] px = MatMul (x, W) [from_h] ph = MatMul (h, R)
  [x_norm] nx = LayerNormalization <axis = -1, epsilon = 0.00001> (px, scale, b)
  [h_norm] nh = LayerNormalization <axis = -1, epsilon = 0.00001> (ph, scale, rb)
  [sum] gates = Add (nx, nh)"""
    + _LSTM
    + """
  [c_norm] nc = LayerNormalization <axis = -1, epsilon = 0.00001> (c_next, c_scale, c_bias)
  [memory_tanh] t = Tanh (nc) [hidden] h_next = Mul (ov, t)
}}""",
    "slstm": """cell (float[B,{I}] x, float[B,{H}] h, float[B,{H}] c, float[B,{H}] n, float[B,{H}] m)
    => (float[B,{H}] h_next, float[B,{H}] c_next, float[B,{H}] n_next, float[B,{H}] m_next) {{
  [from_x] px = Gemm (x, W, b) [from_h] ph = MatMul (h, R) [sum] gates = Add (px, ph)
  z, i, f, o = Split <axis = 1> (gates)
  [new] zv = Tanh (z) [output] ov = Sigmoid (o) [forget] fs = Sigmoid (f) [log_forget] lf = Log (fs)
  [old_scale] old = Add (lf, m) [largest] m_next = Max (old, i)
  [i_log] il = Sub (i, m_next) [f_log] fl = Sub (old, m_next) [i_exp] iv = Exp (il) [f_exp] fv = Exp (fl)
  [kept] kept = Mul (fv, c) [added] added = Mul (iv, zv) [memory] c_next = Add (kept, added)
  [old_count] count = Mul (fv, n) [count] n_next = Add (count, iv)
  [mean] mean = Div (c_next, n_next) [hidden] h_next = Mul (ov, mean)
}}""",
}


def step(cell: str, units: int, inputs: int | None = None, seed: int = 3) -> onnx.ModelProto:
    """Returns one step of a cell with random weights."""
    size = inputs or units
    model = onnx.parser.parse_model(f"{_HEADER} {CELLS[cell].format(I=size, H=units, M=2 * units)}")
    rng = np.random.default_rng(seed)
    memory = 2 * units if cell == "projection" else units
    gates, recurrent = {"highway": (6, 5)}.get(cell, (4, 4))
    shapes = {
        "W": (size, gates * memory), "R": (units, recurrent * memory), "P": (memory, units), "b": (gates * memory,),
        "rb": (recurrent * memory,), "scale": (gates * memory,), "c_scale": (units,), "c_bias": (units,),
    }  # fmt: skip
    read = {name for node in model.graph.node for name in node.input}
    for name, shape in shapes.items():
        values = rng.standard_normal(shape) / np.sqrt(units)
        values += 1.0 if name.endswith("scale") else 0.0
        if name in read:
            model.graph.initializer.append(onnx.numpy_helper.from_array(values.astype(np.float32), name))
    return model


def layer(cell: str, units: int, inputs: int | None = None, seed: int = 3, **options: Any) -> onnx.ModelProto:
    """Returns a layer of this step, with the options of `rnnqc.layer`."""
    return rnnqc.layer(step(cell, units, inputs, seed), **options)


def feed(units: int, seed: int, steps: int = 100, batch: int = 1) -> dict[str, Array]:
    """Returns seeded input of a layer."""
    return {"x": np.random.default_rng(seed).standard_normal((steps, batch, units)).astype(np.float32)}


def measure(cell: str, units: int, recipe: str, rounds: int, threads: int) -> dict[str, Any]:
    """Measures the time of a step for every execution method, ratios of the minima, and SQNR."""
    model, test = layer(cell, units), feed(units, 9)
    lowered = rnnqc.lower(model, recipe, calibration=[feed(units, k) for k in range(4)]).proto
    models = {FLOAT: model, STOCK: lowered, NATIVE: lowered}
    sessions = {n: rnnqc.session(m, native=n == NATIVE, options=session_options(threads)) for n, m in models.items()}
    outputs = {name: session.run(["Y"], test)[0] for name, session in sessions.items()}
    measured = timings(take_turns({n: bound_run(s, test) for n, s in sessions.items()}, rounds))
    row: dict[str, Any] = {"cell": cell, "units": units, "recipe": recipe}
    row |= {f"{t.name} us a step": t.min_us / len(test["x"]) for t in measured}
    row |= {f"{t.name} x": t.speedup for t in measured[1:]}
    same = outputs[NATIVE].tobytes() == outputs[STOCK].tobytes()
    return row | {"SQNR dB": sqnr_db(outputs[FLOAT], outputs[NATIVE]), "same bits": "yes" if same else "NO"}


def main() -> None:
    """Measures, prints, writes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", nargs="+", choices=CELLS, default=list(CELLS))
    parser.add_argument("--units", nargs="+", type=int, default=[32, 256])
    parser.add_argument("--recipes", nargs="+", default=["int8"])
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    rows = [
        measure(cell, units, recipe, arguments.rounds, arguments.threads)
        for recipe in arguments.recipes
        for units in arguments.units
        for cell in arguments.cells
    ]
    report("Custom cells, 100 x 1", rows, arguments.json)


if __name__ == "__main__":
    main()
