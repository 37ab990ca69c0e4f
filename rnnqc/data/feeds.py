"""Inputs for a model: read from files, or generated from its signature."""

from __future__ import annotations

import io
import math
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

from rnnqc.data.input_ranges import input_spreads
from rnnqc.data.input_uses import Role, Use, input_uses, known_shapes
from rnnqc.data.limits import physical_memory
from rnnqc.data.user_code import importable_working_folder, named_object
from rnnqc.errors import CompileError

Feeds = dict[str, npt.NDArray[Any]]
GENERATED_LENGTH = 12
GENERATED_BATCH = 3
EXTREME_LENGTH = 40
EXTREME_DEVIATION = 4.0
GENERATED_TRIPS = 2
GENERATED_MOST = 2**27
LARGE_TABLE = 256
"""Rows from which on a table may be a vocabulary."""
SMALL_INTEGER = 2
"""Bytes of whole numbers that are samples or pixels where nothing else is known of them."""


def true_inputs(proto: onnx.ModelProto) -> list[onnx.ValueInfoProto]:
    """Graph inputs that are not initializers."""
    stored = {t.name for t in proto.graph.initializer} | {t.values.name for t in proto.graph.sparse_initializer}
    return [i for i in proto.graph.input if i.name not in stored]


@dataclass(frozen=True)
class Sizes:
    """Sizes for dimensions of inputs that a model leaves open.

    Attributes:
        length: Of sequences.
        batch: Of batches.
        named_time: Whether only axes count as time that their name or their use says so of; else the layout counts,
            too.
    """

    length: int = GENERATED_LENGTH
    batch: int = GENERATED_BATCH
    named_time: bool = False


@dataclass(frozen=True)
class Values:
    """What values are generated.

    Attributes:
        magnitude: Standard deviation of floats, in units of what the model normalizes them by, if it does.
        beyond: Of how many times the usual size states are; beyond 1 they exceed the bound of their activation.
        extreme: Whether one sequence of a batch has length zero.
        frequent: Whether indices into large tables are mostly small: in a vocabulary frequent words come first.
    """

    magnitude: float = 1.0
    beyond: float = 1.0
    extreme: bool = False
    frequent: bool = False


def generate_feeds(
    proto: onnx.ModelProto,
    seed: int = 0,
    *,
    extreme: bool = False,
    length: int | None = None,
    sizes: Sizes | None = None,
    values: Values | None = None,
) -> Feeds:
    """Seeded inputs for a model; symbolic dimensions of one name get one size.

    Floats are normal, and between -1 and 1 where they are the hidden state of a recurrent node; where the model
    normalizes or clips an input by constants, they lie where these say. Sequence lengths are from 1 to the length of
    the sequence; what indexes a table (an embedding) is below its number of rows; what is compared with constants is
    one of them; loops run twice; whole numbers of 8 and 16 bits that are none of these have their full range, others
    are 0 or 1.

    Args:
        proto: The model.
        seed: Of the numbers.
        extreme: Free sequences are longer, floats larger so that gates saturate, and one sequence of a batch has length
            zero; not every model runs on that.
        length: Of free sequences.
        sizes: Of free dimensions, instead of both.
        values: Their values, instead of `extreme`.

    Raises:
        CompileError: An input is no tensor, or of a type that cannot be generated.
    """
    sizes = sizes or Sizes(length or (EXTREME_LENGTH if extreme else GENERATED_LENGTH))
    values = values or Values(EXTREME_DEVIATION if extreme else 1.0, extreme=extreme)
    return Generation(proto, sizes).feeds(seed, values)


