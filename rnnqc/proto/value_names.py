"""Names of values and nodes in a graph and its subgraphs."""

from __future__ import annotations

from collections.abc import Mapping

import onnx

from rnnqc.proto.graph_walks import blocks_of


def names_of(graph: onnx.GraphProto) -> set[str]:
    """Returns the names of all values and nodes, in subgraphs too."""
    found: set[str] = set()
    for block in blocks_of([graph]):
        found.update(n.name for n in block.node)
        found.update(o for n in block.node for o in n.output)
        if isinstance(block, onnx.GraphProto):
            found.update(v.name for v in (*block.input, *block.output, *block.initializer))
    return found - {""}


def free_name(name: str, taken: set[str]) -> str:
    """Returns `name`, with a number added if it is in `taken`; adds the result to `taken`."""
    made, k = name, 1
    while made in taken:
        k += 1
        made = f"{name}_{k}"
    taken.add(made)
    return made


def rename(graph: onnx.GraphProto, names: Mapping[str, str]) -> None:
    """Renames values and nodes of a graph and its subgraphs, in place."""
    for block in blocks_of([graph]):
        for node in block.node:
            node.name = names.get(node.name, node.name)
            for values in (node.input, node.output):
                renamed = [names.get(v, v) if v else v for v in values]
                del values[:]
                values.extend(renamed)
        if isinstance(block, onnx.GraphProto):
            sparse = (t for s in block.sparse_initializer for t in (s.values, s.indices))
            for value in (*block.input, *block.output, *block.value_info, *block.initializer, *sparse):
                value.name = names.get(value.name, value.name)
