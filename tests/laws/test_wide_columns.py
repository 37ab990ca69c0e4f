"""The law for layers with columns of 8 bits among columns of fewer, so large that kernels keep these columns apart.

What these would catch: a wide column whose products land in another column, row or gate, are added twice where two
threads share a block of wide columns, or are left out in one of the steps.
"""

from __future__ import annotations

import pytest

from tests.generate.layers import RecurrentCase
from tests.laws.law import layer_law
from tests.laws.layers import CELLS
from tests.native.kernel_calls import fewest_apart
from tests.runs.lowered import INTEGER

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
WIDE = "*.weight.wide_channels=0.01"
LAYERS = {
    "LSTM, 4 bits in groups": ("LSTM", 3, 1, ("*.weight.bits=4", "*.weight.group_size=32")),
    "LSTM, 6 bits in groups": ("LSTM", 1, 7, ("*.weight.bits=6", "*.weight.group_size=64")),
    "LSTM, 4 bits, codes of 16": ("LSTM", 2, 2, ("*.weight.bits=4", "*.input.bits=16", "*.hidden.bits=16")),
    "GRU, 4 bits in groups": ("GRU", 2, 2, ("*.weight.bits=4", "*.weight.group_size=32")),
    "GRU, linear before reset": ("GRU, linear before reset", 6, 1, ("*.weight.bits=4", "*.weight.group_size=32")),
    "RNN, 4 bits": ("RNN", 2, 1, ("*.weight.bits=4",)),
}
"""Cell, rows, inputs and units beyond the fewest whose columns stand apart, overrides."""


@pytest.mark.parametrize("layer", LAYERS)
def test_same_bits(layer: str) -> None:
    cell, batch, more, overrides = LAYERS[layer]
    size = fewest_apart(GATES[CELLS[cell]["op"]]) + more
    case = RecurrentCase(T=3, B=batch, I=size, H=size, **CELLS[cell])
    layer_law(case, "int8", (*overrides, WIDE), ways=(INTEGER,))
