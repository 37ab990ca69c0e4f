"""Formats become integer operands: folded scales, biases, limits and tables of the two arithmetics; numbers only."""
