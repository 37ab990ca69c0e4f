"""Analysis: scalar inputs that decide which branches a model takes. Reads only."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from rnnqc.data.input_uses import MOVERS
from rnnqc.ir import Model, Value, constant_array, dtype_of, shape_of


def deciding_inputs(model: Model) -> dict[str, list[int]]:
    """Maps each scalar integer or boolean input of the model that decides an If to the constants it is compared with.

    An If in a branch counts for the input that its own condition depends on; sizes of an input do not count.
    """
    candidates = {id(v): v.name for v in model.graph.inputs if _is_one_number(v)}
    found: dict[str, list[int]] = {}
    for node in (n for g in model.graphs() for n in g.nodes if n.op == "If" and not n.domain):
        seen: set[int] = set()
        stack: list[Value] = [node.inputs[0]]
        while stack:
            value = stack.pop()
            if id(value) in seen:
                continue
            seen.add(id(value))
            if id(value) in candidates:
                found.setdefault(candidates[id(value)], [])
            for maker in (n for n in value.inputs if n.op not in ("Shape", "Size", "If", "Loop", "Scan")):
                stack += maker.inputs
                if maker.op == "Equal" and not maker.domain:
                    _compare(maker.inputs, candidates, found)
    return {name: sorted(set(numbers)) for name, numbers in found.items()}


def told_of_deciding(deciding: Mapping[str, Sequence[int]]) -> list[str]:
    """Returns a sentence for each input that decides which branches run, with the options that choose one."""
    told = []
    for name, numbers in deciding.items():
        chosen = " or ".join(f"--bind {name}={n}" for n in [*map(str, numbers)] or ["VALUE"])
        told.append(f"input {name!r} decides which branches run; for one use: rnnqc lower {chosen}")
    return told


def _compare(operands: list[Value], candidates: dict[int, str], found: dict[str, list[int]]) -> None:
    """Records the constant that an input, reshaped or converted perhaps, is compared with."""
    for one, other in (operands, operands[::-1]):
        array, start = constant_array(other), _start(one)
        if id(start) in candidates and array is not None and array.size == 1:
            found.setdefault(candidates[id(start)], []).append(int(array.ravel()[0]))


def _start(value: Value) -> Value:
    """Follows a value back through operators that move or convert it."""
    while len(value.inputs) == 1 and MOVERS.get(value.inputs[0].op) == 0 and not value.inputs[0].domain:
        value = value.inputs[0].inputs[0]
    return value


def _is_one_number(value: Value) -> bool:
    shape, dtype = shape_of(value), dtype_of(value)
    fixed = shape is not None and all(isinstance(d, int) for d in shape)
    one = fixed and math.prod(d for d in shape or [] if isinstance(d, int)) == 1
    return one and dtype is not None and dtype.kind in "iub"
