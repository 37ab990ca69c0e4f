"""Checks of a protobuf model before anything is done with it.

What is refused here is refused by onnxruntime too, or cannot be represented; what onnxruntime runs (operators of other
domains, and the operators of its own that it keeps in the standard domain) is never refused. All walks are iterative.
"""

from __future__ import annotations

import functools
import graphlib
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import onnx

from rnnqc.errors import CompileError
from rnnqc.proto.graph_walks import blocks_of, inner_graphs
from rnnqc.proto.loop_bodies import check_bodies

STANDARD_DOMAINS = ("", "ai.onnx")
OLDEST_IR = 3
_EXPORT_AGAIN = "export the model again"
_BITS = {"INT4": 4, "UINT4": 4, "FLOAT4E2M1": 4, "INT2": 2, "UINT2": 2}
# Numbers per element in the fields of TensorProto that hold values one by one; other types are packed into int32_data.
_FIELDS = {
    "FLOAT": ("float_data", 1),
    "COMPLEX64": ("float_data", 2),
    "DOUBLE": ("double_data", 1),
    "COMPLEX128": ("double_data", 2),
    "INT64": ("int64_data", 1),
    "UINT32": ("uint64_data", 1),
    "UINT64": ("uint64_data", 1),
    "STRING": ("string_data", 1),
}
_LAYOUTS = (0, 1)
LARGEST_SPARSE = 2**28
"""Elements of a sparse tensor, with its zeros."""
_MESSAGES = {onnx.AttributeProto.TENSOR: "t", onnx.AttributeProto.GRAPH: "g"}


def check_model(proto: onnx.ModelProto, source: str) -> int:
    """Checks versions, structure, nodes and tensors.

    Args:
        proto: The model, its external data loaded.
        source: How messages call the model.

    Returns:
        The version of the standard operators.

    Raises:
        CompileError: With the node, value or tensor concerned.
    """
    opset = standard_opset(proto, source)
    check_structure(proto.graph, source)
    _check_functions(proto.functions, source)
    for value in proto.graph.input:
        if value.type.HasField("tensor_type") and value.type.tensor_type.elem_type == onnx.TensorProto.UNDEFINED:
            raise CompileError(
                f"{source}: input {value.name!r} has no element type.",
                supported="inputs with a type",
                action=_EXPORT_AGAIN,
            )
    functions = {(f.domain, f.name) for f in proto.functions}
    for tensor, where in tensors_of(proto):
        _check_tensor(tensor, f"{source}: {where}")
    for graph in blocks_of([proto.graph]):
        for node in graph.node:
            if node.domain in STANDARD_DOMAINS and (node.domain, node.op_type) not in functions:
                _check_node(node, opset, source)
                check_bodies(node, opset, source)
        if isinstance(graph, onnx.GraphProto):
            for sparse in graph.sparse_initializer:
                _check_sparse(sparse, f"{source}: sparse tensor {sparse.values.name!r}")
            for value in [*graph.input, *graph.output, *graph.value_info]:
                _check_type(value, f"{source}: value {value.name!r}")
    return opset


def standard_opset(proto: onnx.ModelProto, source: str) -> int:
    """Version of the standard operator set `proto` imports.

    Raises:
        CompileError: There is none, it is unknown to the installed onnx, or the IR version is.
    """
    versions = [o.version for o in proto.opset_import if o.domain in STANDARD_DOMAINS]
    newest = onnx.defs.onnx_opset_version()
    if not versions:
        raise CompileError(
            f"{source}: the model imports no standard operator set.",
            supported=f"ai.onnx 7 to {newest}",
            action=_EXPORT_AGAIN,
        )
    if not 1 <= versions[0] <= newest:
        raise CompileError(
            f"{source}: operator set ai.onnx {versions[0]} is not known to the installed onnx {onnx.__version__}.",
            supported=f"7 to {newest}",
            action="export the model for an older operator set, or install a newer onnx",
        )
    if not OLDEST_IR <= proto.ir_version <= onnx.IR_VERSION:
        raise CompileError(
            f"{source}: IR version {proto.ir_version}.",
            supported=f"{OLDEST_IR} to {onnx.IR_VERSION}",
            action=_EXPORT_AGAIN,
        )
    return int(versions[0])


