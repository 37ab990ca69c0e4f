"""The operands of the ONNX node that computes a found step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from rnnqc.cells.activations import takes_alpha, takes_beta
from rnnqc.cells.types import CELL_TYPES
from rnnqc.ir import Value
from rnnqc.passes.graph.constant_expressions import Constants
from rnnqc.passes.recover.row_algebra import Atom, Floats
from rnnqc.passes.recover.step_matcher import FoundStep

GATES = {"LSTM": "iofc", "GRU": "zrh", "RNN": "h"}
_PEEPHOLES = "iof"  # their order in P


class NoNode(Exception):  # noqa: N818 - no error: the step stays as it is
    """The equations match, but no ONNX node computes this step; carries the reason and what was found."""

    def __init__(self, reason: str, found: str) -> None:
        super().__init__(reason)
        self.reason, self.found = reason, found


@dataclass(frozen=True, eq=False)
class StepNode:
    """One step as an ONNX recurrent node over one element.

    Attributes:
        op: Operator.
        x: The parts of the input, side by side; none if the step has h alone: W is `[G*H, 1]` and zero then.
        h: The hidden state before; None for zeros.
        c: The cell state before; None for zeros, or if there is none.
        W: `[G*H, I]`, gates in ONNX's order.
        R: `[G*H, H]`.
        B: `[2*G*H]`, or None for zeros.
        P: `[3*H]`, or None.
        attributes: Of the node.
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
    """The node for `step`, whose hidden state is known (None: zeros).

    Raises:
        NoNode: There is none.
    """
    if step.doubt:
        raise NoNode("it is not known which of its operands is the hidden state.", step.doubt)
    width = step.width
    order = GATES[step.op]
    hidden, cell = step.hidden, step.cell
    for atom, what in ((hidden, "hidden"), (cell, "cell")):
        if atom is not None and atom.kind == "leaf" and atom.width != atom.whole:
            raise NoNode(f"its {what} state is part of a wider value.", f"columns of {_name(atom)!r}")
    bases: dict[object, tuple[Value, int, int]] = {}
    total = 0
    for _, atom, array, _ in step.operands():
        if atom in (hidden, cell, step.cell_atom, step.reset) or _row(constants, atom, array) is not None:
            continue
        key, value, whole = _base(atom)
        if key not in bases:
            bases[key] = (value, total, whole)
            total += whole
    if not bases and (hidden is None or hidden.value is None or constants.zero(hidden.value)):
        raise NoNode("it has no input besides its states.", "no product with an input")
    W = np.zeros((len(order) * width, total or 1), np.float32)
    R = np.zeros((len(order) * width, width), np.float32)
    B = np.zeros((2, len(order) * width), np.float32)
    P = np.zeros((3, width), np.float32)
    for k, gate in enumerate(order):
        if step.input_forget and gate == "f":
            continue
        rows = slice(k * width, (k + 1) * width)
        sign = np.float32(-1 if gate in step.negated else 1)
        form = step.gates[gate]
        if form.bias is not None:
            B[0, rows] += sign * form.bias
        for atom, weight in form.terms.items():
            array = weight.array
            constant = _row(constants, atom, array)
            if constant is not None:
                B[0, rows] += sign * constant
            elif atom is step.reset and gate == "h":
                R[rows] += sign * array.T
            elif atom is hidden:
                R[rows] += sign * (array.T if array.ndim == 2 else np.diag(np.broadcast_to(array, (width,))))
            elif atom in (cell, step.cell_atom):
                if array.ndim == 2 or gate not in _PEEPHOLES or (atom is step.cell_atom) != (gate == "o"):
                    raise NoNode(
                        "its cell state goes into a gate in another way than through a peephole.", f"gate {gate}"
                    )
                P[_PEEPHOLES.index(gate)] += sign * array
            else:
                key, _, _ = _base(atom)
                low = bases[key][1] + atom.low
                if array.ndim == 2:
                    W[rows, low : low + array.shape[0]] += sign * array.T
                else:
                    W[rows, low : low + width] += sign * np.diag(np.broadcast_to(array, (width,)))
    if step.recurrent is not None:
        rows = slice((len(order) - 1) * width, len(order) * width)
        if hidden is not None:
            R[rows] += step.recurrent.terms[hidden].array.T
        if step.recurrent.bias is not None:
            B[1, rows] += step.recurrent.bias
    if step.like is not None:
        R = step_node(step.like, constants).R
    return StepNode(
        step.op,
        tuple(value for value, _, _ in bases.values()),
        _state(hidden, constants),
        _state(cell, constants),
        W,
        R,
        B.reshape(-1) if B.any() else None,
        P.reshape(-1) if P.any() else None,
        _attributes(step),
        step.h_next,
        step.c_next,
    )


def _name(atom: Atom) -> str:
    return atom.value.name if atom.value is not None else "a part of a value"


def _base(atom: Atom) -> tuple[object, Value, int]:
    """Key, value and width of what an atom is taken from."""
    if atom.kind == "leaf":
        assert atom.value is not None
        return atom.identity, atom.value, atom.whole
    if atom.value is None:
        raise NoNode("an operand is made in parts.", f"an intermediate {atom.kind} without a value of its own")
    return atom, atom.value, atom.width


def _row(constants: Constants, atom: Atom, array: Floats) -> Floats | None:
    """What a constant operand adds to a pre-activation; None if it is none, or differs from row to row."""
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
        raise NoNode("a state is made in parts.", f"an intermediate {atom.kind} without a value of its own")
    return None if constants.zero(atom.value) else atom.value


def _attributes(step: FoundStep) -> dict[str, Any]:
    made: dict[str, Any] = {"hidden_size": step.width}
    names = [a.name for a in step.activations]
    if names != list(CELL_TYPES[step.op].activations) or any(a.parameters for a in step.activations):
        made["activations"] = names
        alphas = [dict(a.parameters)["alpha"] for a in step.activations if takes_alpha(a.name)]
        betas = [dict(a.parameters)["beta"] for a in step.activations if takes_beta(a.name)]
        if alphas:
            made["activation_alpha"] = alphas
        if betas:
            made["activation_beta"] = betas
    if step.op == "GRU" and step.recurrent is not None:
        made["linear_before_reset"] = 1
    if step.input_forget:
        made["input_forget"] = 1
    return made
