"""Dump folders: writes the tensors of a model's cells, and compares them with those of another implementation."""
