"""What a call of a lowered model takes, next to others."""

from __future__ import annotations

from collections.abc import Sequence

import onnx

from rnnqc.data.feeds import Feeds
from rnnqc.measure.runs import has_native
from rnnqc.sessions import session
from rnnqc.timing import bound_run, session_options, take_turns

ROUNDS = 8
"""How often the models take turns."""


def call_seconds(models: Sequence[onnx.ModelProto], feed: Feeds) -> list[float]:
    """The shortest of some runs of the first call, for each model; they take turns."""
    native = has_native()
    runs = {str(k): bound_run(session(m, native, session_options()), feed) for k, m in enumerate(models)}
    return [min(times) for times in take_turns(runs, ROUNDS, seconds=0.005).values()]
