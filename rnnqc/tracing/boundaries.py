"""Runs a model that exposes the inputs and outputs of its cells as outputs."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto

from rnnqc.cells.base import Cell
from rnnqc.cells.operator_version import ROW_CODES
from rnnqc.cells.stages import IntegerCell
from rnnqc.data.feeds import Feeds
from rnnqc.errors import CompileError, InternalError
from rnnqc.evaluation.evaluate import run_session
from rnnqc.evaluation.numerics import same_bits
from rnnqc.evaluation.session_options import quiet_options
from rnnqc.ir import dense_array
from rnnqc.passes.cells.observe import NotObservableError, Observed, with_outputs
from rnnqc.proto.graph_walks import blocks_of, named_tensors
from rnnqc.reference.operators import with_whole_x
from rnnqc.sessions import session
from rnnqc.sessions.any_model import session_of_exposed
from rnnqc.tracing.places import Place
from rnnqc.tracing.rounds import Made, Trips, at, rounds_of
from rnnqc.tracing.scans_as_loops import write_as_loops

Array = npt.NDArray[Any]
_RANK = 3


@dataclass(frozen=True)
class Run:
    """One execution of one cell.

    Attributes:
        inputs: Arrays by the names that the cell uses; absent inputs are left out, and `X` is the whole input.
        outputs: Arrays of its outputs by the same kind of names.
        trips: The iteration number of each loop around the cell.
    """

    inputs: Mapping[str, Array]
    outputs: Mapping[str, Array]
    trips: Trips = ()


class Recorder:
    """Runs a model and returns chosen inner values along with its outputs.

    Args:
        proto: The model, whose names are unique over all graphs.
        wanted: The values of interest; none of them is a constant.
        native: Whether to run with the native library.
        optimize: Whether onnxruntime may optimize the graph.

    Raises:
        CompileError: A value is where it cannot be exposed, or onnxruntime refuses the model.
    """

    def __init__(
        self, proto: onnx.ModelProto, wanted: Sequence[Observed], native: bool, *, optimize: bool = True
    ) -> None:
        self._given = {i.name for i in proto.graph.input}
        values = {v.value: v for v in wanted if v.value not in self._given}
        exposed = onnx.ModelProto()
        exposed.CopyFrom(proto)
        self._outputs = [o.name for o in proto.graph.output]
        try:
            write_as_loops(exposed, values)
            self._rounds = rounds_of(exposed, values)
            values |= {c.value: c for r in self._rounds.values() for c in r.counters}
            self._where = with_outputs(exposed, list(values.values()), self._outputs)
        except NotObservableError as error:
            raise CompileError(
                "a cell stands in an If or a Loop inside a Scan that stacks an output of unknown rank along another "
                "axis than the first.",
                supported="such Scans with outputs whose ranks are declared in their bodies",
                action="declare them, or stack along the first axis and transpose behind the Scan",
            ) from error
        self._plain = session(proto, native=native, options=quiet_options(optimize=optimize))
        self._exposed = session_of_exposed(exposed, native, quiet_options(optimize=optimize))

    def run(self, feed: Feeds) -> tuple[dict[str, Array], dict[str, Made]]:
        """Runs the model once.

        Returns:
            Its outputs, and the chosen values by name.

        Raises:
            CompileError: The feed does not fit, or onnxruntime fails.
            InternalError: Exposing the values changed an output of the model.
        """
        expected = run_session(self._plain, feed)
        results = run_session(self._exposed, feed, sequences=True)
        for name in self._outputs:
            if not same_bits(expected[name], results[name]):
                raise InternalError(
                    f"Output {name!r} has other bits when the cells' values are outputs, too: onnxruntime "
                    "optimizes the float operators around the cells differently."
                )
        known = {n: r.made(n, {v: results[o] for v, o in self._where.items()}) for n, r in self._rounds.items()}
        known |= {name: {(): np.asarray(feed[name])} for name in self._given if name in feed}
        return {name: expected[name] for name in self._outputs}, known


def observed_of(place: Place, stored: Container[str]) -> list[Observed]:
    """Returns the non-constant inputs and outputs of a cell, which the model has to expose."""
    formals = [(f, n) for f, n in [*place.inputs.items(), *place.outputs.items()] if n not in stored]
    return [Observed(place.cell.name, f, n, False, _rank(place, n), 0, _kind(place.cell, n)) for f, n in formals]


def runs_of(place: Place, known: Mapping[str, Made]) -> list[Run]:
    """Returns the runs of one cell. All runs in one iteration of an outer loop share the values of that loop.

    Args:
        place: The cell.
        known: Values by name, as `Recorder.run` returns them, and the constants.
    """
    made = []
    for trips in known[next(iter(place.outputs.values()))]:
        outputs = {f: at(known[n], trips) for f, n in place.outputs.items()}
        if all(v.size for v in outputs.values()):
            inputs = with_whole_x({f: at(known[n], trips) for f, n in place.inputs.items()})
            made.append(Run(inputs, outputs, trips))
    return made


def _rank(place: Place, name: str) -> int:
    """Returns the rank of an input or output of a cell; the rank in a fused node's layout if the cell is fused."""
    cell = place.cell
    if place.node is not None:
        return _RANK
    if name == cell.sequence_lens:
        return 1
    return 2 if name in (cell.initial_h, cell.initial_c, cell.y_h, cell.y_c) else _RANK


def _kind(cell: Cell, name: str) -> int:
    if name == cell.sequence_lens:
        return int(TensorProto.INT32)
    if isinstance(cell, IntegerCell) and name == cell.x:
        kinds = {"codes": TensorProto.UINT8, ROW_CODES: TensorProto.INT8}
        return int(kinds.get(cell.numbers.x_mode, TensorProto.FLOAT))
    is_codes = isinstance(cell, IntegerCell) and name == cell.y_codes
    return int(TensorProto.UINT8 if is_codes else TensorProto.FLOAT)


def stored_arrays(proto: onnx.ModelProto) -> dict[str, Array]:
    """Returns initializers and the values of Constant nodes, of all graphs."""
    found: dict[str, Array] = {}
    for graph in blocks_of([proto.graph]):
        assert isinstance(graph, onnx.GraphProto)
        found.update((name, onnx.numpy_helper.to_array(t)) for name, t in named_tensors(graph))
        found.update({t.values.name: dense_array(t) for t in graph.sparse_initializer})
    return found
