"""Checks a protobuf model before anything else uses it.

It refuses only what onnxruntime refuses too or computes wrongly, or what cannot be represented; never what onnxruntime
runs (operators of other domains, and its own operators in the standard domain). All walks are iterative.
"""

from __future__ import annotations

import functools
from typing import Any

import onnx

from rnnqc.errors import CompileError
from rnnqc.proto.graph_walks import blocks_of
from rnnqc.proto.loop_bodies import check_bodies, check_results
from rnnqc.proto.structure import EXPORT_AGAIN, check_functions, check_structure
from rnnqc.proto.tensor_checks import check_sparse, check_tensor, check_type, tensors_of

STANDARD_DOMAINS = ("", "ai.onnx")
OLDEST_IR = 3
_LAYOUTS = (0, 1)


def check_model(proto: onnx.ModelProto, source: str) -> int:
    """Checks versions, structure, nodes and tensors.

    Args:
        proto: The model, its external data loaded.
        source: Name of the model in messages.

    Returns:
        The version of the standard operators.

    Raises:
        CompileError: With the node, value or tensor concerned.
    """
    opset = standard_opset(proto, source)
    check_structure(proto.graph, source)
    check_functions(proto.functions, source)
    for value in proto.graph.input:
        if value.type.HasField("tensor_type") and value.type.tensor_type.elem_type == onnx.TensorProto.UNDEFINED:
            raise CompileError(
                f"{source}: input {value.name!r} has no element type.",
                supported="inputs with a type",
                action=EXPORT_AGAIN,
            )
    check_results(proto, source)
    functions = {(f.domain, f.name) for f in proto.functions}
    for tensor, where in tensors_of(proto):
        check_tensor(tensor, f"{source}: {where}")
    for graph in blocks_of([proto.graph]):
        for node in graph.node:
            if node.domain in STANDARD_DOMAINS and (node.domain, node.op_type) not in functions:
                _check_node(node, opset, source)
                check_bodies(node, opset, source)
        if isinstance(graph, onnx.GraphProto):
            for sparse in graph.sparse_initializer:
                check_sparse(sparse, f"{source}: sparse tensor {sparse.values.name!r}")
            for value in [*graph.input, *graph.output, *graph.value_info]:
                check_type(value, f"{source}: value {value.name!r}")
    return opset


def standard_opset(proto: onnx.ModelProto, source: str) -> int:
    """Returns the version of the standard operator set that `proto` imports.

    Raises:
        CompileError: There is none, it is unknown to the installed onnx, or the IR version is.
    """
    versions = [o.version for o in proto.opset_import if o.domain in STANDARD_DOMAINS]
    newest = onnx.defs.onnx_opset_version()
    if not versions:
        raise CompileError(
            f"{source}: the model imports no standard operator set.",
            supported=f"ai.onnx 7 to {newest}",
            action=EXPORT_AGAIN,
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
            action=EXPORT_AGAIN,
        )
    return int(versions[0])


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
                action=EXPORT_AGAIN,
            )


def _fault(node: onnx.NodeProto, schema: Any) -> str:
    """Describes how `node` violates its schema (of onnx or of onnxruntime); empty if it does not."""
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
    """Returns onnxruntime's schemas of a standard operator; it has some that onnx removed or never had."""
    from onnxruntime.capi import onnxruntime_pybind11_state

    held = [
        s for s in onnxruntime_pybind11_state.get_all_operator_schema() if s.name == op and s.domain in STANDARD_DOMAINS
    ]
    fitting = [s for s in held if s.since_version <= opset]
    return tuple(s for s in fitting if s.since_version == max(f.since_version for f in fitting))


_TYPES: dict[int, str] = {v: k for k, v in onnx.TensorProto.DataType.items()}
