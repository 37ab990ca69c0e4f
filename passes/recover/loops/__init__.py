"""Loops over steps: their bounds, their bodies vectorized over all iterations, and replacements of their results."""
