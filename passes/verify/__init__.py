"""Verification: what every pass changes, compared with what it declares.

`verify_numerics` (an instrument of the pass manager) runs the model before and after each pass and hands both to
`pass_comparison`, which compares the outputs (`divergence` names the first value that differs) and, through
`single_step`, one step of each cell fed the same on both sides. `reproducer` writes the files of a failure.
"""
