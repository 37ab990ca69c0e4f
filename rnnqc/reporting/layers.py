"""The hidden states of every recurrent layer over time: outputs of the float model that the lowered one gets, too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper

from rnnqc.cells.base import Cell
from rnnqc.graph_walks import blocks_of
from rnnqc.ir import Model, display_name
from rnnqc.passes import PassManager
from rnnqc.passes.lstm_node import RECURRENT_OPS
from rnnqc.passes.normal_form import normal_form
from rnnqc.passes.observe import NotObservableError, Observed, with_outputs
from rnnqc.reporting.evidence import LayerEvidence
from rnnqc.reporting.quality import Quality, curve_of
from rnnqc.streaming import Outputs

Array = npt.NDArray[Any]
BACKWARDS = "time step, from the end"
RANK = 4
"""Of Y, `[T,D,B,H]`."""


@dataclass(frozen=True)
class Watched:
    """A float model whose recurrent layers are outputs.

    Attributes:
        proto: The model, in normal form.
        outputs: For each layer the name of the output that is its Y `[T,D,B,H]`, or a sequence of these.
    """

    proto: onnx.ModelProto
    outputs: Mapping[str, str]


def watch_layers(model: onnx.ModelProto) -> Watched:
    """Makes the Y of every recurrent node an output; of those inside branches and loops, where that can be done."""
    loaded = Model.load(model)
    PassManager(normal_form()).run(loaded)
    inside = {}
    for path, graph in loaded.paths():
        for node in graph.nodes if graph is not loaded.graph else ():
            if _is_recurrent(node.op, node.domain) and node.outputs and node.outputs[0].name:
                inside[f"{path}{display_name(node)}"] = node.outputs[0].name
    proto = loaded.proto
    names = {name for block in blocks_of([proto.graph]) for n in block.node for name in (*n.input, *n.output)}
    outputs: dict[str, str] = {}
    fresh = []
    for node in proto.graph.node:
        if not _is_recurrent(node.op_type, node.domain):
            continue
        layer = node.name or next((o for o in node.output if o), "")
        if not node.output[0]:
            node.output[0] = _unused(f"{layer}/Y.all", names)
        name = _unused(f"rnnqc.report/{layer}", names)
        fresh.append(helper.make_node("Identity", [node.output[0]], [name], name))
        proto.graph.output.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, [None] * RANK))
        outputs[layer] = name
    proto.graph.node.extend(fresh)
    for layer, value in inside.items():
        brought = _brought_out(proto, layer, value)
        if brought is not None:
            proto, outputs[layer] = brought
    return Watched(proto, outputs)


def _is_recurrent(op: str, domain: str | None) -> bool:
    return not domain and op in RECURRENT_OPS


def _brought_out(proto: onnx.ModelProto, layer: str, value: str) -> tuple[onnx.ModelProto, str] | None:
    """The model with a value of a subgraph as one output more, and its name; None where that cannot be done."""
    kept = [o.name for o in proto.graph.output]
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    try:
        [name] = with_outputs(copy, [Observed(layer, "hidden", value, False, RANK, 0)], kept).values()
    except NotObservableError:
        return None
    made = next(n for n in copy.graph.node if name in n.output)
    untyped = copy.graph.output[-1]
    if made.op_type == "Scan":
        untyped.type.tensor_type.elem_type = TensorProto.FLOAT
    else:
        untyped.type.sequence_type.elem_type.tensor_type.elem_type = TensorProto.FLOAT
    return copy, name


def _unused(name: str, names: set[str]) -> str:
    while name in names:
        name += "'"
    names.add(name)
    return name


def layer_evidence(
    watched: Watched, cells: Mapping[str, Cell], quality: Quality, outputs: Sequence[Outputs]
) -> list[LayerEvidence]:
    """SQNR of each direction of each layer over time, in the order in which it runs.

    Args:
        watched: What was run.
        cells: Of the lowered model.
        quality: Outputs of the float model.
        outputs: Those of the lowered one.

    Returns:
        Those that ran.
    """
    found = []
    for layer, name in watched.outputs.items():
        both = [c for c in cells.values() if c.node == layer]
        for cell in both:
            d = 1 if cell.reverse and len(both) == 2 else 0
            pairs = [
                (_states(r[name], d, cell), _states(o[name], d, cell))
                for r, o in zip(quality.reference, outputs, strict=True)
            ]
            tally = quality.tally(cell.name, pairs, axis=0)
            if not tally.result().values:
                continue  # it never ran
            curve = curve_of(tally)
            if curve is not None and cell.reverse:
                curve = replace(curve, unit=BACKWARDS)
            found.append(LayerEvidence(cell.name, cell.reverse, tally.result().sqnr_db, curve))
    return found


def _states(held: Any, direction: int, cell: Cell) -> Array:
    """The hidden states of one call in the order in which they are made `[steps,B,H]`; runs of a loop one by one."""
    arrays = []
    for array in held if isinstance(held, list) else [held]:
        runs = np.reshape(array, (-1, *np.shape(array)[-RANK:])) if np.ndim(array) >= RANK else ()
        arrays += [run[:: -1 if cell.reverse else 1, direction] for run in runs]
    return np.concatenate(arrays) if arrays else np.zeros((0, 1, cell.hidden_size), np.float32)
