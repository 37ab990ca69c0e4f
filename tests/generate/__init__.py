"""Random valid recurrent models, and the checks that have to hold for every one of them; for tests of any compiler.

`generate(seed)` makes a case, `check(case)` lowers it in every form and says what does not hold; `python -m
tests.generate` does so for many. See docs/testing.md.
"""

from tests.generate.cases import Case, draw_case, generate
from tests.generate.checks import KINDS, Checked, Finding, check, examine
from tests.generate.draws import Draws, SeededDraws
from tests.generate.layers import RecurrentCase
from tests.generate.recurrences import RecurrenceCase
from tests.generate.reproducers import save, shrink

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
