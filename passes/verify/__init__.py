"""Every pass is checked: the models before and after it compute the same, within what the pass declares.

VerifyNumerics is an instrument of the pass manager. A difference is reported with the first value that differs, and
with a folder that reproduces it.
"""
