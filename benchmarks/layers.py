"""Random LSTM layers for the benchmarks: W, R ~ N(0, 1/H), no bias, x ~ N(0, 1)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

Array = npt.NDArray[Any]
OPSET, IR_VERSION = 17, 8


@dataclass(frozen=True)
class Layer:
    """One forward LSTM layer of hidden size H over `[T,B,I]`; symbolic dims are called T and B."""

    T: int
    B: int
    I: int  # noqa: E741 - the operator's name for it
    H: int
    seed: int = 0
    symbolic_batch: bool = False
    symbolic_time: bool = False
    count: int = 1

    @property
    def name(self) -> str:
        """Shape as `TxBxIxH`."""
        return f"{self.T}x{self.B}x{self.I}x{self.H}"

    def feeds(self) -> dict[str, Array]:
        """Seeded input."""
        x = np.random.default_rng([self.seed, 2]).standard_normal((self.T, self.B, self.I))
        return {"X": x.astype(np.float32)}

    def model(self) -> onnx.ModelProto:
        """The float model; output Y `[T,1,B,H]`. With `count` > 1 that many layers in a row, I equal to H."""
        rng = np.random.default_rng([self.seed, 1])
        nodes, initializers = [], [numpy_helper.from_array(np.array([1], np.int64), "axis")]
        for k in range(self.count):
            for name, width in (("W", self.I), ("R", self.H)):
                value = rng.standard_normal((1, 4 * self.H, width)) / np.sqrt(self.H)
                initializers.append(numpy_helper.from_array(value.astype(np.float32), f"{name}{k}"))
            last = k == self.count - 1
            x, y = "X" if k == 0 else f"X{k}", "Y" if last else f"Y{k}"
            nodes.append(helper.make_node("LSTM", [x, f"W{k}", f"R{k}"], [y], name=f"lstm{k}", hidden_size=self.H))
            if not last:
                nodes.append(helper.make_node("Squeeze", [y, "axis"], [f"X{k + 1}"]))
        time, batch = "T" if self.symbolic_time else self.T, "B" if self.symbolic_batch else self.B
        graph = helper.make_graph(
            nodes,
            "layer",
            [helper.make_tensor_value_info("X", TensorProto.FLOAT, [time, batch, self.I])],
            [helper.make_tensor_value_info("Y", TensorProto.FLOAT, [time, 1, batch, self.H])],
            initializers,
        )
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION)
