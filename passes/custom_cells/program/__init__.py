"""Programs of custom cells: the instructions that the native kernel runs for each step.

Enters: a Scan. `step_program` reads its body operator by operator. Leaves: a StepProgram, or why there is none.
"""
