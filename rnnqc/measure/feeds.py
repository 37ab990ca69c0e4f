"""Generates feeds for comparing models: of sizes that a model runs with, and of several magnitudes."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import onnx

from rnnqc.cells.types import CELL_TYPES
from rnnqc.data.declared_shapes import fixed_size
from rnnqc.data.feeds import Feeds
from rnnqc.data.generated_feeds import (
    EXTREME_LENGTH,
    GENERATED_BATCH,
    GENERATED_LENGTH,
    Generation,
    Sizes,
    Values,
    generate_feeds,
)
from rnnqc.errors import CompileError, located
from rnnqc.evaluation.evaluate import make_session, run_session
from rnnqc.ir import Model
from rnnqc.passes import PassManager
from rnnqc.passes.graph.nodes.lstm_node import SEQUENCE_LENS, P
from rnnqc.passes.pipeline import normal_form
from rnnqc.proto.graph_walks import blocks_of, named_tensors

MAGNITUDES = (1.0, 0.1, 3.0, 10.0, 30.0)
"""Magnitudes of generated floats; the usual one first."""
USUAL = "usual values"
"""The first kind of generated data for a model whose inputs are whole numbers."""
BEYOND = 4.0
"""The factor for states that come from elsewhere than the layer itself."""
STREAM = 16
"""The number of calls of a generated stream."""
LONG_LENGTH = 512
"""Length of generated sequences if the model needs long ones, such as one that frames sound."""
MOST_LENGTHS = 16
"""The number of lengths tried that come from the model itself."""
LONGEST = 2**16
TRACED_BATCHES = (2, 4, 8, 16, 32, 64)
"""Sizes of batches that models are traced with; constant states of theirs take no other one."""
_FEW = 64
_LENGTHS_OF = ("Reshape", "Slice", "Split", "Pad", "Expand", "Range")
"""Operators whose constant integers are sizes or positions along an axis."""
_SLIDING = ("Conv", "MaxPool", "AveragePool", "LpPool")
"""Operators with a sliding window over a sequence; a chain of them needs the whole receptive field."""


class FeedGenerator:
    """Generates feeds for a float model.

    The normal form, in which unrolled steps are nodes again, shows best how inputs are used. Free dimensions get the
    first sizes with which the model runs (`candidate_sizes`).

    Args:
        proto: The model.
        readable: The model in normal form, if available.

    Attributes:
        takes_short: Whether it runs on short sequences.
        sizes: The sizes; those of short sequences if none was found.
        refusal: Why it does not run on any generated data; None if it does.
    """

    def __init__(self, proto: onnx.ModelProto, readable: onnx.ModelProto | None = None) -> None:
        if readable is None:
            loaded = Model.load(proto)
            PassManager(normal_form()).run(loaded)
            readable = loaded.proto
        self._readable = readable
        self.sizes, self.refusal = self._search(proto)
        self.takes_short = self.refusal is None and self.sizes.length <= GENERATED_LENGTH

    def feeds(self, seed: int, *, extreme: bool = False, values: Values | None = None) -> Feeds:
        """Generates feeds for a seed; extreme ones have longer sequences if the model takes short ones."""
        if not extreme:
            return self._generation.feeds(seed, values)
        longer = self.sizes.length == GENERATED_LENGTH
        sizes = replace(self.sizes, length=EXTREME_LENGTH) if longer else self.sizes
        return generate_feeds(self._readable, seed, extreme=True, sizes=sizes)

    @cached_property
    def _generation(self) -> Generation:
        return Generation(self._readable, self.sizes)

    def checked(self) -> FeedGenerator:
        """Returns itself.

        Raises:
            CompileError: The model runs on none of the generated data.
        """
        if self.refusal is not None:
            raise self.refusal
        return self

    def _search(self, proto: onnx.ModelProto) -> tuple[Sizes, CompileError | None]:
        """Returns sizes with which the model runs, or the reason why there are none."""
        tried: list[tuple[dict[str, list[int]], bool]] = []
        reason = ""
        try:
            with located("the float model cannot be run"):
                session = make_session(proto, optimize=False)
            for sizes, masks in itertools.product(candidate_sizes(proto), (True, False)):
                sizes = replace(sizes, masks=masks)
                generation = Generation(self._readable, sizes)
                if (generation.shapes, generation.masked) in tried:
                    continue
                tried.append((generation.shapes, generation.masked))
                try:
                    outputs = run_session(session, generation.feeds(0))
                except CompileError as error:
                    reason = reason or error.message
                    continue
                if generation.masked and not all(map(_is_finite, outputs.values())):
                    continue
                if any(np.size(o) for o in outputs.values()):
                    return sizes, None
                reason = reason or "all outputs are empty."
        except CompileError as error:
            return Sizes(), error
        return Sizes(), CompileError(
            f"the model does not run on generated data ({len(tried)} choices of sizes tried): {reason}",
            supported="data that the model runs on",
            action="give data that fits it (--data; rnnqc bench: -i), or sizes that it takes (--dim NAME=N)",
        )


@dataclass(frozen=True)
class Level:
    """Feeds of one kind.

    Attributes:
        name: The kind, for people.
        feeds: The feeds, or the calls of a stream.
        is_given: Whether they are the user's data.
    """

    name: str
    feeds: list[Feeds]
    is_given: bool = False


def generated_levels(
    generator: FeedGenerator, count: int = 1, carried: Mapping[str, str] | None = None
) -> Iterator[Level]:
    """Yields generated feeds of several magnitudes, each made when it is taken; the usual ones first.

    A single magnitude gives too good results: near zero everything is linear, and saturated gates show no error.
    Magnitudes that give the same feed again are skipped, as for tokens.

    Args:
        generator: Generator of feeds.
        count: How many of each kind.
        carried: Outputs by the input they become, for calls of a stream; the first one holds zeros for the states.
    """
    kinds = [(f"magnitude {m:g}", Values(m)) for m in MAGNITUDES]
    kinds.append(("frequent indices", Values(frequent=True)))
    kinds.append((f"states {BEYOND:g} times as large", Values(beyond=BEYOND)))
    if all(array.dtype.kind != "f" for array in generator.feeds(0).values()):
        kinds[0] = (USUAL, kinds[0][1])  # tokens have no magnitude
    seen: list[Feeds] = []
    for name, values in kinds:
        first = _without_states([generator.feeds(0, values=values)], carried)[0]
        if any(all(np.array_equal(array, other[key]) for key, array in first.items()) for other in seen):
            continue
        seen.append(first)
        feeds = [generator.feeds(seed, values=values) for seed in range(count)]
        yield Level(name, _without_states(feeds, carried))


def _without_states(feeds: list[Feeds], carried: Mapping[str, str] | None) -> list[Feeds]:
    """Makes feeds the calls of a stream: zeros for the states in the first, no states in the others."""
    if not carried:
        return feeds
    first = {n: np.zeros_like(a) if n in carried else a for n, a in feeds[0].items()}
    return [first, *({n: a for n, a in feed.items() if n not in carried} for feed in feeds[1:])]


def generated_feeds(proto: onnx.ModelProto, count: int = 2, carried: Mapping[str, str] | None = None) -> list[Feeds]:
    """Generates feeds with usual values for a float model: the first of `generated_levels`.

    Args:
        proto: The model.
        count: How many.
        carried: Outputs by the input they become, for calls of a stream.

    Raises:
        CompileError: It runs on none of the generated data.
    """
    generator = FeedGenerator(proto).checked()
    return _without_states([generator.feeds(seed) for seed in range(count)], carried)


def _is_finite(output: object) -> bool:
    array = np.asarray(output)
    return array.dtype.kind != "f" or bool(np.isfinite(array).all())


def candidate_sizes(proto: onnx.ModelProto) -> Iterator[Sizes]:
    """Yields sizes to try, the usual ones first."""
    lengths = [GENERATED_LENGTH, LONG_LENGTH, *lengths_of(proto)]
    for length, batch in itertools.product(lengths[:2], (GENERATED_BATCH, 1)):
        yield Sizes(length, batch)
    yield Sizes(GENERATED_LENGTH, GENERATED_BATCH, named_time=True)
    yield Sizes(GENERATED_LENGTH, 1, named_time=True)
    for size in (GENERATED_BATCH, 1):  # batch and time may be the same dimension
        yield Sizes(size, size)
    for length, batch in itertools.product(lengths[2:], (GENERATED_BATCH, 1, 2)):
        yield Sizes(length, batch)
    for batch in dict.fromkeys([*batches_of(proto), *TRACED_BATCHES]):
        yield Sizes(GENERATED_LENGTH, batch)


def batches_of(proto: onnx.ModelProto) -> list[int]:
    """Returns the sizes of batches that constant lengths and initial states of recurrent nodes have."""
    blocks = list(blocks_of([proto.graph, *proto.functions]))
    held = {name: t.dims for b in blocks for name, t in named_tensors(b)}
    nodes = [n for b in blocks for n in b.node if n.op_type in CELL_TYPES and not n.domain]
    dims = [held[name] for node in nodes for name in node.input[SEQUENCE_LENS:P] if name in held]
    return [int(d[len(d) // 2]) for d in dims if d]  # [B] and [D,B,H]


def lengths_of(proto: onnx.ModelProto) -> list[int]:
    """Returns lengths found in a model's declared shapes, convolutions, slices and reshapes; the likeliest first."""
    declared = [fixed_size(d) for v in (*proto.graph.output, *proto.graph.input) for d in v.type.tensor_type.shape.dim]
    blocks = list(blocks_of([proto.graph, *proto.functions]))
    small = {name: t for b in blocks for name, t in named_tensors(b) if _count(t) <= _FEW}
    found: list[int] = []
    windows, field, stride = 0, 1, 1
    for node in (n for b in blocks for n in b.node):
        if node.op_type in _LENGTHS_OF:
            found += [abs(n) for name in node.input for n in _whole(small.get(name))]
        window = max(_whole_attribute(node, "kernel_shape"), default=0)
        windows += window
        if window and node.op_type in _SLIDING:
            field, stride = field + (window - 1) * stride, stride * max(_whole_attribute(node, "strides"), default=1)
    found += [n for n in declared if n is not None]
    sizes = sorted({*found, windows, 2 * windows})
    usual = (GENERATED_LENGTH, LONG_LENGTH)
    own = [n for n in dict.fromkeys([*found[-len(declared) :], *sizes]) if 1 < n <= LONGEST and n not in usual]
    own = own[: MOST_LENGTHS - 1]
    return own if 2 * field in (*own, *usual) or not 1 < field <= LONGEST // 2 else [*own, 2 * field]


def _whole_attribute(node: onnx.NodeProto, name: str) -> Sequence[int]:
    return next((a.ints for a in node.attribute if a.name == name), ())


def _count(tensor: onnx.TensorProto) -> int:
    return int(np.prod(tensor.dims)) if tensor.dims else 1


def _whole(tensor: onnx.TensorProto | None) -> list[int]:
    if tensor is None or tensor.data_type not in (onnx.TensorProto.INT64, onnx.TensorProto.INT32):
        return []
    return [int(n) for n in onnx.numpy_helper.to_array(tensor).ravel()]
