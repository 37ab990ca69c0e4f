"""Random valid recurrent models, and the checks that have to hold for every one of them; for tests of any compiler.

`generate(seed)` makes a case, `check(case)` lowers it in every form and says what does not hold; `python -m
rnnqc.testing` does so for many. See docs/testing.md.
"""

from rnnqc.testing.cases import Case, draw_case, generate
from rnnqc.testing.checks import KINDS, Checked, Finding, check, examine
from rnnqc.testing.draws import Draws, SeededDraws
from rnnqc.testing.layers import RecurrentCase
from rnnqc.testing.recurrences import RecurrenceCase
from rnnqc.testing.reproducers import save, shrink

__all__ = [
    "KINDS",
    "Case",
    "Checked",
    "Draws",
    "Finding",
    "RecurrenceCase",
    "RecurrentCase",
    "SeededDraws",
    "check",
    "draw_case",
    "examine",
    "generate",
    "save",
    "shrink",
]
