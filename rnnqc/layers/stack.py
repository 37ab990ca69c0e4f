"""Builds several recurrent layers on top of each other from models of their cells."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence

import onnx
from onnx import helper

from rnnqc.errors import CompileError, UsageError
from rnnqc.evaluation.invalid_model_errors import refusing_invalid_models
from rnnqc.layers.layer import LENGTHS, layer
from rnnqc.proto.given import Given
from rnnqc.proto.value_names import free_name, names_of, rename
from rnnqc.proto.version_conversion import convert_version

Y = "Y"


@refusing_invalid_models
def stack(
    cells: Sequence[Given],
    *,
    alternate: bool = False,
    bidirectional: bool = False,
    reverse: bool = False,
    state: Mapping[str, str] | Iterable[str] | None = None,
    lengths: bool = False,
    initial_states: bool = False,
) -> onnx.ModelProto:
    """Builds a model that runs layers of cells over a sequence, each over the outputs of the one below.

    Args:
        cells: Models of one step, as `rnnqc.layer` takes them, the lowest first. They share nothing, even if names and
            sizes are equal.
        alternate: Run every second layer, starting with the second, from the last step to the first.
        bidirectional: Two cells make a layer, the first of them runs forward, the other backward. Both get the same
            input; their outputs are joined, `[T,B,H1 + H2]`.
        reverse: Run all layers from the last step to the first; with `alternate` the first, the third, ...
        state: For each input that is a state the output that becomes it, in all cells.
        lengths: Give the model an input `sequence_lens`, int32 `[B]`, as for a layer, that applies to all layers.
        initial_states: Make the initial states inputs; otherwise they are zeros.

    Returns:
        A model with the input `x [T,B,I]` under the first cell's name for it. Its outputs: `Y`, those of the highest
        layer `[T,B,H]`, and the other outputs of `rnnqc.layer` for every layer. Names of layer k, counted from 0, begin
        with `l<k>/`, those of its backward cell with `l<k>_reverse/`: `l0/W`, `l1_reverse/c_next`, `l1/c` for
        initializers, final states, initial states. A single cell in one direction gives the result of `rnnqc.layer`.

    Raises:
        CompileError: A model is not a cell, or its width or type differs from that of the layer below it.
        UsageError: No cells, an odd number of them in both directions, or directions that contradict each other.
    """
    if isinstance(cells, str | os.PathLike | onnx.ModelProto):
        raise UsageError(
            "cells is one cell, not a list.", supported="a list of cells", action="rnnqc.layer makes a layer of one"
        )
    if not cells:
        raise UsageError("no cells are given.", supported="one cell or more")
    if bidirectional and (alternate or reverse):
        raise UsageError("bidirectional together with alternate or reverse.", supported="one of them")
    if bidirectional and len(cells) % 2:
        raise UsageError(
            f"{len(cells)} cells in both directions.",
            supported="two for each layer: forward, backward, forward, backward, ...",
        )
    states = state if state is None or isinstance(state, str | Mapping) else list(state)
    if len(cells) == 1:
        return layer(cells[0], state=states, reverse=reverse, lengths=lengths, initial_states=initial_states)
    directions = [reverse != ((alternate or bidirectional) and bool(k % 2)) for k in range(len(cells))]
    made = [
        layer(cell, state=states, reverse=backward, lengths=lengths, initial_states=initial_states)
        for cell, backward in zip(cells, directions, strict=True)
    ]
    names = [_name(cell, k) for k, cell in enumerate(cells)]
    floors = [[2 * k, 2 * k + 1] for k in range(len(made) // 2)] if bidirectional else [[k] for k in range(len(made))]
    return _joined(_of_one_operator_set(made, names), names, floors)


def _name(cell: Given, number: int) -> str:
    """Returns the name of a cell in messages."""
    return os.fspath(cell) if isinstance(cell, str | os.PathLike) else f"cell {number + 1}"


def _of_one_operator_set(layers: Sequence[onnx.ModelProto], names: Sequence[str]) -> list[onnx.ModelProto]:
    """Converts the layers to the newest of their operator sets.

    Raises:
        CompileError: One cannot be converted, or a domain other than ONNX's has two versions.
    """
    versions = [{_domain(o.domain): o.version for o in m.opset_import} for m in layers]
    newest = max(v[""] for v in versions)
    others: dict[str, int] = {}
    for found, name in zip(versions, names, strict=True):
        for domain, version in found.items():
            if domain and others.setdefault(domain, version) != version:
                raise CompileError(
                    f"{name}: operator set {domain!r} {version}, and {others[domain]} in another cell.",
                    supported="cells with the same operator sets besides ONNX's own",
                    action="export the cells with one exporter",
                )
    return [
        m if v[""] == newest else convert_version(m, v[""], newest, f"{name}:")
        for m, v, name in zip(layers, versions, names, strict=True)
    ]


def _domain(name: str) -> str:
    return "" if name == "ai.onnx" else name


def _joined(
    layers: Sequence[onnx.ModelProto], names: Sequence[str], floors: Sequence[Sequence[int]]
) -> onnx.ModelProto:
    """Joins layers to one model; each reads the outputs of the level below."""
    first = layers[0].graph.input[0]
    taken = {first.name, LENGTHS}
    graph = onnx.GraphProto(name="stack")
    graph.input.append(first)
    graph.input.extend(v for v in layers[0].graph.input if v.name == LENGTHS)
    others: list[onnx.ValueInfoProto] = []
    below, sources, y = first, "the input", free_name(Y, taken)
    for level, floor in enumerate(floors):
        outputs = []
        last, joined = level == len(floors) - 1, len(floor) > 1
        for number in floor:
            part, label = layers[number].graph, f"l{level}" + ("_reverse" if number != floor[0] else "")
            _check_fits(below, part.input[0], names[number], sources)
            own = {n: free_name(f"{label}/{n}", taken) for n in sorted(names_of(part) - {LENGTHS})}
            own[part.input[0].name] = below.name
            if last and not joined:
                own[part.output[0].name] = y
            rename(part, own)
            graph.input.extend(v for v in part.input[1:] if v.name != LENGTHS)
            graph.node.extend(part.node)
            graph.initializer.extend(part.initializer)
            graph.sparse_initializer.extend(part.sparse_initializer)
            outputs.append(part.output[0])
            others += part.output[1:]
        sources = " and ".join(names[n] for n in floor)
        below = outputs[0]
        if joined:
            below = _concatenated(graph, outputs, y if last else free_name(f"l{level}/{Y}.joined", taken), sources)
    graph.output.extend([below, *others])
    made = onnx.ModelProto(producer_name="rnnqc", ir_version=max(m.ir_version for m in layers))
    made.graph.CopyFrom(graph)
    versions = {_domain(o.domain): o.version for m in layers for o in m.opset_import}
    made.opset_import.extend(helper.make_opsetid(d, v) for d, v in versions.items())
    return made


def _concatenated(
    graph: onnx.GraphProto, outputs: Sequence[onnx.ValueInfoProto], name: str, sources: str
) -> onnx.ValueInfoProto:
    """Concatenates the outputs of both directions."""
    if len({o.type.tensor_type.elem_type for o in outputs}) > 1:
        raise CompileError(f"{sources} write different types.", supported="two directions of one type")
    graph.node.append(helper.make_node("Concat", [o.name for o in outputs], [name], name, axis=2))
    made = onnx.ValueInfoProto()
    made.CopyFrom(outputs[0])
    made.name = name
    made.type.tensor_type.shape.dim[2].dim_value = sum(_width(o) for o in outputs)
    return made


def _width(value: onnx.ValueInfoProto) -> int:
    """Returns the last dimension; 0 if it is not declared."""
    dims = value.type.tensor_type.shape.dim
    return int(dims[-1].dim_value) if dims else 0


def _check_fits(below: onnx.ValueInfoProto, x: onnx.ValueInfoProto, name: str, sources: str) -> None:
    """Raises CompileError if a layer cannot read the outputs below it."""
    found, wanted = _width(below), _width(x)
    if found and wanted and found != wanted:
        raise CompileError(
            f"{name}: its input {x.name!r} has {wanted} features, and {sources} has {found}.",
            supported="layers as wide as what they read; after two directions the sum of both widths",
            action="export the cell with that input size, or give the cells in another order",
        )
    types = [helper.tensor_dtype_to_string(v.type.tensor_type.elem_type) for v in (below, x)]
    if types[0] != types[1]:
        raise CompileError(
            f"{name}: its input {x.name!r} is {types[1]}, and {sources} is {types[0]}.", supported="cells of one type"
        )
