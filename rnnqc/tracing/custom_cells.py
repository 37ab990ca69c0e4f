"""Custom cells in a lowered model: finds their values, and extracts them from a run."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

from rnnqc.cells.custom_nodes import is_custom_node
from rnnqc.ir import CUSTOM_TAG, DOMAIN
from rnnqc.passes.analysis.point_marks import Mark, copy_of, marks_of
from rnnqc.passes.cells.observe import ANY_RANK, Observed
from rnnqc.proto.graph_walks import blocks_of, inner_graphs
from rnnqc.proto.inlining import inlined, key_of
from rnnqc.tracing.rounds import Made, Trips, at

Array = npt.NDArray[Any]
Levels = tuple[str, ...]
Key = tuple[str, str]
"""A tensor and a part of it, such as quantized values or scales of rows."""


@dataclass(frozen=True)
class Site:
    """A value of a custom cell.

    Attributes:
        mark: Describes which tensor and part it is.
        value: Its name.
        copy: The numbers of the unrolled steps that its node is in, from outside to inside.
    """

    mark: Mark
    value: str
    copy: tuple[int, ...]

    @property
    def key(self) -> Key:
        """The tensor and its part."""
        return self.mark.tensor, self.mark.part


@dataclass
class QuantizedCustomCell:
    """A quantized custom cell.

    Attributes:
        name: The name that its points carry.
        record: The record that quantize-custom-cells wrote.
        levels: The operators of the nodes whose subgraphs contain it, from outside to inside.
        sites: Its values, in the order of the file.
    """

    name: str
    record: Mapping[str, Any]
    levels: Levels
    sites: list[Site] = field(default_factory=list)

    @property
    def looped(self) -> bool:
        """Whether the cell is a loop that was not unrolled."""
        return self.record["op"] in ("Scan", "Loop") and not any(s.copy for s in self.sites)

    @property
    def backwards(self) -> bool:
        """Whether the cell processes the sequence from its last element to its first."""
        return bool(self.record["reverse"])


@dataclass(frozen=True)
class CustomCellRun:
    """One run of a custom cell.

    Attributes:
        steps: Number of steps.
        values: For each part of each tensor its arrays by step; constants only at step 0.
        trips: The iteration number of each loop around the cell.
    """

    steps: int
    values: Mapping[Key, Mapping[int, Array]]
    trips: Trips = ()


def quantized_custom_cells(proto: onnx.ModelProto) -> dict[str, QuantizedCustomCell]:
    """Returns the quantized custom cells of a model, in the order of its graphs.

    Args:
        proto: The model, whose names are unique over all graphs.
    """
    found: dict[str, QuantizedCustomCell] = {}
    records: dict[str, Mapping[str, Any]] = {}
    for node, levels in _nodes(proto.graph):
        metadata = {p.key: p.value for p in node.metadata_props}
        if CUSTOM_TAG in metadata:
            record = json.loads(metadata[CUSTOM_TAG])
            records[record["name"]] = record
        for mark in marks_of(metadata):
            held = found.setdefault(mark.cell, QuantizedCustomCell(mark.cell, {}, levels, []))
            held.sites.append(Site(mark, mark.value(node), copy_of(metadata)))
    for name, cell in found.items():
        cell.record = records.get(name, {})
    return {name: r for name, r in found.items() if "given" in r.record}


def with_loops(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Returns the model with custom cells as loops again, where they are nodes backed by functions."""
    if not any(map(_is_custom_function, proto.functions)):
        return proto
    whole = onnx.ModelProto()
    whole.CopyFrom(proto)
    functions = {f.name: f for f in whole.functions if _is_custom_function(f)}
    for node, _ in _nodes(whole.graph):
        if node.domain == DOMAIN and node.op_type in functions:
            loop = _unchecked(functions[node.op_type])
            loop.metadata_props.extend(p for p in node.metadata_props if p.key == CUSTOM_TAG)
    return inlined(whole, {key_of(f) for f in functions.values()})


def _is_custom_function(function: onnx.FunctionProto) -> bool:
    return function.domain == DOMAIN and is_custom_node(function.name)


