"""Calls of the native kernels, and cases for them."""
