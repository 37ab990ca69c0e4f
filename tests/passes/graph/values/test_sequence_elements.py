"""Values that are one element of a sequence. What this would catch: a sequence of one row taken for one step."""

from __future__ import annotations

import numpy as np
import pytest

from rnnqc.ir import Model
from rnnqc.passes.graph.values.sequence_elements import is_unsqueezed_in_front
from tests.subjects.protos import parse


@pytest.mark.parametrize(("axes", "is_step"), [([0], True), ([-3], True), ([1], False), ([-2], False), ([2], False)])
def test_the_axis_of_time_is_added(axes: list[int], is_step: bool) -> None:
    header = '<ir_version: 8, opset_import: ["": 17]>'
    text = f"{header} g (float[A,C] x) => (float[D,E,F] y) {{ y = Unsqueeze (x, axes) }}"
    model = Model.load(parse(text, axes=np.array(axes, np.int64)))
    assert is_unsqueezed_in_front(model.graph.outputs[0]) == is_step
