"""Random recurrent layers for the benchmarks: W, R ~ N(0, 1/H), no bias, x ~ N(0, 1)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

Array = npt.NDArray[Any]
OPSET, IR_VERSION = 17, 8
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}


@dataclass(frozen=True)
class Layer:
    """One forward layer of hidden size H over `[T,B,I]`; symbolic dimensions have the names T and B."""

    T: int
    B: int
    I: int  # noqa: E741 - the operator's name for it
    H: int
    seed: int = 0
    symbolic_batch: bool = False
    symbolic_time: bool = False
    count: int = 1
    states: bool = False
    op: str = "LSTM"  # "GRU" has linear_before_reset = 1, as torch exports it

    @classmethod
    def parse(cls, shape: str, **options: Any) -> Layer:
        """Returns the layer of a shape TxBxIxH."""
        return cls(*(int(n) for n in shape.split("x")), **options)

    @property
    def name(self) -> str:
        """The shape `TxBxIxH`."""
        return f"{self.T}x{self.B}x{self.I}x{self.H}"

    def feeds(self) -> dict[str, Array]:
        """Returns seeded input; initial states, if the model has any, between -0.5 and 0.5."""
        rng = np.random.default_rng([self.seed, 2])
        feeds = {"X": rng.standard_normal((self.T, self.B, self.I)).astype(np.float32)}
        if self.states:
            names = ("h0", "c0") if self.op == "LSTM" else ("h0",)
            feeds |= {n: rng.uniform(-0.5, 0.5, (1, self.B, self.H)).astype(np.float32) for n in names}
        return feeds

    def model(self) -> onnx.ModelProto:
        """Returns the float model with output Y `[T,1,B,H]`; `count` > 1 stacks that many layers, with I equal to H.

        With `states` it also has inputs h0, c0 (LSTM) and outputs Y_h, Y_c `[1,B,H]` of the first layer.
        """
        rng = np.random.default_rng([self.seed, 1])
        nodes, initializers = [], []
        if self.count > 1:
            initializers.append(numpy_helper.from_array(np.array([1], np.int64), "axis"))
        for k in range(self.count):
            for name, width in (("W", self.I), ("R", self.H)):
                value = rng.standard_normal((1, GATES[self.op] * self.H, width)) / np.sqrt(self.H)
                initializers.append(numpy_helper.from_array(value.astype(np.float32), f"{name}{k}"))
            last = k == self.count - 1
            x, y = "X" if k == 0 else f"X{k}", "Y" if last else f"Y{k}"
            inputs, outputs = [x, f"W{k}", f"R{k}"], [y]
            if self.states and k == 0:
                inputs = [*inputs, "", "", *(["h0", "c0"] if self.op == "LSTM" else ["h0"])]
                outputs = [*outputs, "Y_h", *(["Y_c"] if self.op == "LSTM" else [])]
            attributes = {"linear_before_reset": 1} if self.op == "GRU" else {}
            nodes.append(
                helper.make_node(
                    self.op, inputs, outputs, name=f"{self.op.lower()}{k}", hidden_size=self.H, **attributes
                )
            )
            if not last:
                nodes.append(helper.make_node("Squeeze", [y, "axis"], [f"X{k + 1}"]))
        time, batch = "T" if self.symbolic_time else self.T, "B" if self.symbolic_batch else self.B
        shapes = {"X": [time, batch, self.I], "Y": [time, 1, batch, self.H]}
        count = (2 if self.op == "LSTM" else 1) if self.states else 0
        names = (["X", "h0", "c0"][: 1 + count], ["Y", "Y_h", "Y_c"][: 1 + count])
        values = [
            [helper.make_tensor_value_info(n, TensorProto.FLOAT, shapes.get(n, [1, batch, self.H])) for n in group]
            for group in names
        ]
        graph = helper.make_graph(nodes, "layer", *values, initializers)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION)
