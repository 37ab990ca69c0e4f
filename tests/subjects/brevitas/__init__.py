"""Cells of Brevitas: exported by it, made by hand, and computed in numpy."""
