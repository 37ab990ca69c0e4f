"""Runs a model whose quantization points are outputs, and reduces the values: the work of one process."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime as ort

from rnnqc.calibration.gate_extremes import GateExtremes
from rnnqc.calibration.point_observer import NotFiniteError, PointObserver, Values
from rnnqc.data.feeds import Feeds
from rnnqc.data.streaming import Piece, with_states
from rnnqc.errors import CompileError
from rnnqc.evaluation.evaluate import make_session, run_session
from rnnqc.passes.analysis.observe_custom import MASK
from rnnqc.passes.cells.observe import ANY_RANK, LAST, LENGTHS, Observed, with_outputs
from rnnqc.proto.files import serialized

Array = npt.NDArray[Any]
Dimension = int | str | None
BUDGET = 2**28
"""The target for the bytes of observations in one run."""
ROWS = 32
"""The largest number of samples that run at once."""
MOMENT_LIMIT = 4096
"""The largest number of channels with second moments."""
SQUARES = (".activation", ".cell_state")
"""Suffixes of points with per-channel means and mean squares, in addition to `input` and `hidden`."""


@dataclass(frozen=True)
class Site:
    """A cell that is observed.

    Attributes:
        name: Name of the cell.
        flipped: Whether its sequences are stored in reverse order.
        initial_h: Whether it has an initial hidden state.
        length: Number of steps, its symbol, or None.
        batch: Batch size, its symbol, or None.
        custom: Whether its values have any rank: a custom cell, or a linear layer.
        linear: Whether it is a linear layer. Rows with NaN or infinities are padding and do not count.
        gate_points: Points that all of its gates have, grouped by part.
    """

    name: str
    flipped: bool
    initial_h: bool
    length: Dimension
    batch: Dimension
    custom: bool = False
    linear: bool = False
    gate_points: tuple[tuple[str, ...], ...] = ()


@dataclass(frozen=True)
class Task:
    """The observation to make; it can be sent to another process.

    Attributes:
        model: A decomposed model, serialized.
        sites: Its cells by name.
        values: Which of its values to observe.
        dimensions: The dimensions of each input.
        axes: Batch axes of the inputs; None where samples cannot be cut apart.
        carried: Outputs by the input they become in the next call.
        moments: Whether to keep second moments, and per-channel mean squares.
    """

    model: bytes
    sites: Mapping[str, Site]
    values: tuple[Observed, ...]
    dimensions: Mapping[str, tuple[Dimension, ...]]
    axes: Mapping[str, int] | None
    carried: Mapping[str, str]
    moments: bool = True
    _sizes: dict[Any, list[int]] = field(default_factory=dict, compare=False, repr=False)

    def sizes(self, feed: Feeds, rows: int | None = None) -> list[int]:
        """Estimates the bytes of each value in a run, for `rows` samples or the whole feed."""
        key = (rows, *((k, a.shape) for k, a in feed.items()))
        if key not in self._sizes:
            self._sizes[key] = self._estimated(feed, rows)
        return self._sizes[key]

    def _estimated(self, feed: Feeds, rows: int | None) -> list[int]:
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
        """Returns how many samples like those of `feed` to run at once."""
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
        self._groups_of: dict[tuple[int, ...], list[tuple[int, ...]]] = {}
        self._states: Feeds = {}
        self._last: dict[str, Array] = {}
        self._cells_of: dict[tuple[int, ...], Mapping[str, Sequence[Observed]]] = {}
        self._gates: dict[tuple[str, ...], GateExtremes] = {}
        self._count = 0
        self._begun: list[tuple[int, Piece]] = []

    def run(self, pieces: Iterable[Piece], observers: Observers | None = None) -> Observers:
        """Runs pieces, in order, and returns their observers.

        Args:
            pieces: The pieces.
            observers: Those of earlier pieces, which go on; new ones by default.

        Raises:
            CompileError: onnxruntime fails, or a value is not finite.
        """
        observers = {} if observers is None else observers
        following: Feeds = {}
        self._gates, self._begun = {}, []
        try:
            for piece in pieces:
                self._begun.append((self._count, piece))
                if piece.restart or not self.task.carried:
                    self._states, self._last = {}, {}
                feed = with_states(piece, self._states)
                for number, group in enumerate(self._groups(feed)):
                    outputs, states = self._outputs(group, feed, number == 0)
                    if number == 0:
                        following = states
                    self._reduce(self._cells(group), outputs, observers, piece)
                self._states = following
            for observer in observers.values():
                observer.flush()
        except NotFiniteError:
            raise self._not_finite(observers) from None
        for gates in self._gates.values():
            gates.flush()
        return observers

    def _not_finite(self, observers: Observers) -> CompileError:
        """Returns an error about the first value that is not finite: values wait, so others may have been found."""
        found = ((o.first_not_finite, name) for name, o in observers.items())
        first, name = min((number, name) for number, name in found if number is not None)
        piece = next(piece for start, piece in reversed(self._begun) if start <= first)
        which = f"sample {piece.first}"
        if piece.samples > 1:
            which = f"samples {piece.first} to {piece.first + piece.samples - 1}"
        return CompileError(
            f"{which}: the model computes a value that is NaN or infinite at {name}.",
            supported="finite numbers",
            action="check the data; only padding beyond sequence_lens may hold anything",
        )

    def _groups(self, feed: Feeds) -> list[tuple[int, ...]]:
        """Groups indices of values for separate runs: as many as fit into the budget, but at least one cell.

        All values of a cell stay together, so that its lengths and the number of its runs are known.
        """
        sizes = tuple(self.task.sizes(feed))
        if sizes not in self._groups_of:
            self._groups_of[sizes] = self._groups_by_size(sizes)
        return self._groups_of[sizes]

    def _groups_by_size(self, sizes: Sequence[int]) -> list[tuple[int, ...]]:
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

    def _cells(self, group: tuple[int, ...]) -> Mapping[str, Sequence[Observed]]:
        """Returns the values of a group by cell."""
        if group not in self._cells_of:
            cells: dict[str, list[Observed]] = {}
            for k in group:
                cells.setdefault(self.task.values[k].cell, []).append(self.task.values[k])
            self._cells_of[group] = cells
        return self._cells_of[group]

    def _outputs(self, group: tuple[int, ...], feed: Feeds, states: bool) -> tuple[dict[str, Any], Feeds]:
        if group not in self._sessions:
            proto = onnx.ModelProto.FromString(self.task.model)
            names = with_outputs(proto, [self.task.values[k] for k in group], list(self.task.carried.values()))
            self._sessions[group] = make_session(serialized(proto, "The observed model")), names
        session, names = self._sessions[group]
        results = run_session(session, feed, sequences=True)
        following = {i: results[o] for i, o in self.task.carried.items()}
        return {value: results[output] for value, output in names.items()}, following

    def _reduce(
        self,
        cells: Mapping[str, Sequence[Observed]],
        outputs: Mapping[str, Any],
        observers: Observers,
        piece: Piece,
    ) -> None:
        for cell, values in cells.items():
            if self.task.sites[cell].custom:
                self._reduce_custom(values, outputs, observers, piece)
                continue
            runs = {v.point: _runs(outputs[v.value], v) for v in values}
            lasts = runs.pop(LAST)
            lengths: Sequence[Array | None] = runs.pop(LENGTHS, [None] * len(lasts))
            for k, (last, lens) in enumerate(zip(lasts, lengths, strict=True)):
                arrays = {point: made[k] for point, made in runs.items()}
                valid = None if lens is None else np.arange(len(arrays["input"]))[:, None] < lens
                for point, values_of_run in self._of_run(cell, arrays, last, lens, valid):
                    self._update(f"{cell}.{point}", values_of_run, observers, piece)
                for points in self.task.sites[cell].gate_points:
                    self._update_gates(cell, points, arrays, valid, observers)

    def _update_gates(
        self,
        cell: str,
        points: tuple[str, ...],
        arrays: Mapping[str, Array],
        valid: Array | None,
        observers: Observers,
    ) -> None:
        names = tuple(f"{cell}.{p}" for p in points)
        if names not in self._gates:
            if not all(name in observers for name in names):
                return
            self._gates[names] = GateExtremes([observers[name] for name in names])
        self._gates[names].update([arrays[p] for p in points], valid)

    def _reduce_custom(
        self, values: Sequence[Observed], outputs: Mapping[str, Any], observers: Observers, piece: Piece
    ) -> None:
        """Reduces values of any rank: the last axis is channels, the axes before it are rows."""
        masks: list[Array] = []
        for value in sorted(values, key=lambda v: v.point != MASK):
            runs = [_by_steps(a, value.step) for a in _runs(outputs[value.value], value)]
            if value.point == MASK:
                masks = [a.reshape(len(a), -1) != 0 for a in runs]
                continue
            if value.entering:
                for array, valid in self._fresh(runs, masks):
                    self._update(f"{value.cell}.{value.point}", Values(array, valid), observers, piece)
                continue
            for k, array in enumerate(runs):
                rows = _for_rows(masks[k], array) if len(masks) == len(runs) else None
                if self.task.sites[value.cell].linear and not np.isfinite(array).all():
                    rows = np.asarray(np.isfinite(array).all(axis=2))
                self._update(f"{value.cell}.{value.point}", Values(array, rows), observers, piece)

    def _fresh(self, runs: Sequence[Array], masks: Sequence[Array]) -> Iterator[tuple[Array, Array]]:
        """Yields initial states `[1, rows, channels]`, and which of their rows are data.

        Rows of zeros are not data, because exporters write explicit zeros. Neither are states from the call before,
        which were counted there, nor those of rows without a step.
        """
        carried = [a.ravel() for a in self._states.values()]
        for k, array in enumerate(runs):
            if any(np.array_equal(array.ravel(), a) for a in carried):
                continue
            # In a Loop, each step has its own mask.
            own = [masks[k]] if len(masks) == len(runs) else masks if len(runs) == 1 else []
            valid = np.asarray(array.any(axis=2))
            if own and all(m.shape[1:] == own[0].shape[1:] for m in own):
                used = _for_rows(np.asarray(np.concatenate(own).any(axis=0, keepdims=True)), array)
                valid = valid if used is None else np.asarray(valid & used)
            yield array, valid

    def _of_run(
        self, cell: str, arrays: Mapping[str, Array], last: Array, lens: Array | None, valid: Array | None
    ) -> Iterator[tuple[str, Values]]:
        """Yields the values of one run of a cell by point, in the order of its steps."""
        site = self.task.sites[cell]
        for point, array in arrays.items():
            if point == "input":
                yield point, Values(array[::-1] if site.flipped else array, valid, steps=False)
            elif point != "hidden":
                yield point, Values(array, valid)
            else:
                first, made = array[:1], np.concatenate([array[1:], last[None]])
                # Exporters write explicit zeros; a state from the call before was counted there.
                fresh = first.any() and not np.array_equal(first[0], self._last.get(cell, np.empty(0)))
                given = bool(site.initial_h and fresh)
                if given:
                    yield point, Values(first, None if lens is None else (lens > 0)[None])
                yield point, Values(made, valid, begins=not given)
        self._last[cell] = last

    def _update(self, name: str, values: Values, observers: Observers, piece: Piece) -> None:
        if name not in observers:
            channels = name.endswith((".input", ".hidden"))
            moments = self.task.moments and channels and values.array.shape[2] <= MOMENT_LIMIT
            observers[name] = PointObserver(channels, moments, self.task.moments and name.endswith(SQUARES))
        observers[name].update(values, self._count)
        self._count += 1


def _by_steps(array: Array, step: bool) -> Array:
    """Reshapes the values of a run to `[T, rows, channels]`; without `step` they are a single step."""
    whole = array if step else array[None]
    return whole.reshape(len(whole), -1, whole.shape[-1] if whole.ndim > 1 else 1)


def _for_rows(mask: Array, array: Array) -> Array | None:
    """Expands a mask `[T, B]` to the rows of `array`; None if they do not match."""
    rows, batch = array.shape[1], mask.shape[1]
    if len(mask) != len(array) or not batch or rows % batch:
        return None
    return np.repeat(mask, rows // batch, axis=1)


def merge(into: Observers, following: Observers) -> None:
    """Merges observers of later pieces into `into`."""
    for point, observer in following.items():
        if point in into:
            into[point].merge(observer)
        else:
            into[point] = observer


def _runs(output: Any, value: Observed) -> list[Array]:
    """Splits an output into the runs of the cell; outer Scans add leading axes."""
    if value.rank == ANY_RANK:
        return [a for a in (output if isinstance(output, list) else [output]) if a.size]
    arrays: list[Array] = []
    for array in output if isinstance(output, list) else [output]:
        if array.ndim == value.rank > 1:
            arrays.append(array)
        elif array.ndim >= value.rank and (value.rank > 1 or array.size):
            outside = array.ndim - value.rank
            arrays.extend(array.reshape(math.prod(array.shape[:outside]), *array.shape[outside:]))
    return arrays
