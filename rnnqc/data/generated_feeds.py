"""Generates random feeds from the signature of a model and the uses of its inputs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

from rnnqc.data.declared_shapes import fixed_size
from rnnqc.data.feeds import Feeds, element_type, true_inputs
from rnnqc.data.input_ranges import input_spreads
from rnnqc.data.input_uses import (
    Role,
    Use,
    free_axes,
    input_uses,
    known_shapes,
    name_of_axis,
    undivided,
)
from rnnqc.errors import CompileError

GENERATED_LENGTH = 12
GENERATED_BATCH = 3
EXTREME_LENGTH = 40
EXTREME_DEVIATION = 4.0
GENERATED_TRIPS = 2
GENERATED_MOST = 2**27
LARGE_TABLE = 256
"""Tables with at least this many rows may be a vocabulary."""
SMALL_INTEGER = 2
"""Integers of at most this many bytes are taken to be samples or pixels if nothing else is known of them."""
_WHOLE = (Role.LENGTH, Role.INDEX, Role.TRIPS)
"""Uses that take integers, even from a float input that the model converts (tokens in Keras, for example)."""


@dataclass(frozen=True)
class Sizes:
    """Sizes for input dimensions that a model leaves open.

    Attributes:
        length: Length of sequences.
        batch: Batch size.
        named_time: Whether an axis is time only if its name or use says so; otherwise the layout counts, too.
        masks: Whether booleans are masks, true for the first elements of each row; otherwise all are true.
    """

    length: int = GENERATED_LENGTH
    batch: int = GENERATED_BATCH
    named_time: bool = False
    masks: bool = False


@dataclass(frozen=True)
class Values:
    """How values are generated.

    Attributes:
        magnitude: Standard deviation of floats, in units of the model's own input normalization, if it has one.
        beyond: Factor for the usual size of states; above 1 they exceed the bound of their activation.
        extreme: Whether one sequence of a batch has length zero.
        frequent: Whether indices into large tables are mostly small: in a vocabulary, frequent words come first.
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
    sizes: Sizes | None = None,
) -> Feeds:
    """Generates seeded inputs for a model. Symbolic dimensions of one name get one size.

    Floats are normal; hidden states of recurrent nodes lie between -1 and 1; an input that the model normalizes or
    clips by constants gets values in the range of these constants. Sequence lengths are from 1 to the length of the
    sequence, indices are below the number of rows of their table, and a value compared with constants is one of them.
    Loops run twice. Other integers of 8 and 16 bits have their full range; wider ones are 0 or 1.

    Args:
        proto: The model.
        seed: Seed of the numbers.
        extreme: Free sequences are longer, floats larger so that gates saturate, and one sequence of a batch has length
            zero; not every model runs on that.
        sizes: Sizes of free dimensions, instead of the usual or extreme ones.

    Raises:
        CompileError: An input is not a tensor, or of a type that cannot be generated.
    """
    sizes = sizes or Sizes(EXTREME_LENGTH if extreme else GENERATED_LENGTH)
    return Generation(proto, sizes).feeds(seed, Values(EXTREME_DEVIATION if extreme else 1.0, extreme=extreme))


class Generation:
    """Generates feeds of given sizes. Analyzes the model once, for any number of feeds.

    Args:
        proto: The model.
        sizes: Sizes of free dimensions.

    Attributes:
        shapes: Shape of each input, by name.
        masked: Whether it generates masks.

    Raises:
        CompileError: An input is not a tensor, or too large.
    """

    def __init__(self, proto: onnx.ModelProto, sizes: Sizes) -> None:
        self._proto, self._sizes = proto, sizes
        self._inputs = true_inputs(proto)
        uses = input_uses(proto)
        self._held = {
            i.name: {role: [u for u in uses.get(i.name, ()) if u.role is role] for role in Role} for i in self._inputs
        }
        self._spreads, self._undivided = input_spreads(proto), undivided(proto)
        free = free_axes(proto)
        named = dict.fromkeys(free.times, sizes.length) | dict.fromkeys(free.batches, sizes.batch) | free.widths
        self.shapes = {i.name: _generated_shape(i, uses.get(i.name, ()), named, sizes) for i in self._inputs}
        rows = (self.shapes[i.name] for i in self._inputs if element_type(i).kind == "b")
        self.masked = sizes.masks and any(max(shape, default=1) > 1 for shape in rows)
        self._known = known_shapes(proto, self.shapes) if uses else {}
        shared = _names_of_sequences(self._inputs, self._held)
        for value in self._inputs:
            held, shape = self._held[value.name], self.shapes[value.name]
            _follow_batch(value, shape, [*held[Role.LENGTH], *held[Role.STATE], *held[Role.CELL]], self._known, shared)
            if math.prod(shape) > GENERATED_MOST:
                raise CompileError(
                    f"input {value.name!r} of shape {shape} is too large to generate.",
                    supported=f"up to {GENERATED_MOST} elements",
                    action="give data (rnnqc verify --data)",
                )

    def feeds(self, seed: int, values: Values | None = None) -> Feeds:
        """Generates feeds for one seed.

        Raises:
            CompileError: An input is of a type that cannot be generated.
        """
        rng = np.random.default_rng(seed)
        return {value.name: self._array(value, values or Values(), rng) for value in self._inputs}

    def _array(self, value: onnx.ValueInfoProto, values: Values, rng: np.random.Generator) -> npt.NDArray[Any]:
        dtype = element_type(value)
        whole = any(self._held[value.name][role] for role in _WHOLE)
        if dtype.kind == "f" and not (whole and value.name in self._undivided):
            floats = self._floats(value.name, values, rng)
            if whole:  # features, some of which are indices
                most = _whole_numbers(self._held[value.name], self._known, self._sizes.length)[1] - 1
                floats = np.minimum(np.abs(floats), most)
            return floats.astype(dtype)
        if dtype.kind == "b":
            return _mask(self.shapes[value.name], rng) if self.masked else np.ones(self.shapes[value.name], dtype)
        if dtype.kind in "fiu":
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
        if dtype.kind in "iu" and dtype.itemsize <= SMALL_INTEGER and not any(held.values()):
            limits = np.iinfo(dtype)
            return rng.integers(limits.min, limits.max, shape, endpoint=True)
        low, high = _whole_numbers(held, self._known, self._sizes.length)
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


