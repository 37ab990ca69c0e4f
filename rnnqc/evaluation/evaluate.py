"""Runs models in onnxruntime: whole, in part, with or without the native library."""

from __future__ import annotations

import math
import weakref
from collections.abc import Mapping, Sequence, Set
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime as ort

from rnnqc.errors import CompileError
from rnnqc.evaluation.session_options import quiet_options
from rnnqc.formats.format import Format
from rnnqc.formats.quantized_outputs import read_outputs, real_values
from rnnqc.ir import Model, Node, Value, constant_array, export_nodes
from rnnqc.proto.files import serialized
from rnnqc.proto.large_models import without_large_weights
from rnnqc.proto.shape_inference import infer_shapes

Array = npt.NDArray[Any]
LARGEST_CONSTANT = 2**31
"""The largest number of bytes of a value computed from constants."""
_WEIGHTS: weakref.WeakKeyDictionary[ort.InferenceSession, list[ort.OrtValue]] = weakref.WeakKeyDictionary()
"""Large weights of sessions, which read them where they are as long as they live."""
_ELEMENT = 4  # most constants are float32
_SMALL = 64


def make_session(
    model: onnx.ModelProto | bytes | str, *, native: bool = False, optimize: bool = True
) -> ort.InferenceSession:
    """Makes a CPU session with one thread.

    Args:
        model: A ModelProto, its bytes, or a path.
        native: Whether to register rnnqc's library.
        optimize: Whether onnxruntime may optimize the graph.

    Raises:
        CompileError: onnxruntime refuses the model.
    """
    options = quiet_options(optimize=optimize)
    options.intra_op_num_threads = 1
    if native:
        from rnnqc import runtime_ops

        runtime_ops.register(options)
    weights: list[ort.OrtValue] = []
    if isinstance(model, onnx.ModelProto):
        model, beside = without_large_weights(model)
        weights = list(map(ort.OrtValue.ortvalue_from_numpy, beside.values()))
        options.add_external_initializers(list(beside), weights)
        model = serialized(model, "The model to run")
    try:
        session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    except Exception as error:
        raise CompileError(
            f"onnxruntime {ort.__version__} refuses the model: {_first_lines(error)}",
            supported="models that onnxruntime runs on the CPU",
            action="check that the float model runs in onnxruntime",
        ) from error
    if weights:
        _WEIGHTS[session] = weights
    return session


def run_model(
    model: onnx.ModelProto | bytes | str, feeds: Mapping[str, Array], *, native: bool = False, optimize: bool = False
) -> dict[str, Array]:
    """Runs a model once; returns outputs by name.

    Raises:
        CompileError: onnxruntime refuses the model or fails while running it.
    """
    session = make_session(model, native=native, optimize=optimize)
    return run_session(session, feeds)


def run_session(
    session: ort.InferenceSession, feeds: Mapping[str, Array], *, sequences: bool = False, stored: bool = False
) -> dict[str, Any]:
    """Runs a session once; returns outputs by name, with real values for outputs that `lower` quantized.

    Args:
        session: The session.
        feeds: Inputs by name; other arrays are ignored.
        sequences: Whether outputs may also be sequences of tensors, which become lists of arrays.
        stored: Whether to keep quantized outputs as they are.

    Raises:
        CompileError: The feeds do not fit, onnxruntime fails, or an output is not a tensor.
    """
    names, known, formats = _interface(session)
    missing = sorted(known - set(feeds))
    if missing:
        raise CompileError(
            f"the data has no array for input {missing[0]!r}.",
            supported=", ".join(sorted(known)),
            action="add the array",
        )
    try:
        values = session.run(names, {k: v for k, v in feeds.items() if k in known})
    except Exception as error:
        raise CompileError(
            f"onnxruntime failed while running the model: {_first_lines(error)}",
            action="check that the model runs on this data; give data that fits it",
        ) from error
    for name, value in zip(names, values, strict=True):
        if not isinstance(value, np.ndarray | np.generic) and not (sequences and isinstance(value, list)):
            raise CompileError(
                f"output {name!r} is a {type(value).__name__}.",
                supported="tensors",
                action="remove the output from the model",
            )
    made = dict(zip(names, values, strict=True))
    return made if stored else real_values(made, formats)


class _Interface(NamedTuple):
    """Names of the outputs and of the inputs of a session, and the formats of the outputs that `lower` quantized."""

    outputs: Sequence[str]
    inputs: Set[str]
    formats: Mapping[str, Format]


_INTERFACES: weakref.WeakKeyDictionary[ort.InferenceSession, _Interface] = weakref.WeakKeyDictionary()
"""Asking a session takes as long as a call of a small model."""


def _interface(session: ort.InferenceSession) -> _Interface:
    if session not in _INTERFACES:
        outputs, inputs = ([v.name for v in held] for held in (session.get_outputs(), session.get_inputs()))
        _INTERFACES[session] = _Interface(outputs, frozenset(inputs), quantized_outputs(session))
    return _INTERFACES[session]


def quantized_outputs(session: ort.InferenceSession) -> dict[str, Format]:
    """Returns the formats of the outputs that `lower` quantized, by name."""
    if not any(o.type in _QUANTIZED for o in session.get_outputs()):
        return {}
    return read_outputs(session.get_modelmeta().custom_metadata_map)


