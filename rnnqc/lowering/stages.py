"""The stages of a lowering, in the words of those who wait for it."""

from __future__ import annotations

from collections.abc import Callable

from rnnqc.ir import Model
from rnnqc.passes import Instrument
from rnnqc.passes.base import Pass

FIND = "finding the recurrent layers"
QUANTIZE = "quantizing the recurrent layers"
REST = "quantizing the layers around them"
WRITE = "writing the lowered layers"
MEASURE = "comparing with the float model"

Tell = Callable[[str], None]


def nothing(stage: str) -> None:
    """Ignores progress."""


class Stage(Instrument):
    """Tells the name of a stage before each of its passes: of a long one there is news more than once.

    Args:
        tell: Called with the name.
        name: One of the above.
    """

    def __init__(self, tell: Tell, name: str) -> None:
        self._tell, self._name = tell, name

    def before_pass(self, pass_: Pass, model: Model) -> None:
        """Tells the stage."""
        self._tell(self._name)
