"""Walks over the graphs of a protobuf model, and the values that they share."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence

import onnx

Block = onnx.GraphProto | onnx.FunctionProto


def inner_graphs(node: onnx.NodeProto) -> list[onnx.GraphProto]:
    """Returns the subgraphs of a node."""
    found: list[onnx.GraphProto] = []
    for attribute in node.attribute:
        if attribute.HasField("g"):
            found.append(attribute.g)
        if attribute.graphs:
            found.extend(attribute.graphs)
    return found


def blocks_of(roots: Iterable[Block]) -> Iterator[Block]:
    """Yields `roots` and all subgraphs of their nodes, outer ones first, in order."""
    pending: deque[Block] = deque(roots)
    while pending:
        block = pending.popleft()
        yield block
        for node in block.node:
            pending.extend(inner_graphs(node))


def defined(graph: onnx.GraphProto) -> set[str]:
    """Returns the names of inputs, initializers and values that a graph defines, without its subgraphs."""
    tensors = [*graph.initializer, *(s.values for s in graph.sparse_initializer)]
    return {v.name for v in [*graph.input, *tensors]} | {o for node in graph.node for o in node.output if o}


def stored_tensors(block: Block) -> Iterator[onnx.TensorProto]:
    """Yields the constants of one graph or function: its initializers, and the tensors of its Constant nodes."""
    return (tensor for _, tensor in named_tensors(block))


def named_tensors(block: Block) -> Iterator[tuple[str, onnx.TensorProto]]:
    """Yields the same tensors with the names of their values."""
    if isinstance(block, onnx.GraphProto):
        yield from ((t.name, t) for t in block.initializer)
    for node in block.node:
        if node.op_type == "Constant":
            name = node.output[0] if node.output else ""
            yield from ((name, a.t) for a in node.attribute if a.HasField("t"))


def branch_results(node: onnx.NodeProto, value: str) -> list[str]:
    """Returns the value behind output `value` of an If in each branch; empty for other nodes."""
    if node.op_type != "If" or value not in node.output:
        return []
    index = list(node.output).index(value)
    return [g.output[index].name for g in inner_graphs(node) if index < len(g.output)]


def captured(graph: onnx.GraphProto) -> set[str]:
    """Returns the outer values that a subgraph and its subgraphs read. Assumes unique names over the whole model."""
    read: set[str] = set()
    made: set[str] = set()
    for block in blocks_of([graph]):
        assert isinstance(block, onnx.GraphProto)
        read |= {i for n in block.node for i in n.input if i} | {o.name for o in block.output}
        made |= {v.name for v in block.input} | {t.name for t in block.initializer}
        made |= {o for n in block.node for o in n.output}
    return read - made


def reads(node: onnx.NodeProto) -> set[str]:
    """Returns the values of its graph that a node and its subgraphs read."""
    return {i for i in node.input if i}.union(*(captured(g) for g in inner_graphs(node)))


def needed(nodes: Sequence[onnx.NodeProto], names: Iterable[str]) -> list[onnx.NodeProto]:
    """Returns those of `nodes` that are needed to compute `names`. The nodes have no subgraphs."""
    wanted = {n for n in names if n}
    kept = []
    for node in reversed(nodes):
        if any(o in wanted for o in node.output):
            kept.append(node)
            wanted.update(i for i in node.input if i)
    return kept[::-1]
