"""Inputs for a model: read from files, or generated from its signature."""

from __future__ import annotations

import io
import math
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

from rnnqc.diagnostics import CompileError
from rnnqc.input_uses import Role, Use, input_uses, known_shapes
from rnnqc.limits import physical_memory
from rnnqc.user_code import importable_working_folder, named_object

Feeds = dict[str, npt.NDArray[Any]]
GENERATED_LENGTH = 12
GENERATED_BATCH = 3
EXTREME_LENGTH = 40
EXTREME_DEVIATION = 4.0
GENERATED_TRIPS = 2
GENERATED_MOST = 2**27


def true_inputs(proto: onnx.ModelProto) -> list[onnx.ValueInfoProto]:
    """Graph inputs that are not initializers."""
    stored = {t.name for t in proto.graph.initializer} | {t.values.name for t in proto.graph.sparse_initializer}
    return [i for i in proto.graph.input if i.name not in stored]


def generate_feeds(proto: onnx.ModelProto, seed: int = 0, *, extreme: bool = False, length: int | None = None) -> Feeds:
    """Seeded inputs for a model; symbolic dimensions of one name get one size.

    Floats are normal, and between -1 and 1 where they are the hidden state of a recurrent node. Sequence lengths are
    from 1 to the length of the sequence; what indexes a table (an embedding) is below its number of rows; what is
    compared with constants is one of them; loops run twice; other whole numbers are 0 or 1.

    Args:
        proto: The model.
        seed: Of the numbers.
        extreme: Free sequences are longer, floats larger so that gates saturate, and one sequence of a batch has length
            zero; not every model runs on that.
        length: Of free sequences.

    Raises:
        CompileError: An input is no tensor, or of a type that cannot be generated.
    """
    rng = np.random.default_rng(seed)
    uses = input_uses(proto)
    inputs = true_inputs(proto)
    sizes: dict[str, int] = {}
    length = length or (EXTREME_LENGTH if extreme else GENERATED_LENGTH)
    shapes = {i.name: _generated_shape(i, uses.get(i.name, ()), sizes, length) for i in inputs}
    known = known_shapes(proto, shapes) if uses else {}
    feeds: Feeds = {}
    for value in inputs:
        dtype = _element_type(value)
        shape = shapes[value.name]
        held = {role: [u for u in uses.get(value.name, ()) if u.role is role] for role in Role}
        _follow_batch(value, shape, [*held[Role.LENGTH], *held[Role.STATE], *held[Role.CELL]], known)
        if math.prod(shape) > GENERATED_MOST:
            raise CompileError(
                f"input {value.name!r} of shape {shape} is too large to generate.",
                supported=f"up to {GENERATED_MOST} elements",
                action="give data (rnnqc verify --data)",
            )
        if dtype.kind == "f":
            normal = rng.normal(0.0, EXTREME_DEVIATION if extreme else 1.0, shape)
            feeds[value.name] = (np.tanh(normal) if held[Role.STATE] else normal).astype(dtype)
        elif dtype.kind == "b":
            feeds[value.name] = np.ones(shape, dtype)
        elif dtype.kind in "iu":
            low, high = _whole_numbers(held, known)
            drawn = rng.integers(low, high, shape)
            if held[Role.LENGTH]:
                drawn.reshape(-1)[:1] = high - 1
                if extreme and drawn.size > 1:
                    drawn.reshape(-1)[-1] = 0
            elif held[Role.CHOICE] and not held[Role.INDEX]:
                drawn[...] = _constant(proto, held[Role.CHOICE][0].value)
            elif held[Role.TRIPS]:
                drawn[...] = GENERATED_TRIPS
            feeds[value.name] = drawn.astype(dtype)
        else:
            raise CompileError(
                f"input {value.name!r} of type {dtype} cannot be generated.",
                supported="floats, whole numbers, booleans",
                action="give data (rnnqc verify --data)",
            )
    return feeds


