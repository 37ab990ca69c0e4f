"""Removes the sorting of a batch by length that an exporter has put around recurrent nodes."""

from __future__ import annotations

from dataclasses import dataclass, field

from rnnqc.cells.types import CELL_TYPES, output_names
from rnnqc.errors import Outcome, Remark
from rnnqc.evaluation.numerics import Bitwise, Close
from rnnqc.ir import Model, Node, Value, attribute, constant_array, display_name, input_or_none, shape_of
from rnnqc.passes.base import Pass, PassInfo, PassResult
from rnnqc.passes.graph.nodes.lstm_node import INITIAL_C, INITIAL_H, SEQUENCE_LENS, B, P, R, W, X, is_recurrent
from rnnqc.passes.invariants import Property
from rnnqc.passes.normalize.batch_sorts import COPIES, Sort, read_sort

ELEMENTWISE = frozenset((*COPIES, "Relu", "Tanh", "Sigmoid", "Neg", "Abs"))
BATCH_OF = {X: 1, SEQUENCE_LENS: 0, INITIAL_H: 1, INITIAL_C: 1}
BATCH_OF_OUTPUT = (2, 1, 1)


class RemoveSorting(Pass):
    """Removes the sort of a batch by length around recurrent nodes, which do not need it. Not among the default passes.

    Before, as PyTorch exports `pack_padded_sequence(..., enforce_sorted=False)`:

        lens -> TopK -> sorted lens, p;  q = ScatterElements(p, 0 1 2 ...)
        x -> Gather(p) -> LSTM(sorted lens) -> Gather(q)

    After: `x -> LSTM(lens)`

    A sort stays unless all nodes between the two kinds of Gather treat the rows of the batch alike and every result
    has its order restored: no other node reads the sorted batch.
    """

    info = PassInfo(
        name="remove-sorting",
        summary="remove sorting of a batch by length",
        numerics=Close(1e-5),
        requires=frozenset({Property.CANONICAL}),
    )
    infers_shapes = True

    def run(self, model: Model) -> PassResult:
        """Looks at every TopK of every graph."""
        remarks: list[Remark] = []
        for path, graph in list(model.paths()):
            for node in [n for n in graph.nodes if n.op == "TopK" and not n.domain]:
                sort = read_sort(node)
                region = _follow(model, sort) if sort is not None else None
                if sort is None or region is None:
                    continue
                _remove(model, sort, region)
                for layer in region.layers:
                    name, reason = f"{path}{display_name(layer)}", "the sort of its batch by length is gone."
                    remarks.append(self.remark(Outcome.NOTE, name, layer.op, reason))
        return PassResult(bool(remarks), tuple(remarks), {"layers": len(remarks)}, None if remarks else Bitwise())


@dataclass
class _Region:
    """The part of a graph in which the batch is sorted.

    Attributes:
        axes: The batch axis of each value, by its id.
        values: All sorted values, in the order they were found.
        gathers: Nodes that sort the batch.
        restored: Nodes that restore the order.
        layers: Recurrent nodes in the region.
    """

    axes: dict[int, int] = field(default_factory=dict)
    values: list[Value] = field(default_factory=list)
    gathers: list[Node] = field(default_factory=list)
    restored: list[Node] = field(default_factory=list)
    layers: list[Node] = field(default_factory=list)

    def add(self, value: Value, axis: int) -> bool:
        """Adds a sorted value; False if its batch is found on two axes."""
        if id(value) not in self.axes:
            self.axes[id(value)] = axis
            self.values.append(value)
        return self.axes[id(value)] == axis


def _follow(model: Model, sort: Sort) -> _Region | None:
    """Follows the sorted values until their order is restored; None if another node depends on the order."""
    outputs = {id(v) for g in model.graphs() for v in g.outputs}
    region = _Region()
    region.add(sort.sorted, 0)
    for p in sort.order:
        for user in p.outputs:
            if user.op == "Gather" and not user.domain and user.inputs[1] is p and user.inputs[0] is not p:
                shape, axis = shape_of(user.inputs[0]), attribute(user, "axis", 0)
                if shape is None and axis < 0:
                    return None
                region.gathers.append(user)
                region.add(user.outputs[0], axis if axis >= 0 or shape is None else axis + len(shape))
            elif user.op not in (*COPIES, "Shape", "ScatterElements"):
                return None
    done: set[int] = set()
    for value in region.values:  # the list grows
        axis = region.axes[id(value)]
        for user in value.outputs:
            if id(user) in done or user.op == "Shape":
                continue
            if user.op == "Gather" and any(user.inputs[1] is q for q in sort.inverse) and user.inputs[0] is value:
                if attribute(user, "axis", 0) != axis:
                    return None
                region.restored.append(user)
                done.add(id(user))
                continue
            made = _after(user, value, axis, region.axes)
            if made is None:
                continue  # another of its inputs may be found later
            done.add(id(user))
            if is_recurrent(user):
                region.layers.append(user)
            if not all(region.add(output, place) for output, place in made):
                return None
    if any(id(v) in outputs for v in (*region.values, *sort.order, *sort.inverse)):
        return None
    seen = [u for v in region.values for u in v.outputs if u.op != "Shape"]
    seen += [u for q in sort.inverse for u in q.outputs if u.op not in COPIES]
    return region if region.layers and all(id(u) in done for u in seen) else None


