"""Steps of which a graph only uses the shape: Keras computes one in front of a masked loop, to create zeros."""

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
    """Computes shapes of steps without the steps, where no other result of them is used.

    Returns:
        The other steps, and whether any were removed.
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
    """Whether only Shape reads the new hidden state, and only the step itself the new cell state."""
    ends = [v for v in (step.h_next, step.c_next) if v is not None]
    if any(id(v) in outputs for v in ends) or (step.c_next is not None and len(step.c_next.outputs) != 1):
        return False
    readers = step.h_next.outputs
    return bool(readers) and all(n.op == "Shape" and not n.domain and not n.attrs for n in readers)


def _operands(reader: RowReader, step: FoundStep) -> list[Value] | None:
    """The values that may determine the rows of a step; None if one of them is unknown."""
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
    """Replaces the output of a Shape by the rows of the sum of one column of each value, and a width."""
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
