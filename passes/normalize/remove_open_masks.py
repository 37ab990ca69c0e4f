"""Removes masks over the states of unrolled steps that no step is held by."""

from __future__ import annotations

from rnnqc.evaluation.numerics import Bitwise
from rnnqc.ir import Graph, Model, Node, Value, shape_of
from rnnqc.passes.base import Pass, PassInfo, PassResult
from rnnqc.passes.graph.values.known_regions import Followed, known_in
from rnnqc.passes.invariants import Property

_CONDITIONS = Followed("iub", 64, read=4096)


class RemoveOpenMasks(Pass):
    """Uses what a step makes in the place of a choice between that and the state before.

    Before, as Keras exports layers with PyTorch's backend, for each step t of a sequence of 10:

        Where(Greater(Gather(Shape(x), 1), t), new, state before) -> next step

    After: `new -> next step`

    The condition must follow from sizes that the inputs of the model have, and what is chosen must have the shape of
    the result. Choices go in rows alone, where what one makes is what the next one leaves out: so masks over states
    are written, and other choices stay.
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
        if count:
            model.remove_dead()
            model.sort()
        return PassResult(count > 0, (), {"masks": count})


def _choices(graph: Graph) -> list[Node]:
    return [n for n in graph.nodes if n.op == "Where" and not n.domain]


def _same_shape(value: Value, other: Value) -> bool:
    """Whether two values have one shape, all of which is known by number or by the name of an input's dimension."""
    a, b = shape_of(value), shape_of(other)
    return a is not None and a == b and all(d not in (None, "") for d in a)


def _row(node: Node, taken: dict[int, tuple[Value, Value]]) -> list[Node]:
    """A choice and the one whose result it leaves out; none where that is no choice that is known."""
    value = taken[id(node)][1]
    while len(value.inputs) == 1 and value.inputs[0].op in ("Cast", "Identity"):
        value = value.inputs[0].inputs[0]
    before = value.inputs[0] if len(value.inputs) == 1 else None
    return [node, before] if before is not None and id(before) in taken else []