def zeros_of(value: onnx.ValueInfoProto) -> npt.NDArray[Any]:
    """Zeros for an input whose shape is fixed."""
    return np.zeros([max(0, d.dim_value) for d in value.type.tensor_type.shape.dim], _element_type(value))


def _constant(proto: onnx.ModelProto, name: str) -> int:
    """A whole number among the elements of a constant of the main graph; 1 if there is none."""
    stored = {t.name: t for t in proto.graph.initializer}
    for node in proto.graph.node:
        if node.op_type == "Constant" and name in node.output:
            stored.update((name, a.t) for a in node.attribute if a.HasField("t"))
    array = onnx.numpy_helper.to_array(stored[name]) if name in stored else np.empty(0)
    return int(array.flat[0]) if array.size and array.dtype.kind in "iu" else 1


def _generated_shape(value: onnx.ValueInfoProto, uses: Sequence[Use], sizes: dict[str, int], length: int) -> list[int]:
    """A shape for an input; `sizes` holds those of the named dimensions so far."""
    dims = value.type.tensor_type.shape.dim
    roles = {u.role: u for u in uses}
    time_axis = 0 if len(dims) == 3 else 1 if len(dims) == 2 and Role.INDEX in roles else None
    state = roles.get(Role.STATE) or roles.get(Role.CELL)
    direction_axis = None
    if state is not None and len(dims) == 3:
        time_axis, direction_axis = None, 1 - state.batch_axis
    shape = []
    for axis, dim in enumerate(dims):
        if dim.HasField("dim_value"):
            shape.append(max(1, dim.dim_value))
            continue
        is_time = axis == time_axis
        name = dim.dim_param.lower()
        if "batch" in name or name in ("b", "n"):
            is_time = False
        elif name == "t" or any(word in name for word in ("seq", "time", "len", "frame")):
            is_time = True
        default = length if is_time else 1 if axis == direction_axis else GENERATED_BATCH
        shape.append(sizes.setdefault(dim.dim_param or f"{value.name}:{axis}", default))
    return shape


def _follow_batch(
    value: onnx.ValueInfoProto, shape: list[int], uses: Sequence[Use], known: Mapping[str, Sequence[int | None]]
) -> None:
    """Lets the unnamed batch axis of lengths and states have the size that the sequence has."""
    for use in uses:
        sequence = known.get(use.value, ())
        axis = 0 if use.role is Role.LENGTH else use.batch_axis
        if use.batch_axis < len(sequence) and axis < len(shape):
            dim, size = value.type.tensor_type.shape.dim[axis], sequence[use.batch_axis]
            if size is not None and not dim.HasField("dim_value") and not dim.dim_param:
                shape[axis] = size


def _whole_numbers(held: Mapping[Role, Sequence[Use]], known: Mapping[str, Sequence[int | None]]) -> tuple[int, int]:
    """The lowest number and one more than the highest."""
    role = Role.LENGTH if held[Role.LENGTH] else Role.INDEX
    sizes = []
    for use in held[role]:
        shape = known.get(use.value, ())
        size = shape[use.axis] if -len(shape) <= use.axis < len(shape) else None
        if size is not None:
            sizes.append(size)
    if role is Role.LENGTH:
        return 1, max(1, min(sizes, default=1)) + 1
    return 0, max(1, min(sizes, default=2))


def _element_type(value: onnx.ValueInfoProto) -> np.dtype[Any]:
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
            if not dim.HasField("dim_value") and known.HasField("dim_value"):
                dim.dim_value = known.dim_value
    return copy


def read_npz(path: Path) -> Feeds:
    """The arrays of an `.npz` file; pickled contents are refused.

    Raises:
        CompileError: The file cannot be read.
    """
    try:
        return _arrays_of(path)
    except CompileError:
        raise
    except OSError as error:
        raise CompileError(f"{path}: {error.strerror or error}.", supported=_NPZ, action="check the path") from error
    except MemoryError as error:
        raise CompileError(
            f"{path}: an array does not fit into memory.", supported=_NPZ, action="check the file"
        ) from error
    except Exception as error:  # zipfile, its decompressors and numpy's parser of headers have many kinds
        raise CompileError(
            f"{path}: cannot be read as .npz ({error}).", supported=_NPZ, action="write it with numpy.savez"
        ) from error


