"""The same model written otherwise: other element types, weights that are computed, everything inside a function."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from rnnqc.proto.graph_walks import blocks_of

SOURCES = ("initializer", "transposed", "half", "codes", "sum", "identity")
"""Where weights come from: stored, or computed from what is stored."""
CALLS = ("", "function", "overload", "nested")
"""Around all nodes: nothing, a function, one of two overloads of one, a function that calls another."""
DTYPES = ("float32", "float16", "float64")
_DOMAIN = "test.calls"


def stored_otherwise(model: onnx.ModelProto, source: str) -> None:
    """Lets every matrix of weights of the main graph come from `source`, one of `SOURCES`, in place.

    "half" and "codes" round the weights.
    """
    if source == "initializer" or model.ir_version < 4:
        return
    nodes: list[onnx.NodeProto] = []
    for tensor in list(model.graph.initializer):
        if tensor.data_type != TensorProto.FLOAT or len(tensor.dims) < 2:
            continue
        array, name = numpy_helper.to_array(tensor), tensor.name
        model.graph.initializer.remove(tensor)

        def store(key: str, value: np.ndarray, of: str = name) -> str:
            model.graph.initializer.append(numpy_helper.from_array(np.asarray(value, order="C"), f"{of}_{key}"))
            return f"{of}_{key}"

        if source == "transposed":
            order = list(range(array.ndim))[::-1]
            nodes.append(helper.make_node("Transpose", [store("turned", array.T)], [name], perm=order))
        elif source == "half":
            nodes.append(helper.make_node("Cast", [store("half", array.astype(np.float16))], [name], to=1))
        elif source == "codes":
            scale = np.float32(max(float(np.abs(array).max(initial=0.0)), 1e-3) / 127)
            codes = np.clip(np.rint(array / scale), -127, 127).astype(np.int8)
            parts = [store("codes", codes), store("scale", np.array(scale)), store("zero", np.array(0, np.int8))]
            nodes.append(helper.make_node("DequantizeLinear", parts, [name]))
        elif source == "sum":
            part = np.float32(0.5) * array
            nodes.append(helper.make_node("Add", [store("one", part), store("two", array - part)], [name]))
        else:
            nodes.append(helper.make_node("Identity", [store("held", array)], [f"{name}_alias"]))
            nodes.append(helper.make_node("Identity", [f"{name}_alias"], [name]))
    held = list(model.graph.node)
    del model.graph.node[:]
    model.graph.node.extend([*nodes, *held])


def called(model: onnx.ModelProto, how: str) -> onnx.ModelProto:
    """All nodes of the main graph inside a function that gets inputs and initializers; `how` is one of `CALLS`."""
    if not how:
        return model
    made = onnx.ModelProto()
    made.CopyFrom(model)
    inputs = [v.name for v in model.graph.input]
    inputs += [t.name for t in model.graph.initializer if t.name not in set(inputs)]
    # A function's outputs are no inputs of it.
    outputs = [v.name for v in model.graph.output]
    names = {n: f"{n}_formal" for n in inputs}
    nodes = [_with_inputs(node, names) for node in model.graph.node]
    imports = [o for o in model.opset_import if o.domain != _DOMAIN] + [helper.make_opsetid(_DOMAIN, 1)]

    def function(name: str, body: list[onnx.NodeProto], overload: str = "") -> onnx.FunctionProto:
        result = helper.make_function(_DOMAIN, name, list(names.values()), outputs, body, imports)
        result.overload = overload
        return result

    def call(name: str, arguments: list[str], overload: str = "") -> onnx.NodeProto:
        node = helper.make_node(name, arguments, outputs, f"call_{name}", domain=_DOMAIN)
        node.overload = overload
        return node

    overload = "second" if how == "overload" else ""
    made.functions.append(function("Model", nodes, overload))
    outer = call("Model", inputs, overload)
    if how == "overload":
        nothing = [helper.make_node("Identity", [next(iter(names.values()))], [o]) for o in outputs]
        made.functions.append(function("Model", nothing, "first"))
    if how == "nested":
        made.functions.append(function("Outer", [call("Model", list(names.values()))]))
        outer = call("Outer", inputs)
    del made.graph.node[:]
    made.graph.node.append(outer)
    if all(o.domain != _DOMAIN for o in made.opset_import):
        made.opset_import.append(helper.make_opsetid(_DOMAIN, 1))
    made.ir_version = max(made.ir_version, 10 if how == "overload" else 8)
    return made


def _with_inputs(node: onnx.NodeProto, names: Mapping[str, str]) -> onnx.NodeProto:
    """A copy of a node, and of the graphs in it, that reads other values."""
    made = onnx.NodeProto()
    made.CopyFrom(node)
    graph = onnx.GraphProto(node=[made])
    for block in blocks_of([graph]):
        for inner in block.node:
            inner.input[:] = [names.get(n, n) for n in inner.input]
        if isinstance(block, onnx.GraphProto):
            for value in block.output:
                value.name = names.get(value.name, value.name)
    made.CopyFrom(graph.node[0])
    return made


def retyped(model: onnx.ModelProto, dtype: str) -> onnx.ModelProto:
    """The model with all float32 values and constants of another float type."""
    if dtype == "float32":
        return model
    made = onnx.ModelProto()
    made.CopyFrom(model)
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))

    def convert(tensor: onnx.TensorProto) -> None:
        if tensor.data_type == TensorProto.FLOAT:
            array = numpy_helper.to_array(tensor).astype(dtype)
            tensor.CopyFrom(numpy_helper.from_array(np.asarray(array, order="C"), tensor.name))

    for block in blocks_of([made.graph, *made.functions]):
        for node in block.node:
            if node.op_type == "ConstantOfShape" and not node.attribute:
                node.attribute.append(helper.make_attribute("value", numpy_helper.from_array(np.zeros(1, np.float32))))
            for attr in node.attribute:
                if attr.HasField("t"):
                    convert(attr.t)
                elif attr.name in ("to", "dtype") and attr.i == TensorProto.FLOAT:
                    attr.i = kind
        if isinstance(block, onnx.GraphProto):
            for tensor in block.initializer:
                convert(tensor)
            for value in (*block.input, *block.output, *block.value_info):
                _retype(value.type, kind)
    return made


def _retype(value: onnx.TypeProto, kind: int) -> None:
    if value.HasField("sequence_type"):
        _retype(value.sequence_type.elem_type, kind)
    elif value.tensor_type.elem_type == TensorProto.FLOAT:
        value.tensor_type.elem_type = kind
