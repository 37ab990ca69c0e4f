"""Runs a model with the inputs and outputs of its cells brought out."""

from __future__ import annotations

import math
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime as ort
from onnx import TensorProto

from rnnqc.diagnostics import CompileError, InternalError
from rnnqc.evaluate import run_session
from rnnqc.feeds import Feeds
from rnnqc.graph_walks import blocks_of
from rnnqc.ir import dense_array
from rnnqc.passes.observe import NotObservableError, Observed, count_stacked, levels_of, with_outputs
from rnnqc.session import session
from rnnqc.tracing.program import Program

Array = npt.NDArray[Any]
_RANK = 3


@dataclass(frozen=True)
class Run:
    """One execution of one cell.

    Attributes:
        inputs: Arrays by the names that the cell's program uses; absent inputs are left out.
        outputs: The same of its outputs.
    """

    inputs: Mapping[str, Array]
    outputs: Mapping[str, Array]


class Recorder:
    """A model whose runs tell what stands inside.

    Args:
        proto: The model, whose names are unique over all graphs.
        wanted: The values of interest; none of them is a constant.
        native: Whether to run with the native library.
        optimize: Whether onnxruntime may optimize the graph.

    Raises:
        CompileError: A value is where it cannot be brought out, or onnxruntime refuses the model.
    """

    def __init__(
        self, proto: onnx.ModelProto, wanted: Sequence[Observed], native: bool, *, optimize: bool = True
    ) -> None:
        self._given = {i.name for i in proto.graph.input}
        values = list({v.value: v for v in wanted if v.value not in self._given}.values())
        exposed = onnx.ModelProto()
        exposed.CopyFrom(proto)
        self.outputs = [o.name for o in proto.graph.output]
        levels = levels_of(proto)
        try:
            self.stacked = {v.value: count_stacked(levels[v.value], equal_trips=True) for v in wanted}
            self._where = with_outputs(exposed, values, self.outputs, equal_trips=True)
        except NotObservableError as error:
            raise CompileError(
                "a cell stands in an If inside a Scan.",
                supported="cells in the main graph, in If, in Loop, and in Loop and Scan inside a Scan",
                action="unroll the Scan in the float model",
            ) from error
        self._plain, self._exposed = (session(p, native=native, options=_options(optimize)) for p in (proto, exposed))

    def run(self, feed: Feeds) -> tuple[dict[str, Array], dict[str, Any]]:
        """Runs the model once.

        Returns:
            Its outputs, and the values by name: arrays, with `stacked` axes in front that count the steps of Scans and
            what is in them, or lists of such arrays where the value is in an If or a Loop. A branch that was not taken
            makes an empty array.

        Raises:
            CompileError: The feed does not fit, or onnxruntime fails.
            InternalError: Bringing the values out changed an output of the model.
        """
        expected = run_session(self._plain, feed)
        results = run_session(self._exposed, feed, sequences=True)
        for name in self.outputs:
            if not same_bits(expected[name], results[name]):
                raise InternalError(
                    f"Output {name!r} has other bits when the cells' values are outputs, too: onnxruntime "
                    "optimizes the float operators around the cells differently."
                )
        known = {name: results[output] for name, output in self._where.items()}
        known |= {name: feed[name] for name in self._given if name in feed}
        return {name: expected[name] for name in self.outputs}, known


def _options(optimize: bool) -> ort.SessionOptions:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    if not optimize:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    return options


def same_bits(a: Any, b: Any) -> bool:
    """Whether two arrays have the same type, shape and bits."""
    left, right = np.asarray(a), np.asarray(b)
    return left.dtype == right.dtype and left.shape == right.shape and left.tobytes() == right.tobytes()


def observed_of(program: Program, stored: Container[str]) -> list[Observed]:
    """What a model has to bring out for a cell, without its constants."""
    formals = [(f, n) for f, n in [*program.inputs.items(), *program.outputs.items()] if n not in stored]
    return [Observed(program.cell.name, f, n, False, _RANK, 0, _kind(program, f)) for f, n in formals]


def runs_of(program: Program, known: Mapping[str, Any], stacked: Mapping[str, int]) -> list[Run]:
    """The runs of one cell; a value around the If, Loop or Scan that the cell is in serves all of them.

    Args:
        program: The cell.
        known: Values by name, as `Recorder.run` gives them, and the constants.
        stacked: See there.
    """
    names = [*program.inputs.values(), *program.outputs.values()]
    known = {n: apart(known[n], stacked.get(n, 0)) for n in names}
    counts = {len(known[n]) for n in names if isinstance(known[n], list)}
    if len(counts) > 1:
        raise CompileError(
            f"Cell {program.cell.name!r} takes values from loops around it that run {sorted(counts)} times.",
            supported="one If, Loop or Scan around a cell, or several whose values are made beside the cell",
            action="inline the inner loop",
        )

    def pick(name: str, k: int) -> Array:
        value = known[name]
        return np.asarray(value[k] if isinstance(value, list) else value)

    made = []
    for k in range(counts.pop() if counts else 1):
        outputs = {f: pick(n, k) for f, n in program.outputs.items()}
        if any(v.size == 0 for v in outputs.values()):
            continue  # the branch was not taken
        made.append(Run({f: pick(n, k) for f, n in program.inputs.items()}, outputs))
    return made


def apart(held: Any, axes: int) -> Any:
    """An array, or a list of arrays, with its first `axes` axes taken apart; itself for none."""
    if not axes:
        return held
    arrays = [np.asarray(a) for a in (held if isinstance(held, list) else [held])]
    return [part for a in arrays for part in a.reshape(math.prod(a.shape[:axes]), *a.shape[axes:])]


def _kind(program: Program, formal: str) -> int:
    cell = program.cell
    if formal in ("sequence_lens", cell.sequence_lens):
        return int(TensorProto.INT32)
    if formal in ("Y_codes", cell.y_codes):
        return int(TensorProto.UINT8)
    codes = cell.integer.get("x_mode") == "codes"
    return int(TensorProto.UINT8 if codes and formal in ("X", cell.x) else TensorProto.FLOAT)


def stored_arrays(proto: onnx.ModelProto) -> dict[str, Array]:
    """Initializers and values of Constant nodes, of all graphs."""
    found: dict[str, Array] = {}
    for graph in blocks_of([proto.graph]):
        assert isinstance(graph, onnx.GraphProto)
        found.update({t.name: onnx.numpy_helper.to_array(t) for t in graph.initializer})
        found.update({t.values.name: dense_array(t) for t in graph.sparse_initializer})
        for node in (n for n in graph.node if n.op_type == "Constant"):
            found.update((node.output[0], onnx.numpy_helper.to_array(a.t)) for a in node.attribute if a.name == "value")
    return found
