"""Nodes of every cell operator in every arithmetic, by name; and changes of them that most have in common."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from rnnqc.cells.fused_nodes import MORE_X
from rnnqc.cells.types import CELL_TYPES
from tests.native import quant_gru_cases
from tests.native.grid_cases import byte_grid_case, plain_grid_case
from tests.native.quant_gru_cases import GRU, RNN
from tests.native.quant_lstm_cases import Case, embedding_rows, pack_at_random, table_case

Make = Callable[..., Case]
"""Of numbers of steps, rows, inputs and units, and a seed."""
Change = Callable[[Case], None]


def _gru_or_rnn(operator: Any, linear: int, *sizes: int) -> Case:
    return quant_gru_cases.table_case(operator, *sizes, linear_before_reset=linear)


def _fixed_point(op: str, linear: bool, bits: int, *sizes: int) -> Case:
    *sizes, seed = (*sizes, 0)[:5]
    case = plain_grid_case(*sizes, bits, seed, type_=CELL_TYPES[op], linear_before_reset=linear)
    if bits == 16:
        case.inputs["R_zero_point"] = np.arange(case.inputs["R"].shape[1], dtype=np.int32) % 7
    return case.node


def _wide(kind: str, *sizes: int) -> Case:
    """Quantized inputs and hidden states of 16 bits."""
    case = TABLES[kind](*sizes)
    case.attributes |= {"x_bits": 16, "h_bits": 16, "h_scale": 1 / 32767, "h_zero_point": 32768}
    if "reset_scale" in case.attributes:
        case.attributes |= {"reset_scale": 1 / 32767, "reset_zero_point": 32000}
    case.inputs["h_multiplier"] = case.inputs["h_multiplier"] / np.float32(256)
    case.outputs = case.outputs[:-1]
    return case


def _of_rows(kind: str, *sizes: int) -> Case:
    """Inputs of int8 rows of an embedding, with scales of usual size."""
    case = TABLES[kind](*sizes)
    rng = np.random.default_rng(1)
    shape = case.inputs["X"].shape
    case.inputs["X"] = rng.integers(-127, 128, shape, dtype=np.int8)
    case.inputs["X_scale"] = (10.0 ** rng.uniform(-2.3, -1.7, (*shape[:2], 1))).astype(np.float32)
    case.attributes["x_mode"] = "row_codes"
    return case


def bounded_case(
    kind: str, bits: int, time: int = 5, batch: int = 4, inputs: int = 9, hidden: int = 37, seed: int = 0,
    size: float = 3.0,
) -> Case:  # fmt: skip
    """A cell of the default recipe, whose initial states have rows within the bound and others beyond it."""
    rng = np.random.default_rng(seed)
    case = TABLES[kind](time, batch, inputs, hidden, seed)
    case.attributes |= {"h_bound": 1.0}
    if "reset_scale" in case.attributes:
        case.attributes |= {"reset_scale": 1 / 127, "reset_zero_point": 128}
    if bits == 16:
        case.attributes |= {"h_bits": 16, "h_zero_point": 32768, "h_scale": 1 / 32767}
        if "reset_scale" in case.attributes:
            case.attributes |= {"reset_scale": 1 / 32767, "reset_zero_point": 32768}
        case.inputs["h_multiplier"] = case.inputs["h_multiplier"] / np.float32(256)
        case.outputs = case.outputs[:-1]
    # Tables of sigmoid and tanh stay within it.
    h = rng.normal(0, 1, (batch, hidden)).astype(np.float32)
    h *= np.where(np.arange(batch) % 3 == 2, 0.2, size)[:, None].astype(np.float32)
    h[2::3] = np.clip(h[2::3], -1, 1)
    h[:, 0] = 0.0
    h[0, -1] = -0.0
    case.inputs["initial_h"] = h
    return case


CELLS = {"LSTM": ("LSTM", 0), "GRU": ("GRU", 0), "GRU, linear before reset": ("GRU", 1), "RNN": ("RNN", 0)}
TABLES: dict[str, Make] = {
    "LSTM": table_case,
    "GRU": partial(_gru_or_rnn, GRU, 0),
    "GRU, linear before reset": partial(_gru_or_rnn, GRU, 1),
    "RNN": partial(_gru_or_rnn, RNN, 0),
}
"""In the arithmetic of look-up tables."""
BOUNDED = [(kind, bits) for kind in TABLES for bits in (8, 16)]
KINDS: dict[str, Make] = {
    **TABLES,
    **{f"{n} of 16 bits": partial(_wide, n) for n in TABLES},
    **{f"{n} of embedding rows": partial(_of_rows, n) for n in ("LSTM", "GRU", "RNN")},
    "LSTM, fixed point as Brevitas": lambda *sizes: byte_grid_case(*sizes).node,
    **{f"{n}, fixed point of {b} bits": partial(_fixed_point, *c, b) for n, c in CELLS.items() for b in (8, 16)},
    **{f"{n} of {b} bits, states beyond the bound": partial(bounded_case, n, b) for n, b in BOUNDED},
}


def _lengths(*lengths: int) -> Change:
    def change(case: Case) -> None:
        time, batch = case.inputs["X"].shape[:2]
        case.inputs["sequence_lens"] = np.minimum(np.resize(np.int32(lengths), batch), time).astype(np.int32)

    return change


def states(case: Case) -> None:
    shape = (case.inputs["X"].shape[1], case.inputs["R"].shape[0])
    rng = np.random.default_rng(0)
    for name in ("initial_h", "initial_c"):
        if name in case.operator.inputs and name not in case.inputs:
            case.inputs[name] = rng.normal(0, 1, shape).astype(np.float32)


def reverse(case: Case) -> None:
    case.attributes["direction"] = "reverse"


def _peepholes(case: Case) -> None:
    case.inputs["P"] = np.random.default_rng(0).normal(0, 1e-3, 3 * case.attributes["hidden_size"]).astype(np.float32)


def _float_cell(case: Case) -> None:
    case.attributes |= {"cell_scale": 0.0, "output_kind": "Softsign"}


def _dynamic_hidden(case: Case) -> None:
    case.attributes["h_mode"] = "dynamic_row"
    case.outputs = case.outputs[:-1]


def _relu(case: Case) -> None:
    gates = len(case.attributes["gate_min"])
    case.attributes["gate_kinds"] = ",".join(["table"] * (gates - 1) + ["Relu"])


def _codes(case: Case) -> None:
    case.inputs["X"] = np.random.default_rng(0).integers(0, 256, case.inputs["X"].shape, dtype=np.uint8)
    case.inputs["x_multiplier"] = case.inputs["x_multiplier"] / np.float32(64)
    case.attributes["x_mode"] = "codes"


def _row_codes(case: Case) -> None:
    case.inputs |= embedding_rows(np.random.default_rng(0), case.inputs["X"].shape)
    case.attributes["x_mode"] = "row_codes"


def in_parts(case: Case) -> None:
    """The input in up to four parts, one of which may be empty."""
    x = case.inputs["X"]
    size = x.shape[-1]
    parts = np.split(x, sorted({0, 1, size // 3 + 1} if size < 20 else {17, size - 2}), axis=-1)
    case.inputs |= dict(zip(("X", *MORE_X), parts, strict=False))
    case.attributes["operator_version"] = 6


def with_factors(case: Case) -> None:
    """Columns of the input that are multiplied by a factor each."""
    size = sum(case.inputs[n].shape[-1] for n in ("X", *MORE_X) if n in case.inputs)
    case.inputs["X_factor"] = (2.0 ** np.random.default_rng(0).uniform(-1, 1, size)).astype(np.float32)
    case.constants = (*case.constants, "X_factor")
    case.attributes["operator_version"] = 6


def _last_outputs_only(case: Case) -> None:
    case.outputs = case.outputs[1:-1]


def _packed(group_size: int) -> Change:
    def change(case: Case) -> None:
        for key in ("W", "R"):
            pack_at_random(case, key, group_size, np.random.default_rng(0))
            case.constants = (*case.constants, f"{key}_group_multiplier")

    return change


def sequences(case: Case, part: Any) -> dict[str, Any]:
    """A part of the inputs that are sequences, `[T,B,...]`."""
    return {name: case.inputs[name][part] for name in ("X", "X_scale", *MORE_X) if name in case.inputs}


ANYWHERE: dict[str, Sequence[Change]] = {
    "plain": [],
    "lengths": [_lengths(0, 4, 1, 3), states],
    "no lengths above 0": [_lengths(0)],
    "reverse, lengths": [reverse, _lengths(2, 4, 4, 1)],
}
OF_FLOATS: dict[str, Sequence[Change]] = {
    "input in parts": [in_parts],
    "input in parts with factors, lengths, reverse": [in_parts, with_factors, _lengths(4, 0, 2), reverse],
    "input with factors": [with_factors],
}
OF_TABLES: dict[str, Sequence[Change]] = {
    "dynamic hidden, lengths": [_dynamic_hidden, _lengths(4, 3, 0)],
    "codes, last outputs": [_codes, _last_outputs_only],
    "embedding rows of any scale, int4 in groups": [_row_codes, _packed(32)],
    "int4": [_packed(0)],
    "int4 in groups, lengths": [_packed(32), _lengths(4, 0, 2)],
}
OF_LSTM: dict[str, Sequence[Change]] = {
    "peepholes": [_peepholes, states],
    "float cell, reverse": [_float_cell, reverse],
}
OF_OTHERS: dict[str, Sequence[Change]] = {"Relu": [_relu]}


def variants(kind: str) -> dict[str, Sequence[Change]]:
    """Changes that a kind of node may have."""
    if kind not in TABLES:
        return {**ANYWHERE, **(OF_FLOATS if KINDS[kind](1, 1, 9, 9).inputs["X"].dtype == np.float32 else {})}
    return {**ANYWHERE, **OF_FLOATS, **OF_TABLES, **(OF_LSTM if kind == "LSTM" else OF_OTHERS)}


def varied(kind: str, variant: str, *sizes: int) -> Case:
    """A node of these sizes, changed."""
    case = KINDS[kind](*sizes)
    for change in variants(kind)[variant]:
        change(case)
    return case
