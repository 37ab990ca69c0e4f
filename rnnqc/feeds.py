"""Inputs for a model: read from files, or generated from its signature."""

from __future__ import annotations

import importlib
import sys
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

from rnnqc.diagnostics import CompileError

Feeds = dict[str, npt.NDArray[Any]]
GENERATED_LENGTH = 12
GENERATED_BATCH = 3


def true_inputs(proto: onnx.ModelProto) -> list[onnx.ValueInfoProto]:
    """Graph inputs that are not initializers."""
    stored = {t.name for t in proto.graph.initializer} | {t.values.name for t in proto.graph.sparse_initializer}
    return [i for i in proto.graph.input if i.name not in stored]


def generate_feeds(proto: onnx.ModelProto, seed: int = 0) -> Feeds:
    """Seeded inputs for a model: normal floats, small whole numbers; symbolic dimensions of one name get one size.

    An input that sequence lengths come from (`sequence_lens` of a recurrent node, through Cast and the like) gets numbers from 1
    to the length of the sequence.
    """
    rng = np.random.default_rng(seed)
    sizes: dict[str, int] = {}
    lengths = _length_inputs(proto)
    feeds: Feeds = {}
    first_rank_three: int | None = None
    for value in true_inputs(proto):
        tensor = value.type.tensor_type
        shape: list[int] = []
        for axis, dim in enumerate(tensor.shape.dim):
            if dim.HasField("dim_value"):
                shape.append(max(1, dim.dim_value))
            else:
                name = dim.dim_param or f"{value.name}:{axis}"
                default = GENERATED_LENGTH if axis == 0 and len(tensor.shape.dim) == 3 else GENERATED_BATCH
                shape.append(sizes.setdefault(name, default))
        if len(shape) == 3 and first_rank_three is None:
            first_rank_three = shape[0]
        dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type)
        if value.name in lengths:
            feeds[value.name] = rng.integers(1, (first_rank_three or 1) + 1, shape).astype(dtype)
        elif dtype.kind == "f":
            feeds[value.name] = rng.normal(0.0, 1.0, shape).astype(dtype)
        elif dtype.kind == "b":
            feeds[value.name] = np.ones(shape, dtype)
        elif dtype.kind in "iu":
            feeds[value.name] = rng.integers(0, 2, shape).astype(dtype)
        else:
            raise CompileError(f"Input {value.name!r} of type {dtype} cannot be generated.", action="give data with --data")
    return feeds


def _length_inputs(proto: onnx.ModelProto) -> set[str]:
    makers = {o: n for n in proto.graph.node for o in n.output if o}
    inputs = {i.name for i in proto.graph.input}
    found: set[str] = set()
    for node in proto.graph.node:
        if node.op_type in ("LSTM", "GRU", "RNN") and len(node.input) > 4 and node.input[4]:
            stack, seen = [node.input[4]], set()
            while stack:
                name = stack.pop()
                if name in seen:
                    continue
                seen.add(name)
                if name in inputs:
                    found.add(name)
                elif name in makers and makers[name].op_type in ("Cast", "Identity", "Squeeze", "Reshape", "Min", "Max", "TopK", "Gather"):
                    stack.extend(makers[name].input[:1])
    return found


def read_npz(path: Path) -> Feeds:
    """The arrays of an `.npz` file; pickled contents are refused.

    Raises:
        CompileError: The file cannot be read.
    """
    try:
        with np.load(path, allow_pickle=False) as data:
            if not hasattr(data, "files"):
                raise CompileError(f"{path}: not an .npz file.", supported="arrays named as the model's inputs")
            return {k: data[k] for k in data.files}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise CompileError(f"{path}: cannot be read as .npz ({error}).", supported=".npz files without pickled objects") from error


def load_feeds(source: str, proto: onnx.ModelProto) -> list[Feeds]:
    """Feeds from an `.npz`, a directory of `.npz`, or `module:function`.

    In an `.npz`, arrays are named as the model's inputs; where an array has one dimension more than the input, its leading axis
    counts samples. Each file of a directory is one feed.

    Raises:
        CompileError: The data cannot be read or does not fit the model.
    """
    path = Path(source)
    if path.is_dir():
        files = sorted(path.glob("*.npz"))
        if not files:
            raise CompileError(f"{path}: holds no .npz files.")
        feeds = [read_npz(f) for f in files]
    elif path.exists() or source.endswith(".npz"):
        feeds = _samples(read_npz(path), proto, source)
    elif ":" in source:
        feeds = _from_function(source)
    else:
        raise CompileError(f"{source}: no such file.", supported=".npz, a directory of .npz, or module:function")
    if not feeds:
        raise CompileError(f"{source}: holds no samples.")
    for feed in feeds:
        check_feed(feed, proto, source)
    return feeds


def check_feed(feed: Mapping[str, npt.NDArray[Any]], proto: onnx.ModelProto, source: str) -> None:
    """Checks names, types and shapes of one feed.

    Raises:
        CompileError: With the input that does not fit.
    """
    inputs = true_inputs(proto)
    for value in inputs:
        if value.name not in feed:
            raise CompileError(f"{source}: no array for input {value.name!r}.", supported=", ".join(i.name for i in inputs))
        array, tensor = feed[value.name], value.type.tensor_type
        dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type)
        if array.dtype != dtype:
            raise CompileError(f"{source}: array {value.name!r} is {array.dtype}.", supported=str(dtype))
        dims = [d.dim_value if d.HasField("dim_value") else None for d in tensor.shape.dim]
        fits = len(dims) == array.ndim and all(d is None or d == s for d, s in zip(dims, array.shape, strict=True))
        if tensor.HasField("shape") and not fits:
            text = ", ".join("?" if d is None else str(d) for d in dims)
            raise CompileError(f"{source}: array {value.name!r} has shape {list(array.shape)}.", supported=f"[{text}]")


def _samples(arrays: Feeds, proto: onnx.ModelProto, source: str) -> list[Feeds]:
    inputs = true_inputs(proto)
    ranks = {i.name: len(i.type.tensor_type.shape.dim) for i in inputs if i.type.tensor_type.HasField("shape")}
    stacked = {k for k, r in ranks.items() if k in arrays and arrays[k].ndim == r + 1}
    if not stacked:
        return [arrays]
    counts = {arrays[k].shape[0] for k in stacked}
    if len(counts) != 1:
        raise CompileError(f"{source}: arrays have different numbers of samples: {sorted(counts)}.")
    return [{k: (a[s] if k in stacked else a) for k, a in arrays.items()} for s in range(counts.pop())]


def _from_function(source: str) -> list[Feeds]:
    module, _, name = source.partition(":")
    folder = str(Path.cwd())
    try:
        sys.path.insert(0, folder)
        result: Iterable[Mapping[str, Any]] = getattr(importlib.import_module(module), name)()
    except (ImportError, AttributeError, TypeError) as error:
        raise CompileError(f"{source}: cannot be called ({error}).", supported="module:function that returns dicts of arrays") from error
    finally:
        sys.path.remove(folder)
    return [{k: np.asarray(v) for k, v in feed.items()} for feed in result]
