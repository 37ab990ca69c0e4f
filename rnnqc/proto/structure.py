"""Checks of the structure of a model: names, producers of values, functions. All walks are iterative."""

from __future__ import annotations

import graphlib
from collections.abc import Iterable
from collections.abc import Set as AbstractSet

import onnx

from rnnqc.errors import CompileError
from rnnqc.proto.graph_walks import blocks_of, inner_graphs

EXPORT_AGAIN = "export the model again"
_UNIQUE = "one producer and one name for each value"
_MESSAGES = {onnx.AttributeProto.TENSOR: "t", onnx.AttributeProto.GRAPH: "g"}


def check_structure(graph: onnx.GraphProto, source: str) -> None:
    """Checks that every value has one producer, in subgraphs too.

    Raises:
        CompileError: With the node and value concerned.
    """
    work: list[tuple[onnx.GraphProto, frozenset[str]]] = [(graph, frozenset())]
    while work:
        current, outer = work.pop()
        own = _own_values(current, source)
        visible = outer | own
        for node in current.node:
            _check_names(node, visible, source)
            work.extend((inner, visible) for inner in inner_graphs(node))
        _check_outputs(current, own, visible, source)


def _own_values(graph: onnx.GraphProto, source: str) -> set[str]:
    """Returns the names of inputs, constants and results of a graph, and checks that each has one producer."""
    own: set[str] = set()
    for value in graph.input:
        if not value.name or value.name in own:
            raise CompileError(
                f"{source}: two graph inputs are called {value.name!r}, or one has no name.",
                supported=_UNIQUE,
                action=EXPORT_AGAIN,
            )
        own.add(value.name)
    stored = {t.name for t in [*graph.initializer, *(s.values for s in graph.sparse_initializer)]}
    if "" in stored:
        raise CompileError(f"{source}: an initializer has no name.", supported=_UNIQUE, action=EXPORT_AGAIN)
    own |= stored
    for node in graph.node:
        for name in node.output:
            if name and name in own:
                raise CompileError(
                    f"{source}: value {name!r} has more than one producer; the second is {node_text(node)}.",
                    supported=_UNIQUE,
                    action=EXPORT_AGAIN,
                )
            own.add(name)
    own.discard("")
    return own


def _check_names(node: onnx.NodeProto, visible: AbstractSet[str], source: str) -> None:
    """Checks operator and attributes of a node, and that its inputs are visible values."""
    if not node.op_type:
        raise CompileError(
            f"{source}: {node_text(node)} has no operator type.", supported="named operators", action=EXPORT_AGAIN
        )
    if any(isinstance(text, bytes) for text in (node.op_type, node.domain, *node.input, *node.output)):
        raise CompileError(
            f"{source}: a name at {node_text(node)} is not UTF-8.", supported="UTF-8", action=EXPORT_AGAIN
        )
    empty = [a.name for a in node.attribute if _is_empty(a)]
    if empty:
        raise CompileError(
            f"{source}: attribute {empty[0]!r} of {node_text(node)} is empty.",
            supported="attributes that hold what their type says",
            action=EXPORT_AGAIN,
        )
    references = [a.name for a in node.attribute if a.ref_attr_name]
    if references:
        raise CompileError(
            f"{source}: attribute {references[0]!r} of {node_text(node)} stands for one of a function.",
            supported="such attributes in functions alone",
            action=EXPORT_AGAIN,
        )
    for name in node.input:
        if name and name not in visible:
            raise CompileError(
                f"{source}: {node_text(node)} uses {name!r}, which nothing makes.",
                supported=_UNIQUE,
                action=EXPORT_AGAIN,
            )


def _check_outputs(graph: onnx.GraphProto, own: AbstractSet[str], visible: AbstractSet[str], source: str) -> None:
    """Checks that a graph produces its outputs."""
    for value in graph.output:
        if value.name in visible and value.name not in own:
            raise CompileError(
                f"{source}: output {value.name!r} of a subgraph is a value from outside.",
                supported="values made in the subgraph",
                action="put an Identity node in front of the output",
            )
        if value.name not in own:
            raise CompileError(
                f"{source}: graph output {value.name!r} is made by nothing.", supported=_UNIQUE, action=EXPORT_AGAIN
            )


def check_functions(functions: Iterable[onnx.FunctionProto], source: str) -> None:
    """Refuses two functions of the same name, and functions that call each other in a cycle."""
    calls: dict[tuple[str, str, str], set[tuple[str, str, str]]] = {}
    for function in functions:
        key = (function.domain, function.name, function.overload)
        if key in calls:
            raise CompileError(
                f"{source}: two functions are called {function.name!r} in domain {function.domain!r}.",
                supported="one function for each domain, name and overload",
                action=EXPORT_AGAIN,
            )
        calls[key] = {(n.domain, n.op_type, n.overload) for b in blocks_of([function]) for n in b.node}
    try:
        graphlib.TopologicalSorter({key: called & calls.keys() for key, called in calls.items()}).prepare()
    except graphlib.CycleError as error:
        domain, name, _ = error.args[1][0]
        raise CompileError(
            f"{source}: function {name!r} of domain {domain!r} calls itself, or functions that call it.",
            supported="functions without recursion",
            action=EXPORT_AGAIN,
        ) from error


def _is_empty(attr: onnx.AttributeProto) -> bool:
    return attr.type in _MESSAGES and not attr.HasField(_MESSAGES[attr.type]) and not attr.ref_attr_name


def node_text(node: onnx.NodeProto) -> str:
    """Names a node in messages."""
    name = node.name or next((o for o in node.output if o), "")
    return f"node {name!r} ({node.op_type})"
