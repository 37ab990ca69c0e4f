"""Removes masks over the states of unrolled steps that hold no step."""

from __future__ import annotations

from rnnqc.evaluation.numerics import Bitwise
from rnnqc.ir import Graph, Model, Node, Value, maker_of, shape_of
from rnnqc.passes.base import Pass, PassInfo, PassResult
from rnnqc.passes.graph.loops.loop_states import behind_views
from rnnqc.passes.graph.values.known_regions import Followed, known_in
from rnnqc.passes.invariants import Property

_CONDITIONS = Followed("iub", 64, read=4096)


class RemoveOpenMasks(Pass):
    """Replaces the choice between a step's result and the state before by the result, where it is always chosen.

    Before, as Keras exports layers with PyTorch's backend, for each step t of a sequence of 10:

        Where(Greater(Gather(Shape(x), 1), t), new, state before) -> next step

    After: `new -> next step`

    The condition must follow from sizes of the model's inputs, and the chosen value must have the shape of the result.
    Only chains of choices are removed, where each choice's result is what the next one rejects: masks over states have
    this form; other choices stay.
    """

    info = PassInfo(
        name="remove-open-masks",
        summary="remove masks over states that no step is held by",
        numerics=Bitwise(),
        requires=frozenset({Property.CANONICAL}),
    )

    def run(self, model: Model) -> PassResult:
        """Looks at every graph."""
        graphs = [g for g in model.graphs() if len(_choices(g)) > 1]
        if not graphs:
            return PassResult(False)
        model.infer_shapes({})
        count = 0
        for graph in graphs:
            known = known_in(model, graph.nodes, _CONDITIONS)
            taken: dict[int, tuple[Value, Value]] = {}
            for node in _choices(graph):
                condition = known.get(id(node.inputs[0]))
                if condition is None or condition.size != 1:
                    continue
                chosen, left = node.inputs[1:] if condition.ravel()[0] else node.inputs[:0:-1]
                if _same_shape(chosen, node.outputs[0]):
                    taken[id(node)] = chosen, left
            rows = {id(n) for n in _choices(graph) if id(n) in taken for n in _row(n, taken)}
            outputs = {id(v) for g in model.graphs() for v in g.outputs}
            for node in _choices(graph):
                if id(node) in rows and id(node.outputs[0]) not in outputs:
                    model.replace_all_uses(node.outputs[0], taken[id(node)][0])
                    count += 1
        return PassResult(count > 0, (), {"masks": count})


def _choices(graph: Graph) -> list[Node]:
    return [n for n in graph.nodes if n.op == "Where" and not n.domain]


def _same_shape(value: Value, other: Value) -> bool:
    """Whether two values have one shape whose dimensions are all numbers or names of input dimensions."""
    a, b = shape_of(value), shape_of(other)
    return a is not None and a == b and all(d not in (None, "") for d in a)


def _row(node: Node, taken: dict[int, tuple[Value, Value]]) -> list[Node]:
    """A choice and the one whose result it rejects; empty if that is not a known choice."""
    before = maker_of(behind_views(taken[id(node)][1], ("Cast", "Identity")))
    return [node, before] if before is not None and id(before) in taken else []
