"""Compares two models on the same data."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime as ort

from rnnqc.data.streaming import Outputs, Piece, calls_of, run_calls, state_pairs
from rnnqc.errors import CompileError, located
from rnnqc.evaluation.comparison import OutputComparison, OutputTally, StepComparison, check_same_outputs
from rnnqc.evaluation.evaluate import make_session, run_session
from rnnqc.evaluation.time_axes import TimeAxis, time_axes
from rnnqc.ir import DOMAIN, Model
from rnnqc.measure.comparison_feeds import Level
from rnnqc.measure.full_scale import judged, unit_outputs
from rnnqc.passes import PassManager
from rnnqc.passes.pipeline import normal_form

__all__ = ["OutputComparison", "StepComparison", "compare_models", "compare_native"]

Array = npt.NDArray[Any]
Data = Iterable[Mapping[str, Array]] | str | os.PathLike[str]
State = Mapping[str, str] | Iterable[str] | None


@dataclass
class _Side:
    """One of the two models: what it is called, and how it runs."""

    model: onnx.ModelProto
    name: str
    native: bool = False
    optimize: bool = True

    @cached_property
    def _session(self) -> ort.InferenceSession:
        return make_session(self.model, native=self.native, optimize=self.optimize)

    def outputs(self, calls: Sequence[Piece], carried: Mapping[str, str]) -> Iterator[Outputs]:
        with located(self.name):
            yield from run_calls(partial(run_session, self._session), calls, carried)


@dataclass(frozen=True)
class LevelComparison:
    """How two models compare on generated feeds of one kind.

    Attributes:
        name: Of the feeds, such as "magnitude 10".
        outputs: One comparison each. The SQNR of an output that a sigmoid makes and that is nearly zero is that against
            a tenth of its full scale.
    """

    name: str
    outputs: list[OutputComparison]


def compare_models(
    reference: onnx.ModelProto,
    candidate: onnx.ModelProto,
    feeds: Data,
    *,
    names: tuple[str, str] = ("the float model", "the lowered model"),
    state: State = None,
) -> list[OutputComparison]:
    """Runs both models on every feed and compares each output, over time, too.

    Where onnxruntime refuses the float model (recurrent layers of float64 or with layout 1), its normal form stands for
    it.

    Args:
        reference: The float model.
        candidate: The lowered one; names of inputs and outputs are the same.
        feeds: Inputs by name, or the name of an `.npz`, of a directory of `.npz`, or `module:function`.
        names: How messages call the two.
        state: Outputs by the input they become in the next call, or texts `IN:OUT`: the feeds are the calls of a
            stream then, and each model goes on with its own states.

    Raises:
        CompileError: A model does not run, they have different outputs, or the data does not fit.
    """
    carried = state_pairs(state, reference)
    calls = list(calls_of(feeds, reference, carried))
    axes = output_axes(reference)
    second = _Side(candidate, names[1])
    try:
        return _compare(_Side(reference, names[0]), second, calls, carried, axes)
    except CompileError:
        normal = _normal_form(reference)
        if normal is None:
            raise
        with contextlib.suppress(CompileError):
            return _compare(_Side(normal, names[0]), second, calls, carried, axes)
        raise


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
    """Compares two models on generated feeds of several kinds, one after the other.

    Args:
        reference: The float model.
        candidate: The lowered one.
        levels: The feeds, in order; each is run when its comparison is taken.
        names: How messages call the two.
        state: As for `compare_models`; the feeds of every level are the calls of one stream then.
        timed: Whether to look for axes that are time.
        optimize: Whether onnxruntime may optimize the graphs: sessions start later, and runs are shorter.

    Raises:
        CompileError: A model does not run, or they have different outputs.
    """
    carried = state_pairs(state, reference)
    axes = output_axes(reference) if timed else {}
    unit = unit_outputs(reference)
    first, second = _Side(reference, names[0], optimize=optimize), _Side(candidate, names[1], optimize=optimize)
    for level in levels:
        calls = list(calls_of(level.feeds, reference, carried))
        yield LevelComparison(level.name, judged(_compare(first, second, calls, carried, axes), unit))


def worst_level(levels: Iterable[LevelComparison]) -> dict[str, tuple[str, OutputComparison]]:
    """Of each output the comparison with the least SQNR, with the name of its level."""
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
    """Compares a lowered model without and with the native library: `same_bits` is what the library promises.

    It promises that of its cells. By default both models run without onnxruntime's optimizations of the graph, and what
    each cell of the main graph makes is compared beside the outputs. With optimizations onnxruntime may fuse the float
    operators around the cells differently where there are functions and where there are kernels.

    Args:
        model: The lowered model.
        feeds: As for `compare_models`.
        name: How messages call the model.
        state: As for `compare_models`.
        optimize: Whether onnxruntime optimizes the graphs; then outputs of the model alone are compared.

    Raises:
        CompileError: The library is missing, the model does not run, or the data does not fit.
    """
    carried = state_pairs(state, model)
    calls = list(calls_of(feeds, model, carried))
    shown = model if optimize else _with_cell_outputs(model)
    stock = _Side(shown, f"{name} without the native library", optimize=optimize)
    native = _Side(shown, f"{name} with the native library", native=True, optimize=optimize)
    return _compare(stock, native, calls, carried, time_axes(model))


def _with_cell_outputs(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with what every fused cell of its main graph makes as further outputs."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    known = {o.name for o in copy.graph.output}
    for node in copy.graph.node:
        if node.domain == DOMAIN:
            for name in node.output:
                if name and name not in known:
                    copy.graph.output.add(name=name)
    return copy


def output_axes(model: onnx.ModelProto) -> dict[str, TimeAxis]:
    """The time axis of each output that has one for certain, in the normal form: there recovered loops are nodes."""
    normal = _normal_form(model)
    return time_axes(normal if normal is not None else model)


def _normal_form(model: onnx.ModelProto) -> onnx.ModelProto | None:
    """The normal form of `model`, if that is another."""
    try:
        loaded = Model.load(model)
        results = PassManager(normal_form()).run(loaded)
    except CompileError:
        return None
    return loaded.proto if any(r.modified for r in results) else None


def _compare(
    first: _Side, second: _Side, calls: Sequence[Piece], carried: Mapping[str, str], axes: Mapping[str, TimeAxis]
) -> list[OutputComparison]:
    tallies: dict[str, OutputTally] = {}
    for call, a, b in zip(calls, first.outputs(calls, carried), second.outputs(calls, carried), strict=True):
        check_same_outputs(first.name, second.name, a, b)
        for name in a:
            x, y = np.asarray(a[name]), np.asarray(b[name])
            if name not in tallies:
                axis = axes[name].of(x, call.feed) if name in axes else None
                tallies[name] = OutputTally(name, axis, bool(carried))
            tallies[name].add(x, y, call.restart)
    return [t.result() for t in tallies.values()]
