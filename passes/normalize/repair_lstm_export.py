"""Makes recurrent nodes independent of the batch size they were exported with."""

from __future__ import annotations

import numpy as np

from rnnqc.cells.types import LSTM
from rnnqc.errors import Outcome, Remark
from rnnqc.evaluation.numerics import Bitwise
from rnnqc.ir import (
    Constant,
    Graph,
    Model,
    Node,
    Value,
    Variable,
    attribute,
    constant_array,
    display_name,
    graph_info,
    input_or_none,
    output_or_none,
    shape_of,
)
from rnnqc.passes.base import Pass, PassInfo, PassResult
from rnnqc.passes.graph.nodes.lstm_node import (
    DIRECTIONS,
    INITIAL_C,
    INITIAL_H,
    INPUT_NAMES,
    SEQUENCE_LENS,
    R,
    X,
    is_recurrent,
)
from rnnqc.passes.graph.nodes.projection import check_projection
from rnnqc.passes.graph.values.constant_expressions import Constants
from rnnqc.passes.graph.values.index_expressions import Indices
from rnnqc.passes.graph.values.layout_ops import stated_axes
from rnnqc.passes.graph.values.output_shapes import infer_output_shapes

STATED = (R, INITIAL_H, INITIAL_C)
_STEPS = 64
_MOVERS = ("Identity", "Cast", "Unsqueeze", "Squeeze", "Reshape", "Transpose", "Expand", "Tile", "Slice")


class RepairLstmExport(Pass):
    """Replaces operators that bind a recurrent node to its traced batch size by ones equal at that size.

    1. A Squeeze that removes the batch axis of Y (with layout 1: the time axis) instead of the direction axis runs
       only where both are 1, and computes the same with the other axis. Brevitas exports such Squeezes.

           Before: LSTM -> Y [T,1,B,H] -> Squeeze(axes=2)
           After:  LSTM -> Y [T,1,B,H] -> Squeeze(axes=1)
    2. Initial states of zeros are the default of LSTM, GRU and RNN; they are removed, and with them the batch size in
       their shapes. A node with a state of another size than the layer's stays unchanged: it has another defect.
    3. Sequence lengths that all equal the length of X are removed as well.

    An LSTM with the shapes of a projection is an error (see `rnnqc.passes.graph.nodes.projection`): without its states
    its shapes would suggest another size. Constants that are graph inputs as well may be replaced by a run and stay.
    Graphs are sorted topologically.
    """

    info = PassInfo(
        name="repair-lstm-export",
        summary="make the exported fixed batch dimension of recurrent nodes dynamic",
        numerics=Bitwise(),
    )

    def run(self, model: Model) -> PassResult:
        """Repairs every recurrent node of every graph."""
        remarks: list[Remark] = []
        counts = {"squeezes": 0, "states": 0, "lengths": 0}
        moved = model.sort()
        sites = [(p, g, n) for p, g in model.paths() for n in g.nodes if is_recurrent(n) and not n.domain]
        if any(input_or_none(n, k) is not None for *_, n in sites for k in (SEQUENCE_LENS, INITIAL_H, INITIAL_C)):
            model.infer_shapes()
        sizes = Indices(Constants(model), shape_of)
        for path, graph, node in sites:
            hidden = attribute(node, "hidden_size", None)
            if node.op == LSTM.op and isinstance(hidden, int):  # the shapes of the states show it, and they are removed
                check_projection(node, hidden, {INPUT_NAMES[k]: shape_of(input_or_none(node, k)) for k in STATED})
            squeezed = _repair_squeezes(model, node)
            counts["squeezes"] += squeezed
            if squeezed:
                reason = "a Squeeze of Y took the wrong axis; it takes that of the direction now."
                remarks.append(self.remark(Outcome.NOTE, f"{path}{display_name(node)}", node.op, reason))
            for k in _zero_states(node, sizes, _listed(model, graph)):
                node.inputs[k] = Variable.empty()
                counts["states"] += 1
        if counts["squeezes"]:
            infer_output_shapes(model)
        for _, graph, node in sites:
            lengths = input_or_none(node, SEQUENCE_LENS)
            if lengths is not None and _is_whole_length(lengths, node, _listed(model, graph)):
                node.inputs[SEQUENCE_LENS] = Variable.empty()
                counts["lengths"] += 1
        return PassResult(moved or any(counts.values()), tuple(remarks), counts)


