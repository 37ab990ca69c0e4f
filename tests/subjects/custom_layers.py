"""A layer of a cell that is no LSTM, GRU or RNN, built from standard operators, for the tests."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

import rnnqc
from rnnqc.data.statistics import Statistics
from rnnqc.ir import Model
from rnnqc.passes import PassManager
from rnnqc.passes.analysis.custom_points import custom_cells_of
from rnnqc.passes.custom_cells.custom_formats import CustomFormats, custom_formats
from rnnqc.passes.pipeline import normal_form
from rnnqc.recipes.recipe import load_recipe
from tests.subjects.protos import parse

Array = npt.NDArray[Any]
I, H, M = 12, 16, 24  # noqa: E741 - inputs, hidden units, memory units
EVERY_VALUE = ("pow2-int16", "pow2-w8a16", "pow2-int8", "pow2-int8-floor", "brevitas-int8", "distiller-sym")
HEADER = '<ir_version: 8, opset_import: ["": 17]>'
# A highway with a memory that is wider than the hidden state.
CELL = f"""{HEADER} cell (float[B,{I}] x, float[B,{H}] h, float[B,{M}] c)
    => (float[B,{H}] h_next, float[B,{M}] c_next) {{
  [from_x] p = MatMul (x, W)
  [from_x_sum] px = Add (p, b)
  [from_h] s = MatMul (h, R)
  [gate_sum] g = Add (px, s)
  [gate_tanh] a = Tanh (g)
  [gate_sigmoid] f = Sigmoid (g)
  [kept] kept = Mul (c, f)
  [memory] c_next = Add (kept, a)
  [memory_tanh] t = Tanh (c_next)
  [project] u = MatMul (t, P)
  [skip] skip = MatMul (x, V)
  [carry] carry = Sigmoid (skip)
  one = Constant <value = float {{1.0}}> ()
  [rest] rest = Sub (one, carry)
  [left] v = Mul (u, carry)
  [right] w = Mul (skip, rest)
  [output] h_next = Add (v, w)
}}"""
# Two values that are cut into parts, as torch exports slices of columns.
CUTS = f"""{HEADER} cell (float[B,{I}] x, float[B,{H}] h) => (float[B,{H}] h_next) {{
  [from_x] p = MatMul (x, W)
  [from_h] s = MatMul (h, R)
  start = Constant <value = int64[1] {{0}}> ()
  middle = Constant <value = int64[1] {{{H}}}> ()
  end = Constant <value = int64[1] {{{2 * H}}}> ()
  axis = Constant <value = int64[1] {{1}}> ()
  step = Constant <value = int64[1] {{1}}> ()
  p1 = Slice (p, start, middle, axis, step)
  p2 = Slice (p, middle, end, axis, step)
  s1 = Slice (s, start, middle, axis, step)
  s2 = Slice (s, middle, end, axis, step)
  [gate] g = Add (p1, s1)
  [gate_sigmoid] f = Sigmoid (g)
  [new] n = Mul (f, s2)
  [new_sum] m = Add (n, p2)
  [output] h_next = Tanh (m)
}}"""
VALUES = [
    "from_x_sum.value", "from_h.value", "gate_sum.value", "gate_tanh.tanh.value", "gate_sigmoid.sigmoid.value",
    "kept.value", "memory.value", "memory_tanh.tanh.value", "project.value", "skip.value", "carry.sigmoid.value",
    "rest.value", "left.value", "right.value", "output.value", "x.input.value",
]  # fmt: skip


SHAPES = {"W": (I, M), "b": (M,), "R": (H, M), "P": (M, H), "V": (I, H)}


def weights(shapes: Mapping[str, tuple[int, ...]] = MappingProxyType(SHAPES)) -> dict[str, Array]:
    rng = np.random.default_rng(3)
    return {k: (rng.standard_normal(s) / np.sqrt(s[0])).astype(np.float32) for k, s in shapes.items()}


def layer(**options: Any) -> onnx.ModelProto:
    return rnnqc.layer(parse(CELL, **weights()), **options)


def cutting_layer(**options: Any) -> onnx.ModelProto:
    return rnnqc.layer(parse(CUTS, **weights({"W": (I, 2 * H), "R": (H, 2 * H)})), **options)


def feeds_of(model: onnx.ModelProto, seed: int, steps: int = 20, batch: int = 3) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    feeds: dict[str, Array] = {}
    for value in model.graph.input:
        dims = value.type.tensor_type.shape.dim
        shape = [d.dim_value or {"T": steps}.get(d.dim_param, batch) for d in dims]
        if value.type.tensor_type.elem_type == onnx.TensorProto.FLOAT:
            feeds[value.name] = (rng.standard_normal(shape) * (1.0 if len(shape) == 3 else 0.3)).astype(np.float32)
        else:
            dtype = onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
            longest = next(len(a) for a in feeds.values() if a.ndim == 3)
            feeds[value.name] = np.resize([longest, 2, longest - 1], shape).astype(dtype)
    return feeds


def formats_of(model: onnx.ModelProto, recipe: str, statistics: Statistics) -> CustomFormats:
    loaded = Model.load(model)
    PassManager(normal_form()).run(loaded)
    (cell,) = custom_cells_of(loaded)
    return custom_formats(cell, load_recipe(recipe), statistics)
