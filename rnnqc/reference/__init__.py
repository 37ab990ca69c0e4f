"""Quantized cells in numpy, written from the operators' documentation: the oracle for function bodies and kernels.

Every arithmetic is implemented here once more, independent of both. The equations of a step are those of the cell type
(`rnnqc.cells.equations`), so every type has a reference.
"""
