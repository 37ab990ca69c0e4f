"""Traces a model: records the tensors of its cells in each time step, with or without the native library."""

from __future__ import annotations

import fnmatch
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy.typing as npt
import onnx

from rnnqc.data.given_data import Data
from rnnqc.data.state_pairs import state_pairs
from rnnqc.data.streaming import Piece, calls_of, run_calls
from rnnqc.errors import CompileError, UsageError
from rnnqc.ir import Model, with_released_cells
from rnnqc.lowering.runnable import runnable
from rnnqc.passes.cells.observe import levels_of
from rnnqc.passes.weight_only.quantize_weights import stored_weights_of_nodes
from rnnqc.proto.given import Given, as_given, proto_of
from rnnqc.tracing.boundaries import Recorder, observed_of, runs_of, stored_arrays
from rnnqc.tracing.checks import description_of
from rnnqc.tracing.custom_cells import QuantizedCustomCell, Runs, quantized_custom_cells, with_loops
from rnnqc.tracing.float_model import with_float_cells
from rnnqc.tracing.places import places_of_cells
from rnnqc.tracing.rounds import Made
from rnnqc.tracing.tensors import Tensor
from rnnqc.tracing.traced_cell import TracedCell
from rnnqc.tracing.traced_custom_cell import TracedCustomCell
from rnnqc.tracing.traced_qcdq import TracedQcdq

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class CellSteps:
    """Some consecutive time steps of one cell.

    Attributes:
        cell: Its name.
        call: Number of the call of the model.
        run: Number of the run of the cell, over all calls; one call has several where the cell is in a Loop.
        first: Number of the first step in the run.
        length: Number of steps of the run.
        tensors: By name, `[n,B,K]`, in time order whatever the direction.
        trips: The iteration number of each Loop and Scan around the cell in this run, from outside to inside.
        absent: By tensor name, the steps that do not compute the tensor, because it is constant or unused there; it is
            0 in them.
    """

    cell: str
    call: int
    run: int
    first: int
    length: int
    tensors: Mapping[str, Tensor]
    trips: tuple[int, ...] = ()
    absent: Mapping[str, Sequence[int]] = field(default_factory=dict)


