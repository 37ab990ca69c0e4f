"""Exposes inner values of a model, from loops, branches and inlined functions, step by step."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime as ort
from onnx import AttributeProto, helper

from rnnqc.errors import CompileError
from rnnqc.evaluation.evaluate import make_session, run_session
from rnnqc.passes.cells.observe import NotObservableError, Observed, with_outputs
from rnnqc.proto.graph_walks import captured
from rnnqc.proto.shape_inference import INFERENCE_ERRORS, SMALL, infer_shapes, skeleton

Array = npt.NDArray[Any]
Steps = tuple[int, ...]
"""The iterations of the loops around a value, from outside to inside; loops of one kind in each other count as one."""
Series = list[tuple[Steps, Array]]
Types = Mapping[str, tuple[int, int]]
LOOPS = ("Scan", "Loop")
_Group = tuple[Observed, ...]
_Made = tuple[ort.InferenceSession, Mapping[str, str]]


@dataclass(frozen=True)
class Place:
    """The position of a value in a model.

    Attributes:
        name: Its name.
        inside: The nodes whose subgraphs contain it, outermost first: operator and first output.
        looped: Whether one of them is a loop.
    """

    name: str
    inside: tuple[str, ...]
    looped: bool


def places(graph: onnx.GraphProto, inside: tuple[str, ...] = (), looped: bool = False) -> Iterator[Place]:
    """Yields all values of nodes, those of a subgraph before the results of its node."""
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == AttributeProto.GRAPH:
                owner = f"{node.op_type} {next(filter(None, node.output), node.name)!r}"
                yield from places(attribute.g, (*inside, owner), looped or node.op_type in LOOPS)
        for name in node.output:
            if name:
                yield Place(name, inside, looped)


class InnerValues:
    """Values of a model for one feed after the other; feeds of equal shapes share a session.

    Args:
        model: The model.
        names: Names of values.
    """

    def __init__(self, model: onnx.ModelProto, names: Sequence[str]) -> None:
        self._model, self._names = model, list(dict.fromkeys(names))
        self._places = {place.name: place for place in places(model.graph)}
        self._wanted: dict[Any, _Group] = {}
        self._made: dict[_Group, _Made | CompileError | NotObservableError] = {}

    def of(self, feeds: Mapping[str, Array]) -> dict[str, Series]:
        """Returns the values of each name, one for each step, without those that cannot be exposed."""
        found: dict[str, Series] = {}
        work = [self._group(feeds)]
        while work:
            group = work.pop()
            try:
                found.update(self._run(group, feeds))
            except (CompileError, NotObservableError):
                # One of them cannot be exposed: try halves.
                if len(group) > 1:
                    work += [group[: len(group) // 2], group[len(group) // 2 :]]
        return found

    def _group(self, feeds: Mapping[str, Array]) -> _Group:
        shapes = tuple((name, array.shape) for name, array in sorted(feeds.items()))
        if shapes not in self._wanted:
            known, wanted = _types_of(self._model, feeds), []
            for name in self._names:
                place = self._places[name]
                if not place.inside:
                    wanted.append(Observed("", "", name, False, 1, 0))
                elif name in known:
                    kind, rank = known[name]
                    wanted.append(Observed("", "", name, place.looped, rank + place.looped, 0, kind))
            self._wanted[shapes] = tuple(wanted)
        return self._wanted[shapes]

    def _run(self, group: _Group, feeds: Mapping[str, Array]) -> dict[str, Series]:
        if not group:
            return {}
        if group not in self._made:
            try:
                self._made[group] = self._session(group)
            except (CompileError, NotObservableError) as error:
                self._made[group] = error
        made = self._made[group]
        if isinstance(made, Exception):
            raise made
        session, outputs = made
        results = run_session(session, feeds, sequences=True)
        return {v.value: _series(results[outputs[v.value]], v, self._places[v.value]) for v in group}

    def _session(self, group: _Group) -> _Made:
        proto = onnx.ModelProto()
        proto.CopyFrom(self._model)
        outputs = with_outputs(proto, group, [])
        return make_session(proto, optimize=False), outputs


def _series(held: Any, value: Observed, place: Place) -> Series:
    if not isinstance(held, list):  # a tensor, or the steps that Scans stacked
        array = np.asarray(held)
        return [((t,), a) for t, a in enumerate(array)] if place.looped else [((), array)]
    arrays = [np.asarray(h) for h in held]
    loops = any(owner.startswith("Loop") for owner in place.inside)
    outer: list[Steps] = [(k,) if loops else () for k in range(len(arrays))]
    if value.step and any(a.ndim == value.rank for a in arrays):  # for a Scan in a Loop or a branch: all its steps
        return [((*o, t), a) for o, whole in zip(outer, arrays, strict=True) if whole.ndim for t, a in enumerate(whole)]
    return list(zip(outer, arrays, strict=True))


def _types_of(model: onnx.ModelProto, feeds: Mapping[str, Array]) -> Types:
    """Element type and rank of values, as far as inference provides them."""
    sized = skeleton(model)
    for value in sized.graph.input:
        if value.name in feeds:
            for dim, size in zip(value.type.tensor_type.shape.dim, feeds[value.name].shape, strict=False):
                dim.dim_value = size
    known: dict[str, onnx.TypeProto] = {}
    _infer(sized, known)
    return {
        name: (kind.tensor_type.elem_type, len(kind.tensor_type.shape.dim))
        for name, kind in known.items()
        if kind.tensor_type.elem_type and kind.tensor_type.HasField("shape")
    }


def _infer(model: onnx.ModelProto, known: dict[str, onnx.TypeProto]) -> None:
    """Records the types of all values of a graph and its subgraphs, which onnx does not infer together."""
    try:
        graph = infer_shapes(model).graph
    except INFERENCE_ERRORS:
        graph = model.graph
    for tensor in graph.initializer:
        known[tensor.name] = helper.make_tensor_type_proto(tensor.data_type, tensor.dims)
    stored = {t.name: t for t in graph.initializer if math.prod(t.dims) <= SMALL}
    known.update((v.name, v.type) for v in [*graph.input, *graph.value_info, *graph.output] if v.HasField("type"))
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == AttributeProto.GRAPH:
                body = onnx.ModelProto(ir_version=model.ir_version, opset_import=model.opset_import)
                body.graph.CopyFrom(attribute.g)
                for value, kind in zip(body.graph.input, _entering(node, known), strict=False):
                    if kind is not None:
                        value.type.CopyFrom(kind)
                for output in body.graph.output:
                    output.type.tensor_type.ClearField("shape")
                outer = sorted(captured(attribute.g) & known.keys())
                body.graph.initializer.extend(stored[n] for n in outer if n in stored)
                body.graph.input.extend(helper.make_value_info(n, known[n]) for n in outer if n not in stored)
                _infer(body, known)


def _entering(node: onnx.NodeProto, known: Mapping[str, onnx.TypeProto]) -> Iterator[onnx.TypeProto | None]:
    """The types of the inputs of a Scan's or Loop's body."""
    if node.op_type == "Loop":
        yield helper.make_tensor_type_proto(onnx.TensorProto.INT64, [])
        yield helper.make_tensor_type_proto(onnx.TensorProto.BOOL, [])
        for name in node.input[2:]:
            kind = onnx.TypeProto()
            kind.CopyFrom(known.get(name, kind))
            for dim in kind.tensor_type.shape.dim:  # valid in the first iteration only
                dim.Clear()
            yield kind if name in known else None
    if node.op_type != "Scan":
        return
    numbers = {a.name: a for a in node.attribute}
    count = numbers["num_scan_inputs"].i
    axes = list(numbers["scan_input_axes"].ints) if "scan_input_axes" in numbers else [0] * count
    for k, name in enumerate(node.input, count - len(node.input)):
        kind = onnx.TypeProto()
        kind.CopyFrom(known.get(name, kind))
        if k >= 0 and kind.tensor_type.shape.dim:
            del kind.tensor_type.shape.dim[axes[k]]
        yield kind if name in known else None
