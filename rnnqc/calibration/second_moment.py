"""Sums of outer products, bit-identical on every machine and with any number of threads."""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper

from rnnqc.evaluation.evaluate import make_session
from rnnqc.formats.scales import times_power_of_two

Array = npt.NDArray[Any]
BITS, ROWS = 20, 4096


def second_moment(rows: Array) -> Array:
    """Returns the sum of `x x'` over up to 4096 rows `[N, K]`; float64 `[K, K]`.

    Values are rounded to multiples of `2**-20` of the power of two above the largest magnitude. Every product and sum
    is then an integer up to 2**52 in that unit, so no order of summation rounds.
    """
    if len(rows) > ROWS:
        raise ValueError(f"{len(rows)} rows")
    exponent = math.frexp(float(np.abs(rows).max(initial=0.0)))[1]
    codes = np.rint(times_power_of_two(rows, BITS - exponent))
    # numpy's matmul uses all processors, and takes a hundred times as long where they are busy.
    product = _session().run(None, {"x": codes})[0]
    return times_power_of_two(product, 2 * (exponent - BITS))


@functools.cache
def _session() -> ort.InferenceSession:
    nodes = [helper.make_node("Transpose", ["x"], ["t"], perm=[1, 0]), helper.make_node("MatMul", ["t", "x"], ["y"])]
    x = helper.make_tensor_value_info("x", TensorProto.DOUBLE, ["N", "K"])
    y = helper.make_tensor_value_info("y", TensorProto.DOUBLE, ["K", "K"])
    graph = helper.make_graph(nodes, "second_moment", [x], [y])
    model: onnx.ModelProto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return make_session(model, optimize=False)  # onnxruntime up to 1.25 fuses the two into a node that it cannot run
