"""Inputs for a model: what it takes, and arrays for it from files and functions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

from rnnqc.data.binding import bound_values_of
from rnnqc.data.npz import NpzFolder, read_npz
from rnnqc.data.user_code import importable_working_folder, named_object
from rnnqc.errors import CompileError

Feeds = dict[str, npt.NDArray[Any]]


def true_inputs(proto: onnx.ModelProto) -> list[onnx.ValueInfoProto]:
    """Graph inputs that are not initializers."""
    stored = {t.name for t in proto.graph.initializer} | {t.values.name for t in proto.graph.sparse_initializer}
    return [i for i in proto.graph.input if i.name not in stored]


def zeros_of(value: onnx.ValueInfoProto) -> npt.NDArray[Any]:
    """Zeros for an input whose shape is fixed."""
    return np.zeros([max(0, d.dim_value) for d in value.type.tensor_type.shape.dim], element_type(value))


def fixed_size(dim: onnx.TensorShapeProto.Dimension) -> int | None:
    """The size that a dimension is declared to have; None for names and for -1, which some tools write for any size."""
    return dim.dim_value if dim.HasField("dim_value") and dim.dim_value >= 0 else None


def element_type(value: onnx.ValueInfoProto) -> np.dtype[Any]:
    """The type of an input's elements.

    Raises:
        CompileError: The input is no tensor, or says nothing of its elements.
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
    """A copy of `model` whose free input dimensions have the sizes they are bound to in `other`."""
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


def open_feeds(source: str, proto: onnx.ModelProto, carried: Iterable[str] = ()) -> Iterable[Feeds]:
    """Feeds from an `.npz`, a directory of `.npz`, or `module:function`, taken one at a time and not checked.

    In an `.npz`, arrays are named as the model's inputs; where an array has one dimension more than the input, its
    leading axis counts samples; beside carried inputs also where the model does not say how many an input has. Arrays
    that are no inputs, such as labels, are cut along with them if they are as long. Each file of a directory is one
    feed.

    Args:
        source: Where the data is.
        proto: The model.
        carried: Inputs whose array is for the first sample of an `.npz` alone.

    Raises:
        CompileError: The data cannot be read, at once or when a feed is taken.
    """
    path = Path(source)
    if path.is_dir():
        return NpzFolder(path)
    if path.exists() or source.endswith(".npz"):
        return _samples(read_npz(path), proto, source, set(carried))
    if ":" in source:
        return _from_function(source)
    raise CompileError(
        f"{source}: no such file.",
        supported=".npz, a directory of .npz, or module:function",
        action="check the path",
    )


def check_feed(feed: Mapping[str, npt.NDArray[Any]], proto: onnx.ModelProto, source: str) -> None:
    """Checks names, types and shapes of one feed.

    A feed of empty arrays alone is refused: onnxruntime 1.31 ends the process where LSTM and GRU get no rows.

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
    inputs = true_inputs(proto)
    sized = {i.name: feed[i.name] for i in inputs if i.name in feed and feed[i.name].ndim}
    if sized and not any(a.size for a in sized.values()):
        raise CompileError(
            f"{source}: all arrays are empty: {', '.join(f'{k!r} {list(a.shape)}' for k, a in sized.items())}.",
            supported="at least one row and one step",
            action="check the data",
        )
    for value in inputs:
        if value.name not in feed:
            raise CompileError(
                f"{source}: no array for input {value.name!r}; arrays: {', '.join(sorted(feed)) or 'none'}.",
                supported=f"arrays named {', '.join(i.name for i in inputs)}",
                action="name the arrays as the model's inputs",
            )
        array, tensor = feed[value.name], value.type.tensor_type
        dtype = element_type(value)
        if array.dtype != dtype and not (dtype.kind == "O" and array.dtype.kind in "OUS"):
            raise CompileError(
                f"{source}: array {value.name!r} is {array.dtype}.",
                supported=str(dtype),
                action="convert the array with numpy.astype",
            )
        dims = [fixed_size(d) for d in tensor.shape.dim]
        fits = len(dims) == array.ndim and all(d is None or d == s for d, s in zip(dims, array.shape, strict=True))
        if tensor.HasField("shape") and not fits:
            text = ", ".join("?" if d is None else str(d) for d in dims)
            raise CompileError(
                f"{source}: array {value.name!r} has shape {list(array.shape)}.",
                supported=f"[{text}]",
                action="reshape the array",
            )


def _holds(array: npt.NDArray[Any], value: npt.NDArray[Any]) -> bool:
    """Whether an array is a value, or has it in each entry of its first axis."""
    return array.shape[max(0, array.ndim - value.ndim) :] == value.shape and bool((array == value).all())


def _samples(arrays: Feeds, proto: onnx.ModelProto, source: str, once: AbstractSet[str]) -> list[Feeds]:
    inputs = true_inputs(proto)
    ranks = {i.name: len(i.type.tensor_type.shape.dim) for i in inputs if i.type.tensor_type.HasField("shape")}
    stacked = {k for k, r in ranks.items() if k in arrays and arrays[k].ndim == r + 1}
    if once:
        stacked |= {i.name for i in inputs if i.name not in {*ranks, *once} and np.ndim(arrays.get(i.name, 0))}
    if not stacked:
        return [arrays]
    for name in sorted(stacked & once):
        raise CompileError(
            f"{source}: array {name!r} of a carried state has a leading axis for samples: each would start anew.",
            supported=f"its value for the first call, shape {list(arrays[name].shape[1:])}, or no array at all",
            action=f"leave the array out, or keep its first entry; without {name!r} carried, every sample starts there",
        )
    counts = {arrays[k].shape[0] for k in stacked}
    names = {i.name for i in inputs}
    stacked |= {k for k, a in arrays.items() if k not in names and a.ndim and counts == {a.shape[0]}}  # labels
    if len(counts) != 1:
        raise CompileError(
            f"{source}: arrays have different numbers of samples: {sorted(counts)}.",
            supported="one leading axis for all",
            action="cut the arrays to one number of samples",
        )
    return [
        {k: (a[s] if k in stacked else a) for k, a in arrays.items() if s == 0 or k in stacked or k not in once}
        for s in range(counts.pop())
    ]


def _from_function(source: str) -> Iterator[Feeds]:
    with importable_working_folder():  # to the end: the function may be a generator that imports
        try:
            result: Iterable[Mapping[str, Any]] = named_object(source)()
            for feed in result:
                yield {k: np.asarray(v) for k, v in feed.items()}
        except CompileError:
            raise
        except Exception as error:
            raise CompileError(
                f"{source}: cannot be called ({type(error).__name__}: {error}).",
                supported="module:function without arguments that returns dicts of arrays",
                action="call the function in Python to see the error in full",
            ) from error
