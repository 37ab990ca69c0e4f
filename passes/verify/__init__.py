"""Verification: what every pass has changed, beside what it declares.

* every_pass: runs the model before and after each pass, and compares the outputs.
* single_step: runs one step of each cell before and after a pass on the same values, cut between its parts.
* first_difference: names the first value of a model that differs.
* reproducer: the files of a failed comparison.
"""
