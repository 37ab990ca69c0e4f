"""Columns of integer matmuls in numbers that every version of onnxruntime multiplies exactly.

With AMX onnxruntime 1.21 to 1.24 computes wrong sums for every 32nd row of most widths above 16 that are no multiple of
16. Weights of other widths get columns of zeros, which do not count.
"""

from __future__ import annotations

from collections.abc import Callable

from rnnqc.ir import Value
from rnnqc.ir.builder import Builder
from rnnqc.passes.graph.point_names import IN_GROUPS

GROUP = 16


def missing_columns(columns: int) -> int:
    """Returns how many columns weights with `columns` columns need behind them."""
    return -columns % GROUP if columns > GROUP else 0


def in_groups(b: Builder, weights: Value, pads: Value, name: str) -> Value:
    """Returns weights, or their zero points, with the missing columns; `pads` is the operand of a Pad."""
    return b.op("Pad", [weights, pads], f"{name}{IN_GROUPS}")


def sums_that_count(b: Builder, columns: Value | None, name: str, multiply: Callable[[str], Value]) -> Value:
    """Returns the sums `name` of the first `columns` `[1]` columns, or of all without it.

    Args:
        b: Collects the nodes.
        columns: How many columns count; None: no others are behind them.
        name: The name of the sums.
        multiply: Emits the matmul under a name.
    """
    if columns is None:
        return multiply(name)
    return b.op("Slice", [multiply(f"{name}{IN_GROUPS}"), b.i64([0]), columns, b.i64([-1])], name)
