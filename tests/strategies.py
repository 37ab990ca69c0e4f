"""Hypothesis strategies for recurrent layers."""

from __future__ import annotations

from typing import Any

from float_lstm import ACTIVATION_NAMES, DEFAULTS, USES_ALPHA, USES_BETA, Activation
from hypothesis import strategies as st
from lstm_models import OUTPUTS, RecurrentCase

OUTPUT_SUBSETS = {
    count: tuple(tuple(n for k, n in enumerate(OUTPUTS[:count]) if mask >> k & 1) for mask in range(1, 1 << count))
    for count in (2, 3)
}
# Without an upper bound on the gates the states can grow by a factor each step, with peepholes by a power, and
# onnxruntime's Softplus overflows at 88: such layers are short and have small weights.
UNBOUNDED = frozenset({"Relu", "Affine", "LeakyRelu", "ThresholdedRelu", "Elu", "Softplus"})
UNBOUNDED_MAX_STEPS = 4
SMALL_GAIN = 0.125


@st.composite
def activations(draw: st.DrawFn, name: st.SearchStrategy[str] | None = None) -> Activation:
    """One activation; alpha and beta are always written where it has some."""
    chosen = draw(name or st.sampled_from(ACTIVATION_NAMES))
    alpha = {
        "Affine": st.floats(0.125, 0.875, width=16),
        "ScaledTanh": st.floats(0.5, 1.5, width=16),
        "ThresholdedRelu": st.floats(0.125, 1.0, width=16),
        "LeakyRelu": st.sampled_from([0.01, 0.125, 0.3]),
        "HardSigmoid": st.sampled_from([0.2, 0.25, 0.5]),
        "Elu": st.sampled_from([1.0, 0.5]),
    }
    beta = {
        "Affine": st.floats(-0.5, 0.5, width=16),
        "ScaledTanh": st.floats(0.5, 1.5, width=16),
        "HardSigmoid": st.sampled_from([0.5, 0.4]),
    }
    return Activation(
        chosen,
        draw(alpha[chosen]) if chosen in USES_ALPHA else None,
        draw(beta[chosen]) if chosen in USES_BETA else None,
    )


def _all(op: str, directions: int) -> st.SearchStrategy[tuple[Activation, ...] | None]:
    """The activations of a layer."""
    default = DEFAULTS[op] * directions
    # Defaults of alpha and beta that ONNX and onnxruntime agree on.
    left_out = (Activation("HardSigmoid"), Activation("Elu"), Activation("LeakyRelu"))[: len(DEFAULTS[op])] * directions
    mixed = st.tuples(*[activations() for _ in default])
    return st.one_of(st.none(), st.just(default), st.just(left_out), mixed)


@st.composite
def recurrent_cases(
    draw: st.DrawFn,
    /,
    *,
    layouts: tuple[int, ...] = (0,),
    placements: tuple[str, ...] = ("main", "main", "main", "if", "loop", "scan", "function"),
    opsets: tuple[int, int] = (7, 22),
    **fixed: Any,
) -> RecurrentCase:
    """Any `RecurrentCase`, of LSTM unless `op` is given; a field given in `fixed` has that value.

    Fields that must agree are drawn together: lengths with B and T, the number of activations with the direction,
    layout 1 and placements with the opsets that have them.
    """
    op = fixed.get("op", "LSTM")
    lstm = op == "LSTM"
    direction = fixed.get("direction") or draw(st.sampled_from(["forward", "reverse", "bidirectional"]))
    per_case = 2 if direction == "bidirectional" else 1
    chosen = fixed["activations"] if "activations" in fixed else draw(_all(op, per_case))
    unbounded = chosen is not None and any(a.name in UNBOUNDED for a in chosen)
    steps = fixed.get("T") or draw(st.integers(1, UNBOUNDED_MAX_STEPS if unbounded else 9))
    batch = fixed.get("B") or draw(st.integers(1, 4))
    layout = draw(st.sampled_from(layouts))
    placement = draw(st.sampled_from(placements))
    # Functions need IR 8, of the time of opset 15; Loop without carried values came with 11, today's Scan with 9.
    lowest = max(opsets[0], 14 if layout else 7, {"function": 15, "loop": 11, "scan": 9}.get(placement, 7))
    fields: dict[str, Any] = {
        "T": steps,
        "B": batch,
        "I": draw(st.integers(1, 20)),
        "H": draw(st.integers(1, 17)),
        "direction": direction,
        "bias": draw(st.booleans()),
        "lens": draw(st.none() | st.tuples(*[st.integers(0, steps) for _ in range(batch)])),
        "initial_h": draw(st.booleans()),
        "initial_c": lstm and draw(st.booleans()),
        "peepholes": lstm and draw(st.booleans()),
        "clip": draw(st.sampled_from([None, None, 0.25, 2.0, 30.0])),
        "gain": SMALL_GAIN if unbounded else 1.0,
        "input_forget": lstm and draw(st.booleans()),
        "layout": layout,
        "activations": chosen,
        "outputs": draw(st.sampled_from(OUTPUT_SUBSETS[3 if lstm else 2])),
        "dynamic_time": draw(st.booleans()),
        "dynamic_batch": draw(st.booleans()),
        "opset": draw(st.integers(lowest, opsets[1])),
        "weights": draw(st.sampled_from(["initializer", "constant", "computed"])),
        "placement": placement,
        "seed": draw(st.integers(0, 2**16)),
        "op": op,
        "linear_before_reset": op == "GRU" and draw(st.booleans()),
    }
    return RecurrentCase(**(fields | fixed))


lstm_cases = recurrent_cases


LSTM_ONLY = ("initial_c", "peepholes", "input_forget")


def gru_and_rnn_cases(**fixed: Any) -> st.SearchStrategy[RecurrentCase]:
    """Cases of both, GRU twice as often: it has two forms. What only LSTM has does not count in `fixed`."""
    kept = {k: v for k, v in fixed.items() if k not in LSTM_ONLY}
    return st.sampled_from(["GRU", "GRU", "RNN"]).flatmap(lambda op: recurrent_cases(op=op, **kept))


def any_cases(**fixed: Any) -> st.SearchStrategy[RecurrentCase]:
    """Cases of all operators, LSTM as often as the others together."""
    return lstm_cases(**fixed) | gru_and_rnn_cases(**fixed)
