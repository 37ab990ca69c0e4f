"""The calibrate analysis: what values the quantization points of a model have on data."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import onnx

from rnnqc.calibration.distribute import reduced
from rnnqc.calibration.float_cells import decompose
from rnnqc.calibration.observation import Observers, Site, Task
from rnnqc.calibration.samples import Selection, batch_axes, batches, sample_count
from rnnqc.data.feeds import open_feeds, true_inputs
from rnnqc.data.large_inputs import ACTION, LargeInputs
from rnnqc.data.statistics import Statistics, identity
from rnnqc.data.streaming import Piece, checked, state_pairs, stream
from rnnqc.errors import CompileError, Outcome, Remark, UsageError, located
from rnnqc.evaluation.invalid_model_errors import refusing_invalid_models
from rnnqc.ir import Model, shape_of
from rnnqc.passes.analysis.custom_cell import CustomCell
from rnnqc.passes.analysis.custom_points import custom_cells_of, custom_identity
from rnnqc.passes.analysis.observe_custom import MASK, dimensions_of, observe_custom_cell
from rnnqc.passes.cells.observe import LENGTHS, NotObservableError, Observed, observe_cells, with_outputs
from rnnqc.proto.files import serialized

Progress = Callable[[int, int | None], None]


@refusing_invalid_models
def calibrate(
    model: str | os.PathLike[str] | onnx.ModelProto,
    feeds: Iterable[Mapping[str, Any]] | str | os.PathLike[str],
    *,
    state: Mapping[str, str] | Iterable[str] | None = None,
    limit: int | None = None,
    seed: int | None = None,
    processes: int = 1,
    scheduler: str | None = None,
    progress: Progress | None = None,
    moments: bool = True,
) -> Statistics:
    """Measures the values at all quantization points of a float model while it runs on data.

    The result depends on the model, the samples and onnxruntime only: not on the number of processes or machines, nor
    on how the data is streamed. Memory depends on the longest sample, not on how many there are; with a seed, on
    `limit`, too.

    Args:
        model: A path or a ModelProto.
        feeds: Arrays by names of inputs; any iterable, taken one at a time. A feed is one sample, or as many as its
            batch has rows, where all inputs share the symbolic batch dimension of the recurrent layers. Or the name
            of an `.npz`, of a directory of `.npz`, or `module:function`.
        state: Outputs by the input they become in the next call, or texts `IN:OUT`. The feeds are then the calls of a
            stream; one that holds a state's array starts a new stream with it, the first one starts from zeros.
        limit: Number of samples to use; all by default.
        seed: Draw them at random; the first ones by default.
        processes: How many to use on this machine.
        scheduler: Address of a dask scheduler whose workers do the work.
        progress: Called with the number of samples done so far, and of all where that is known.
        moments: Whether to keep the second moments of inputs and hidden states, `[K,K]` each.

    Raises:
        CompileError: The model or the data cannot be handled.
        UsageError: The options contradict each other.
    """
    selection = Selection(limit, seed)
    loaded = Model.load(model)
    with located(loaded.source):
        carried = state_pairs(state, loaded.proto)
        _check_options(bool(carried), seed, processes, scheduler)
        task, cells, hidden = prepare(loaded, carried, moments)
        if hidden and not task.sites:
            raise _not_observable(hidden[0].name)
        proto = loaded.proto
        padded = any(v.point in (LENGTHS, MASK) for v in task.values)
        if isinstance(feeds, str | os.PathLike):
            feeds = open_feeds(os.fspath(feeds), proto, carried)
        valid = checked(feeds, proto, task.axes, carried, padded, filled=True)
        pieces: Iterator[Piece] = (
            stream(valid, proto, carried, limit) if carried else batches(valid, task.axes, selection, task.rows)
        )
        counted = _Counted(pieces)
        total = sample_count(feeds, task.axes, limit)
        told = None if progress is None else lambda done: progress(done, total)
        observers = reduced(task, counted, processes, scheduler, told)
    settings = {
        "samples": counted.samples,
        "limit": limit,
        "seed": seed,
        "second_moments": moments,
        "states": [f"{i}:{o}" for i, o in sorted(carried.items())],
    }
    return _statistics(observers, cells, settings, [*map(_remark, hidden), *map(_too_large, counted.large.texts)])


def _check_options(streamed: bool, seed: int | None, processes: int, scheduler: str | None) -> None:
    """Raises UsageError for options of `calibrate` that contradict each other; `streamed`: with states."""
    if streamed and (processes > 1 or scheduler is not None):
        raise UsageError(
            "A stream with states runs call after call.",
            supported="one process with --state",
            action="leave out the number of processes and the scheduler",
        )
    if streamed and seed is not None:
        raise UsageError(
            "Calls of a stream with states are no random subset.",
            supported="the first calls (a number of samples without a seed)",
            action="leave out the seed",
        )
    if processes < 1:
        raise UsageError(f"{processes} processes.", supported="1 or more", action="choose another number")


def prepare(
    model: Model, carried: Mapping[str, str], moments: bool
) -> tuple[Task, dict[str, dict[str, Any]], list[CustomCell]]:
    """Decomposes a float model, in place, and makes its quantization points observable.

    Args:
        model: The model.
        carried: Outputs by the input they become.
        moments: Whether to keep second moments.

    Returns:
        What to run, the sizes of the cells in it, and custom cells that cannot be observed.

    Raises:
        CompileError: It has no recurrent layer that can be observed, or is lowered already; one stands where its values
            cannot be observed.
    """
    others: list[CustomCell] = []

    def look(normal: Model) -> bool:
        others.extend(c for c in custom_cells_of(normal) if c.products)
        return bool(others)

    decompose(model, "calibrate", look)
    model.infer_shapes()
    sites = {}
    values: list[Observed] = []
    identities: dict[str, dict[str, Any]] = {}
    for other in others:
        length, batch = dimensions_of(other)
        sites[other.name] = Site(other.name, False, False, length, batch, custom=True)
        values += observe_custom_cell(model, other)
        identities[other.name] = custom_identity(other)
    for cell in model.cells.values():
        shape = shape_of(model.find(cell.x)) or [None, None]
        flipped = cell.reverse and cell.sequence_lens is None
        length, batch = cell.static_length or shape[0], cell.static_batch or shape[1]
        sites[cell.name] = Site(cell.name, flipped, cell.initial_h is not None, length, batch)
    values += observe_cells(model)
    proto = model.proto
    hidden = _unobservable(proto, values)
    for name in hidden:
        if name not in identities:
            raise _not_observable(name)
        del sites[name], identities[name]
    values = [v for v in values if v.cell in sites]
    inputs = {
        i.name: tuple(
            d.dim_value if d.HasField("dim_value") else d.dim_param or None for d in i.type.tensor_type.shape.dim
        )
        for i in true_inputs(proto)
    }
    axes = None if carried else batch_axes(proto, [s.batch for s in sites.values()])
    task = Task(serialized(proto, model.source), sites, tuple(values), inputs, axes, carried, moments)
    cells = {**{cell.name: identity(cell) for cell in model.cells.values()}, **identities}
    return task, cells, [c for c in others if c.name in hidden]


_HIDDEN = "stands in an If or Loop inside a Scan, where its values cannot be observed."
_WRITE_A_LOOP = "write the Scan as a Loop"


def _not_observable(name: str) -> CompileError:
    return CompileError(
        f"cell {name!r} {_HIDDEN}",
        supported="recurrent layers in nested If and Loop, and in Scans in which there are no others",
        action=_WRITE_A_LOOP,
    )


def _remark(cell: CustomCell) -> Remark:
    at = cell.recurrence
    found = f"cell {cell.name!r}, {len(cell.products) + len(cell.edges)} values without statistics"
    return Remark("calibrate", Outcome.NOTE, at.path, at.op, f"it {_HIDDEN}", found, _WRITE_A_LOOP)


def _too_large(text: str) -> Remark:
    return Remark("calibrate", Outcome.NOTE, "data", "calibrate", text, action=ACTION)


def _unobservable(proto: onnx.ModelProto, values: Sequence[Observed]) -> list[str]:
    """Cells whose values cannot be exposed outside the subgraphs they are in."""
    copy = onnx.ModelProto()
    copy.graph.node.extend(proto.graph.node)

    def hidden(cell: str) -> bool:
        try:
            with_outputs(copy, [v for v in values if v.cell == cell], [])
        except NotObservableError:
            return True
        return False

    return [cell for cell in dict.fromkeys(v.cell for v in values) if hidden(cell)]


class _Counted:
    """Pieces, how many samples there were, and which inputs were too large."""

    def __init__(self, pieces: Iterable[Piece]) -> None:
        self._pieces = pieces
        self.samples = 0
        self.large = LargeInputs()

    def __iter__(self) -> Iterator[Piece]:
        for piece in self._pieces:
            self.samples += piece.samples
            self.large.look(piece.feed)
            yield piece


def _statistics(
    observers: Observers,
    cells: Mapping[str, Mapping[str, Any]],
    settings: Mapping[str, Any],
    remarks: Sequence[Remark],
) -> Statistics:
    found = {name: observer.statistics for name, observer in sorted(observers.items())}
    return Statistics({n: s for n, s in found.items() if s is not None}, cells, settings, remarks=tuple(remarks))
