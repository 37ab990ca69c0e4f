"""The operands of the ONNX node that computes a found step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from rnnqc.cells.activations import Activation
from rnnqc.cells.types import CELL_TYPES
from rnnqc.errors import NotHandled
from rnnqc.ir import Value
from rnnqc.passes.graph.nodes.node_attributes import node_attributes
from rnnqc.passes.graph.values.constant_expressions import Constants
from rnnqc.passes.recover.rows.row_algebra import Atom, Floats
from rnnqc.passes.recover.steps.step_matcher import FoundStep

GATES = {"LSTM": "iofc", "GRU": "zrh", "RNN": "h"}
_PEEPHOLES = "iof"  # in the order of P


@dataclass(frozen=True, eq=False)
class StepNode:
    """One step as an ONNX recurrent node over one element.

    Attributes:
        op: Operator.
        x: The parts of the input, concatenated; empty if the step only has h: then W is `[G*H, 1]` and zero.
        h: The hidden state before; None for zeros.
        c: The cell state before; None for zeros, or if there is none.
        W: `[G*H, I]`, gates in ONNX's order.
        R: `[G*H, H]`.
        B: `[2*G*H]`, or None for zeros.
        P: `[3*H]`, or None.
        attributes: Attributes of the node.
        h_next: The new hidden state.
        c_next: The new cell state, or None.
    """

    op: str
    x: tuple[Value, ...]
    h: Value | None
    c: Value | None
    W: Floats
    R: Floats
    B: Floats | None
    P: Floats | None
    attributes: dict[str, Any]
    h_next: Value
    c_next: Value | None


def step_node(step: FoundStep, constants: Constants) -> StepNode:
    """Returns the node for `step`, whose hidden state is known (None: zeros).

    Raises:
        NotHandled: No node computes it.
    """
    if step.doubt:
        raise NotHandled("it is not known which of its operands is the hidden state.", step.doubt)
    for atom, what in ((step.hidden, "hidden"), (step.cell, "cell")):
        if atom is not None and atom.kind == "leaf" and atom.width != atom.whole:
            raise NotHandled(f"its {what} state is part of a wider value.", f"columns of {_name(atom)!r}")
    weights = _Weights(step, constants)
    for k, gate in enumerate(GATES[step.op]):
        if not (step.input_forget and gate == "f"):
            weights.add_gate(k, gate)
    weights.add_recurrent()
    return StepNode(
        step.op,
        tuple(weights.inputs),
        _state(step.hidden, constants),
        _state(step.cell, constants),
        weights.W,
        weights.R if step.like is None else step_node(step.like, constants).R,
        weights.B.reshape(-1) if weights.B.any() else None,
        weights.P.reshape(-1) if weights.P.any() else None,
        _attributes(step),
        step.h_next,
        step.c_next,
    )


class _Weights:
    """The weights of a step's node, summed from the terms of its pre-activations.

    Attributes:
        inputs: The values that W multiplies, concatenated.
        W: As in `StepNode`.
        R: As in `StepNode`.
        B: `[2,G*H]`.
        P: `[3,H]`.

    Raises:
        NotHandled: The step has no input besides its states.
    """

    def __init__(self, step: FoundStep, constants: Constants) -> None:
        self._step, self._constants = step, constants
        self._states = (step.hidden, step.cell, step.cell_atom, step.reset)
        self._columns: dict[object, int] = {}
        self.inputs: list[Value] = []
        total = 0
        for _, atom, array, _ in step.operands():
            if atom in self._states or _row(constants, atom, array) is not None:
                continue
            key, value, whole = _base(atom)
            if key not in self._columns:
                self._columns[key] = total
                self.inputs.append(value)
                total += whole
        hidden = step.hidden
        if not self.inputs and (hidden is None or hidden.value is None or constants.zero(hidden.value)):
            raise NotHandled("it has no input besides its states.", "no matmul with an input")
        rows = len(GATES[step.op]) * step.width
        self.W = np.zeros((rows, total or 1), np.float32)
        self.R = np.zeros((rows, step.width), np.float32)
        self.B = np.zeros((2, rows), np.float32)
        self.P = np.zeros((3, step.width), np.float32)

    def add_gate(self, number: int, gate: str) -> None:
        """Adds the terms of the pre-activation of a gate.

        Raises:
            NotHandled: The cell state enters it other than by a peephole.
        """
        step = self._step
        rows = self._rows(number)
        sign = np.float32(-1 if gate in step.negated else 1)
        form = step.gates[gate]
        if form.bias is not None:
            self.B[0, rows] += sign * form.bias
        for atom, weight in form.terms.items():
            array = weight.array
            constant = _row(self._constants, atom, array)
            if constant is not None:
                self.B[0, rows] += sign * constant
            elif atom is step.reset and gate == "h":
                self.R[rows] += sign * array.T
            elif atom is step.hidden:
                self.R[rows] += sign * self._matrix(array)
            elif atom in (step.cell, step.cell_atom):
                if array.ndim == 2 or gate not in _PEEPHOLES or (atom is step.cell_atom) != (gate == "o"):
                    raise NotHandled(
                        "its cell state goes into a gate in another way than through a peephole.", f"gate {gate}"
                    )
                self.P[_PEEPHOLES.index(gate)] += sign * array
            else:
                matrix = self._matrix(array)
                low = self._columns[_base(atom)[0]] + atom.low
                self.W[rows, low : low + matrix.shape[1]] += sign * matrix

    def add_recurrent(self) -> None:
        """Adds the product with the hidden state that a reset gate multiplies."""
        recurrent, hidden = self._step.recurrent, self._step.hidden
        if recurrent is None:
            return
        rows = self._rows(len(GATES[self._step.op]) - 1)
        if hidden is not None:
            self.R[rows] += recurrent.terms[hidden].array.T
        if recurrent.bias is not None:
            self.B[1, rows] += recurrent.bias

    def _rows(self, gate: int) -> slice:
        return slice(gate * self._step.width, (gate + 1) * self._step.width)

    def _matrix(self, array: Floats) -> Floats:
        """Weights of a product as `[H,K]`; elementwise factors as a diagonal matrix."""
        return array.T if array.ndim == 2 else np.diag(np.broadcast_to(array, (self._step.width,)))


def _name(atom: Atom) -> str:
    return atom.value.name if atom.value is not None else "a part of a value"


def _base(atom: Atom) -> tuple[object, Value, int]:
    """Key, value and width of the source of an atom."""
    if atom.kind == "leaf":
        assert atom.value is not None
        return atom.identity, atom.value, atom.whole
    if atom.value is None:
        raise NotHandled("an operand is made in parts.", f"an intermediate {atom.kind} without a value of its own")
    return atom, atom.value, atom.width


def _row(constants: Constants, atom: Atom, array: Floats) -> Floats | None:
    """The row that a constant operand adds to a pre-activation; None if it is not constant, or rows differ."""
    held = constants.array(atom.value) if atom.kind == "leaf" else None
    if held is None or array.ndim == 2:
        return None
    whole = held.reshape(-1, held.shape[-1])
    if np.any(whole != whole[0]):
        return None
    return np.asarray(whole[0, atom.low : atom.low + atom.width] * array, np.float32)


def _state(atom: Atom | None, constants: Constants) -> Value | None:
    if atom is None:
        return None
    if atom.value is None:
        raise NotHandled("a state is made in parts.", f"an intermediate {atom.kind} without a value of its own")
    return None if constants.zero(atom.value) else atom.value


def _attributes(step: FoundStep) -> dict[str, Any]:
    linear_before_reset = step.op == "GRU" and step.recurrent is not None
    return node_attributes(
        CELL_TYPES[step.op],
        step.width,
        [Activation(a.name, **dict(a.parameters)) for a in step.activations],
        linear_before_reset=linear_before_reset,
        input_forget=step.input_forget,
    )
