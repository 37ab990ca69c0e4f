"""Traces a cell in form qcdq: evaluates its nodes again on the inputs that it had in a run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

from rnnqc.tracing.boundaries import Run
from rnnqc.tracing.checks import check_constants, check_outputs
from rnnqc.tracing.order import Order
from rnnqc.tracing.parameters import parameters_of_nodes
from rnnqc.tracing.places import Place
from rnnqc.tracing.qcdq import QcdqReader
from rnnqc.tracing.qcdq_nodes import QcdqNodes
from rnnqc.tracing.tensors import Tensor

Array = npt.NDArray[Any]


class TracedQcdq:
    """Traces one cell.

    Args:
        place: Its location in the model.
        proto: The model.
        stored: The constants of the model, by name.
    """

    def __init__(self, place: Place, proto: onnx.ModelProto, stored: Mapping[str, Array]) -> None:
        self.cell = cell = place.cell
        self._data = [n for n in (cell.x, cell.sequence_lens, cell.initial_h, cell.initial_c) if n]
        self._computed = set(place.inputs) - set(stored) - set(self._data)
        self._reader = QcdqReader(cell)
        self._nodes = QcdqNodes(place, proto, self._reader.before, self._reader.entering)
        self._all: dict[str, Array] | None = None
        self.constants: dict[str, Array] = {}

    def steps(self, run: Run) -> Iterator[tuple[int, int, dict[str, Tensor]]]:
        """Yields the first step, the number of steps of the run, and the tensors of all steps."""
        cell = self.cell
        if self._all is None:
            self._all = {n: v for n, v in run.inputs.items() if n not in self._data}
        check_constants(cell, {n: run.inputs[n] for n in self._computed}, self._all)
        made = self._nodes.run({n: run.inputs[n] for n in self._data if n in run.inputs}, self._all)
        x = run.inputs[cell.x]
        order = Order(cell.reverse, run.inputs.get(cell.sequence_lens or ""), x.shape[0])
        with np.errstate(invalid="ignore"):  # values beyond the length of a row may be anything
            tensors = [
                *self._reader.in_front(made.before, order.loop(x)),
                *self._reader.steps(made.steps, made.after, self._nodes.backwards),
            ]
        yield 0, x.shape[0], order.natural(0, {t.name: t for t in tensors})
        check_outputs(cell, run.outputs, made.outputs)

    @property
    def weights(self) -> dict[str, Array]:
        """Quantized W and R, unpacked, and the other parameters; empty if the cell did not run."""
        return {} if self._all is None else parameters_of_nodes(self.cell, self._nodes, self._all)