def check_structure(graph: onnx.GraphProto, source: str) -> None:
    """Checks that every value has one producer; in subgraphs too.

    Raises:
        CompileError: With the node and value concerned.
    """
    unique = "one producer and one name for each value"
    work: list[tuple[onnx.GraphProto, frozenset[str]]] = [(graph, frozenset())]
    while work:
        current, outer = work.pop()
        own: set[str] = set()
        for value in current.input:
            if not value.name or value.name in own:
                raise CompileError(
                    f"{source}: two graph inputs are called {value.name!r}, or one has no name.",
                    supported=unique,
                    action=_EXPORT_AGAIN,
                )
            own.add(value.name)
        stored = {t.name for t in [*current.initializer, *(s.values for s in current.sparse_initializer)]}
        if "" in stored:
            raise CompileError(f"{source}: an initializer has no name.", supported=unique, action=_EXPORT_AGAIN)
        own |= stored
        for node in current.node:
            for name in node.output:
                if name and name in own:
                    raise CompileError(
                        f"{source}: value {name!r} has more than one producer; the second is {_call(node)}.",
                        supported=unique,
                        action=_EXPORT_AGAIN,
                    )
                own.add(name)
        own.discard("")
        visible = outer | own
        for node in current.node:
            if not node.op_type:
                raise CompileError(
                    f"{source}: {_call(node)} has no operator type.", supported="named operators", action=_EXPORT_AGAIN
                )
            if any(isinstance(text, bytes) for text in (node.op_type, node.domain, *node.input, *node.output)):
                raise CompileError(
                    f"{source}: a name at {_call(node)} is not UTF-8.", supported="UTF-8", action=_EXPORT_AGAIN
                )
            empty = [a.name for a in node.attribute if _is_empty(a)]
            if empty:
                raise CompileError(
                    f"{source}: attribute {empty[0]!r} of {_call(node)} is empty.",
                    supported="attributes that hold what their type says",
                    action=_EXPORT_AGAIN,
                )
            references = [a.name for a in node.attribute if a.ref_attr_name]
            if references:
                raise CompileError(
                    f"{source}: attribute {references[0]!r} of {_call(node)} stands for one of a function.",
                    supported="such attributes in functions alone",
                    action=_EXPORT_AGAIN,
                )
            for name in node.input:
                if name and name not in visible:
                    raise CompileError(
                        f"{source}: {_call(node)} uses {name!r}, which nothing makes.",
                        supported=unique,
                        action=_EXPORT_AGAIN,
                    )
            work.extend((inner, visible) for inner in inner_graphs(node))
        for value in current.output:
            if value.name in visible and value.name not in own:
                raise CompileError(
                    f"{source}: output {value.name!r} of a subgraph is a value from outside.",
                    supported="values made in the subgraph",
                    action="put an Identity node in front of the output",
                )
            if value.name not in own:
                raise CompileError(
                    f"{source}: graph output {value.name!r} is made by nothing.", supported=unique, action=_EXPORT_AGAIN
                )


def _check_functions(functions: Iterable[onnx.FunctionProto], source: str) -> None:
    """Refuses two functions of one name, and functions that call each other in a circle."""
    calls: dict[tuple[str, str, str], set[tuple[str, str, str]]] = {}
    for function in functions:
        key = (function.domain, function.name, function.overload)
        if key in calls:
            raise CompileError(
                f"{source}: two functions are called {function.name!r} in domain {function.domain!r}.",
                supported="one function for each domain, name and overload",
                action=_EXPORT_AGAIN,
            )
        calls[key] = {(n.domain, n.op_type, n.overload) for b in blocks_of([function]) for n in b.node}
    try:
        graphlib.TopologicalSorter({key: called & calls.keys() for key, called in calls.items()}).prepare()
    except graphlib.CycleError as error:
        domain, name, _ = error.args[1][0]
        raise CompileError(
            f"{source}: function {name!r} of domain {domain!r} calls itself, or functions that call it.",
            supported="functions without recursion",
            action=_EXPORT_AGAIN,
        ) from error


def _is_empty(attr: onnx.AttributeProto) -> bool:
    return attr.type in _MESSAGES and not attr.HasField(_MESSAGES[attr.type]) and not attr.ref_attr_name