_NPZ = ".npz files of arrays named as the model's inputs, without pickled objects"


def _arrays_of(path: Path) -> Feeds:
    arrays = {}
    with zipfile.ZipFile(path) as archive:
        names = archive.namelist()
        strange = [n for n in names if not n.endswith(".npy")]
        if strange:
            raise CompileError(
                f"{path}: holds {strange[0]!r}, which is no array.",
                supported=_NPZ,
                action="write it with numpy.savez",
            )
        _check_size(archive, path)
        for name in names:
            with archive.open(name) as stream:
                arrays[name.removesuffix(".npy")] = np.lib.format.read_array(stream, allow_pickle=False)
    return arrays


def _check_size(archive: zipfile.ZipFile, path: Path) -> None:
    """Refuses an archive that is larger than the memory of the machine: compressed zeros take a thousandth."""
    size = sum(entry.file_size for entry in archive.infolist())
    limit = physical_memory()
    if limit is not None and size > limit:
        raise CompileError(
            f"{path}: its arrays have {size} bytes.",
            supported=f"up to {limit}, the memory of the machine",
            action="split the data over a directory of .npz, one feed each",
        )


def npz_bytes(arrays: Mapping[str, npt.NDArray[Any]]) -> bytes:
    """The contents of an `.npz` file; unlike with numpy.savez, an array may have any name.

    Raises:
        CompileError: An array holds objects.
    """
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, array in arrays.items():
            with archive.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True) as stream:
                try:
                    np.lib.format.write_array(stream, np.asarray(array), allow_pickle=False)
                except ValueError as error:
                    raise CompileError(
                        f"output {name!r} of type {array.dtype} cannot be written as .npz ({error}).",
                        supported="numbers and booleans",
                        action="remove the output from the model",
                    ) from error
    return buffer.getvalue()


class NpzFolder:
    """The feeds in a directory, one `.npz` each, in the order of their names; read when they are taken.

    Args:
        path: The directory.

    Raises:
        CompileError: It holds no `.npz`.
    """

    def __init__(self, path: Path) -> None:
        self.files = sorted(path.glob("*.npz"))
        if not self.files:
            raise CompileError(
                f"{path}: holds no .npz files.",
                supported="one .npz for each feed",
                action="name the folder with the data",
            )

    def __len__(self) -> int:
        return len(self.files)

    def __iter__(self) -> Iterator[Feeds]:
        return map(read_npz, self.files)


def open_feeds(source: str, proto: onnx.ModelProto, carried: Iterable[str] = ()) -> Iterable[Feeds]:
    """Feeds from an `.npz`, a directory of `.npz`, or `module:function`, taken one at a time and not checked.

    In an `.npz`, arrays are named as the model's inputs; where an array has one dimension more than the input, its
    leading axis counts samples; beside carried inputs also where the model does not say how many an input has. Each
    file of a directory is one feed.

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
        dtype = _element_type(value)
        if array.dtype != dtype and not (dtype.kind == "O" and array.dtype.kind in "OUS"):
            raise CompileError(
                f"{source}: array {value.name!r} is {array.dtype}.",
                supported=str(dtype),
                action="convert the array with numpy.astype",
            )
        dims = [d.dim_value if d.HasField("dim_value") else None for d in tensor.shape.dim]
        fits = len(dims) == array.ndim and all(d is None or d == s for d, s in zip(dims, array.shape, strict=True))
        if tensor.HasField("shape") and not fits:
            text = ", ".join("?" if d is None else str(d) for d in dims)
            raise CompileError(
                f"{source}: array {value.name!r} has shape {list(array.shape)}.",
                supported=f"[{text}]",
                action="reshape the array",
            )


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
