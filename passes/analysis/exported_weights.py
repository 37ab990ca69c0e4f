"""Analysis: operators outside the recurrent layers whose weights were exported quantized. Reads only."""

from __future__ import annotations

from dataclasses import dataclass

from rnnqc.ir import Model, Node, display_name, graphs_below
from rnnqc.passes.analysis.integer_recurrences import is_own
from rnnqc.passes.analysis.rest_weights import WEIGHT_OPERANDS
from rnnqc.passes.graph.loops.loop_states import is_loop
from rnnqc.passes.graph.values.quantized_constants import is_stored_as_codes, stored_codes

CAME_QUANTIZED = (
    "its weight came quantized already; float operators compute with exactly what the quantized values stand for.",
    "quantized values of a constant",
    "none is needed; integer operators of it are made of a float model alone",
)
"""Why such an operator stays as it is: reason, found, action."""


@dataclass(frozen=True)
class ExportedWeight:
    """An operator that computes with a weight that was exported quantized.

    Attributes:
        path: Its name with the path through subgraphs.
        op: Its type.
        kind: Its kind: "linear layers", "embeddings" or "convolutions".
        weight: Name of the operand.
        shape: Shape of the operand.
    """

    path: str
    op: str
    kind: str
    weight: str
    shape: tuple[int, ...]


def exported_weights(model: Model) -> list[ExportedWeight]:
    """Returns these operators of an exported model, except for loops and rnnqc's cells, which have separate entries."""
    loops = [n for g in model.graphs() for n in g.nodes if is_loop(n)]
    inside = {id(g) for loop in loops for g in graphs_below(loop.attrs["body"])}
    sites = [
        (f"{path}{display_name(n)}", n) for path, graph in model.paths() if id(graph) not in inside for n in graph.nodes
    ]
    return [found for path, node in sites if not is_own(node) for found in _of(model, path, node)]


def _of(model: Model, path: str, node: Node) -> list[ExportedWeight]:
    kind, operands = WEIGHT_OPERANDS.get(node.op, ("", ())) if not node.domain else ("", ())
    values = [node.inputs[k] for k in operands if k < len(node.inputs) and is_stored_as_codes(node.inputs[k])]
    stored = [(v, stored_codes(model, v)) for v in values]
    return [ExportedWeight(path, node.op, kind, v.name, tuple(s.codes.shape)) for v, s in stored if s is not None]
