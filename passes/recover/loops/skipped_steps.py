"""Masks that skip different steps in each row: the kept steps move to the front, and their results move back.

A recurrence that holds its states where the mask is false is one over the kept steps only:

    order = the kept steps, then the others; lengths = number of kept steps
    X' = X in this order;  Y' = layer(X', sequence_lens = lengths)
    state after step t = Y'[count(t) - 1], or the initial one where count(t) = 0; count(t) = kept steps up to t
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rnnqc.ir import Value
from rnnqc.ir.builder import Builder


@dataclass(frozen=True, eq=False)
class Skipped:
    """A mask over steps.

    Attributes:
        condition: The mask in the body, `[B,1]`.
        value: The mask of all iterations, `[T,B,1]`, in the graph around the loop.
    """

    condition: Value
    value: Value

    def same(self, other: object) -> bool:
        """Whether both are equal."""
        return isinstance(other, Skipped) and self.condition is other.condition


class MovedSteps:
    """Moves values between all steps and the kept ones, in a Builder for the graph around the loop.

    Args:
        mask: `[T,B,1]`; mask or sequence may have a single row for all.
        sequence: The input of a layer, `[T,B,I]`.
        b: Receives the new nodes.

    Attributes:
        mask: `[T,B,1]`.
        lengths: int32 `[B]`, the number of kept steps of each row.
    """

    def __init__(self, mask: Value, sequence: Value, b: Builder) -> None:
        self.b = b
        size = b.op("Shape", [sequence], "X.sizes")
        steps, rows = (b.op("Slice", [size, b.i64([k]), b.i64([k + 1])], f"X.{k}") for k in range(2))
        whole = b.op("Concat", [steps, rows, b.i64([1])], "mask.sizes", axis=0)
        self.mask = b.op("Expand", [mask, whole], "mask.of_rows")
        counts = b.cast(self.mask, np.int64, "mask.numbers")
        self._counted = b.op("CumSum", [counts, b.i64(0)], "steps.counted")
        self._last = b.op("Max", [b.op("Sub", [self._counted, b.i64(1)], "steps.last"), b.i64(0)], "steps.held")
        total = b.op("ReduceSum", [counts, b.i64([0, 2])], "lengths", keepdims=0)
        self.lengths = b.cast(total, np.int32, "sequence_lens")
        numbers = b.op("Unsqueeze", [self._numbers(steps, "steps"), b.i64([1, 2])], "steps")
        keys = b.op("Where", [self.mask, numbers, b.op("Add", [numbers, steps], "steps.behind")], "steps.keys")
        _, self._order = b.ops("TopK", [keys, steps], ["steps.sorted", "steps.order"], axis=0, largest=0)

    def _numbers(self, count: Value, name: str) -> Value:
        """0 .. count - 1."""
        b = self.b
        end = b.op("Squeeze", [count, b.i64([0])], f"{name}.count")
        return b.op("Range", [b.i64(0), end, b.i64(1)], f"{name}.numbers")

    def front(self, sequence: Value, name: str) -> Value:
        """Returns `[T,B,n]` with the kept steps in front."""
        return self._taken(sequence, self._order, name)

    def held(self, values: Value, initial: Value, name: str) -> Value:
        """Returns, from results `[T,B,n]` in the new order, the one held after each step; `initial` before the first.

        Args:
            values: The results.
            initial: `[B,n]`, or a scalar.
            name: Name of the result.
        """
        b = self.b
        begun = b.op("Greater", [self._counted, b.i64(0)], f"{name}.begun")
        return b.op("Where", [begun, self._taken(values, self._last, name), initial], f"{name}.held")

    def counting(self, values: Value, other: Value, name: str) -> Value:
        """Returns the results of the kept steps; the scalar `other` elsewhere."""
        b = self.b
        return b.op("Where", [self.mask, self._taken(values, self._last, name), other], f"{name}.counting")

    def _taken(self, values: Value, steps: Value, name: str) -> Value:
        """Returns `values` `[T,B,n]` at `steps` `[T,B,1]`, by row."""
        b = self.b
        size = b.op("Shape", [values], f"{name}.sizes")
        rows, columns = (b.op("Slice", [size, b.i64([k]), b.i64([k + 1])], f"{name}.{k}") for k in (1, 2))
        row = b.op("Unsqueeze", [self._numbers(rows, f"{name}.rows"), b.i64([0, 2])], f"{name}.row")
        at = b.op("Add", [b.op("Mul", [steps, rows], f"{name}.first"), row], f"{name}.places")
        flat = b.op("Reshape", [values, b.op("Concat", [b.i64([-1]), columns], f"{name}.flat", axis=0)], f"{name}.2d")
        return b.op("Gather", [flat, b.op("Squeeze", [at, b.i64([2])], f"{name}.place")], f"{name}.moved", axis=0)
