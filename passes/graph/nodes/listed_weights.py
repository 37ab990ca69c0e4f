"""Weights of recurrent nodes that are graph inputs as well: defaults that a run could replace."""

from __future__ import annotations

from collections.abc import Sequence

from rnnqc.ir import Model, Node, graph_info
from rnnqc.passes.graph.nodes.lstm_node import B, P, R, W

STORED_COUNT = "its weights are defaults that a run could replace; the stored ones count, and the inputs go."
TAKE_OFF = "take the initializers off the graph inputs, if the weights are constant"


def listed_weights(model: Model, node: Node) -> list[str]:
    """Returns the names of a node's inputs that are both stored and listed as graph inputs."""
    graph = graph_info(model.graph)
    return [n for n in (v.name for v in node.inputs) if n in graph.input_order and n in graph.initializers]


def found_listed(names: Sequence[str]) -> str:
    """Returns the finding for a remark about these names."""
    return f"{', '.join(map(repr, names))} both stored and listed as graph inputs"


def unlist_weights(model: Model, node: Node, operands: Sequence[int] = (W, R, B, P)) -> list[str]:
    """Removes the stored weights of a node, its inputs `operands`, from the graph inputs; returns their names.

    onnxruntime warns about each in every session, and cannot precompute with values that a run may replace.
    """
    weights = {node.inputs[k].name for k in operands if k < len(node.inputs)}
    listed = [n for n in listed_weights(model, node) if n in weights]
    record = graph_info(model.graph)
    record.input_order = [n for n in record.input_order if n not in listed]
    return listed
