"""Joins operators that only move elements into fewer ones."""

from __future__ import annotations

from rnnqc.evaluation.numerics import Bitwise
from rnnqc.ir import Model, Node, Value
from rnnqc.passes.base import Pass, PassInfo, PassResult
from rnnqc.passes.graph.redundant_nodes import drop_identities
from rnnqc.passes.invariants import Property
from rnnqc.passes.views.emit import replace_region
from rnnqc.passes.views.plans import make_plan
from rnnqc.passes.views.regions import computed_indices, find_regions, has_views
from rnnqc.passes.views.shapes import infer_shapes_of_values

Unplanned = dict[tuple[int, ...], tuple[Node | Value, ...]]
"""Nodes and values of regions by their ids, which nothing else can take as long as they are held."""


class JoinViews(Pass):
    """Reduces the number of operators around states and frames that only move elements.

    Before: `Slice(state [1,2,128,2]) -> Squeeze -> Unsqueeze` for each of four states

    After: `Transpose(state) -> Reshape -> Split`, whose outputs are the four states

    A region is a connected set of such operators in one graph: Reshape, Transpose, Squeeze, Unsqueeze, Slice, Gather,
    Split, Concat, Flatten, Identity, Expand, and Pad and ScatterND where they only move. onnxruntime runs it on
    numbered elements, which yields the source of each output element. Then the pass searches for fewer operators with
    the same result, and verifies them on the numbers. It changes nothing if none are found.

    An operator stays unchanged if a shape is unknown, if its indices are not constant (for a ScatterND, not computed
    from constants either), if all its moved inputs are constant, if it belongs to a cell, or if its values have more
    than 262144 elements. Declared shapes are not trusted, except those of the model's inputs, which onnxruntime
    enforces.
    """

    info = PassInfo(
        name="join-views",
        summary="join operators that only move elements into fewer",
        numerics=Bitwise(),
        requires=frozenset({Property.CANONICAL}),
    )

    def run(self, model: Model) -> PassResult:
        """Replaces regions in every graph until none shrinks."""
        replaced, size = 0, _size(model)
        best: Unplanned = {}
        while has_views(model):  # without any, inference would dominate the time
            infer_shapes_of_values(model)
            found = self._sweep(model, best)
            replaced += found
            before, size = size, _size(model)
            if not found or size >= before:
                break  # a last sweep ends the loop, whatever the plans
        return PassResult(replaced > 0, (), {"regions": replaced})

    def _sweep(self, model: Model, best: Unplanned) -> int:
        """Replaces regions once.

        Args:
            model: The model, with inferred shapes.
            best: The regions that no plan makes smaller; updated.
        """
        replaced = 0
        for graph in list(model.graphs()):
            for region in find_regions(model, graph, computed_indices(model, graph)):
                held = (*region.nodes, *region.sources, *region.outputs)
                key = tuple(map(id, held))
                if key in best:
                    continue
                plan = make_plan(region)
                if plan is None:
                    best[key] = held
                else:
                    replaced += replace_region(model, graph, region, plan)
        if replaced:
            graphs = list(model.graphs())
            for graph in graphs:
                drop_identities(model, graph, graphs)
            model.remove_dead()
            model.sort()
        return replaced


def _size(model: Model) -> int:
    return sum(len(g.nodes) for g in model.graphs())
