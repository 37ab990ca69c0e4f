"""What a case's quantization points hold, step by step in numpy float64, and their statistics by the definitions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from lstm_models import ITERATIONS, LstmCase

from rnnqc.testing.float_layer import DEFAULT_ACTIVATIONS, Function

Array = npt.NDArray[Any]
GATES = ("input_gate", "output_gate", "forget_gate", "cell_gate")


@dataclass
class Call:
    """The valid values of one call: a list of the rows of its samples."""

    samples: list[Array]

    @property
    def values(self) -> Array:
        return np.concatenate([s.ravel() for s in self.samples])


Calls = dict[str, list[Call]]


def point_calls(case: LstmCase, feeds: Mapping[str, Array]) -> list[Calls]:
    """For each direction the calls at each point, in the order of the loop; the steps of one run after another."""
    assert case.layout == 0 and case.placement in ("main", "if", "loop", "scan", "function")
    result: list[Calls] = []
    for d in range(case.directions):
        calls: Calls = {}
        h = feeds["initial_h"][d] if case.initial_h else np.zeros((case.B, case.H))
        c = feeds["initial_c"][d] if case.initial_c else np.zeros((case.B, case.H))
        lens = np.array(case.lens) if case.lens is not None else np.full(case.B, case.T)
        for k in range(ITERATIONS if case.placement in ("loop", "scan") else 1):
            x = feeds["X"][k] if case.placement == "scan" else feeds["X"]
            if case.initial_h and k == 0 and (lens > 0).any():
                calls.setdefault("hidden", []).append(Call([h[b] for b in range(case.B) if lens[b] > 0]))
            last_h, last_c = _run(case, d, x, h, c, lens, calls)
            h = last_h if case.initial_h else h
            c = last_c if case.initial_c else c
        result.append(calls)
    return result


def _run(case: LstmCase, d: int, x: Array, h0: Array, c0: Array, lens: Array, calls: Calls) -> tuple[Array, Array]:
    p = {k: v[d].astype(np.float64) for k, v in case.parameters().items()}
    bias = p["B"][: 4 * case.H] + p["B"][4 * case.H :] if case.bias else np.zeros(4 * case.H)
    peephole = p.get("P", np.zeros(3 * case.H))
    chosen = case.activations[3 * d : 3 * d + 3] if case.activations is not None else DEFAULT_ACTIVATIONS
    gate_f, cell_f, out_f = (a.function() for a in chosen)
    limit = np.inf if case.clip is None else float(np.float32(case.clip))
    backward = case.direction == "reverse" or d == 1
    steps: list[dict[str, list[Array]]] = [{} for _ in range(case.T)]
    inputs = []
    last_h, last_c = np.zeros((case.B, case.H)), np.zeros((case.B, case.H))
    for b, length in enumerate(lens):
        h, c = h0[b].astype(np.float64), c0[b].astype(np.float64)
        order = range(length - 1, -1, -1) if backward else range(length)
        if length:
            inputs.append(x[:length, b].astype(np.float64))
        for step, t in enumerate(order):
            seen = _products(case, p, bias, x[t, b].astype(np.float64), h)
            peep = dict(zip(GATES, [*np.split(peephole, 3), np.zeros(case.H)], strict=True))
            i = _gate(seen, "input_gate", peep["input_gate"] * c, limit, gate_f)
            if case.input_forget:
                f = 1.0 - i
                del seen["forget_gate.input_product"], seen["forget_gate.hidden_product"]
            else:
                f = _gate(seen, "forget_gate", peep["forget_gate"] * c, limit, gate_f)
            seen["cell_state.kept"] = f * c
            seen["cell_state.added"] = i * _gate(seen, "cell_gate", np.zeros(case.H), limit, cell_f)
            c = seen["cell_state"] = seen["cell_state.kept"] + seen["cell_state.added"]
            o = _gate(seen, "output_gate", peep["output_gate"] * c, limit, gate_f)
            seen["hidden.activation"] = out_f(c)
            h = seen["hidden"] = o * seen["hidden.activation"]
            for point, value in seen.items():
                steps[step].setdefault(point, []).append(value)
        if length:
            last_h[b], last_c[b] = h, c
    if inputs:
        calls.setdefault("input", []).append(Call(inputs))
    for made in steps:
        for point, samples in made.items():
            calls.setdefault(point, []).append(Call(samples))
    return last_h, last_c


def _products(case: LstmCase, p: Mapping[str, Array], bias: Array, x: Array, h: Array) -> dict[str, Array]:
    of_x, of_h = np.split(p["W"] @ x + bias, 4), np.split(p["R"] @ h, 4)
    return {f"{g}.input_product": v for g, v in zip(GATES, of_x, strict=True)} | {
        f"{g}.hidden_product": v for g, v in zip(GATES, of_h, strict=True)
    }


def _gate(seen: dict[str, Array], name: str, peephole: Array, limit: float, function: Function) -> Array:
    seen[f"{name}.acc"] = np.clip(
        seen[f"{name}.input_product"] + seen[f"{name}.hidden_product"] + peephole, -limit, limit
    )
    seen[f"{name}.activation"] = function(seen[f"{name}.acc"])
    return seen[f"{name}.activation"]


def plain_statistics(calls: Sequence[Call]) -> dict[str, float]:
    """The scalar statistics of some calls by their definitions, in two passes."""
    values = np.concatenate([c.values for c in calls])
    lows, highs = [], []
    for call in calls:
        samples = [call.values] if all(s.size == 1 for s in call.samples) else call.samples
        lows += [s.min() for s in samples]
        highs += [s.max() for s in samples]
    mean = values.mean()
    return {
        "count": values.size,
        "calls": len(calls),
        "min": values.min(),
        "max": values.max(),
        "avg_min": np.mean(lows),
        "avg_max": np.mean(highs),
        "mean": mean,
        "std": np.sqrt(np.mean((values - mean) ** 2)),
        "mean_abs_dev": np.mean(np.abs(values - mean)),
    }
