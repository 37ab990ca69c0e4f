"""Lists the recurrent layers of a model, how lowering would handle each, and the float weights around them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rnnqc.cells.forms import FUSED, INTEGER
from rnnqc.cells.stages import points_of
from rnnqc.codes import Code, Told, all_told, told
from rnnqc.data.binding import bound_model, bound_values
from rnnqc.data.declared_shapes import Declared
from rnnqc.data.feeds import true_inputs
from rnnqc.data.state_hints import hinted_states, options_of_states
from rnnqc.errors import Outcome, Remark, explained, located
from rnnqc.evaluation.invalid_model_errors import refusing_invalid_models
from rnnqc.formats.format import Format
from rnnqc.formats.quantized_outputs import as_dicts, read_outputs
from rnnqc.ir import Model
from rnnqc.layers.layer_hints import layer_hints
from rnnqc.lowering.executable import NOT_KEPT, brings_its_own
from rnnqc.lowering.reports.rest_report import RestReport, rest_report
from rnnqc.lowering.reports.stock_speed import slower_without_library
from rnnqc.measure.time_axes import fixed_lengths
from rnnqc.passes import DecomposeLstm, PassManager, ReadQuantLstmCell
from rnnqc.passes.analysis.custom_products import custom_cells
from rnnqc.passes.analysis.deciding_inputs import deciding_inputs, told_of_deciding
from rnnqc.passes.analysis.elementwise_recurrences import ElementwiseRecurrence, elementwise_recurrences
from rnnqc.passes.analysis.exported_weights import exported_weights
from rnnqc.passes.analysis.find_recurrent_nodes import RecurrentNode, lowered_nodes, recurrent_nodes
from rnnqc.passes.analysis.released_cells import WRITTEN_OUT, released_cells
from rnnqc.passes.analysis.rest_weights import rest_weights
from rnnqc.passes.analysis.rows_of_layers import dimensions_to_bind
from rnnqc.passes.graph.constant_outputs import independent_outputs, warning_of
from rnnqc.passes.graph.nodes.quant_operators import CELL_OP
from rnnqc.passes.graph.training_mode import training_dropouts, training_warning
from rnnqc.passes.pipeline import normal_form
from rnnqc.proto.given import Given, as_given, proto_of
from rnnqc.results import Result

VERDICTS = {"lowered": "will be lowered", "float": "stays float", "quantized": "stays as it is", "done": "done"}
"""How lowering treats a node, by its status; "done" means already lowered."""


@dataclass(frozen=True, repr=False)
class Inspection(Result):
    """The recurrent layers of a model, and the rest.

    Attributes:
        model: The model's name.
        opset: Operator set of the model.
        nodes: Its recurrent nodes in normal form, and those that are already lowered.
        cells: The names of the cells that a node becomes, by its path.
        notes: Remarks by the path of the node that they are about.
        constant_outputs: Outputs that no input influences.
        dropouts: Paths of Dropout nodes in training mode.
        points: The formats of a lowered model, by point.
        rest: The float weights outside the recurrent layers.
        bytes: Size of the model, external data included.
        elementwise: Recurrences without matrices, which stay float.
        deciding: For each scalar input that decides an If, the numbers it is compared to.
        warnings: Warnings to read before lowering.
        states: Outputs by the input that they appear to become in the next call of a stream.
        quantized_outputs: The formats of outputs that are quantized values, by name.
        inputs: What the model declares of its inputs.
        outputs: The same of its outputs.
    """

    model: str
    opset: int
    nodes: Sequence[RecurrentNode]
    cells: Mapping[str, Sequence[str]]
    notes: Mapping[str, Sequence[Remark]]
    constant_outputs: Sequence[str]
    dropouts: Sequence[str]
    points: Mapping[str, Mapping[str, Any]]
    rest: RestReport
    bytes: int
    elementwise: Sequence[ElementwiseRecurrence]
    deciding: Mapping[str, Sequence[int]]
    warnings: Sequence[Told]
    states: Mapping[str, str]
    quantized_outputs: Mapping[str, Format]
    inputs: Sequence[Declared]
    outputs: Sequence[Declared]

    @property
    def slow_stock(self) -> str:
        """The note of a lowering on speed without the native library."""
        return slower_without_library(n for n in self.nodes if n.status == "lowered" or n.form in (FUSED, INTEGER))

    @property
    def headline(self) -> str:
        """The number of layers."""
        return f"{self.model}: operator set {self.opset}, {len(self.nodes)} recurrent node(s)"

    @property
    def hints(self) -> list[str]:
        """Useful facts about the model, with the options to use."""
        found = told_of_deciding(self.deciding)
        if self.states:
            options = options_of_states(self.states)
            found.append(f"carries states from call to call; where data is the calls of a stream: {options}")
        return found + ([self.slow_stock] if self.slow_stock else [])

    @property
    def messages(self) -> list[Told]:
        """The warnings."""
        return list(self.warnings)

    @property
    def rows(self) -> list[dict[str, Any]]:
        """One row for each recurrent node."""
        sizes = ("input_size", "hidden_size", "sequence_length", "batch", "direction")
        return [
            {"node": n.path, "op": n.op, **{k: n.attributes.get(k) for k in sizes}, "weight_bytes": n.weight_bytes}
            | {"lowering": VERDICTS[n.status], "reason": explained(*n.refusal)}
            for n in self.nodes
        ]

    def to_dict(self) -> dict[str, Any]:
        """Returns the contents of `rnnqc inspect --json`."""
        nodes = [
            {
                "node": n.path, "op": n.op, "attributes": n.attributes, "weight_bytes": n.weight_bytes,
                "lowering": n.status, "form": n.form, "cells": self.cells.get(n.path, []),
                "reason": n.refusal[0], "found": n.refusal[1], "action": n.refusal[2],
                "notes": [
                    {"reason": r.reason, "found": r.found, "action": r.action} for r in self.notes.get(n.path, [])
                ],
            }
            for n in self.nodes
        ]  # fmt: skip
        rest = {**asdict(self.rest), "file_bytes": self.bytes}
        return {
            "model": self.model, "opset": self.opset, "inputs": [asdict(v) for v in self.inputs],
            "outputs": [asdict(v) for v in self.outputs], "nodes": nodes, "independent_outputs": self.constant_outputs,
            "training_dropouts": self.dropouts, "rest": rest, "slow_stock": self.slow_stock,
            "points": self.points, "deciding_inputs": self.deciding, "likely_states": dict(self.states),
            "quantized_outputs": as_dicts(self.quantized_outputs),
            "elementwise_recurrences": [{**asdict(e), "reason": e.reason} for e in self.elementwise],
        }  # fmt: skip


@refusing_invalid_models
def inspect(
    model: Given, *, dims: Mapping[str, int] | None = None, bind: Mapping[str, Any] | None = None
) -> Inspection:
    """Finds the recurrent layers of a model, what lowering would do with each, and the float weights around them.

    Examples:
        >>> import rnnqc
        >>> found = rnnqc.inspect("models/digits_lstm.onnx")
        >>> [(row["op"], row["hidden_size"], row["lowering"]) for row in found.rows]
        [('LSTM', 64, 'will be lowered')]

    Args:
        model: A path, a ModelProto, a `torch.onnx.ONNXProgram`, or what `rnnqc.lower` returns.
        dims: Symbolic dimensions that lowering binds, by name (see `rnnqc.lower`).
        bind: Values of inputs that lowering binds, by name.

    Raises:
        CompileError: It is not a valid model, or has no dimension or no input of a name.
    """
    model, dims, bind = as_given(model), dims or {}, bind or {}
    loaded = bound_model(model, dimensions_to_bind(model, dims, bind, normal_form()), bind)
    with located(loaded.source):
        opset, constant_outputs, earlier = loaded.opset, independent_outputs(loaded), lowered_nodes(loaded)
        dropouts, deciding, points = training_dropouts(loaded), deciding_inputs(loaded), _points(loaded)
        lengths, written_out, exported = fixed_lengths(loaded), released_cells(loaded), exported_weights(loaded)
        proto = loaded.proto if dims or bind else proto_of(model)
        fold = bool(dims or bound_values(loaded.metadata))
        own = brings_its_own(loaded)
        PassManager(normal_form(keep_codes=own, fold=fold)).run(loaded)
        states = hinted_states(proto, loaded.proto)
        present, elementwise = recurrent_nodes(loaded), elementwise_recurrences(loaded)
        remarks = [*ReadQuantLstmCell()(loaded).remarks, *([] if own else DecomposeLstm()(loaded).remarks)]
    refused = {r.node: r for r in remarks if r.outcome is Outcome.FLOAT}
    nodes = [n.refused(refused[n.path]) if n.path in refused and not n.form else n for n in present] + earlier
    if own:
        stays = Remark("inspect", Outcome.FLOAT, "", "", *NOT_KEPT)
        nodes = [n.refused(stays) if n.status == "lowered" and n.op != CELL_OP else n for n in nodes]
    cells: dict[str, list[str]] = {}
    for cell in loaded.cells.values():
        cells.setdefault(cell.node, []).append(cell.name)
    notes: dict[str, list[Remark]] = {}
    for remark in remarks:
        if remark.outcome is Outcome.NOTE and remark.action:
            notes.setdefault(remark.node, []).append(remark)
    for cell in written_out.values():
        notes.setdefault(cell.name, []).append(Remark("inspect", Outcome.NOTE, cell.name, cell.op, *WRITTEN_OUT))
    weights = rest_weights(loaded)
    rest = rest_report(weights, weights, exported=exported)
    warnings = [] if any(n.status != "float" for n in nodes) else all_told(Code.STEP, layer_hints(proto))
    warnings += [told(Code.CONSTANT_OUTPUT, warning_of(constant_outputs))] if constant_outputs else []
    warnings += [told(Code.TRAINING_DROPOUT, training_warning(dropouts))] if dropouts else []
    warnings += all_told(Code.FIXED_LENGTH, lengths)
    return Inspection(
        loaded.source, opset, nodes, cells, notes, constant_outputs, dropouts, points, rest, loaded.size, elementwise,
        deciding, warnings, states, read_outputs(loaded.metadata), [Declared.of(v) for v in true_inputs(proto)],
        [Declared.of(v) for v in proto.graph.output],
    )  # fmt: skip


def _points(model: Model) -> dict[str, Mapping[str, Any]]:
    """Returns the recorded formats of a lowered model's points; integer forms store per-channel scales elsewhere."""
    cells = (*model.cells.values(), *released_cells(model).values())
    found = {f"{c.name}.{p}": s.as_dict() for c in cells for p, s in points_of(c).items()}
    others = [(r["name"], r.get("formats", {})) for r in custom_cells(model).values()]
    return found | {f"{name}.{p}": s for name, formats in others for p, s in formats.items()}
