"""Replaces parts of a stack by the stacked values."""

from __future__ import annotations

from rnnqc.evaluation.numerics import Bitwise
from rnnqc.ir import Graph, Model, Node, Value, attribute, input_or_none, maker_of, output_number, shape_of
from rnnqc.ir.builder import Builder
from rnnqc.passes.base import Pass, PassInfo, PassResult
from rnnqc.passes.graph.values.constant_expressions import Constants
from rnnqc.passes.graph.values.index_expressions import Indices
from rnnqc.passes.graph.values.sequence_elements import PICKS, changed_axes, keeps_axis, slice_bounds
from rnnqc.passes.invariants import Property

_Range = tuple[int, int, int]
"""An axis, the first element along it, and how many there are."""

_Lengths = dict[tuple[int, int], int | None]
"""How many elements a value has along an axis, by the value's `id`."""


class RemoveStacks(Pass):
    """Replaces a part of a Concat that equals one of its operands by the operand.

    Before, as PyTorch's exporters write the states of several layers from one step to the next:

        h of layer 1 -> Unsqueeze, h of layer 2 -> Unsqueeze; both -> Concat -> Gather(1) -> next step of layer 2

    After: `h of layer 2 -> next step of layer 2`

    So a state passes directly from step to step. A part is a whole operand, selected by a Gather of one element, a
    Slice or a Split with known bounds; the operands in front of it have known sizes. Nested stacks are handled.
    """

    info = PassInfo(
        name="remove-stacks",
        summary="remove stacks of values that are taken apart again",
        numerics=Bitwise(),
        requires=frozenset({Property.CANONICAL}),
    )

    def run(self, model: Model) -> PassResult:
        """Looks at every graph."""
        takers = [(g, n) for g in model.graphs() for n in g.nodes if n.op in PICKS and not n.domain and _of_stack(n)]
        if not takers:
            return PassResult(False)
        model.infer_shapes({})
        indices, count, graphs = Indices(Constants(model), shape_of), 0, list(model.graphs())
        lengths: _Lengths = {}
        for graph, node in takers:
            for position, made in enumerate(node.outputs):
                taken = _range(node, position, indices)
                held = None if taken is None else _operand(node.inputs[0], taken, indices, lengths)
                if taken is None or held is None or any(made is v for v in graph.outputs):
                    continue
                if node.op == "Gather" and shape_of(node.inputs[1]) == []:
                    held = _without_axis(model, graph, node, held, taken[0], indices)
                model.replace_all_uses(made, held, graphs)
                count += 1
        return PassResult(count > 0, (), {"elements": count})


def _of_stack(node: Node) -> bool:
    """Whether the input of a node comes from a Concat, possibly through Slice and Split."""
    maker = maker_of(node.inputs[0])
    while maker is not None and maker.op in ("Slice", "Split"):
        maker = maker_of(maker.inputs[0])
    return maker is not None and maker.op == "Concat"


def _range(node: Node, position: int, indices: Indices) -> _Range | None:
    """The range of its input that output `position` of a Gather, Slice or Split selects; None if unknown."""
    shape = shape_of(node.inputs[0])
    if not shape:
        return None
    axis = attribute(node, "axis", 0) % len(shape)
    if node.op == "Gather":
        rank, at = shape_of(node.inputs[1]), indices.numbers(node.inputs[1])
        if rank is None or len(rank) > 1 or at is None or len(at) != 1:
            return None
        start, size = at[0], 1
    elif node.op == "Split":
        total, count = shape[axis], len(node.outputs)
        sizes = indices.numbers(input_or_none(node, 1))
        if sizes is None and input_or_none(node, 1) is None and isinstance(total, int) and total % count == 0:
            sizes = [total // count] * count
        if sizes is None or len(sizes) != count:
            return None
        start, size = sum(sizes[:position]), sizes[position]
    else:
        bounds = slice_bounds(node, indices)
        cut = [] if bounds is None else [k for k, held in bounds.items() if not keeps_axis(held, shape[k])]
        if bounds is None or len(cut) != 1:
            return None
        (axis,) = cut
        first, last, step = bounds[axis][0].number, bounds[axis][1].number, bounds[axis][2]
        total = shape[axis]
        if first is None or last is None or step != 1 or not isinstance(total, int):
            return None
        start, end, _ = slice(first, last).indices(total)
        size = end - start
    if start < 0:
        total = shape[axis]
        start = start + total if isinstance(total, int) else -1
    return (axis, start, size) if start >= 0 and size > 0 else None


def _operand(value: Value, taken: _Range, indices: Indices, lengths: _Lengths) -> Value | None:
    """The operand of a Concat that equals a range of `value`; None if there is none."""
    axis, start, size = taken
    while (node := maker_of(value)) is not None:
        if node.op in ("Slice", "Split"):
            held = _range(node, output_number(node, value), indices)
            if held is None or held[0] != axis:
                return None
            value, start = node.inputs[0], start + held[1]
            continue
        shape = shape_of(value)
        if node.op != "Concat" or shape is None or attribute(node, "axis", 0) % len(shape) != axis:
            return None
        found = None
        for part in node.inputs:
            if (id(part), axis) not in lengths:
                lengths[id(part), axis] = _length(part, axis, indices)
            length = lengths[id(part), axis]
            if length is None:
                return None
            if start < length:
                found = part, length
                break
            start -= length
        if found is None or start + size > found[1]:
            return None
        value = found[0]
        if size == found[1]:
            return value
    return None


def _length(value: Value, axis: int, indices: Indices) -> int | None:
    """The size of `value` along an axis."""
    shape = shape_of(value)
    length = None if shape is None else shape[axis]
    return 1 if _added_axis(value, indices) == axis else length if isinstance(length, int) else None


def _added_axis(value: Value, indices: Indices) -> int | None:
    """The axis that an Unsqueeze added to produce `value`."""
    node, shape = maker_of(value), shape_of(value)
    axes = None if node is None or node.op != "Unsqueeze" or shape is None else changed_axes(node, indices)
    return axes[0] % len(shape) if axes is not None and shape is not None and len(axes) == 1 else None


def _without_axis(model: Model, graph: Graph, taker: Node, held: Value, axis: int, indices: Indices) -> Value:
    """An operand without its axis of size one."""
    if _added_axis(held, indices) == axis:
        return held.inputs[0].inputs[0]
    b = Builder(model, prefix=taker.outputs[0].name)
    made = b.op("Squeeze", [held, b.i64([axis])], "operand")
    model.insert_nodes(graph, taker, b.nodes)
    return made
