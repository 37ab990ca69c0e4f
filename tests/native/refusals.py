"""Nodes that the native operators refuse: what a message has to name, at creation and at run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest

from tests.native.quant_lstm_cases import Case, native_session
from tests.subjects.node_changes import Change

NAME = "layer/7"


@contextmanager
def refused(case: Case, message: str) -> Iterator[None]:
    """The code inside has to raise an error that matches `message` and names the operator and the node."""
    case.name = NAME
    with pytest.raises(Exception, match=message) as caught:
        yield
    assert f'{case.operator.name} node "{NAME}"' in str(caught.value)


def check_refused_at_creation(case: Case, message: str, change: Change) -> None:
    change(case)
    with refused(case, message):
        native_session(case.model())


def check_refused_at_run(case: Case, message: str, change: Change) -> None:
    """The model declares no shapes, so that only running it finds the error; without the change it runs."""
    case.constants = ("W", "x_multiplier")
    case.inputs["sequence_lens"] = np.array([5, 2], np.int32)
    case.inputs["initial_h"] = np.zeros((2, 21), np.float32)
    case.name = NAME
    model = case.model()
    for value in model.graph.input:
        value.type.tensor_type.ClearField("shape")
    session = native_session(model)
    session.run(None, case.feeds())
    change(case)
    with refused(case, message):
        session.run(None, case.feeds())
