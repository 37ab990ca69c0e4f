"""Sequences of different lengths in one batch: reversal before the loop, masks and selections after it."""

from __future__ import annotations

import numpy as np

from rnnqc.ir import Value
from rnnqc.ir.builder import Builder

LENGTHS_IN_RANGE = "sequence_lens_must_be_0_to_T"
"""The node that fails for other lengths."""


def dimensions(b: Builder, value: Value, start: int, end: int, name: str) -> Value:
    """Returns the dimensions `start` to `end` (exclusive) of `value`, int64 `[end - start]`."""
    if b.model.opset >= 15:
        return b.op("Shape", [value], name, start=start, end=end)
    whole = b.op("Shape", [value], f"{name}.whole")
    return b.op("Slice", [whole, b.i64([start]), b.i64([end]), b.i64([0])], name)


def longest(b: Builder, sequence_lens: Value, x: Value) -> Value:
    """Returns the greatest length, int64 `[1]`, within 1 .. T: lengths are checked elsewhere, a loop needs a step."""
    greatest = b.reduce("ReduceMax", b.cast(sequence_lens, np.int64, "lens.all"), [0], "lens.greatest", keepdims=1)
    least = b.op("Max", [greatest, b.i64([1])], "lens.greatest.at_least_one")
    return b.op("Min", [least, dimensions(b, x, 0, 1, "time.whole")], "lens.longest")


def reversed_sequence(b: Builder, x: Value, lens: Value) -> Value:
    """Returns `x` `[T,B,I]` with each sequence reversed up to its length; lengths 0 and 1 change nothing."""
    counts = b.op("Max", [b.cast(lens, np.int64, "lens.int64"), b.i64([1])], "lens.at_least_one")
    return b.op("ReverseSequence", [x, counts], "x.reversed", batch_axis=1, time_axis=0)


def positive_zeros(b: Builder, value: Value, name: str) -> Value:
    """Returns `value` with 0 for -0: onnxruntime's Where loses the sign of a selected zero, others may keep it."""
    return b.op("Where", [b.op("Equal", [value, b.f32(0.0)], f"{name}.is_zero"), b.f32(0.0), value], name)


class LengthMasks:
    """Masks and selections for sequences of different lengths; a length outside 0 .. T makes a Gather fail at run time.

    Args:
        b: Collects the nodes.
        sequence_lens: int32 `[B]`.
        x: The sequence `[T,B,I]`.
        steps: The number of elements that the loop computed, int64 `[1]`; None for T.
    """

    def __init__(self, b: Builder, sequence_lens: Value, x: Value, steps: Value | None = None) -> None:
        self.b = b
        lens = b.cast(sequence_lens, np.int64, "lens")
        time = dimensions(b, x, 0, 1, "time")
        length = b.op("Squeeze", [time, b.i64([0])], "time.scalar")
        past = b.op("Add", [length, b.i64(1)], "time.past")
        allowed = b.op("Range", [b.i64(0), past, b.i64(1)], "lens.allowed")
        negative = b.op("Less", [lens, b.i64(0)], "lens.negative")
        index = b.op("Where", [negative, past, lens], "lens.index")
        self.lens = b.op("Gather", [allowed, index], LENGTHS_IN_RANGE, axis=0)
        self.left_out: Value | None = None
        made: Value = length
        if steps is not None:
            made = b.op("Squeeze", [steps, b.i64([0])], "lens.longest.scalar")
            self.left_out = b.op("Sub", [time, steps], "time.left_out")
        times = b.op(
            "Unsqueeze", [b.op("Range", [b.i64(0), made, b.i64(1)], "time.range"), b.i64([1, 2])], "time.column"
        )
        self.valid = b.op("Less", [times, b.op("Unsqueeze", [self.lens, b.i64([0, 2])], "lens.row")], "time.valid")

    def mask(self, values: Value, blank: Value, name: str) -> Value:
        """Returns `[T,B,H]` with `blank` beyond each sequence's length."""
        return self.b.op("Where", [self.valid, values, blank], name)

    def mask_float(self, values: Value, name: str) -> Value:
        """Returns `[T,B,H]` with 0 beyond each sequence's length, and no negative zero."""
        return positive_zeros(self.b, self.mask(values, self.b.f32(0.0), f"{name}.signed"), name)

    def natural_order(self, values: Value, blank: Value, target: Value, reverse: bool, name: str) -> None:
        """Writes the loop's results in natural order to `target` `[T,B,H]`, followed by `blank`."""
        b = self.b
        lens = b.op("Max", [self.lens, b.i64([1])], f"{name}.lens") if reverse else None
        if self.left_out is not None:
            if lens is not None:
                values = b.op("ReverseSequence", [values, lens], f"{name}.made", batch_axis=1, time_axis=0)
            pads = b.op("Concat", [b.i64([0, 0, 0]), self.left_out, b.i64([0, 0])], f"{name}.pads", axis=0)
            b.add("Pad", [values, pads, blank], [target], name)
        elif lens is not None:
            b.add("ReverseSequence", [values, lens], [target], name, batch_axis=1, time_axis=0)
        else:
            b.add("Identity", [values], [target], name)

    def pick(self, values: Value, name: str) -> Value:
        """Returns `[B,H]` after the last valid element, zeros for a length of 0."""
        b = self.b
        last = b.op("Max", [b.op("Sub", [self.lens, b.i64(1)], f"{name}.before"), b.i64([0])], f"{name}.index")
        count = b.op("Squeeze", [dimensions(b, self.lens, 0, 1, f"{name}.batch"), b.i64([0])], f"{name}.batch.scalar")
        rows = b.op("Range", [b.i64(0), count, b.i64(1)], f"{name}.rows")
        pairs = b.op(
            "Concat",
            [b.op("Unsqueeze", [last, b.i64([1])], f"{name}.t"), b.op("Unsqueeze", [rows, b.i64([1])], f"{name}.b")],
            f"{name}.where",
            axis=1,
        )
        taken = b.op("GatherND", [values, pairs], f"{name}.taken")
        empty = b.op(
            "Unsqueeze", [b.op("Equal", [self.lens, b.i64(0)], f"{name}.empty"), b.i64([1])], f"{name}.empty.column"
        )
        return positive_zeros(b, b.op("Where", [empty, b.f32(0.0), taken], f"{name}.signed"), name)
