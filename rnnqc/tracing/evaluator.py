"""Evaluates the specification of a cell in onnxruntime, with every value of its loop's body."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

from rnnqc.evaluation.evaluate import make_session, run_session
from rnnqc.passes.cells.observe import add_scan_output
from rnnqc.proto.graph_walks import needed, reads
from rnnqc.tracing.program import Program

Array = npt.NDArray[Any]
Arrays = dict[str, Array]
CHUNK_BYTES = 2**24
_TENSORS_OF_A_STEP = 40


@dataclass(frozen=True)
class Chunk:
    """Some consecutive elements of the sequence.

    Attributes:
        part: Which ones.
        steps: The values of the body `[n,...]`, by their plain names, in the order of the sequence.
        after: Those of the step that would follow in the order of the loop, `[1,...]`; only what depends on the states
            alone means something.
    """

    part: slice
    steps: Arrays
    after: Arrays


@dataclass(frozen=True)
class Evaluation:
    """A run of a cell.

    Attributes:
        before: Values in front of the loop, by their plain names; those of a sequence are in the order of the loop's
            sequences.
        chunks: To be taken once.
        loop: The outputs of the loop, complete when the chunks were taken.
    """

    before: Arrays
    chunks: Iterator[Chunk]
    loop: Arrays


class Evaluator:
    """Runs one cell.

    Args:
        program: The cell.
        constants: Arrays of its inputs that are the same in every run, by the names of the program.
        runtime: Names of the inputs that data decides.
        wanted: Plain names of the values in front of the loop that matter.
        whole: Whether never to cut the sequence into chunks.
    """

    def __init__(
        self,
        program: Program,
        constants: Mapping[str, Array],
        runtime: Iterable[str],
        wanted: Iterable[str],
        *,
        whole: bool,
    ) -> None:
        self.program = program
        self.whole = whole
        # In form qcdq sums of floats depend on what onnxruntime fuses.
        self._optimize = program.cell.form != "qcdq"
        self._constants = dict(constants)
        self._runtime = set(runtime)
        in_front = program.named(prelude=True)
        self._before = {short: in_front[short] for short in wanted if short in in_front}
        body = program.named(prelude=False)
        self._seen = {short: f"seen/{k}" for k, short in enumerate(body)}
        self._scan = _instrumented(program, {body[short]: seen for short, seen in self._seen.items()})
        self._loop_scan = onnx.NodeProto()
        self._loop_scan.CopyFrom(self._scan)
        del self._loop_scan.input[:]
        self._loop_scan.input.extend(f"loop/{k}" for k in range(len(program.scan.input)))
        self._sessions: dict[str, Any] = {}
        self._variable = program.depends(program.captured, self._runtime) | (self._runtime & set(program.captured))

    def run(self, inputs: Mapping[str, Array]) -> Evaluation:
        """Runs the cell in front of its loop, and prepares the chunks."""
        program = self.program
        given = {n: np.asarray(v) for n, v in inputs.items() if n in self._runtime}
        names = [*program.scan.input, *program.captured, *self._before.values()]
        before = self._evaluate("before", program.before, given, names)
        loop: Arrays = {}
        plain = {short: before[name] for short, name in self._before.items()}
        return Evaluation(plain, self._chunks(given, before, loop), loop)

    def results(self, inputs: Mapping[str, Array], loop: Mapping[str, Array]) -> Arrays:
        """The cell's outputs, by the names of the program, from its inputs and the outputs of its loop."""
        program = self.program
        rest = [n for n in program.nodes if n is not program.scan]
        given = {n: np.asarray(v) for n, v in inputs.items() if n in self._runtime} | dict(loop)
        names = list(program.outputs)
        return self._evaluate("after", needed(rest, names), given, names)

    def _chunks(self, given: Arrays, before: Arrays, outputs: Arrays) -> Iterator[Chunk]:
        program, count = self.program, self.program.states
        states = [before[n] for n in program.scan.input[:count]]
        sequences = [before[n] for n in program.scan.input[count:]]
        time = sequences[0].shape[0]
        size = time if self.whole else _chunk_steps(sequences)
        carried, scanned = list(program.scan.output[:count]), list(program.scan.output[count:])
        collected: dict[str, list[Array]] = {n: [] for n in scanned if n}
        starts = list(range(0, time, size))
        for first in reversed(starts) if program.backwards else starts:
            part = slice(first, min(first + size, time))
            if self.whole:
                made = self._evaluate("whole", [*program.before, self._scan], given, list(self._scan.output))
            else:
                made = self._loop(before, states, [s[part] for s in sequences])
            states = [made[n] for n in self._scan.output[:count]]
            for name, values in collected.items():
                values.append(made[name])
            after = self._loop(before, states, [np.zeros_like(s[:1]) for s in sequences])
            yield Chunk(part, *({s: m[n] for s, n in self._seen.items()} for m in (made, after)))
        outputs.update({n: v for n, v in zip(carried, states, strict=True) if n})
        outputs.update({n: np.concatenate(v[::-1] if program.backwards else v) for n, v in collected.items()})

    def _loop(self, before: Arrays, states: Sequence[Array], sequences: Sequence[Array]) -> Arrays:
        given = {f"loop/{k}": v for k, v in enumerate([*states, *sequences])}
        given |= {n: before[n] for n in self.program.captured}
        return self._evaluate("loop", [self._loop_scan], given, list(self._scan.output))

    def _evaluate(
        self, key: str, nodes: Sequence[onnx.NodeProto], given: Mapping[str, Array], names: Iterable[str]
    ) -> Arrays:
        """Values `names` made by `nodes`, or given; one session for each key."""
        made = {o for n in nodes for o in n.output}
        names = list(dict.fromkeys(n for n in names if n))
        known = {**self._constants, **given}
        results = {n: known[n] for n in names if n not in made}
        wanted = [n for n in names if n in made]
        if not wanted:
            return results
        if key not in self._sessions:
            self._sessions[key] = make_session(self._model(nodes, known, wanted), optimize=self._optimize)
        return results | run_session(self._sessions[key], given)

    def _model(
        self, nodes: Sequence[onnx.NodeProto], known: Mapping[str, Array], wanted: Sequence[str]
    ) -> onnx.ModelProto:
        graph = onnx.GraphProto(name=self.program.cell.name or "cell")
        graph.node.extend(nodes)
        made = {o for n in nodes for o in n.output}
        for name in sorted({i for n in nodes for i in reads(n)} - made):
            array = known[name]
            # Products have to meet constant weights: only such ones are packed, and exact on every processor.
            if name in self._constants or (name in self.program.captured and name not in self._variable):
                graph.initializer.append(onnx.numpy_helper.from_array(array, name))
            else:
                kind = onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
                graph.input.append(onnx.helper.make_tensor_value_info(name, kind, [None] * array.ndim))
        graph.output.extend(onnx.ValueInfoProto(name=n) for n in wanted)
        model = onnx.ModelProto(ir_version=self.program.ir_version, graph=graph)
        model.opset_import.add(domain="", version=self.program.opset)
        return model


def _chunk_steps(sequences: Sequence[Array]) -> int:
    """How many steps fit into `CHUNK_BYTES`."""
    step: int = sum(s[0].nbytes for s in sequences) * _TENSORS_OF_A_STEP // 4
    return max(1, CHUNK_BYTES // max(1, step))


def _instrumented(program: Program, values: Mapping[str, str]) -> onnx.NodeProto:
    """The loop with values of its body as further outputs, in the order of the sequence."""
    scan = onnx.NodeProto()
    scan.CopyFrom(program.scan)
    # Absent outputs keep their place: the states come first.
    for k, name in enumerate(scan.output):
        if not name:
            scan.output[k] = f"unused/{k}"
    for name, seen in values.items():
        add_scan_output(scan, name, seen, backwards=program.backwards)
    return scan
