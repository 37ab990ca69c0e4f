"""The laws of cell nodes, for every operator in every arithmetic: the bytes of the reference, however a node is called.

What these would catch: a size at which a kernel reads or writes beyond a block; rows, gates, directions or groups of
weights that are mixed up; sums of the largest products that overflow; a row that depends on others, a sequence on where
it is cut; an instruction set with other bits.
"""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

from tests.native.bundles import bundled, spread
from tests.native.cell_kinds import KINDS, TABLES, reverse, sequences, states, variants, varied
from tests.native.kernel_calls import AVAILABLE
from tests.native.quant_gru_cases import GRU
from tests.native.quant_lstm_cases import (
    GROUP_MULTIPLIERS,
    assert_same_bits,
    check,
    expected,
    pack_at_random,
    run_native,
)

every_kind = pytest.mark.parametrize("kind", KINDS)
every_cell = pytest.mark.parametrize("kind", TABLES)
# 16 units form a block, 16 codes of k a group of the portable packing, 64 columns a block of gates.
HIDDEN = [1, 2, 15, 16, 17, 31, 32, 33, 47, 48, 63, 64, 65, 96, 97, 127, 128, 130]


def test_kinds_differ() -> None:
    """Each kind of node shows something of its own."""
    results = [run_native(make(5, 2, 9, 21, 0))["Y"] for make in KINDS.values()]
    assert len({result.tobytes() for result in results}) == len(KINDS)
    assert all(0.05 < result.std() < 2 for result in results)


@pytest.mark.few(6)
@every_kind
@bundled("inputs, hidden, batch", spread(5, [1, 3, 4, 16, 61], HIDDEN, [1, 2, 7]), few=12)
def test_sizes(kind: str, inputs: int, hidden: int, batch: int) -> None:
    check(KINDS[kind](3, batch, inputs, hidden, hidden * 100 + inputs))


@pytest.mark.few(4)
@every_kind
@pytest.mark.parametrize("direction", ["forward", "reverse"])
def test_long_sequences_are_projected_in_several_chunks(kind: str, direction: str) -> None:
    """A chunk is more than one task."""
    case = KINDS[kind](300, 5, 130, 128, 5)
    case.inputs["sequence_lens"] = np.array([300, 7, 299, 0, 150], np.int32)
    case.attributes["direction"] = direction
    for threads in (1, 2):
        check(case, threads)


@every_cell
def test_hidden_rows_with_scales_of_their_own_over_several_chunks(kind: str) -> None:
    """Catches codes that are missing where a chunk, or the longest row, is not the last one to read them."""
    case = TABLES[kind](300, 5, 9, 128, 5)
    case.attributes["h_mode"] = "dynamic_row"
    case.inputs["sequence_lens"] = np.array([7, 300, 299, 0, 150], np.int32)
    case.outputs = tuple(name for name in case.outputs if name != "Y_codes")
    check(case)


@pytest.mark.few(8)
@every_kind
@pytest.mark.parametrize("backwards", [False, True])
def test_pieces_with_carried_states_are_the_whole(kind: str, backwards: bool) -> None:
    case = KINDS[kind](12, 3, 9, 33, 3)
    states(case)
    if backwards:
        reverse(case)
        case.attributes |= {"rounded_output": 1} if "fixed point" in kind else {}
    case.outputs = tuple(n for n in case.outputs if n != "Y_codes")
    whole, state, pieces = check(case), dict(case.inputs), {}
    spans = ((0, 1), (1, 2), (2, 5), (5, 12))
    for start, end in reversed(spans) if backwards else spans:
        got = run_native(replace(case, inputs={**state, **sequences(case, slice(start, end))}))
        state |= {f"initial_{name[-1]}": got[name] for name in case.outputs[1:]}
        pieces[start] = got["Y"]
    joined = np.concatenate([pieces[start] for start, _ in spans])
    assert_same_bits({"Y": joined, **{n: got[n] for n in case.outputs[1:]}}, whole)


@pytest.mark.few(8)
@every_kind
@pytest.mark.parametrize("variant", ["lengths", "reverse, lengths"])
def test_rows_are_those_of_a_row_alone(kind: str, variant: str) -> None:
    case = varied(kind, variant, 5, 9, 9, 37, 0)
    together = check(case)
    for row in (0, 3, 7, 8):
        own = {k: v[[row]] for k, v in case.inputs.items() if k in ("initial_h", "initial_c", "sequence_lens")}
        own |= sequences(case, np.s_[:, [row]])
        alone = run_native(replace(case, inputs={**case.inputs, **own}))
        assert_same_bits(alone, {k: v[:, [row]] if v.ndim == 3 else v[[row]] for k, v in together.items()})


