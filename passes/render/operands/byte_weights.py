"""8-bit weights in a form that onnxruntime multiplies by uint8 values exactly on any machine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from rnnqc.ir import Value
from rnnqc.ir.builder import Builder
from rnnqc.passes.graph.point_names import SIGNED, UNSIGNED
from rnnqc.passes.render.operands.branches import choose
from rnnqc.passes.render.operands.column_groups import in_groups, missing_columns, sums_that_count

MIDDLE = 128
"""Zero point of weights that are stored as uint8."""


def multiplies_exactly(b: Builder) -> Value:
    """Whether this machine multiplies uint8 by int8 without saturation: a constant that onnxruntime folds."""
    left = b.u8(np.full((2, 16), 255))
    right = b.op("Expand", [b.model.constant(127, np.int8), b.i64([16, 16])], "exact.weights")
    product = b.op("MatMulInteger", [left, right], "exact.product")
    equal = b.op("Equal", [product, b.i32(255 * 127 * 16)], "exact.entries")
    least = b.reduce("ReduceMin", b.cast(equal, np.int32, "exact.numbers"), [0, 1], "exact.least", keepdims=0)
    return b.cast(least, np.bool_, "uint8_by_int8_is_exact")


@dataclass(frozen=True)
class ByteWeights:
    """Weights `[K,n]` in one or two forms, and the choice of the matmul.

    Every matmul is an If of its own on `exact`, whose branches contain nothing but the two matmuls: onnxruntime folds
    the condition when it creates the session, and keeps one of them.

    Attributes:
        unsigned: uint8 with zero point 128. Exact on every machine.
        signed: int8. Faster on processors with VNNI, saturates on others. None to use `unsigned` on every machine.
        exact: Whether this machine multiplies uint8 by int8 exactly; None without `signed`.
        columns: n `[1]`, if columns that do not count are behind them.
    """

    unsigned: Value
    signed: Value | None = None
    exact: Value | None = None
    columns: Value | None = None

    @classmethod
    def of(cls, b: Builder, signed: Value, exact: Value, name: str) -> ByteWeights:
        """Returns both forms of int8 weights; `exact` is the result of `multiplies_exactly`."""
        raised = b.op("Add", [b.cast(signed, np.int32, f"{name}.int32"), b.i32(MIDDLE)], f"{name}.shifted")
        return cls(b.cast(raised, np.uint8, f"{name}.uint8"), signed, exact)

    def each(self, change: Callable[[Value], Value]) -> ByteWeights:
        """Applies a change to both forms."""
        signed = None if self.signed is None else change(self.signed)
        return replace(self, unsigned=change(self.unsigned), signed=signed)

    def in_groups(self, b: Builder, columns: int, name: str) -> ByteWeights:
        """Returns the weights, which have `columns` columns, with those that they miss."""
        more = missing_columns(columns)
        return self.with_columns(b, b.i64([columns]), b.i64([0, 0, 0, more]), name) if more else self

    def with_columns(self, b: Builder, columns: Value, pads: Value, name: str) -> ByteWeights:
        """Returns the weights with columns that do not count behind `columns` `[1]`; `pads` is `[4]`."""
        return replace(self.each(lambda w: in_groups(b, w, pads, name)), columns=columns)

    def int32(self, b: Builder, name: str) -> Value:
        """Returns the weights as int32."""
        if self.signed is not None:
            return b.cast(self.signed, np.int32, f"{name}.int32")
        return b.op("Sub", [b.cast(self.unsigned, np.int32, f"{name}.int32"), b.i32(MIDDLE)], f"{name}.signed")

    def product(self, b: Builder, codes: Value, zero_point: Value, name: str) -> Value:
        """Returns the exact int32 sums of uint8 `codes` times the weights."""

        def unsigned(inner: Builder, made: str) -> dict[str, Value]:
            operands = [codes, self.unsigned, zero_point, inner.u8(MIDDLE)]
            return {made: inner.op("MatMulInteger", operands, made)}

        def signed(inner: Builder, made: str) -> dict[str, Value]:
            return {made: inner.op("MatMulInteger", [codes, self.signed, zero_point], made)}

        def multiply(made: str) -> Value:
            if self.exact is None:
                return unsigned(b, made)[made]
            ways = (SIGNED, partial(signed, made=made)), (UNSIGNED, partial(unsigned, made=made))
            return choose(b, self.exact, *ways)[made]

        return sums_that_count(b, self.columns, name, multiply)
