"""The passes that bring a float model into the form all others expect."""

from __future__ import annotations

from rnnqc.passes.base import Pass
from rnnqc.passes.canonicalize import Canonicalize
from rnnqc.passes.recognize_steps import RecognizeSteps
from rnnqc.passes.recover_loops import RecoverLoops
from rnnqc.passes.roll_steps import RollSteps
from rnnqc.passes.simplify_sequences import SimplifySequences


def normal_form() -> list[Pass]:
    """Canonical recurrent nodes, and nodes of every recurrence that one can compute, in order."""
    return [Canonicalize(), RecognizeSteps(), RollSteps(), RecoverLoops(), SimplifySequences()]
