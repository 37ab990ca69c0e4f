"""Detects padding in the data of a comparison from inputs that hold sequence lengths."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import onnx

from rnnqc.data.feeds import Feeds
from rnnqc.data.input_uses import Role, input_uses
from rnnqc.measure.differences import OutputComparison


def padding_notes(proto: onnx.ModelProto, feeds: Iterable[Feeds], outputs: Iterable[OutputComparison]) -> list[str]:
    """Returns a sentence on outputs of every time step if some steps are padding, which counts like the rest.

    Args:
        proto: The model.
        feeds: The feeds that it runs on.
        outputs: The comparisons of its outputs.
    """
    stepped = [repr(o.name) for o in outputs if o.steps is not None and o.steps.axis is not None]
    names = [name for name, uses in input_uses(proto).items() if any(u.role is Role.LENGTH for u in uses)]
    if not stepped or len(names) != 1:
        return []
    steps = valid = 0
    for lengths in (np.asarray(feed[names[0]]) for feed in feeds if names[0] in feed):
        steps += lengths.size * int(lengths.max(initial=0))
        valid += int(lengths.sum())
    if steps <= valid:
        return []
    text = (
        f"at least {1 - valid / steps:.0%} of the time steps are padding, as input {names[0]!r} says, and count in the "
        f"figures of {', '.join(stepped)}. Resolution: for figures without them compare on data without padding, such "
        "as sequences of one length in each feed."
    )
    return [text]