class Generation:
    """Generates feeds of given sizes: what the model says about its inputs is looked up once.

    Args:
        proto: The model.
        sizes: Of free dimensions.

    Attributes:
        shapes: Of each input, by name.

    Raises:
        CompileError: An input is no tensor, or too large.
    """

    def __init__(self, proto: onnx.ModelProto, sizes: Sizes) -> None:
        self._proto = proto
        self._inputs = true_inputs(proto)
        uses = input_uses(proto)
        self._held = {
            i.name: {role: [u for u in uses.get(i.name, ()) if u.role is role] for role in Role} for i in self._inputs
        }
        self._spreads = input_spreads(proto)
        named: dict[str, int] = {}
        self.shapes = {i.name: _generated_shape(i, uses.get(i.name, ()), named, sizes) for i in self._inputs}
        self._known = known_shapes(proto, self.shapes) if uses else {}
        for value in self._inputs:
            held, shape = self._held[value.name], self.shapes[value.name]
            _follow_batch(value, shape, [*held[Role.LENGTH], *held[Role.STATE], *held[Role.CELL]], self._known)
            if math.prod(shape) > GENERATED_MOST:
                raise CompileError(
                    f"input {value.name!r} of shape {shape} is too large to generate.",
                    supported=f"up to {GENERATED_MOST} elements",
                    action="give data (rnnqc verify --data)",
                )

    def feeds(self, seed: int, values: Values | None = None) -> Feeds:
        """Feeds with the numbers of a seed.

        Raises:
            CompileError: An input is of a type that cannot be generated.
        """
        rng = np.random.default_rng(seed)
        return {value.name: self._array(value, values or Values(), rng) for value in self._inputs}

    def _array(self, value: onnx.ValueInfoProto, values: Values, rng: np.random.Generator) -> npt.NDArray[Any]:
        dtype = element_type(value)
        if dtype.kind == "f":
            return self._floats(value.name, values, rng).astype(dtype)
        if dtype.kind == "b":
            return np.ones(self.shapes[value.name], dtype)
        if dtype.kind in "iu":
            return self._whole_numbers(value.name, dtype, values, rng).astype(dtype)
        raise CompileError(
            f"input {value.name!r} of type {dtype} cannot be generated.",
            supported="floats, whole numbers, booleans",
            action="give data (rnnqc verify --data)",
        )

    def _floats(self, name: str, values: Values, rng: np.random.Generator) -> npt.NDArray[Any]:
        held, shape = self._held[name], self.shapes[name]
        if held[Role.STATE]:
            normal = rng.normal(0.0, EXTREME_DEVIATION if values.extreme else 1.0, shape)
            return np.asarray(np.tanh(normal) * values.beyond)
        if held[Role.CELL]:
            return rng.normal(0.0, EXTREME_DEVIATION if values.extreme else values.beyond, shape)
        normal = rng.normal(0.0, values.magnitude, shape)
        return self._spreads[name].of(normal) if name in self._spreads else normal

    def _whole_numbers(
        self, name: str, dtype: np.dtype[Any], values: Values, rng: np.random.Generator
    ) -> npt.NDArray[Any]:
        held, shape = self._held[name], self.shapes[name]
        if dtype.itemsize <= SMALL_INTEGER and not any(held.values()):
            limits = np.iinfo(dtype)
            return rng.integers(limits.min, limits.max, shape, endpoint=True)
        low, high = _whole_numbers(held, self._known)
        drawn = rng.integers(low, high, shape)
        if values.frequent and high > LARGE_TABLE and not held[Role.LENGTH]:
            drawn = np.asarray(high ** rng.random(shape), np.int64) - 1
        if held[Role.LENGTH]:
            drawn.reshape(-1)[:1] = high - 1
            if values.extreme and drawn.size > 1:
                drawn.reshape(-1)[-1] = 0
        elif held[Role.CHOICE] and not held[Role.INDEX]:
            drawn[...] = _constant(self._proto, held[Role.CHOICE][0].value)
        elif held[Role.TRIPS]:
            drawn[...] = GENERATED_TRIPS
        return drawn


def zeros_of(value: onnx.ValueInfoProto) -> npt.NDArray[Any]:
    """Zeros for an input whose shape is fixed."""
    return np.zeros([max(0, d.dim_value) for d in value.type.tensor_type.shape.dim], element_type(value))


def _constant(proto: onnx.ModelProto, name: str) -> int:
    """A whole number among the elements of a constant of the main graph; 1 if there is none."""
    stored = {t.name: t for t in proto.graph.initializer}
    for node in proto.graph.node:
        if node.op_type == "Constant" and name in node.output:
            stored.update((name, a.t) for a in node.attribute if a.HasField("t"))
    array = onnx.numpy_helper.to_array(stored[name]) if name in stored else np.empty(0)
    return int(array.flat[0]) if array.size and array.dtype.kind in "iu" else 1


def fixed_size(dim: onnx.TensorShapeProto.Dimension) -> int | None:
    """The size that a dimension is declared to have; None for names and for -1, which some tools write for any size."""
    return dim.dim_value if dim.HasField("dim_value") and dim.dim_value >= 0 else None


def _time_axis(dims: Sequence[onnx.TensorShapeProto.Dimension], roles: AbstractSet[Role], floats: bool) -> int | None:
    """The axis that is time by the layout: of `[T, B, C]` the first, of others the first free one behind the batch."""
    free = [axis for axis, dim in enumerate(dims) if fixed_size(dim) is None]
    if len(dims) == 3 and 0 in free:
        return 2 if free == [0, 2] else 0  # [N, channels, L] of a convolution
    if len(dims) == 1:
        return 0 if free and floats and not roles else None
    return next((axis for axis in free if axis > 0), None)


def _generated_shape(value: onnx.ValueInfoProto, uses: Sequence[Use], named: dict[str, int], sizes: Sizes) -> list[int]:
    """A shape for an input; `named` holds the sizes of the named dimensions so far."""
    dims = value.type.tensor_type.shape.dim
    roles = {u.role: u for u in uses}
    time_axis = _time_axis(dims, roles.keys(), element_type(value).kind == "f")
    if sizes.named_time and not (len(dims) == 3 or Role.INDEX in roles):
        time_axis = None
    state = roles.get(Role.STATE) or roles.get(Role.CELL)
    direction_axis = None
    if state is not None:
        time_axis, direction_axis = None, 1 - state.batch_axis if len(dims) == 3 else None
    shape = []
    for axis, dim in enumerate(dims):
        fixed = fixed_size(dim)
        if fixed is not None:
            shape.append(max(1, fixed))
            continue
        is_time = axis == time_axis
        name = dim.dim_param.lower()
        if "batch" in name or name in ("b", "n"):
            is_time = False
        elif name in ("t", "s") or any(word in name for word in ("seq", "time", "len", "frame", "sample")):
            is_time = True
        default = sizes.length if is_time else 1 if axis == direction_axis else sizes.batch
        shape.append(named.setdefault(dim.dim_param or f"{value.name}:{axis}", default))
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
            if size is not None and fixed_size(dim) is None and not dim.dim_param:
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
