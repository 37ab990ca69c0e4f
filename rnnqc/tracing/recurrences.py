"""Recurrences of unknown equations in a lowered model: where their values stand, and what a run makes of them."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

from rnnqc.graph_walks import inner_graphs
from rnnqc.ir import CUSTOM_TAG
from rnnqc.passes.observe import ANY_RANK, Observed
from rnnqc.passes.point_marks import Mark, copy_of, marks_of

Array = npt.NDArray[Any]
Levels = tuple[str, ...]
Key = tuple[str, str]
"""A tensor, and what a value is of it."""


@dataclass(frozen=True)
class Site:
    """A value of a recurrence.

    Attributes:
        mark: What it is.
        value: Its name.
        copy: The numbers of the written-out steps that its node is in, from outside to inside.
    """

    mark: Mark
    value: str
    copy: tuple[int, ...]

    @property
    def key(self) -> Key:
        """The tensor and the part of it."""
        return self.mark.tensor, self.mark.part


@dataclass
class Recurrence:
    """A quantized recurrence that is no LSTM, GRU or RNN.

    Attributes:
        name: As in the names of its points.
        record: What quantize-custom-cells says of it.
        levels: The operators of the nodes in whose subgraphs its nodes are, from outside to inside.
        sites: Its values, in the order of the file.
        counter: Of a Loop that has not been written out, the value that counts its trips.
    """

    name: str
    record: Mapping[str, Any]
    levels: Levels
    sites: list[Site] = field(default_factory=list)
    counter: str = ""

    @property
    def looped(self) -> bool:
        """Whether it is a loop that has not been written out."""
        return self.record["op"] in ("Scan", "Loop") and not any(s.copy for s in self.sites)

    @property
    def backwards(self) -> bool:
        """Whether it goes from the last element of the sequence to the first."""
        return bool(self.record["reverse"])


@dataclass(frozen=True)
class RecurrenceRun:
    """One run of a recurrence.

    Attributes:
        steps: How many steps it has.
        values: For each part of each tensor its arrays by step; constants at step 0 alone.
    """

    steps: int
    values: Mapping[Key, Mapping[int, Array]]


def recurrences(proto: onnx.ModelProto) -> dict[str, Recurrence]:
    """The recurrences of a model, in the order of its graphs.

    Args:
        proto: The model, whose names are unique over all graphs.
    """
    found: dict[str, Recurrence] = {}
    records: dict[str, Mapping[str, Any]] = {}
    for node, levels, counter in _nodes(proto.graph):
        metadata = {p.key: p.value for p in node.metadata_props}
        if CUSTOM_TAG in metadata:
            record = json.loads(metadata[CUSTOM_TAG])
            records[record["name"]] = record
        for mark in marks_of(metadata):
            held = found.setdefault(mark.cell, Recurrence(mark.cell, {}, levels, [], counter))
            held.sites.append(Site(mark, mark.value(node), copy_of(metadata)))
    for name, recurrence in found.items():
        recurrence.record = records.get(name, {})
    return {name: r for name, r in found.items() if "given" in r.record}


def _nodes(main: onnx.GraphProto) -> Iterator[tuple[onnx.NodeProto, Levels, str]]:
    """Every node with the operators around it, and the trip counter of the Loop whose body it stands in."""
    pending: list[tuple[onnx.GraphProto, Levels, str]] = [(main, (), "")]
    while pending:
        graph, levels, counter = pending.pop(0)
        for node in graph.node:
            yield node, levels, counter
            for inner in inner_graphs(node):
                own = inner.input[0].name if node.op_type == "Loop" else ""
                pending.append((inner, (*levels, node.op_type), own))


class Runs:
    """Takes the runs of a recurrence out of what a run of the model brings out.

    Args:
        recurrence: The recurrence.
        levels: Of all values of the model.
        stored: Its constants, by name.
    """

    def __init__(self, recurrence: Recurrence, levels: Mapping[str, Levels], stored: Mapping[str, Array]) -> None:
        self.recurrence, self._levels, self._stored = recurrence, levels, stored
        self.constants: dict[Key, Array] = {}
        self._varying: list[Site] = []
        for site in recurrence.sites:
            if site.value in stored:
                self.constants.setdefault(site.key, stored[site.value])
            elif self._within(site):
                self._varying.append(site)

    def _within(self, site: Site) -> bool:
        """Whether a value is made in each step, once for each run, or once in all."""
        own = self.recurrence.levels
        return self._levels[site.value] in (own, own[:-1], ())

    def observed(self) -> list[Observed]:
        """What the model has to bring out."""
        recurrence, values = self.recurrence, []
        for mark, value in ((s.mark, s.value) for s in self._varying):
            rank = ANY_RANK if mark.rank is None else mark.rank
            values.append(Observed(recurrence.name, mark.tensor, value, False, rank, 0, mark.kind))
        if recurrence.looped and recurrence.counter:
            kind = onnx.TensorProto.INT64
            values.append(Observed(recurrence.name, "trips", recurrence.counter, False, 0, 0, kind))
        return values

    def of(self, known: Mapping[str, Any], stacked: Mapping[str, int]) -> list[RecurrenceRun]:
        """The runs of one call.

        Args:
            known: Arrays and lists of arrays by the names of values.
            stacked: For each value how many axes in front count steps of loops.
        """
        made = [s for s in self._varying if self._levels[s.value] == self.recurrence.levels]
        if self.recurrence.looped:
            return self._of_loop(known, stacked, made)
        runs: list[RecurrenceRun] = []
        groups: dict[tuple[int, ...], list[Site]] = {}
        for site in self._varying:
            groups.setdefault(site.copy[:-1] if site.mark.step is None else site.copy, []).append(site)
        count = 1 + max(_step(s) for s in self._varying)
        for _, sites in sorted(groups.items(), key=lambda g: g[0]):
            arrays = [_flat(known[s.value], stacked[s.value]) for s in sites]
            for k in range(max(len(a) for a in arrays)):
                values: dict[Key, dict[int, Array]] = {}
                for site, held in zip(sites, arrays, strict=True):
                    if not held:
                        continue
                    _put(values, site, _step(site), held[k if len(held) > 1 else 0])
                runs.append(RecurrenceRun(count, values))
        return runs

    def _of_loop(
        self, known: Mapping[str, Any], stacked: Mapping[str, int], made: Sequence[Site]
    ) -> list[RecurrenceRun]:
        """The runs of a loop; what is made around it is the same in all steps of a run."""
        whole: dict[str, list[Any]] = {}
        for site in made:
            axes, entries = stacked[site.value], _entries(known[site.value])
            if axes:
                whole[site.value] = [run for a in entries for run in _apart(a, axes - 1)]
            else:
                whole[site.value] = _runs_of_trips(entries, _entries(known[self.recurrence.counter]))
        runs = []
        count = max((len(r) for r in whole.values()), default=0)
        for k in range(count):
            length = len(whole[made[0].value][k])
            values: dict[Key, dict[int, Array]] = {}
            for site in self._varying:
                if site.value in whole:
                    steps: Iterable[Array] = whole[site.value][k]
                else:
                    held = _flat(known[site.value], stacked[site.value])
                    if len(held) not in (1, count):
                        continue
                    steps = [held[k if len(held) > 1 else 0]] * length
                for step, array in enumerate(steps):
                    _put(values, site, step, array)
            runs.append(RecurrenceRun(length, values))
        return runs


def _step(site: Site) -> int:
    """The step of a site of a recurrence that is written out."""
    return site.copy[-1] if site.mark.step is None else site.mark.step


def _put(values: dict[Key, dict[int, Array]], site: Site, step: int, array: Array) -> None:
    """Notes a value: the second one of a tensor in a step makes a tensor of its own, of the same name with `~2`."""
    tensor, part = site.key
    for number in itertools.count(1):
        key = tensor if number == 1 else f"{tensor}~{number}", part
        if step not in values.setdefault(key, {}):
            values[key][step] = np.asarray(array)
            return


def _entries(held: Any) -> list[Array]:
    """The arrays of a value, without those of branches that were not taken."""
    if not isinstance(held, list):
        return [np.asarray(held)]
    arrays = [np.asarray(a) for a in held]
    return [a for a in arrays if a.ndim != 1 or a.size]


def _flat(held: Any, axes: int) -> list[Array]:
    """The same, with the first `axes` axes taken apart."""
    return [part for a in _entries(held) for part in _apart(a, axes)]


def _apart(array: Array, axes: int) -> Array:
    """An array with its first `axes` axes made one; a new one for none."""
    return array.reshape(math.prod(array.shape[:axes]), *array.shape[axes:])


def _runs_of_trips(arrays: Sequence[Array], trips: Sequence[Array]) -> list[Sequence[Array]]:
    """The values of all trips of a Loop, run by run: each begins with trip 0."""
    starts = [k for k, t in enumerate(trips) if int(np.ravel(t)[0]) == 0]
    return [arrays[a:b] for a, b in itertools.pairwise([*starts, len(arrays)])]
