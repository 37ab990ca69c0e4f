"""Nodes of `ai.rnnqc::QuantLinear` for tests: hand-made and drawn by Hypothesis over everything its page allows."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from rnnqc.cells.linear_nodes import KINDS, LINEAR_INPUTS, LinearKind
from rnnqc.formats.codebooks import GROUP_BYTES
from rnnqc.formats.packing import plane_columns
from rnnqc.passes.linear.linear_function import linear_function
from tests.native import quant_linear_reference as quant_linear
from tests.native.quant_lstm_cases import Arrays, native_session, unusual_rows, with_specials

PARAMETERS = LINEAR_INPUTS[1:]


@dataclass
class LinearCase:
    """One node with values for its inputs.

    Attributes:
        kind: Which of the operators.
        inputs: Arrays by the operator's input names.
        attributes: Of the node.
        constants: Inputs that are initializers; the others are graph inputs.
    """

    kind: LinearKind
    inputs: Arrays
    attributes: dict[str, Any] = field(default_factory=dict)
    constants: Collection[str] = PARAMETERS

    def model(self, opset: int = 17, *, function: bool = False) -> onnx.ModelProto:
        """A model of one node; with the function behind it, it runs without the native library."""
        names = [n if n in self.inputs else "" for n in LINEAR_INPUTS]
        while not names[-1]:
            names.pop()
        node = helper.make_node(self.kind.name, names, ["Y"], name="fc/1", domain="ai.rnnqc", **self.attributes)
        free = [n for n in self.inputs if n not in self.constants]
        rank = self.inputs["X"].ndim
        graph = helper.make_graph(
            [node],
            "graph",
            [
                helper.make_tensor_value_info(
                    n, helper.np_dtype_to_tensor_dtype(self.inputs[n].dtype), [None] * self.inputs[n].ndim
                )
                for n in free
            ],
            [helper.make_tensor_value_info("Y", TensorProto.FLOAT, [None] * rank)],
            [numpy_helper.from_array(v, n) for n, v in self.inputs.items() if n in self.constants],
        )
        opsets = [helper.make_opsetid("", opset), helper.make_opsetid("ai.rnnqc", 1)]
        functions = [linear_function(self.kind, opset, 10)] if function else []
        return helper.make_model(graph, opset_imports=opsets, ir_version=10, functions=functions)

    def feeds(self) -> Arrays:
        """The graph inputs."""
        return {n: v for n, v in self.inputs.items() if n not in self.constants}

    def expected(self) -> Arrays:
        """The reference's outputs."""
        return {"Y": quant_linear.run(self.inputs, self.attributes)}


def run_native(case: LinearCase, threads: int = 1, isa: str | None = None) -> Arrays:
    """The kernel's output: the model has no function to fall back to."""
    return {"Y": native_session(case.model(), threads, isa).run(None, case.feeds())[0]}


def linear_case(
    rows: Sequence[int] = (3,), inputs: int = 9, outputs: int = 21, seed: int = 0, kind: LinearKind = KINDS[0]
) -> LinearCase:
    """Random values; packed weights are in groups of 32 rows."""
    rng = np.random.default_rng([seed, inputs, outputs])
    x: npt.NDArray[Any] = (rng.normal(0, 1, (*rows, inputs)) * 10.0 ** rng.integers(-3, 4)).astype(np.float32)
    attributes: dict[str, Any] = {}
    if kind.x_mode != "dynamic_row":
        attributes |= {"x_mode": kind.x_mode, "x_zero_point": int(rng.choice([0, 1, 128, 255]))}
    if kind.x_mode == "static":
        attributes["x_scale"] = float(np.float32(0.013))
    if kind.x_mode == "codes":
        x = rng.integers(0, 256, x.shape, dtype=np.uint8)
    arrays: Arrays = {"X": x, "W": rng.integers(-128, 128, (inputs, outputs), dtype=np.int8)}
    if kind.packed:
        attributes["group_size"] = 32
        attributes |= kind.packing
        arrays["W"] = rng.integers(0, 256, (inputs, sum(plane_columns(outputs, kind.bits))), dtype=np.uint8)
    arrays["multiplier"] = rng.uniform(1e-3, 1e-2, outputs).astype(np.float32)
    arrays["B"] = rng.normal(0, 0.3, outputs if rng.random() < 0.7 else 1).astype(np.float32)
    if kind.packed:
        shape = (-(-inputs // 32), outputs)
        arrays["W_group_multiplier"] = rng.integers(1, {4: 16, 5: 8, 6: 4}[kind.bits], shape, dtype=np.uint8)
    if kind.codebook:
        arrays["W_group_multiplier"] = rng.choice(GROUP_BYTES, shape)
    return LinearCase(kind, arrays, attributes)


@st.composite
def linear_cases(draw: st.DrawFn) -> LinearCase:
    """Any allowed node, with unusual rows and special values."""
    rows = draw(st.lists(st.integers(0, 5), max_size=3))
    kind = draw(st.sampled_from(KINDS))
    case = linear_case(
        rows, draw(st.integers(1, 200)), draw(st.integers(1, 200)), draw(st.integers(0, 2**32 - 1)), kind
    )
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    if kind.x_mode != "codes":
        x = case.inputs["X"]
        flat = x.reshape(1, -1, x.shape[-1]) if x.size else x
        case.inputs["X"] = unusual_rows(rng, with_specials(rng, flat)).reshape(x.shape) if x.size else x
    case.inputs["W"][:] = draw(st.sampled_from([case.inputs["W"], np.zeros_like(case.inputs["W"])]))
    return case
