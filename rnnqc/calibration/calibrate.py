"""The calibrate analysis: measures the values at the quantization points of a model on data."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import onnx

from rnnqc.calibration.as_lowered import model_as_lowered
from rnnqc.calibration.chosen_layers import layer_patterns, only_layers
from rnnqc.calibration.distribute import reduced
from rnnqc.calibration.float_cells import decompose
from rnnqc.calibration.observation import Observers, Site, Task
from rnnqc.calibration.samples import Selection, batch_axes, batches, joined_batches, sample_count
from rnnqc.cells.base import Cell
from rnnqc.data.feeds import true_inputs
from rnnqc.data.given_data import Data, open_feeds
from rnnqc.data.large_inputs import ACTION, LargeInputs
from rnnqc.data.state_hints import state_remarks, states_of
from rnnqc.data.state_pairs import state_pairs
from rnnqc.data.statistics import Statistics, identity, weights_digest
from rnnqc.data.streaming import Piece, checked, stream
from rnnqc.errors import CompileError, Outcome, Remark, UsageError, located
from rnnqc.evaluation.invalid_model_errors import refusing_invalid_models
from rnnqc.ir import Model, display_name, shape_of
from rnnqc.passes.analysis.custom_cell import CustomCell
from rnnqc.passes.analysis.custom_points import custom_cells_of, custom_identity
from rnnqc.passes.analysis.observe_custom import MASK, dimensions_of, observe_custom_cell
from rnnqc.passes.cells.cell_graphs import parameters_of
from rnnqc.passes.cells.observe import LENGTHS, NotObservableError, Observed, observe_cells, with_outputs
from rnnqc.passes.graph.nodes.lstm_node import is_recurrent
from rnnqc.passes.linear.observe_linear import observe_linear_layers
from rnnqc.passes.manager import PassManager
from rnnqc.passes.normalize.batch_sorts import sizes_of_sorted
from rnnqc.passes.pipeline import NORMAL_FORM, float_weight_passes
from rnnqc.proto.files import serialized
from rnnqc.proto.given import Given
from rnnqc.proto.shape_inference import sizes_of

Progress = Callable[[int, int | None], None]


@refusing_invalid_models
def calibrate(
    model: Given,
    feeds: Data,
    *,
    state: Mapping[str, str] | Iterable[str] | None = None,
    limit: int | None = None,
    seed: int | None = None,
    processes: int = 1,
    scheduler: str | None = None,
    progress: Progress | None = None,
    moments: bool = True,
    batch: int | None = None,
    layers: Iterable[str] = (),
    dims: Mapping[str, int] | None = None,
    bind: Mapping[str, Any] | None = None,
) -> Statistics:
    """Measures the values at all quantization points of a float model while it runs on data.

    Examples:
        >>> import rnnqc
        >>> statistics = rnnqc.calibrate("models/digits_lstm.onnx", "models/digits_calibration.npz", limit=20)
        >>> statistics.settings["samples"], all(row["count"] for row in statistics.rows)
        (20, True)

    The result depends only on the model, the samples and onnxruntime: not on the number of processes or machines, nor
    on how the data is streamed. Memory depends on the longest sample, not on their number; with a seed, also on
    `limit`.

    Args:
        model: A path, a ModelProto, or a `torch.onnx.ONNXProgram`.
        feeds: Data (see `rnnqc.lower`). Feeds are taken one at a time; each is one sample, or as many as its batch
            has rows if all inputs share the symbolic batch dimension of the recurrent layers.
        state: Outputs by the input they become in the next call, or texts `IN:OUT`. The feeds are then the calls of a
            stream; one that holds a state's array starts a new stream with it, the first one starts from zeros.
        limit: Number of samples to use; all by default.
        seed: Draw them at random; the first ones by default.
        processes: How many to use on this machine.
        scheduler: Address of a dask scheduler whose workers do the work.
        progress: Called with the number of samples done so far, and the total where it is known.
        moments: Whether to keep the second moments of inputs and hidden states, `[K,K]` each.
        batch: How many rows run at once: samples are cut and joined to batches of this size, the last may have fewer.
            By default samples are not joined, and up to 32 rows of one feed run at once.
        layers: Only measure cells whose names match one of these globs, or regular expressions after `re:`.
        dims: Symbolic dimensions that lowering binds, by name (see `rnnqc.lower`). They stay open, so data of other
            sizes can run, unless binding them changes the layers.
        bind: Values of inputs that lowering binds, by name.

    Raises:
        CompileError: The model or the data cannot be handled.
        UsageError: The options contradict each other.
    """
    selection, patterns = Selection(limit, seed), layer_patterns(layers)
    loaded, fold = model_as_lowered(model, dims or {}, bind or {})
    with located(loaded.source):
        carried = state_pairs(state, loaded.proto)
        _check_options(bool(carried), seed, processes, scheduler, batch)
        plan = prepare(loaded, carried, moments, fold=fold)
        if plan.hidden and all(s.linear for s in plan.task.sites.values()):
            raise _not_observable(plan.hidden[0].name)
        task = only_layers(plan.task, patterns)
        opened = open_feeds(feeds, loaded.proto, carried)
        counted = _Counted(_pieces(opened, loaded.proto, plan, task, selection, batch))
        total = sample_count(opened, task.axes, limit)
        told = None if progress is None else lambda done: progress(done, total)
        observers = reduced(task, counted, processes, scheduler, told)
    settings = {
        "samples": counted.samples,
        "limit": limit,
        "seed": seed,
        "second_moments": moments,
        "states": [f"{i}:{o}" for i, o in sorted(carried.items())],
        "batch": batch,
        "shapes": counted.shapes,
        "layers": patterns,
        "weights": {cell.name: weights_digest(parameters_of(loaded, cell)) for cell in loaded.cells.values()},
    }
    return _statistics(observers, plan.cells, settings, _remarks(plan, counted, carried, batch))


def _pieces(
    opened: Iterable[Any], proto: onnx.ModelProto, plan: Prepared, task: Task, selection: Selection, batch: int | None
) -> Iterator[Piece]:
    """Returns the pieces of the data that run one after the other: calls of a stream, or samples of a batch."""
    padded = any(v.point in (LENGTHS, MASK) for v in plan.task.values)
    valid = checked(opened, proto, task.axes, task.carried, padded, filled=True, states=plan.likely)
    if task.carried:
        return stream(valid, proto, task.carried, selection.limit)
    if batch is not None:
        return joined_batches(valid, task.axes, selection, batch)
    return batches(valid, task.axes, selection, task.rows)


def _remarks(plan: Prepared, counted: _Counted, carried: Mapping[str, str], batch: int | None) -> list[Remark]:
    """Returns remarks about states, hidden cells, large inputs, and batches that are too small."""
    in_turn = batch is None and counted.most == 1  # otherwise samples are rows of a batch and do not follow each other
    odd = state_remarks(plan.likely, carried, counted.samples if in_turn else 0)
    remarks = [
        *(_about_data(reason, action) for reason, action in odd),
        *map(_hidden, plan.hidden),
        *map(_too_large, counted.large.texts),
    ]
    return [*remarks, _too_few(batch, counted.most)] if batch is not None and counted.most < batch else remarks


def _check_options(streamed: bool, seed: int | None, processes: int, scheduler: str | None, batch: int | None) -> None:
    """Raises UsageError if options of `calibrate` contradict each other; `streamed`: with states."""
    if streamed and batch is not None:
        raise UsageError(
            f"batches of {batch} rows of a stream with states: its calls run in the batches that the data has.",
            supported="--batch without --state",
            action="leave the batch out, or join the streams in the data",
        )
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


class Prepared(NamedTuple):
    """A model that can be observed.

    Attributes:
        task: The observation.
        cells: The sizes of the observed cells, by name.
        hidden: Custom cells that cannot be observed.
        likely: Outputs by the input that they appear to become in the next call.
    """

    task: Task
    cells: dict[str, dict[str, Any]]
    hidden: list[CustomCell]
    likely: dict[str, str]


def prepare(model: Model, carried: Mapping[str, str], moments: bool, *, fold: bool = False) -> Prepared:
    """Decomposes a float model, in place, and makes its quantization points observable.

    Args:
        model: The model.
        carried: Outputs by the input they become.
        moments: Whether to keep second moments.
        fold: Whether to fold values computed from known inputs first (see `model_as_lowered`).

    Raises:
        CompileError: It has no recurrent layer that can be observed, or is already lowered; or the values of one cannot
            be observed where it is.
    """
    others: list[CustomCell] = []
    named: dict[str, str] = {}
    given = model.proto
    likely = states_of(given)

    def look(normal: Model) -> bool:
        named.update(_batches_of_sorted(normal))
        likely.update(states_of(given, normal.proto))  # this form shows recovered steps as nodes
        others.extend(c for c in custom_cells_of(normal) if c.products)
        return bool(others)

    decompose(model, "calibrate", look, fold=fold)
    model.infer_shapes()
    sites = {}
    values: list[Observed] = []
    identities: dict[str, dict[str, Any]] = {}
    for other in others:
        length, batch = dimensions_of(other)
        sites[other.name] = Site(other.name, False, False, length, batch, custom=True)
        values += observe_custom_cell(model, other)
        identities[other.name] = custom_identity(other)
    sites |= {cell.name: _site_of(model, cell, named.get(cell.node)) for cell in model.cells.values()}
    if moments:
        PassManager(float_weight_passes(), given=NORMAL_FORM).run(model)
    for value, layer in observe_linear_layers(model) if moments else ():
        sites[value.cell] = Site(value.cell, False, False, None, None, custom=True, linear=True)
        values.append(value)
        identities[value.cell] = layer
    observed = observe_cells(model)
    for cell in model.cells.values():
        seen = [v.point for v in observed if v.cell == cell.name]
        sites[cell.name] = replace(sites[cell.name], gate_points=tuple(_of_gates(seen, cell.type.gates)))
    values += observed
    proto = model.proto
    hidden = _unobservable(proto, values)
    for name in hidden:
        if name not in identities:
            raise _not_observable(name)
        del sites[name], identities[name]
    values = [v for v in values if v.cell in sites]
    axes = None if carried else batch_axes(proto, [s.batch for s in sites.values() if not s.linear])
    task = Task(serialized(proto, model.source), sites, tuple(values), _dimensions(proto), axes, carried, moments)
    cells = {**{cell.name: identity(cell) for cell in model.cells.values()}, **identities}
    return Prepared(task, cells, [c for c in others if c.name in hidden], likely)


def _site_of(model: Model, cell: Cell, named: str | None) -> Site:
    shape = shape_of(model.find(cell.x)) or [None, None]
    flipped = cell.reverse and cell.sequence_lens is None
    length, batch = cell.static_length or shape[0], cell.static_batch or named or shape[1]
    return Site(cell.name, flipped, cell.initial_h is not None, length, batch)


def _batches_of_sorted(model: Model) -> dict[str, str]:
    """Returns the names of the batch sizes of recurrent nodes with a sorted batch, as the inputs have them."""
    same = sizes_of_sorted(model)
    sizes = {
        f"{path}{display_name(n)}": (shape_of(n.inputs[0]) or [None, None])[1]
        for path, graph in model.paths()
        for n in graph.nodes
        if is_recurrent(n)
    }
    return {node: same[size] for node, size in sizes.items() if isinstance(size, str) and size in same}


def _dimensions(proto: onnx.ModelProto) -> dict[str, tuple[int | str | None, ...]]:
    """Returns the dimensions of each input."""
    return {i.name: tuple(sizes_of(i.type.tensor_type.shape)) for i in true_inputs(proto)}


def _of_gates(points: Sequence[str], gates: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """Yields the points of several gates, grouped by part, such as `acc`."""
    for part in dict.fromkeys(p.partition(".")[2] for p in points if p.partition(".")[0] in gates):
        found = tuple(f"{g}.{part}" for g in gates if f"{g}.{part}" in points)
        if len(found) > 1:
            yield found


_UNSEEN = "stands in an If or Loop inside a Scan, where its values cannot be observed."
_WRITE_A_LOOP = "write the Scan as a Loop"


def _not_observable(name: str) -> CompileError:
    return CompileError(
        f"cell {name!r} {_UNSEEN}",
        supported="recurrent layers in nested If and Loop, and in Scans in which there are no others",
        action=_WRITE_A_LOOP,
    )


def _hidden(cell: CustomCell) -> Remark:
    at = cell.recurrence
    found = f"cell {cell.name!r}, {len(cell.products) + len(cell.edges)} values without statistics"
    return Remark("calibrate", Outcome.NOTE, at.path, at.op, f"it {_UNSEEN}", found, _WRITE_A_LOOP)


def _too_large(text: str) -> Remark:
    return Remark("calibrate", Outcome.NOTE, "data", "", text, action=ACTION)


def _too_few(batch: int, most: int) -> Remark:
    return _about_data(
        f"no batch has {batch} rows, the largest has {most}", "calibrate with more samples, or with smaller batches"
    )


def _about_data(reason: str, action: str) -> Remark:
    return Remark("calibrate", Outcome.NOTE, "data", "", reason, action=action)


def _unobservable(proto: onnx.ModelProto, values: Sequence[Observed]) -> list[str]:
    """Returns cells whose values cannot be exposed outside their subgraphs."""
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
    """Passes on pieces, and counts samples, shapes, and inputs that are too large.

    Attributes:
        samples: Number of samples.
        most: The largest number of samples that ran at once.
        shapes: The largest size of each dimension of each input.
        large: Inputs that were too large.
    """

    def __init__(self, pieces: Iterable[Piece]) -> None:
        self._pieces = pieces
        self.samples = self.most = 0
        self.shapes: dict[str, list[int]] = {}
        self.large = LargeInputs()

    def __iter__(self) -> Iterator[Piece]:
        for piece in self._pieces:
            self.samples += piece.samples
            self.most = max(self.most, piece.samples)
            for name, array in piece.feed.items():
                known = self.shapes.get(name, [0] * array.ndim)
                self.shapes[name] = [max(sizes) for sizes in zip(known, array.shape, strict=False)]
            self.large.look(piece.feed)
            yield piece


def _statistics(
    observers: Observers,
    cells: Mapping[str, Mapping[str, Any]],
    settings: Mapping[str, Any],
    remarks: Sequence[Remark],
) -> Statistics:
    found = {name: observer.statistics for name, observer in sorted(observers.items())}
    points = {n: s for n, s in found.items() if s is not None}
    made = Statistics(points, cells, settings, remarks=tuple(remarks))
    asked = {made.cell_of(name) for name in found}
    return replace(made, unseen=tuple(c for c in made.silent_cells if c in asked))
