"""Computes shapes, indices and conditions that are known before a run, and keeps only the branches they choose."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from rnnqc.errors import Outcome, Remark
from rnnqc.evaluation.numerics import Bitwise, Close
from rnnqc.ir import Graph, Model, Node, attribute, constant_array, display_name, graph_info, graphs_below
from rnnqc.passes.base import Pass, PassInfo, PassResult
from rnnqc.passes.graph.inline_branch import inline_branch
from rnnqc.passes.graph.nodes.lstm_node import is_recurrent
from rnnqc.passes.graph.values.known_regions import Followed, known_in, regions
from rnnqc.passes.graph.values.known_values import store_array
from rnnqc.passes.invariants import Property
from rnnqc.recipes.recipe_record import RECIPE_KEY

LARGEST = 4096
"""Bytes of a value that is stored in place of the node that makes it."""
_EVERYTHING = Followed("fiub", LARGEST)
_SHAPE_HAS_BOUNDS = 15
"""Operator set of its attributes."""
_INDICES = Followed("iub", 64, read=LARGEST)
_BRANCHES = ("then_branch", "else_branch")


class FoldConstants(Pass):
    """Stores what follows from constants and known sizes, and replaces If nodes whose condition is known.

    Before: `Shape(x [1,576]) -> Gather(0) -> Equal(1) -> If(...)`

    After: the nodes of the chosen branch

    1. `Shape` and `Size` of values of known shape become initializers, as do `Gather` and `Slice` of a `Shape` where
       those sizes are known.
    2. So do nodes with constant inputs only: results of up to 4096 bytes are computed in onnxruntime. Weights that are
       computed stay computed, because several operators may share their sources.
    3. The nodes of the branch that a known condition chooses replace the If node.
    4. Then more shapes are known, and the steps repeat.
    5. A Slice that is the only reader of a Shape becomes attributes of the Shape.

    Without `floats` only integers and booleans of up to 64 bytes are stored, which is bit-exact. Connected nodes are
    folded where their constants take no more of the file than the nodes did, or where the result chooses a branch. Only
    sizes that follow from the model's inputs count: declared shapes of inner values are not trusted.

    Without `floats` the pass also skips lowered models, so that lowering them again writes the same file, and models
    with initializers that are graph inputs as well, which a run may replace.

    A model with cells of an earlier lowering is never changed: their parts are found by name.
    """

    info = PassInfo(
        name="fold-constants",
        summary="compute shapes, indices and conditions that are known before a run",
        numerics=Close(1e-6),
        requires=frozenset({Property.CANONICAL}),
    )

    def __init__(self, *, floats: bool = True) -> None:
        """Creates a pass that folds floats too, or only indices, sizes and conditions."""
        self._floats = floats

    def run(self, model: Model) -> PassResult:
        """Applies the steps until nothing changes."""
        statistics = {"folded": 0, "branches": 0, "narrowed": 0}
        kinds: list[str] = []
        remarks: list[Remark] = []
        if model.cells or not (self._floats or _is_foldable(model)):
            return PassResult(False, (), statistics)
        while True:
            before = sum(statistics.values())
            model.infer_shapes(None if self._floats else {})
            graphs = list(model.graphs())
            kept = {id(v) for g in graphs for v in g.outputs}
            for graph in graphs:
                stored = _fold(model, graph, _EVERYTHING if self._floats else _INDICES, kept, grow=self._floats)
                statistics["folded"] += len(stored)
                kinds += stored
                statistics["narrowed"] += _narrow(model, graph, kept)
            while any(self._take_branch(model, graph, remarks) for graph in model.graphs()):
                statistics["branches"] += 1
            if sum(statistics.values()) == before:
                break
            model.remove_dead()
            model.sort()
        if not self._floats:
            model.infer_shapes()  # later passes read declared shapes, too
        return PassResult(any(statistics.values()), tuple(remarks), statistics, None if "f" in kinds else Bitwise())

    def _take_branch(self, model: Model, graph: Graph, remarks: list[Remark]) -> bool:
        """Replaces one If node of a graph whose condition is known by its branch; returns whether there was one."""
        for node in graph.nodes:
            condition = constant_array(node.inputs[0]) if node.op == "If" and not node.domain else None
            if condition is not None and condition.size == 1:
                taken, left = _BRANCHES if condition.ravel()[0] else _BRANCHES[::-1]
                for layer in (n for g in graphs_below(node.attrs[left]) for n in g.nodes if is_recurrent(n)):
                    path = f"{display_name(node)}/{left}/{display_name(layer)}"
                    always = "true" if condition.ravel()[0] else "false"
                    remarks.append(
                        self.remark(
                            Outcome.NOTE,
                            path,
                            layer.op,
                            f"no run reaches it, for the condition of its If is always {always}: it is left out.",
                        )
                    )
                inline_branch(model, graph, node, taken)
                return True
        return False


def _is_foldable(model: Model) -> bool:
    """Whether a model is not a lowered one and has no initializer that is a graph input as well."""
    record = graph_info(model.graph)
    return RECIPE_KEY not in model.metadata and not any(name in record.initializers for name in record.input_order)


def _fold(model: Model, graph: Graph, followed: Followed, kept: Collection[int], *, grow: bool) -> list[str]:
    """Stores the known values of one graph but the outputs `kept`; returns the kinds of their dtypes."""
    kinds: list[str] = []
    freed: list[Node] = []
    for region in regions(graph, known_in(model, graph.nodes, followed), kept):
        if grow or region.decides or region.growth <= 0:
            for value, array in region.stored:
                freed += store_array(model, graph, value, array, returning=())
                kinds.append(array.dtype.kind)
    model.remove_nodes(graph, freed)
    return kinds


def _narrow(model: Model, graph: Graph, kept: Collection[int]) -> int:
    """Turns each Slice that is the only reader of a Shape into attributes of the Shape; returns how many."""
    sliced = [n for n in graph.nodes if n.op == "Slice" and not n.domain] if model.opset >= _SHAPE_HAS_BOUNDS else []
    count = 0
    for node in sliced:
        shape = node.inputs[0]
        maker = shape.inputs[0] if shape.inputs and len(shape.outputs) == 1 and id(shape) not in kept else None
        if maker is None or maker.op != "Shape" or maker.domain or maker not in graph.nodes:
            continue
        if attribute(maker, "start", 0) != 0 or "end" in maker.attrs:
            continue
        given = {k: constant_array(v) for k, v in enumerate(node.inputs[1:]) if v.name}
        bounds = {k: int(a.ravel()[0]) for k, a in given.items() if a is not None and a.size == 1}
        if len(bounds) < len(given) or bounds.get(2, 0) not in (0, -1) or bounds.get(3, 1) != 1:
            continue
        maker.attrs["start"] = bounds[0]
        if bounds[1] <= np.iinfo(np.int32).max:
            maker.attrs["end"] = bounds[1]
        (result,) = node.outputs
        model.remove_nodes(graph, [node])
        maker.outputs[0] = result
        count += 1
    return count