def squeezes_wrong_axis(node: Node) -> list[Node]:
    """The Squeezes of Y of a recurrent node that remove the axis next to the direction axis."""
    y = output_or_none(node, 0)
    if node.op != LSTM.op or y is None or len(DIRECTIONS.get(attribute(node, "direction", "forward"), ())) != 1:
        return []
    wrong = (1, -3) if attribute(node, "layout", 0) else (2, -2)
    return [c for c in y.outputs if c.op == "Squeeze" and not c.domain and stated_axes(c) in [[w] for w in wrong]]


def _repair_squeezes(model: Model, node: Node) -> int:
    wrong = squeezes_wrong_axis(node)
    axis = 2 if attribute(node, "layout", 0) else 1
    for squeeze in wrong:
        if "axes" in squeeze.attrs:
            squeeze.attrs["axes"] = [axis]
        else:
            squeeze.inputs[1] = model.constant([axis], np.int64)
    return len(wrong)


def _listed(model: Model, graph: Graph) -> set[str]:
    """Constants that are graph inputs as well."""
    return {n for g in (model.graph, graph) for n in graph_info(g).input_order}


def _zero_states(node: Node, sizes: Indices, listed: set[str]) -> list[int]:
    """The inputs of `node` that are zeros; none if a state has another size than the layer."""
    given = [k for k in (INITIAL_H, INITIAL_C) if input_or_none(node, k) is not None]
    r = shape_of(input_or_none(node, R))
    hidden = attribute(node, "hidden_size", r[-1] if r else None)
    if any(_width(node.inputs[k], sizes) != hidden for k in given):
        return []
    return [k for k in given if _is_zero(node.inputs[k], listed)]


def _width(value: Value, sizes: Indices) -> int | str | None:
    """The last dimension of a state, or of the source or target of its expansion if its own shape is unknown."""
    shape = shape_of(value)
    if shape and isinstance(shape[-1], int):
        return shape[-1]
    node = value.inputs[0] if len(value.inputs) == 1 else None
    if node is None or node.op not in ("Expand", "ConstantOfShape") or node.domain:
        return None
    if node.op == "ConstantOfShape":
        spread = sizes.sizes(node.inputs[0])
        return spread[-1] if spread else None
    array = constant_array(node.inputs[0])
    return array.shape[-1] if array is not None and array.ndim and array.shape[-1] > 1 else None


def _is_zero(value: Value, listed: set[str]) -> bool:
    for _ in range(_STEPS):
        array = constant_array(value)
        if array is not None:
            return not (isinstance(value, Constant) and value.name in listed) and not array.any()
        node = value.inputs[0] if len(value.inputs) == 1 else None
        if node is None or node.domain:
            return False
        if node.op == "ConstantOfShape":
            held = attribute(node, "value", None)
            return held is None or not held.values.any()
        if node.op not in _MOVERS:
            return False
        value = node.inputs[0]
    return False


def _is_whole_length(value: Value, node: Node, listed: set[str]) -> bool:
    """Whether every element of `value` equals the sequence length of `node`'s input."""
    axis = 1 if attribute(node, "layout", 0) else 0
    x = node.inputs[X]
    shape = shape_of(x)
    length = shape[axis] if shape is not None and len(shape) == 3 else None
    for _ in range(_STEPS):
        array = constant_array(value)
        if array is not None:
            held = isinstance(value, Constant) and value.name in listed
            return isinstance(length, int) and not held and array.size > 0 and bool((array == length).all())
        maker = value.inputs[0] if len(value.inputs) == 1 else None
        if maker is None or maker.domain:
            return False
        if maker.op == "Add":
            zeros = [v for v in maker.inputs if _is_zero(v, listed)]
            if len(zeros) != 1:
                return False
            value = next(v for v in maker.inputs if v is not zeros[0])
        elif maker.op == "Gather":
            return _is_dimension(maker, x, axis)
        elif maker.op in _MOVERS:
            value = maker.inputs[0]
        else:
            return False
    return False


def _is_dimension(gather: Node, x: Value, axis: int) -> bool:
    """Whether `gather` picks dimension `axis` of `x` from its shape."""
    index = constant_array(gather.inputs[1])
    source = gather.inputs[0].inputs[0] if len(gather.inputs[0].inputs) == 1 else None
    if source is None or source.op != "Shape" or source.domain or source.attrs or source.inputs[0] is not x:
        return False
    return index is not None and index.size == 1 and int(index.ravel()[0]) in (axis, axis - 3)
