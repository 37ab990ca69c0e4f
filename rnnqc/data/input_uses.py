"""Finds out how a model uses its inputs, which limits their sensible values."""

from __future__ import annotations

import contextlib
import enum
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import onnx

from rnnqc.cells.fused_nodes import fused_places
from rnnqc.cells.rearrange_nodes import OPERATORS as REARRANGES
from rnnqc.cells.types import CELL_TYPES, fused_type
from rnnqc.data.declared_shapes import fixed_size
from rnnqc.proto.graph_walks import blocks_of, branch_results
from rnnqc.proto.shape_inference import INFERENCE_ERRORS, infer_shapes, skeleton

MOVERS: dict[str, int | None] = {
    **dict.fromkeys(
        ("Cast", "Identity", "Reshape", "Squeeze", "Unsqueeze", "Transpose", "Flatten", "Expand", "Tile"), 0
    ),
    **dict.fromkeys(("Slice", "Split", "Gather", "GatherElements", "TopK", "Clip"), 0),
    **dict.fromkeys(("Concat", "Min", "Max", *REARRANGES), None),
}
"""Operators that move or convert values and keep their meaning, with the input that holds the values; None for all."""
_CHOSEN = slice(1, 3)
"""The inputs of a Where that it selects from."""
_COMPARISONS = ("Less", "LessOrEqual", "Greater", "GreaterOrEqual")
_CONDITIONS = ("Not", "And", "Or", "Equal", *_COMPARISONS)
_UNDIVIDED = frozenset(
    {"Cast", "Identity", "Shape", "Reshape", "Squeeze", "Unsqueeze", "Transpose", "Flatten", "Equal", *_COMPARISONS}
)
"""Operators that read an input as a whole and do no arithmetic on it."""
_SHARED_AXES = {**dict.fromkeys(CELL_TYPES, (-1, 2)), "MatMul": (-1, -2), "Gemm": (-1, 0), "Conv": (1, 1)}
"""For operators with weights: the axis of the input and the axis of the weights that have the same size."""


_Shapes = dict[str, Sequence[onnx.TensorShapeProto.Dimension]]


class Role(enum.Enum):
    """How an input is used."""

    LENGTH = "length"
    """Sequence lengths: 1 to the length of the sequence."""
    INDEX = "index"
    """Indices into a table, such as tokens of an embedding."""
    STATE = "state"
    """A hidden state of a recurrent layer: mostly between -1 and 1."""
    CELL = "cell"
    """A cell state of a recurrent layer."""
    TRIPS = "trips"
    """The number of iterations of a loop."""
    COUNT = "count"
    """A number of steps that is compared with 0, 1, 2 and so on to make a mask."""
    CHOICE = "choice"
    """A number that is compared with a constant."""


@dataclass(frozen=True)
class Use:
    """One use of an input.

    Attributes:
        role: The kind of use.
        value: LENGTH, STATE, CELL: the sequence; INDEX: the table; CHOICE, COUNT: the value it is compared with.
        axis: LENGTH, COUNT: the time axis of the value; INDEX: the axis of the table that is indexed.
        batch_axis: LENGTH, STATE, CELL: the batch axis of the sequence.
    """

    role: Role
    value: str
    axis: int = 0
    batch_axis: int = 1


def input_uses(proto: onnx.ModelProto) -> dict[str, list[Use]]:
    """Returns the known uses of the main graph's inputs."""
    nodes, makers, entries = _walk(proto)
    inputs = {i.name for i in proto.graph.input}
    uses: dict[str, list[Use]] = {}
    for node in nodes:
        for index, use in uses_of(node):
            if index < len(node.input) and node.input[index]:
                for name in _sources(node.input[index], makers, entries, inputs):
                    uses.setdefault(name, []).append(use)
        for index in (0, 1) if node.op_type in _COMPARISONS else ():
            if _is_counter(node.input[1 - index], makers):
                for name in _sources(node.input[index], makers, entries, inputs):
                    uses.setdefault(name, []).append(Use(Role.COUNT, node.input[1 - index], -1))
    return uses


def undivided(proto: onnx.ModelProto) -> set[str]:
    """Returns the inputs of the main graph that no arithmetic reads, such as tokens, but not tables of features."""
    readers = [(name, n.op_type) for block in blocks_of([proto.graph]) for n in block.node for name in n.input]
    return {i.name for i in proto.graph.input} - {name for name, op in readers if op not in _UNDIVIDED}