def _call(node: onnx.NodeProto) -> str:
    name = node.name or next((o for o in node.output if o), "")
    return f"node {name!r} ({node.op_type})"


# ---- nodes ------------------------------------------------------------------------------------------------------


def _check_node(node: onnx.NodeProto, opset: int, source: str) -> None:
    known = _onnx_schema(node.op_type, opset)
    fault = _fault(node, known)
    if fault and all(_fault(node, schema) for schema in _onnxruntime_schemas(node.op_type, opset)):
        name = node.name or next((o for o in node.output if o), "")
        supported = f"what {node.op_type} of operator set {opset} defines" if known is not None else f"ai.onnx {opset}"
        raise CompileError(
            f'{source}: Operator "{node.op_type}" (node {name!r}) {fault}.',
            supported=supported,
            action="export the model again; an operator of your own belongs into a domain of its own",
        )
    if node.op_type in ("LSTM", "GRU", "RNN"):
        layout = next((a.i for a in node.attribute if a.name == "layout"), 0)
        if layout not in _LAYOUTS:
            raise CompileError(
                f'{source}: Operator "{node.op_type}" (node {node.name!r}): layout = {layout}.',
                supported="0 or 1",
                action=_EXPORT_AGAIN,
            )


def _fault(node: onnx.NodeProto, schema: Any) -> str:
    """What of `node` its schema (of onnx or of onnxruntime) does not allow; empty if nothing."""
    if schema is None:
        return "is not known"
    if schema.deprecated:
        return f"is deprecated since operator set {schema.since_version}"
    for count, low, high, what in (
        (len(node.input), schema.min_input, schema.max_input, "inputs"),
        (len(node.output), schema.min_output, schema.max_output, "outputs"),
    ):
        if not low <= count <= high:
            return f"has {count} {what} instead of {low}" + ("" if low == high else f" to {high}")
    allowed = schema.attributes
    for attr in node.attribute:
        if attr.name not in allowed:
            return f"has the unknown attribute {attr.name!r}"
        wanted = str(allowed[attr.name].type).rpartition(".")[2]
        found = onnx.AttributeProto.AttributeType.Name(attr.type) if attr.type in _ATTRIBUTE_TYPES else str(attr.type)
        if found != wanted and not attr.ref_attr_name:
            return f"has attribute {attr.name!r} of type {found} instead of {wanted}"
    present = {a.name for a in node.attribute}
    missing = sorted(name for name, described in allowed.items() if described.required and name not in present)
    return f"lacks the attribute {missing[0]!r}" if missing else ""


_ATTRIBUTE_TYPES = frozenset(onnx.AttributeProto.AttributeType.values())


@functools.cache
def _onnx_schema(op: str, opset: int) -> Any:
    try:
        return onnx.defs.get_schema(op, opset, "")
    except onnx.defs.SchemaError:
        return None


@functools.cache
def _onnxruntime_schemas(op: str, opset: int) -> tuple[Any, ...]:
    """What onnxruntime defines a standard operator as: it keeps some that onnx has removed or never had."""
    from onnxruntime.capi import onnxruntime_pybind11_state

    held = [
        s for s in onnxruntime_pybind11_state.get_all_operator_schema() if s.name == op and s.domain in STANDARD_DOMAINS
    ]
    fitting = [s for s in held if s.since_version <= opset]
    return tuple(s for s in fitting if s.since_version == max(f.since_version for f in fitting))


# ---- tensors ----------------------------------------------------------------------------------------------------


def tensors_of(proto: onnx.ModelProto) -> Iterator[tuple[onnx.TensorProto, str]]:
    """Every tensor of a model, and how messages call it: initializers and attributes, functions included."""
    for block in blocks_of([proto.graph, *proto.functions]):
        if isinstance(block, onnx.GraphProto):
            for tensor in block.initializer:
                yield tensor, f"tensor {tensor.name!r}"
            for sparse in block.sparse_initializer:
                yield sparse.values, f"values of the sparse tensor {sparse.values.name!r}"
                yield sparse.indices, f"indices of the sparse tensor {sparse.values.name!r}"
        for node in block.node:
            for attr in node.attribute:
                for tensor in [*([attr.t] if attr.HasField("t") else []), *attr.tensors]:
                    yield tensor, f"attribute {attr.name!r} of {_call(node)}"


