"""A model that onnxruntime opens, and that runs on no data."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tests.generate.layers import RecurrentCase


def never_running() -> onnx.ModelProto:
    """An LSTM beside sums that no sequence length satisfies together: 1 or 7, 1 or 9, and at least 2."""
    case = RecurrentCase(dynamic_time=True, dynamic_batch=True)
    proto = case.model()
    for size in (7, 9):
        held = np.zeros((size, 1, case.I), np.float32)
        proto.graph.initializer.append(numpy_helper.from_array(held, f"held_{size}"))
        proto.graph.node.append(helper.make_node("Add", ["X", f"held_{size}"], [f"sum_{size}"]))
    proto.graph.initializer.append(numpy_helper.from_array(np.array([1]), "second"))
    proto.graph.node.append(helper.make_node("Gather", ["X", "second"], ["gathered"], axis=0))
    for name in ("sum_7", "sum_9", "gathered"):
        proto.graph.output.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, None))
    return proto
