"""Runs models and compares their outputs."""
