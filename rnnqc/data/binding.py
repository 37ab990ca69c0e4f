"""Binds symbolic dimensions of the inputs to numbers, and inputs to constants."""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

from rnnqc.errors import CompileError, located
from rnnqc.ir import Constant, Model, Value, graph_info
from rnnqc.proto.given import Given

BOUND_KEY = "rnnqc.bind"
"""Metadata key of a model with bound inputs: their values by name, as JSON."""


def bound_model(source: Given, dims: Mapping[str, int], given: Mapping[str, Any]) -> Model:
    """Returns the model with its dimensions and inputs bound.

    Raises:
        CompileError: It has no dimension or no input of a name, or a value does not fit.
    """
    model = Model.load(source)
    with located(model.source):
        bind_dimensions(model, dims)
        bind_inputs(model, given)
    return model


def bind_dimensions(model: Model, dims: Mapping[str, int]) -> None:
    """Replaces symbolic dimensions of graph inputs, and of outputs that share them, by numbers.

    Raises:
        CompileError: No input has a dimension of that name, or the number is not positive.
    """
    for name, size in dims.items():
        if size <= 0:
            raise CompileError(
                f"--dim {name}={size}.", supported="positive sizes", action=f"for example --dim {name}=100"
            )
        holders = [v for v in model.graph.inputs if v.shape is not None and name in v.shape]
        for value in (*holders, *(v for v in model.graph.outputs if v.shape is not None and name in v.shape)):
            value.shape = [size if d == name else d for d in value.shape]
        if not holders:
            known = sorted({d for v in model.graph.inputs for d in (v.shape or []) if isinstance(d, str)})
            raise CompileError(
                f"No input has a dimension {name!r}.",
                supported=", ".join(known) or "nothing: the model has no symbolic dimensions",
                action=_meant(name, known) or "name a dimension of the inputs, or leave --dim out",
            )
    if dims:
        _forget_other_names(model)


def _forget_other_names(model: Model) -> None:
    """Removes dimension names that no input has from the declared shapes inside a model.

    Exporters give each dimension of a loop body a new name. Such a name would hide a size that follows from the inputs.
    """
    known = {d for v in model.graph.inputs for d in v.shape or () if isinstance(d, str)}
    kept = {id(v) for v in (*model.graph.inputs, *model.graph.outputs)}
    for graph in model.graphs():
        for value in (*graph.inputs, *graph.outputs, *(v for n in graph.nodes for v in n.outputs)):
            if id(value) not in kept and not isinstance(value, Constant) and value.shape is not None:
                value.shape = [d if not isinstance(d, str) or d in known else None for d in value.shape]


def bind_inputs(model: Model, given: Mapping[str, Any]) -> None:
    """Turns graph inputs into initializers and records their values in the model's metadata.

    Args:
        model: The model; its dimensions are bound already.
        given: By name, a number or truth value that fills an input of any fixed shape, a list for an input with one
            axis, or an array of the shape of the input.

    Raises:
        CompileError: There is no such input, or the value does not fit its type or shape.
    """
    record = graph_info(model.graph)
    inputs = {v.name: v for v in model.graph.inputs}
    inputs |= {n: record.initializers[n] for n in record.input_order if n in record.initializers}
    known = bound_values(model.metadata)
    for name, value in given.items():
        if name not in inputs:
            names = sorted(inputs)
            raise CompileError(
                f"--bind: the model has no input {name!r}{' any more: it is bound' if name in known else ''}.",
                supported=", ".join(names) or "nothing: the model has no inputs",
                action=_meant(name, names) or "name an input of the model, or leave --bind out",
            )
        array = _fitting(name, value, inputs[name])
        constant = Constant(name, array)
        record.initializers[name] = constant
        record.input_order = [n for n in record.input_order if n != name]
        model.graph.inputs[:] = [v for v in model.graph.inputs if v.name != name]
        model.replace_all_uses(inputs.pop(name), constant)
        known[name] = array.tolist()
    if given:
        model.metadata[BOUND_KEY] = json.dumps(known, sort_keys=True, separators=(",", ":"))


def bound_values(metadata: Mapping[str, str]) -> dict[str, Any]:
    """Returns the values of bound inputs by name from the metadata; empty if they are damaged."""
    try:
        held = json.loads(metadata.get(BOUND_KEY, "{}"))
    except (ValueError, RecursionError):
        return {}
    return held if isinstance(held, dict) else {}


