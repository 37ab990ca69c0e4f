"""Describes the inputs that a model takes, and checks arrays against them."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

from rnnqc.data.binding import bound_values_of
from rnnqc.data.declared_shapes import fixed_size
from rnnqc.data.npz import RAGGED
from rnnqc.data.state_hints import hinted_states, options_of_states
from rnnqc.errors import CompileError

Feeds = dict[str, npt.NDArray[Any]]


def true_inputs(proto: onnx.ModelProto) -> list[onnx.ValueInfoProto]:
    """Graph inputs that are not initializers."""
    stored = {t.name for t in proto.graph.initializer} | {t.values.name for t in proto.graph.sparse_initializer}
    return [i for i in proto.graph.input if i.name not in stored]


def element_type(value: onnx.ValueInfoProto) -> np.dtype[Any]:
    """The type of an input's elements.

    Raises:
        CompileError: The input is not a tensor, or declares no element type.
    """
    try:
        return onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
    except (KeyError, TypeError) as error:
        raise CompileError(
            f"input {value.name!r} is no tensor, or has no element type.",
            supported="tensors",
            action="remove the input from the model",
        ) from error


def with_dimensions_of(model: onnx.ModelProto, other: onnx.ModelProto) -> onnx.ModelProto:
    """Returns a copy of `model` whose free input dimensions have the sizes they are bound to in `other`."""
    bound = {i.name: i.type.tensor_type.shape.dim for i in true_inputs(other)}
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for value in copy.graph.input:
        dims = value.type.tensor_type.shape.dim
        for dim, known in zip(dims, bound.get(value.name, dims), strict=False):
            size = fixed_size(known)
            if fixed_size(dim) is None and size is not None:
                dim.dim_value = size
    return copy


def check_feed(
    feed: Mapping[str, npt.NDArray[Any]],
    proto: onnx.ModelProto,
    source: str,
    states: Mapping[str, str] | None = None,
    carried: AbstractSet[str] = frozenset(),
) -> None:
    """Checks names, types and shapes of one feed.

    A feed that contains only empty arrays is refused: onnxruntime 1.31 crashes when LSTM and GRU get no rows.

    Args:
        feed: Arrays by name.
        proto: The model.
        source: Name of the feed in messages.
        states: Outputs by the input that they appear to become; those of the model by default.
        carried: Inputs that may be absent: states that come from the call before.

    Raises:
        CompileError: With the input that does not fit.
    """
    for name, value in bound_values_of(proto).items():
        if name in feed and not _holds(feed[name], np.asarray(value)):
            raise CompileError(
                f"{source}: array {name!r} is not {value}, which the model is bound to (--bind).",
                supported="the value of --bind, or no array of that name",
                action="leave the array out, or lower the float model with another value",
            )
    inputs = [i for i in true_inputs(proto) if i.name in feed or i.name not in carried]
    sized = {i.name: feed[i.name] for i in inputs if i.name in feed and feed[i.name].ndim}
    if sized and not any(a.size for a in sized.values()):
        raise CompileError(
            f"{source}: all arrays are empty: {', '.join(f'{k!r} {list(a.shape)}' for k, a in sized.items())}.",
            supported="at least one row and one step",
            action="check the data",
        )
    missing = [i.name for i in inputs if i.name not in feed]
    if missing:
        states = left_states(proto, states, carried)
        raise CompileError(
            f"{source}: no array for input {' and '.join(map(repr, missing))}; "
            f"arrays: {', '.join(sorted(feed)) or 'none'}.",
            supported=f"arrays named {', '.join(i.name for i in inputs)}",
            action=f"name the arrays as the model's inputs{or_carry(states if {*states} & {*missing} else {})}",
        )
    for value in inputs:
        array, tensor = feed[value.name], value.type.tensor_type
        dtype = element_type(value)
        if array.dtype != dtype and not (dtype.kind == "O" and array.dtype.kind in "OUS"):
            raise CompileError(
                f"{source}: array {value.name!r} is {array.dtype}.",
                supported=str(dtype),
                action=RAGGED if array.dtype.kind == "O" else "convert the array with numpy.astype",
            )
        dims = [fixed_size(d) for d in tensor.shape.dim]
        fits = len(dims) == array.ndim and all(d is None or d == s for d, s in zip(dims, array.shape, strict=True))
        if tensor.HasField("shape") and not fits:
            text = ", ".join("?" if d is None else str(d) for d in dims)
            states = {} if array.ndim != len(dims) + 1 else left_states(proto, states, carried)
            calls = or_carry(states if value.name not in states else {})
            raise CompileError(
                f"{source}: array {value.name!r} has shape {list(array.shape)}.",
                supported=f"[{text}]",
                action=_axes_to_insert(value.name, array.shape, dims)
                or f"{_one_of_samples(value.name, array.shape, dims) or 'reshape the array'}"
                f"{calls and f'{calls}, where its leading axis counts calls'}",
            )


def _axes_to_insert(name: str, shape: tuple[int, ...], dims: list[int | None]) -> str:
    """Returns an index expression that inserts missing axes of size 1; "" if those are not the difference.

    The leading axis of the array counts samples (the model takes one row at a time), or the array is one call.
    """
    places = _places_of_ones(shape[1:], dims)
    if places and (len(shape) < len(dims) or places == (0,)):
        text = f"{name}[:, {_indexed(places)}] is {shape[0]} samples of {_filled(shape[1:], places)}"
        return text + ("; or export the model with a dynamic batch" if len(shape) == len(dims) else "")
    places = _places_of_ones(shape, dims)
    return f"{name}[{_indexed(places)}] is one call of {_filled(shape, places)}" if places else ""


def _places_of_ones(shape: tuple[int, ...], dims: list[int | None]) -> tuple[int, ...]:
    """Returns the first axes of size 1 whose removal makes `dims` fit `shape`; empty if there are none."""
    ones = [k for k, d in enumerate(dims) if d == 1]
    for places in itertools.combinations(ones, max(0, len(dims) - len(shape))):
        rest = [d for k, d in enumerate(dims) if k not in places]
        if len(rest) == len(shape) and all(d is None or d == s for d, s in zip(rest, shape, strict=True)):
            return places
    return ()


def _indexed(places: tuple[int, ...]) -> str:
    """Returns numpy's index for inserting axes at `places`."""
    return ", ".join("None" if k in places else ":" for k in range(places[-1] + 1))


