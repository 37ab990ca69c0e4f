"""One cell of a model with its specification: its tensors in a run, and whether the run did what they say."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from rnnqc.cells.base import FORGET, Cell
from rnnqc.cells.grid_numbers import GridNumbers
from rnnqc.cells.stages import IntegerCell
from rnnqc.errors import CompileError, InternalError
from rnnqc.tracing.boundaries import Run, same_bits
from rnnqc.tracing.evaluator import Evaluator
from rnnqc.tracing.grids import GridReader
from rnnqc.tracing.native_steps import NativeSteps, steps_alone
from rnnqc.tracing.parameters import parameters_of
from rnnqc.tracing.program import Program
from rnnqc.tracing.qcdq import QcdqReader
from rnnqc.tracing.tables import TablesReader
from rnnqc.tracing.tensors import Tensor

Array = npt.NDArray[Any]


class DeviationError(InternalError):
    """A run whose cells did not do what their specification says."""


class Order:
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
            turned = tensor.each(self.loop) if self._index is not None else tensor
            time = first + np.arange(turned.values.shape[0])[:, None]
            made[name] = turned.masked(time < self.lens[None, :])
        return made


def _integer_reader(cell: IntegerCell, constants: Mapping[str, Array]) -> GridReader | TablesReader:
    numbers = cell.numbers
    if isinstance(numbers, GridNumbers):
        return GridReader(cell, numbers, constants)
    return TablesReader(cell, numbers, constants)


def _arithmetic(cell: Cell) -> str:
    """What an index calls the arithmetic of a cell."""
    if not isinstance(cell, IntegerCell):
        return "float"
    return cell.numbers.arithmetic if isinstance(cell.numbers, GridNumbers) else "tables"


class TracedCell:
    """One cell with its specification.

    Args:
        program: The cell.
        stored: The constants of the model, by name.
        native: Whether to compare the native kernel with it in each step.
    """

    def __init__(self, program: Program, stored: Mapping[str, Array], native: bool) -> None:
        self.program = program
        self._computed = [f for f, name in program.inputs.items() if name not in stored]
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
        self._constants: dict[str, Array] = {}
        self._wants_native = native and program.node is not None and steps_alone(program)
        self._native: NativeSteps | None = None

    def steps(self, run: Run) -> Iterator[tuple[int, int, dict[str, Tensor]]]:
        """First step, number of steps of the run, and the tensors of some steps."""
        program, cell = self.program, self.program.cell
        evaluator, reader = self._prepared(run)
        lens = run.inputs.get(self._names["sequence_lens"])
        x = run.inputs[self._names["X"]]
        order = Order(cell.reverse, lens, x.shape[0])
        evaluation = evaluator.run(run.inputs)
        with self._as_written():
            in_front = {t.name: t for t in reader.in_front(evaluation.before, order.loop(x))}
        pieces = []
        states = self._initial(run, x)
        for chunk in evaluation.chunks:
            tensors = {n: t.at(chunk.part) for n, t in in_front.items()}
            with self._as_written():
                tensors |= {t.name: t for t in reader.steps(chunk.steps, chunk.after, program.backwards)}
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

    @property
    def description(self) -> dict[str, Any]:
        """What an index says of the cell."""
        cell = self.program.cell
        coupled = [FORGET * cell.hidden_size, (FORGET + 1) * cell.hidden_size] if cell.input_forget else None
        return {
            "op": cell.op,
            "form": cell.form,
            "direction": "reverse" if cell.reverse else "forward",
            "arithmetic": _arithmetic(cell),
            "hidden_size": cell.hidden_size,
            "input_size": cell.input_size,
            **({"unused_columns": coupled} if coupled else {}),
        }

    @property
    def weights(self) -> dict[str, Array]:
        """Codes of W and R, unpacked, and the other parameters that the cell has as such."""
        if self._evaluator is None:  # it was not run
            return {}
        return parameters_of(self.program, self._constants if self.program.cell.form == "qcdq" else self.constants)

    @contextlib.contextmanager
    def _as_written(self) -> Iterator[None]:
        """Names what the cell's nodes do not hold, in files that were changed."""
        try:
            with np.errstate(invalid="ignore"):  # beyond the length of a row anything may stand
                yield
        except KeyError as error:
            raise CompileError(
                f"Cell {self.program.cell.name!r}: {error} is not among its values or its description.",
                supported="cells as this version of rnnqc writes them",
                action="lower the float model again",
            ) from error

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
            operands = program.cell.operands.as_dict() if isinstance(program.cell, IntegerCell) else {}
            self.constants = dict(sorted(constants.items()))
            if program.node is None:
                self.constants = {k: constants[n] for k, n in sorted(operands.items()) if n in constants}
            if isinstance(program.cell, IntegerCell):
                with self._as_written():
                    self._reader = _integer_reader(program.cell, self.constants)
            else:
                self._reader = QcdqReader(program.cell, None, {})
            # Sums of floats may depend on what onnxruntime fuses: a cell that has some is run as a whole.
            whole = program.cell.form == "qcdq" or (
                program.cell.reverse and bool(self._names["sequence_lens"] in run.inputs)
            )
            self._evaluator = Evaluator(program, constants, runtime, self._reader.before, whole=whole)
            if self._wants_native:
                self._native = NativeSteps(program, constants)
            self._constants = constants
        for name in set(self._computed) & set(self._constants):
            if not same_bits(run.inputs[name], self._constants[name]):
                raise CompileError(
                    f"Cell {self.program.cell.name!r}: its input {name!r} depends on the data.",
                    supported="cells whose constants are constant",
                    action="dump one call at a time",
                )
        return self._evaluator, self._reader

    def _check(self, run: Run, results: Mapping[str, Array]) -> None:
        """Compares the outputs of the run with those of the specification."""
        for name, value in run.outputs.items():
            if not same_bits(value, results[name]):
                same_shape = value.shape == results[name].shape
                where = np.argwhere(value != results[name]).tolist() if same_shape else []
                place = f" at {where[0]}" if where else ""
                raise DeviationError(
                    f"Cell {self.program.cell.name!r}: output {name!r} of the run differs from the specification"
                    f"{place}. Resolution: report it, with the model and the data."
                )
