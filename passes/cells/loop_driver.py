"""The loop over time around the step of a cell, for every arithmetic.

The driver implements what all cells share: the direction, zero initial states, the Scan, masks by length, and the
outputs. An arithmetic (`Arithmetic`) quantizes the inputs, multiplies them by W, and emits one step.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from rnnqc.cells.base import Cell, Size
from rnnqc.ir import Model, Value, Variable
from rnnqc.ir.builder import Builder
from rnnqc.passes.cells.boundary import Boundary
from rnnqc.passes.cells.sequence_lengths import LengthMasks, dimensions, longest, reversed_sequence

HIDDEN, CELL_STATE = "hidden", "cell_state"
HIDDEN_STEPS, CODES_STEPS, CELL_STEPS = "hidden.steps", "hidden.codes.steps", "cell_state.steps"
LAST_HIDDEN, LAST_CELL = "hidden.last", "cell_state.last"

Results = dict[str, Value]
"""Results of a loop in loop order by name: `*_STEPS` are `[T,B,H]`, `LAST_*` are `[B,H]` after the last step."""


@dataclass(frozen=True)
class State:
    """A state that the loop passes from step to step.

    Attributes:
        initial: Its value before the first step.
        dtype: Its type.
        shape: Its shape.
    """

    initial: Value
    dtype: npt.DTypeLike
    shape: Sequence[Size]


@dataclass(frozen=True)
class Stepped:
    """The results of one step of a loop.

    Attributes:
        states: The states for the next step: the hidden state or its quantized values, and the cell state of an LSTM.
        y: The hidden state `[B,H]` float32.
        c: The cell state of an LSTM.
        codes: The quantized hidden states, uint8, if the step computes them.
    """

    states: Sequence[Value]
    y: Value
    c: Value
    codes: Value | None = None


Step = Callable[[Builder, Sequence[Value], Sequence[Value]], Stepped]
"""Emits the nodes of one step, from the states before it and x W + B of the step, in parts as `Loop.run` splits it."""


class Arithmetic(ABC):
    """Computes a cell, and holds the operands of the computation.

    Attributes:
        hands_on_output: Whether the state that the loop carries is the hidden state that the cell returns.
        names_outputs: Whether outputs of the body are copies with their own names, for readability, without declared
            types outside the loop.
    """

    hands_on_output: ClassVar[bool] = False
    names_outputs: ClassVar[bool] = False

    @property
    def cell_unit(self) -> float:
        """Real value of one LSB of the cell state in the results; 0 for real values."""
        return 0.0

    @property
    def hidden_zero_point(self) -> int:
        """The quantized value of a hidden state of 0."""
        return 0

    @abstractmethod
    def run(self, b: Builder, loop: Loop) -> Results:
        """Quantizes and projects the input, creates the initial states, and runs the loop, in branches if necessary."""


def emit_cell(
    model: Model,
    cell: Cell,
    at: Boundary,
    arithmetic: Arithmetic,
    codes: Value | None = None,
    *,
    stops_early: bool = False,
) -> Builder:
    """Emits the nodes of a cell between its boundary values.

    Args:
        model: The model.
        cell: The cell.
        at: Its boundary.
        arithmetic: The arithmetic of the cell.
        codes: Value that receives the quantized hidden states `[T,B,H]`, if an integer consumer follows.
        stops_early: Whether the loop ends at the greatest length; then the number of its steps depends on data.
    """
    b = Builder(model, cell.name)
    steps = longest(b, at.sequence_lens, at.x) if stops_early and at.sequence_lens is not None else None
    loop = Loop(cell, at, Wanted.of(at, codes, arithmetic.hands_on_output), arithmetic.names_outputs, steps)
    results = arithmetic.run(b, loop)
    _finish(b, loop, codes, results, arithmetic)
    return b


@dataclass(frozen=True)
class Wanted:
    """The results of a loop that are needed.

    Attributes:
        y: Hidden states of all steps.
        codes: Their quantized values.
        c_steps: Cell states of all steps.
        last_h: The hidden state after the last step.
        last_c: The cell state after the last step.
    """

    y: bool
    codes: bool
    c_steps: bool
    last_h: bool
    last_c: bool

    @classmethod
    def of(cls, at: Boundary, codes: Value | None, hands_on_output: bool) -> Wanted:
        """Returns the results that the outputs of a cell need; see `Arithmetic.hands_on_output`."""
        lengths = at.sequence_lens is not None
        last_h = hands_on_output and not lengths
        return cls(
            y=at.y is not None or (at.y_h is not None and not last_h),
            codes=codes is not None,
            c_steps=at.y_c is not None and lengths,
            last_h=last_h,
            last_c=at.y_c is not None and not lengths,
        )


@dataclass(frozen=True)
class Loop:
    """The loop of one cell.

    Attributes:
        cell: The cell.
        at: Its boundary.
        wanted: Which results are needed.
        names_outputs: See `Arithmetic`.
        steps: The number of steps, int64 `[1]`, if the loop ends at the greatest length; None for T.
    """

    cell: Cell
    at: Boundary
    wanted: Wanted
    names_outputs: bool = False
    steps: Value | None = None

    @property
    def scans_backwards(self) -> bool:
        """Whether the Scan is reversed: for a reverse cell, unless its input is reversed before because of lengths."""
        return self.cell.reverse and self.at.sequence_lens is None

    def sequence(self, b: Builder) -> Value:
        """Returns the input of all steps of the loop `[T,B,I]`, reversed for a reverse cell with lengths."""
        return self._of_all_steps(b, self.at.x, "x")

    def scales(self, b: Builder) -> Value:
        """Returns the scales of rows that come with the input of all steps, `[T,B,1]`, in the same order."""
        assert self.at.x_scale is not None
        return self._of_all_steps(b, self.at.x_scale, "x.scale")

    def _of_all_steps(self, b: Builder, given: Value, name: str) -> Value:
        lens = self.at.sequence_lens
        if self.steps is not None:
            given = b.op("Slice", [given, b.i64([0]), self.steps, b.i64([0])], f"{name}.until_longest")
        return given if lens is None or not self.cell.reverse else reversed_sequence(b, given, lens)

    def shape(self, b: Builder, name: str) -> list[Value]:
        """Returns the numbers of steps and of rows for a Reshape, as parts for a Concat.

        Uses shapes and constants only: a number of steps that depends on data is -1.
        """
        if self.steps is None:
            return [dimensions(b, self.at.x, 0, 2, name)]
        return [b.i64([-1]), dimensions(b, self.at.x, 1, 2, name)]

    def state_shape(self, b: Builder) -> Value:
        """Returns the shape `[B,H]`.

        A constant where the graph fixes B. onnxruntime 1.31 folds a Shape of known size; in a branch of If, where only
        another If (for example the choice of a matmul) still reads `x`, it then loses `x`, if that also comes from an
        If.
        """
        if self.cell.static_batch is not None:
            return b.i64([self.cell.static_batch, self.cell.hidden_size])
        parts = [dimensions(b, self.at.x, 1, 2, "batch"), b.i64([self.cell.hidden_size])]
        return b.op("Concat", parts, "state.shape", axis=0)

    def first_step(self, b: Builder, p: Value, name: str = "x.projection") -> Value:
        """Returns the element `[1,B,GH]` of `p` `[T,B,GH]` in the first step of the loop."""
        if self.cell.static_length == 1:
            return p
        return b.op("Gather", [p, b.i64([self._first])], f"{name}.first", axis=0)

    def with_first_step(self, b: Builder, p: Value, element: Value, name: str = "x.projection") -> Value:
        """Returns `p` `[T,B,GH]` with another element `[1,B,GH]` in the first step of the loop."""
        if self.cell.static_length == 1:
            return element
        return b.op("ScatterND", [p, b.i64([[self._first]]), element], f"{name}.whole")

    @property
    def _first(self) -> int:
        """The index of the loop's first step."""
        last = -1 if self.cell.static_length is None else self.cell.static_length - 1
        return last if self.scans_backwards else 0

    def run(
        self,
        b: Builder,
        p: Value,
        states: Sequence[State],
        step: Step,
        *,
        real: npt.DTypeLike = np.float32,
        apart: bool = True,
    ) -> Results:
        """Emits the Scan.

        Args:
            b: Collects the nodes.
            p: x W + B `[T,B,GH]`.
            states: The hidden state or its quantized values, and the cell state of an LSTM.
            step: Emits one step.
            real: The type of `p` and of the cell state.
            apart: Whether x W + B of a GRU's candidate is passed to the step as a separate value.

        Returns:
            The requested results, by name; hidden states instead of their quantized values, if the step does not
            compute these.
        """
        body = b.body()
        names = (HIDDEN, CELL_STATE)
        previous = [body.value(f"{n}.previous", s.dtype, s.shape) for n, s in zip(names, states, strict=False)]
        sequences, projected = self._sequences(b, body, p, real, apart)
        outputs = self._outputs(body, step(body, previous, projected), states, real)
        inputs = [*(s.initial for s in states), *sequences]
        return self._scan(b, body, inputs, [*previous, *projected], outputs, len(states))

    def _sequences(
        self, b: Builder, body: Builder, p: Value, real: npt.DTypeLike, apart: bool
    ) -> tuple[list[Value], list[Value]]:
        """The scanned sequences and their elements: x W + B of joint gates and, if `apart`, of a GRU's candidate."""
        hidden, gates = self.cell.hidden_size, len(self.cell.type.gates)
        joint = self.cell.type.joint if apart else gates
        widths, sequences = [joint * hidden], [p]
        names = ["x.projection.step", "x.projection.candidate.step"]
        if joint < gates:
            widths.append(hidden)
            parts = ["x.projection.gates", "x.projection.candidate"]
            sequences = list(b.ops("Split", [p, b.i64(widths)], parts, axis=2))
        batch = self.cell.batch_dimension
        return sequences, [body.value(n, real, [batch, w]) for n, w in zip(names, widths, strict=False)]

    def _outputs(self, body: Builder, made: Stepped, states: Sequence[State], real: npt.DTypeLike) -> dict[str, Value]:
        """The outputs of the body by the names of the results, as separate values."""
        outputs: dict[str, Value] = {}
        whole = [self.cell.batch_dimension, self.cell.hidden_size]

        def output(value: Value, name: str, dtype: npt.DTypeLike, shape: Sequence[Size]) -> None:
            # Scan needs the rank of its body's outputs inside a Loop.
            if self.names_outputs:
                value = body.op("Identity", [value], name.replace(".last", ".next").replace(".steps", ".step"))
            elif any(v is value for v in outputs.values()):
                value = body.op("Identity", [value], f"{name}.copy")
            if isinstance(value, Variable):
                value.dtype, value.shape = np.dtype(dtype), list(shape)
            outputs[name] = value

        for name, value, state in zip((LAST_HIDDEN, LAST_CELL), made.states, states, strict=False):
            output(value, name, state.dtype, state.shape)
        if self.wanted.y or (self.wanted.codes and made.codes is None):
            output(made.y, HIDDEN_STEPS, np.float32, whole)
        if self.wanted.codes and made.codes is not None:
            output(made.codes, CODES_STEPS, np.uint8, whole)
        if self.wanted.c_steps:
            output(made.c, CELL_STEPS, real, whole)
        return outputs

    def _scan(
        self,
        b: Builder,
        body: Builder,
        inputs: Sequence[Value],
        elements: Sequence[Value],
        outputs: dict[str, Value],
        states: int,
    ) -> Results:
        """Adds the Scan node; returns the requested outputs."""
        sequences = len(inputs) - states
        attributes: dict[str, Any] = {
            "body": body.graph(elements, list(outputs.values()), "step"),
            "num_scan_inputs": sequences,
        }
        if self.scans_backwards:
            attributes["scan_input_directions"] = [1] * sequences
            if len(outputs) > states:
                attributes["scan_output_directions"] = [1] * (len(outputs) - states)
        made = dict(zip(outputs, b.ops("Scan", inputs, list(outputs), **attributes), strict=True))
        if not self.names_outputs:
            for name, value in made.items():
                value.dtype = outputs[name].dtype
        unwanted = {LAST_HIDDEN} if not self.wanted.last_h else set()
        unwanted |= {LAST_CELL} if not self.wanted.last_c else set()
        return {n: v for n, v in made.items() if n not in unwanted}


