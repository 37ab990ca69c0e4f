"""Questions about graphs that several passes ask.

`nodes/` reads recurrent nodes and quantizers, `values/` says where a value comes from and what is known of it before a
run, `loops/` what loops carry, `flat/` makes one flat graph of a model. Here stand the names of layers and points
(`point_names`) and single findings about a whole graph. Nothing changes a model, except for branches that are known
(`inline_branch`) and nodes that have no effect (`redundant_nodes`, `loops.unused_states`).
"""
