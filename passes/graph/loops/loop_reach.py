"""Analysis: dependencies between values of a loop's body, or of unrolled steps. Reads only."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping

from rnnqc.ir import Node, Value, dtype_of
from rnnqc.passes.graph.loops.loop_states import State
from rnnqc.passes.graph.nodes.lstm_node import is_recurrent

WHOLE_NUMBERS = ("Shape", "Size", "ArgMax", "ArgMin", "NonZero", "Less", "Greater", "Equal", "SequenceLength")
"""Operators whose results are counts, indices or conditions; values made of them depend on no real number."""
_COMPARISONS = ("Less", "LessOrEqual", "Greater", "GreaterOrEqual")


def users_of(value: Value, inside: Mapping[int, Node]) -> list[Node]:
    """Returns the nodes that read a value, mapped by `owners` of their graph."""
    return [inside[id(n)] for n in value.outputs if id(n) in inside]


def reached(
    start: Iterable[Value], inside: Mapping[int, Node], follows: Callable[[Value], bool] = lambda _: True
) -> dict[int, Value]:
    """Returns the values that depend on `start`, by id, without those behind recurrent nodes and counts.

    Floats that say where a real number exceeds another, as the spikes of a spiking network, depend on it.

    Args:
        start: Values of the graph; unnamed ones are ignored.
        inside: The result of `owners` for the graph.
        follows: Whether a value propagates the dependence.
    """
    found = {id(v): v for v in start if v.name}
    stack = list(found.values())
    while stack:
        value = stack.pop()
        for node in users_of(value, inside):
            if is_recurrent(node):
                continue
            results = _spikes(value, node, inside) if node.op in WHOLE_NUMBERS + _COMPARISONS else node.outputs
            for made in results:
                if made.name and id(made) not in found and follows(made):
                    found[id(made)] = made
                    stack.append(made)
    return found


def _spikes(value: Value, node: Node, inside: Mapping[int, Node]) -> list[Value]:
    """The floats that Cast makes of a comparison of floats."""
    kind = dtype_of(value)
    if node.op not in _COMPARISONS or kind is None or kind.kind != "f":
        return []
    cast = [u.outputs[0] for u in users_of(node.outputs[0], inside) if u.op == "Cast"]
    return [v for v in cast if (made := dtype_of(v)) is not None and made.kind == "f"]


def everything_behind(start: Iterable[Value], inside: Mapping[int, Node]) -> set[int]:
    """Returns the ids of `start` and of all values that depend on it in any way."""
    stack = [v for v in start if v.name]
    found = {id(v) for v in stack}
    while stack:
        for node in users_of(stack.pop(), inside):
            more = [v for v in node.outputs if v.name and id(v) not in found]
            found |= {id(v) for v in more}
            stack += more
    return found


def comes_back(
    state: State, values: Collection[int], states: Iterable[State], onward: Callable[[State], Collection[int]]
) -> bool:
    """Whether values derived from `values` become the state again after some iterations.

    Args:
        state: One of `states`.
        values: Values of the body, by id.
        states: The states of the loop.
        onward: The values of the body that depend on a state, by id.
    """
    known = list(states)
    open_ = [s for s in known if id(s.after) in values]
    seen: set[int] = set()
    while open_:
        current = open_.pop()
        if current is state:
            return True
        if current.index not in seen:
            seen.add(current.index)
            made = onward(current)
            open_ += [s for s in known if id(s.after) in made]
    return False


def returning(
    states: Collection[State],
    inside: Mapping[int, Node],
    through: Callable[[Mapping[int, Value]], Iterable[Node]],
    follows: Callable[[Value], bool] = lambda _: True,
) -> tuple[State, Node] | None:
    """Returns the first state that becomes itself again through a node, and this node; None without one.

    Args:
        states: The states of a loop.
        inside: The result of `owners` for its body.
        through: Returns the nodes to look at, for the values that depend on a state, by id.
        follows: Whether a value propagates the dependence.
    """
    onward = {s.index: reached([s.before], inside, follows) for s in states}
    for state in states:
        for node in through(onward[state.index]):
            if comes_back(state, reached(node.outputs, inside, follows), states, lambda s: onward[s.index]):
                return state, node
    return None
