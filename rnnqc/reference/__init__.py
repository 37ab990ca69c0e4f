"""Quantized cells in numpy, from the pages of their operators: the oracle for function bodies and native kernels.

Every arithmetic is written again here, independent of both; what a step computes are the equations of its type of cell
(`rnnqc.cells.equations`), so that every type has a reference.
"""
