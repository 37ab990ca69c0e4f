"""Traces a cell in integer form: takes the tensors from its reference and checks that the run gave the same."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

from rnnqc.cells.fused_nodes import MORE_X, X_FACTOR
from rnnqc.cells.stages import IntegerCell
from rnnqc.errors import CompileError
from rnnqc.reference.loop import ReferenceCell
from rnnqc.reference.operators import reference
from rnnqc.tracing.boundaries import Run
from rnnqc.tracing.checks import DeviationError, check_constants, check_outputs
from rnnqc.tracing.native_steps import NativeSteps, steps_alone
from rnnqc.tracing.order import Order
from rnnqc.tracing.parameters import parameters_of_operator
from rnnqc.tracing.places import Place
from rnnqc.tracing.recorded import RecordedTensors, Recording
from rnnqc.tracing.tensors import Tensor

Array = npt.NDArray[Any]
SEQUENCES = ("X", "X_scale")
DATA = (*SEQUENCES, *MORE_X, X_FACTOR, "sequence_lens", "initial_h", "initial_c")
"""The operator's inputs that are not constants."""
CHUNK_BYTES = 2**24
_TENSORS_OF_A_STEP = 10


class TracedCell:
    """Traces one cell.

    Args:
        place: Its location in the model.
        proto: The model.
        stored: The constants of the model, by name.
        native: Whether to compare the native kernel with the reference in each step.
    """

    def __init__(self, place: Place, proto: onnx.ModelProto, stored: Mapping[str, Array], native: bool) -> None:
        assert isinstance(place.cell, IntegerCell)
        self.place, self.cell, self._proto = place, place.cell, proto
        self._computed = {f for f, name in place.inputs.items() if name not in stored} - set(DATA)
        has_kernel = place.node is not None and place.cell.type.aliases > 0
        self._wants_native = native and has_kernel and steps_alone(self.cell)
        self._native: NativeSteps | None = None
        self._tensors: RecordedTensors | None = None
        self._operands: dict[str, Array] = {}
        self.constants: dict[str, Array] = {}

    def steps(self, run: Run) -> Iterator[tuple[int, int, dict[str, Tensor]]]:
        """Yields for each piece its first step, the number of steps of the run, and the tensors of the piece."""
        tensors = self._prepared(run)
        lens, reverse = run.inputs.get("sequence_lens"), self.cell.reverse
        backwards = reverse and lens is None
        recording = Recording(backwards)
        with self._as_written():
            cell = reference(self.cell.type, {**run.inputs, **self._operands}, self.place.attributes, recording)
            order = Order(reverse, lens, cell.time)
            x = {n: order.loop(run.inputs[n]) for n in SEQUENCES if n in run.inputs}
            cell.advance(0)
            in_front = [t.each(order.loop) for t in tensors.of(recording.sequences)]
        size = cell.time if reverse and lens is not None else _chunk_steps(cell)
        pieces = []
        states = self._initial(run, cell)
        while cell.done < cell.time:
            first = cell.done
            with self._as_written():
                cell.advance(size)
                made = list(tensors.of(recording.steps()))
            last = cell.done
            part = slice(cell.time - last, cell.time - first) if backwards else slice(first, last)
            piece = {t.name: t for t in (*(t.at(part) for t in in_front), *made)}
            if self._native is not None:
                self._check_steps(part.start, {n: v[part] for n, v in x.items()}, piece, states, backwards)
                states = self._native.left(piece, backwards)
            if backwards:
                pieces.append((part.start, piece))
            else:
                yield part.start, cell.time, order.natural(part.start, piece)
        for first, piece in reversed(pieces):
            yield first, cell.time, order.natural(first, piece)
        check_outputs(self.cell, run.outputs, cell.run())

    @property
    def weights(self) -> dict[str, Array]:
        """Quantized W and R, unpacked, and the other real parameters."""
        scales = self._tensors.weight_scales if self._tensors is not None else {}
        return parameters_of_operator(self.cell, self._operands, scales)

    @contextlib.contextmanager
    def _as_written(self) -> Iterator[None]:
        """Turns errors from an incomplete description into a CompileError: the file was changed."""
        try:
            with np.errstate(invalid="ignore"):  # values beyond the length of a row may be anything
                yield
        except (KeyError, IndexError, ValueError) as error:
            raise CompileError(
                f"Cell {self.cell.name!r}: its description and its constants do not fit together ({error}).",
                supported="cells as this version of rnnqc writes them",
                action="lower the float model again",
            ) from error

    def _initial(self, run: Run, reference: ReferenceCell) -> dict[str, Array]:
        """Returns the initial states of the loop, `[B,H]`."""
        shape = (reference.batch, reference.hidden)
        names = ("initial_h", "initial_c")
        return {n: run.inputs.get(n, np.zeros(shape, np.float32)).reshape(shape) for n in names}

    def _check_steps(
        self,
        first: int,
        x: Mapping[str, Array],
        tensors: Mapping[str, Tensor],
        states: Mapping[str, Array],
        backwards: bool,
    ) -> None:
        """Compares the native kernel with the reference in each step."""
        assert self._native is not None
        found = self._native.first_difference(x, tensors, states, backwards)
        if found is not None:
            step, name = found
            raise DeviationError(
                f"Cell {self.cell.name!r}: the native library makes other bits than the specification, "
                f"first in step {first + step} of the loop, tensor {name!r}. "
                "Resolution: report it, with the model and the data; --stock runs the specification."
            )

    def _prepared(self, run: Run) -> RecordedTensors:
        cell = self.cell
        if self._tensors is None:
            self.constants = {n: run.inputs[n] for n in sorted(run.inputs) if n not in DATA}
            self._operands = {n: _weights(cell, n, a) if n in ("W", "R") else a for n, a in self.constants.items()}
            with self._as_written():
                self._tensors = RecordedTensors(cell, cell.numbers, self.constants)
            if self._wants_native:
                self._native = NativeSteps(self.place, self._proto, self.constants)
        check_constants(cell, {n: run.inputs[n] for n in self._computed}, self.constants)
        return self._tensors


def _weights(cell: IntegerCell, key: str, stored: Array) -> Array:
    """Converts a cell's stored W or R to the layout that the operator takes.

    Unrolled steps of look-up arithmetic store uint8 values with an offset of 128, and W has additional rows for the
    zero points of the input.
    """
    if cell.form != "integer" or stored.dtype != np.uint8:
        return stored
    rows = cell.input_size if key == "W" else cell.hidden_size
    return (stored[:rows].astype(np.int16) - 128).astype(np.int8)


def _chunk_steps(reference: ReferenceCell) -> int:
    """Returns how many steps fit into `CHUNK_BYTES`."""
    step: int = reference.batch * reference.hidden * len(reference.type.gates) * 4 * _TENSORS_OF_A_STEP
    return max(1, CHUNK_BYTES // step)
