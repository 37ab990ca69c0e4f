"""Fix positions that fixed-point hardware can combine: the shifts between product, bias and result are limited.

For a matrix product with fix positions `w`, `x`, `b` and `y` of weights, input, bias and result, the accumulator is
shifted right by `w + x - y` and the bias left by `w + x - b`. Source: `shift_cut` and `shift_bias` of the Vitis RNN
quantizer (https://github.com/Xilinx/Vitis-AI).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

LARGEST_SHIFT = 16
"""The largest right shift of the result and left shift of the bias."""
BIAS_BITS = 24
"""Accumulator bits for a right shift of the bias, from which 8 and the shift of the result are subtracted."""


@dataclass(frozen=True)
class ProductPositions:
    """Fix positions of a matrix product.

    Attributes:
        weight: Position of the weights.
        input: Position of the other operand.
        output: Position of the result.
        bias: Position of the bias; None if there is none.
    """

    weight: int
    input: int
    output: int
    bias: int | None = None

    @property
    def shift_cut(self) -> int:
        """How far the accumulator is shifted right; 0 to 16 are allowed."""
        return self.weight + self.input - self.output

    @property
    def shift_bias(self) -> int | None:
        """How far the bias is shifted left; `least_shift_bias` to 16 are allowed."""
        return None if self.bias is None else self.weight + self.input - self.bias

    @property
    def least_shift_bias(self) -> int:
        """The least shift of the bias, never above 0."""
        return min(0, self.shift_cut + 8 - BIAS_BITS)


def within_shift_limits(positions: ProductPositions) -> ProductPositions:
    """Adjusts positions until all shifts are allowed; returns `positions` itself if they already are.

    Too large a shift lowers the position of the weights; a result or bias that is too fine for the accumulator becomes
    coarser.

    Args:
        positions: The positions found in calibration.
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
