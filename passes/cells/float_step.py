"""The equations of a cell in standard operators on floats, with a quantizer at every quantization point."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from rnnqc.cells.activations import Activation
from rnnqc.cells.base import Cell
from rnnqc.ir import Value
from rnnqc.ir.builder import Builder

# Not in recipes: whole matmul results, where accumulators saturate (the last one is that of r * h with R), and the 1 of
# `f = 1 - i`, a value of the input gate.
ACCUMULATORS = ("accumulator.x", "accumulator.h", "accumulator.reset")
ONE = "one"
INITIAL_STATES = ("initial_h", "initial_c")
"""Of cells with rounded outputs; they have the formats of the states."""

Quantizer = Callable[[Builder, str, Value], Value]
"""From a value to its fake-quantized value, at a named quantization point."""

Splitter = Callable[[Builder, str, Value], tuple[Value, Value]]
"""From a named value to the part that its quantized values can hold, and the rest."""


def no_quantizer(builder: Builder, point: str, value: Value) -> Value:
    """Returns every value unchanged."""
    return value


def emit_activation(b: Builder, activation: Activation, x: Value, name: str) -> Value:
    """Returns the activation as standard operators."""
    a, beta = activation.alpha, activation.beta
    if activation.name == "Affine":
        return b.op("Add", [b.op("Mul", [x, b.f32(a)], f"{name}.scaled"), b.f32(beta)], name)
    if activation.name == "ScaledTanh":
        inner = b.op("Tanh", [b.op("Mul", [x, b.f32(beta)], f"{name}.scaled")], f"{name}.tanh")
        return b.op("Mul", [inner, b.f32(a)], name)
    if activation.name == "HardSigmoid":
        return b.op("HardSigmoid", [x], name, alpha=a, beta=beta)
    if activation.name in ("LeakyRelu", "ThresholdedRelu", "Elu"):
        return b.op(activation.name, [x], name, alpha=a)
    return b.op(activation.name, [x], name)


class FloatStep:
    """`rnnqc.cells.equations.Step` in standard operators.

    Args:
        b: Collects nodes before the loop.
        body: Collects the nodes of the step.
        cell: The cell.
        quantizer: Called at every quantization point, and with matmul results at `accumulator.h`, `accumulator.reset`.
        states: The hidden state before the step, and the cell state of an LSTM, `[B,H]`.
        p_t: x W + B of the step, `[B,GH]`.
        r: R `[H,GH]`, quantized.
        parameters: P `[3H]` and `hidden_bias` `[H]` if the cell has them, and B `[GH]`.
        products: Whether the two matmul results of each gate are separate values before their addition.
        bias_last: Whether p_t is x W, and B is added to the sum of both matmuls.
    """

    def __init__(
        self,
        b: Builder,
        body: Builder,
        cell: Cell,
        quantizer: Quantizer,
        states: Sequence[Value],
        p_t: Value,
        r: Value,
        parameters: Mapping[str, Value],
        *,
        products: bool,
        bias_last: bool,
    ) -> None:
        self.body, self.cell, self.quantizer, self.parameters = body, cell, quantizer, parameters
        self.input_forget, self.linear_before_reset = cell.input_forget, cell.linear_before_reset
        self.state = states[-1]
        self._products = products
        self._r = r
        gates, hidden = cell.type.gates, cell.hidden_size
        together = gates
        if cell.resets_state:
            bounds = [b.i64([v]) for v in (0, cell.candidate_columns.start, len(gates) * hidden)]
            self._r = b.op("Slice", [r, bounds[1], bounds[2], b.i64([1])], f"{gates[-1]}.R")
            r = b.op("Slice", [r, bounds[0], bounds[1], b.i64([1])], "R.of_gates")
            together = gates[: cell.type.joint]
        h = states[0] if cell.rounds_output else quantizer(body, "hidden", states[0])
        product = quantizer(body, ACCUMULATORS[1], body.op("MatMul", [h, r], "hidden.product"))
        self._of_x: list[Value] = []
        self._of_h: list[Value] = []
        self._sums: list[Value | None] = [None] * len(gates)
        if products or cell.type.candidate is not None:
            self._of_x = self._split(p_t, gates, "input_product")
            self._of_h = self._split(product, together, "hidden_product")
        elif len(gates) == 1:
            self._sums = [body.op("Add", [product, p_t], f"{gates[0]}.product")]
        else:
            whole = body.op("Add", [product, p_t], "products" if bias_last else "preactivation")
            if bias_last:
                whole = body.op("Add", [whole, parameters["B"]], "preactivation")
            sizes = body.i64([hidden] * len(gates))
            self._sums = list(body.ops("Split", [whole, sizes], [f"{g}.product" for g in gates], axis=1))

    def _split(self, whole: Value, gates: Sequence[str], what: str) -> list[Value]:
        names = [f"{g}.{what}" for g in gates]
        parts: Sequence[Value] = [whole]
        if len(gates) > 1:
            sizes = self.body.i64([self.cell.hidden_size] * len(gates))
            parts = self.body.ops("Split", [whole, sizes], names, axis=1)
        if not self._products:
            return list(parts)
        return [self.quantizer(self.body, n, v) for n, v in zip(names, parts, strict=True)]

    def _name(self, k: int) -> str:
        return self.cell.type.gates[k]

    def gate(self, k: int, peephole: Value | None = None) -> Value:
        """Returns the activation of gate k."""
        value, name = self._sums[k], self._name(k)
        if value is None:
            value = self.body.op("Add", [self._of_h[k], self._of_x[k]], f"{name}.product")
        weights = self.parameters.get("P")
        if weights is not None and peephole is not None:
            hidden, place = self.cell.hidden_size, self.cell.type.peephole_gates.index(k)
            bounds = [self.body.i64([v]) for v in (place * hidden, (place + 1) * hidden, 0)]
            part = self.body.op("Slice", [weights, *bounds], f"{name}.peephole")
            term = self.body.op("Mul", [peephole, part], f"{name}.peephole.product")
            value = self.body.op("Add", [value, term], f"{name}.sum")
        return self._activation(k, value)

    def projected(self, k: int) -> Value:
        """Returns x W + B of gate k."""
        return self._of_x[k]

    def recurrent(self, k: int) -> Value:
        """Returns h R of gate k, with the bias that belongs to it."""
        biased = [self._of_h[k], self.parameters["hidden_bias"]]
        return self.body.op("Add", biased, f"{self._name(k)}.hidden_product.biased")

    def recurrent_of(self, k: int, value: Value) -> Value:
        """Returns value R of gate k."""
        product: Value = self.body.op("MatMul", [value, self._r], f"{self._name(k)}.hidden_product")
        product = self.quantizer(self.body, ACCUMULATORS[2], product)
        return self.quantizer(self.body, f"{self._name(k)}.hidden_product", product)

    def activated(self, k: int, part: Value, projected: Value) -> Value:
        """Returns the activation of gate k: of part + projected."""
        return self._activation(k, self.body.op("Add", [part, projected], f"{self._name(k)}.product"))

    def _activation(self, k: int, value: Value) -> Value:
        name, clip = self._name(k), self.cell.clip
        if clip is not None:
            value = self.body.op("Clip", [value, self.body.f32(-clip), self.body.f32(clip)], f"{name}.clipped")
        value = self.quantizer(self.body, f"{name}.acc", value)
        value = emit_activation(self.body, self.cell.gate_activation(k), value, f"{name}.value")
        return self.quantizer(self.body, f"{name}.activation", value)

    def coupled(self, gate: Value) -> Value:
        """Returns 1 - gate, where 1 has the number format of the gate."""
        return self.body.op("Sub", [self.quantizer(self.body, ONE, self.body.f32(1.0)), gate], "forget_gate.coupled")

    def complement(self, gate: Value) -> Value:
        """Returns 1 - gate."""
        return self.body.op("Sub", [self.body.f32(1.0), gate], "complement")

    def product(self, a: Value, b: Value, point: str) -> Value:
        """Returns a * b."""
        return self.quantizer(self.body, point, self.body.op("Mul", [a, b], point))

    def total(self, kept: Value, added: Value, point: str) -> Value:
        """Returns kept + added, the state after the step."""
        return self.quantizer(self.body, point, self.body.op("Add", [kept, added], f"{point}.sum"))

    def squashed(self, state: Value) -> Value:
        """Returns the output activation of the cell state."""
        activation = self.cell.output_activation
        assert activation is not None
        value = emit_activation(self.body, activation, state, "hidden.squashed")
        return self.quantizer(self.body, "hidden.activation", value)
