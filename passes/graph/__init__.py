"""Questions about graphs that several passes ask.

Operands of recurrent nodes (`lstm_node`), constants and what follows from them (`constant_expressions`,
`quantized_constants`), operators that only move values (`layout_ops`), what loops carry (`loop_states`,
`loop_reach`), names of layers and points (`point_names`). Nothing here changes a model, except for nodes that have no
effect (`redundant_nodes`, `unused_states`).
"""
