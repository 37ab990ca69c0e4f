"""Reads the operands of a custom cell's step: values of its program, and integers that are known at compile time."""

from __future__ import annotations

import numpy as np

from rnnqc.ir import Node, Value, attribute, constant_array, input_or_none
from rnnqc.passes.custom_cells.program.step_program import StepProgram
from rnnqc.passes.custom_cells.program.step_values import Array, StepValue, refusal, whole_numbers


class StepReader:
    """Looks up the inputs of nodes.

    Args:
        opset: The operator set of the model.

    Attributes:
        program: The program so far.
        opset: The operator set of the model.
    """

    def __init__(self, opset: int) -> None:
        self.program = StepProgram()
        self.opset = opset
        self._integers: dict[int, Array] = {}

    # ---- whole numbers that are known ----------------------------------------------------------------------------

    def whole(self, value: Value) -> Array | None:
        """Returns the integers of a value if they are known."""
        if id(value) in self._integers:
            return self._integers[id(value)]
        array = constant_array(value)
        return array if array is not None and array.dtype.kind == "i" else None

    def is_whole(self, node: Node) -> bool:
        """Whether a node computes integers that are known; records them."""
        if node.op == "Shape":
            held = self.of(node, node.inputs[0])
            if held.flat:
                raise refusal(node, "the native library has no instruction for it.")
            shape = np.asarray(held.dims, np.int64)
            made: Array | None = shape[attribute(node, "start", 0) : attribute(node, "end", None)]
        else:
            given = [self.whole(v) for v in node.inputs if v.name]
            arrays = [a for a in given if a is not None]
            made = whole_numbers(node, arrays) if arrays and len(arrays) == len(given) else None
        if made is None or (node.op == "Cast" and attribute(node, "to", 0) not in (6, 7)):
            return False
        self._integers[id(node.outputs[0])] = made
        return True

    def numbers(self, node: Node, position: int, what: str) -> list[int] | None:
        """Returns the integers of an input; None if it is absent.

        Raises:
            NotHandled: They are not known.
        """
        value = input_or_none(node, position)
        if value is None:
            return None
        array = self.whole(value)
        if array is None:
            raise refusal(node, f"{what} is not known.")
        return [int(v) for v in array.ravel()]

    # ---- values ---------------------------------------------------------------------------------------------------

    def of(self, node: Node, value: Value) -> StepValue:
        """Returns the description of a value.

        Raises:
            NotHandled: It is from outside the loop and not constant.
        """
        held = self.program.known(value)
        if held is None:
            raise refusal(node, f"it reads {value.name!r} from outside the loop.")
        return held

    def typed(self, node: Node, position: int, type_: str) -> StepValue:
        """Returns an input that must have the type `type_`."""
        held = self.of(node, node.inputs[position])
        if held.type != type_:
            raise refusal(node, f"{node.inputs[position].name!r} has the type {held.type}.")
        return held

    def rows(self, node: Node, position: int = 0) -> StepValue:
        """Returns an input that must have a row of numbers for each row of the batch."""
        held = self.of(node, node.inputs[position])
        if not held.per_row or len(held.dims) != 2 or held.flat:
            raise refusal(node, f"{node.inputs[position].name!r} is no matrix of rows of the batch.")
        return held

    def operand(self, node: Node, position: int) -> int:
        """Returns the number of an input in the program."""
        return self.program.operand(node, node.inputs[position])