def _unchecked(function: onnx.FunctionProto) -> onnx.NodeProto:
    """Returns the loop of a custom cell's function, changed to read its constants directly."""
    loop: onnx.NodeProto = next(n for n in function.node if n.op_type == "Scan")
    sources = {o: n.input[0] for n in function.node if n.op_type in ("Squeeze", "Unsqueeze") for o in n.output}
    for block in blocks_of(inner_graphs(loop)):
        for node in block.node:
            for place, name in enumerate(node.input):
                while name in sources:
                    name = node.input[place] = sources[name]
    return loop


def _nodes(main: onnx.GraphProto) -> Iterator[tuple[onnx.NodeProto, Levels]]:
    """Yields every node with the operators around it."""
    pending: list[tuple[onnx.GraphProto, Levels]] = [(main, ())]
    while pending:
        graph, levels = pending.pop(0)
        for node in graph.node:
            yield node, levels
            pending.extend((inner, (*levels, node.op_type)) for inner in inner_graphs(node))


class Runs:
    """Extracts the runs of a custom cell from a run of the model.

    Args:
        cell: The cell.
        levels: The operators around each value of the model.
        stored: The constants of the model, by name.
    """

    def __init__(self, cell: QuantizedCustomCell, levels: Mapping[str, Levels], stored: Mapping[str, Array]) -> None:
        self.cell, self._levels, self._stored = cell, levels, stored
        self.constants: dict[Key, Array] = {}
        self._varying: list[Site] = []
        for site in cell.sites:
            if site.value in stored:
                self.constants.setdefault(site.key, stored[site.value])
            elif self._within(site):
                self._varying.append(site)

    def _within(self, site: Site) -> bool:
        """Whether a value is computed inside the cell's own graph or around it."""
        own, levels = self.cell.levels, self._levels[site.value]
        return levels == own[: len(levels)]

    def observed(self) -> list[Observed]:
        """Returns the values that the model has to expose."""
        values = []
        for mark, value in ((s.mark, s.value) for s in self._varying):
            rank = ANY_RANK if mark.rank is None else mark.rank
            values.append(Observed(self.cell.name, mark.tensor, value, False, rank, 0, mark.kind))
        return values

    def of(self, known: Mapping[str, Made]) -> list[CustomCellRun]:
        """Returns the runs of one call.

        Args:
            known: The values of this call, by name.
        """
        if self.cell.looped:
            return self._of_loop(known)
        runs: list[CustomCellRun] = []
        groups: dict[tuple[int, ...], list[Site]] = {}
        for site in self._varying:
            groups.setdefault(site.copy[:-1] if site.mark.step is None else site.copy, []).append(site)
        count = 1 + max(_step(s) for s in self._varying)
        for _, sites in sorted(groups.items(), key=lambda g: g[0]):
            for trips in self._trips(sites, known):
                values: dict[Key, dict[int, Array]] = {}
                for site in sites:
                    _put(values, site, _step(site), at(known[site.value], trips))
                runs.append(CustomCellRun(count, values, trips))
        return runs

    def _of_loop(self, known: Mapping[str, Made]) -> list[CustomCellRun]:
        """Returns the runs of a loop. A value computed around the loop is the same in all steps of a run."""
        runs = []
        for trips, steps in itertools.groupby(self._trips(self._varying, known), lambda t: t[:-1]):
            values: dict[Key, dict[int, Array]] = {}
            made = list(steps)
            for step in made:
                for site in self._varying:
                    _put(values, site, step[-1], at(known[site.value], step))
            runs.append(CustomCellRun(len(made), values, trips))
        return runs

    def _trips(self, sites: Iterable[Site], known: Mapping[str, Made]) -> list[Trips]:
        """Returns the iterations in which the cell's own values are computed."""
        own = self.cell.levels
        return list(known[next(s.value for s in sites if self._levels[s.value] == own)])


def _step(site: Site) -> int:
    """Returns the step of a site of an unrolled custom cell."""
    return site.copy[-1] if site.mark.step is None else site.mark.step


def _put(values: dict[Key, dict[int, Array]], site: Site, step: int, array: Array) -> None:
    """Stores a value. A tensor's second value in the same step goes to a tensor of the same name with `~2`."""
    tensor, part = site.key
    for number in itertools.count(1):
        key = tensor if number == 1 else f"{tensor}~{number}", part
        if step not in values.setdefault(key, {}):
            values[key][step] = np.asarray(array)
            return
