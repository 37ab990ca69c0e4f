"""The rewrite of one loop: nothing is connected until all of it has succeeded."""

from __future__ import annotations

from rnnqc.ir import Graph, Model, Node, display_name, graph_info
from rnnqc.ir.builder import Builder
from rnnqc.passes.recover.loops.filled_sequences import Results


class LoopRewrite:
    """The prepared replacement of a loop.

    Args:
        model: The model.
        graph: The graph around the loop.
        node: The loop.

    Attributes:
        b: Receives nodes for the graph around the loop.
    """

    def __init__(self, model: Model, graph: Graph, node: Node) -> None:
        self.model, self.graph, self.node = model, graph, node
        self.b = Builder(model, prefix=display_name(node))
        self._before = set(graph_info(model.graph).initializers)

    def connect(self, results: Results) -> None:
        """Replaces the loop by the nodes, and also the nodes behind it whose results are in `results`."""
        self.model.insert_nodes(self.graph, self.node, self.b.nodes)
        makers = {id(n): n for old, _ in results for n in old.inputs}  # the loop, and ConcatFromSequence behind it
        self.model.remove_nodes(self.graph, [self.node, *makers.values()])
        tail = Builder(self.model, prefix=self.b.prefix)
        for old, new in results:
            tail.add("Identity", [new], [old], "result")
        self.graph.nodes.extend(tail.nodes)

    def undo(self) -> None:
        """Discards the prepared nodes and initializers."""
        for node in self.b.nodes:
            node.inputs.clear()
            node.outputs.clear()
        held = graph_info(self.model.graph).initializers
        for name in [n for n in held if n not in self._before]:
            del held[name]
