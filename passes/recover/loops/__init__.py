"""Loops over steps: how often they run, what their bodies compute over all iterations, what replaces their results."""
