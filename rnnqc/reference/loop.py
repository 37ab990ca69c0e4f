"""The base of all references: the loop over time, lengths of rows, and recording of each step's values."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from rnnqc.cells.base import FORGET
from rnnqc.cells.types import CellType
from rnnqc.reference.codes import weight_codes
from rnnqc.reference.recording import CODES, ROW_SCALE, Recorder

Array = npt.NDArray[Any]
State = dict[str, Array]
"""The state passed between steps, `[B, ...]`: quantized hidden states `h`, `h_scale` `[B, 1]` for dynamic rows, and
`state`, the float state of a type that has one: a cell state in its units, or the hidden state.
"""
_AXES = {"y_direction_axis": (("Y",), 1), "state_direction_axis": (("initial_h", "initial_c", "Y_h", "Y_c"), 0)}


class ReferenceCell(ABC):
    """One node in a run: a subclass has an arithmetic, the type of cell has the equations (`rnnqc.cells.equations`).

    Rows of the batch are computed together. A row that has ended continues, as in the function body, but none of its
    further values is output.

    Args:
        type_: The type of cell.
        inputs: Arrays by the operator's input names; absent optional inputs are left out.
        attributes: Values by the operator's attribute names.
        recorder: Receives every value of every step.

    Raises:
        ValueError: T = 0, B = 0, a sequence length outside 0 .. T, or `hidden_bias` without `linear_before_reset` or
            the other way round.
    """

    attributes: dict[str, Any]
    """Values by the operator's attribute names, including defaults; a subclass sets them."""
    real: np.dtype[Any] = np.dtype(np.float32)
    """The real type."""
    bias_last = False
    """Whether the bias is added to the sum of both matmuls, and not to the input's."""

    def __init__(
        self, type_: CellType, inputs: Mapping[str, Array], attributes: Mapping[str, Any], recorder: Recorder | None
    ) -> None:
        self.type = type_
        self._axes = {k: v for k, v in _AXES.items() if attributes.get(k)}
        removed = {name for names, _ in self._axes.values() for name in names}
        self.inputs = {n: v[0] if n in removed else v for n, v in inputs.items()}
        self.hidden = int(attributes["hidden_size"])
        self.input_forget = bool(attributes.get("input_forget", 0))
        self.linear_before_reset = bool(attributes.get("linear_before_reset", 0))
        if type_.candidate is not None and self.linear_before_reset != ("hidden_bias" in inputs):
            raise ValueError(f"{type_.fused}: linear_before_reset and hidden_bias belong together")
        self.reverse = attributes.get("direction", "forward") == "reverse"
        self.time, self.batch = inputs["X"].shape[:2]
        self._has_lengths = "sequence_lens" in inputs
        self.lengths = self._checked_lengths()
        self._recorder = recorder
        self.done = 0
        """Number of completed steps."""
        self._now: int | None = None
        self._p: Array = np.zeros(0)
        self._codes: Array = np.zeros(0, np.uint8)
        self._state: State = {}
        self._last: State = {}
        shape = (self.time, self.batch, self.hidden)
        self._y, self._y_h = np.zeros(shape, np.float32), np.zeros(shape[1:], np.float32)

    @abstractmethod
    def pre_activations(self) -> Array:
        """Returns the input's share of the pre-activations, [T, B, GH]."""

    @abstractmethod
    def initial_state(self) -> State:
        """Returns the state before the first step."""

    @abstractmethod
    def step(self, p: Array, state: State) -> tuple[npt.NDArray[np.float32], State]:
        """Computes one step of all rows: p [B, GH] and state in; y [B, H] and state out."""

    @abstractmethod
    def gate(self, k: int, value: Array) -> Array:
        """Returns the activation of a gate for its pre-activations `[B,H]`."""

    @property
    @abstractmethod
    def blank_code(self) -> int | None:
        """The quantized hidden state 0; None where there are no `Y_codes`."""

    @abstractmethod
    def final(self, outputs: dict[str, Array], state: State) -> None:
        """Completes the outputs from the last state of each row; may change `Y` and `Y_h`."""

    def advance(self, steps: int) -> None:
        """Computes this many further steps, or all that are left."""
        with np.errstate(all="ignore"):
            if not self._state:
                self._start()
            for k in range(self.done, min(self.done + steps, self.time)):
                self._advance_to(k)

    def run(self) -> dict[str, Array]:
        """Computes the steps that are left, and returns all outputs."""
        self.advance(self.time)
        valid = (np.arange(self.time)[:, None] < self.lengths)[:, :, None]
        outputs: dict[str, Array] = {"Y": np.where(valid, self._y, np.float32(0)), "Y_h": self._y_h}
        if self.blank_code is not None:
            outputs["Y_codes"] = np.where(valid, self._codes, self.blank_code).astype(np.uint8)
        with np.errstate(all="ignore"):
            self.final(outputs, self._last)
        for names, axis in self._axes.values():
            outputs.update({n: np.expand_dims(outputs[n], axis) for n in names if n in outputs})
        return outputs

    def weight_codes(self, key: str) -> npt.NDArray[np.int8]:
        """Returns quantized W or R (`key`), unpacked; raises ValueError if the packing is inconsistent."""
        names = ("group_size", "bits", "codebook", "wide_columns")
        size, bits, codebook, wide = (int(self.attributes[f"{key.lower()}_{name}"]) for name in names)
        multipliers, columns = self.inputs.get(f"{key}_group_multiplier"), len(self.type.gates) * self.hidden
        return weight_codes(self.inputs[key], multipliers, size, columns, bits, self.type.fused, codebook, wide)

    def note(self, name: str, values: Array) -> None:
        """Passes a value to the recorder; see `rnnqc.reference.recording`."""
        if self._recorder is not None:
            self._recorder.record(name, self._now, values)

    def widened(self, values: Array) -> Array:
        """Converts values to the real type."""
        return np.asarray(values).astype(self.real)

    @property
    def resets_state(self) -> bool:
        """Whether R multiplies, for the candidate, a hidden state already multiplied by a gate."""
        return self.type.candidate is not None and not self.linear_before_reset

    def part(self, values: Array, k: int) -> Array:
        """Returns the columns [..., H] of gate k in [..., GH]."""
        return values[..., k * self.hidden : (k + 1) * self.hidden]

    def element(self, step: int) -> Any:
        """Returns the index of the elements of a sequence [T, B, ...] that a step reads."""
        if not self.reverse:
            return step
        if not self._has_lengths:
            return self.time - 1 - step
        count = np.maximum(self.lengths, 1)
        return np.where(step < count, count - 1 - step, step), np.arange(self.batch)

    def _checked_lengths(self) -> Array:
        """Returns `sequence_lens`, or T for each row; checks them."""
        operator = self.type.fused
        if self.time == 0 or self.batch == 0:
            raise ValueError(f"{operator}: T = 0 and B = 0 are errors")
        lengths = self.inputs.get("sequence_lens", np.full(self.batch, self.time, np.int32))
        if lengths.min() < 0 or lengths.max() > self.time:
            raise ValueError(f"{operator}: sequence_lens {lengths.tolist()} outside 0 .. {self.time}")
        return lengths

    def _start(self) -> None:
        self._p, self._state = self.pre_activations(), self.initial_state()
        self._last = self._state
        self._codes = np.zeros(self._y.shape, self._state["h"].dtype)

    def _advance_to(self, k: int) -> None:
        self._now = k
        at = self.element(k)
        self._note_codes("hidden.previous", self._state)
        y, state = self.step(self._p[at], self._state)
        self._note_codes("hidden", state)
        self._y[at], self._codes[at], self._state = y, state["h"], state
        if self._has_lengths:
            running = (k < self.lengths)[:, np.newaxis]
            y = np.where(running, y, self._y_h)
            state = {name: np.where(running, new, self._last[name]) for name, new in state.items()}
        self._y_h, self._last = y, state
        self.done = k + 1

    def _note_codes(self, name: str, state: State) -> None:
        self.note(name + CODES, state["h"])
        if "h_scale" in state:
            self.note(name + ROW_SCALE, state["h_scale"])


