"""A cell in float operators, with or without quantizers: the readable Scan written by decompose-lstm.

Values have stable names below the cell's: `x`, `preactivation`, `input_gate.acc`, `input_gate.activation`, ...,
`cell_state`, `hidden`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from rnnqc.cells.base import Cell
from rnnqc.ir import Model, Value, graph_info
from rnnqc.ir.builder import Builder
from rnnqc.passes.cells.float_step import INITIAL_STATES, FloatStep, Quantizer, Splitter, no_quantizer
from rnnqc.passes.cells.loop_driver import Arithmetic, Loop, Results, State, Stepped


@dataclass(frozen=True)
class FloatArithmetic(Arithmetic):
    """Float operators with a quantizer at every quantization point.

    Before the loop `p = x W + B`; each step `g = p_t + h R`, gates, cell and hidden state. A cell with `rounded_output`
    has its hidden states quantized outside the loop too, and initial states in the formats of the states.

    Attributes:
        quantizer: Called at every quantization point; at `accumulator.x` and `accumulator.h` with whole matmul results.
        products: Whether the two matmul results of each gate are separate values before their addition.
        bias_last: Whether `p = x W` and `g = (p_t + h R) + B`.
        parameters: `W`, `R`, `B` and, where the cell has them, `P` and `hidden_bias`; None to use the initializers it
            names.
        split: Whether the part of initial hidden states beyond the range of their quantized values is multiplied
            separately. A cell that reads the hidden state itself quantizes it in every step instead.
    """

    hands_on_output: ClassVar[bool] = True
    names_outputs: ClassVar[bool] = True

    quantizer: Quantizer = no_quantizer
    products: bool = False
    bias_last: bool = False
    parameters: Mapping[str, Value] | None = None
    split: Splitter | None = None

    def run(self, b: Builder, loop: Loop) -> Results:
        """Emits the projection of the whole sequence, and the loop."""
        cell, quantizer = loop.cell, self.quantizer
        parameters = self.parameters if self.parameters is not None else _parameters(b.model, cell)
        x = quantizer(b, "input", loop.sequence(b))
        w = quantizer(b, "W.weight", parameters["W"])
        r = quantizer(b, "R.weight", parameters["R"])
        product = quantizer(b, "accumulator.x", b.op("MatMul", [x, w], "x.product"))
        p = product if self.bias_last else b.op("Add", [product, parameters["B"]], "x.projection")
        states = self._initial_states(b, loop)
        if self.split is not None and not cell.type.reads_hidden:
            states[0], lost = self.split(b, INITIAL_STATES[0], states[0])
            beyond = b.op("MatMul", [lost, r], f"{INITIAL_STATES[0]}.lost.product")
            name = "x.projection.float"  # in integer forms this name has other units
            element = b.op("Add", [loop.first_step(b, p, name), beyond], f"{name}.first.sum")
            p = loop.with_first_step(b, p, element, name)

        def step(body: Builder, previous: Sequence[Value], projected: Sequence[Value]) -> Stepped:
            flags = {"products": self.products, "bias_last": self.bias_last}
            made = FloatStep(b, body, cell, quantizer, previous, projected[0], r, parameters, **flags)
            y, c = cell.type.step(made)
            if cell.rounds_output:
                y = quantizer(body, "hidden", y)
            return Stepped([y, c][: len(previous)], y, c)

        shape = [cell.batch_dimension, cell.hidden_size]
        return loop.run(b, p, [State(v, np.float32, shape) for v in states], step, apart=False)

    def _initial_states(self, b: Builder, loop: Loop) -> list[Value]:
        """The initial states, with zeros `[B,H]` where the node has none."""
        at, cell = loop.at, loop.cell
        given = [at.initial_h, at.initial_c] if cell.type.cell_state else [at.initial_h]
        states = [v for v in given if v is not None]
        if len(states) < len(given):
            zero = b.f32(0.0)
            zeros = b.op("Expand", [zero, loop.state_shape(b)], "state.zeros")
            states = [v or zeros for v in given]
        if not cell.rounds_output:
            return states
        named = zip(INITIAL_STATES, states, given, strict=False)
        return [self.quantizer(b, name, v) if v is source else v for name, v, source in named]


def _parameters(model: Model, cell: Cell) -> dict[str, Value]:
    held = {k: v for graph in model.graphs() for k, v in graph_info(graph).initializers.items()}
    return {
        key: held[name]
        for key, name in (("W", cell.W), ("R", cell.R), ("B", cell.B), ("P", cell.P), ("hidden_bias", cell.hidden_bias))
        if name is not None
    }
