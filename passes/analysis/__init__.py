"""Questions about a whole model: what is recurrent in it, and what a lowering would do with it. Reads only.

`find_recurrent_nodes` lists recurrent nodes and the reasons why some stay float; `custom_*` find the quantization
points of loops with equations of their own; `float_products` and `float_recurrences` list the matmuls that no point
reaches.
"""
