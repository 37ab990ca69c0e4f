"""Makes matmuls with equal weights share them, so that weights identify the steps of one recurrence."""

from __future__ import annotations

from collections import Counter
from typing import Any

from rnnqc.ir import CELL_TAG, Constant, Model, Value, constant_array, dtype_of, info, maker_of, shape_of
from rnnqc.passes.graph.nodes.products import factors
from rnnqc.passes.graph.values.constant_expressions import Constants

_Turns = tuple[str, ...]


def share_weights(model: Model) -> int:
    """Makes matmuls of a graph with equal constant operands read one value.

    Exporters write a copy for each unrolled step: an Identity or a Transpose of the weights, or a separate initializer.

    Args:
        model: The model, in order; operands of matmuls are changed in place.

    Returns:
        The number of replaced operands.
    """
    constants = Constants(model)
    count = 0
    for graph in model.graphs():
        nodes = [n for n in graph.nodes if CELL_TAG not in info(n).metadata]
        found = [(n, k, *source_of(v)) for n in nodes for k, v in enumerate(factors(n))]
        sites = [(n, k, root, turns) for n, k, root, turns in found if _is_stored(root)]
        alike = Counter(_looks(root, turns) for _, _, root, turns in sites)
        first: dict[Any, Value] = {}
        for node, k, root, turns in sites:
            wanted = node.inputs[k] if turns else root
            if alike[_looks(root, turns)] > 1 and (array := constant_array(root)) is not None:
                wanted = first.setdefault((constants.key(array), turns), wanted)
            if wanted is not node.inputs[k]:
                node.inputs[k] = wanted
                count += 1
    return count


def _is_stored(value: Value) -> bool:
    return isinstance(value, Constant) or (len(value.inputs) == 1 and value.inputs[0].op == "Constant")


def source_of(value: Value) -> tuple[Value, _Turns]:
    """The value that `value` is a copy of, and the transpositions in between."""
    turns: list[str] = []
    while (node := maker_of(value)) is not None and node.op in ("Identity", "Transpose"):
        if node.op == "Transpose":
            turns.append(str(node.attrs.get("perm")))
        value = node.inputs[0]
    return value, tuple(turns)


def _looks(root: Value, turns: _Turns) -> tuple[Any, ...]:
    """A key that is equal for all values that may be equal."""
    return str(dtype_of(root)), str(shape_of(root)), turns
