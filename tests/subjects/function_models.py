"""Random models whose layers stand in model-local functions, with attributes on every way that ONNX has for them.

Every function makes [T, B, N] of [T, B, N]. An attribute is given by the call, is a default, is both or neither; it is
passed on from function to function under another name; calls and references stand in If, Loop and Scan, inside
functions and outside of them. A function may import another operator set than the model.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto, TensorProto, helper, numpy_helper

DOMAIN = "test.functions"
T, B, N = 5, 2, 4
_MISSING = object()
_KINDS = {float: AttributeProto.FLOAT, int: AttributeProto.INT, str: AttributeProto.STRING}
_LISTS = {float: AttributeProto.FLOATS, int: AttributeProto.INTS, str: AttributeProto.STRINGS}
_GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
_ELEMENTWISE: dict[str, dict[str, tuple[float, ...]]] = {
    "LeakyRelu": {"alpha": (0.3, 0.7)},
    "Elu": {"alpha": (0.5, 2.0)},
    "HardSigmoid": {"alpha": (0.1, 0.4), "beta": (0.3, 0.6)},
    "Selu": {"alpha": (1.1, 2.0), "gamma": (0.5, 1.5)},
    "ThresholdedRelu": {"alpha": (0.2, 0.6)},
}


@dataclass
class _Declared:
    """Attributes of a function: its own ways to write them, and what its caller has to know."""

    names: list[str] = field(default_factory=list)
    defaults: list[AttributeProto] = field(default_factory=list)
    values: dict[str, Any] = field(default_factory=dict)


def random_model(seed: int) -> onnx.ModelProto:
    """A model with one to three layers in functions; the same one for the same seed."""
    return _Random(np.random.default_rng(seed)).model()


def feeds_of(seed: int) -> dict[str, np.ndarray]:
    """Feeds for every such model."""
    return {"x": np.random.default_rng(seed).normal(0, 1, (T, B, N)).astype(np.float32)}


class _Random:
    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng
        self.opset = int(rng.choice([11, 12, 13, 17, 20]))
        self.functions: list[onnx.FunctionProto] = []
        self.initializers: list[onnx.TensorProto] = []

    def model(self) -> onnx.ModelProto:
        nodes: list[onnx.NodeProto] = []
        value = "x"
        count = int(self.rng.integers(1, 4))
        for k in range(count):
            result = "y" if k == count - 1 else f"v{k}"
            nodes += self.layer(value, result, k)
            value = result
        graph = helper.make_graph(
            nodes,
            "functions",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, [T, B, N])],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, [T, B, N])],
            self.initializers,
        )
        imports = [helper.make_opsetid("", self.opset), helper.make_opsetid(DOMAIN, 1)]
        return helper.make_model(graph, opset_imports=imports, functions=self.functions, ir_version=10)

    def maybe(self, share: float = 0.5) -> bool:
        return bool(self.rng.random() < share)

    def layer(self, value: str, result: str, number: int) -> list[onnx.NodeProto]:
        """A leaf function, in up to two others, and its call."""
        kind = str(self.rng.choice(["LSTM", "LSTM", "GRU", "RNN", "products"]))
        name, declared, weights = self.products(number) if kind == "products" else self.recurrent(kind, number)
        for depth in range(int(self.rng.integers(0, 3))):
            name, declared = self.wrapper(f"{name}_{depth}", name, declared, len(weights))
        given = {k: v for k, v in declared.values.items() if v is not _MISSING}
        call = helper.make_node(name, [value, *weights], [result], f"call{number}", domain=DOMAIN, **given)
        return self.around(call, value, result, f"around{number}")

    def declare(self, node: onnx.NodeProto, declared: _Declared, key: str, values: tuple[Any, Any]) -> None:
        """Lets `node` have attribute `key`: written at it, or of the function, with or without default and value."""
        way = self.rng.integers(0, 6)
        if way == 0:
            node.attribute.append(helper.make_attribute(key, values[0]))
            return
        name = f"{node.op_type.lower()}_{key}" if self.maybe() else key
        many = isinstance(values[0], list)
        kind = (_LISTS if many else _KINDS)[type(values[0][0] if many else values[0])]
        reference = node.attribute.add(name=key, ref_attr_name=name)
        reference.type = kind
        has_default = way in (1, 2)
        if has_default:
            declared.defaults.append(helper.make_attribute(name, values[0]))
        else:
            declared.names.append(name)
        declared.values[name] = values[1] if way in (2, 3, 4) else _MISSING

    def recurrent(self, op: str, number: int) -> tuple[str, _Declared, list[str]]:
        name, declared = f"{op}{number}", _Declared()
        node = helper.make_node(op, ["a", "w", "r", "b"], ["steps"], "layer")
        node.attribute.append(helper.make_attribute("hidden_size", N))
        directions = 2 if self.maybe(0.3) else 1
        if directions == 2 or self.maybe():
            one = ["forward", "reverse"][int(self.rng.integers(0, 2))]
            direction = "bidirectional" if directions == 2 else one
            self.declare_required(node, declared, "direction", direction)
        if self.maybe():
            self.declare(node, declared, "clip", (0.3, 0.7))
        if op == "LSTM" and self.maybe(0.3):
            self.declare(node, declared, "input_forget", (1, 0))
        if op == "GRU" and self.maybe():
            self.declare(node, declared, "linear_before_reset", (1, 0))
        if op == "RNN" and self.maybe():
            node.attribute.append(helper.make_attribute("activations", ["HardSigmoid"] * directions))
            alphas = ([0.1] * directions, [0.4] * directions)
            self.declare(node, declared, "activation_alpha", alphas)
            # onnxruntime wants as many of them as of the others.
            node.attribute.append(helper.make_attribute("activation_beta", [0.3] * directions))
        axes: dict[str, Any] = {"axes": [1]} if self.opset < 18 else {}
        mean = helper.make_node("ReduceMean", ["steps"], ["z"], "mean", keepdims=0, **axes)
        nodes = [node, mean]
        if not axes:
            nodes.insert(1, helper.make_node("Constant", [], ["axes"], value_ints=[1]))
            mean.input.append("axes")
        weights = [f"{name}.{k}" for k in "WRB"]
        size = _GATES[op] * N
        for key, shape in zip(weights, ((size, N), (size, N), (2 * size,)), strict=True):
            array = self.rng.normal(0, 0.5, (directions, *shape)).astype(np.float32)
            self.initializers.append(numpy_helper.from_array(array, key))
        self.add(name, ["a", "w", "r", "b"], nodes, declared)
        return name, declared, weights

    def declare_required(self, node: onnx.NodeProto, declared: _Declared, key: str, value: str) -> None:
        """As `declare`, for an attribute that fits only with this value: by default, given, or both."""
        other = "forward" if value != "bidirectional" else value
        way = self.rng.integers(0, 3)
        node.attribute.add(name=key, ref_attr_name=key, type=AttributeProto.STRING)
        if way == 0:
            declared.names.append(key)
        else:
            declared.defaults.append(helper.make_attribute(key, value if way == 1 else other))
        declared.values[key] = _MISSING if way == 1 else value

    def products(self, number: int) -> tuple[str, _Declared, list[str]]:
        """A product and gates, some in a branch: what might be a step of a recurrence."""
        name, declared = f"Products{number}", _Declared()
        op = str(self.rng.choice(list(_ELEMENTWISE)))
        gate = helper.make_node(op, ["p"], ["g"], "gate")
        for key, values in _ELEMENTWISE[op].items():
            self.declare(gate, declared, key, values)  # type: ignore[arg-type]
        nodes = [helper.make_node("MatMul", ["a", "w"], ["p"], "product")]
        if self.opset >= 12 and self.maybe():
            constant = helper.make_node("Constant", [], ["factor"], "factor")
            constant.attribute.add(name="value_float", ref_attr_name="factor", type=AttributeProto.FLOAT)
            declared.defaults.append(helper.make_attribute("factor", 0.6))
            declared.values["factor"] = 0.8 if self.maybe() else _MISSING
            nodes += [constant, helper.make_node("Mul", ["g", "factor"], ["f"])]
        else:
            nodes.append(helper.make_node("Identity", ["g"], ["f"]))
        nodes[1:1] = self.around(gate, "p", "g", "branch") if self.maybe() else [gate]
        nodes.append(helper.make_node("Tanh", ["f"], ["z"]))
        weight = f"{name}.W"
        self.initializers.append(numpy_helper.from_array(self.rng.normal(0, 0.7, (N, N)).astype(np.float32), weight))
        self.add(name, ["a", "w"], nodes, declared)
        return name, declared, [weight]

    def wrapper(self, name: str, inner: str, declared: _Declared, weights: int) -> tuple[str, _Declared]:
        """A function that calls another one, and passes some attributes on."""
        own = _Declared()
        formals = ["q", *(f"m{k}" for k in range(weights))]
        call = helper.make_node(inner, formals, ["z"], "inner", domain=DOMAIN)
        kinds = {a.name: a for a in declared.defaults}
        for key, value in declared.values.items():
            if value is _MISSING and key in kinds and self.maybe(0.3):
                # Passed on, but given by nobody: the default of the inner function counts.
                call.attribute.add(name=key, ref_attr_name=f"outer_{key}", type=kinds[key].type)
                own.names.append(f"outer_{key}")
                own.values[f"outer_{key}"] = _MISSING
            elif value is not _MISSING:
                attribute = helper.make_attribute(key, value)
                outer = f"outer_{key}" if self.maybe() else key
                way = self.rng.integers(0, 3)
                if way == 0:
                    call.attribute.append(attribute)
                    continue
                call.attribute.add(name=key, ref_attr_name=outer, type=attribute.type)
                if way == 1:
                    own.defaults.append(helper.make_attribute(outer, value))
                    own.values[outer] = _MISSING
                else:
                    own.names.append(outer)
                    own.values[outer] = value
        self.add(name, formals, self.around(call, "q", "z", "outer"), own)
        return name, own

    def around(self, node: onnx.NodeProto, value: str, result: str, name: str) -> list[onnx.NodeProto]:
        """`node`, which makes `result` of `value`, as it is or in an If, a Loop or a Scan."""
        way = int(self.rng.integers(0, 6))
        if way > 2:
            return [node]
        floats = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [T, B, N]) for n in (f"{name}.in", f"{name}.out")]
        inner = onnx.NodeProto()
        inner.CopyFrom(node)
        inner.output[:] = [f"{name}.out"]
        if way == 0:
            taken = helper.make_graph([inner], "taken", [], [floats[1]])
            other = helper.make_graph([helper.make_node("Neg", [value], [f"{name}.out"])], "other", [], [floats[1]])
            condition = numpy_helper.from_array(np.array(self.maybe(0.8)))
            return [
                helper.make_node("Constant", [], [f"{name}.c"], value=condition),
                helper.make_node("If", [f"{name}.c"], [result], name, then_branch=taken, else_branch=other),
            ]
        inner.input[:] = [f"{name}.in" if n == value else n for n in inner.input]
        if way == 1:
            heads = [
                helper.make_tensor_value_info(f"{name}.k", TensorProto.INT64, []),
                helper.make_tensor_value_info(f"{name}.go", TensorProto.BOOL, []),
            ]
            going = helper.make_node("Identity", [f"{name}.go"], [f"{name}.going"])
            goes = helper.make_tensor_value_info(f"{name}.going", TensorProto.BOOL, [])
            body = helper.make_graph([going, inner], "body", [*heads, floats[0]], [goes, floats[1]])
            trips = numpy_helper.from_array(np.array(2, np.int64))
            return [
                helper.make_node("Constant", [], [f"{name}.n"], value=trips),
                helper.make_node("Loop", [f"{name}.n", "", value], [result], name, body=body),
            ]
        element = helper.make_tensor_value_info(f"{name}.e", TensorProto.FLOAT, None)
        body = helper.make_graph([inner], "body", [floats[0], element], [floats[1]])
        elements = numpy_helper.from_array(np.zeros((2, 1), np.float32))
        return [
            helper.make_node("Constant", [], [f"{name}.s"], value=elements),
            helper.make_node("Scan", [value, f"{name}.s"], [result], name, body=body, num_scan_inputs=1),
        ]

    def add(self, name: str, inputs: list[str], nodes: list[onnx.NodeProto], declared: _Declared) -> None:
        opset = self.opset if self.maybe(0.7) else int(self.rng.choice([11, 13, 17] if self.opset < 18 else [18, 19]))
        imports = [helper.make_opsetid("", opset), helper.make_opsetid(DOMAIN, 1)]
        self.functions.append(
            helper.make_function(DOMAIN, name, inputs, ["z"], nodes, imports, declared.names, declared.defaults)
        )
