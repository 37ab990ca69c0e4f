"""Layers whose states last for thousands of steps of time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import helper

from tests.subjects.protos import of_nodes

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
        held = {n: v.astype(np.float32) for n, v in (("W", w), ("R", r), ("B", b))}
        flags: dict[str, Any] = {"input_forget": 1} if self.input_forget else {}
        node = helper.make_node(self.op, ["x", "W", "R", "B"], ["y"], "layer", hidden_size=UNITS, **flags)
        return of_nodes([node], {"x": ["T", 1, FEATURES]}, {"y": ["T", 1, 1, UNITS]}, held)

    @staticmethod
    def feeds(steps: int = STEPS) -> dict[str, np.ndarray]:
        """Noise of magnitude 1."""
        return {"x": np.random.default_rng(0).standard_normal((steps, 1, FEATURES)).astype(np.float32)}
