"""Verification: compares the changes of every pass with what it declares.

`verify_numerics` (an instrument of the pass manager) runs the model before and after each pass and passes both to
`pass_comparison`, which compares the outputs and, with `single_step`, one step of each cell on the same inputs.
`divergence` names the first value that differs, among those that `inner_values` exposes; `reproducer` writes the files
of a failure.
"""
