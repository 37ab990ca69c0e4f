"""The program of a custom cell's step, which the native library runs instead of the loop."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field

from rnnqc.ir import Graph, Node, Value, attribute, constant_array, dtype_of, shape_of
from rnnqc.passes.custom_cells.program.step_values import BATCH, MOST_COLUMNS, TYPES, Array, Dims, StepValue, refusal

_FORMATS = {"f32": "f", "f64": "d", "i32": "i", "u8": "B", "bool": "?"}


@dataclass
class StepProgram:
    """A program under construction.

    Attributes:
        lines: One line for each value, then the lists of next states and of outputs.
        constants: The constant inputs of the node, after states and inputs, in order.
        columns: The number of columns of each output of the body.
    """

    lines: list[str] = field(default_factory=list)
    constants: list[Value] = field(default_factory=list)
    columns: list[int] = field(default_factory=list)
    _values: dict[int, StepValue] = field(default_factory=dict)
    _held: dict[tuple[int, str], int] = field(default_factory=dict)
    _keep: list[Value] = field(default_factory=list)
    _count: int = 0

    @property
    def text(self) -> str:
        """The text of the node's attribute."""
        return "\n".join(self.lines)

    def define(self, value: Value, held: StepValue) -> None:
        """Records the type, shape and number of `value`."""
        self._values[id(value)] = held
        self._keep.append(value)

    def known(self, value: Value) -> StepValue | None:
        """Returns the description of a value; None for a value from outside that is not constant."""
        held = self._values.get(id(value))
        if held is None:
            array = constant_array(value)
            if array is None:
                return None
            held = StepValue(TYPES.get(array.dtype.name, array.dtype.name), array.shape, array=array)
            self.define(value, held)
        return held

    def line(self, *words: object) -> int:
        """Adds an instruction; returns the number of its value."""
        self.lines.append(" ".join(map(str, words)))
        self._count += 1
        return self._count - 1

    def make(self, type_: str, dims: Dims, *words: object, flat: bool = False) -> StepValue:
        """Adds an instruction; returns its value."""
        return StepValue(type_, dims, self.line(*words), flat=flat)

    def number(self, type_: str, value: float) -> int:
        """Returns the number of a value that holds a scalar."""
        bits = int.from_bytes(struct.pack(f"<{_FORMATS[type_]}", value), "little")
        key = (bits, type_)
        if key not in self._held:
            self._held[key] = self.line("number", type_, f"{bits:x}")
        return self._held[key]

    def operand(self, node: Node, value: Value) -> int:
        """Returns the number of a value in the program; the first read of a constant adds it.

        Raises:
            NotHandled: No instruction can read it.
        """
        held = self.known(value)
        if held is None:
            raise refusal(node, f"it reads {value.name!r} from outside the loop.")
        if held.index is not None:
            return held.index
        if held.type not in _FORMATS or held.array is None:
            raise refusal(node, f"{value.name!r} has the type {held.type}.")
        if held.array.size == 1:
            return self.number(held.type, held.array.item())
        if held.columns != (held.dims or (1,))[-1] or held.columns > MOST_COLUMNS or held.per_row:
            raise refusal(node, f"{value.name!r} has the shape {list(held.dims)}.")
        return self._constant(value, "constant", held.type, held.columns)

    def constant(self, node: Node, value: Value) -> int:
        """Returns the number of a constant that is passed to the node, even if it is a scalar.

        Raises:
            NotHandled: It is not a constant row of numbers.
        """
        held = self.known(value)
        if held is None or held.array is None or held.columns != (held.dims or (1,))[-1]:
            raise refusal(node, f"{value.name!r} is no constant row of numbers.")
        return self._constant(value, "constant", held.type, held.columns)

    def matrix(self, node: Node, value: Value) -> tuple[int, Array]:
        """Returns the number of a constant uint8 matrix, and its array.

        Raises:
            NotHandled: It is not a constant uint8 matrix of a supported size.
        """
        held = self.known(value)
        if held is None or held.array is None or held.array.ndim != 2 or held.type != "u8":
            raise refusal(node, "its right operand is no constant matrix of bytes.")
        depth, columns = held.array.shape
        if not 0 < depth <= 2**16 or not 0 < columns <= MOST_COLUMNS:
            raise refusal(node, f"its matrix has the shape {[depth, columns]}.")
        return self._constant(value, "matrix", held.type, depth, columns), held.array

    def _constant(self, value: Value, *words: object) -> int:
        key = (id(value), str(words[0]))
        if key not in self._held:
            self.constants.append(value)
            self._held[key] = self.line(*words)
        return self._held[key]

    def begin(self, node: Node, body: Graph, count: int) -> None:
        """Adds states and inputs.

        Raises:
            NotHandled: One has an unsupported type or shape.
        """
        batches = set()
        for position, (value, outer) in enumerate(zip(body.inputs, node.inputs, strict=True)):
            is_state = position < count
            shape = shape_of(value) or (shape_of(outer) or [])[0 if is_state else 1 :]
            kind = dtype_of(value) or dtype_of(outer)
            type_ = TYPES.get(kind.name, kind.name) if kind is not None else ""
            if type_ not in (("f32",) if is_state else ("f32", "bool")):
                raise refusal(node, f"{value.name!r} has the type {type_ or 'that is not known'}.")
            columns = shape[1] if len(shape) == 2 else None
            if not isinstance(columns, int) or not 0 < columns <= MOST_COLUMNS:
                raise refusal(node, f"{value.name!r} has the shape {list(shape)}.")
            outside = shape_of(outer)
            size = None if outside is None else outside[0 if is_state else 1]
            batches |= {size} - {None}
            index = self.line("state" if is_state else "input", type_, columns)
            self.define(value, StepValue(type_, (BATCH, columns), index))
        if len({b for b in batches if isinstance(b, int)}) > 1 or (1 in batches and len(batches) > 1):
            raise refusal(node, "the sizes of the batch differ.")

    def end(self, node: Node, outputs: Sequence[Value], count: int) -> None:
        """Adds the lists of next states and of outputs.

        Raises:
            NotHandled: One has an unsupported type or shape.
        """
        indices = []
        for value in outputs:
            held = self.known(value)
            if held is None or held.type != "f32" or not held.per_row or len(held.dims) != 2 or held.index is None:
                raise refusal(node, f"its body makes {value.name!r}, which has no row for each of the batch.")
            indices.append(held.index)
            self.columns.append(held.columns)
        self.lines.append(" ".join(map(str, ["next", *indices[:count]])))
        if indices[count:]:
            self.lines.append(" ".join(map(str, ["output", *indices[count:]])))


def axis_of(node: Node, name: str, default: int) -> int:
    """Returns an axis attribute of a matrix as 0 or 1."""
    return int(attribute(node, name, default)) % 2
