"""Last stage: a cell with quantizers becomes integer arithmetic.

Passes in order: FoldScales writes the integer Scan in standard operators, RestoreNodes makes nodes again of cells that
stay float, FuseQuantLstmCell puts a Scan into one node with a function body (the native kernel computes the same bits),
or Unroll writes the steps one after the other; Cleanup removes dead nodes and joins equal constants. `lut/` and
`fixed_point/` write the two arithmetics, `operands/` what both read; `cell_function` puts them behind a fused node.
Leaves: forms integer, fused and unrolled.
"""
