"""Initial hidden states beyond the bound of the codes: the native operators against numpy.

What these would catch: a part of a state that is lost, or taken twice; other bits for states within the bound; a GRU
that leaves the loop with whole states too early. Rows, pieces, threads and instruction sets are in test_cells.py.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.native import quant_gru_cases, quant_lstm_cases
from tests.native.cell_kinds import BOUNDED, bounded_case
from tests.native.quant_gru_cases import GRU, RNN
from tests.native.quant_lstm_cases import LSTM, Case, assert_same_bits, check, expected, run_native

Array = npt.NDArray[np.float32]
MAGNITUDES = (0.3, 1.5, 10.0, 1e4)


@pytest.mark.few(8)
@pytest.mark.parametrize("size", MAGNITUDES)
@pytest.mark.parametrize(("kind", "bits"), BOUNDED)
def test_whole_states(kind: str, bits: int, size: float) -> None:
    for batch, hidden in ((1, 5), (4, 37), (7, 130)):
        check(bounded_case(kind, bits, batch=batch, hidden=hidden, size=size))


@st.composite
def _cases(draw: st.DrawFn) -> Case:
    """Any LSTM and RNN, and GRUs whose steps keep a state within the bound, with states of any magnitude."""
    operator = draw(st.sampled_from([LSTM, GRU, RNN]))
    if operator is LSTM:
        case = draw(quant_lstm_cases.cases())
    else:
        wide = draw(st.booleans())
        kinds = "any" if operator is RNN else "table"
        case = draw(quant_gru_cases.cases((operator,), kinds=kinds, wide=wide))
    case.attributes["h_bound"] = draw(st.sampled_from([0.5, 1.0, 2.0]))
    if operator is GRU:
        table = np.abs(case.inputs["gate_table"])
        case.inputs["gate_table"] = (table / table.max()).astype(np.float32)
        case.attributes["h_bound"] = max(1.0, case.attributes["h_bound"])
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    shape = case.inputs["X"].shape[1], case.attributes["hidden_size"]
    h = rng.normal(0, 1, shape) * 10.0 ** rng.integers(-2, 4, (shape[0], 1))
    case.inputs["initial_h"] = quant_lstm_cases.with_specials(rng, h.astype(np.float32))
    return case


@given(_cases())
def test_any_configuration(case: Case) -> None:
    check(case)


@pytest.mark.few(4)
@pytest.mark.parametrize(("kind", "bits"), BOUNDED)
def test_within_the_bound_nothing_changes(kind: str, bits: int) -> None:
    """The node has the bits of one without a bound."""
    case = bounded_case(kind, bits, size=0.2)
    case.inputs["initial_h"] = np.clip(case.inputs["initial_h"], -1, 1)
    case.inputs["initial_h"][1, 1:4] = (1.0, -1.0, np.nan)
    without = {k: v for k, v in case.attributes.items() if k != "h_bound"}
    old = replace(case, attributes=without)
    assert_same_bits(run_native(case), run_native(old))
    assert_same_bits(expected(case), expected(old))
    case.inputs["initial_h"][1, 1] = 1.5
    assert run_native(case)["Y"].tobytes() != run_native(old)["Y"].tobytes()


@pytest.mark.parametrize("size", MAGNITUDES)
@pytest.mark.parametrize("bits", [8, 16])
def test_how_exact_the_product_is(bits: int, size: float) -> None:
    """Against the real product: 15 bits of the largest element beside the codes' own rounding."""
    case = bounded_case("RNN", bits, time=1, batch=3, size=size)
    hidden = case.attributes["hidden_size"]
    case.attributes |= {"gate_kinds": "Affine", "gate_min": [-1e30], "gate_max": [1e30], "gate_alpha": [1.0]}
    case.inputs["B"] = np.zeros(hidden, np.float32)
    case.inputs["W"] = np.zeros_like(case.inputs["W"])
    h = case.inputs["initial_h"].astype(np.float64)
    unit, weights = case.attributes["h_scale"], case.inputs["R"].astype(np.float64)
    wanted = h @ weights / unit * case.inputs["h_multiplier"]
    rounded = unit / 2 + np.maximum(np.abs(h).max(axis=1, keepdims=True) - 1, 0) * 2.0**-14
    allowed = (rounded @ np.abs(weights).sum(axis=0, keepdims=True)) / unit * case.inputs["h_multiplier"]
    error = np.abs(check(case)["Y"][0] - wanted)
    assert (error <= allowed * 1.01 + 1e-5 * np.abs(wanted).max()).all()


@pytest.mark.parametrize(("kind", "bits"), BOUNDED)
def test_special_values(kind: str, bits: int) -> None:
    """Infinities are the largest states there are, NaN is 0."""
    case = bounded_case(kind, bits)
    case.inputs["initial_h"][0, 1:4] = (np.inf, -np.inf, np.nan)
    case.inputs["initial_h"][1, 1:3] = (3e38, np.nan)
    case.inputs["initial_h"][3] = np.nan
    found = check(case)
    assert np.isfinite(found["Y"]).all()
