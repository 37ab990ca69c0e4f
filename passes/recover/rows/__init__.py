"""Rows of values as expressions: products with constant matrices, sums, activations."""
