"""Runs the nodes of a cell in form qcdq in onnxruntime, with every value of its loop body as an output."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt
import onnx

from rnnqc.errors import CompileError
from rnnqc.evaluation.evaluate import make_session, run_session
from rnnqc.passes.cells.observe import add_scan_output
from rnnqc.passes.graph.point_names import plain_name
from rnnqc.proto.graph_walks import captured, needed, reads
from rnnqc.tracing.places import Place

Array = npt.NDArray[Any]
Arrays = dict[str, Array]


@dataclass(frozen=True)
class Evaluation:
    """A run of a cell; values have their names without path and number.

    Attributes:
        before: Values before the loop; sequences are in the order of the loop's sequences.
        steps: Values of the loop's body `[T,...]`, in the same order.
        after: Values `[1,...]` of one further step, as far as they depend on its states alone.
        outputs: The cell's outputs.
    """

    before: Arrays
    steps: Arrays
    after: Arrays
    outputs: Arrays


class QcdqNodes:
    """Runs one cell without onnxruntime's optimizations, because its fusions change float sums.

    Args:
        place: The cell.
        proto: The model.
        wanted: Names of the values of interest before the loop.
        entering: Names of values that depend on the states alone; they are also computed for one step after the last.

    Raises:
        CompileError: There is no loop, or other subgraphs beside it.
    """

    def __init__(self, place: Place, proto: onnx.ModelProto, wanted: Iterable[str], entering: Iterable[str]) -> None:
        cell, nodes = place.cell, place.nodes
        scans = [n for n in nodes if n.op_type == "Scan"]
        if len(scans) != 1 or any(a.HasField("g") for n in nodes if n is not scans[0] for a in n.attribute):
            raise CompileError(
                f"Cell {cell.name!r} has no loop over time of its own: it was unrolled, or another tool changed it.",
                supported="cells in the forms that `rnnqc lower` writes; form qcdq without --unroll",
                action="lower the float model again, without --unroll; the values are the same",
            )
        (scan,) = scans
        attributes = {a.name: onnx.helper.get_attribute_value(a) for a in scan.attribute}
        body: onnx.GraphProto = attributes["body"]
        states = len(scan.input) - attributes["num_scan_inputs"]
        self.nodes, self.backwards = nodes, any(attributes.get("scan_input_directions", []))
        in_front = _by_plain_name(cell.name, (o for n in nodes if n is not scan for o in n.output))
        in_steps = _by_plain_name(cell.name, (*(v.name for v in body.input), *(o for n in body.node for o in n.output)))
        self.in_front = in_front
        self._before = {short: in_front[short] for short in wanted if short in in_front}
        self._after = {short: in_steps[short] for short in entering if short in in_steps}
        self._after_nodes = needed(body.node, self._after.values())
        self._captured = captured(body) & {i for n in self._after_nodes for i in reads(n)}
        copy = onnx.NodeProto()
        copy.CopyFrom(scan)
        copy.output[:] = [name or f"unused/{k}" for k, name in enumerate(scan.output)]
        self._seen = {short: f"seen/{k}" for k, short in enumerate(in_steps)}
        for short, seen in self._seen.items():
            add_scan_output(copy, in_steps[short], seen, backwards=self.backwards)
        self._states = dict(zip((v.name for v in body.input[:states]), copy.output[:states], strict=True))
        self._whole = [copy if n is scan else n for n in nodes]
        self._outputs = place.outputs
        self._proto = proto
        self._sessions: dict[str, Any] = {}

    def run(self, inputs: Arrays, constants: Arrays) -> Evaluation:
        """Runs the cell on its inputs and constants, by their names in the model."""
        names = [*self._before.values(), *self._seen.values(), *self._states.values(), *self._outputs.values()]
        made = self._evaluate("whole", self._whole, inputs, constants, [*names, *self._captured])
        entering = {formal: made[name] for formal, name in self._states.items()}
        around = {name: made[name] for name in self._captured}
        after = self._evaluate("after", self._after_nodes, entering | around, {}, self._after.values())
        return Evaluation(
            {short: made[name] for short, name in self._before.items()},
            {short: made[name] for short, name in self._seen.items()},
            {short: after[name][None] for short, name in self._after.items()},
            {formal: made[name] for formal, name in self._outputs.items()},
        )

    def _evaluate(
        self, key: str, nodes: Sequence[onnx.NodeProto], given: Arrays, constants: Arrays, names: Iterable[str]
    ) -> Arrays:
        """Returns the values `names`, computed by `nodes` or given. Each `key` has one session."""
        made = {o for n in nodes for o in n.output}
        known = {**constants, **given}
        results = {n: known[n] for n in names if n not in made}
        wanted = list(dict.fromkeys(n for n in names if n in made))
        if not wanted:
            return results
        if key not in self._sessions:
            graph = onnx.GraphProto(name=key, node=nodes)
            for name in sorted({i for n in nodes for i in reads(n)} - made):
                if name in constants:
                    graph.initializer.append(onnx.numpy_helper.from_array(constants[name], name))
                    continue
                kind = onnx.helper.np_dtype_to_tensor_dtype(known[name].dtype)
                graph.input.append(onnx.helper.make_tensor_value_info(name, kind, [None] * known[name].ndim))
            graph.output.extend(onnx.ValueInfoProto(name=n) for n in wanted)
            model = onnx.ModelProto(ir_version=self._proto.ir_version, graph=graph)
            model.opset_import.extend(self._proto.opset_import)
            self._sessions[key] = make_session(model, optimize=False)
        return results | run_session(self._sessions[key], given)


def _by_plain_name(cell: str, names: Iterable[str]) -> dict[str, str]:
    """Maps names without path and number to full names; of duplicates, the first."""
    found: dict[str, str] = {}
    for name in names:
        if name:
            found.setdefault(plain_name(name, cell), name)
    return found
