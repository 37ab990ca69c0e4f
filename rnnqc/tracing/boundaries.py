"""Runs a model with the inputs and outputs of its cells brought out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
from rnnqc.passes.observe import NotObservableError, Observed, with_outputs
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
    """A model whose runs tell what its cells read and made.

    Args:
        proto: The model, whose names are unique over all graphs.
        programs: The cells of interest.
        native: Whether to run with the native library.

    Raises:
        CompileError: A cell is where its values cannot be brought out, or onnxruntime refuses the model.
    """

    def __init__(self, proto: onnx.ModelProto, programs: Sequence[Program], native: bool) -> None:
        self.programs = programs
        self.native = native
        self.constants = _constants(proto)
        wanted: dict[str, Observed] = {}
        for program in programs:
            for formal, name in [*program.inputs.items(), *program.outputs.items()]:
                if name not in self.constants:
                    kind = _kind(program, formal)
                    wanted.setdefault(name, Observed(program.cell.name, formal, name, False, _RANK, 0, kind))
        self._given = {i.name for i in proto.graph.input}
        values = [v for v in wanted.values() if v.value not in self._given]
        exposed = onnx.ModelProto()
        exposed.CopyFrom(proto)
        self.outputs = [o.name for o in proto.graph.output]
        try:
            self._where = with_outputs(exposed, values, self.outputs)
        except NotObservableError as error:
            raise CompileError(
                "a cell stands in an If or Loop inside a Scan.",
                supported="cells in the main graph, in If and in Loop",
                action="unroll the Scan in the float model",
            ) from error
        options = ort.SessionOptions()
        options.log_severity_level = 4
        self._plain = session(proto, native=native, options=options)
        options = ort.SessionOptions()
        options.log_severity_level = 4
        self._exposed = session(exposed, native=native, options=options)

    def run(self, feed: Feeds) -> tuple[dict[str, Array], dict[str, list[Run]]]:
        """Runs the model once.

        Returns:
            Its outputs, and the runs of each cell in order: none where it is in a branch that was not taken.

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
        known |= self.constants
        runs = {p.cell.name: _runs(p, known) for p in self.programs}
        return {name: expected[name] for name in self.outputs}, runs


def same_bits(a: Any, b: Any) -> bool:
    """Whether two arrays have the same type, shape and bits."""
    left, right = np.asarray(a), np.asarray(b)
    return left.dtype == right.dtype and left.shape == right.shape and left.tobytes() == right.tobytes()


def _runs(program: Program, known: Mapping[str, Any]) -> list[Run]:
    """The runs of one cell; a value around the If or Loop that the cell is in serves all of them."""
    names = [*program.inputs.values(), *program.outputs.values()]
    counts = {len(known[n]) for n in names if isinstance(known[n], list)}
    if len(counts) > 1:
        raise CompileError(
            f"Cell {program.cell.name!r} takes values from loops around it that run {sorted(counts)} times.",
            supported="one If or Loop around a cell, or several whose values are made beside the cell",
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


def _kind(program: Program, formal: str) -> int:
    cell = program.cell
    if formal in ("sequence_lens", cell.sequence_lens):
        return int(TensorProto.INT32)
    if formal in ("Y_codes", cell.y_codes):
        return int(TensorProto.UINT8)
    codes = cell.integer.get("x_mode") == "codes"
    return int(TensorProto.UINT8 if codes and formal in ("X", cell.x) else TensorProto.FLOAT)


def _constants(proto: onnx.ModelProto) -> dict[str, Array]:
    """Initializers and values of Constant nodes, of all graphs."""
    found: dict[str, Array] = {}
    for graph in blocks_of([proto.graph]):
        assert isinstance(graph, onnx.GraphProto)
        found.update({t.name: onnx.numpy_helper.to_array(t) for t in graph.initializer})
        for node in (n for n in graph.node if n.op_type == "Constant"):
            found.update((node.output[0], onnx.numpy_helper.to_array(a.t)) for a in node.attribute if a.name == "value")
    return found
