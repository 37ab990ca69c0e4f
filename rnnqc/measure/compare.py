"""Compares two models on the same data, and a lowered model without and with the native library."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

import onnx

from rnnqc.data.given_data import Data
from rnnqc.data.input_uses import MOVERS
from rnnqc.data.streaming import Outputs
from rnnqc.errors import CompileError
from rnnqc.evaluation.numerics import decibels
from rnnqc.ir import DOMAIN
from rnnqc.measure.differences import QUIET, OutputComparison
from rnnqc.measure.feeds import Level
from rnnqc.measure.runs import Calls, Runner, State
from rnnqc.measure.tally import tallied
from rnnqc.measure.time_axes import TimeAxis, in_normal_form, output_axes, time_axes
from rnnqc.proto.given import Given, proto_of
from rnnqc.proto.graph_walks import blocks_of, branch_results

_UNIT = ("Sigmoid", "HardSigmoid")
_KEEPS: dict[str, int | None] = {**MOVERS, "ReduceMean": 0, "ReduceMax": 0}
del _KEEPS["TopK"]  # its second output holds indices


@dataclass(frozen=True)
class LevelComparison:
    """The comparison of two models on generated feeds of one kind.

    Attributes:
        name: The kind of feeds, such as "magnitude 10".
        outputs: The comparison of each output. For nearly zero outputs of a sigmoid, the SQNR is set against a tenth of
            its full scale.
    """

    name: str
    outputs: list[OutputComparison]


def compare_models(
    reference: Given,
    candidate: Given,
    feeds: Data,
    *,
    names: tuple[str, str] = ("the float model", "the lowered model"),
    state: State = None,
    progress: Callable[[int, int], None] | None = None,
) -> list[OutputComparison]:
    """Runs both models on every feed and compares each output, over time, too.

    If onnxruntime refuses the float model (recurrent layers of float64 or with layout 1), its normal form is used.

    Args:
        reference: The float model.
        candidate: The lowered one; names of inputs and outputs are the same.
        feeds: Data (see `rnnqc.lower`).
        names: Names of the two models in messages.
        state: Outputs by the input they become in the next call, or texts `IN:OUT`: the feeds are then the calls of a
            stream, and each model carries its own states.
        progress: Called with the number of calls done so far, and the total.

    Raises:
        CompileError: A model does not run, they have different outputs, or the data does not fit.
    """
    reference, candidate = proto_of(reference), proto_of(candidate)
    calls = Calls.of(feeds, reference, state)
    axes, unit = output_axes(reference), unit_outputs(reference)
    second = Runner(candidate, names[1])
    try:
        return compare_runs(Runner(reference, names[0]), second, calls, axes, unit, progress)
    except CompileError:
        normal = in_normal_form(reference)
        if normal is None:
            raise
        with contextlib.suppress(CompileError):
            return compare_runs(Runner(normal, names[0]), second, calls, axes, unit, progress)
        raise


def compare_runs(
    first: Runner,
    second: Runner,
    calls: Calls,
    axes: Mapping[str, TimeAxis],
    unit: Collection[str] = (),
    progress: Callable[[int, int], None] | None = None,
) -> list[OutputComparison]:
    """Runs two models on the same calls, in step, and compares each output that is a tensor.

    Args:
        first: The reference model.
        second: The other one.
        calls: The calls that both run on.
        axes: The time axes of outputs.
        unit: Outputs that a sigmoid makes.
        progress: Called with the number of calls done so far, and the total.

    Raises:
        CompileError: A model does not run, or they have different outputs.
    """
    ours, theirs = first.outputs(calls), second.outputs(calls)
    if progress is not None:
        theirs = _counted(theirs, len(calls.pieces), progress)
    tallies = tallied(calls, ours, theirs, axes, (first.name, second.name), unit)
    return [tally.result() for tally in tallies.values()]


def _counted(outputs: Iterator[Outputs], total: int, progress: Callable[[int, int], None]) -> Iterator[Outputs]:
    """Yields the outputs, and says how many there were."""
    for done, made in enumerate(outputs, 1):
        progress(done, total)
        yield made


def compare_levels(
    reference: onnx.ModelProto,
    candidate: onnx.ModelProto,
    levels: Iterable[Level],
    *,
    names: tuple[str, str] = ("the float model", "the lowered model"),
    state: State = None,
    timed: bool = True,
    optimize: bool = True,
) -> Iterator[LevelComparison]:
    """Compares two models on feeds of several kinds, one after the other.

    Outputs of generated feeds that are nearly zero everywhere are judged by their full scale (`judged`).

    Args:
        reference: The float model.
        candidate: The lowered one.
        levels: The feeds, in order; each is run when its comparison is taken.
        names: Names of the two models in messages.
        state: As for `compare_models`; the feeds of every level are then the calls of one stream.
        timed: Whether to look for time axes.
        optimize: Whether onnxruntime may optimize the graphs: sessions start later, and runs are shorter.

    Raises:
        CompileError: A model does not run, or they have different outputs.
    """
    axes = output_axes(reference) if timed else {}
    unit = unit_outputs(reference)
    first, second = Runner(reference, names[0], optimize=optimize), Runner(candidate, names[1], optimize=optimize)
    for level in levels:
        calls = Calls.of(level.feeds, reference, state)
        outputs = compare_runs(first, second, calls, axes, unit)
        yield LevelComparison(level.name, outputs if level.is_given else judged(outputs))


def worst_level(levels: Iterable[LevelComparison]) -> dict[str, tuple[str, OutputComparison]]:
    """Returns the comparison with the lowest SQNR for each output, with the name of its level."""
    found: dict[str, tuple[str, OutputComparison]] = {}
    for level in levels:
        for output in level.outputs:
            if output.name not in found or output.sqnr_db < found[output.name][1].sqnr_db:
                found[output.name] = (level.name, output)
    return found


def compare_native(
    model: onnx.ModelProto,
    feeds: Data,
    *,
    name: str = "the lowered model",
    state: State = None,
    optimize: bool = False,
) -> list[OutputComparison]:
    """Compares a lowered model without and with the native library; the library promises `same_bits`.

    It promises that for its cells. By default both models run without onnxruntime's graph optimizations, and results
    of each cell in the main graph are compared, too. With optimizations, onnxruntime may fuse the float
    operators around function bodies and around kernels differently.

    Args:
        model: The lowered model.
        feeds: As for `compare_models`.
        name: Name of the model in messages.
        state: As for `compare_models`.
        optimize: Whether onnxruntime optimizes the graphs; then only outputs of the model are compared.

    Raises:
        CompileError: The library is missing, the model does not run, or the data does not fit.
    """
    calls = Calls.of(feeds, model, state)
    shown = model if optimize else _with_cell_outputs(model)
    stock = Runner(shown, f"{name} without the native library", optimize=optimize)
    native = Runner(shown, f"{name} with the native library", native=True, optimize=optimize)
    return compare_runs(stock, native, calls, time_axes(model))


def _with_cell_outputs(model: onnx.ModelProto) -> onnx.ModelProto:
    """Returns the model with the results of every fused cell of its main graph as further outputs."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    known = {o.name for o in copy.graph.output}
    for node in copy.graph.node:
        if node.domain == DOMAIN:
            for name in node.output:
                if name and name not in known:
                    copy.graph.output.add(name=name)
    return copy