def _finish(b: Builder, loop: Loop, codes: Value | None, results: Results, arithmetic: Arithmetic) -> None:
    """Writes the outputs of the cell from the results of its loop."""
    cell, at, unit = loop.cell, loop.at, arithmetic.cell_unit

    def write_cell_state(value: Value, target: Value) -> None:
        if unit:
            b.add("Mul", [value, b.f32(unit)], [target], "Y_c")
        else:
            b.add("Identity", [value], [target], "Y_c")

    if at.sequence_lens is None:
        if at.y is not None:
            b.add("Identity", [results[HIDDEN_STEPS]], [at.y], "Y")
        if codes is not None:
            b.add("Identity", [results[CODES_STEPS]], [codes], "Y_codes")
        if at.y_h is not None and loop.wanted.last_h:
            b.add("Identity", [results[LAST_HIDDEN]], [at.y_h], "Y_h")
        elif at.y_h is not None:
            b.add("Gather", [results[HIDDEN_STEPS], b.i64(0 if cell.reverse else -1)], [at.y_h], "Y_h", axis=0)
        if at.y_c is not None:
            write_cell_state(results[LAST_CELL], at.y_c)
        return
    masks = LengthMasks(b, at.sequence_lens, at.x, loop.steps)
    if at.y is not None:
        masked = masks.mask_float(results[HIDDEN_STEPS], "hidden.masked")
        masks.natural_order(masked, b.f32(0.0), at.y, cell.reverse, "Y")
    if codes is not None:
        blank = b.u8(arithmetic.hidden_zero_point)
        masked = masks.mask(results[CODES_STEPS], blank, "codes.masked")
        masks.natural_order(masked, blank, codes, cell.reverse, "Y_codes")
    if at.y_h is not None:
        b.add("Identity", [masks.pick(results[HIDDEN_STEPS], "hidden.picked")], [at.y_h], "Y_h")
    if at.y_c is not None:
        write_cell_state(masks.pick(results[CELL_STEPS], "cell_state.picked"), at.y_c)