@pytest.mark.few(4)
@pytest.mark.parametrize("isa", AVAILABLE)
@bundled("kind", KINDS)
def test_every_instruction_set_gives_the_same_bits(isa: str, kind: str) -> None:
    shapes = itertools.cycle([(1, 33), (3, 127), (8, 80), (2, 260)])
    for variant, (batch, hidden) in zip(variants(kind), shapes, strict=False):
        case = varied(kind, variant, 5, batch, 20, hidden, hidden)
        assert_same_bits(run_native(case, 2, isa), expected(case))


# Last blocks of up to four units, whose gates an LSTM's kernels keep side by side, and of more; behind any number of
# blocks that are multiplied together.
TAILS = [*range(1, 41), *range(97, 105), *range(113, 121)]


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind.startswith("LSTM") and "fixed" not in kind])
@bundled("hidden", TAILS, few=10)
def test_last_blocks_of_every_instruction_set(kind: str, hidden: int) -> None:
    """Also with weights of few bits and without tables in linear form, one row and several; and in pieces."""
    names = [name for name in variants(kind) if "lengths" not in name]
    for k, batch in enumerate((1, 3)):
        case = varied(kind, names[(hidden + k) % len(names)], 4, batch, 1 + hidden % 7, hidden, hidden)
        if hidden % 3 == 0:
            case.inputs["gate_table"] = case.inputs["gate_table"] + np.float32(2.0**-20)
        wanted = expected(case)
        for isa in AVAILABLE:
            assert_same_bits(run_native(case, 1, isa), wanted)


@every_cell
@pytest.mark.parametrize("states_axis", [0, 1])
@pytest.mark.parametrize("y_axis", [0, 1])
@bundled("constant_states", [True, False])
def test_axes_for_the_direction(kind: str, y_axis: int, states_axis: int, constant_states: bool) -> None:
    case = KINDS[kind](5, 2, 9, 21)
    states(case)
    case.attributes.update(y_direction_axis=y_axis, state_direction_axis=states_axis)
    given = [name for name in ("initial_h", "initial_c") if name in case.inputs]
    case.inputs |= {name: case.inputs[name][(None,) * states_axis] for name in given}
    if constant_states:
        case.constants = (*case.constants, *given)
    found = check(case)
    assert found["Y"].shape == ((5, 1, 2, 21) if y_axis else (5, 2, 21))
    assert {found[n].shape for n in case.outputs[1:-1]} == {(1, 2, 21) if states_axis else (2, 21)}


@pytest.mark.few(2)
@every_cell
@bundled("inputs, hidden, group_size", spread(5, [1, 31, 32, 33, 65, 200], [1, 15, 16, 33, 127], [0, 32, 64]), few=8)
@pytest.mark.parametrize("bits", [4, 5, 6])
def test_packed_sizes(kind: str, inputs: int, hidden: int, group_size: int, bits: int) -> None:
    """Odd numbers of columns among them: the last high nibble does not count."""
    case = KINDS[kind](3, 2, inputs, hidden, 0)
    rng = np.random.default_rng(inputs * 1000 + hidden)
    for key in ("W", "R"):
        pack_at_random(case, key, group_size, rng, bits)
    case.constants = ("W", "R", *GROUP_MULTIPLIERS) if (inputs + hidden) % 3 else ()
    before = check(case)
    columns = case.inputs["h_multiplier"].size
    if columns % 2 == 1:
        case.inputs["W"][:, columns // 2] ^= 0xF0
        case.inputs["R"][:, columns // 2] ^= 0xF0
        assert_same_bits(run_native(case), before)


@every_cell
def test_saturated_integers(kind: str) -> None:
    """Every product is 127 * 128 or -128 * 128: pairs and fours of them exceed 16 bits."""
    case = KINDS[kind](3, 3, 700, 65)
    for value in (-128, 127):
        case.inputs["W"][:] = value
        case.inputs["R"][:] = value
        for zero_point in (0, 255):
            case.inputs["X"] = np.full((3, 3, 700), 255 - zero_point, np.uint8)
            case.attributes |= {"x_mode": "codes", "x_zero_point": zero_point, "h_zero_point": zero_point}
            if case.operator is GRU and "reset_scale" in case.attributes:
                case.attributes["reset_zero_point"] = zero_point
            case.inputs["x_multiplier"][:] = 2.0**-16
            check(case)
