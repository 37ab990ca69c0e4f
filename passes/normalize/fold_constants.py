"""Computes what is known before a run: shapes, indices, conditions; and takes the branches that these choose."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from rnnqc.errors import Outcome, Remark
from rnnqc.evaluation.numerics import Bitwise, Close
from rnnqc.ir import Graph, Model, attribute, constant_array, display_name, graph_info, graphs_below
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
    """Stores what follows from constants and from known sizes, and takes branches whose condition is known.

    Before: `Shape(x [1,576]) -> Gather(0) -> Equal(1) -> If(...)`

    After: the nodes of the branch that is taken

    1. `Shape` and `Size` of values of known shape become initializers, and what `Gather` and `Slice` take of a
       `Shape`, where those sizes are known.
    2. So do nodes all of whose inputs are constant: what they make, up to 4096 bytes, is computed in onnxruntime.
       Weights that are computed stay computed, because several operators may share what they are computed from.
    3. The nodes of the branch that a known condition chooses take the place of the If node.
    4. Then more shapes are known, and so on.
    5. A Slice of a Shape that nothing else reads becomes attributes of the Shape.

    Without `floats` these are integers and booleans of up to 64 bytes. That changes no bits. Connected nodes are
    computed where what is stored for them takes no more of a file than they did, or where it chooses a branch. Only
    sizes count that follow from the inputs of the model: what a file declares for values inside it is not believed.

    Then a model that was lowered stays as it is, so that lowering it again writes the same file, and one with
    initializers that are graph inputs as well, which a run may replace.

    A model with cells of an earlier lowering always stays as it is: what they consist of is known by name.
    """

    info = PassInfo(
        name="fold-constants",
        summary="compute shapes, indices and conditions that are known before a run",
        numerics=Close(1e-6),
        requires=frozenset({Property.CANONICAL}),
    )

    def __init__(self, *, floats: bool = True) -> None:
        """A pass that computes floats, too, or indices, sizes and conditions alone."""
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
            for graph in list(model.graphs()):
                stored = _fold(model, graph, _EVERYTHING if self._floats else _INDICES, grow=self._floats)
                statistics["folded"] += len(stored)
                kinds += stored
                statistics["narrowed"] += _narrow(model, graph, {id(v) for g in model.graphs() for v in g.outputs})
            while any(self._take_branch(model, graph, remarks) for graph in model.graphs()):
                statistics["branches"] += 1
            if sum(statistics.values()) == before:
                break
            model.remove_dead()
            model.sort()
        if not self._floats:
            model.infer_shapes()  # the passes that follow go by declared shapes, too
        return PassResult(any(statistics.values()), tuple(remarks), statistics, None if "f" in kinds else Bitwise())

    def _take_branch(self, model: Model, graph: Graph, remarks: list[Remark]) -> bool:
        """Puts a branch in the place of an If node of one graph whose condition is known; whether there was one."""
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
    """Whether a model is none that was lowered, and has no initializer that is a graph input as well."""
    record = graph_info(model.graph)
    return RECIPE_KEY not in model.metadata and not any(name in record.initializers for name in record.input_order)


def _fold(model: Model, graph: Graph, followed: Followed, *, grow: bool) -> list[str]:
    """Stores what is known in one graph; the kinds of the types that were stored."""
    outputs = {id(v) for g in model.graphs() for v in g.outputs}
    kinds: list[str] = []
    for region in regions(graph, known_in(model, graph.nodes, followed), outputs):
        if grow or region.decides or region.growth <= 0:
            for value, array in region.stored:
                store_array(model, graph, value, array)
                kinds.append(array.dtype.kind)
    return kinds


def _narrow(model: Model, graph: Graph, kept: Collection[int]) -> int:
    """Makes attributes of the bounds of each Slice of a Shape that nothing else reads; how many there were."""
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
