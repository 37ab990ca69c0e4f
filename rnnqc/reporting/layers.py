"""The hidden states of every recurrent layer over time: outputs of the float model that the lowered one gets, too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import onnx
from onnx import TensorProto, helper

from rnnqc.cells.base import Cell
from rnnqc.ir import Model
from rnnqc.numerics import sqnr_db
from rnnqc.passes import PassManager
from rnnqc.passes.lstm_node import RECURRENT_OPS
from rnnqc.passes.normal_form import normal_form
from rnnqc.reporting.evidence import LayerEvidence
from rnnqc.reporting.quality import _whole, curve_of
from rnnqc.tuning.measure import Outputs


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
    watched: Watched,
    cells: Mapping[str, Cell],
    reference: Sequence[Outputs],
    outputs: Sequence[Outputs],
    stream: bool,
) -> list[LayerEvidence]:
    """SQNR of each direction of each layer over time.

    Args:
        watched: What was run.
        cells: Of the lowered model.
        reference: Outputs of the float model.
        outputs: Those of the lowered one.
        stream: Whether calls follow each other.
    """
    found = []
    for layer, name in watched.outputs.items():
        both = [c for c in cells.values() if c.node == layer]
        for cell in both:
            d = 1 if cell.reverse and len(both) == 2 else 0
            pairs = []
            for r, o in zip(reference, outputs, strict=True):
                a, b = (v[name][:, d] for v in (r, o))
                pairs.append((a.reshape(len(a), -1), b.reshape(len(b), -1)))
            level = sqnr_db(*(_whole([{"y": p[k]} for p in pairs], "y") for k in (0, 1)))
            one_step = all(len(a) == 1 for a, _ in pairs)
            curve = curve_of(pairs, "call" if stream else "time step")
            if stream and not one_step:
                curve = type(curve)("time step", curve.stops, curve.sqnr_db, curve.noise)
            found.append(LayerEvidence(cell.name, cell.reverse, level, curve))
    return found
