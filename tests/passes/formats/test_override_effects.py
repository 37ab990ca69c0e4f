"""Overrides that match nothing.

What this would catch: points of any cell in the message, where the user named another one.
"""

from __future__ import annotations

import pytest

from rnnqc.errors import UsageError
from rnnqc.passes.formats.override_effects import check_overrides
from rnnqc.recipes.recipe import load_recipe


@pytest.mark.parametrize(
    ("override", "cell"),
    [
        ("gru.*.bits=none", "/gru/GRU.forward"),
        ("*/LSTM/*.bits=16", "/lstm/LSTM.forward"),
        ("*.wieght.bits=4", "/lstm/LSTM.forward"),
    ],
)
def test_points_of_the_cell_that_is_meant(override: str, cell: str) -> None:
    cells = {f"/{op.lower()}/{op}.forward": ["W.weight", "hidden"] for op in ("LSTM", "GRU")}
    with pytest.raises(UsageError) as caught:
        check_overrides(load_recipe("int8").with_overrides([override]), cells)
    assert f"points such as {cell}.W.weight" in str(caught.value)
