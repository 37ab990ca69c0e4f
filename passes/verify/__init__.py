"""Verification: compares the changes of every pass with what it declares.

`verify_numerics` (an instrument of the pass manager) runs the model before and after each pass and passes both to
`pass_comparison`, which compares the outputs (`divergence` names the first value that differs) and, with `single_step`,
one step of each cell on the same inputs. `reproducer` writes the files of a failure.
"""