def _is_counter(value: str, makers: Mapping[str, onnx.NodeProto]) -> bool:
    """Whether a value is a Range, possibly moved or converted."""
    node = makers.get(value)
    while node is not None and MOVERS.get(node.op_type) == 0:
        node = makers.get(node.input[0])
    return node is not None and node.op_type == "Range"


def uses_of(node: onnx.NodeProto) -> Iterator[tuple[int, Use]]:
    """Yields input index and use for every input of `node` that limits its values."""
    numbers = {a.name: a.i for a in node.attribute if a.type == onnx.AttributeProto.INT}
    if node.op_type in CELL_TYPES and len(node.input) > 0:
        batch = 0 if numbers.get("layout") == 1 else 1
        yield 4, Use(Role.LENGTH, node.input[0], 1 - batch, batch)
        yield 5, Use(Role.STATE, node.input[0], 1 - batch, batch)
        yield 6, Use(Role.CELL, node.input[0], 1 - batch, batch)
    elif fused_type(node.op_type) and len(node.input) > 0:
        places = {place: index for index, place in enumerate(fused_places(node))}
        for place, role in ((8, Role.LENGTH), (9, Role.STATE), (10, Role.CELL)):
            yield places.get(place, len(node.input)), Use(role, node.input[0])
    elif node.op_type == "ReverseSequence" and len(node.input) > 0:
        yield 1, Use(Role.LENGTH, node.input[0], numbers.get("time_axis", 0), numbers.get("batch_axis", 1))
    elif node.op_type == "Gather" and len(node.input) > 1:
        yield 1, Use(Role.INDEX, node.input[0], numbers.get("axis", 0))
    elif node.op_type == "Loop" and len(node.input) > 0:
        yield 0, Use(Role.TRIPS, node.input[0])
    elif node.op_type == "Equal" and len(node.input) > 1:
        for k in (0, 1):
            yield k, Use(Role.CHOICE, node.input[1 - k])


def _entries(node: onnx.NodeProto) -> list[tuple[str, str]]:
    """Returns the inputs of a Loop's or Scan's body, with the outer values that they start from."""
    if node.op_type not in ("Loop", "Scan"):
        return []
    bodies = [a.g for a in node.attribute if a.name == "body"]
    return [(inner.name, outer) for body in bodies for inner, outer in zip(body.input, node.input, strict=False)]


def sources_of(value: str, proto: onnx.ModelProto, origins: set[str]) -> list[str]:
    """Returns the values among `origins` that supply the elements of `value`."""
    _, makers, entries = _walk(proto)
    return _sources(value, makers, entries, origins)


def _walk(proto: onnx.ModelProto) -> tuple[list[onnx.NodeProto], dict[str, onnx.NodeProto], dict[str, str]]:
    """Returns all nodes, the producer of each value, and the outer values that inputs of loop bodies start from."""
    nodes = [n for block in blocks_of([proto.graph]) for n in block.node]
    makers = {o: n for n in nodes for o in n.output if o}
    return nodes, makers, {inner: outer for n in nodes for inner, outer in _entries(n)}


def _sources(
    value: str, makers: Mapping[str, onnx.NodeProto], entries: Mapping[str, str], inputs: set[str]
) -> list[str]:
    """Returns the graph inputs that supply the elements of `value`."""
    found: list[str] = []
    stack, seen = [value], {value}
    while stack:
        name = stack.pop()
        if name in inputs:
            found.append(name)
        elif name in entries and entries[name] not in seen:
            seen.add(entries[name])
            stack.append(entries[name])
        elif name in makers and makers[name].op_type in MOVERS:
            from_input = MOVERS[makers[name].op_type]
            more = makers[name].input if from_input is None else makers[name].input[from_input : from_input + 1]
            stack.extend(m for m in more if m not in seen)
            seen.update(more)
        elif name in makers:
            where = makers[name].op_type == "Where"
            branches = makers[name].input[_CHOSEN] if where else branch_results(makers[name], name)
            branches = branches or _chosen(makers[name], makers)
            stack.extend(b for b in branches if b not in seen)
            seen.update(branches)
    return found


def _chosen(node: onnx.NodeProto, makers: Mapping[str, onnx.NodeProto]) -> list[str]:
    """Returns the values that tf2onnx's form of a Where, `a * cond + b * not cond`, selects from; else empty."""
    products = [makers.get(name) for name in node.input] if node.op_type == "Add" else []
    found = [
        [n for n in p.input if not _is_condition(n, makers)] for p in products if p is not None and p.op_type == "Mul"
    ]
    return [n for (n,) in found] if len(found) == len(products) and all(len(f) == 1 for f in found) else []


