"""Operators in numpy, written from their pages: the independent oracle for function bodies and native kernels."""
