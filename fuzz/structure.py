"""Mutations of models that know what a model is: most results are valid, or nearly so, and get far."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from rnnqc.proto.graph_walks import blocks_of
from tests.generate.renaming import STYLES, made_values, rename

Graph = Any  # of a model or of a function
_TYPES = ("f4", "f2", "f8", "i1", "u1", "i2", "i4", "i8", "?")
_SPECIAL = (np.nan, np.inf, -np.inf, 0.0, 1e-42, 1e30, -3e38, 0.25)
_NUMBERS = {
    "hidden_size": (0, 1, 2, 3, 2**40, -1), "layout": (0, 1, 2), "linear_before_reset": (0, 1, 2, -1),
    "input_forget": (0, 1, 2), "clip": (0.0, 0.5, -1.0, float("nan"), float("inf")), "axis": (-1, 0, 1, 2, 9),
    "direction": ("forward", "reverse", "bidirectional", ""), "num_scan_inputs": (0, 1, 2, 9),
    "activations": (["Sigmoid"], ["Sigmoid", "Tanh", "Tanh"], ["Relu", "Affine", "Elu"], ["Tanh"], ["Softsign"] * 6),
    "activation_alpha": ([0.5], [0.5, 0.1, 2.0], [float("nan")], [0.0] * 7), "perm": ([1, 0, 2], [2, 1, 0]),
    "activation_beta": ([0.5], [-1.0, 3.0, 0.0]), "scan_output_directions": ([1], [0, 1]),
    "scan_input_directions": ([0], [1], [1, 0]),
    "scan_input_axes": ([1], [-1], [0, 1]), "to": (1, 10, 11, 7, 9), "block_size": (0, 16, 32), "saturate": (0, 1),
}  # fmt: skip


def restructure(model: onnx.ModelProto, rng: random.Random) -> None:
    """One change; what cannot be done to this model is not done."""
    with contextlib.suppress(Exception):
        rng.choice(_CHANGES)(model, rng)


def _blocks(model: onnx.ModelProto) -> list[Graph]:
    return list(blocks_of([model.graph, *model.functions]))


def _node(model: onnx.ModelProto, rng: random.Random) -> tuple[Graph, onnx.NodeProto]:
    """Any node; mostly a recurrent one or one with a body, where there is some."""
    found = [(block, node) for block in _blocks(model) for node in block.node]
    chosen = [p for p in found if p[1].op_type in ("LSTM", "GRU", "RNN", "Loop", "Scan", "If") or p[1].domain]
    return rng.choice(chosen if chosen and rng.random() < 0.5 else found)


def _tensor(model: onnx.ModelProto, rng: random.Random) -> onnx.TensorProto:
    found = [t for block in _blocks(model) for t in getattr(block, "initializer", ())]
    found += [a.t for block in _blocks(model) for n in block.node for a in n.attribute if a.HasField("t")]
    return rng.choice(found)


def _change_attribute(model: onnx.ModelProto, rng: random.Random) -> None:
    """One that the operator may have, with a value that some operator has."""
    _, node = _node(model, rng)
    name = rng.choice([a.name for a in node.attribute if a.name in _NUMBERS] or list(_NUMBERS))
    kept = [a for a in node.attribute if a.name != name]
    del node.attribute[:]
    node.attribute.extend([*kept, helper.make_attribute(name, rng.choice(_NUMBERS[name]))])


def _retype_attribute(model: onnx.ModelProto, rng: random.Random) -> None:
    _, node = _node(model, rng)
    attr = rng.choice(list(node.attribute))
    value = rng.choice((1, 0.5, "text", [1, 2], [0.5], ["a", "b"], numpy_helper.from_array(np.ones(2, np.float32))))
    attr.CopyFrom(helper.make_attribute(attr.name, value))


def _swap_attributes(model: onnx.ModelProto, rng: random.Random) -> None:
    (_, one), (_, two) = _node(model, rng), _node(model, rng)
    held = [onnx.AttributeProto.FromString(a.SerializeToString()) for a in one.attribute]
    del one.attribute[:]
    one.attribute.extend(two.attribute)
    del two.attribute[:]
    two.attribute.extend(held)


def _retype_tensor(model: onnx.ModelProto, rng: random.Random) -> None:
    tensor = _tensor(model, rng)
    with np.errstate(all="ignore"):
        array = numpy_helper.to_array(tensor).astype(rng.choice(_TYPES))
    tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))


def _reshape_tensor(model: onnx.ModelProto, rng: random.Random) -> None:
    tensor = _tensor(model, rng)
    array = numpy_helper.to_array(tensor)
    shape = list(array.shape)
    action = rng.randrange(5)
    if action == 0 and shape:
        axis = rng.randrange(len(shape))
        shape[axis] = max(0, shape[axis] + rng.choice((-1, 1, shape[axis], -shape[axis])))
    elif action == 1:
        shape = [1, *shape]
    elif action == 2:
        shape = shape[1:]
    elif action == 3:
        shape = shape[::-1]
    else:
        shape = [array.size]
    tensor.CopyFrom(numpy_helper.from_array(np.resize(array, shape), tensor.name))


def _fill_tensor(model: onnx.ModelProto, rng: random.Random) -> None:
    tensor = _tensor(model, rng)
    array = numpy_helper.to_array(tensor).copy()
    with np.errstate(all="ignore"):
        value = np.array(rng.choice(_SPECIAL)).astype(array.dtype)
    if array.size and rng.random() < 0.5:
        array.flat[rng.randrange(array.size)] = value
    else:
        array[...] = value
    tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))


def _store_otherwise(model: onnx.ModelProto, rng: random.Random) -> None:
    """An initializer becomes a Constant, a sparse one, an input, an input as well, or an output as well."""
    graph = model.graph
    tensor = rng.choice(list(graph.initializer))
    array, value = (
        numpy_helper.to_array(tensor),
        helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims),
    )
    action = rng.randrange(6)
    if action == 4:
        graph.input.append(value)
        return
    if action == 5:
        graph.output.append(value)
        return
    graph.initializer.remove(tensor)
    if action == 0:
        graph.node.insert(0, helper.make_node("Constant", [], [tensor.name], value=tensor))
    elif action == 1:
        places = np.flatnonzero(array).astype(np.int64)
        values = numpy_helper.from_array(array.reshape(-1)[places], tensor.name)
        indices = numpy_helper.from_array(places, f"{tensor.name}_places")
        graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, list(array.shape)))
    elif action == 2:
        graph.input.append(value)
    else:
        key, stored = rng.choice((("value_floats", [0.5, 1.0]), ("value_int", 3), ("value_ints", [1, 2])))
        graph.node.insert(0, helper.make_node("Constant", [], [tensor.name], **{key: stored}))


def _outside(model: onnx.ModelProto, rng: random.Random) -> None:
    """Data in a file: one that is there, one that is not, one that must not be read."""
    tensor = _tensor(model, rng)
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    location = rng.choice(("weights.bin", "weights.bin", "weights.bin", "absent.bin", "../x", "/etc/passwd", ""))
    tensor.external_data.add(key="location", value=location)
    for key in ("offset", "length"):
        if rng.random() < 0.4:
            tensor.external_data.add(key=key, value=rng.choice(("0", "4", "64", str(2**40), "-1", "x")))


def _rename_value(model: onnx.ModelProto, rng: random.Random) -> None:
    names = [t.name for t in model.graph.initializer] + [v.name for v in model.graph.input] + made_values(model.graph)
    style = rng.choice(list(STYLES))
    chosen = set(rng.sample(names, min(len(names), rng.choice((1, 2, 5, len(names))))))
    rename(model, STYLES[style], chosen)
    for value in (*model.graph.input, *model.graph.output):
        if rng.random() < 0.2:
            for dim in value.type.tensor_type.shape.dim:
                dim.dim_param = rng.choice(("T", "B", "", "a b", "T"))


def _redirect(model: onnx.ModelProto, rng: random.Random) -> None:
    """An input of a node becomes another value, none, or one of an outer graph."""
    block, node = _node(model, rng)
    known = [n for b in (block, model.graph) for m in b.node for n in m.output]
    known += [v.name for v in model.graph.input] + [t.name for t in model.graph.initializer] + [""]
    if node.input and rng.random() < 0.8:
        node.input[rng.randrange(len(node.input))] = rng.choice(known)
    else:
        node.input.append(rng.choice(known))


def _put_between(model: onnx.ModelProto, rng: random.Random) -> None:
    """An operator on the way of a value to one of its users."""
    block, node = _node(model, rng)
    place = rng.randrange(len(node.input))
    name = f"between_{rng.randrange(1000)}"
    kinds: Sequence[tuple[str, dict[str, Any]]] = (
        ("Identity", {}), ("Cast", {"to": 10}), ("Cast", {"to": 11}), ("Cast", {"to": 1}), ("Transpose", {}),
        ("Relu", {}), ("Neg", {}), ("Tanh", {}), ("Shape", {}), ("Transpose", {"perm": [1, 0, 2]}), ("Dropout", {}),
        ("Flatten", {"axis": 1}), ("DynamicQuantizeLinear", {}), ("ReduceMax", {}), ("Elu", {"alpha": 0.5}),
    )  # fmt: skip
    op, attributes = rng.choice(kinds)
    made = helper.make_node(op, [node.input[place]], [name], name, **attributes)
    node.input[place] = name
    position = next(k for k, n in enumerate(block.node) if n is node or n == node)
    block.node.insert(position, made)


def _repeat(model: onnx.ModelProto, rng: random.Random) -> None:
    """A copy of a node, and its first output as one of the graph."""
    block, node = _node(model, rng)
    copy = block.node.add()
    copy.CopyFrom(node)
    for k, name in enumerate(copy.output):
        copy.output[k] = name and f"{name}_again"
    if rng.random() < 0.5 and hasattr(block, "initializer"):
        shape = None if rng.random() < 0.5 else [None, "again", 3]
        block.output.append(helper.make_tensor_value_info(copy.output[0], TensorProto.FLOAT, shape))


def _hand_out(model: onnx.ModelProto, rng: random.Random) -> None:
    """A value in the middle becomes an output."""
    name = rng.choice([n for node in model.graph.node for n in node.output if n])
    kind = rng.choice((TensorProto.FLOAT, TensorProto.FLOAT, TensorProto.INT64, TensorProto.FLOAT16, TensorProto.BOOL))
    model.graph.output.append(helper.make_tensor_value_info(name, kind, rng.choice((None, [None], ["T", "B", 3]))))


def _omit(model: onnx.ModelProto, rng: random.Random) -> None:
    """Optional inputs and outputs: "" or left out at the end."""
    _, node = _node(model, rng)
    values = rng.choice((node.input, node.output))
    if rng.random() < 0.5:
        values[rng.randrange(len(values))] = ""
    else:
        values.pop()


def _reorder(model: onnx.ModelProto, rng: random.Random) -> None:
    block = rng.choice(_blocks(model))
    nodes = [onnx.NodeProto.FromString(n.SerializeToString()) for n in block.node]
    rng.shuffle(nodes)
    del block.node[:]
    block.node.extend(nodes)


def _change_version(model: onnx.ModelProto, rng: random.Random) -> None:
    action = rng.randrange(4)
    if action == 0:
        model.opset_import.append(
            helper.make_opsetid(rng.choice(("", "ai.onnx", "com.microsoft", "x")), rng.randrange(30))
        )
    elif action == 1:
        model.ir_version = rng.randrange(16)
    else:
        model.opset_import[0].version = rng.randrange(5, 27)


def _change_dimension(model: onnx.ModelProto, rng: random.Random) -> None:
    values = [v for b in _blocks(model) if hasattr(b, "value_info") for v in (*b.input, *b.output, *b.value_info)
              if not isinstance(v, str)]  # fmt: skip
    tensor = rng.choice(values).type.tensor_type
    action = rng.randrange(6)
    if action == 0:
        tensor.ClearField("shape")
    elif action == 1:
        tensor.elem_type = rng.choice((1, 10, 11, 16, 7, 6, 0))
    elif action == 2:
        tensor.shape.dim.add()
    elif action == 3 and tensor.shape.dim:
        tensor.shape.dim.pop()
    else:
        dim = rng.choice(list(tensor.shape.dim))
        if rng.random() < 0.5:
            dim.dim_param = rng.choice(("T", "B", "N", ""))
        else:
            dim.dim_value = rng.choice((0, 1, 2, 3, 5, -1, 2**40, 2**62))


def _into_function(model: onnx.ModelProto, rng: random.Random) -> None:
    """A node of the main graph becomes a call of a function with it; maybe with an overload or in rnnqc's domain."""
    node = rng.choice(list(model.graph.node))
    domain, overload = rng.choice(("f", "f", "ai.rnnqc", "")), rng.choice(("", "", "one"))
    inputs, outputs = list(dict.fromkeys(n for n in node.input if n)), [n for n in node.output if n]
    inner = onnx.NodeProto.FromString(node.SerializeToString())
    name = rng.choice(("Layer", "Layer", "QuantLSTMCell"))
    function = helper.make_function(domain, name, inputs, outputs, [inner], list(model.opset_import))
    function.overload = overload
    model.functions.append(function)
    node.CopyFrom(helper.make_node(name, inputs, outputs, node.name, domain=domain))
    node.overload = overload
    if all(o.domain != domain for o in model.opset_import):
        model.opset_import.append(helper.make_opsetid(domain, 1))
    model.ir_version = max(model.ir_version, 10 if overload else 8)


