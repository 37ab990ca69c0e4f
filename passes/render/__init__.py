"""Last stage: renders cells with quantizers in integer arithmetic.

Passes in order: FoldScales writes the integer Scan in standard operators; RestoreNodes turns cells that stay float back
into nodes; FuseQuantLstmCell replaces a Scan by one node with a function body (the native kernel computes the same
bits), or Unroll repeats the steps; Cleanup removes dead nodes and merges equal constants. `lut/` and `fixed_point/`
write the two arithmetics, `operands/` their common inputs; `cell_function` wraps them in the function of a fused node.
Leaves: forms integer, fused and unrolled.
"""
