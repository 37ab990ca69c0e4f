"""Traces a lowered model: which tensors its cells have in each time step, with or without the native library."""

from __future__ import annotations

import fnmatch
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

from rnnqc import runtime_ops
from rnnqc.cells.base import Cell
from rnnqc.diagnostics import CompileError, InternalError, UsageError
from rnnqc.files import load_proto
from rnnqc.ir import Model
from rnnqc.passes.cell_function import stored_numbers
from rnnqc.passes.grid_numbers import GridNumbers
from rnnqc.pipeline import runnable
from rnnqc.streaming import calls_of, run_calls, state_pairs
from rnnqc.tracing.boundaries import Recorder, Run, same_bits
from rnnqc.tracing.evaluator import Evaluator
from rnnqc.tracing.grids import GridReader
from rnnqc.tracing.native_steps import NativeSteps, steps_alone
from rnnqc.tracing.program import Program, programs
from rnnqc.tracing.qcdq import QcdqReader
from rnnqc.tracing.tables import TablesReader
from rnnqc.tracing.tensors import Tensor

Array = npt.NDArray[Any]
RUNTIME = ("X", "sequence_lens", "initial_h", "initial_c")


class DeviationError(InternalError):
    """A run whose cells did not do what their specification says."""


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
        self._programs = programs(self.proto, self.cells)
        if native:
            runtime_ops.library_path()
        self._recorder = Recorder(self.proto, self._programs, native)
        self._traced = {p.cell.name: _TracedCell(p, self._recorder.constants, native) for p in self._programs}

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
            supported="models that `rnnqc lower` wrote (forms fused, integer and qcdq), and exports of Brevitas",
            action="lower it first: rnnqc lower MODEL -o LOWERED.onnx",
        )
    return loaded


class _TracedCell:
    """One cell with its specification."""

    def __init__(self, program: Program, known: Mapping[str, Array], native: bool) -> None:
        self.program, self.known = program, known
        cell = program.cell
        formal = {
            "X": cell.x,
            "sequence_lens": cell.sequence_lens,
            "initial_h": cell.initial_h,
            "initial_c": cell.initial_c,
        }
        self._names = {k: k if program.node is not None else (v or "") for k, v in formal.items()}
        self._evaluator: Evaluator | None = None
        self._reader: Any = None
        self.constants: dict[str, Array] = {}
        self._wants_native = native and program.node is not None and steps_alone(program)
        self._native: NativeSteps | None = None

    def steps(self, run: Run) -> Iterator[tuple[int, int, dict[str, Tensor]]]:
        """First step, number of steps of the run, and the tensors of some steps."""
        program, cell = self.program, self.program.cell
        evaluator, reader = self._prepared(run)
        lens = run.inputs.get(self._names["sequence_lens"])
        x = run.inputs[self._names["X"]]
        order = _Order(cell.reverse, lens, x.shape[0])
        evaluation = evaluator.run(run.inputs)
        in_front = {t.name: t for t in reader.in_front(evaluation.before, order.loop(x))}
        pieces = []
        states = self._initial(run, x)
        for chunk in evaluation.chunks:
            tensors = {n: t.at(chunk.part) for n, t in in_front.items()}
            for tensor in reader.steps(chunk.steps, chunk.after, program.backwards):
                tensors[tensor.name] = tensor
            if self._native is not None:
                self._check_steps(chunk.part.start, order.loop(x)[chunk.part], tensors, states)
                states = self._native.left(tensors, program.backwards)
            if program.backwards:
                pieces.append((chunk.part.start, tensors))
            else:
                yield chunk.part.start, x.shape[0], order.natural(chunk.part.start, tensors)
        for first, tensors in reversed(pieces):
            yield first, x.shape[0], order.natural(first, tensors)
        self._check(run, evaluator.results(run.inputs, evaluation.loop))

    def _initial(self, run: Run, x: Array) -> dict[str, Array]:
        """The states that the loop starts from, `[B,H]`."""
        shape = (x.shape[1], self.program.cell.hidden_size)
        names = ("initial_h", "initial_c")
        return {n: run.inputs.get(self._names[n], np.zeros(shape, np.float32)).reshape(shape) for n in names}

    def _check_steps(self, first: int, x: Array, tensors: Mapping[str, Tensor], states: Mapping[str, Array]) -> None:
        """Compares the native kernel with the specification in each step."""
        assert self._native is not None
        found = self._native.first_difference(x, tensors, states, self.program.backwards)
        if found is not None:
            step, name = found
            raise DeviationError(
                f"Cell {self.program.cell.name!r}: the native library makes other bits than the specification, "
                f"first in step {first + step} of the loop, tensor {name!r}. "
                "Resolution: report it, with the model and the data; --stock runs the specification."
            )

    def _prepared(self, run: Run) -> tuple[Evaluator, Any]:
        if self._evaluator is None:
            program = self.program
            runtime = {n for n in self._names.values() if n}
            constants = {n: v for n, v in run.inputs.items() if n not in runtime}
            operands = program.cell.operands
            self.constants = (
                constants
                if program.node is not None
                else {k: constants[n] for k, n in operands.items() if n in constants} or constants
            )
            if program.cell.form == "qcdq":
                self._reader = QcdqReader(program.cell, None, {})
            else:
                numbers = stored_numbers(program.cell)
                kind = GridReader if isinstance(numbers, GridNumbers) else TablesReader
                self._reader = kind(program.cell, numbers, self.constants)  # type: ignore[arg-type]
            # Sums of floats may depend on what onnxruntime fuses: a cell that has some is run as a whole.
            whole = program.cell.form == "qcdq" or (
                program.cell.reverse and bool(self._names["sequence_lens"] in run.inputs)
            )
            self._evaluator = Evaluator(program, constants, runtime, self._reader.before, whole=whole)
            if self._wants_native:
                self._native = NativeSteps(program, constants)
        return self._evaluator, self._reader

    def _check(self, run: Run, results: Mapping[str, Array]) -> None:
        """Compares the outputs of the run with those of the specification."""
        for name, value in run.outputs.items():
            if not same_bits(value, results[name]):
                where = np.argwhere(np.asarray(value != results[name]))
                place = f" at {where[0].tolist()}" if len(where) else ""
                raise DeviationError(
                    f"Cell {self.program.cell.name!r}: output {name!r} of the run differs from the specification"
                    f"{place}. Resolution: report it, with the model and the data."
                )


class _Order:
    """The order of a loop against that of time."""

    def __init__(self, reverse: bool, lens: Array | None, time: int) -> None:
        self.lens = lens
        self._index: Array | None = None
        if lens is not None and reverse:
            # ReverseSequence turns the first `len` steps of each row.
            t = np.arange(time)[:, None]
            count = np.maximum(lens.astype(np.int64), 1)[None, :]
            self._index = np.where(t < count, count - 1 - t, t)

    def loop(self, x: Array) -> Array:
        """`[T,B,...]` in time order, as the loop's sequences have it."""
        if self._index is None:
            return x
        return np.take_along_axis(x, self._index.reshape(*self._index.shape, *[1] * (x.ndim - 2)), 0)

    def natural(self, first: int, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Steps in time order with 0 beyond the length of each row."""
        if self.lens is None:
            return dict(tensors)
        made = {}
        for name, tensor in tensors.items():
            turned = tensor._each(self.loop) if self._index is not None else tensor
            time = first + np.arange(turned.values.shape[0])[:, None]
            made[name] = turned.masked(time < self.lens[None, :])
        return made
