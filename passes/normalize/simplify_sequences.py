"""Removes redundant operators between sequences and recurrent nodes."""

from __future__ import annotations

import numpy as np

from rnnqc.evaluation.numerics import Close
from rnnqc.ir import (
    Graph,
    Model,
    Node,
    Value,
    attribute,
    constant_array,
    info,
    input_or_none,
    output_number,
    output_or_none,
    shape_of,
)
from rnnqc.ir.builder import Builder
from rnnqc.passes.base import Pass, PassInfo, PassResult
from rnnqc.passes.graph.loops.loop_states import bodies
from rnnqc.passes.graph.nodes.lstm_node import SEQUENCE_LENS, X, is_recurrent
from rnnqc.passes.graph.redundant_nodes import cancel_squeezes, drop_identities
from rnnqc.passes.graph.values.constant_expressions import Constants
from rnnqc.passes.graph.values.index_expressions import Index, Indices, unknown
from rnnqc.passes.graph.values.layout_ops import axes_after
from rnnqc.passes.graph.values.sequence_elements import consecutive, element_of, flip_inputs, flip_of, flipped
from rnnqc.passes.invariants import Property
from rnnqc.passes.normalize.input_projections import take_projections

FLIPPED = {"forward": "reverse", "reverse": "forward"}


class SimplifySequences(Pass):
    """Removes the operators that recovering a layer leaves around its node.

    1. `Concat(S[0], S[1], ...)` becomes `S`; with its elements in reverse order, `S` reversed.
    2. A layer over a reversed sequence becomes one of the other direction; two reversals cancel.
    3. The last element of an output sequence becomes the final state.
    4. Squeeze after Unsqueeze, Identity and Expand to the same shape are removed, where rnnqc has inserted them.
    5. A layer with an identity for W, over `S MatMul V + b`, gets V as W; views of the sum become views of S.

    Before: `Slice(X MatMul V + b, steps=-1) -> RNN(W = identity)`

    After: `RNN(X, W = V, B + b, direction=reverse) -> Slice(steps=-1)`
    """

    info = PassInfo(
        name="simplify-sequences",
        summary="remove redundant layout operators around recurrent nodes",
        numerics=Close(1e-5),
        requires=frozenset({Property.CANONICAL}),
    )

    def run(self, model: Model) -> PassResult:
        """Applies the steps until nothing changes."""
        statistics = {"views": 0, "joined": 0, "turned": 0, "final": 0, "projections": 0}
        graphs = [g for g, _, _ in bodies(model) if any(is_recurrent(n) or n.op == "Scan" for n in g.nodes)]
        every = list(model.graphs())
        while graphs:
            before = sum(statistics.values())
            for graph in graphs:
                indices = Indices(Constants(model), shape_of)
                statistics["views"] += cancel_squeezes(model, graph, every) + drop_identities(model, graph, every)
                statistics["views"] += _idle_expands(model, graph, indices)
                statistics["joined"] += _join(model, graph, indices)
                statistics["turned"] += _turn(model, graph, indices)
                statistics["final"] += _final_states(model, graph, indices)
                statistics["projections"] += take_projections(model, graph, indices)
            if sum(statistics.values()) == before:
                break
            model.remove_dead()
            model.sort()
            model.infer_shapes()
        return PassResult(any(statistics.values()), (), statistics)


def _replace(model: Model, graph: Graph, old: Value, new: Value, b: Builder) -> None:
    """Replaces all uses of `old` by `new`; an output of the graph keeps its name."""
    producer = old.inputs[0]
    if any(v is old for v in graph.outputs):
        position = output_number(producer, old)
        producer.outputs[position] = b.value("replaced")
        b.add("Identity", [new], [old], "same")
    else:
        model.replace_all_uses(old, new)
    model.insert_nodes(graph, producer, b.nodes)


def _join(model: Model, graph: Graph, indices: Indices) -> int:
    count = 0
    for node in list(graph.nodes):
        if node.op != "Concat" or node.domain or len(node.inputs) < 2:
            continue
        elements = [element_of(v, indices) for v in node.inputs]
        known = [e for e in elements if e is not None]
        first = known[0] if known else None
        if first is None or len(known) != len(elements):
            continue
        axis = attribute(node, "axis", 0)
        axis = axis % len(first.axes) if axis < 0 else axis
        order = consecutive(known)
        if order is None or not all(e.stacked_at(axis) for e in known):
            continue
        low, high, backwards = order
        b = Builder(model, prefix=node.name)
        shape = shape_of(first.sequence)
        assert shape is not None
        value: Value = first.sequence
        if (low, high) != (0, shape[first.axis]):
            value = b.op("Slice", [value, b.i64([low]), b.i64([high]), b.i64([first.axis])], "range")
        if backwards:
            value = flipped(b, value, first.axis, "backwards")
        if first.axis != axis:
            perm = [k for k in range(len(shape)) if k != first.axis]
            perm.insert(axis, first.axis)
            value = b.op("Transpose", [value], "moved", perm=perm)
        _replace(model, graph, node.outputs[0], value, b)
        count += 1
    return count


