"""Checks that refuse a step: values that are used elsewhere, weights and states of other recurrences."""

from __future__ import annotations

from collections.abc import Mapping

from rnnqc.errors import NotHandled
from rnnqc.ir import Graph, Node, Value, display_name
from rnnqc.passes.recover.rows.row_reader import RowReader
from rnnqc.passes.recover.steps.step_matcher import FoundStep
from rnnqc.passes.recover.steps.step_weights import StepNode

PRODUCTS = ("MatMul", "Gemm")


def check_hidden(
    graph: Graph, step: StepNode, own: set[int], states: Mapping[int, bytes], carried: Mapping[int, Value]
) -> None:
    """Refuses a step whose hidden state depends on that of the step before through matmuls outside steps.

    Such a state (of a highway layer, for example) may exceed the bounds of step results. Masks of lengths contain no
    matmuls, and the initial state of a first step does not depend on another step. Products of data alone do not count,
    for example the decay of a hidden state.
    """
    if step.h is None or id(step.h) in states:
        return
    local = {id(n) for n in graph.nodes}

    def met(starts: list[Value], *, through: bool) -> tuple[list[Node], bool]:
        """The matmuls that values depend on, and whether they depend on an earlier step of the layer."""
        stack, seen = starts, set[int]()
        products: list[Node] = []
        continued = False
        while stack:
            value = stack.pop()
            if id(value) in seen:
                continue
            seen.add(id(value))
            if id(value) in states:
                continued |= states[id(value)] == step.R.tobytes()
                continue
            if id(value) in carried:
                stack.append(carried[id(value)])
                continue
            for producer in value.inputs:
                if id(producer) not in local or id(producer) in own:
                    continue
                if producer.op in PRODUCTS:
                    products.append(producer)
                if producer.op not in PRODUCTS or through:
                    stack.extend(producer.inputs)
        return products, continued

    products, continued = met([step.h], through=False)
    foreign = [p for p in products if continued and any(met(list(u.inputs), through=True)[1] for u in _alike(p, local))]
    if foreign:
        found = f"node {display_name(foreign[0])!r} ({foreign[0].op}) between two of its steps"
        raise NotHandled("matmuls of another recurrence use its hidden state.", found)


def _alike(product: Node, local: set[int]) -> list[Node]:
    """Matmuls with the same weights: those of the first step may multiply an initial state."""
    return [u for v in product.inputs[1:2] for u in v.outputs if u.op in PRODUCTS and id(u) in local]


def check_weights(graph: Graph, inside: Mapping[int, Node], own: set[int]) -> None:
    """Refuses a step whose weights `graph` also uses in matmuls outside steps."""
    local = {id(n) for n in graph.nodes}
    for node in inside.values():
        for value in node.inputs[1:2] if node.op in PRODUCTS else ():
            for user in value.outputs:
                if user.op in PRODUCTS and id(user) in local and id(user) not in own:
                    found = f"{value.name!r}, used by node {display_name(user)!r} ({user.op})"
                    raise NotHandled("its weights also belong to another recurrence.", found)


def check_uses(graph: Graph, reader: RowReader, step: FoundStep, node: StepNode) -> dict[int, Node]:
    """Returns the nodes inside a step; refuses a step with a value that is used elsewhere."""
    stops = {id(v) for v in (*node.x, node.h, node.c) if v is not None}
    ends = {id(v) for v in (node.h_next, node.c_next) if v is not None}
    inside: dict[int, Node] = {}
    stack = [v for v in (node.h_next, node.c_next) if v is not None]
    while stack:
        value = stack.pop()
        for producer in value.inputs:
            if id(producer) in inside or (id(value) in stops and id(value) not in ends):
                continue
            if reader.constants.array(value) is not None:
                continue
            inside[id(producer)] = producer
            stack.extend(v for v in producer.inputs if id(v) not in stops)
    outputs = {id(v) for v in graph.outputs}
    states = {a for a in (step.hidden, step.cell) if a is not None}
    for producer in inside.values():
        for value in producer.outputs:
            users = [u for u in value.outputs if id(u) not in inside and not _is_unused(u, graph, outputs)]
            if id(value) in ends or not (users or id(value) in outputs):
                continue
            rows = reader.known(value)
            if rows is None:
                continue
            forms = rows.segments
            plain = all(f.linear and not (f.dense and states & set(f.terms)) for f in forms)
            if not plain:
                user = f"node {display_name(users[0])!r} ({users[0].op})" if users else "an output of the graph"
                raise NotHandled("a value inside the step is used elsewhere.", f"{value.name!r}, used by {user}")
    return inside


def _is_unused(node: Node, graph: Graph, outputs: set[int]) -> bool:
    """Whether an output is unused, like the part of a matmul for a gate that is computed by another matmul."""
    return not any(v.outputs or id(v) in outputs for v in node.outputs) and any(n is node for n in graph.nodes)