def _mask(shape: Sequence[int], rng: np.random.Generator) -> npt.NDArray[np.bool_]:
    """Rows along the last axis with several elements, each of which is true up to one of its elements."""
    axis = max((k for k, size in enumerate(shape) if size > 1), default=None)
    if axis is None:
        return np.ones(shape, np.bool_)
    count = rng.integers(1, shape[axis], [1 if k == axis else size for k, size in enumerate(shape)])
    places = np.arange(shape[axis]).reshape([-1 if k == axis else 1 for k in range(len(shape))])
    return np.asarray(places < count)


def _constant(proto: onnx.ModelProto, name: str) -> int:
    """Returns the first element of an integer constant of the main graph; 1 if there is none."""
    stored = {t.name: t for t in proto.graph.initializer}
    for node in proto.graph.node:
        if node.op_type == "Constant" and name in node.output:
            stored.update((name, a.t) for a in node.attribute if a.HasField("t"))
    array = onnx.numpy_helper.to_array(stored[name]) if name in stored else np.empty(0)
    return int(array.flat[0]) if array.size and array.dtype.kind in "iu" else 1


def _time_axis(dims: Sequence[onnx.TensorShapeProto.Dimension], roles: AbstractSet[Role], floats: bool) -> int | None:
    """Guesses the time axis from the layout: axis 0 of `[T, B, C]`, otherwise the first free axis after the batch."""
    free = [axis for axis, dim in enumerate(dims) if fixed_size(dim) is None]
    if len(dims) == 3 and 0 in free:
        return 2 if free == [0, 2] else 0  # [N, channels, L] of a convolution
    if len(dims) == 1:
        return 0 if free and floats and not roles else None
    return next((axis for axis in free if axis > 0), None)


def _generated_shape(value: onnx.ValueInfoProto, uses: Sequence[Use], named: dict[str, int], sizes: Sizes) -> list[int]:
    """Returns a shape for an input, and adds the sizes of named dimensions to `named`."""
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
        shape.append(named.setdefault(name_of_axis(value, axis), default))
    return shape


def _names_of_sequences(
    inputs: Sequence[onnx.ValueInfoProto], held: Mapping[str, Mapping[Role, Sequence[Use]]]
) -> set[str]:
    """Returns the dimension names of inputs that are neither lengths nor states."""
    rows = (Role.LENGTH, Role.STATE, Role.CELL)
    others = [i for i in inputs if not any(held[i.name][role] for role in rows)]
    return {d.dim_param for i in others for d in i.type.tensor_type.shape.dim if d.dim_param}


def _follow_batch(
    value: onnx.ValueInfoProto,
    shape: list[int],
    uses: Sequence[Use],
    known: Mapping[str, Sequence[int | None]],
    shared: AbstractSet[str],
) -> None:
    """Sets the batch axis of lengths and states to the batch of their sequence, unless its name is in `shared`."""
    for use in uses:
        sequence = known.get(use.value, ())
        free = [axis for axis, dim in enumerate(value.type.tensor_type.shape.dim) if fixed_size(dim) is None]
        axis = 0 if use.role is Role.LENGTH else use.batch_axis
        axis = free[0] if len(free) == 1 else axis  # a state may lack the axis for directions
        if use.batch_axis < len(sequence) and axis < len(shape):
            dim, size = value.type.tensor_type.shape.dim[axis], sequence[use.batch_axis]
            if size is not None and fixed_size(dim) is None and dim.dim_param not in shared:
                shape[axis] = size


def _whole_numbers(
    held: Mapping[Role, Sequence[Use]], known: Mapping[str, Sequence[int | None]], length: int
) -> tuple[int, int]:
    """Returns the range `[low, high)` of an integer input. `length`: length of sequences of unknown length."""
    role = next((r for r in (Role.LENGTH, Role.INDEX) if held[r]), Role.COUNT)
    sizes = []
    for use in held[role]:
        shape = known.get(use.value, ())
        size = shape[use.axis] if -len(shape) <= use.axis < len(shape) else None
        if size is not None:
            sizes.append(size)
    if role is Role.COUNT and held[role]:
        return 1, max(1, min(sizes, default=length)) + 1
    if role is Role.LENGTH:
        return 1, max(1, min(sizes, default=1)) + 1
    return 0, max(1, min(sizes, default=2))
