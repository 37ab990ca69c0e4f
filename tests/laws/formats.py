"""Number formats that the laws are tried with: overrides of the default recipe, by what they are."""

from __future__ import annotations

GATES = {"LSTM": (), "GRU": ("update", "reset", "hidden"), "RNN": ("hidden",)}
"""Those that get formats of their own; of LSTM none do."""
STATE_POINTS = {
    "LSTM": ("*.kept", "*.added", "*.cell_state"),
    "GRU": ("*.kept", "*.added", "*.hidden_state"),
    "RNN": (),
}

TABLES: dict[str, list[str]] = {
    "int4": ["*.weight.bits=4"],
    "int4, groups of 32": ["*.weight.bits=4", "*.weight.group_size=32"],
    "int4, codebooks": ["*.weight.bits=4", "*.weight.group_size=32", "*.weight.codebook=uneven"],
    "int4 recurrence, codebooks of 64, int8 input": [
        *("*.R.weight.bits=4", "*.R.weight.group_size=64", "*.R.weight.codebook=uneven"),
    ],
    "int4, groups of 32, some channels int8": [
        *("*.weight.bits=4", "*.weight.group_size=32", "*.weight.wide_channels=0.1"),
    ],
    "int4 recurrence, codebooks, some channels int8": [
        *("*.R.weight.bits=4", "*.R.weight.group_size=32", "*.R.weight.codebook=uneven"),
        "*.R.weight.wide_channels=0.01",
    ],
    "int4 recurrence, groups of 64": ["*.R.weight.bits=4", "*.R.weight.group_size=64"],
    "int4 input, row scales of the hidden state": ["*.W.weight.bits=4", "*.hidden.mode=dynamic-row"],
    "int6": ["*.weight.bits=6"],
    "int5, groups of 32": ["*.weight.bits=5", "*.weight.group_size=32"],
    "int6, groups of 32, some channels int8": [
        *("*.weight.bits=6", "*.weight.group_size=32", "*.weight.wide_channels=0.1"),
    ],
    "int5 recurrence, groups of 64, some channels int8": [
        *("*.R.weight.bits=5", "*.R.weight.group_size=64", "*.R.weight.wide_channels=0.01"),
    ],
    "int6 input, int4 recurrence": ["*.W.weight.bits=6", "*.R.weight.bits=4", "*.R.weight.group_size=32"],
    "int5 recurrence, 16-bit hidden state": ["*.R.weight.bits=5", "*.hidden.bits=16"],
    "int3, some channels int8": ["*.weight.bits=3", "*.weight.wide_channels=0.2"],
    "16-bit input": ["*.input.bits=16"],
    "16-bit hidden state": ["*.hidden.bits=16"],
    "16-bit row scales": ["*.input.bits=16", "*.hidden.bits=16", "*.hidden.mode=dynamic-row"],
    "16 bits, static, uneven zero points": [
        *("*.input.bits=16", "*.input.mode=static", "*.input.scale=0.0001", "*.input.zero_point=258"),
        *("*.hidden.bits=16", "*.hidden.scale=0.00005", "*.hidden.zero_point=30001"),
    ],
    "16 bits, row scales, zero points at the ends, int4": [
        *("*.input.bits=16", "*.hidden.bits=16", "*.hidden.mode=dynamic-row", "*.hidden.zero_point=65535"),
        *("*.weight.bits=4", "*.weight.group_size=32"),
    ],
}
"""Of look-up arithmetic."""


def fixed_point(op: str, bits: int, weight_bits: int, rounding: str) -> list[str]:
    """Powers of two, one rounding, a quantizer at every point: the arithmetic of fixed-point processors."""
    step = 2.0 ** (4 - bits)
    points = ("*_product", "*.acc", "*.hidden", "*.input", *STATE_POINTS[op])
    return [
        *(f"{p}.{k}" for p in points for k in (f"bits={bits}", f"rounding={rounding}", f"scale={step!r}")),
        *("*.input.mode=static", "*.hidden.mode=static", "*.input.signed=true", "*.hidden.signed=true"),
        *(["*.cell_state.mode=static"] if op == "LSTM" else ["*.acc.mode=static"]),
        *("*.input.zero_point=0", "*.hidden.zero_point=0", f"*.weight.bits={weight_bits}"),
        *(f"*.weight.scale={2.0 ** -max(weight_bits, 4)!r}", "*.activation.table=exact"),
        *("*.activation.bits=16", "*.activation.scale=0.000030517578125", "*.activation.signed=true"),
    ]


def uneven(op: str, bits: int) -> list[str]:
    """Scales that are no powers of two, zero points away from the middle, no quantizers of products but one."""
    top = 2**bits
    shared = [
        *(f"*.input.bits={bits}", "*.input.mode=static", f"*.input.scale={7.3 / top!r}", "*.input.signed=false"),
        *(f"*.input.zero_point={top // 3}", f"*.hidden.bits={bits}", f"*.hidden.scale={2.1 / top!r}"),
        *("*.hidden.signed=false", f"*.hidden.zero_point={top // 2 - 3}", "*.hidden.mode=static"),
        *("*.activation.table=exact", "*.activation.bits=8", "*.activation.scale=0.007874015748031496"),
        "*.activation.signed=true",
    ]
    if op == "LSTM":
        return [
            *shared,
            *(f"*.acc.bits={bits}", f"*.acc.scale={12.7 / top!r}", "*.acc.rounding=half_even"),
            *(f"*.cell_state.bits={bits}", f"*.cell_state.scale={9.1 / top!r}", "*.cell_state.mode=static"),
            *(f"*.kept.bits={bits}", f"*.kept.scale={9.7 / top!r}", "*.kept.rounding=half_even"),
        ]
    state = [f"*.kept.bits={bits}", f"*.kept.scale={2.7 / top!r}", "*.kept.rounding=half_even"] if op == "GRU" else []
    roundings = zip(GATES[op], ("half_even", "half_up", "floor"), strict=False)
    return [
        *shared,
        *(f"*.acc.bits={bits}", "*.acc.mode=static", *state),
        *(f"*.{g}_gate.acc.scale={(12.7 + k) / top!r}" for k, g in enumerate(GATES[op])),
        *(f"*.{g}_gate.acc.rounding={r}" for g, r in roundings),
        *("*.hidden_gate.hidden_product.bits=12", "*.hidden_gate.hidden_product.scale=0.01"),
        *("*.weight.symmetric=false", "*.weight.narrow=false"),
    ]


def static_formats(op: str) -> dict[str, list[str]]:
    """A static format at every point: fixed-point arithmetic."""
    return {
        "fixed point, 16 bits, floor": fixed_point(op, 16, 16, "floor"),
        "fixed point, 8 bits, half up": fixed_point(op, 8, 8, "half_up"),
        "fixed point, 8 bits, weights of 16": fixed_point(op, 8, 16, "half_away"),
        "fixed point, 12 bits, binary weights, ceil": fixed_point(op, 12, 1, "ceil"),
        "uneven, 8 bits": uneven(op, 8),
        "uneven, 16 bits": uneven(op, 16),
        "uneven, 8 bits, weights of 6": [*uneven(op, 8), "*.weight.bits=6", "*.weight.symmetric=true"],
        "uneven, 5 bits, weights of 4": [*uneven(op, 5), "*.weight.bits=4"],
        "accumulators of 12 bits": [*uneven(op, 8), "*.accumulator.bits=12"],
    }


STATIC = tuple(static_formats("LSTM"))
"""Names of those."""


def overrides(name: str, op: str) -> list[str]:
    """Of the default recipe."""
    return TABLES[name] if name in TABLES else static_formats(op)[name]