class Tracer:
    """A lowered or float model that can be traced.

    Args:
        model: A path, a ModelProto, or what `rnnqc.lower` returns. A model exported by Brevitas is lowered first, as
            `rnnqc.session` does. A float model is traced as it is, without quantized values.
        native: Whether the model runs with the native library.
        cells: Patterns of the names of the cells of interest.

    Raises:
        CompileError: The model cannot be read or has no recurrent layer, or no name matches.
    """

    def __init__(self, model: Given, *, native: bool = True, cells: Sequence[str] = ("*",)) -> None:
        given = as_given(model)
        loaded, found = _lowered(proto_of(given), given)
        names = [n for n, c in loaded.cells.items() if c.form != "float"] + list(found)
        chosen = [n for n in names if any(fnmatch.fnmatchcase(n, p) for p in cells)]
        if not chosen:
            raise UsageError(
                f"--cells {' '.join(cells)}: no cell has such a name.",
                supported=", ".join(sorted(names)),
                action="name a cell, or leave --cells out",
            )
        self.native = native
        self.proto = loaded.proto
        self._stored = stored_arrays(self.proto)
        levels = levels_of(self.proto)
        self._places = places_of_cells(loaded, {n: loaded.cells[n] for n in chosen if n in loaded.cells}, levels)
        self._runs = {n: Runs(r, levels, self._stored) for n, r in found.items() if n in chosen}
        self._traced: dict[str, TracedCell | TracedQcdq | TracedCustomCell] = {}
        for name, place in self._places.items():
            if place.cell.form == "qcdq":
                self._traced[name] = TracedQcdq(place, self.proto, self._stored)
            else:
                self._traced[name] = TracedCell(place, self.proto, self._stored, native)
        self._traced |= {n: TracedCustomCell(found[n], r) for n, r in self._runs.items()}
        wanted = [v for p in self._places.values() for v in observed_of(p, self._stored)]
        wanted += [v for r in self._runs.values() for v in r.observed()]
        # onnxruntime fuses quantizers with neighbouring nodes unless their values are outputs, and fusion changes
        # float sums.
        joined = any(r.cell.record["form"] != "integer" for r in self._runs.values())
        joined |= any(p.cell.form == "qcdq" for p in self._places.values())
        self._recorder = Recorder(self.proto, wanted, native, optimize=not joined)

    @property
    def names(self) -> list[str]:
        """The names of the cells: LSTMs, GRUs and RNNs in the order of the model, then custom cells."""
        return list(self._traced)

    def constants(self, cell: str) -> dict[str, Array]:
        """Returns the constants of a cell, by the names of its operator's inputs where it has an integer form.

        The constants of a custom cell are keyed by the names of their quantization points.
        """
        return self._traced[cell].constants

    def weights(self, cell: str) -> dict[str, Array]:
        """Returns the unpacked quantized weights of a cell and its other parameters; empty if the cell did not run."""
        return self._traced[cell].weights

    def describe(self, cell: str) -> dict[str, Any]:
        """Returns the description of a cell for an index: operator, form, direction, arithmetic and sizes."""
        traced = self._traced[cell]
        return traced.description if isinstance(traced, TracedCustomCell) else description_of(self._places[cell].cell)

    def trace(
        self,
        feeds: Data,
        state: Mapping[str, str] | Iterable[str] | None = None,
    ) -> Iterator[CellSteps]:
        """Runs the model on data.

        Args:
            feeds: Data (see `rnnqc.lower`); the first feed is read and checked at once.
            state: States that go from call to call, `IN:OUT`.

        Returns:
            For each call, for each cell in the order of the model, its steps in order, in pieces that fit into memory.

        Raises:
            CompileError: The data does not fit, or onnxruntime fails.
            DeviationError: A cell's outputs differ from those that its specification computes from the same inputs.
            InternalError: Exposing the values changed an output of the model.
        """
        carried = state_pairs(state, self.proto)
        calls = calls_of(feeds, self.proto, carried)
        first = next(calls)
        return self._traced_calls(itertools.chain([first], calls), carried)

    def _traced_calls(self, calls: Iterable[Piece], carried: Mapping[str, str]) -> Iterator[CellSteps]:
        recorded: list[dict[str, Made]] = []

        def run(feed: Any) -> dict[str, Array]:
            outputs, values = self._recorder.run(feed)
            recorded.append(values)
            return outputs

        counts = dict.fromkeys(self._traced, 0)
        stored: dict[str, Made] = {n: {(): a} for n, a in self._stored.items()}
        for call, _ in enumerate(run_calls(run, calls, carried)):
            known = stored | recorded.pop()
            for name, traced in self._traced.items():
                if isinstance(traced, TracedCustomCell):
                    found = self._runs[name].of(known)
                    pieces = ((r.trips, traced.steps(r), traced.absent(r)) for r in found)
                else:
                    made = runs_of(self._places[name], known)
                    pieces = ((r.trips, traced.steps(r), {}) for r in made)
                for trips, steps, absent in pieces:
                    for first, length, tensors in steps:
                        yield CellSteps(name, call, counts[name], first, length, tensors, trips, absent)
                    counts[name] += 1


def _lowered(proto: onnx.ModelProto, source: Given) -> tuple[Model, dict[str, QuantizedCustomCell]]:
    """Loads the model in traceable form, and finds its custom cells."""
    loaded = Model.load(with_released_cells(with_loops(proto)))
    found = quantized_custom_cells(loaded.proto)
    if found or any(c.form != "float" for c in loaded.cells.values()):
        return loaded, found
    if stored_weights_of_nodes(loaded):
        raise CompileError(
            "The model has no lowered cell: its recipe or form stores the weights alone in fewer bits, and "
            "operators of ONNX or onnxruntime compute, without quantized values inside.",
            supported="recipes of cells, such as int8",
            action="lower the float model with such a recipe: rnnqc lower MODEL -o LOWERED.onnx --recipe int8",
        )
    exported = runnable(source)
    if exported is not None:
        loaded = Model.load(exported)
    if not any(c.form != "float" for c in loaded.cells.values()):
        loaded = Model.load(with_released_cells(with_float_cells(loaded)))
    return loaded, quantized_custom_cells(loaded.proto)