_QUANTIZED = ("tensor(int8)", "tensor(uint8)", "tensor(int16)", "tensor(uint16)")


def evaluate_nodes(model: Model, nodes: Sequence[Node], value: Value) -> Array | None:
    """Computes `value` with constant `nodes` (in order, standard operators); None if onnxruntime cannot."""
    return evaluate_values(model, nodes, [value]).get(value.name)


def evaluate_values(
    model: Model, nodes: Sequence[Node], values: Sequence[Value], known: Mapping[str, Array] | None = None
) -> dict[str, Array]:
    """Computes values with constant `nodes` (in order, standard operators); empty if one cannot be computed.

    Args:
        model: The model of the nodes.
        nodes: They read constants, each other's values, and those that are known.
        values: The values to compute; the result is keyed by their names.
        known: Further values that the nodes read, by name.
    """
    if any(n.op in NOT_RUN and not n.domain for n in nodes) or not _divisions_survive(model, nodes, known or {}):
        return {}
    return _evaluated(model, nodes, values, known or {})


def _evaluated(
    model: Model, nodes: Sequence[Node], values: Sequence[Value], known: Mapping[str, Array]
) -> dict[str, Array]:
    held = {v.name: known.get(v.name, constant_array(v)) for n in nodes for v in n.inputs if v.name}
    held.update((v.name, known.get(v.name, constant_array(v))) for v in values)
    constants = {name: array for name, array in held.items() if array is not None}
    wanted = [v for v in values if v.name not in constants]
    found = {v.name: constants[v.name] for v in values if v.name in constants}
    if not wanted:
        return found
    graph = onnx.GraphProto(name="constant")
    graph.node.extend(export_nodes([n for n in nodes if not all(v.name in constants for v in n.outputs)]))
    graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in constants.items())
    for value in wanted:
        graph.output.add(name=value.name)
    proto = onnx.ModelProto(ir_version=10, graph=graph)
    proto.opset_import.add(domain="", version=model.opset)
    if _is_too_large(proto):
        return {}
    try:
        return found | run_model(proto, {})
    except CompileError:
        return {}


NOT_RUN = ("GatherND", "OneHot", "SplitToSequence")
"""Operators that can crash onnxruntime 1.31, depending on their operands; they are never evaluated."""
_DIVISIONS = ("Div", "Mod")


def _divisions_survive(model: Model, nodes: Sequence[Node], known: Mapping[str, Array]) -> bool:
    """Whether all divisions are safe, that is none of the least integer by -1.

    The operands of all divisions that follow equally many others are computed in one run.
    """
    divisions: list[list[Node]] = []
    before: dict[int, int] = {}  # by `id` of a value, the largest number of divisions on a way to it
    for node in nodes:
        count = max((before.get(id(v), 0) for v in node.inputs), default=0)
        if node.op in _DIVISIONS and not node.domain:
            divisions += [[]] if count == len(divisions) else []
            divisions[count].append(node)
            count += 1
        before.update((id(v), count) for v in node.outputs)
    for count, together in enumerate(divisions):
        operands = {id(v): v for n in together for v in n.inputs if v.name}.values()
        first = [n for n in nodes if all(before[id(v)] <= count for v in n.outputs)]
        arrays = _evaluated(model, first, list(operands), known)
        if not all(_survives([arrays.get(v.name) for v in n.inputs if v.name]) for n in together):
            return False
    return True


def _survives(operands: Sequence[Array | None]) -> bool:
    """Whether the operands of a division are known and can be divided."""
    arrays = [a for a in operands if a is not None]
    if len(arrays) < len(operands):
        return False
    whole = [a for a in arrays if a.dtype.kind == "i"]
    least = any((a == np.iinfo(a.dtype).min).any() for a in whole[:1])
    return not (least and any((a == -1).any() for a in whole[1:]))


def _is_too_large(proto: onnx.ModelProto) -> bool:
    """Whether a value of a model without inputs is known to have more than LARGEST_CONSTANT bytes.

    A few numbers can request any size (Expand, Tile, Range, ConstantOfShape, sums of a row and a column).
    """
    described = onnx.ModelProto(ir_version=proto.ir_version, opset_import=proto.opset_import)
    described.graph.node.extend(proto.graph.node)
    described.graph.output.extend(proto.graph.output)
    for tensor in proto.graph.initializer:
        if math.prod(tensor.dims) <= _SMALL:
            described.graph.initializer.append(tensor)
        else:  # the shape is enough
            value = onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims))
            described.graph.input.append(value)
    try:
        inferred = infer_shapes(described).graph
    except Exception:
        return False  # onnxruntime reports the error
    return any(_declared_bytes(v) > LARGEST_CONSTANT for v in (*inferred.value_info, *inferred.output))


def _declared_bytes(value: onnx.ValueInfoProto) -> int:
    """Returns the bytes of a tensor of known shape; 0 if unknown."""
    tensor = value.type.tensor_type
    dims = [d.dim_value if d.HasField("dim_value") else 0 for d in tensor.shape.dim]
    return math.prod(dims) * _ELEMENT if tensor.HasField("shape") else 0


def _first_lines(error: Exception) -> str:
    """Returns onnxruntime's message without the listings that may follow."""
    lines = [line.strip() for line in str(error).strip().splitlines()[:3]]
    return " ".join(line for line in lines if line) or type(error).__name__
