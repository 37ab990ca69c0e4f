"""Notes about padding in the data of a comparison.

What these would catch: padding that is not mentioned, a note on data that has none or on outputs without steps, a
share that is not that of the lengths.
"""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import rnnqc
from tests.generate.layers import RecurrentCase

CASE = RecurrentCase(T=6, B=2, I=3, H=4, lens=(6, 3), dynamic_time=True, dynamic_batch=True)


def noted(proto: onnx.ModelProto, *lengths: tuple[int, ...]) -> str:
    x = np.random.default_rng(0).normal(size=(6, 2, 3)).astype(np.float32)
    feeds = [{"X": x, "sequence_lens": np.array(n, np.int32)} for n in lengths]
    return " ".join(rnnqc.verify(proto, rnnqc.lower(proto), feeds).hints)


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("lengths", "share"), [([(6, 3)], "25%"), ([(6, 6), (4, 2)], "10%"), ([(6, 6), (4, 4)], None), ([(6, 6)], None)]
)
def test_the_share_of_padding(lengths: list[tuple[int, ...]], share: str | None) -> None:
    found = noted(CASE.model(), *lengths)
    assert (found == "") if share is None else found.startswith(f"at least {share} of the time steps are padding")
    assert share is None or ("'sequence_lens'" in found and "figures of 'Y'." in found)


def test_outputs_without_steps_have_no_padding() -> None:
    proto = CASE.model()
    del proto.graph.output[[o.name for o in proto.graph.output].index("Y")]
    assert noted(proto, (6, 3)) == ""


def test_generated_data_says_nothing() -> None:
    assert not rnnqc.verify(CASE.model(), rnnqc.lower(CASE.model())).hints
