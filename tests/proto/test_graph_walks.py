"""Walks over graphs in graphs.

What these would catch: a graph that is passed over or comes before the one that it is in, a value from outside that is
taken for one of the inside.
"""

from __future__ import annotations

from onnx import GraphProto, NodeProto
from onnx.helper import make_node, make_tensor_value_info

from rnnqc.proto.graph_walks import blocks_of, captured, inner_graphs, needed, reads


def graph(name: str, nodes: list[NodeProto], inputs: tuple[str, ...] = (), outputs: tuple[str, ...] = ()) -> GraphProto:
    made = GraphProto(name=name, node=nodes)
    for names, into in ((inputs, made.input), (outputs, made.output)):
        into.extend(make_tensor_value_info(n, 1, None) for n in names)
    return made


def nested() -> GraphProto:
    """`main` with an If, in one branch of which there is a Loop, and a node behind the If."""
    body = graph("body", [make_node("Add", ["carried", "far"], ["next"])], ("i", "keep", "carried"), ("keep", "next"))
    loop = make_node("Loop", ["trips", "", "start"], ["looped"], body=body)
    one = graph("one", [make_node("Neg", ["near"], ["start"]), loop], outputs=("looped",))
    other = graph("other", [], outputs=("outer",))
    choice = make_node("If", ["condition"], ["chosen"], else_branch=one, then_branch=other)
    return graph("main", [choice, make_node("Abs", ["chosen"], ["y"])], outputs=("y",))


def test_outer_graphs_come_first_in_order() -> None:
    assert [b.name for b in blocks_of([nested()])] == ["main", "one", "other", "body"]
    assert [g.name for g in inner_graphs(nested().node[0])] == ["one", "other"]


def test_what_comes_from_outside() -> None:
    choice = nested().node[0]
    assert captured(inner_graphs(choice)[0]) == {"near", "trips", "far"}
    assert reads(choice) == {"condition", "near", "trips", "far", "outer"}
    assert reads(nested().node[1]) == {"chosen"}


def test_the_nodes_that_values_need() -> None:
    nodes = [make_node("Neg", [a], [b]) for a, b in (("x", "a"), ("x", "b"), ("a", "c"), ("b", "d"))]
    assert [n.output[0] for n in needed(nodes, ["c"])] == ["a", "c"]
    assert [n.output[0] for n in needed(nodes, ["d", "a", ""])] == ["a", "b", "d"]
    assert needed(nodes, ["x"]) == []
