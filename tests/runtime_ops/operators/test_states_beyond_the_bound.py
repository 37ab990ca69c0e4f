"""Initial hidden states beyond the bound of the codes: the native operators against numpy, and what must not matter.

What these would catch: a part of a state that is lost, or taken twice; other bits for states within the bound; rows,
pieces of a sequence, threads or instruction sets that make a difference; a GRU that leaves the loop with whole states
too early.
"""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rnnqc.cells.types import CELL_TYPES
from rnnqc.reference import operators as reference
from tests.native import quant_gru_cases, quant_lstm_cases
from tests.native.kernel_calls import AVAILABLE
from tests.native.quant_gru_cases import GRU, RNN
from tests.native.quant_lstm_cases import LSTM, Case, assert_same_bits, run_native

Array = npt.NDArray[np.float32]
KINDS = [("LSTM", 8), ("LSTM", 16), ("GRU0", 8), ("GRU0", 16), ("GRU1", 8), ("GRU1", 16), ("RNN", 8), ("RNN", 16)]
MAGNITUDES = (0.3, 1.5, 10.0, 1e4)


def expected(case: Case) -> dict[str, Array]:
    """Outputs of the reference."""
    if case.operator is LSTM:
        return reference.run(CELL_TYPES["LSTM"], case.inputs, case.attributes)
    return quant_gru_cases.expected(case)


def bounded_case(
    kind: str, bits: int, time: int = 5, batch: int = 4, hidden: int = 37, seed: int = 0, size: float = 3.0
) -> Case:
    """A cell of the default recipe, whose initial states have rows within the bound and others beyond it."""
    rng = np.random.default_rng(seed)
    if kind == "LSTM":
        case = quant_lstm_cases.table_case(time, batch, 9, hidden, seed)
    else:
        operator = RNN if kind == "RNN" else GRU
        case = quant_gru_cases.table_case(operator, time, batch, 9, hidden, seed, int(kind.endswith("1")))
    case.attributes |= {"h_bound": 1.0}
    if kind == "GRU0":
        case.attributes |= {"reset_scale": 1 / 127, "reset_zero_point": 128}
    if bits == 16:
        case.attributes |= {"h_bits": 16, "h_zero_point": 32768, "h_scale": 1 / 32767}
        if kind == "GRU0":
            case.attributes |= {"reset_scale": 1 / 32767, "reset_zero_point": 32768}
        case.inputs["h_multiplier"] = case.inputs["h_multiplier"] / np.float32(256)
        case.outputs = [o for o in case.outputs if o != "Y_codes"]
    # Tables of sigmoid and tanh stay within it.
    h = rng.normal(0, 1, (batch, hidden)).astype(np.float32)
    h *= np.where(np.arange(batch) % 3 == 2, 0.2, size)[:, None].astype(np.float32)
    h[2::3] = np.clip(h[2::3], -1, 1)
    h[:, 0] = 0.0
    h[0, -1] = -0.0
    case.inputs["initial_h"] = h
    return case


def check(case: Case, threads: int = 1) -> dict[str, Array]:
    """Compares native and reference."""
    found = run_native(case, threads)
    assert_same_bits(found, expected(case))
    return found


@pytest.mark.few(8)
@pytest.mark.parametrize("size", MAGNITUDES)
@pytest.mark.parametrize(("kind", "bits"), KINDS)
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
@pytest.mark.parametrize(("kind", "bits"), KINDS)
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


@pytest.mark.few(6)
@pytest.mark.parametrize("lens", [None, (5, 0, 2, 4)])
@pytest.mark.parametrize("direction", ["forward", "reverse"])
@pytest.mark.parametrize(("kind", "bits"), KINDS)
def test_rows_are_independent(kind: str, bits: int, direction: str, lens: tuple[int, ...] | None) -> None:
    """Rows do not depend on whether another row is beyond the bound."""
    case = bounded_case(kind, bits)
    case.attributes["direction"] = direction
    if lens is not None:
        case.inputs["sequence_lens"] = np.int32(lens)
    together = check(case)
    for row in range(4):
        own = {k: v[row : row + 1] for k, v in case.inputs.items() if k in ("initial_h", "initial_c", "sequence_lens")}
        alone = run_native(replace(case, inputs={**case.inputs, "X": case.inputs["X"][:, row : row + 1], **own}))
        for name, value in together.items():
            part = value[:, row : row + 1] if value.ndim == 3 else value[row : row + 1]
            assert alone[name].tobytes() == np.ascontiguousarray(part).tobytes(), name


@pytest.mark.few(4)
@pytest.mark.parametrize(("kind", "bits"), KINDS)
def test_pieces_make_the_whole(kind: str, bits: int) -> None:
    """Of a GRU's sequence some pieces begin beyond the bound."""
    case = bounded_case(kind, bits, time=12, size=40.0)
    whole = check(case)
    state = {"initial_h": case.inputs["initial_h"]}
    pieces, beyond = [], 0
    for begin, end in ((0, 1), (1, 2), (2, 5), (5, 12)):
        beyond += int(np.abs(state["initial_h"]).max() > 1)
        found = run_native(replace(case, inputs={**case.inputs, **state, "X": case.inputs["X"][begin:end]}))
        state = {"initial_h": found["Y_h"]} | ({"initial_c": found["Y_c"]} if "Y_c" in found else {})
        pieces.append(found["Y"])
    assert np.concatenate(pieces).tobytes() == whole["Y"].tobytes()
    assert beyond > 1 if kind.startswith("GRU") else beyond == 1


@pytest.mark.few(2)
@pytest.mark.parametrize(("kind", "bits"), KINDS)
def test_threads(kind: str, bits: int) -> None:
    for batch, hidden in ((1, 700), (64, 100)):
        case = bounded_case(kind, bits, batch=batch, hidden=hidden, seed=batch)
        assert_same_bits(run_native(case, 2), check(case))


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


@pytest.mark.parametrize(("kind", "bits"), KINDS)
def test_special_values(kind: str, bits: int) -> None:
    """Infinities are the largest states there are, NaN is 0."""
    case = bounded_case(kind, bits)
    case.inputs["initial_h"][0, 1:4] = (np.inf, -np.inf, np.nan)
    case.inputs["initial_h"][1, 1:3] = (3e38, np.nan)
    case.inputs["initial_h"][3] = np.nan
    found = check(case)
    assert np.isfinite(found["Y"]).all()


@pytest.mark.parametrize("isa", AVAILABLE)
def test_every_instruction_set_gives_the_same_bits(isa: str) -> None:
    shapes = itertools.cycle([(1, 33), (3, 127), (2, 260)])
    for kind, bits in KINDS:
        batch, hidden = next(shapes)
        case = bounded_case(kind, bits, batch=batch, hidden=hidden, seed=hidden)
        assert_same_bits(run_native(case, 2, isa), expected(case))
