"""Read-only analyses of a whole model: its recurrences, and how a lowering would handle them.

`find_recurrent_nodes` lists recurrent nodes and why some stay float; `custom_*` find the quantization points of custom
cells; `float_products` and `float_recurrences` list the matmuls without a quantization point.
"""
