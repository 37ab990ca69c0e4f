"""Traces the cells of a lowered model: every named tensor of every time step."""
