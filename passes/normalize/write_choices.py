"""Replaces sums of products with a condition and its opposite by choices."""

from __future__ import annotations

import numpy as np

from rnnqc.evaluation.numerics import Close
from rnnqc.ir import Model, Value, attribute, dtype_of, maker_of
from rnnqc.passes.base import Pass, PassInfo, PassResult
from rnnqc.passes.graph.loops.loop_states import bodies, is_loop
from rnnqc.passes.graph.values.constant_expressions import Constants
from rnnqc.passes.invariants import Property

_Choice = tuple[Value, bool, Value]
"""A condition, whether a value counts where it holds, and the value."""


class WriteChoices(Pass):
    """Replaces `a * condition + b * not condition` by Where, in the bodies of Loop and Scan.

    Before, as tf2onnx writes the mask of a Keras layer over its states:

        Add(Mul(Cast(mask), new state), Mul(Cast(Not(mask)), state before))

    After: `Where(mask, new state, state before)`

    The opposite may be written as `1 - Cast(mask)`, too. The rejected operand may then hold infinities and NaN; in the
    sum they would spread.
    """

    info = PassInfo(
        name="write-choices",
        summary="write sums of products with a condition and its opposite as choices",
        numerics=Close(1e-6),
        requires=frozenset({Property.CANONICAL}),
    )

    def run(self, model: Model) -> PassResult:
        """Looks at the body of every loop."""
        constants = Constants(model)
        count = 0
        for body in [g for g, owner, _ in bodies(model) if owner is not None and is_loop(owner)]:
            for node in body.nodes:
                if node.op != "Add" or node.domain:
                    continue
                first, second = (_product(v, constants) for v in node.inputs)
                if first is None or second is None or first[0] is not second[0] or first[1] == second[1]:
                    continue
                chosen, left = (first, second) if first[1] else (second, first)
                node.op = "Where"
                node.inputs = [chosen[0], chosen[2], left[2]]
                count += 1
        return PassResult(count > 0, (), {"choices": count})


def _product(value: Value, constants: Constants) -> _Choice | None:
    """`value` as a product with a condition."""
    node = maker_of(value)
    if node is None or node.op != "Mul":
        return None
    for factor, other in (node.inputs, node.inputs[::-1]):
        condition = _condition(factor, constants)
        if condition is not None:
            return (*condition, other)
    return None


def _condition(value: Value, constants: Constants) -> tuple[Value, bool] | None:
    """The condition that `value` represents as a number, and whether it is the condition itself, not its opposite."""
    holds = True
    node = maker_of(value)
    if node is not None and node.op == "Sub":
        one = constants.array(node.inputs[0])
        if one is None or np.any(one != 1):
            return None
        holds, node = False, maker_of(node.inputs[1])
    if node is None or node.op != "Cast" or dtype_of(node.inputs[0]) != np.bool_:
        return None
    kind = dtype_of(node.outputs[0])
    if attribute(node, "to", 0) != 1 and (kind is None or kind.kind != "f"):
        return None
    condition: Value = node.inputs[0]
    while (node := maker_of(condition)) is not None and node.op == "Not":
        holds, condition = not holds, node.inputs[0]
    return condition, holds