class ReferenceStep:
    """The part of `rnnqc.cells.equations.Step` on arrays `[B,H]` that both arithmetics share: sums, and 1 minus a gate.

    Args:
        cell: The cell.
        p: The input's share of the pre-activations `[B,GH]`.
        u: The hidden state's share of those of the gates that sum both.
        state: The float state before the step.
    """

    def __init__(self, cell: ReferenceCell, p: Array, u: Array, state: Array) -> None:
        self._node, self._p, self._u, self.state = cell, p, u, state
        self.input_forget, self.linear_before_reset = cell.input_forget, cell.linear_before_reset

    def gate(self, k: int, peephole: Array | None = None) -> Array:
        """Returns the activation of gate k."""
        cell = self._node
        value = cell.part(self._p, k) + cell.part(self._u, k)
        if cell.bias_last:
            value = value + cell.part(cell.widened(cell.inputs["B"]), k)
        weights = cell.inputs.get("P")
        if weights is not None and peephole is not None:
            value = value + cell.part(cell.widened(weights), cell.type.peephole_gates.index(k)) * peephole
        return cell.gate(k, value)

    def projected(self, k: int) -> Array:
        """Returns x W + B of gate k."""
        return self._node.part(self._p, k)

    def recurrent(self, k: int) -> Array:
        """Returns h R of gate k, with the bias that belongs to it."""
        return np.asarray(self._node.part(self._u, k) + self._node.widened(self._node.inputs["hidden_bias"]))

    def activated(self, k: int, part: Array, projected: Array) -> Array:
        """Returns the activation of gate k, of part + projected."""
        return self._node.gate(k, np.asarray(part + projected))

    def coupled(self, gate: Array) -> Array:
        """Returns 1 - gate, where 1 is in the gate's number format."""
        value = np.asarray(self._node.real.type(np.float32(self._node.attributes["one"])) - gate)
        self._node.note(f"{self._node.type.gates[FORGET]}.activation", value)
        return value

    def complement(self, gate: Array) -> Array:
        """Returns 1 - gate."""
        return np.asarray(self._node.real.type(1) - gate)
