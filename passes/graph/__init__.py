"""Analyses of graphs that several passes share.

`nodes/` reads recurrent nodes and quantizers, `values/` finds the source of a value and what is known of it before a
run, `loops/` reads what loops carry, `flat/` converts a model to one flat graph. This folder has the names of layers
and points (`point_names`) and single analyses of a whole graph. Only `inline_branch`, `redundant_nodes` and
`loops.unused_states` change a model, to remove known branches and nodes without effect.
"""