def _quantize_weight(model: onnx.ModelProto, rng: random.Random) -> None:
    """A float initializer comes out of DequantizeLinear, as in a model that was quantized before."""
    tensor = rng.choice([t for t in model.graph.initializer if t.data_type == TensorProto.FLOAT])
    array = numpy_helper.to_array(tensor)
    codes = np.clip(np.rint(array * 50), -127, 127).astype(np.int8)
    name = tensor.name
    model.graph.initializer.remove(tensor)
    scale = np.full(array.shape[-1:] if rng.random() < 0.3 else (), 0.02, np.float32)
    made = {f"{name}_codes": codes, f"{name}_scale": scale, f"{name}_zero": np.zeros(scale.shape, np.int8)}
    model.graph.initializer.extend(numpy_helper.from_array(v, k) for k, v in made.items())
    model.graph.node.insert(0, helper.make_node("DequantizeLinear", list(made), [name], axis=-1))


_CHANGES: tuple[Callable[[onnx.ModelProto, random.Random], None], ...] = (
    _change_attribute, _change_attribute, _retype_attribute, _swap_attributes, _retype_tensor, _reshape_tensor,
    _fill_tensor, _store_otherwise, _outside, _rename_value, _redirect, _redirect, _put_between, _put_between, _repeat,
    _hand_out, _omit, _reorder, _change_version, _change_dimension, _change_dimension, _into_function, _quantize_weight,
)  # fmt: skip
