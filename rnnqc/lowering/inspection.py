"""Lists the recurrent layers of a model, how lowering would handle each one, and the float weights around them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rnnqc.cells.stages import points_of
from rnnqc.errors import Outcome, Remark, located
from rnnqc.evaluation.invalid_model_errors import refusing_invalid_models
from rnnqc.ir import Model
from rnnqc.lowering.executable import brings_its_own
from rnnqc.lowering.options import Given
from rnnqc.lowering.rest_report import RestReport, rest_report
from rnnqc.passes import DecomposeLstm, PassManager, ReadQuantLstmCell
from rnnqc.passes.analysis.custom_products import custom_cells
from rnnqc.passes.analysis.deciding_inputs import deciding_inputs
from rnnqc.passes.analysis.elementwise_recurrences import ElementwiseRecurrence, elementwise_recurrences
from rnnqc.passes.analysis.find_recurrent_nodes import RecurrentNode, lowered_nodes, recurrent_nodes
from rnnqc.passes.analysis.rest_weights import rest_weights
from rnnqc.passes.graph.constant_outputs import independent_outputs
from rnnqc.passes.graph.training_mode import training_dropouts
from rnnqc.passes.pipeline import normal_form


@dataclass(frozen=True)
class Inspection:
    """The recurrent layers of a model, and the rest.

    Attributes:
        opset: Operator set of the model.
        nodes: Its recurrent nodes in normal form, and those that are lowered already.
        cells: By the path of a node the names of the cells that it becomes.
        notes: Remarks by the path of the node that they are about.
        constant_outputs: Outputs that no input influences.
        dropouts: Paths of Dropout nodes in training mode.
        points: The formats of a lowered model, by point.
        rest: The float weights outside the recurrent layers.
        bytes: Size of the model, external data included.
        elementwise: Recurrences without matrices, which stay float.
        deciding: By name of each input of one number that decides an If, the numbers it is compared to.
    """

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


@refusing_invalid_models
def inspect_layers(model: Given) -> Inspection:
    """Finds the recurrent layers of a model.

    Args:
        model: A path or a ModelProto.

    Raises:
        CompileError: It is not a valid model.
    """
    loaded = Model.load(model)
    with located(loaded.source):
        opset, constant_outputs, earlier = loaded.opset, independent_outputs(loaded), lowered_nodes(loaded)
        dropouts, deciding, points = training_dropouts(loaded), deciding_inputs(loaded), _points(loaded)
        PassManager(normal_form(keep_codes=brings_its_own(loaded))).run(loaded)
        present, elementwise = recurrent_nodes(loaded), elementwise_recurrences(loaded)
        remarks = [*ReadQuantLstmCell()(loaded).remarks, *DecomposeLstm()(loaded).remarks]
    refused = {r.node: r for r in remarks if r.outcome is Outcome.FLOAT}
    nodes = [n.refused(refused[n.path]) if n.path in refused and not n.form else n for n in present] + earlier
    cells: dict[str, list[str]] = {}
    for cell in loaded.cells.values():
        cells.setdefault(cell.node, []).append(cell.name)
    notes: dict[str, list[Remark]] = {}
    for remark in remarks:
        if remark.outcome is Outcome.NOTE and remark.action:
            notes.setdefault(remark.node, []).append(remark)
    weights = rest_weights(loaded)
    rest = rest_report(weights, weights)
    return Inspection(
        opset, nodes, cells, notes, constant_outputs, dropouts, points, rest, loaded.size, elementwise, deciding
    )


def _points(model: Model) -> dict[str, Mapping[str, Any]]:
    """The formats that a lowered model says its points have; integer forms hold scales of channels apart."""
    found = {f"{c.name}.{p}": dict(s) for c in model.cells.values() for p, s in points_of(c).items()}
    others = [(r["name"], r.get("formats", {})) for r in custom_cells(model).values()]
    return found | {f"{name}.{p}": s for name, formats in others for p, s in formats.items()}
