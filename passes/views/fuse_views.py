"""Fuses operators that only move elements into one node."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import onnx

from rnnqc.cells.fused_nodes import CONFIGURATION, has_kernel, name_of_body
from rnnqc.cells.rearrange_nodes import COPIES, INPUT_SHAPES, MOST, MOST_DIMENSIONS, NAMES, OUTPUT_SHAPES
from rnnqc.evaluation.numerics import Bitwise
from rnnqc.ir import DOMAIN, Graph, Model, Node, dtype_of, safe_name
from rnnqc.passes.base import Pass, PassInfo, PassResult
from rnnqc.passes.invariants import Property
from rnnqc.passes.views.boxes import Box, boxes_of
from rnnqc.passes.views.moves import Table
from rnnqc.passes.views.plans import WORTH, copied_by, needed_nodes
from rnnqc.passes.views.rearrange_function import rearrange_function
from rnnqc.passes.views.regions import Region, find_regions, has_views
from rnnqc.passes.views.shapes import infer_shapes_of_values

_LARGEST = 2**15
"""Elements that one node moves; beyond, calls of operators hardly count."""


class FuseViews(Pass):
    """Fuses several operators that only move elements into one node, backed by a function that contains them.

    Before: `Transpose(state [1,2,128,2]) -> Reshape -> Split`, whose outputs are four states

    After: `ai.rnnqc::Rearrange_03(state) -> h_0, c_0, h_1, c_1`

    The attribute `copies` holds the source of each element, for the native library, which copies them all in one call
    (docs/rearrange.md). A node has the outputs that depend on the same values, so it waits for no more inputs than its
    operators did. Regions are those of `join-views`, here for float32 only. A model without another function of rnnqc
    stays unchanged: it needs no library. So does a region without an integer operand, with more than 32768 elements or
    8 dimensions, with an order that 64 boxes cannot describe, or for which the library has no operator left.
    """

    info = PassInfo(
        name="fuse-views",
        summary="fuse operators that only move elements into one node backed by a function",
        numerics=Bitwise(),
        requires=frozenset({Property.CANONICAL}),
    )

    def run(self, model: Model) -> PassResult:
        """Processes every graph, starting with the regions that save most operators."""
        names = {f.name for f in model.functions if f.domain == DOMAIN}
        if not names or not has_views(model):
            return PassResult(False)
        infer_shapes_of_values(model)
        found = [
            (graph, region, groups)
            for graph in list(model.graphs())
            for region in find_regions(model, graph)
            if (groups := _groups(model, region))
        ]
        found.sort(key=lambda f: -_saved(f[1], f[2]))
        library, fused = _Library(model, names), 0
        for graph, region, groups in found:
            if library.takes(groups):
                _replace(model, graph, region, groups, library)
                fused += len(groups)
        return PassResult(fused > 0, (), {"nodes": fused})


@dataclass(frozen=True)
class _Group:
    """Outputs of a region that depend on the same sources, and the node that computes them.

    Attributes:
        outputs: Numbers of the outputs.
        sources: Numbers of the sources.
        boxes: Boxes of each output.
        number: Number of the function's configuration.
        function: The function, without a name.
    """

    outputs: Sequence[int]
    sources: Sequence[int]
    boxes: Sequence[Sequence[Box]]
    number: int
    function: onnx.FunctionProto


class _Library:
    """Assigns function names, as long as the native library has operators for them."""

    def __init__(self, model: Model, taken: set[str]) -> None:
        self._model = model
        self._taken = taken
        self._names: dict[int, str] = {}

    def takes(self, groups: Iterable[_Group]) -> bool:
        """Names the functions of all groups; returns False and names none if the names do not suffice."""
        fresh: dict[int, tuple[str, onnx.FunctionProto]] = {}
        for group in groups:
            if group.number in self._names or group.number in fresh:
                continue
            name = name_of_body(NAMES, group.number, {*self._taken, *(n for n, _ in fresh.values())})
            if not has_kernel(name):
                return False
            fresh[group.number] = name, group.function
        for number, (name, function) in fresh.items():
            function.name = name
            self._model.functions.append(function)
            self._names[number] = name
            self._taken.add(name)
        return True

    def name(self, group: _Group) -> str:
        """Returns the name of a group's function."""
        return self._names[group.number]


