"""Operators that only move elements: chains and bundles of them become fewer.

Enters: any graph. Leaves: the same graph with fewer such operators, every element where it was. `regions.py` finds
them and follows each element, `moves.py` has what an operator may be, `one_source.py`, `several_sources.py` and
`plans.py` look for fewer operators that make the same, and `emit.py` writes and proves them.
"""