def _after(node: Node, value: Value, axis: int, axes: dict[int, int]) -> list[tuple[Value, int]] | None:
    """The outputs of a node with sorted inputs, each with its batch axis; None if it does not treat rows alike."""
    if node.domain:
        return None
    if is_recurrent(node):
        names = output_names(CELL_TYPES[node.op])
        found = [(v, place) for v, place in zip(node.outputs, BATCH_OF_OUTPUT[: len(names)], strict=False) if v.name]
        return found if _has_sorted_inputs(node, axes) else None
    if node.op == "Concat":
        at = attribute(node, "axis", 0)
        alike = 0 <= at != axis and all(axes.get(id(v)) == axis for v in node.inputs)
        return [(node.outputs[0], axis)] if alike else None
    if node.inputs[0] is not value or sum(v is value for v in node.inputs) > 1:
        return None
    moved = _moved(node, axis)
    return None if moved is None else [(node.outputs[0], moved)]


def _moved(node: Node, axis: int) -> int | None:
    """The batch axis after a node with one input; None if it is gone or unknown."""
    if node.op in ELEMENTWISE:
        return axis
    if node.op == "Transpose":
        perm = attribute(node, "perm", None)
        return None if perm is None else list(perm).index(axis)
    second = constant_array(input_or_none(node, 3 if node.op == "Slice" else 1))
    numbers = [] if second is None else [int(v) for v in second.ravel()]
    if node.op == "Reshape":
        kept = len(numbers) > axis and not any(numbers[: axis + 1]) and not attribute(node, "allowzero", 0)
        return axis if kept else None
    if second is None or min(numbers, default=-1) < 0:
        return None
    if node.op == "Slice":
        return None if axis in numbers else axis
    if node.op == "Squeeze":
        return None if axis in numbers else axis - sum(n < axis for n in numbers)
    if node.op == "Unsqueeze":
        for number in sorted(numbers):
            axis += number <= axis
        return axis
    return None


def _has_sorted_inputs(node: Node, axes: dict[int, int]) -> bool:
    """Whether all batched inputs of a recurrent node are sorted, or are states that are the same for all rows."""
    if any(id(node.inputs[k]) in axes for k in (W, R, B, P) if input_or_none(node, k) is not None):
        return False
    for k, place in BATCH_OF.items():
        value = input_or_none(node, k)
        if value is None:
            continue
        if axes.get(id(value)) != place and (k in (X, SEQUENCE_LENS) or id(value) in axes or not _has_same_rows(value)):
            return False
    return True


def _has_same_rows(states: Value) -> bool:
    """Whether states `[D,B,H]` are the same for all rows of the batch."""
    array = constant_array(states)
    if array is not None:
        return bool(array.ndim == 3 and (array == array[:, :1]).all())
    maker = states.inputs[0] if states.inputs else None
    if maker is not None and maker.op == "Expand" and not maker.domain:
        learned = constant_array(maker.inputs[0])
        if learned is not None and learned.ndim == 3 and learned.shape[1] == 1:
            return True
    return _is_one_number(states)


def _is_one_number(value: Value) -> bool:
    """Whether all entries are equal."""
    while value.inputs and constant_array(value) is None:
        maker = value.inputs[0]
        if maker.domain or maker.op not in ("ConstantOfShape", "Expand", "Slice", *COPIES):
            return False
        if maker.op == "ConstantOfShape":
            return True
        value = maker.inputs[0]
    array = constant_array(value)
    return array is not None and bool((array == array.ravel()[:1]).all())


def _remove(model: Model, sort: Sort, region: _Region) -> None:
    outputs = {id(v) for g in model.graphs() for v in g.outputs}
    model.replace_all_uses(sort.sorted, sort.source)
    for node in (*region.gathers, *region.restored):
        if id(node.outputs[0]) in outputs:  # an output's name must stay
            node.op = "Identity"
            node.attrs.clear()
            node.inputs.pop()
        else:
            model.replace_all_uses(node.outputs[0], node.inputs[0])
