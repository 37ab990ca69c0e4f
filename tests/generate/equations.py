"""Steps of custom cells: random equations whose states stay bounded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

GATES = "abcd"
LARGEST = 2.0
_BOUNDED = ("Sigmoid", "Tanh", "HardSigmoid", "Softsign")
_ACTIVATIONS = (*_BOUNDED, "Sigmoid", "Tanh", "Relu", "Elu", "LeakyRelu", "Identity", "Neg")
_OPERATORS = ("Add", "Mul", "Mul", "Sub", "Max", "Min")


class Writer(Protocol):
    """Adds operators and constants."""

    def op(self, op: str, inputs: list[str], name: str) -> str:
        """Adds a node with one output; the output."""

    def constant(self, name: str, array: float, dtype: type) -> str:
        """A constant."""


def random_step(
    b: Writer,
    gate: Callable[[str], tuple[str, str]],
    states: Sequence[str],
    product: Callable[[str], str],
    seed: int,
) -> list[str]:
    """Adds one step; the new states. Equal seeds give equal equations.

    Args:
        b: Where the nodes go.
        gate: The two parts of the pre-activation of each of `GATES`.
        states: The states before, all of one width.
        product: Adds a product of a value with a square matrix of constants.
        seed: What the equations follow from.
    """
    rng = np.random.default_rng([seed, 7])

    def pick(options: Sequence[str]) -> str:
        return options[int(rng.integers(len(options)))]

    sums = [b.op("Add", list(gate(letter)), f"pre_{letter}") for letter in GATES]
    values = [*states, *(b.op(pick(_ACTIVATIONS), [sum_], f"gate_{k}") for k, sum_ in enumerate(sums))]
    for k in range(int(rng.integers(2, 7))):
        op = pick(_OPERATORS)
        values.append(b.op(op, [values[-1], pick(values[:-1])], f"mixed_{k}"))
        if rng.random() < 0.2:
            values.append(product(values[-1]))
        if rng.random() < 0.3:
            values.append(b.op(pick(_ACTIVATIONS), [values[-1]], f"activated_{k}"))
    new = []
    for k, state in enumerate(states):
        value = values[-1 - k]
        kind = int(rng.integers(3))
        if kind == 0:
            new.append(b.op(pick(_BOUNDED), [value], f"new_{k}"))
        elif kind == 1:
            ends = [b.constant(f"end_{s}", v, np.float32) for s, v in (("low", -LARGEST), ("high", LARGEST))]
            new.append(b.op("Clip", [value, *ends], f"new_{k}"))
        else:
            keep = b.op("Sigmoid", [sums[k]], f"keep_{k}")
            left = b.op("Sub", [b.constant("one_f", 1.0, np.float32), keep], f"left_{k}")
            fresh = b.op("Mul", [left, b.op("Tanh", [value], f"fresh_{k}")], f"added_{k}")
            new.append(b.op("Add", [b.op("Mul", [keep, state], f"kept_{k}"), fresh], f"new_{k}"))
    return new
