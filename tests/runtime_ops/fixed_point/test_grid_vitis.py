"""The arithmetic "grid" computes what the numpy model of Vitis' RNN quantizer computes, code for code.

What these would catch: a quantizer at another place than Vitis has it, another order of rounding and adding, a table
that is looked up elsewhere.
"""

from __future__ import annotations

import numpy as np
import pytest

from rnnqc.cells.fixed_point_numbers import QUANTIZERS, FixedPointNumbers, FixedPointQuantizer
from rnnqc.cells.vitis_tables import vitis_values
from tests.native.grid_cases import GridCase, a_cell
from tests.native.grid_cases import expected as of_reference
from tests.native.quant_lstm_cases import OUTPUTS, assert_same_bits, run_native
from tests.subjects.vitis_reference import GATES, Format, VitisLstm, codes, half_away

# Tensors of the numpy model in the order of the quantizers.
TENSORS = (
    *("input", "hidden", *(f"wx_{g}" for g in GATES), *(f"rh_{g}" for g in GATES), *(f"acc_{g}" for g in GATES)),
    *("kept", "added", "cell"),
)
FORMATS = [
    Format(),
    Format(aligned=False),
    Format(rounding="half_up", aligned=False),
    Format(weight_bits=8),
    Format(weight_bits=8, bits=8, aligned=False),
    Format(weight_bits=8, bits=8, aligned=False, rounding="half_up"),
]


def _case(lstm: VitisLstm, x: np.ndarray) -> GridCase:
    """The node with the formats that the model has found."""
    at, bits = lstm.positions, lstm.format.bits
    half, inputs, hidden = 2 ** (bits - 1), lstm.W.shape[1], lstm.R.shape[1]
    grids = []
    for tensor in TENSORS:
        raised = half if tensor in ("input", "hidden") else 0
        grids.append(
            FixedPointQuantizer(2.0 ** -at[tensor], raised, raised - half, raised + half - 1, lstm.format.rounding)
        )
    dtype = np.int8 if lstm.format.weight_bits <= 8 else np.int16
    tables = [vitis_values("Tanh" if g == "c" else "Sigmoid", at[f"acc_{g}"], bits) for g in GATES]

    def weight(name: str, matrix: np.ndarray) -> np.ndarray:
        parts = np.split(matrix, 4)
        made = [
            codes(p, lstm.format.weight_bits, at[f"{name}_{g}"], half_away) for g, p in zip(GATES, parts, strict=True)
        ]
        return np.concatenate(made).T.astype(dtype)

    def multiplier(name: str, source: str) -> np.ndarray:
        return np.repeat([2.0 ** -(at[f"{name}_{g}"] + at[source]) for g in GATES], hidden).astype(np.float32)

    bias = [
        codes(b, bits, at[f"b_{g}"], half_away) * 2.0 ** -at[f"b_{g}"]
        for g, b in zip(GATES, np.split(lstm.B, 4), strict=True)
    ]
    numbers = FixedPointNumbers.of(
        "static", grids, gate_table_offset=[k * 2**bits for k in range(4)], rounded_output=True
    )
    arrays = {
        "X": x.astype(np.float32),
        "W": weight("W", lstm.W),
        "R": weight("R", lstm.R),
        "x_multiplier": multiplier("W", "input"),
        "h_multiplier": multiplier("R", "hidden"),
        "B": np.concatenate(bias).astype(np.float32),
        "gate_table": np.concatenate(tables),
        "cell_table": vitis_values("Tanh", at["cell"], bits),
    }
    return GridCase(a_cell(inputs, hidden), numbers, arrays, OUTPUTS[:1])


@pytest.mark.few(2)
@pytest.mark.parametrize("format_", FORMATS, ids=str)
def test_every_hidden_state(format_: Format) -> None:
    assert len(TENSORS) == len(QUANTIZERS)
    rng = np.random.default_rng(5)
    inputs, hidden = 12, 20
    lstm = VitisLstm(
        rng.normal(0, 0.5, (4 * hidden, inputs)),
        rng.normal(0, 0.4, (4 * hidden, hidden)),
        rng.normal(0, 0.5, 4 * hidden),
        format_,
    )
    x = rng.normal(0, 1, (40, 6, inputs)).astype(np.float32)
    lstm.calibrate([x[:, :3], x[:, 3:]])
    # A state is read from the grid it was written on.
    lstm.positions["h"], lstm.positions["c"] = lstm.positions["hidden"], lstm.positions["cell"]
    expected = lstm.run(x).astype(np.float32)
    assert len(np.unique(expected)) > 30
    case = _case(lstm, x)
    assert_same_bits({"Y": of_reference(case)["Y"] + 0}, {"Y": expected + 0})
    assert_same_bits(run_native(case.node), {"Y": expected + 0})
