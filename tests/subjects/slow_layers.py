"""Layers whose states last for thousands of steps of time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

UNITS, FEATURES, STEPS = 16, 8, 3000


@dataclass(frozen=True)
class Slow:
    """A layer with a bias of the gate that keeps the state, and one of the gate that adds to it."""

    op: str
    gate: int
    keep: float
    added: float = 0.0
    input_forget: bool = False

    def model(self) -> onnx.ModelProto:
        """The model: `x` `[T,1,FEATURES]` to `y`."""
        gates = {"LSTM": 4, "GRU": 3}[self.op]
        rng = np.random.default_rng(3)
        w = rng.uniform(-0.25, 0.25, (1, gates * UNITS, FEATURES))
        r = rng.uniform(-0.25, 0.25, (1, gates * UNITS, UNITS))
        b = rng.uniform(-0.25, 0.25, (1, 2 * gates * UNITS))
        b[0, self.gate * UNITS : (self.gate + 1) * UNITS] += self.keep
        b[0, :UNITS] += self.added
        held = [numpy_helper.from_array(v.astype(np.float32), n) for n, v in (("W", w), ("R", r), ("B", b))]
        flags: dict[str, Any] = {"input_forget": 1} if self.input_forget else {}
        node = helper.make_node(self.op, ["x", "W", "R", "B"], ["y"], "layer", hidden_size=UNITS, **flags)
        x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["T", 1, FEATURES])
        y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["T", 1, 1, UNITS])
        graph = helper.make_graph([node], "slow", [x], [y], held)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)

    @staticmethod
    def feeds(steps: int = STEPS) -> dict[str, np.ndarray]:
        """Noise of magnitude 1."""
        return {"x": np.random.default_rng(0).standard_normal((steps, 1, FEATURES)).astype(np.float32)}
