"""Nodes of `ai.rnnqc::QuantGRUCell` and `ai.rnnqc::QuantRNNCell` for tests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st

from rnnqc.cells.fused_nodes import MORE_X, X_FACTOR
from tests.native.quant_lstm_cases import (
    NUMBER_KINDS,
    Arrays,
    Case,
    Operator,
    draw_gates,
    embedding_rows,
    pack_at_random,
    unusual_rows,
    with_specials,
)

_NAMES = ("X", "W", "R", "x_multiplier", "h_multiplier", "B", "gate_table")
_ZERO_POINTS = ("W_zero_point", "R_zero_point")
_LATER = (
    *("sequence_lens", "initial_h", "", "", *_ZERO_POINTS),
    *("W_group_multiplier", "R_group_multiplier", "X_scale", *MORE_X, X_FACTOR),
)
OUTPUTS = ("Y", "Y_h", "Y_codes")
GRU = Operator("QuantGRUCell", (*_NAMES, "hidden_bias", *_LATER), OUTPUTS)
RNN = Operator("QuantRNNCell", (*_NAMES, "", *_LATER), OUTPUTS)
PARAMETERS = ("W", "R", "x_multiplier", "h_multiplier", "B", "gate_table", "hidden_bias", *_ZERO_POINTS)


def gates_of(operator: Operator) -> int:
    """3 or 1."""
    return 3 if operator is GRU else 1


def table_case(
    operator: Operator = GRU,
    time: int = 5,
    batch: int = 2,
    inputs: int = 9,
    hidden: int = 21,
    seed: int = 0,
    linear_before_reset: int = 1,
) -> Case:
    """A case like those of the default recipe, with random weights: 13-bit gate codes, dynamic input rows."""
    rng = np.random.default_rng(seed)
    gates = gates_of(operator)
    n = 4096
    codes = np.arange(-n, n)
    tables = [1 / (1 + np.exp(-codes / 256)), np.tanh(codes / 512)]
    steps = np.repeat(np.float32([256, 256, 512][-gates:]), hidden)
    arrays: Arrays = {
        "X": rng.normal(0, 1, (time, batch, inputs)).astype(np.float32),
        "W": rng.integers(-128, 128, (inputs, gates * hidden), dtype=np.int8),
        "R": rng.integers(-128, 128, (hidden, gates * hidden), dtype=np.int8),
        "x_multiplier": (steps * rng.uniform(0.5, 2, gates * hidden) / 128 / inputs**0.5).astype(np.float32),
        "h_multiplier": (steps * rng.uniform(0.5, 2, gates * hidden) / 128 / 127 / hidden**0.5).astype(np.float32),
        "B": (steps * rng.normal(0, 0.5, gates * hidden) + n + 0.5).astype(np.float32),
        "gate_table": np.concatenate(tables[-gates:]).astype(np.float32),
    }
    attributes: dict[str, Any] = {
        "hidden_size": hidden,
        "h_scale": 1 / 127,
        "gate_min": [0.0] * gates,
        "gate_max": [2 * n - 0.5] * gates,
        "gate_table_offset": [0, 0, 2 * n][:gates],
    }
    if operator is GRU:
        attributes["linear_before_reset"] = linear_before_reset
        if linear_before_reset:
            arrays["hidden_bias"] = (512 * rng.normal(0, 0.5, hidden)).astype(np.float32)
        else:
            attributes |= {"reset_scale": 1 / 120, "reset_zero_point": 120}
    return Case(arrays, attributes, OUTPUTS, PARAMETERS, operator=operator)


def _hidden_grid(draw: st.DrawFn, operator: Operator, attributes: dict[str, Any], arrays: Arrays, wide: bool) -> None:
    """Codes of h, and of r * h."""
    static = attributes["h_mode"] == "static"
    zero_points = [0, 1, 255, 256, 257, 30001, 65535] if wide else [0, 100, 128, 255]
    scales = [1 / 32767, 0.0001] if wide else [1 / 127, 0.05]
    names = ["h"]
    if operator is GRU and not attributes["linear_before_reset"]:
        names.append("reset")
    for name in names:
        attributes[f"{name}_scale"] = draw(st.sampled_from(scales)) if static else 0.0
        attributes[f"{name}_zero_point"] = draw(st.sampled_from(zero_points))
    if wide:
        attributes["h_bits"] = 16
        arrays["h_multiplier"] = arrays["h_multiplier"] / np.float32(256)


@st.composite
def cases(draw: st.DrawFn, operators: Sequence[Operator] = (GRU, RNN), kinds: str = "any", wide: bool = False) -> Case:
    """Any allowed node. `kinds="table"` keeps to what the table kernels run, `wide` to 16-bit codes."""
    tables_only = kinds == "table"
    operator = draw(st.sampled_from(operators))
    gates = gates_of(operator)
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    time, batch = draw(st.integers(1, 7)), draw(st.integers(1, 5))
    size, hidden = draw(st.integers(1, 70)), draw(st.integers(1, 140))
    x_mode = draw(st.sampled_from(["dynamic_row", "static", "codes", "row_codes"]))
    h_mode = "static" if tables_only else draw(st.sampled_from(["static", "dynamic_row"]))
    all_kinds = ("table",) if tables_only else ("table", "relu_table", *NUMBER_KINDS)
    gate_kinds = [draw(st.sampled_from(all_kinds)) for _ in range(gates)]
    attributes: dict[str, Any] = {
        "hidden_size": hidden,
        "direction": draw(st.sampled_from(["forward", "reverse"])),
        "x_mode": x_mode,
        "x_scale": 0.03 if x_mode == "static" else 0.0,
        "x_zero_point": draw(st.sampled_from([0, 1, 128, 255])),
        "h_mode": h_mode,
    }
    if operator is GRU:
        attributes["linear_before_reset"] = draw(st.sampled_from([0, 1]))
    kinds_of_gates = draw_gates(draw, rng, gate_kinds, attributes)
    spread = np.repeat(np.maximum(kinds_of_gates["B"], 4), hidden).astype(np.float32)
    spread *= rng.choice([1.0, -1.0], gates * hidden)
    x: npt.NDArray[Any] = rng.integers(0, 256, (time, batch, size), dtype=np.uint8)
    if x_mode != "codes":
        exponent = rng.integers(-3, 4)
        x = unusual_rows(
            rng, with_specials(rng, (rng.normal(0, 1, (time, batch, size)) * 10.0**exponent).astype(np.float32))
        )
    arrays: Arrays = {
        "X": x,
        "W": rng.integers(-128, 128, (size, gates * hidden), dtype=np.int8),
        "R": rng.integers(-128, 128, (hidden, gates * hidden), dtype=np.int8),
        "x_multiplier": (spread / 128 / (64 if x_mode == "codes" else 1) / size**0.5).astype(np.float32),
        "h_multiplier": (spread / 128 / 64 / hidden**0.5).astype(np.float32),
        "B": (np.repeat(kinds_of_gates["B"], hidden) + spread * rng.normal(0, 0.3, gates * hidden)).astype(np.float32),
    }
    if x_mode == "row_codes":
        arrays |= embedding_rows(rng, (time, batch, size))
    if attributes.get("linear_before_reset"):
        arrays["hidden_bias"] = (spread[2 * hidden :] * rng.normal(0, 0.5, hidden)).astype(np.float32)
    if {"table", "relu_table"} & set(gate_kinds) or draw(st.booleans()):
        arrays["gate_table"] = kinds_of_gates["gate_table"]
    if draw(st.booleans()):
        arrays["sequence_lens"] = rng.integers(0, time + 1, batch, dtype=np.int32)
    if draw(st.booleans()):
        arrays["initial_h"] = with_specials(rng, rng.normal(0, 1, (batch, hidden)).astype(np.float32))
    _hidden_grid(draw, operator, attributes, arrays, wide)
    if wide and x_mode not in ("codes", "row_codes") and draw(st.booleans()):
        attributes |= {"x_bits": 16, "x_zero_point": draw(st.sampled_from([0, 255, 256, 32768, 65535]))}
        attributes["x_scale"] = 0.0001 if x_mode == "static" else 0.0
    for key in draw(st.sampled_from(["", "", "W", "R", "WR"])):
        group_size = draw(st.sampled_from([0, 32, 64]))
        arrays_case = Case(arrays, attributes)
        pack_at_random(arrays_case, key, group_size, rng)
    possible = OUTPUTS if h_mode == "static" and not wide else OUTPUTS[:2]
    outputs = draw(st.sampled_from([possible, possible, possible[:1], possible[1:], possible[-1:]]))
    constants: Sequence[str] = draw(
        st.sampled_from([PARAMETERS, PARAMETERS, (), [n for n in PARAMETERS if "table" not in n], ("W", "R"), ("B",)])
    )
    if draw(st.booleans()):
        constants = (*constants, "W_group_multiplier", "R_group_multiplier")
    return Case(arrays, attributes, outputs, constants, symbolic=draw(st.booleans()), operator=operator)