def _is_condition(value: str, makers: Mapping[str, onnx.NodeProto]) -> bool:
    """Whether a value is a condition cast to a number."""
    cast = makers.get(value)
    made = makers.get(cast.input[0]) if cast is not None and cast.op_type == "Cast" else None
    return made is not None and made.op_type in _CONDITIONS


def known_shapes(proto: onnx.ModelProto, bound: Mapping[str, Sequence[int]]) -> dict[str, list[int | None]]:
    """Returns inferred shapes of values, given input shapes `bound`; values without an inferred shape are left out."""
    return {
        name: [d.dim_value if d.HasField("dim_value") else None for d in dims]
        for name, dims in _inferred(proto, bound).items()
    }


class Axes(NamedTuple):
    """Free dimensions of inputs by kind, under the names of `name_of_axis`.

    Attributes:
        times: Dimensions along which recurrent nodes and loops run.
        batches: Their batch dimensions.
        widths: Dimensions whose size weights fix, with the size: the features of a sequence, for example, which a
            recurrent node multiplies by a matrix.
    """

    times: set[str]
    batches: set[str]
    widths: dict[str, int]


def free_axes(proto: onnx.ModelProto) -> Axes:
    """Classifies the dimensions that inputs leave open."""
    shapes, times, batches, widths = _inferred(proto, {}), set[str](), set[str](), dict[str, int]()
    for node in _walk(proto)[0]:
        uses = [(use.value, use.axis, use.batch_axis) for _, use in uses_of(node) if use.role is Role.STATE]
        for value, time_axis, batch_axis in [*uses, *_stepped(node)]:
            dims = shapes.get(value, ())
            for axis, names in ((batch_axis, batches), (time_axis, times)):
                if axis < len(dims) and dims[axis].dim_param:
                    names.add(dims[axis].dim_param)
        widths |= _width(node, shapes)
    return Axes(times - batches, batches - times, widths)


def _stepped(node: onnx.NodeProto) -> Iterator[tuple[str, int, int]]:
    """Yields values `[T,B,...]` that a Loop reads one step per iteration, with the axes of time and batch."""
    for body in (a.g for a in node.attribute if a.name == "body" and node.op_type == "Loop"):
        inputs = {i.name for i in body.input}
        for inner in body.node:
            whole = all(a.name != "axis" or a.i == 0 for a in inner.attribute)
            if inner.op_type == "Gather" and whole and inner.input[1] in inputs:
                yield inner.input[0], 0, 1


def _width(node: onnx.NodeProto, shapes: _Shapes) -> dict[str, int]:
    """Returns the free axis of the input that a node multiplies by weights, with the size of the weights."""
    axes = _SHARED_AXES.get(node.op_type) or ((-1, -2) if fused_type(node.op_type) else None)
    dims, weight = (shapes.get(name, ()) for name in (*node.input[:2], "", "")[:2])
    numbers = {a.name: a.i for a in node.attribute}
    if axes is None or len(dims) < 2 or len(weight) < 2 or numbers.get("transA") or numbers.get("group", 1) != 1:
        return {}
    size, name = weight[1 if numbers.get("transB") else axes[1]].dim_value, dims[axes[0]].dim_param
    return {name: size} if size > 0 and name else {}


def name_of_axis(value: onnx.ValueInfoProto, axis: int) -> str:
    """Returns the name of an input's axis, or a substitute for it."""
    return value.type.tensor_type.shape.dim[axis].dim_param or f"{value.name}:{axis}"


def _inferred(proto: onnx.ModelProto, bound: Mapping[str, Sequence[int]]) -> _Shapes:
    """Returns inferred shapes of the values of the main graph, given input shapes `bound`."""
    model = skeleton(proto)
    graph = model.graph
    for value in graph.input:
        dims = value.type.tensor_type.shape.dim
        if value.name in bound:
            for dim, size in zip(dims, bound[value.name], strict=True):
                dim.dim_value = size
        for axis, dim in enumerate(dims):
            if fixed_size(dim) is None:
                dim.dim_param = name_of_axis(value, axis)
    with contextlib.suppress(*INFERENCE_ERRORS):  # declared shapes remain
        graph.CopyFrom(infer_shapes(model).graph)
    shapes: _Shapes = {
        t.name: [onnx.TensorShapeProto.Dimension(dim_value=n) for n in t.dims] for t in graph.initializer
    }
    for value in [*graph.value_info, *graph.input, *graph.output]:
        if value.type.tensor_type.HasField("shape"):
            shapes[value.name] = list(value.type.tensor_type.shape.dim)
    return shapes
