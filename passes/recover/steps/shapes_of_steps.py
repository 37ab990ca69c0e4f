"""Steps of which a graph uses the shape alone: Keras computes one in front of a loop with a mask, to make zeros."""

from __future__ import annotations

from collections.abc import Sequence

from rnnqc.ir import Graph, Model, Node, Value
from rnnqc.ir.builder import Builder
from rnnqc.passes.recover.rows.row_reader import RowReader
from rnnqc.passes.recover.steps.step_matcher import FoundStep

_RANK = 2


def without_shapes_alone(
    model: Model, graph: Graph, reader: RowReader, steps: Sequence[FoundStep]
) -> tuple[list[FoundStep], bool]:
    """Computes shapes of steps without the steps, where nothing else of them is used.

    Returns:
        The other steps, and whether there were such.
    """
    outputs = {id(v) for v in graph.outputs}
    kept: list[FoundStep] = []
    for step in steps:
        values = _operands(reader, step) if _is_shape_alone(step, outputs) else None
        if values is None:
            kept.append(step)
            continue
        for node in list(step.h_next.outputs):
            _write_shape(model, graph, node, values, step.width)
    return kept, len(kept) < len(steps)


def _is_shape_alone(step: FoundStep, outputs: set[int]) -> bool:
    """Whether Shape alone reads the new hidden state, and nothing but the step itself the new cell state."""
    ends = [v for v in (step.h_next, step.c_next) if v is not None]
    if any(id(v) in outputs for v in ends) or (step.c_next is not None and len(step.c_next.outputs) != 1):
        return False
    readers = step.h_next.outputs
    return bool(readers) and all(n.op == "Shape" and not n.domain and not n.attrs for n in readers)


def _operands(reader: RowReader, step: FoundStep) -> list[Value] | None:
    """What may give the step its rows; None if that is not known of all of them."""
    inner = (step.cell_atom, step.reset)
    atoms = [a for _, a, _, _ in step.operands() if a not in inner] + [step.hidden, step.cell]
    values: dict[int, Value] = {}
    for atom in atoms:
        if atom is None:
            continue
        value = atom.value
        if value is None or len(reader.shape(value) or ()) != _RANK:
            return None
        values[id(value)] = value
    return list(values.values()) or None


def _write_shape(model: Model, graph: Graph, node: Node, values: Sequence[Value], width: int) -> None:
    """Lets the output of a Shape be the rows of the sum of one column of each value, and a width."""
    b = Builder(model, prefix=model.fresh_name(node.outputs[0].name))
    total: Value | None = None
    for k, value in enumerate(values):
        column = b.op("Slice", [value, b.i64([0]), b.i64([1]), b.i64([1])], f"column.{k}")
        total = column if total is None else b.op("Add", [total, column], f"columns.{k}")
    assert total is not None
    rows = b.op("Slice", [b.op("Shape", [total], "sizes"), b.i64([0]), b.i64([1])], "rows")
    (target,) = node.outputs
    node.outputs[0] = b.value("replaced")
    b.add("Concat", [rows, b.i64([width])], [target], "shape", axis=0)
    model.insert_nodes(graph, node, b.nodes)
