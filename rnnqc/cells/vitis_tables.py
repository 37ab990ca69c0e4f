"""Sigmoid and tanh as the Vitis RNN quantizer tabulates them: 2048 int16 values in units of 2**-15.

Entry k of the sigmoid is its value at `-8 + k / 128`, of tanh at `-4 + k / 256`; an argument uses the entry at or
below it. Beyond the table sigmoid is 0 and `1 - 2**-15`, tanh is -1 and `1 - 2**-15`.
Source: `SigmoidTableLookup` and `TanhTableLookup` of https://github.com/Xilinx/Vitis-AI.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import numpy.typing as npt

from rnnqc.cells.tables import signed_codes
from rnnqc.errors import UsageError

VITIS = "vitis"
"""The name of these tables in recipes."""
ENTRIES = 2048
UNIT = 2.0**-15
STEP_BITS = {"Sigmoid": 7, "Tanh": 8}
"""Fix position of the arguments at which entries are tabulated."""
_BELOW = {"Sigmoid": 0, "Tanh": -(2**15)}
_ABOVE = 2**15 - 1


@cache
def vitis_table(activation: str) -> npt.NDArray[np.int16]:
    """Returns the 2048 entries of "Sigmoid" or "Tanh", in units of 2**-15, ascending.

    Raises:
        UsageError: Another activation.
    """
    if activation not in STEP_BITS:
        raise UsageError(f"There is no Vitis table of {activation}.", supported=", ".join(STEP_BITS))
    x = np.ldexp(np.arange(ENTRIES) - ENTRIES / 2, -STEP_BITS[activation])
    values = 1.0 / (1.0 + np.exp(-x)) if activation == "Sigmoid" else np.tanh(x)
    table: npt.NDArray[np.int16] = np.rint(values / UNIT).astype(np.int16)
    table.setflags(write=False)
    return table


def vitis_ends(activation: str) -> tuple[int, int]:
    """Returns the values below and above the table, in units of 2**-15."""
    return _BELOW[activation], _ABOVE


def vitis_values(activation: str, fix_position: int, bits: int) -> npt.NDArray[np.float32]:
    """Returns the value of an activation for every quantized value of its argument.

    Args:
        activation: "Sigmoid" or "Tanh".
        fix_position: Fix position of the argument: a quantized value means `code * 2**-fix_position`.
        bits: Width of the signed value, 2 to 16.

    Returns:
        float32 `[2**bits]`, quantized values in ascending order.

    Raises:
        UsageError: Another activation or width.
    """
    table = vitis_table(activation)
    if not 2 <= bits <= 16:
        raise UsageError(f"bits = {bits} of the argument of a Vitis table.", supported="2 to 16")
    index = np.floor(np.ldexp(signed_codes(bits).astype(np.float64), STEP_BITS[activation] - fix_position))
    index += ENTRIES / 2
    values = table[np.clip(index, 0, ENTRIES - 1).astype(np.intp)].astype(np.int64)
    values[index < 0] = _BELOW[activation]
    values[index >= ENTRIES] = _ABOVE
    return (values * UNIT).astype(np.float32)
