"""Finds cells in the graphs that contain them, and the sources of their inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from rnnqc.cells.base import Cell
from rnnqc.cells.stages import QuantizedCell, points_of
from rnnqc.formats.format import Format, FormatError, IntegerFormat
from rnnqc.formats.packing import BYTE_BITS
from rnnqc.formats.point_format import CHAINED, EMBEDDED, ROWS, STATIC, PointFormat
from rnnqc.ir import CELL_TAG, Graph, Model, Node, Value, constant_array, graph_info, info, maker_of
from rnnqc.passes.graph.nodes.quant_operators import CELL_OP
from rnnqc.passes.graph.values.constant_expressions import Constants
from rnnqc.passes.graph.values.embedding_rows import EmbeddingRows, embedding_rows
from rnnqc.passes.graph.values.layout_ops import sources_of

ROW_FORMAT = IntegerFormat(BYTE_BITS, True, narrow=True)
"""The format of an embedding's int8 rows."""


def parameters_of(model: Model, cell: Cell) -> dict[str, npt.NDArray[np.float32]]:
    """Returns W, R, B and hidden_bias of a cell, as far as they are constants of the main graph."""
    held = graph_info(model.graph).initializers
    names = {"W": cell.W, "R": cell.R, "B": cell.B, "hidden_bias": cell.hidden_bias}
    arrays = {k: constant_array(held[n]) for k, n in names.items() if n is not None}
    return {k: a for k, a in arrays.items() if a is not None}


def graphs_of_cells(model: Model) -> dict[str, Graph]:
    """Maps each cell's name to the graph that holds its nodes."""
    found: dict[str, Graph] = {}
    for graph in model.graphs():
        for node in graph.nodes:
            cell = info(node).metadata.get(CELL_TAG)
            if cell is not None:
                found.setdefault(cell, graph)
    return found


def replace_cell(model: Model, graph: Graph, cell: Cell, nodes: Sequence[Node]) -> None:
    """Replaces the cell's present nodes by `nodes`, which produce the boundary outputs; the caller sorts."""
    fresh = {id(n) for n in nodes}
    old = [n for n in graph.nodes if info(n).metadata.get(CELL_TAG) == cell.name and id(n) not in fresh]
    position = next(i for i, n in enumerate(graph.nodes) if n is old[0])
    model.remove_nodes(graph, old)
    graph.nodes[position:position] = list(nodes)


def chain_sources(model: Model, value: Value) -> list[tuple[Cell, Value]] | None:
    """Returns the cells whose hidden states form `value`, moved but unchanged; None if it has other sources."""
    by_output = {c.y: c for c in model.cells.values() if c.y is not None}
    found: list[tuple[Cell, Value]] = []
    for source, cell in sources_of(value, lambda v: by_output.get(v.name)):
        if cell is None:
            return None
        found.append((cell, source))
    return found


def given_format(value: Value) -> Format | None:
    """Returns the format of moved but unchanged results of DequantizeLinear; None if `value` has other sources.

    Signed quantized values are offset to be unsigned: the same real values.
    """
    found = {known for _, known in sources_of(value, _dequantized_format)}
    return found.pop() if len(found) == 1 else None


def taken_format(value: Value, mode: str | None, bits: int) -> Format | None:
    """Returns `given_format` if a chaining input accepts it: for a per-row dynamic scale, with no more bits."""
    given = given_format(value) if mode == ROWS else None
    return given if given is not None and given.bits <= bits else None


def taken_rows(graph: Graph, cell: Cell, x: Value, mode: str | None, bits: int | None) -> EmbeddingRows | None:
    """Returns the int8 rows of an embedding that a chaining input takes instead of a per-row dynamic scale of 8 bits.

    Args:
        graph: The graph that contains the cell.
        cell: The cell.
        x: Its input.
        mode: The mode that the recipe asks for.
        bits: The width that the recipe asks for.
    """
    found = embedding_rows(x, cell.input_size) if mode == ROWS and bits == BYTE_BITS else None
    return found if found is not None and any(n is found.rows for n in graph.nodes) else None


def _dequantized_format(value: Value) -> Format | None:
    node = maker_of(value)
    if node is None or node.op != "DequantizeLinear" or len(node.inputs) < 3:
        return None
    scale, zero_point = map(constant_array, node.inputs[1:3])
    if scale is None or zero_point is None or scale.size != 1 or zero_point.size != 1:
        return None
    if zero_point.dtype.kind not in "iu" or zero_point.dtype.itemsize > 2:
        return None
    bits = 8 * zero_point.dtype.itemsize
    raised = 2 ** (bits - 1) if zero_point.dtype.kind == "i" else 0
    try:
        return Format(bits, False, (float(scale.item()),), zero_point=int(zero_point.item()) + raised)
    except FormatError:  # a scale of zero
        return None


def chain_input(
    model: Model, graph: Graph, cell: QuantizedCell, x: Value, others: Mapping[str, QuantizedCell]
) -> QuantizedCell:
    """Returns the cell with its input in the number format of the input's sources, if it accepts that.

    That is the format of hidden states of other cells; or, instead of a per-row dynamic scale, that of a
    DequantizeLinear in a model trained with quantizers, if it has no more bits, or that of an embedding's int8 rows.

    Args:
        model: The model.
        graph: The graph that contains the cell.
        cell: The cell.
        x: Its input.
        others: Cells by name whose formats are not yet in the model.
    """
    point = cell.points["input"]
    if point.format is None or not point.chain:
        return cell
    given = taken_format(x, point.mode, point.format.bits)
    if given is not None:
        return cell.with_point("input", PointFormat.of(given, chain=True, on_grid=True))
    if taken_rows(graph, cell, x, point.mode, point.format.bits) is not None:
        return cell.with_point("input", PointFormat(point.bits, ROW_FORMAT, EMBEDDED, chain=True))
    found = chain_sources(model, x)
    if not found:
        return cell
    sources = [others.get(c.name, c) for c, _ in found]
    formats = [points_of(c).get("hidden") for c in sources]
    first = formats[0]
    if first is None or first.mode != STATIC or first.format is None or any(f != first for f in formats):
        return cell
    if first.format.signed != point.format.signed and any(c.op == CELL_OP for c in sources):
        return cell  # Brevitas chose that format: the recipe may not support it
    if any(_may_keep_more(model, c) for c in sources):
        return cell
    return cell.with_point("input", replace(first, mode=CHAINED))


def _may_keep_more(model: Model, cell: Cell) -> bool:
    """Whether hidden states after many steps may exceed the bound of their format.

    A GRU keeps a share of its initial state in every step.
    """
    bound = points_of(cell)["hidden"].bound
    if bound is None or cell.initial_h is None or not cell.type.reads_hidden:
        return False
    state = model.find(cell.initial_h)
    if state is None:
        return True
    constants = Constants(model)
    sources = sources_of(state, constants.array)
    return any(not constants.zero(v) and (a is None or bool(np.any(np.abs(a) > bound))) for v, a in sources)
