"""Random `RecurrentCase`s: fields that have to agree are drawn together."""

from __future__ import annotations

from typing import Any

from tests.generate.draws import Draws
from tests.generate.float_layer import ACTIVATION_NAMES, DEFAULTS, USES_ALPHA, USES_BETA, Activation
from tests.generate.layer_specs import OUTPUTS
from tests.generate.layers import RecurrentCase

OUTPUT_SUBSETS = {
    count: tuple(tuple(n for k, n in enumerate(OUTPUTS[:count]) if mask >> k & 1) for mask in range(1, 1 << count))
    for count in (2, 3)
}
# Without an upper bound on the gates the states can grow by a factor each step, with peepholes by a power, and
# onnxruntime's Softplus overflows at 88: such layers are short and have small weights.
UNBOUNDED = frozenset({"Relu", "Affine", "LeakyRelu", "ThresholdedRelu", "Elu", "Softplus"})
UNBOUNDED_MAX_STEPS = 4
SMALL_GAIN = 0.125
PLACEMENTS = ("main", "main", "main", "if", "loop", "scan", "function")
OPSETS = (7, 22)
# Alphas and betas: one of a few, or a range.
_ALPHA: dict[str, tuple[float, ...]] = {
    "LeakyRelu": (0.01, 0.125, 0.3),
    "HardSigmoid": (0.2, 0.25, 0.5),
    "Elu": (1.0, 0.5),
}
_ALPHA_RANGES = {"Affine": (0.125, 0.875), "ScaledTanh": (0.5, 1.5), "ThresholdedRelu": (0.125, 1.0)}
_BETA: dict[str, tuple[float, ...]] = {"HardSigmoid": (0.5, 0.4)}
_BETA_RANGES = {"Affine": (-0.5, 0.5), "ScaledTanh": (0.5, 1.5)}


def draw_activation(draws: Draws, name: str | None = None) -> Activation:
    """One activation; alpha and beta are always written where it has some."""
    chosen = name or draws.choice(ACTIVATION_NAMES)

    def argument(some: dict[str, tuple[float, ...]], ranges: dict[str, tuple[float, float]]) -> float:
        return draws.choice(some[chosen]) if chosen in some else draws.eighths(*ranges[chosen])

    alpha = argument(_ALPHA, _ALPHA_RANGES) if chosen in USES_ALPHA else None
    return Activation(chosen, alpha, argument(_BETA, _BETA_RANGES) if chosen in USES_BETA else None)


def _draw_activations(draws: Draws, op: str, directions: int) -> tuple[Activation, ...] | None:
    """The activations of a layer."""
    default = DEFAULTS[op] * directions
    # Defaults of alpha and beta that ONNX and onnxruntime agree on.
    left_out = (Activation("HardSigmoid"), Activation("Elu"), Activation("LeakyRelu"))[: len(DEFAULTS[op])] * directions
    kind = draws.integer(0, 3)
    return (None, default, left_out, ())[kind] or (tuple(draw_activation(draws) for _ in default) if kind else None)


def draw_layer(
    draws: Draws,
    /,
    *,
    layouts: tuple[int, ...] = (0,),
    placements: tuple[str, ...] = PLACEMENTS,
    opsets: tuple[int, int] = OPSETS,
    **fixed: Any,
) -> RecurrentCase:
    """Any `RecurrentCase`, of LSTM unless `op` is given; a field given in `fixed` has that value.

    Lengths are drawn with B and T, the number of activations with the direction, layout 1 and placements with the
    opsets that have them.
    """
    op = fixed.get("op", "LSTM")
    lstm = op == "LSTM"
    direction = fixed.get("direction") or draws.choice(("forward", "reverse", "bidirectional"))
    directions = 2 if direction == "bidirectional" else 1
    chosen = fixed["activations"] if "activations" in fixed else _draw_activations(draws, op, directions)
    unbounded = is_unbounded(chosen)
    steps = fixed.get("T") or draws.integer(1, UNBOUNDED_MAX_STEPS if unbounded else 9)
    batch = fixed.get("B") or draws.integer(1, 4)
    layout = draws.choice(layouts)
    placement = draws.choice(placements)
    # Functions need IR 8, of the time of opset 15; Loop without carried values came with 11, today's Scan with 9.
    lowest = max(opsets[0], 14 if layout else 7, {"function": 15, "loop": 11, "scan": 9}.get(placement, 7))
    fields: dict[str, Any] = {
        "T": steps,
        "B": batch,
        "I": draws.integer(1, 20),
        "H": draws.integer(1, 17),
        "direction": direction,
        "bias": draws.boolean(),
        "lens": tuple(draws.integer(0, steps) for _ in range(batch)) if draws.boolean() else None,
        "initial_h": draws.boolean(),
        "initial_c": lstm and draws.boolean(),
        "peepholes": lstm and draws.boolean(),
        "clip": draws.choice((None, None, 0.25, 2.0, 30.0)),
        "gain": SMALL_GAIN if unbounded else 1.0,
        "input_forget": lstm and draws.boolean(),
        "layout": layout,
        "activations": chosen,
        "outputs": draws.choice(OUTPUT_SUBSETS[3 if lstm else 2]),
        "dynamic_time": draws.boolean(),
        "dynamic_batch": draws.boolean(),
        "opset": draws.integer(lowest, opsets[1]),
        "weights": draws.choice(("initializer", "constant", "computed")),
        "placement": placement,
        "seed": draws.integer(0, 2**16),
        "op": op,
        "linear_before_reset": op == "GRU" and draws.boolean(),
    }
    made = RecurrentCase(**(fields | fixed))
    # A forget gate that is 1 - i, with i below 0, makes the cell grow, too.
    return made.replace(gain=SMALL_GAIN) if made.input_forget and not _are_from_0_to_1(chosen and chosen[::3]) else made


def _are_from_0_to_1(gates: tuple[Activation, ...] | None) -> bool:
    """Whether no gate is below 0 or above 1."""
    return gates is None or all(a.name in ("Sigmoid", "HardSigmoid") for a in gates)


def may_multiply(layer: RecurrentCase) -> bool:
    """Whether a large state may become larger with every step."""
    if layer.op == "RNN" or layer.gain != SMALL_GAIN:
        return False
    gates = layer.activations and layer.activations[:: len(DEFAULTS[layer.op])]
    return not _are_from_0_to_1(gates)


def is_unbounded(activations: tuple[Activation, ...] | None) -> bool:
    """Whether states may grow from step to step."""
    return activations is not None and any(a.name in UNBOUNDED for a in activations)
