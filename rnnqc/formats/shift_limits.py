"""Fix positions that fixed-point hardware can combine: the shifts between products, bias and result are limited.

Of a matrix product with fix positions `w`, `x`, `b` and `y` of weights, input, bias and result, the sum of products is
shifted right by `w + x - y` and the bias left by `w + x - b`. Source: `shift_cut` and `shift_bias` of the Vitis RNN
quantizer (https://github.com/Xilinx/Vitis-AI).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

LARGEST_SHIFT = 16
"""Of the result to the right and of the bias to the left."""
BIAS_BITS = 24
"""Bits of the accumulator that a bias may be shifted right in, less 8 and the shift of the result."""


@dataclass(frozen=True)
class ProductPositions:
    """Fix positions of a matrix product.

    Attributes:
        weight: Of the weights.
        input: Of what they are multiplied by.
        output: Of the result.
        bias: Of the bias; None if there is none.
    """

    weight: int
    input: int
    output: int
    bias: int | None = None

    @property
    def shift_cut(self) -> int:
        """How far the sum of products is shifted right; allowed are 0 to 16."""
        return self.weight + self.input - self.output

    @property
    def shift_bias(self) -> int | None:
        """How far the bias is shifted left; allowed are `least_shift_bias` to 16."""
        return None if self.bias is None else self.weight + self.input - self.bias

    @property
    def least_shift_bias(self) -> int:
        """The least shift of the bias, never above 0."""
        return min(0, self.shift_cut + 8 - BIAS_BITS)


def within_shift_limits(positions: ProductPositions) -> ProductPositions:
    """Positions whose shifts are allowed; `positions` themselves if theirs are.

    A result or bias that is finer than the sum of products allows becomes coarser; where a shift is too large the
    weights do.

    Args:
        positions: As calibration found them.
    """
    p = positions
    if p.shift_cut > LARGEST_SHIFT:
        p = replace(p, weight=p.weight - (p.shift_cut - LARGEST_SHIFT))
    if p.shift_bias is not None and p.shift_bias > LARGEST_SHIFT:
        p = replace(p, weight=p.weight - (p.shift_bias - LARGEST_SHIFT))
    if p.shift_cut < 0:
        p = replace(p, output=p.output + p.shift_cut)
    if p.bias is not None and p.shift_bias is not None and p.shift_bias < p.least_shift_bias:
        p = replace(p, bias=p.bias - (p.least_shift_bias - p.shift_bias))
    return p
