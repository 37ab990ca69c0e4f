"""Gives the values, nodes and dimensions of a model other names: odd ones are valid, too."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import onnx

from rnnqc.proto.graph_walks import blocks_of

Renamed = Callable[[str], str]
_EQUAL_LENGTH = 48
# What tools and people write, and what meets code that takes names for paths, patterns, markup or formats.
STYLES: dict[str, Renamed] = {
    "plain": lambda name: name,
    "paths": lambda name: f"/encoder/{name}/../{name}:0",
    "markup": lambda name: f"<b onclick='{name}'>&amp;\"</b>[red]",
    "shell": lambda name: f"$({name}); `{name}` | rm -rf *?",
    "formats": lambda name: f"%s{{0}}{name}{{}}%(x)d\\n",
    "white": lambda name: f" {name}\n\t",
    "foreign": lambda name: f"ünï_{name}_层\u202e\U0001f600",
    "own": lambda name: f"rnnqc/{name}.forward/x_q",
    "long": lambda name: f"{name}_" * 60,
    "replaced": lambda name: _unsafe(name),
}


def _unsafe(name: str) -> str:
    """A name of its own that is all of characters that safe names do not have; most names become equally long."""
    return "".join(chr(0x4E00 + ord(c)) for c in name).ljust(_EQUAL_LENGTH, "\u4e00")


def rename(model: onnx.ModelProto, new: Renamed, only: Iterable[str] | None = None) -> None:
    """Renames values, nodes and symbolic dimensions of the main graph and of graphs in it; functions stay.

    Args:
        model: The model; changed.
        new: The new name of a name.
        only: The values to rename, and no nodes and dimensions; by default everything.
    """
    chosen = None if only is None else set(only)

    def renamed(name: str) -> str:
        return new(name) if name and (chosen is None or name in chosen) else name

    for graph in blocks_of([model.graph]):
        assert isinstance(graph, onnx.GraphProto)
        for node in graph.node:
            if chosen is None:
                node.name = renamed(node.name)
            for names in (node.input, node.output):
                names[:] = [renamed(n) for n in names]
        for tensor in graph.initializer:
            tensor.name = renamed(tensor.name)
        for value in (*graph.input, *graph.output, *graph.value_info):
            value.name = renamed(value.name)
            if chosen is None:
                for dim in value.type.tensor_type.shape.dim:
                    if dim.HasField("dim_param"):
                        dim.dim_param = renamed(dim.dim_param)


def made_values(graph: onnx.GraphProto) -> list[str]:
    """The values that the nodes of a graph compute, with those that its subgraphs define."""
    found = [name for block in blocks_of([graph]) for node in block.node for name in node.output if name]
    inner = [g for g in blocks_of([graph]) if g is not graph and isinstance(g, onnx.GraphProto)]
    return found + [v.name for g in inner for v in (*g.input, *g.initializer)]
