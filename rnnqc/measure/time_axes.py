"""Finds the time axis of an output: the one along which recurrent layers run.

Only shapes decide: the time axis of a recurrent node's sequence gets a symbol, shape inference carries the symbol
through the graph, and the axis of an output that has the symbol is time. Where inference loses the symbol (for example
at a Reshape to computed sizes), dimension names that inputs and outputs declare and share are used. An output without
such an axis, or with several candidates, has no time axis.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt
import onnx
from onnx import AttributeProto, helper

from rnnqc.cells.types import CELL_TYPES
from rnnqc.data.feeds import true_inputs
from rnnqc.data.input_uses import Role, uses_of
from rnnqc.errors import CompileError, explained
from rnnqc.ir import Model, shape_of
from rnnqc.passes import PassManager
from rnnqc.passes.pipeline import normal_form
from rnnqc.proto.graph_walks import blocks_of
from rnnqc.proto.shape_inference import INFERENCE_ERRORS, infer_shapes, sizes_of, skeleton

Array = npt.NDArray[Any]
_MOST_CUTS = 32
_TIME = "rnnqc/time:"


@dataclass(frozen=True)
class TimeAxis:
    """The time axis of an output.

    Attributes:
        axis: Its number.
        source: The input and its axis that have the same size; None where no input has it.
    """

    axis: int
    source: tuple[str, int] | None = None

    def of(self, value: Array, feed: Mapping[str, Array]) -> int | None:
        """Returns the axis if a value has it, with the size of the input's axis; else None.

        Args:
            value: An output.
            feed: The inputs that gave it.
        """
        if self.axis >= value.ndim:
            return None
        if self.source is not None and self.source[0] in feed:
            array = feed[self.source[0]]
            if self.source[1] >= array.ndim or array.shape[self.source[1]] != value.shape[self.axis]:
                return None
        return self.axis


@dataclass(frozen=True)
class _Sequence:
    """A sequence that a recurrent node reads: its value, the time axis, the batch axis."""

    node: onnx.NodeProto
    value: str
    time: int
    batch: int | None


def output_axes(model: onnx.ModelProto) -> dict[str, TimeAxis]:
    """Returns the time axes of outputs, found in the normal form, where recovered loops are nodes."""
    normal = in_normal_form(model)
    return time_axes(normal if normal is not None else model)


def in_normal_form(model: onnx.ModelProto) -> onnx.ModelProto | None:
    """Returns the normal form of `model`; None if it is in normal form already, or cannot be converted."""
    try:
        loaded = Model.load(model)
        results = PassManager(normal_form()).run(loaded)
    except CompileError:
        return None
    return loaded.proto if any(r.modified for r in results) else None


def time_axes(proto: onnx.ModelProto) -> dict[str, TimeAxis]:
    """Returns the time axis of each output that has exactly one candidate.

    Args:
        proto: A model with LSTM, GRU, RNN, Scan nodes or rnnqc's cells, in the main graph or in subgraphs.
    """
    bare = skeleton(proto)
    for output in bare.graph.output:
        output.type.tensor_type.ClearField("shape")
    symbols: dict[str, tuple[str, int]] = {}
    declared: dict[str, list[tuple[str, int]]] = {}
    static: list[tuple[str, int]] = []
    named: dict[str, str] = {}
    for value in true_inputs(bare):
        for axis, dim in enumerate(value.type.tensor_type.shape.dim):
            if dim.HasField("dim_value"):
                if dim.dim_value > 1:
                    static.append((value.name, axis))
                continue
            name = dim.dim_param
            symbol = named.setdefault(name, f"in:{name}") if name else f"axis:{value.name}:{axis}"
            if name:
                declared.setdefault(name, []).append((value.name, axis))
            dim.dim_param = symbol
            symbols.setdefault(symbol, (value.name, axis))
    found: dict[str, set[TimeAxis]] = {}
    running: set[str] = set()
    for shapes, graph in _with_cut_layers(bare):
        times = _time_symbols(graph, shapes)
        running |= times
        _note(found, graph, shapes, times, symbols)
    for name, axis in static:
        marked = onnx.ModelProto()
        marked.CopyFrom(bare)
        symbol = f"static:{name}:{axis}"
        next(i for i in marked.graph.input if i.name == name).type.tensor_type.shape.dim[axis].dim_param = symbol
        shapes = _shapes(marked)
        _note(found, marked, shapes, _time_symbols(marked, shapes) & {symbol}, {symbol: (name, axis)})
    for output in proto.graph.output:
        dims = [d.dim_param for d in output.type.tensor_type.shape.dim]
        for name, places in declared.items():
            if output.name not in found and dims.count(name) == 1 and named[name] in running:
                found[output.name] = {TimeAxis(dims.index(name), places[0])}
    return {name: next(iter(axes)) for name, axes in found.items() if len({a.axis for a in axes}) == 1}


def _note(
    found: dict[str, set[TimeAxis]],
    model: onnx.ModelProto,
    shapes: Mapping[str, list[int | str | None]],
    times: set[str],
    symbols: Mapping[str, tuple[str, int]],
) -> None:
    for output in model.graph.output:
        shape = shapes.get(output.name, [])
        for axis, dim in enumerate(shape):
            if isinstance(dim, str) and dim in times:
                found.setdefault(output.name, set()).add(TimeAxis(axis, symbols.get(dim)))


def _sequences(model: onnx.ModelProto) -> Iterator[_Sequence]:
    """Yields the sequences that nodes of the model process, in subgraphs, too."""
    for block in blocks_of([model.graph]):
        for node in block.node:
            numbers = {a.name: a.i for a in node.attribute if a.type == AttributeProto.INT}
            for use in (use for _, use in uses_of(node) if use.role is Role.STATE):
                yield _Sequence(node, use.value, use.axis, use.batch_axis)
            if node.op_type == "Scan" and "num_scan_inputs" in numbers:
                count = numbers["num_scan_inputs"]
                axes = next((list(a.ints) for a in node.attribute if a.name == "scan_input_axes"), [0] * count)
                for name, axis in zip(node.input[len(node.input) - count :], axes, strict=False):
                    yield _Sequence(node, name, axis, None)


def _time_symbols(model: onnx.ModelProto, shapes: Mapping[str, list[int | str | None]]) -> set[str]:
    times: set[str] = set()
    batches: set[str] = set()
    for sequence in _sequences(model):
        shape = shapes.get(sequence.value, [])
        for into, axis in ((times, sequence.time), (batches, sequence.batch)):
            if axis is not None and -len(shape) <= axis < len(shape) and isinstance(shape[axis], str):
                into.add(str(shape[axis]))
    times |= {d for shape in shapes.values() for d in shape if isinstance(d, str) and d.startswith(_TIME)}
    return times - batches


def _with_cut_layers(
    bare: onnx.ModelProto,
) -> Iterator[tuple[dict[str, list[int | str | None]], onnx.ModelProto]]:
    """Yields shapes of the model; then again with results of layers as inputs where inference lost the length."""
    model = onnx.ModelProto()
    model.CopyFrom(bare)
    for number in range(_MOST_CUTS):
        shapes = _shapes(model)
        yield shapes, model
        index = next((k for k, node in enumerate(model.graph.node) if _length_is_lost(node, shapes)), None)
        if index is None:
            return
        node = model.graph.node[index]
        attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        layout = attributes.get("layout", 0)
        hidden = attributes.get("hidden_size")
        directions = 2 if attributes.get("direction") == b"bidirectional" else 1
        time, batch = f"{_TIME}{number}", f"rnnqc/batch:{number}"
        y = [batch, time, directions, hidden] if layout else [time, directions, batch, hidden]
        last = [batch, directions, hidden] if layout else [directions, batch, hidden]
        for name, dims in zip(node.output, (y, last, last), strict=False):
            if name:
                model.graph.input.append(helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, dims))
        del model.graph.node[index]


def _length_is_lost(node: onnx.NodeProto, shapes: Mapping[str, list[int | str | None]]) -> bool:
    if node.op_type not in CELL_TYPES or node.domain not in ("", "ai.onnx") or not node.input:
        return False
    layout = next((a.i for a in node.attribute if a.name == "layout"), 0)
    shape = shapes.get(node.input[0], [])
    return len(shape) != 3 or shape[layout] is None


def _shapes(model: onnx.ModelProto) -> dict[str, list[int | str | None]]:
    """Returns shapes of all values: sizes, symbols, None for what is unknown."""
    described = model
    with contextlib.suppress(*INFERENCE_ERRORS):
        described = infer_shapes(model)
    shapes: dict[str, list[int | str | None]] = {}
    for block in blocks_of([described.graph]):
        if isinstance(block, onnx.GraphProto):
            for value in [*block.value_info, *block.input, *block.output]:
                if value.type.tensor_type.HasField("shape"):
                    shapes[value.name] = sizes_of(value.type.tensor_type.shape)
    return shapes


def fixed_lengths(model: Model) -> list[str]:
    """Returns a sentence for each output with a declared fixed length that depends on a dynamic length of an input.

    torch's dynamo exporter declares such shapes, also of inner values. With a batch of 1, onnxruntime relies on them to
    fuse a MatMul.

    Args:
        model: A model as `time_axes` takes it.
    """
    if not _may_be_fixed(model):
        return []
    proto, found = model.proto, []
    axes = time_axes(proto)
    inputs = {i.name: i.type.tensor_type.shape.dim for i in true_inputs(proto)}
    for index, output in enumerate(proto.graph.output):
        at = axes.get(output.name)
        dims = output.type.tensor_type.shape.dim
        if at is None or at.source is None or at.axis >= len(dims) or not dims[at.axis].dim_value:
            continue
        name, axis = at.source
        given = inputs[name][axis]
        if not given.HasField("dim_value"):
            text = (
                f"output {output.name!r} is declared with {dims[at.axis].dim_value} steps on axis {at.axis}, and has "
                f"as many as input {name!r}, where the number is open: at each run with another onnxruntime warns, or "
                "fails where it fused by what is declared."
            )
            place = f"graph.output[{index}].type.tensor_type.shape.dim[{at.axis}].dim_param"
            action = f"name the axis in the ModelProto ({place} = {given.dim_param!r}) and del graph.value_info[:]"
            found.append(explained(text, action=action))
    return found


def _may_be_fixed(model: Model) -> bool:
    """Whether an input has a dynamic dimension, and an output a fixed one that is not the features of a step."""
    shapes = [shape_of(v) or () for v in model.graph.outputs]
    is_open = any(not isinstance(d, int) for v in model.graph.inputs for d in shape_of(v) or ())
    return is_open and any(isinstance(d, int) and d > 1 for s in shapes for d in (s[:-1] if len(s) > 2 else s))
