"""Compares two models on the same data."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

from rnnqc.comparison import OutputComparison, OutputTally, StepComparison, check_same_outputs
from rnnqc.diagnostics import CompileError, located
from rnnqc.evaluate import make_session, run_session
from rnnqc.ir import Model
from rnnqc.passes import PassManager
from rnnqc.passes.normal_form import normal_form
from rnnqc.streaming import Outputs, Piece, calls_of, run_calls, state_pairs
from rnnqc.time_axes import TimeAxis, time_axes

__all__ = ["OutputComparison", "StepComparison", "compare_models", "compare_native"]

Array = npt.NDArray[Any]
Data = Iterable[Mapping[str, Array]] | str | os.PathLike[str]
State = Mapping[str, str] | Iterable[str] | None


@dataclass(frozen=True)
class _Side:
    """One of the two models: what it is called, and how it runs."""

    model: onnx.ModelProto
    name: str
    native: bool = False
    optimize: bool = True

    def outputs(self, calls: Sequence[Piece], carried: Mapping[str, str]) -> Iterator[Outputs]:
        with located(self.name):
            session = make_session(self.model, native=self.native, optimize=self.optimize)
            yield from run_calls(partial(run_session, session), calls, carried)


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


def compare_native(
    model: onnx.ModelProto, feeds: Data, *, name: str = "the lowered model", state: State = None
) -> list[OutputComparison]:
    """Compares a lowered model without and with the native library: `same_bits` is what the library promises.

    Both run without onnxruntime's optimizations of the graph: it fuses float operators around the cells, and may do so
    differently where there are functions and where there are kernels.

    Args:
        model: The lowered model.
        feeds: As for `compare_models`.
        name: How messages call the model.
        state: As for `compare_models`.

    Raises:
        CompileError: The library is missing, the model does not run, or the data does not fit.
    """
    carried = state_pairs(state, model)
    calls = list(calls_of(feeds, model, carried))
    stock = _Side(model, f"{name} without the native library", optimize=False)
    native = _Side(model, f"{name} with the native library", native=True, optimize=False)
    return _compare(stock, native, calls, carried, time_axes(model))


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
