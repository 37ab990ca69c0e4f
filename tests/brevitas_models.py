"""Models as Brevitas exports them, made by hand: parameters behind Quant nodes, one QuantLSTMCell per direction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from brevitas_reference import Lstm, Quant
from onnx import TensorProto, helper, numpy_helper

QUANTIZERS = (
    *("output", "cell_state", "input_acc", "forget_acc", "cell_acc", "output_acc"),
    *("input_sigmoid", "forget_sigmoid", "cell_tanh", "output_sigmoid", "hidden_state_tanh"),
)
GATES = ("input", "forget", "cell", "output")
DOMAINS = ("qonnx.custom_op.general", "onnx.brevitas")


@dataclass
class Exported:
    """Collects the nodes and initializers of a model."""

    domain: str = DOMAINS[0]
    misspelt: bool = True
    quant_op: str = "Quant"
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    initializers: dict[str, onnx.TensorProto] = field(default_factory=dict)

    def constant(self, name: str, value: Any) -> str:
        """An initializer, float32 unless it is of integers."""
        array = np.asarray(value)
        array = array if array.dtype == np.int64 else array.astype(np.float32)
        self.initializers[name] = numpy_helper.from_array(array, name)
        return name

    def quant(self, x: str, q: Quant, name: str) -> str:
        """`x` through a quantizer."""
        scale = self.constant(f"{name}_scale", q.scale)
        if q.bits == 1 and q.signed:
            self.nodes.append(helper.make_node("BipolarQuant", [x, scale], [name], f"{name}_node", domain=self.domain))
            return name
        others = [self.constant(f"{name}_zero_point", q.zero_point), self.constant(f"{name}_bits", float(q.bits))]
        attributes = {"signed": q.signed, "narrow": q.narrow, "rounding_mode": q.mode}
        inputs = [x, scale, *others]
        self.nodes.append(
            helper.make_node(self.quant_op, inputs, [name], f"{name}_node", domain=self.domain, **attributes)
        )
        return name

    def cell(self, lstm: Lstm, x: str, name: str, h0: str | None = None, c0: str | None = None) -> list[str]:
        """A cell; its three outputs."""
        hidden = lstm.R[0].shape[0]
        zeros = self.constant(f"{name}_zeros", np.zeros((1, hidden))) if h0 is None or c0 is None else ""
        inputs = [x, h0 or zeros, c0 or zeros]
        for key, matrices in (("W", lstm.W), ("R", lstm.R)):
            for gate, matrix, q in zip(GATES, matrices, lstm.weight, strict=True):
                raw = self.constant(f"{name}_{key}_{gate}_raw", matrix)
                inputs.append(self.quant(raw, q, f"{name}_{key}_{gate}"))
        for k, gate in enumerate(GATES):
            raw = self.constant(f"{name}_bias_{gate}_raw", 0.0 if lstm.bias is None else lstm.bias[k])
            quantized = lstm.bias is not None and lstm.bias_quant is not None
            inputs.append(self.quant(raw, lstm.bias_quant[k], f"{name}_bias_{gate}") if quantized else raw)  # type: ignore[index]
        attributes: dict[str, Any] = {
            "batch_first": int(lstm.batch_first), "reverse_input": int(lstm.reverse), "cifg": int(lstm.cifg)
        }  # fmt: skip
        for key in QUANTIZERS:
            q = lstm.quantizers[key]
            inputs += [
                self.constant(f"{name}_{key}_{n}", v)
                for n, v in (("scale", q.scale), ("zero_point", q.zero_point), ("bit_width", float(q.bits)))
            ]
            narrow = "narrow_range" if self.misspelt and key == "output_sigmoid" else "narrow"
            attributes |= {f"{key}_{narrow}": q.narrow, f"{key}_signed": q.signed, f"{key}_rounding_mode": q.mode}
        outputs = [f"{name}_{n}" for n in ("outputs", "h", "c")]
        self.nodes.append(
            helper.make_node("QuantLSTMCell", inputs, outputs, f"{name}_node", domain=self.domain, **attributes)
        )
        return outputs

    def op(self, op: str, inputs: Sequence[str], name: str, **attributes: Any) -> str:
        """A standard operator."""
        self.nodes.append(helper.make_node(op, list(inputs), [name], f"{name}_node", **attributes))
        return name

    def model(
        self, inputs: dict[str, Sequence[int | str]], outputs: dict[str, int], opset: int = 20
    ) -> onnx.ModelProto:
        """The model; outputs are called by name with their rank, and of unknown dimensions as Brevitas writes them."""
        described = [helper.make_tensor_value_info(n, TensorProto.FLOAT, list(s)) for n, s in inputs.items()]
        # Brevitas lists initializers as inputs too.
        described += [helper.make_tensor_value_info(n, t.data_type, list(t.dims)) for n, t in self.initializers.items()]
        results = [
            helper.make_tensor_value_info(n, TensorProto.FLOAT, [f"{n}_dim_{k}" for k in range(rank)])
            for n, rank in outputs.items()
        ]
        graph = helper.make_graph(self.nodes, "exported", described, results, list(self.initializers.values()))
        imports = [helper.make_opsetid("", opset), helper.make_opsetid(self.domain, 1)]
        return helper.make_model(graph, opset_imports=imports, ir_version=9)


def random_lstm(
    seed: int,
    size: int = 7,
    hidden: int = 9,
    *,
    weight_bits: int = 8,
    weight_narrow: int = 1,
    weight_zero_point: float = 0.0,
    weight_signed: int = 1,
    per_channel: bool = False,
    bias: bool = True,
    pow2: bool = False,
    changes: dict[str, dict[str, Any]] | None = None,
    **flags: Any,
) -> Lstm:
    """A cell with Brevitas' defaults and random parameters.

    Args:
        seed: Of the parameters.
        size: I.
        hidden: H.
        weight_bits: Width of the weights; 1 for binary ones.
        weight_narrow: Whether they leave out the lowest code.
        weight_zero_point: Of the weights.
        weight_signed: Whether codes of the weights are signed.
        per_channel: One scale for each row.
        bias: Whether there is one.
        pow2: Every scale a power of two.
        changes: Fields of single quantizers, by name; "*" for all.
        flags: Of `Lstm`.
    """
    rng = np.random.default_rng(seed)

    def scale(value: npt.ArrayLike) -> npt.NDArray[np.float32]:
        array = np.asarray(value, np.float64)
        return (2.0 ** np.round(np.log2(array)) if pow2 else array).astype(np.float32)

    w = [rng.uniform(-0.6, 0.6, (hidden, size)).astype(np.float32) for _ in GATES]
    r = [rng.uniform(-0.6, 0.6, (hidden, hidden)).astype(np.float32) for _ in GATES]
    given = {
        "output": Quant(scale(rng.uniform(0.006, 0.008))),
        "cell_state": Quant(scale(rng.uniform(0.008, 0.016))),
        **{f"{g}_acc": Quant(scale(rng.uniform(0.015, 0.03))) for g in GATES},
        **{f"{g}_sigmoid": Quant(scale(rng.uniform(0.0035, 0.004)), signed=0) for g in GATES if g != "cell"},
        "cell_tanh": Quant(scale(rng.uniform(0.007, 0.008))),
        "hidden_state_tanh": Quant(scale(rng.uniform(0.007, 0.008))),
    }
    for key, fields in (changes or {}).items():
        for name in given if key == "*" else (key,):
            given[name] = Quant(**{**given[name].__dict__, **fields})
    weights, biases = [], []
    for a, b in zip(w, r, strict=True):
        both = np.abs(np.concatenate([a, b], axis=1))
        largest = both.max(axis=1, keepdims=True) if per_channel else both.max()
        step = scale(np.asarray(largest) / max(2 ** (weight_bits - weight_signed) / (2 - weight_signed) - 1, 1))
        zero = np.full(step.shape, weight_zero_point, np.float32)
        q = Quant(step, weight_bits, weight_signed, zero, weight_narrow)
        weights.append(q)
        bias_scale = np.asarray(given["output"].scale * step, np.float32)
        biases.append(Quant(bias_scale.reshape(-1) if per_channel else bias_scale, 32))
    vectors = [rng.uniform(-0.4, 0.4, hidden).astype(np.float32) for _ in GATES]
    return Lstm(w, r, vectors if bias else None, weights, biases, given, **flags)