def tensor_bytes(tensor: onnx.TensorProto, where: str) -> int:
    """Size of the elements of a tensor as its dimensions and type declare it.

    Raises:
        CompileError: A dimension is negative, or the type is unknown or has no fixed size.
    """
    return (_elements(tensor, where) * _bits(tensor, where) + 7) // 8


def _elements(tensor: onnx.TensorProto, where: str) -> int:
    count = 1
    for dim in tensor.dims:
        if dim < 0:
            raise CompileError(
                f"{where}: shape {list(tensor.dims)}.", supported="dimensions from 0 on", action=_EXPORT_AGAIN
            )
        count *= dim
    return count


_TYPES: dict[int, str] = {v: k for k, v in onnx.TensorProto.DataType.items()}


def _check_type(value: onnx.ValueInfoProto, where: str) -> None:
    described = value.type
    while described.WhichOneof("value") in ("sequence_type", "optional_type"):
        described = getattr(described, described.WhichOneof("value")).elem_type
    kind = described.WhichOneof("value")
    if kind in ("tensor_type", "sparse_tensor_type") and getattr(described, kind).elem_type not in _TYPES:
        number = getattr(described, kind).elem_type
        raise CompileError(f"{where}: element type {number}.", supported="the types of ONNX", action=_EXPORT_AGAIN)


def _type_name(tensor: onnx.TensorProto, where: str) -> str:
    name = _TYPES.get(tensor.data_type, "UNDEFINED")
    if name == "UNDEFINED":
        raise CompileError(
            f"{where}: element type {tensor.data_type}.", supported="the types of ONNX", action=_EXPORT_AGAIN
        )
    return name


def _bits(tensor: onnx.TensorProto, where: str) -> int:
    name = _type_name(tensor, where)
    if name == "STRING":
        raise CompileError(
            f"{where}: strings as raw data.",
            supported="numbers; strings are stored in string_data",
            action=_EXPORT_AGAIN,
        )
    return _BITS.get(name) or onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize * 8


def _check_tensor(tensor: onnx.TensorProto, where: str) -> None:
    count = _elements(tensor, where)
    name = _type_name(tensor, where)
    if tensor.HasField("segment"):
        raise CompileError(f"{where}: a segment of a tensor.", supported="whole tensors", action=_EXPORT_AGAIN)
    if tensor.HasField("raw_data"):
        found, wanted, unit = len(tensor.raw_data), tensor_bytes(tensor, where), "bytes"
    else:
        field, numbers = _FIELDS.get(name, ("int32_data", 1))
        per_number = 8 // _BITS.get(name, 8)
        found, wanted, unit = (
            len(getattr(tensor, field)),
            (count * numbers + per_number - 1) // per_number,
            f"values in {field}",
        )
    if found != wanted:
        raise CompileError(
            f"{where}: {found} {unit}; shape {list(tensor.dims)} of {name.lower()} needs {wanted}.",
            supported="tensors that hold exactly their elements",
            action="export the model again; the file is damaged or was cut",
        )


def _check_sparse(sparse: onnx.SparseTensorProto, where: str) -> None:
    shape, count = list(sparse.dims), list(sparse.values.dims)
    form = list(sparse.indices.dims)
    sound = len(count) == 1 and form in (count, [*count, len(shape)]) and all(d >= 0 for d in shape)
    if sound and sparse.indices.data_type == onnx.TensorProto.INT64:
        indices = onnx.numpy_helper.to_array(sparse.indices)
        limit = np.asarray(shape) if len(form) == 2 else np.prod(shape, dtype=object)
        sound = bool(np.all(indices >= 0) and np.all(indices < limit))
    else:
        sound = False
    if sound and int(np.prod(shape, dtype=object)) > LARGEST_SPARSE:
        raise CompileError(
            f"{where}: shape {shape}.",
            supported=f"up to {LARGEST_SPARSE} elements: onnxruntime fills in the zeros",
            action=_EXPORT_AGAIN,
        )
    if not sound:
        raise CompileError(
            f"{where}: shape {shape}, values {count}, indices {form}.",
            supported="values [N], int64 indices [N] or [N, rank] inside the shape",
            action=_EXPORT_AGAIN,
        )
