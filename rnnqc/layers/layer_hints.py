"""Suggests layers for a model without a recurrent layer that may be one step of a cell."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping

import onnx

from rnnqc.cells.types import CELL_TYPES
from rnnqc.data.state_hints import options_of_states
from rnnqc.errors import CompileError
from rnnqc.ir import Model
from rnnqc.layers.cell_model import fitting_states
from rnnqc.layers.layer import layer
from rnnqc.passes import PassManager
from rnnqc.passes.analysis.find_recurrent_nodes import recurrent_nodes
from rnnqc.passes.pipeline import normal_form
from rnnqc.proto.graph_walks import blocks_of


def layer_hints(proto: onnx.ModelProto) -> list[str]:
    """Suggests how to turn the model into a layer that can be lowered; empty if no such layer is found.

    Args:
        proto: A model of which no recurrent layer is lowered; one that has recurrent nodes is not a mere step.
    """
    if any(node.op_type in CELL_TYPES for block in blocks_of([proto.graph]) for node in block.node):
        return []
    for states in fitting_states(proto):
        with contextlib.suppress(CompileError):
            made = Model.load(layer(proto, state=states))
            PassManager(normal_form()).run(made)
            if any(n.status == "lowered" for n in recurrent_nodes(made)):
                return [_text(states)]
    return []


def _text(states: Mapping[str, str]) -> str:
    pairs = options_of_states(states)
    return (
        f"if the model is one step of a recurrent layer, `rnnqc layer IN.onnx -o OUT.onnx {pairs}` makes a layer of "
        "it, which can be lowered (docs/custom_cells.md). The pairs are those whose shapes fit, in order: check that "
        "each output becomes that input."
    )
