"""Compares hidden states of recurrent layers over time: exposes them as outputs of the float and the lowered model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper

from rnnqc.cells.types import type_of
from rnnqc.data.streaming import Outputs
from rnnqc.ir import Model, display_name
from rnnqc.measure.tally import OutputTally
from rnnqc.passes import PassManager
from rnnqc.passes.analysis.custom_points import custom_cells_of
from rnnqc.passes.analysis.observe_custom import observe_states
from rnnqc.passes.cells.observe import ANY_RANK, NotObservableError, Observed, with_outputs
from rnnqc.passes.pipeline import normal_form
from rnnqc.proto.graph_walks import blocks_of
from rnnqc.reporting.evidence import LayerEvidence
from rnnqc.reporting.outputs import curve_of
from rnnqc.search.quality import Quality
from rnnqc.search.recurrences import Recurrence

Array = npt.NDArray[Any]
BACKWARDS = "time step, from the end"
Y = "Y"
RANK = 4
"""Rank of Y, `[T,D,B,H]`."""


@dataclass(frozen=True)
class Seen:
    """An output that exposes the hidden states of a layer.

    Attributes:
        name: Name of the output: a tensor, or a sequence of tensors.
        rank: Rank of all steps of one run of the layer; of one step where `steps` is False.
        steps: Whether the first axis of a run is time.
        directions: Whether its second axis is the direction.
    """

    name: str
    rank: int = RANK
    steps: bool = True
    directions: bool = True


@dataclass(frozen=True)
class Watched:
    """A float model that exposes its recurrent layers as outputs.

    Attributes:
        proto: The model, in normal form.
        outputs: For each layer, by its path, the output that has its hidden states.
    """

    proto: onnx.ModelProto
    outputs: Mapping[str, Seen]


def watch_layers(model: onnx.ModelProto, *, fold: bool = False) -> Watched:
    """Exposes the hidden states of every recurrence as outputs; inside branches and loops, where that is possible.

    For a recurrent node these are Y, for a custom cell the first state that a matmul reads.

    Args:
        model: The float model.
        fold: Whether lowering folds values computed from known inputs (see `model_as_lowered`).
    """
    loaded = Model.load(model)
    PassManager(normal_form(fold=fold)).run(loaded)
    inside: list[tuple[str, Observed]] = []
    for other in custom_cells_of(loaded):
        value = observe_states(loaded, other)
        inside += [(other.recurrence.path, value)] if value is not None else []
    for path, graph in loaded.paths():
        for node in graph.nodes if graph is not loaded.graph else ():
            if type_of(node.op, node.domain) is not None and node.outputs and node.outputs[0].name:
                layer = f"{path}{display_name(node)}"
                inside.append((layer, Observed(layer, Y, node.outputs[0].name, False, RANK, 0)))
    proto = loaded.proto
    names = {name for block in blocks_of([proto.graph]) for n in block.node for name in (*n.input, *n.output)}
    outputs: dict[str, Seen] = {}
    fresh = []
    for node in proto.graph.node:
        if type_of(node.op_type, node.domain) is None:
            continue
        layer = node.name or next((o for o in node.output if o), "")
        if not node.output[0]:
            node.output[0] = _unused(f"{layer}/Y.all", names)
        name = _unused(f"rnnqc.report/{layer}", names)
        fresh.append(helper.make_node("Identity", [node.output[0]], [name], name))
        proto.graph.output.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, [None] * RANK))
        outputs[layer] = Seen(name)
    proto.graph.node.extend(fresh)
    for layer, observed in inside:
        brought = _brought_out(proto, observed)
        if brought is not None:
            proto, name = brought
            node = observed.point == Y
            outputs[layer] = Seen(name, observed.rank, node or observed.step, node)
    return Watched(proto, outputs)


def _brought_out(proto: onnx.ModelProto, value: Observed) -> tuple[onnx.ModelProto, str] | None:
    """Returns the model with a value of a subgraph as an added output, and its name; None if that is impossible."""
    kept = [o.name for o in proto.graph.output]
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    try:
        [name] = with_outputs(copy, [value], kept).values()
    except NotObservableError:
        return None
    made = next(n for n in copy.graph.node if name in n.output)
    untyped = copy.graph.output[-1]
    if made.op_type in ("If", "Loop"):
        untyped.type.sequence_type.elem_type.tensor_type.elem_type = TensorProto.FLOAT
    else:
        untyped.type.tensor_type.elem_type = TensorProto.FLOAT
    return copy, name


def _unused(name: str, names: set[str]) -> str:
    while name in names:
        name += "'"
    names.add(name)
    return name


def layer_evidence(
    watched: Watched, recurrences: Mapping[str, Recurrence], quality: Quality, outputs: Sequence[Outputs]
) -> list[LayerEvidence]:
    """Measures SQNR of each direction of each layer over time, in the order in which the direction runs.

    Args:
        watched: The float model that was run.
        recurrences: Recurrences of the lowered model.
        quality: Outputs of the float model.
        outputs: Outputs of the lowered model.

    Returns:
        The layers that ran.
    """
    found = []
    for layer, seen in watched.outputs.items():
        both = [r for r in recurrences.values() if r.node == layer]
        for recurrence in both:
            reverse = recurrence.cell is not None and recurrence.cell.reverse
            d = 1 if reverse and len(both) == 2 else 0
            pairs = [
                (_states(r[seen.name], seen, d, reverse), _states(o[seen.name], seen, d, reverse))
                for r, o in zip(quality.reference, outputs, strict=True)
            ]
            tally = OutputTally(recurrence.name, 0, bool(quality.calls.carried))
            for (a, b), call in zip(pairs, quality.calls.pieces, strict=True):
                tally.add(a, b, call.restart)
            if not tally.result().values:
                continue  # it never ran
            curve = curve_of(tally)
            if curve is not None and reverse:
                curve = replace(curve, unit=BACKWARDS)
            found.append(LayerEvidence(recurrence.name, reverse, tally.result().sqnr_db, curve))
    return found


def why_hidden(watched: Watched, recurrences: Mapping[str, Recurrence], shown: Sequence[LayerEvidence]) -> str:
    """Explains which recurrences have no curve and why; empty if all have one."""
    seen = {e.cell for e in shown}
    hidden = [r for r in recurrences.values() if r.name not in seen]
    silent = ", ".join(r.name for r in hidden if r.node in watched.outputs)
    unseen = ", ".join(r.name for r in hidden if r.node not in watched.outputs)
    reasons = [f"{silent} never ran on this data"] if silent else []
    where = "in a branch inside a loop, or of unknown shape, where states cannot be watched"
    reasons += [f"{unseen}: {where}"] if unseen else []
    return f"{'; '.join(reasons)}." if reasons else ""


def _states(held: Any, seen: Seen, direction: int, reverse: bool) -> Array:
    """Returns the hidden states of one call in the order of computation, `[steps,...]`, runs of a loop concatenated."""
    arrays = []
    for array in held if isinstance(held, list) else [held]:
        rank = np.ndim(array) if seen.rank == ANY_RANK else seen.rank
        if np.ndim(array) < rank or not np.size(array):
            continue  # from a branch that was not taken
        for run in np.reshape(array, (-1, *np.shape(array)[np.ndim(array) - rank :])):
            steps = run if seen.steps else run[None]
            arrays.append(steps[:: -1 if reverse else 1, direction] if seen.directions else steps)
    return np.concatenate(arrays) if arrays else np.zeros((0, 1, 1), np.float32)
