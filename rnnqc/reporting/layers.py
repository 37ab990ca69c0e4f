"""The hidden states of every recurrent layer over time: outputs of the float model that the lowered one gets, too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import onnx
from onnx import TensorProto, helper

from rnnqc.cells.base import Cell
from rnnqc.ir import Model
from rnnqc.passes import PassManager
from rnnqc.passes.lstm_node import RECURRENT_OPS
from rnnqc.passes.normal_form import normal_form
from rnnqc.reporting.evidence import LayerEvidence
from rnnqc.reporting.quality import Quality, curve_of
from rnnqc.streaming import Outputs

BACKWARDS = "time step, from the end"


@dataclass(frozen=True)
class Watched:
    """A float model whose recurrent layers are outputs.

    Attributes:
        proto: The model, in normal form.
        outputs: For each layer the name of the output that is its Y, `[T,D,B,H]`.
    """

    proto: onnx.ModelProto
    outputs: Mapping[str, str]


def watch_layers(model: onnx.ModelProto) -> Watched:
    """Makes the Y of every recurrent node of the main graph an output; those of subgraphs are left out."""
    loaded = Model.load(model)
    PassManager(normal_form()).run(loaded)
    proto = loaded.proto
    names = {n for node in proto.graph.node for n in (*node.input, *node.output)}
    outputs: dict[str, str] = {}
    fresh = []
    for node in proto.graph.node:
        if node.domain or node.op_type not in RECURRENT_OPS:
            continue
        layer = node.name or next((o for o in node.output if o), "")
        if not node.output[0]:
            node.output[0] = _unused(f"{layer}/Y.all", names)
        name = _unused(f"rnnqc.report/{layer}", names)
        fresh.append(helper.make_node("Identity", [node.output[0]], [name], name))
        proto.graph.output.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, [None] * 4))
        outputs[layer] = name
    proto.graph.node.extend(fresh)
    return Watched(proto, outputs)


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
    """
    found = []
    for layer, name in watched.outputs.items():
        both = [c for c in cells.values() if c.node == layer]
        for cell in both:
            d = 1 if cell.reverse and len(both) == 2 else 0
            order = slice(None, None, -1 if cell.reverse else 1)
            pairs = [(r[name][order, d], o[name][order, d]) for r, o in zip(quality.reference, outputs, strict=True)]
            tally = quality.tally(cell.name, pairs, axis=0)
            curve = curve_of(tally)
            if curve is not None and cell.reverse:
                curve = replace(curve, unit=BACKWARDS)
            found.append(LayerEvidence(cell.name, cell.reverse, tally.result().sqnr_db, curve))
    return found