def bound_text(value: Any) -> str:
    """Formats a value for `--bind`: one number where all elements are equal, as for an input of any fixed shape."""
    array = np.asarray(value)
    same = array.size > 0 and bool((array == array.flat[0]).all())
    return json.dumps(array.flat[0].item() if same else value, separators=(",", ":"))


def bound_values_of(proto: onnx.ModelProto) -> dict[str, Any]:
    """Returns the values of bound inputs by name."""
    return bound_values({p.key: p.value for p in proto.metadata_props if p.key == BOUND_KEY})


def bound_like(proto: onnx.ModelProto, other: onnx.ModelProto) -> onnx.ModelProto:
    """Binds the inputs of `proto` that `other`, lowered from it, has bound; the same object if there are none.

    Raises:
        CompileError: It has no input of that name and type.
    """
    held = {v.name for v in proto.graph.input}
    missing = {n: v for n, v in bound_values_of(other).items() if n in held}
    if not missing:
        return proto
    model = Model.load(proto)
    bind_inputs(model, missing)
    return model.proto


def _fitting(name: str, value: Any, declared: Value) -> npt.NDArray[Any]:
    """Converts a value to an array with the type and shape of an input.

    Raises:
        CompileError: It does not fit.
    """
    where = f"--bind: input {name!r}"
    dtype, shape = declared.dtype, declared.shape
    if not isinstance(dtype, type | np.dtype) or np.dtype(dtype).kind not in "fiub":
        raise CompileError(
            f"{where} is {dtype or 'of no known type'}.",
            supported="inputs of numbers and truth values",
            action="leave this input free",
        )
    array = np.asarray(value)
    made = _converted(array, np.dtype(dtype))
    if made is None:
        raise CompileError(
            f"{where} is {np.dtype(dtype)}, the value {_shown(array)}.",
            supported=_RANGES[np.dtype(dtype).kind],
            action="give a value that the type of the input has",
        )
    if shape is None:
        return made
    sizes = [int(d) if isinstance(d, int) and d >= 0 else None for d in shape]
    if made.ndim == 0 and None not in sizes:
        return np.full([s for s in sizes if s is not None], made)
    if made.ndim != len(sizes) or any(s not in (None, n) for s, n in zip(sizes, made.shape, strict=True)):
        free = [d for d in shape if isinstance(d, str) and d]
        hint = f"bind its size first (--dim {free[0]}=N)" if free and made.ndim == 0 else "give a value of that shape"
        raise CompileError(
            f"{where} has shape {_dims(shape)}, the value {list(made.shape)}.",
            supported="one number for an input of fixed size, a list for an input with one axis",
            action=hint,
        )
    return made


_FEW = 8
_RANGES = {
    "f": "finite numbers",
    "i": "whole numbers of its range",
    "u": "whole numbers of its range",
    "b": "true, false",
}


def _converted(array: npt.NDArray[Any], dtype: np.dtype[Any]) -> npt.NDArray[Any] | None:
    """Converts an array to another type; None if that changes values by more than float rounding."""
    if dtype.kind == "b" or array.dtype.kind == "b":
        return array if array.dtype.kind == dtype.kind else None
    if array.dtype.kind not in "iuf" or not np.isfinite(array).all():
        return None
    if dtype.kind == "f":
        with np.errstate(over="ignore"):
            made = array.astype(dtype)
        return made if np.isfinite(made).all() else None
    if array.dtype.kind == "f":
        return None
    limits = np.iinfo(dtype)
    inside = all(int(limits.min) <= int(v) <= int(limits.max) for v in array.ravel())
    return array.astype(dtype) if inside else None


def _shown(array: npt.NDArray[Any]) -> str:
    return str(array.tolist()) if array.size <= _FEW else f"{array.dtype} {list(array.shape)}"


def _dims(shape: Sequence[Any]) -> str:
    return "[" + ", ".join(str(d) if d not in (None, "") else "?" for d in shape) + "]"


def _meant(name: str, known: Sequence[str]) -> str:
    """A question that suggests the known name closest to `name`; "" if none is close."""
    near = difflib.get_close_matches(name, known, 1)
    return f"did you mean {near[0]}?" if near else ""
