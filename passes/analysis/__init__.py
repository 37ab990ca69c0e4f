"""Which recurrent nodes, custom cells and float matmuls a model has, and which points they quantize."""
