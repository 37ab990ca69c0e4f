"""Fourth stage, second part: computes the operands of integer arithmetic from formats. Numbers only, no graph.

`integer_forms` selects the arithmetic of a cell. `fold_lut` is the arithmetic with look-up tables and per-row dynamic
scales, `fold_fixed_point` the fixed-point one in which every point has a static format, `fold_quant_lstm` that of
Brevitas' cells. Leaves: combined multipliers, effective biases, limits and tables.
"""