def _idle_expands(model: Model, graph: Graph, indices: Indices) -> int:
    count = 0
    for node in list(graph.nodes):
        if node.op != "Expand" or node.domain or info(node).proto is not None:
            continue
        shape, target = shape_of(node.inputs[0]), indices.vector(node.inputs[1])
        if shape is None or target is None or None in shape:
            continue
        if [Index(d) if isinstance(d, int) else unknown(d) for d in shape] == target:
            _replace(model, graph, node.outputs[0], node.inputs[0], Builder(model, prefix=node.name))
            count += 1
    return count


def _turn(model: Model, graph: Graph, indices: Indices) -> int:
    count = 0
    for node in list(graph.nodes):
        if node.op == "Slice" and not node.domain:
            outer = flip_of(node.outputs[0], indices)
            inner = flip_of(outer[0], indices) if outer is not None else None
            if outer is not None and inner is not None and outer[1] == inner[1]:
                _replace(model, graph, node.outputs[0], inner[0], Builder(model, prefix=node.name))
                count += 1
            elif outer is not None:
                count += _below(model, graph, node, outer[0], outer[1])
        if not is_recurrent(node) or attribute(node, "direction", "forward") not in FLIPPED:
            continue
        turned = flip_of(node.inputs[X], indices)
        if (
            turned is None
            or turned[1] != 0
            or input_or_none(node, SEQUENCE_LENS) is not None
            or attribute(node, "layout", 0)
        ):
            continue
        node.inputs[X] = turned[0]
        node.attrs["direction"] = FLIPPED[attribute(node, "direction", "forward")]
        y = output_or_none(node, 0)
        if y is not None:
            b = Builder(model, prefix=node.name)
            made = b.value("Y.turned", y.dtype)
            node.outputs[0] = made
            b.add("Slice", flip_inputs(b, made, 0), [y], "Y.turned_back")
            model.insert_nodes_after(graph, node, b.nodes)
        count += 1
    return count


def _below(model: Model, graph: Graph, turn: Node, source: Value, axis: int) -> int:
    """Moves a reversal behind a Squeeze or Transpose, so that two reversals meet."""
    target = turn.outputs[0]
    if len(target.outputs) != 1 or any(v is target for v in graph.outputs):
        return 0
    user = target.outputs[0]
    if user.domain or user.op not in ("Squeeze", "Transpose") or not any(n is user for n in graph.nodes):
        return 0
    shape, dropped = shape_of(source), constant_array(input_or_none(user, 1))
    rank = len(attribute(user, "perm", None) or () if shape is None else shape)
    axes = axes_after(user, range(rank), None if dropped is None else dropped.reshape(-1).tolist(), -1)
    if axes is None or axis not in axes:
        return 0
    axis = axes.index(axis)
    result = user.outputs[0]
    b = Builder(model, prefix=turn.name)
    inner = b.value("before_turn", result.dtype)
    user.inputs[0] = source
    user.outputs[0] = inner
    b.add("Slice", flip_inputs(b, inner, axis), [result], "turned")
    model.insert_nodes_after(graph, user, b.nodes)
    return 1


def _final_states(model: Model, graph: Graph, indices: Indices) -> int:
    """`Y[-1]` (or `Y[0]` of a layer that runs backwards) is Y_h."""
    count = 0
    for node in list(graph.nodes):
        if node.op != "Split" or node.domain:
            continue
        used = [k for k, v in enumerate(node.outputs) if v.outputs or any(v is o for o in graph.outputs)]
        if len(used) != 1:
            continue
        element = element_of(node.outputs[used[0]], indices)
        if element is None or element.axis != 0:
            continue
        squeezed = element.sequence
        turned = flip_of(squeezed, indices)
        source = turned[0] if turned is not None and turned[1] == 0 else squeezed
        if len(source.inputs) != 1 or source.inputs[0].op != "Squeeze":
            continue
        y = source.inputs[0].inputs[0]
        layer = y.inputs[0] if len(y.inputs) == 1 else None
        if layer is None or not is_recurrent(layer) or layer.outputs[0] is not y:
            continue
        axes = constant_array(input_or_none(source.inputs[0], 1))
        if input_or_none(layer, SEQUENCE_LENS) is not None or axes is None or not np.array_equal(axes, [1]):
            continue
        direction = attribute(layer, "direction", "forward")
        backwards = (direction == "reverse") != (source is not squeezed)
        if direction not in FLIPPED or used[0] != (0 if backwards else len(node.outputs) - 1):
            continue
        b = Builder(model, prefix=layer.name)
        state = output_or_none(layer, 1)
        if state is None:
            state = b.value("Y_h", y.dtype)
            while len(layer.outputs) < 2:
                layer.outputs.append(b.value("unused"))
            layer.outputs[1] = state
        _replace(model, graph, node.outputs[used[0]], state, b)
        count += 1
    return count
