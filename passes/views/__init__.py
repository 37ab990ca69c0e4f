"""Reduces the number of operators that only move elements.

Enters: any graph. Leaves: the same graph with fewer such operators, every element in its place. `regions.py` finds
them and follows each element, `moves.py` models single operators, `one_source.py`, `several_sources.py` and `plans.py`
search for fewer operators with the same result, and `emit.py` writes and verifies them.
"""
