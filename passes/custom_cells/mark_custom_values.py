"""Annotates the values at the quantization points of a custom cell, quantized or not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import onnx

from rnnqc.ir import Node, Value, attribute, shape_of
from rnnqc.passes.analysis.custom_cell import VALUE, CustomCell
from rnnqc.passes.analysis.observe_custom import mask_of
from rnnqc.passes.analysis.point_marks import MASK, REAL, mark_made, mark_taken
from rnnqc.passes.graph.values.layout_ops import MOVERS

FROM_OUTSIDE = f".input.{VALUE}"
_RANK = 2
PREVIOUS = "previous"
"""Suffix of a point's name: the state at the start of a step."""


class ValueMarks:
    """The values to annotate, recorded before the recurrence changes.

    Args:
        cell: The recurrence.
    """

    def __init__(self, cell: CustomCell) -> None:
        self.cell, self._mask = cell, mask_of(cell)

    def put(self, inside: set[int], exchanged: Mapping[int, Value]) -> None:
        """Annotates nodes.

        Args:
            inside: The nodes of the recurrence, by id.
            exchanged: The values that replace values from outside in the recurrence, by the ids of the replaced ones.
        """
        cell = self.cell
        for point, values in cell.edges.items():
            for value in values:
                made, rank = exchanged.get(id(value), value), _rank(value)
                ours = made is not value
                if point.endswith(FROM_OUTSIDE) and (rank or 0) > _RANK:
                    taken = _taken(made, inside)
                    ours, rank, made = ours or taken is not made, _rank(taken), taken
                self._put(made, point, inside, ours, rank=rank)
        for state in cell.states:
            origin = cell.origins.get(id(state.before))
            if origin is not None and not state.invariant:
                ranks = map(_rank, (state.before, state.initial, state.after))
                rank = next((r for r in ranks if r is not None), None)
                self._put(state.before, f"{origin}.{PREVIOUS}", inside, False, rank=rank)
        if self._mask is not None:
            user = next(n for n in self._mask.outputs if n.op == "Where")
            rank = _rank(self._mask)
            mark_taken(user, self._mask, cell.name, MASK, MASK, kind=onnx.TensorProto.BOOL, rank=rank)

    def _put(self, value: Value, tensor: str, inside: set[int], ours: bool, **facts: Any) -> None:
        """Annotates the node that computes a value if it is inside or rnnqc's own, otherwise a node that reads it."""
        maker = value.inputs[0] if value.inputs else None
        if maker is not None and (ours or id(maker) in inside):
            mark_made(value, self.cell.name, tensor, REAL, **facts)
            return
        user = next((n for n in value.outputs if id(n) in inside), None)
        if user is not None:
            mark_taken(user, value, self.cell.name, tensor, REAL, **facts)


def runs_backwards(loop: Node | None) -> bool:
    """Whether a loop reads the elements of its sequences from the last to the first."""
    directions = attribute(loop, "scan_input_directions", []) if loop is not None and loop.op == "Scan" else []
    return bool(directions) and all(directions)


def record_of(cell: CustomCell, form: str, formats: Mapping[str, Any], given: Mapping[str, str]) -> dict[str, Any]:
    """Returns the record of a cell on its node, for tracing.

    Args:
        cell: The cell.
        form: The form of its values.
        formats: The formats of the points that quantize something.
        given: For each matmul operand, by its own point, the point whose format it has.
    """
    at = cell.recurrence
    return {
        "path": at.path, "op": at.op, "name": cell.name, "form": form, "reverse": runs_backwards(at.loop),
        "formats": dict(formats), "given": dict(given),
    }  # fmt: skip


def _taken(value: Value, inside: set[int]) -> Value:
    """Returns the element that a step reads from a whole sequence outside the loop."""
    rank = _RANK + 1
    while rank > _RANK:
        users = [n for n in value.outputs if id(n) in inside]
        if len(users) != 1 or users[0].op not in MOVERS or users[0].op == "Concat":
            break
        value = users[0].outputs[0]
        rank = _rank(value) or _RANK
    return value


def _rank(value: Value) -> int | None:
    shape = shape_of(value)
    return None if shape is None else len(shape)
