"""Removes writes into a tensor that overwrite all of it."""

from __future__ import annotations

import numpy as np

from rnnqc.evaluation.numerics import Bitwise
from rnnqc.ir import Graph, Model, Node, Value, attribute, shape_of
from rnnqc.ir.builder import Builder
from rnnqc.passes.base import Pass, PassInfo, PassResult
from rnnqc.passes.graph.values.constant_expressions import Constants
from rnnqc.passes.invariants import Property


class RemoveWholeWrites(Pass):
    """Replaces a tensor all of whose rows are overwritten by the written value.

    Before, as PyTorch's tracing exporter writes `h[0:B] = new`:

        new -> Expand(shape of new) -> Reshape(shape of new) -> ScatterND(h, [[0], ..., [B - 1]]) -> next step

    After: `new -> next step`

    So a state that a loop writes into a tensor of its own passes directly from step to step. Shapes must be known and
    follow from those of the inputs; each row must be written once, in order.
    """

    info = PassInfo(
        name="remove-whole-writes",
        summary="remove writes that overwrite a whole tensor",
        numerics=Bitwise(),
        requires=frozenset({Property.CANONICAL}),
    )

    def run(self, model: Model) -> PassResult:
        """Looks at every graph."""
        writes = [(g, n) for g in model.graphs() for n in g.nodes if n.op == "ScatterND" and not n.domain]
        if not writes:
            return PassResult(False)
        model.infer_shapes({})
        constants, count, graphs = Constants(model), 0, list(model.graphs())
        for graph, node in writes:
            if not _is_whole(node, constants):
                continue
            made, written = node.outputs[0], _written(graph, node.inputs[2])
            if any(made is v for v in graph.outputs):
                _replace_by_identity(model, graph, node, written)
            else:
                model.replace_all_uses(made, written, graphs)
            count += 1
        return PassResult(count > 0, (), {"writes": count})


def _replace_by_identity(model: Model, graph: Graph, node: Node, written: Value) -> None:
    """Keeps the name of an output."""
    made, b = node.outputs[0], Builder(model, prefix=node.outputs[0].name)
    b.op("Identity", [written], "written")
    (identity,) = b.nodes
    model.insert_nodes(graph, node, b.nodes)
    model.remove_nodes(graph, [node])
    identity.outputs.clear()
    identity.outputs.append(made)


def _is_whole(node: Node, constants: Constants) -> bool:
    """Whether a ScatterND writes every row once, in order."""
    data, indices, updates = node.inputs
    rows, shape = constants.array(indices), _fixed_shape(data)
    plain = attribute(node, "reduction", "none") == "none"
    if rows is None or shape is None or not shape or shape != _fixed_shape(updates) or not plain:
        return False
    return bool(np.array_equal(rows, np.arange(shape[0])[:, None]))


def _written(graph: Graph, value: Value) -> Value:
    """The source behind Expand and Reshape to its own shape."""
    local = {id(n) for n in graph.nodes}
    while len(value.inputs) == 1 and id(value.inputs[0]) in local and value.inputs[0].op in ("Expand", "Reshape"):
        source, shape = value.inputs[0].inputs[0], _fixed_shape(value)
        if shape is None or shape != _fixed_shape(source):
            break
        value = source
    return value


def _fixed_shape(value: Value) -> list[int] | None:
    """The shape of a value if all dimensions are numbers, else None."""
    shape = shape_of(value)
    sizes = [d for d in shape or () if isinstance(d, int)]
    return sizes if shape is not None and len(sizes) == len(shape) else None
