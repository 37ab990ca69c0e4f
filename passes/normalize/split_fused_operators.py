"""Splits onnxruntime's fused operators."""

from __future__ import annotations

from rnnqc.cells.forms import ORT_DOMAIN
from rnnqc.evaluation.numerics import Close
from rnnqc.ir import Graph, Model, Node, attribute
from rnnqc.ir.builder import Builder
from rnnqc.passes.base import Pass, PassInfo, PassResult
from rnnqc.passes.invariants import Property

_OPERATORS = {(ORT_DOMAIN, "FusedGemm"): "Gemm", (ORT_DOMAIN, "FusedConv"): "Conv"}
_ACTIVATIONS = ("Relu", "Sigmoid", "Tanh")


class SplitFusedOperators(Pass):
    """Replaces operators that onnxruntime's optimizer has fused with an activation by the separate operators.

    Before, in a model saved by a session: `com.microsoft.FusedGemm(x, W, b), activation = "Tanh"`

    After: `Gemm(x, W, b) -> Tanh`

    A FusedConv may add a fourth input in front of the activation. Activations with parameters stay fused.
    """

    info = PassInfo(
        name="split-fused-operators",
        summary="take onnxruntime's fused operators apart",
        numerics=Close(1e-6),
        requires=frozenset({Property.CANONICAL}),
    )
    infers_shapes = True

    def run(self, model: Model) -> PassResult:
        """Looks at every node."""
        count = 0
        for graph in list(model.graphs()):
            for node in [n for n in graph.nodes if (n.domain or "", n.op) in _OPERATORS]:
                if attribute(node, "activation", "") in _ACTIVATIONS:
                    _split(model, graph, node)
                    count += 1
        return PassResult(count > 0, (), {"operators": count})


def _split(model: Model, graph: Graph, node: Node) -> None:
    after = Builder(model, prefix=node.name)
    (target,) = node.outputs
    inner = after.value("fused")
    node.op, node.domain = _OPERATORS[node.domain, node.op], None
    node.outputs = [inner]
    activation = node.attrs.pop("activation")
    for name in [a for a in node.attrs if a.startswith("activation")]:
        del node.attrs[name]
    if node.op == "Conv" and len(node.inputs) > 3:
        inner = after.op("Add", [inner, node.inputs[3]], "sum")
        node.inputs = node.inputs[:3]
    after.add(activation, [inner], [target], "activation")
    model.insert_nodes_after(graph, node, after.nodes)
