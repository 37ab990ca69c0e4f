"""Running a model whose quantization points are outputs, and reducing what comes out: one process's part of the work."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime as ort

from rnnqc.diagnostics import CompileError
from rnnqc.evaluate import make_session, run_session
from rnnqc.feeds import Feeds
from rnnqc.files import serialized
from rnnqc.passes.observe import LAST, LENGTHS, Observed, with_outputs
from rnnqc.point_observer import NotFinite, PointObserver, Values
from rnnqc.samples import Piece

Array = npt.NDArray[Any]
Dimension = int | str | None
BUDGET = 2**28
"""Bytes of observations that may come out of one run, where that can be kept."""
ROWS = 32
"""Samples that run at once, at most."""
MOMENT_LIMIT = 4096
"""Channels up to which second moments are kept."""


@dataclass(frozen=True)
class Site:
    """A cell that is observed.

    Attributes:
        name: Of the cell.
        flipped: Whether its sequences run backwards as they stand.
        length: Number of steps, its symbol, or None.
        batch: As `length`.
    """

    name: str
    flipped: bool
    length: Dimension
    batch: Dimension


@dataclass(frozen=True)
class Task:
    """What to observe; can be sent to another process.

    Attributes:
        model: A decomposed model, serialized.
        sites: Its cells by name.
        values: Which of its values to observe.
        dimensions: The dimensions of each input.
        axes: Batch axes of the inputs; None where samples cannot be cut apart.
        carried: Outputs by the input they become in the next call.
        moments: Whether to keep second moments.
    """

    model: bytes
    sites: Mapping[str, Site]
    values: tuple[Observed, ...]
    dimensions: Mapping[str, tuple[Dimension, ...]]
    axes: Mapping[str, int] | None
    carried: Mapping[str, str]
    moments: bool = True

    def sizes(self, feed: Feeds, rows: int | None = None) -> list[int]:
        """About how many bytes each value takes in a run; of `rows` samples, or of the whole feed."""
        bound = {d: n for k, array in feed.items() for d, n in zip(self.dimensions[k], array.shape, strict=False)}
        axes = self.axes or {}
        longest = max((n for k, a in feed.items() for i, n in enumerate(a.shape) if axes.get(k) != i), default=1)

        def size(dimension: Dimension) -> int:
            return dimension if isinstance(dimension, int) else bound.get(dimension, longest) if dimension else longest

        result = []
        for value in self.values:
            site = self.sites[value.cell]
            batch = rows if rows is not None and self.axes is not None else size(site.batch)
            result.append(4 * value.size * batch * (size(site.length) if value.rank == 3 else 1))
        return result

    def rows(self, feed: Feeds) -> int:
        """How many samples such as those of `feed` to run at once."""
        return min(ROWS, max(1, BUDGET // max(1, sum(self.sizes(feed, 1)))))


Observers = dict[str, PointObserver]


class Runner:
    """Runs pieces and reduces them to observers.

    Args:
        task: What to observe.
    """

    def __init__(self, task: Task) -> None:
        self.task = task
        self._sessions: dict[tuple[int, ...], tuple[ort.InferenceSession, dict[str, str]]] = {}
        self._states: Feeds = {}

    def run(self, pieces: Iterable[Piece]) -> Observers:
        """The observers of some pieces, in order.

        Raises:
            CompileError: onnxruntime fails, or a value is not finite.
        """
        observers: Observers = {}
        for piece in pieces:
            if piece.restart:
                self._states = {}
            feed = {**piece.feed, **self._states} if not piece.restart else piece.feed
            for number, group in enumerate(self._groups(feed)):
                outputs, states = self._outputs(group, feed, number == 0)
                if number == 0:
                    following = states
                self._reduce([self.task.values[k] for k in group], outputs, observers, piece)
            self._states = following
        return observers

    def _groups(self, feed: Feeds) -> list[tuple[int, ...]]:
        """Indices of values that are observed in one run: as many as fit into the budget, of one cell at least.

        All values of a cell stay together, so that its lengths and the number of its runs are known.
        """
        sizes = self.task.sizes(feed)
        by_cell: dict[str, list[int]] = {}
        for k, value in enumerate(self.task.values):
            by_cell.setdefault(value.cell, []).append(k)
        groups: list[list[int]] = []
        room = -1
        for members in by_cell.values():
            size = sum(sizes[k] for k in members)
            if size > room:
                groups.append([])
                room = BUDGET
            groups[-1] += members
            room -= size
        return [tuple(g) for g in groups]

    def _outputs(self, group: tuple[int, ...], feed: Feeds, states: bool) -> tuple[dict[str, Any], Feeds]:
        if group not in self._sessions:
            proto = onnx.ModelProto.FromString(self.task.model)
            names = with_outputs(proto, [self.task.values[k] for k in group], list(self.task.carried.values()))
            self._sessions[group] = make_session(serialized(proto, "The observed model")), names
        session, names = self._sessions[group]
        wanted = set(names.values()) | set(self.task.carried.values())
        results = run_session(session, feed, sequences=True)
        following = {i: results[o] for i, o in self.task.carried.items()}
        assert wanted <= set(results)
        return {value: results[output] for value, output in names.items()}, following

    def _reduce(
        self, values: Sequence[Observed], outputs: Mapping[str, Any], observers: Observers, piece: Piece
    ) -> None:
        for cell in dict.fromkeys(v.cell for v in values):
            runs = {v.points: _runs(outputs[v.value], v) for v in values if v.cell == cell}
            last = runs.pop((LAST,))
            lengths = runs.pop((LENGTHS,), [None] * len(last))
            for k, lens in enumerate(lengths):
                for points, arrays in runs.items():
                    self._update(cell, points, arrays[k], last[k], lens, observers, piece)

    def _update(
        self,
        cell: str,
        points: tuple[str, ...],
        array: Array,
        last: Array,
        lens: Array | None,
        observers: Observers,
        piece: Piece,
    ) -> None:
        """Adds one run's values of some points."""
        steps = points != ("input",)
        if points == ("hidden",):
            array = np.concatenate([array, last[None]])
        elif self.task.sites[cell].flipped and (not steps or points[0].endswith(".input_product")):
            array = array[::-1]
        valid = None
        if lens is not None:
            times = np.arange(array.shape[0])[:, None]
            valid = (times <= lens) & (lens > 0) if points == ("hidden",) else times < lens
        parts = np.split(array, len(points), axis=2)
        for point, part in zip(points, parts, strict=True):
            single = point in ("input", "hidden")
            moments = self.task.moments and single and part.shape[2] <= MOMENT_LIMIT
            observer = observers.setdefault(f"{cell}.{point}", PointObserver(single, moments))
            try:
                observer.update(Values(np.ascontiguousarray(part), valid, steps))
            except NotFinite:
                which = f"sample {piece.first}"
                if piece.samples > 1:
                    which = f"samples {piece.first} to {piece.first + piece.samples - 1}"
                raise CompileError(
                    f"{which}: the model computes a value that is NaN or infinite at {cell}.{point}.",
                    supported="finite numbers",
                    action="check the data; only padding beyond sequence_lens may hold anything",
                ) from None


def merge(into: Observers, following: Observers) -> None:
    """Adds to observers what was seen after them."""
    for point, observer in following.items():
        if point in into:
            into[point].merge(observer)
        else:
            into[point] = observer


def _runs(output: Any, value: Observed) -> list[Array]:
    """What each run of the cell made, from a tensor or a sequence of tensors; scans outside put axes in front."""
    arrays: list[Array] = []
    for array in output if isinstance(output, list) else [output]:
        if array.ndim >= value.rank and (value.rank > 1 or array.size):
            outside = array.ndim - value.rank
            arrays.extend(array.reshape(math.prod(array.shape[:outside]), *array.shape[outside:]))
    return arrays
