"""Models as Brevitas exports them, made by hand: parameters behind Quant nodes, one QuantLSTMCell per direction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

from tests.subjects.brevitas.reference import Lstm, Quant

QUANTIZERS = (
    *("output", "cell_state", "input_acc", "forget_acc", "cell_acc", "output_acc"),
    *("input_sigmoid", "forget_sigmoid", "cell_tanh", "output_sigmoid", "hidden_state_tanh"),
)
GATES = ("input", "forget", "cell", "output")
DOMAINS = ("qonnx.custom_op.general", "onnx.brevitas", "finn.custom_op.general")
CASES = ("p01_default_8b", "p02_w4", "p03_po2_8b", "p04_batch_first_w4a6", "p05_cifg_8b", "p06_bidir_8b")
"""Models that Brevitas itself exported, in the folder of real models."""
MARGIN = 1e-4
Arrays = Mapping[str, npt.NDArray[np.float32]]


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


def one_cell(
    lstm: Lstm, feeds: dict[str, npt.NDArray[np.float32]], exported: Exported | None = None, opset: int = 20
) -> onnx.ModelProto:
    """A model of one cell with its quantizer of x, and with states if `feeds` has them."""
    e = exported or Exported()
    x = e.quant("x", lstm.quantizers["output"], "x_quant")
    states: list[str | None] = [None, None]
    for k, (name, q) in enumerate((("h0", "output"), ("c0", "cell_state"))):
        if name in feeds:
            zero = e.constant("zero", np.zeros((), np.int64))
            picked = e.op("Gather", [name, zero], f"{name}_picked", axis=0)
            states[k] = e.quant(picked, lstm.quantizers[q], f"{name}_quant")
    outputs = e.cell(lstm, x, "cell", *states)
    e.op("Identity", [outputs[0]], "outputs")
    axes = e.constant("axes", np.zeros(1, np.int64))
    for name, value in (("h", outputs[1]), ("c", outputs[2])):
        e.op("Unsqueeze", [value, axes], name)
    shapes = {n: list(v.shape) for n, v in feeds.items()}
    return e.model(shapes, {"outputs": 3, "h": 3, "c": 3}, opset)


def oracle(lstm: Lstm, feeds: Arrays, dtype: Any = np.float32) -> dict[str, npt.NDArray[np.float32]]:
    """The outputs of `one_cell`."""
    x = lstm.quantizers["output"](feeds["x"])
    states = [feeds[n][0] if n in feeds else None for n in ("h0", "c0")]
    outputs, h, c = lstm.run(x, *states, dtype=dtype)
    return {"outputs": outputs, "h": h[np.newaxis], "c": c[np.newaxis]}


def draw_feeds(lstm: Lstm, seed: int, states: bool, pow2: bool) -> dict[str, npt.NDArray[np.float32]]:
    """Inputs that keep away from ties of the accumulators, where scales are such that their sums are rounded."""
    size, hidden = lstm.W[0].shape[1], lstm.R[0].shape[0]
    for attempt in range(50):
        rng = np.random.default_rng([seed, attempt])
        shape = (3, 6, size) if lstm.batch_first else (6, 3, size)
        feeds = {"x": rng.normal(0, 0.6, shape).astype(np.float32)}
        if states:
            feeds |= {n: rng.normal(0, 0.5, (1, 3, hidden)).astype(np.float32) for n in ("h0", "c0")}
        first, second = oracle(lstm, feeds), oracle(lstm, feeds, np.float64)
        if pow2:
            for name, values in first.items():
                assert np.array_equal(values, second[name])
            return feeds
        if min(lstm.margins) > MARGIN:
            return feeds
    raise AssertionError("no inputs away from ties")


def read_lstms(model: onnx.ModelProto) -> dict[str, Lstm]:
    """The cells of a model that Brevitas exported, by the names of their nodes: the inverse of `Exported.cell`."""
    constants = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    quants = {n.output[0]: n for n in model.graph.node if n.op_type == "Quant"}

    def attributes(node: onnx.NodeProto) -> dict[str, Any]:
        made = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        return {k: v.decode() if isinstance(v, bytes) else v for k, v in made.items()}

    def quant(name: str) -> tuple[npt.NDArray[np.float32], Quant]:
        node = quants[name]
        raw, scale, zero, bits = (constants[i] for i in node.input)
        a = attributes(node)
        return raw, Quant(scale, int(bits), a["signed"], zero, a["narrow"], a["rounding_mode"])

    made = {}
    for node in model.graph.node:
        if node.op_type != "QuantLSTMCell":
            continue
        a = attributes(node)
        w, r, b = ([quant(node.input[3 + 4 * kind + k]) for k in range(4)] for kind in range(3))
        given = {}
        for k, key in enumerate(QUANTIZERS):
            scale, zero, bits = (constants[node.input[15 + 3 * k + j]] for j in range(3))
            narrow = a.get(f"{key}_narrow", a.get(f"{key}_narrow_range", 0))
            given[key] = Quant(scale, int(bits), a[f"{key}_signed"], zero, narrow, a[f"{key}_rounding_mode"])
        made[node.name] = Lstm(
            [m for m, _ in w], [m for m, _ in r], [m for m, _ in b], [q for _, q in w], [q for _, q in b], given,
            cifg=bool(a["cifg"]), reverse=bool(a["reverse_input"]), batch_first=bool(a["batch_first"]),
        )  # fmt: skip
    return made