def _filled(shape: tuple[int, ...], places: tuple[int, ...]) -> list[int]:
    """Returns `shape` with axes of size 1 inserted at `places`."""
    sizes = iter(shape)
    return [1 if k in places else next(sizes) for k in range(len(shape) + len(places))]


def _one_of_samples(name: str, shape: tuple[int, ...], dims: list[int | None]) -> str:
    """Returns advice to take one sample of a stacked array; "" if the array is not stacked."""
    fits = len(shape) == len(dims) + 1 and all(d is None or d == s for d, s in zip(dims, shape[1:], strict=True))
    return f"give one call, {name}[0], where the leading axis counts samples" if fits else ""


def left_states(
    proto: onnx.ModelProto, states: Mapping[str, str] | None, carried: AbstractSet[str]
) -> Mapping[str, str]:
    """Returns the likely states that are not carried; `states`: those of the model by default."""
    return {name: output for name, output in hinted_states(proto, known=states).items() if name not in carried}


def or_carry(states: Mapping[str, str]) -> str:
    """The end of a sentence that names the states that could be carried; "" without states."""
    return f", or carry the states: {options_of_states(states)}" if states else ""


def _holds(array: npt.NDArray[Any], value: npt.NDArray[Any]) -> bool:
    """Whether `array` equals `value`, or stacks copies of it along leading axes."""
    return array.shape[max(0, array.ndim - value.ndim) :] == value.shape and bool((array == value).all())
