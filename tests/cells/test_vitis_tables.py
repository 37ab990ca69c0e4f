"""The tables of the Vitis RNN quantizer.

What these would catch: an entry off by one, an index that truncates where it should round down, a missing end.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import pytest

from rnnqc.cells.vitis_tables import vitis_table, vitis_values
from rnnqc.errors import UsageError

FUNCTIONS = {"Sigmoid": lambda x: 1.0 / (1.0 + math.exp(-x)), "Tanh": math.tanh}
LIMITS = {"Sigmoid": 8, "Tanh": 4}
LOWEST = {"Sigmoid": 0, "Tanh": -32768}


@pytest.mark.parametrize("name", list(FUNCTIONS))
def test_entries(name: str) -> None:
    table, limit = vitis_table(name), LIMITS[name]
    assert (table.dtype, table.shape) == (np.int16, (2048,))
    for k, entry in enumerate(table.tolist()):
        assert entry == math.floor(32768 * FUNCTIONS[name](-limit + k * limit / 1024) + 0.5), k


def test_some_entries_as_published() -> None:
    sigmoid, tanh = vitis_table("Sigmoid"), vitis_table("Tanh")
    assert sigmoid[[0, 1024, 1025, 2047]].tolist() == [11, 16384, 16448, 32757]
    assert tanh[[0, 1023, 1024, 1025, 2047]].tolist() == [-32746, -128, 0, 128, 32746]


def _look_up(name: str, codes: npt.NDArray[np.int64], position: int) -> npt.NDArray[np.int64]:
    """The rule step by step, with its two cases for the sign and its exception at the lower end."""
    table, limit = vitis_table(name).astype(np.int64), LIMITS[name]
    step = position - {"Sigmoid": 7, "Tanh": 8}[name]
    result = np.zeros_like(codes)
    for k, code in enumerate(codes.tolist()):
        x = code / 2.0**position
        if x >= limit:
            result[k] = 32767
        elif x < -limit:
            result[k] = LOWEST[name]
        elif code >= 0:
            result[k] = table[1024 + (code >> step if step >= 0 else code << -step) % 1024]
        else:
            entry = abs(math.floor(code / 2.0**step)) % 1024
            lowest = math.floor(x) == -limit and entry == 0
            result[k] = table[0] if lowest else table[1024 - entry]
    return result


@pytest.mark.few(7)
@pytest.mark.parametrize("position", [0, 4, 7, 8, 11, 12, 15])
@pytest.mark.parametrize("name", list(FUNCTIONS))
def test_all_codes_of_16_bits(name: str, position: int) -> None:
    values = vitis_values(name, position, 16)
    assert (values.dtype, values.shape) == (np.float32, (65536,))
    expected = _look_up(name, np.arange(-32768, 32768), position)
    np.testing.assert_array_equal(values.astype(np.float64) * 32768, expected)
    assert (np.diff(values) >= 0).all()


@pytest.mark.parametrize("bits", [2, 8, 13])
@pytest.mark.parametrize("name", list(FUNCTIONS))
def test_narrower_codes_are_the_middle(name: str, bits: int) -> None:
    half = 2 ** (bits - 1)
    np.testing.assert_array_equal(vitis_values(name, 5, bits), vitis_values(name, 5, 16)[32768 - half : 32768 + half])


def test_close_to_the_function() -> None:
    """One step of the table is at most 2**-7 / 4 of the sigmoid and 2**-8 of tanh."""
    x = np.arange(-32768, 32768) / 2.0**12
    assert np.abs(vitis_values("Sigmoid", 12, 16) - 1 / (1 + np.exp(-x))).max() <= 2.0**-9 + 2.0**-15
    assert np.abs(vitis_values("Tanh", 12, 16) - np.tanh(x)).max() <= 2.0**-8 + 2.0**-15


def test_refused() -> None:
    with pytest.raises(UsageError, match="no Vitis table of Relu"):
        vitis_values("Relu", 12, 16)
    with pytest.raises(UsageError, match="bits = 17"):
        vitis_values("Tanh", 12, 17)
