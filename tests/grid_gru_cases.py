"""Nodes of `ai.rnnqc::QuantGRUCell` and `QuantRNNCell` in the arithmetic "grid", drawn over what their page allows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
from grid_cases import (
    ROUNDINGS,
    GridCase,
    a_cell,
    grid,
    random_table,
    random_weights,
    with_special_values,
)
from hypothesis import strategies as st
from quant_gru_cases import OUTPUTS, PARAMETERS
from quant_lstm_cases import Arrays, Case, pack_at_random

from rnnqc.cells.types import CELL_TYPES
from rnnqc.passes.grid_numbers import RESET, Grid, GridNumbers, quantizers_of

CELLS = (("GRU", False), ("GRU", True), ("RNN", False))
STATES = ("hidden_state.kept", "hidden_state.added", "hidden_state")


def _quantizers(draw: st.DrawFn, op: str, linear: bool, bits: dict[str, int], span: float) -> dict[str, Grid]:
    """Any that a node may have, in the order of its attributes."""
    type_ = CELL_TYPES[op]
    made = {
        "input": grid(draw, bits["input"], 3.0, unsigned=True),
        "hidden": grid(draw, bits["hidden"], 1.0, unsigned=True),
    }
    for kind in ("input_product", "hidden_product", "acc"):
        how = draw(st.sampled_from(["one", "one", "each", "alike"] + (["none"] if kind != "acc" else [])))
        rounding = draw(st.sampled_from(ROUNDINGS)) if how == "alike" else None
        shared = grid(draw, bits["acc"], span) if how == "one" else Grid()
        for gate in type_.gates:
            drawn = how in ("each", "alike") and (kind == "acc" or how == "alike" or draw(st.booleans()))
            made[f"{gate}.{kind}"] = grid(draw, bits["acc"], span, rounding=rounding) if drawn else shared
    for name in quantizers_of(type_)[len(made) :]:
        if name == RESET and not linear:
            made[name] = grid(draw, bits["reset"], 1.0, unsigned=True)
        elif draw(st.booleans()):
            made[name] = grid(draw, draw(st.sampled_from([4, 8, 16, 32])), 2.0)
        else:
            made[name] = Grid()
    assert tuple(made) == quantizers_of(type_)
    return made


@st.composite
def gru_grid_cases(draw: st.DrawFn) -> GridCase:
    """Any node of the two operators in the arithmetic "grid"."""
    op, linear = draw(st.sampled_from(CELLS))
    gates = CELL_TYPES[op].gates
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    time, batch = draw(st.integers(1, 6)), draw(st.integers(1, 4))
    size, hidden = draw(st.integers(1, 40)), draw(st.integers(1, 40))
    columns = len(gates) * hidden
    code_bits = st.sampled_from([2, 3, 5, 8, 8, 8, 9, 12, 16, 16])
    bits = {k: draw(code_bits) for k in ("input", "hidden", "reset", "acc")}
    w_bits, r_bits = (draw(st.sampled_from([1, 2, 4, 8, 8, 8, 11, 16, 16])) for _ in range(2))
    quantizers = _quantizers(draw, op, linear, bits, draw(st.sampled_from([2.0, 8.0])))
    x_mode = "codes" if bits["input"] <= 8 and draw(st.booleans()) else "static"
    offsets, tables, end = [], [], 0
    on_grid, shared = draw(st.booleans()), draw(st.booleans())
    for k, gate in enumerate(gates):
        acc = quantizers[f"{gate}.acc"]
        if shared and k == 1 and acc == quantizers[f"{gates[0]}.acc"]:
            offsets.append(offsets[0])
            continue
        gap = int(rng.integers(0, 3))
        values = random_table(rng, gap + acc.size, on_grid)
        # The update gate mostly stays in 0 .. 1; where it does not, states grow until they are limited.
        tables.append(
            abs(values) if k == 0 and draw(st.booleans()) else values * np.float32(draw(st.sampled_from([1, 3])))
        )
        offsets.append(end + gap)
        end += gap + acc.size
    numbers = GridNumbers.of(
        x_mode,
        list(quantizers.values()),
        gate_table_offset=offsets,
        accumulator_bits=draw(st.sampled_from([0, 0, 0, 8, 16, 31, 32])),
    )
    cell = a_cell(
        size,
        hidden,
        reverse=draw(st.booleans()),
        clip=draw(st.sampled_from([None, None, 0.7, 3.0])),
        static_batch=draw(st.sampled_from([None, batch])),
        op=op,
        linear_before_reset=linear,
    )
    x_grid, h_grid = quantizers["input"], quantizers["hidden"]

    def multiplier(codes: Grid, weight_bits: int, depth: int) -> npt.NDArray[np.float32]:
        spread = rng.uniform(0.5, 4.0, columns) if draw(st.booleans()) else np.full(columns, 2.0)
        typical = spread / (max(abs(codes.low), abs(codes.high)) * 2.0 ** (weight_bits - 1) * depth**0.5)
        return (2.0 ** np.floor(np.log2(typical)) if draw(st.booleans()) else typical).astype(np.float32)

    inputs: Arrays = {
        "X": rng.integers(x_grid.minimum, x_grid.maximum + 1, (time, batch, size)).astype(np.uint8)
        if x_mode == "codes"
        else with_special_values(rng, rng.normal(0, 1.5, (time, batch, size))),
        "W": random_weights(rng, (size, columns), w_bits),
        "R": random_weights(rng, (hidden, columns), r_bits),
        "x_multiplier": multiplier(x_grid, w_bits, size),
        "h_multiplier": multiplier(h_grid, r_bits, hidden),
        "B": (np.rint(rng.normal(0, 0.5, columns) * 256) / 256).astype(np.float32),
        "gate_table": np.concatenate(tables).astype(np.float32),
    }
    if op == "GRU" and not linear:
        candidate = slice(2 * hidden, None)
        inputs["h_multiplier"][candidate] = multiplier(quantizers[RESET], r_bits, hidden)[candidate]
    if linear:
        inputs["hidden_bias"] = rng.normal(0, 0.5, hidden).astype(np.float32)
    for key, width in (("W", w_bits), ("R", r_bits)):
        if draw(st.booleans()):
            limits = np.iinfo(inputs[key].dtype)
            low, high = (limits.min, limits.max + 1) if draw(st.booleans()) else (-3, 4)
            inputs[f"{key}_zero_point"] = rng.integers(low, high, columns).astype(np.int32)
        if width == 4 and draw(st.booleans()):
            packed = Case(inputs, {})
            pack_at_random(packed, key, draw(st.sampled_from([0, 32])), rng)
            size_key = f"{key.lower()}_group_size"
            numbers = replace(numbers, **{size_key: packed.attributes.get(size_key, 0)})
    if draw(st.booleans()):
        inputs["sequence_lens"] = rng.integers(0, time + 1, batch, dtype=np.int32)
    if draw(st.booleans()):
        inputs["initial_h"] = with_special_values(rng, rng.normal(0, 1, (batch, hidden)))
    possible = OUTPUTS if bits["hidden"] <= 8 else OUTPUTS[:2]
    outputs = draw(st.sampled_from([possible, possible, possible[:1], possible[-1:], possible[1:]]))
    tables_apart = tuple(n for n in PARAMETERS if "table" not in n)
    constants = draw(st.sampled_from([PARAMETERS, PARAMETERS, (), tables_apart, ("W", "R"), ("B", "hidden_bias")]))
    return GridCase(cell, numbers, inputs, tuple(outputs), constants, draw(st.booleans()))


def plain_gru_grid_case(
    op: str = "GRU",
    linear: bool = False,
    time: int = 5,
    batch: int = 2,
    inputs: int = 9,
    hidden: int = 21,
    bits: int = 8,
    seed: int = 0,
    **numbers: Any,
) -> GridCase:
    """Codes, weights and points of `bits` bits, powers of two, every quantizer there; `numbers` changes its scalars."""
    rng = np.random.default_rng(seed)
    half, count = 2 ** (bits - 1), len(CELL_TYPES[op].gates)

    def signed(span: float, rounding: str = "half_even") -> Grid:
        return Grid(span / half, 0, -half, half - 1, rounding)

    def codes(span: float) -> Grid:
        return Grid(span / half, half, 0, 2 * half - 1)

    acc = signed(8.0, "floor")
    grids = [codes(4.0), codes(1.0), *[signed(8.0)] * 2 * count, *[acc] * count]
    if op == "GRU":
        grids += [signed(8.0) if linear else codes(1.0), signed(1.0), signed(1.0), signed(1.0)]
    positions = np.arange(acc.low, acc.high + 1) * acc.scale
    tables = [1 / (1 + np.exp(-positions)), np.tanh(positions)]
    offsets = [0, 0, len(positions)] if op == "GRU" else [len(positions)]
    made = GridNumbers.of("static", grids, **{"gate_table_offset": offsets, **numbers})
    weight = 1.0 / half
    arrays: Arrays = {
        "X": rng.normal(0, 1, (time, batch, inputs)).astype(np.float32),
        "W": random_weights(rng, (inputs, count * hidden), bits),
        "R": random_weights(rng, (hidden, count * hidden), bits),
        "x_multiplier": np.full(count * hidden, weight * grids[0].scale, np.float32),
        "h_multiplier": np.full(count * hidden, weight * grids[1].scale, np.float32),
        "B": (rng.integers(-half, half, count * hidden) * (1.0 / half)).astype(np.float32),
        "gate_table": np.concatenate(tables).astype(np.float32),
    }
    if linear:
        arrays["hidden_bias"] = (rng.integers(-half, half, hidden) * (1.0 / half)).astype(np.float32)
    outputs = OUTPUTS if bits <= 8 else OUTPUTS[:2]
    return GridCase(a_cell(inputs, hidden, op=op, linear_before_reset=linear), made, arrays, outputs, PARAMETERS)
