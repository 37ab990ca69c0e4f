"""Keys of a lowered model's metadata that are read without loading the model."""

CELLS_KEY = "rnnqc.cells"
"""The lowered cells and custom cells; every model that `rnnqc.lower` wrote has it."""
