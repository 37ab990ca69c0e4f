"""The values at a case's quantization points, step by step in numpy float64, and their statistics by definition."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tests.generate.float_layer import DEFAULTS, Function
from tests.generate.layer_specs import ITERATIONS
from tests.generate.layers import RecurrentCase

Array = npt.NDArray[Any]
GATES = {
    "LSTM": ("input_gate", "output_gate", "forget_gate", "cell_gate"),
    "GRU": ("update_gate", "reset_gate", "hidden_gate"),
    "RNN": ("hidden_gate",),
}
Point = dict[str, Array]
"""The values of a step of one row, by point."""


@dataclass
class Call:
    """The valid values of one call: a list of the rows of its samples."""

    samples: list[Array]

    @property
    def values(self) -> Array:
        return np.concatenate([s.ravel() for s in self.samples])


Calls = dict[str, list[Call]]


def point_calls(case: RecurrentCase, feeds: Mapping[str, Array]) -> list[Calls]:
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


@dataclass
class _Layer:
    """One direction of a case.

    Attributes:
        case: The case.
        weights: Its arrays by ONNX's names.
        functions: Its activations in ONNX's order.
    """

    case: RecurrentCase
    weights: Mapping[str, Array]
    functions: Sequence[Function]

    @classmethod
    def of(cls, case: RecurrentCase, d: int) -> _Layer:
        count = len(DEFAULTS[case.op])
        chosen = case.activations[count * d : count * (d + 1)] if case.activations is not None else DEFAULTS[case.op]
        weights = {k: v[d].astype(np.float64) for k, v in case.parameters().items()}
        return cls(case, weights, [a.function() for a in chosen])

    @property
    def biases(self) -> Array:
        """Wb and Rb, `[2,G,H]`."""
        given = self.weights["B"] if self.case.bias else np.zeros(2 * self.case.gates * self.case.H)
        return given.reshape(2, self.case.gates, self.case.H)

    def products(self, seen: Point, x: Array, h: Array, *, together: int | None = None) -> None:
        """Both products of all gates; those of h of the first `together` ones."""
        of_x = (self.weights["W"] @ x).reshape(-1, self.case.H) + self.biases.sum(axis=0)
        of_h = (self.weights["R"] @ h).reshape(-1, self.case.H)[:together]
        names = GATES[self.case.op]
        seen.update({f"{g}.input_product": v for g, v in zip(names, of_x, strict=True)})
        seen.update({f"{g}.hidden_product": v for g, v in zip(names, of_h, strict=False)})

    def gate(self, seen: Point, name: str, function: int, rest: Array | float = 0.0) -> Array:
        """The activation of a gate: of both products and a rest."""
        return self.activated(seen, name, function, seen[f"{name}.hidden_product"] + rest)

    def activated(self, seen: Point, name: str, function: int, part: Array) -> Array:
        """The activation of a gate: of the input's product and a part."""
        limit = np.inf if self.case.clip is None else float(np.float32(self.case.clip))
        seen[f"{name}.acc"] = np.clip(seen[f"{name}.input_product"] + part, -limit, limit)
        seen[f"{name}.activation"] = self.functions[function](seen[f"{name}.acc"])
        return seen[f"{name}.activation"]

    def lstm(self, x: Array, h: Array, c: Array) -> Point:
        seen: Point = {}
        self.products(seen, x, h)
        peephole = np.split(self.weights.get("P", np.zeros(3 * self.case.H)), 3)  # i, o, f
        i = self.gate(seen, "input_gate", 0, peephole[0] * c)
        if self.case.input_forget:
            f = 1.0 - i
            del seen["forget_gate.input_product"], seen["forget_gate.hidden_product"]
        else:
            f = self.gate(seen, "forget_gate", 0, peephole[2] * c)
        seen["cell_state.kept"] = f * c
        seen["cell_state.added"] = i * self.gate(seen, "cell_gate", 1)
        c = seen["cell_state"] = seen["cell_state.kept"] + seen["cell_state.added"]
        o = self.gate(seen, "output_gate", 0, peephole[1] * c)
        seen["hidden.activation"] = self.functions[2](c)
        seen["hidden"] = o * seen["hidden.activation"]
        return seen

    def gru(self, x: Array, h: Array, c: Array) -> Point:
        seen: Point = {}
        linear, recurrent = self.case.linear_before_reset, self.biases[1]
        self.products(seen, x, h, together=None if linear else 2)
        if linear:
            seen["hidden_gate.input_product"] = seen["hidden_gate.input_product"] - recurrent[2]
        z, r = self.gate(seen, "update_gate", 0), self.gate(seen, "reset_gate", 0)
        if linear:
            part = seen["hidden_gate.reset_product"] = r * (seen["hidden_gate.hidden_product"] + recurrent[2])
        else:
            seen["reset.hidden"] = r * h
            part = seen["hidden_gate.hidden_product"] = np.split(self.weights["R"], 3)[2] @ (r * h)
        n = self.activated(seen, "hidden_gate", 1, part)
        seen["hidden_state.kept"], seen["hidden_state.added"] = z * h, (1.0 - z) * n
        seen["hidden_state"] = seen["hidden"] = seen["hidden_state.kept"] + seen["hidden_state.added"]
        return seen

    def rnn(self, x: Array, h: Array, c: Array) -> Point:
        seen: Point = {}
        self.products(seen, x, h)
        seen["hidden"] = self.gate(seen, "hidden_gate", 0)
        return seen


def _run(case: RecurrentCase, d: int, x: Array, h0: Array, c0: Array, lens: Array, calls: Calls) -> tuple[Array, Array]:
    layer = _Layer.of(case, d)
    step_of = {"LSTM": layer.lstm, "GRU": layer.gru, "RNN": layer.rnn}[case.op]
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
            seen = step_of(x[t, b].astype(np.float64), h, c)
            h, c = seen["hidden"], seen.get("cell_state", c)
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
