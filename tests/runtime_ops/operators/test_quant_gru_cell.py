"""The native GRU and RNN operators inside onnxruntime against numpy: the same bytes of every output."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given

from tests.native.kernel_calls import fewest_apart
from tests.native.quant_gru_cases import GRU, RNN, cases, table_case
from tests.native.quant_lstm_cases import (
    Case,
    Operator,
    check,
)

OPERATORS = [(GRU, 0), (GRU, 1), (RNN, 0)]


@given(cases())
def test_any_configuration(case: Case) -> None:
    check(case)


@given(cases(kinds="table"))
def test_table_configurations(case: Case) -> None:
    check(case)


@given(cases(wide=True))
def test_16_bit_codes(case: Case) -> None:
    check(case)


@pytest.mark.few(9)
@pytest.mark.parametrize("count", [1, 63, 64, 65, 150, 151, 300])
@pytest.mark.parametrize(("operator", "linear"), OPERATORS)
def test_columns_of_eight_bits_among_columns_of_four(operator: Operator, linear: int, count: int) -> None:
    units = fewest_apart(3 if operator is GRU else 1)
    case = table_case(operator, 8, 3, 11, units, count, linear)
    rng = np.random.default_rng(count)
    columns = case.inputs["R"].shape[1]
    case.inputs["R"] = rng.integers(-8, 8, case.inputs["R"].shape, dtype=np.int8)
    wide = rng.choice(columns, min(count, columns), replace=False)
    case.inputs["R"][:, wide] = rng.integers(-128, 128, (units, wide.size), dtype=np.int8)
    for threads in (1, 2):
        check(case, threads)


@pytest.mark.few(12)
@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan, 3e38])
@pytest.mark.parametrize("mode", ["static", "dynamic_row"])
@pytest.mark.parametrize(("operator", "linear"), OPERATORS)
def test_unusual_initial_states(operator: Operator, linear: int, mode: str, value: float) -> None:
    case = table_case(operator, hidden=18, linear_before_reset=linear)
    case.attributes["h_mode"] = mode
    case.outputs = ("Y", "Y_h")
    case.inputs["initial_h"] = np.zeros((2, 18), np.float32)
    case.inputs["initial_h"][1, ::3] = value
    check(case)
