"""Traces a lowered model: which tensors its cells have in each time step, with or without the native library."""

from __future__ import annotations

import fnmatch
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt
import onnx

from rnnqc.cells.base import Cell
from rnnqc.diagnostics import CompileError, UsageError
from rnnqc.files import load_proto
from rnnqc.ir import Model
from rnnqc.pipeline import runnable
from rnnqc.streaming import calls_of, run_calls, state_pairs
from rnnqc.tracing.boundaries import Recorder, Run
from rnnqc.tracing.program import programs
from rnnqc.tracing.tensors import Tensor
from rnnqc.tracing.traced_cell import TracedCell

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class CellSteps:
    """Some consecutive time steps of one cell.

    Attributes:
        cell: Its name.
        call: Number of the call of the model.
        run: Number of the run of the cell, over all calls; several in one call where it is in a Loop.
        first: Number of the first step in the run.
        length: How many steps the run has.
        tensors: By name, `[n,B,K]`, in time order whatever the direction.
    """

    cell: str
    call: int
    run: int
    first: int
    length: int
    tensors: Mapping[str, Tensor]


class Tracer:
    """A lowered model that can be traced.

    Args:
        model: A path or a ModelProto; one as Brevitas exported it is lowered first, as `rnnqc.session` does.
        native: Whether the model runs with the native library.
        cells: Patterns of the names of the cells that matter.

    Raises:
        CompileError: The model cannot be read or has no lowered cell, or no name matches.
    """

    def __init__(
        self, model: str | os.PathLike[str] | onnx.ModelProto, *, native: bool = True, cells: Sequence[str] = ("*",)
    ) -> None:
        proto = model if isinstance(model, onnx.ModelProto) else load_proto_of(model)
        loaded = _lowered(proto, model)
        self.native = native
        self.cells: dict[str, Cell] = {
            n: c for n, c in loaded.cells.items() if c.form != "float" and any(fnmatch.fnmatchcase(n, p) for p in cells)
        }
        if not self.cells:
            raise UsageError(
                f"--cells {' '.join(cells)}: no cell has such a name.",
                supported=", ".join(sorted(loaded.cells)),
                action="name a cell, or leave --cells out",
            )
        self.proto = loaded.proto
        self._programs = programs(loaded, self.proto, self.cells)
        self._recorder = Recorder(self.proto, self._programs, native)
        self._traced = {p.cell.name: TracedCell(p, self._recorder.constants, native) for p in self._programs}

    @property
    def names(self) -> list[str]:
        """The cells, in the order of the model."""
        return [p.cell.name for p in self._programs]

    def constants(self, cell: str) -> dict[str, Array]:
        """The constants of a cell, by the names of its operator's inputs where it has an integer form."""
        return self._traced[cell].constants

    def trace(
        self,
        feeds: Iterable[Mapping[str, Any]] | str | os.PathLike[str],
        state: Mapping[str, str] | Iterable[str] | None = None,
    ) -> Iterator[CellSteps]:
        """Runs the model on data.

        Args:
            feeds: Feeds, or the name of a file as `rnnqc run` takes it.
            state: States that go from call to call, `IN:OUT`.

        Yields:
            For each call, for each cell in the order of the model, its steps in order, in pieces that fit into memory.

        Raises:
            CompileError: The data does not fit, or onnxruntime fails.
            DeviationError: A cell's outputs are not what its specification makes of its inputs.
            InternalError: Bringing the values out changed an output of the model.
        """
        carried = state_pairs(state, self.proto)
        recorded: list[dict[str, list[Run]]] = []

        def run(feed: Any) -> dict[str, Array]:
            outputs, runs = self._recorder.run(feed)
            recorded.append(runs)
            return outputs

        counts = dict.fromkeys(self._traced, 0)
        for call, _ in enumerate(run_calls(run, calls_of(feeds, self.proto, carried), carried)):
            for name, runs in recorded.pop().items():
                for made in runs:
                    for first, length, tensors in self._traced[name].steps(made):
                        yield CellSteps(name, call, counts[name], first, length, tensors)
                    counts[name] += 1


def load_proto_of(path: str | os.PathLike[str]) -> onnx.ModelProto:
    """Reads a model file."""
    from pathlib import Path

    return load_proto(Path(path))


def _lowered(proto: onnx.ModelProto, source: str | os.PathLike[str] | onnx.ModelProto) -> Model:
    loaded = Model.load(proto)
    if any(c.form != "float" for c in loaded.cells.values()):
        return loaded
    exported = runnable(source)
    if exported is not None:
        loaded = Model.load(exported)
    if not any(c.form != "float" for c in loaded.cells.values()):
        raise CompileError(
            "The model has no lowered cell.",
            supported="models that `rnnqc lower` wrote (forms fused, integer and qcdq; of cells that Brevitas exported "
            "fused and integer), and exports of Brevitas",
            action="lower it first: rnnqc lower MODEL -o LOWERED.onnx",
        )
    return loaded
