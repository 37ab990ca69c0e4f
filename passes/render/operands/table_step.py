"""The step of a cell as far as both arithmetics agree: sums of matmuls, and gates from tables."""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rnnqc.cells.base import Cell
from rnnqc.ir import Value
from rnnqc.ir.builder import Builder


@dataclass(frozen=True)
class StepInputs:
    """The values that a step computes from, in the units of its arithmetic.

    Attributes:
        joint: Pre-activations `[B,nH]` of the gates that sum both matmuls.
        state: The float state before the step `[B,H]`; None for an RNN.
        projected: x W + B `[B,H]` of a GRU's candidate.
        recurrent: h R of the candidate with linear_before_reset.
        product: Computes (r * h) R of the candidate without linear_before_reset.
    """

    joint: Value
    state: Value | None
    projected: Value | None = None
    recurrent: Value | None = None
    product: Callable[[Value], Value] | None = None


class TableStep(abc.ABC):
    """The part of `rnnqc.cells.equations.Step` that emits sums, and 1 minus a gate.

    Args:
        body: Collects the nodes of the step.
        cell: The cell.
        given: The values before the step.
        hidden_bias: The bias inside the product with a reset gate, or None.
        one: The value of 1 in the number format of the gates.
    """

    def __init__(
        self, body: Builder, cell: Cell, given: StepInputs, hidden_bias: Value | None, one: float = 1.0
    ) -> None:
        self.body, self.cell, self.given = body, cell, given
        self.input_forget, self.linear_before_reset = cell.input_forget, cell.linear_before_reset
        self._hidden_bias, self._one = hidden_bias, one
        self._sums: Sequence[Value] = []
        self._values = self._all_at_once(given.joint)
        names = cell.type.gates[: cell.type.joint]
        if not self._values:
            self._sums = self._split(given.joint, [f"{n}.product" for n in names]) if len(names) > 1 else [given.joint]

    @abc.abstractmethod
    def _all_at_once(self, joint: Value) -> Sequence[Value]:
        """Returns the activations of all joint gates if one look-up suffices, otherwise nothing."""

    @abc.abstractmethod
    def _gate(self, k: int, value: Value) -> Value:
        """Returns the activation of gate k for its pre-activation."""

    @abc.abstractmethod
    def _peephole(self, k: int) -> Value | None:
        """Returns the peephole weights of gate k `[H]`; None for a cell without any."""

    @abc.abstractmethod
    def _constant(self, value: float) -> Value:
        """Returns a constant of the type of gates."""

    @property
    def state(self) -> Value:
        """The float state before the step."""
        assert self.given.state is not None
        return self.given.state

    def gate(self, k: int, peephole: Value | None = None) -> Value:
        """Returns the activation of gate k."""
        if self._values:
            return self._values[k]
        value, name = self._sums[k], self.cell.type.gates[k]
        weights = None if peephole is None else self._peephole(k)
        if weights is not None:
            term = self.body.op("Mul", [weights, peephole], f"{name}.peephole.product")
            value = self.body.op("Add", [value, term], f"{name}.sum")
        return self._gate(k, value)

    def projected(self, k: int) -> Value:
        """Returns x W + B of gate k."""
        assert self.given.projected is not None
        return self.given.projected

    def recurrent(self, k: int) -> Value:
        """Returns h R of gate k, plus the bias inside the product with the reset gate."""
        biased = [self.given.recurrent, self._hidden_bias]
        return self.body.op("Add", biased, f"{self.cell.type.gates[k]}.hidden_product.biased")

    def recurrent_of(self, k: int, value: Value) -> Value:
        """Returns value R of gate k."""
        assert self.given.product is not None
        return self.given.product(value)

    def activated(self, k: int, part: Value, projected: Value) -> Value:
        """Returns the activation of gate k for part + projected."""
        return self._gate(k, self.body.op("Add", [part, projected], f"{self.cell.type.gates[k]}.product"))

    def coupled(self, gate: Value) -> Value:
        """Returns 1 - gate, with 1 in the number format of the gate."""
        return self.body.op("Sub", [self._constant(self._one), gate], "forget_gate.coupled")

    def complement(self, gate: Value) -> Value:
        """Returns 1 - gate."""
        return self.body.op("Sub", [self._constant(1.0), gate], "complement")

    def _split(self, value: Value, names: Sequence[str]) -> Sequence[Value]:
        sizes = self.body.i64([self.cell.hidden_size] * len(names))
        return self.body.ops("Split", [value, sizes], list(names), axis=1)

    def _looked_up(self, table: Value, index: Value, width: int, name: str) -> Value:
        """Returns the entries at `index` `[B,width]`."""
        taken = take(self.body, table, index, name)
        return self.body.op("Reshape", [taken, self.body.i64([-1, width])], f"{name}.values")


def take(b: Builder, table: Value, index: Value, name: str) -> Value:
    """Returns the entries `[n]` of a table at the n elements of `index`.

    GatherElements takes 0.6 ns per element in onnxruntime, Gather 8.
    """
    flat = b.op("Reshape", [index, b.i64([-1])], f"{name}.indices")
    return b.op("GatherElements", [table, flat], f"{name}.taken", axis=0)
