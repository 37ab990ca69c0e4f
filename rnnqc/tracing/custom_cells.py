"""Custom cells in a lowered model: where their values stand, and what a run makes of them."""

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
"""A tensor, and what a value is of it."""


@dataclass(frozen=True)
class Site:
    """A value of a custom cell.

    Attributes:
        mark: What it is.
        value: Its name.
        copy: The numbers of the unrolled steps that its node is in, from outside to inside.
    """

    mark: Mark
    value: str
    copy: tuple[int, ...]

    @property
    def key(self) -> Key:
        """The tensor and the part of it."""
        return self.mark.tensor, self.mark.part


@dataclass
class QuantizedCustomCell:
    """A quantized custom cell.

    Attributes:
        name: As in the names of its points.
        record: What quantize-custom-cells says of it.
        levels: The operators of the nodes in whose subgraphs its nodes are, from outside to inside.
        sites: Its values, in the order of the file.
    """

    name: str
    record: Mapping[str, Any]
    levels: Levels
    sites: list[Site] = field(default_factory=list)

    @property
    def looped(self) -> bool:
        """Whether it is a loop that has not been unrolled."""
        return self.record["op"] in ("Scan", "Loop") and not any(s.copy for s in self.sites)

    @property
    def backwards(self) -> bool:
        """Whether it goes from the last element of the sequence to the first."""
        return bool(self.record["reverse"])


@dataclass(frozen=True)
class CustomCellRun:
    """One run of a custom cell.

    Attributes:
        steps: How many steps it has.
        values: For each part of each tensor its arrays by step; constants at step 0 alone.
        trips: In which iteration of each loop around the cell.
    """

    steps: int
    values: Mapping[Key, Mapping[int, Array]]
    trips: Trips = ()


def quantized_custom_cells(proto: onnx.ModelProto) -> dict[str, QuantizedCustomCell]:
    """The quantized custom cells of a model, in the order of its graphs.

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
    """The model, its custom cells loops again where they are nodes backed by functions."""
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
    """The loop of a custom cell's function, which reads its constants directly from now on."""
    loop: onnx.NodeProto = next(n for n in function.node if n.op_type == "Scan")
    sources = {o: n.input[0] for n in function.node if n.op_type in ("Squeeze", "Unsqueeze") for o in n.output}
    for block in blocks_of(inner_graphs(loop)):
        for node in block.node:
            for place, name in enumerate(node.input):
                while name in sources:
                    name = node.input[place] = sources[name]
    return loop


def _nodes(main: onnx.GraphProto) -> Iterator[tuple[onnx.NodeProto, Levels]]:
    """Every node with the operators around it."""
    pending: list[tuple[onnx.GraphProto, Levels]] = [(main, ())]
    while pending:
        graph, levels = pending.pop(0)
        for node in graph.node:
            yield node, levels
            pending.extend((inner, (*levels, node.op_type)) for inner in inner_graphs(node))


class Runs:
    """Takes the runs of a custom cell out of what a run of the model brings out.

    Args:
        cell: The cell.
        levels: Of all values of the model.
        stored: Its constants, by name.
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
        """Whether a value is made in each step, or around the cell."""
        own, levels = self.cell.levels, self._levels[site.value]
        return levels == own[: len(levels)]

    def observed(self) -> list[Observed]:
        """What the model has to bring out."""
        values = []
        for mark, value in ((s.mark, s.value) for s in self._varying):
            rank = ANY_RANK if mark.rank is None else mark.rank
            values.append(Observed(self.cell.name, mark.tensor, value, False, rank, 0, mark.kind))
        return values

    def of(self, known: Mapping[str, Made]) -> list[CustomCellRun]:
        """The runs of one call.

        Args:
            known: What values are, by their names.
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
        """The runs of a loop; what is made around it is the same in all steps of a run."""
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
        """The iterations in which values of a custom cell are made."""
        own = self.cell.levels
        return list(known[next(s.value for s in sites if self._levels[s.value] == own)])


def _step(site: Site) -> int:
    """The step of a site of an unrolled custom cell."""
    return site.copy[-1] if site.mark.step is None else site.mark.step


def _put(values: dict[Key, dict[int, Array]], site: Site, step: int, array: Array) -> None:
    """Notes a value: the second one of a tensor in a step makes a tensor of its own, of the same name with `~2`."""
    tensor, part = site.key
    for number in itertools.count(1):
        key = tensor if number == 1 else f"{tensor}~{number}", part
        if step not in values.setdefault(key, {}):
            values[key][step] = np.asarray(array)
            return