def unit_outputs(proto: onnx.ModelProto) -> set[str]:
    """Returns outputs of the main graph that are sigmoid values, possibly moved, averaged or maximized afterwards."""
    makers = {o: n for block in blocks_of([proto.graph]) for n in block.node for o in n.output if o}
    return {o.name for o in proto.graph.output if _is_unit(o.name, makers)}


def _is_unit(name: str, makers: dict[str, onnx.NodeProto]) -> bool:
    pending, seen = [name], {name}
    while pending:
        value = pending.pop()
        node = makers.get(value)
        if node is None or node.op_type not in (*_UNIT, *_KEEPS, "If"):
            return False
        if node.op_type not in _UNIT:
            source = _KEEPS.get(node.op_type)
            more = branch_results(node, value) or (node.input if source is None else node.input[source : source + 1])
            pending += [m for m in more if m not in seen]
            seen.update(more)
    return True


def judged(outputs: Iterable[OutputComparison]) -> list[OutputComparison]:
    """Replaces the SQNR of outputs near zero by that against `QUIET` of their full scale."""
    return [_loud(o) if o.near_zero and 0.0 < o.rms_error < math.inf else o for o in outputs]


def _loud(output: OutputComparison) -> OutputComparison:
    return replace(output, sqnr_db=decibels(QUIET**2, output.rms_error**2))
