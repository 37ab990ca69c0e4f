"""Fourth stage, second part: formats become the operands of integer arithmetic. Numbers only, no graph.

`integer_forms` decides which arithmetic a cell gets. `fold_cell` is the arithmetic with look-up tables and one scale
per row, `fold_grid` the fixed-point one in which every point has a static format, `fold_quant_lstm` that of Brevitas'
cells. Leaves: combined multipliers, effective biases, limits and tables.
"""