def _groups(model: Model, region: Region) -> list[_Group]:
    """The nodes that can replace operators of a region; none if that saves no operator."""
    by_reach: dict[frozenset[int], list[int]] = {}
    for k, reach in enumerate(region.reach):
        by_reach.setdefault(reach, []).append(k)
    groups = [g for reach, outputs in by_reach.items() if (g := _group(model, region, sorted(reach), outputs))]
    moved = sum(region.tables[k].size for g in groups for k in g.outputs) + copied_by(region, _kept(region, groups))
    saved = _saved(region, groups)
    return groups if saved > 0 and moved <= region.copied + WORTH * saved else []


def _group(model: Model, region: Region, sources: Sequence[int], outputs: Sequence[int]) -> _Group | None:
    tables, starts = [region.tables[k] for k in outputs], [region.starts[k] for k in sources]
    nodes = needed_nodes(region, outputs)
    if len(nodes) < 2 or any(dtype_of(region.sources[k]) != np.float32 for k in sources):
        return None
    if max(len(sources), len(outputs)) > MOST or max(t.ndim for t in (*starts, *tables)) > MOST_DIMENSIONS:
        return None
    if sum(t.size for t in tables) > _LARGEST:
        return None
    boxes = [b for t in tables if (b := boxes_of(t, starts)) is not None]
    if len(boxes) < len(tables):
        return None
    made = rearrange_function(model, nodes, [region.sources[k] for k in sources], [region.outputs[k] for k in outputs])
    return None if made is None else _Group(outputs, sources, boxes, *made)


def _kept(region: Region, groups: Sequence[_Group]) -> list[Node]:
    """The operators of a region that outputs outside the groups need."""
    made = {k for g in groups for k in g.outputs}
    return needed_nodes(region, [k for k in range(len(region.outputs)) if k not in made])


def _saved(region: Region, groups: Sequence[_Group]) -> int:
    return len(region.nodes) - len(_kept(region, groups)) - len(groups)


def _replace(model: Model, graph: Graph, region: Region, groups: Sequence[_Group], library: _Library) -> None:
    kept = {id(n) for n in _kept(region, groups)}
    gone = [n for n in region.nodes if id(n) not in kept]
    made: list[Node] = []
    for group in groups:
        outputs = [region.outputs[k] for k in group.outputs]
        attributes: dict[str, object] = {
            INPUT_SHAPES: _shapes(region.starts[k] for k in group.sources),
            OUTPUT_SHAPES: _shapes(region.tables[k] for k in group.outputs),
            COPIES: [number for k, boxes in enumerate(group.boxes) for box in boxes for number in _numbers(k, box)],
            CONFIGURATION: group.number,
        }
        name = model.fresh_name(f"{safe_name(outputs[0].name)}/moved")
        inputs = [region.sources[k] for k in group.sources]
        for value, k in zip(outputs, group.outputs, strict=True):
            value.inputs.clear()
            # onnxruntime cannot infer shapes through the function's check of its configuration, and a Scan needs them.
            value.dtype, value.shape = np.dtype(np.float32), list(region.tables[k].shape)
        made.append(Node(library.name(group), name, attributes, inputs, outputs, DOMAIN))
    model.insert_nodes(graph, gone[0], made)
    model.remove_nodes(graph, gone)


def _shapes(tables: Iterable[Table]) -> list[int]:
    return [number for t in tables for number in (t.ndim, *t.shape)]


def _numbers(output: int, box: Box) -> list[int]:
    """A copy in the format of the attribute."""
    return [output, box.source, box.to, box.start, len(box.axes), *(number for axis in box.axes for number in axis)]
