"""The equations of LSTM, GRU and RNN, each written once.

They use the interface `Step`, which every arithmetic implements: float operators with or without quantizers
(`rnnqc.passes.cells.float_step`), look-ups (`rnnqc.passes.render.lut.lut_step`), fixed point
(`rnnqc.passes.render.fixed_point.fixed_point_step`). Source: ONNX operators LSTM, GRU and RNN.
"""

from __future__ import annotations

from typing import Protocol, TypeVar

V = TypeVar("V")

# LSTM gates, in the order of W, R, B and P.
INPUT, OUTPUT, FORGET, CELL = range(4)
# GRU gates, in the order of W, R and B.
UPDATE, RESET, CANDIDATE = range(3)
RESET_PRODUCT, RESET_HIDDEN = "hidden_gate.reset_product", "reset.hidden"


class Step(Protocol[V]):
    """One step of a cell. Values are `[B,H]`; `point` is a quantization point, or a mere name if there is none."""

    @property
    def input_forget(self) -> bool:
        """LSTM: whether f = 1 - i."""

    @property
    def linear_before_reset(self) -> bool:
        """GRU: whether the reset gate multiplies the recurrent matmul instead of the hidden state."""

    @property
    def state(self) -> V:
        """The float state before the step: the cell state of an LSTM, the hidden state of a GRU."""

    def gate(self, k: int, peephole: V | None = None) -> V:
        """Returns the activation of gate k: of x W + h R + B, plus `peephole` times its peephole weights, if any."""

    def projected(self, k: int) -> V:
        """Returns x W + B of gate k."""

    def recurrent(self, k: int) -> V:
        """Returns h R of gate k, with the bias that belongs to it."""

    def recurrent_of(self, k: int, value: V) -> V:
        """Returns value R of gate k."""

    def activated(self, k: int, part: V, projected: V) -> V:
        """Returns the activation of gate k, of part + projected."""

    def coupled(self, gate: V) -> V:
        """Returns 1 - gate, where 1 is in the gate's number format."""

    def complement(self, gate: V) -> V:
        """Returns 1 - gate."""

    def product(self, a: V, b: V, point: str) -> V:
        """Returns a * b."""

    def total(self, kept: V, added: V, point: str) -> V:
        """Returns kept + added, the state after the step."""

    def squashed(self, state: V) -> V:
        """Returns the output activation of the cell state."""


def lstm(s: Step[V]) -> tuple[V, V]:
    """Returns the hidden state and the cell state after a step."""
    i = s.gate(INPUT, s.state)
    f = s.coupled(i) if s.input_forget else s.gate(FORGET, s.state)
    g = s.gate(CELL)
    kept = s.product(f, s.state, "cell_state.kept")
    added = s.product(i, g, "cell_state.added")
    c = s.total(kept, added, "cell_state")
    return s.product(s.gate(OUTPUT, c), s.squashed(c), "hidden.value"), c


def gru(s: Step[V]) -> tuple[V, V]:
    """Returns the hidden state after a step, twice: it is the only state."""
    z, r = s.gate(UPDATE), s.gate(RESET)
    if s.linear_before_reset:
        part = s.product(r, s.recurrent(CANDIDATE), RESET_PRODUCT)
    else:
        part = s.recurrent_of(CANDIDATE, s.product(r, s.state, RESET_HIDDEN))
    n = s.activated(CANDIDATE, part, s.projected(CANDIDATE))
    kept = s.product(z, s.state, "hidden_state.kept")
    added = s.product(s.complement(z), n, "hidden_state.added")
    h = s.total(kept, added, "hidden_state")
    return h, h


def rnn(s: Step[V]) -> tuple[V, V]:
    """Returns the hidden state after a step, twice: it is the only state."""
    h = s.gate(0)
    return h, h
