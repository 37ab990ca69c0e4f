"""Reads the nodes of a graph as expressions of `row_algebra`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from rnnqc.ir import Node, Value, attribute, dtype_of, input_or_none, maker_of, shape_of
from rnnqc.passes.graph.loops.loop_states import behind_views
from rnnqc.passes.graph.values.constant_expressions import Constants
from rnnqc.passes.graph.values.index_expressions import Index, Indices
from rnnqc.passes.recover.rows.row_algebra import ONE, Atom, Atoms, Form, Weight
from rnnqc.passes.recover.rows.row_layouts import sliced_columns, split_columns, viewed
from rnnqc.passes.recover.rows.rows import Rows, aligned, broadcast, checked

ACTIVATIONS: dict[str, dict[str, float]] = {
    "Sigmoid": {},
    "Tanh": {},
    "Relu": {},
    "HardSigmoid": {"alpha": 0.2, "beta": 0.5},
    "Softsign": {},
    "Softplus": {},
    "Elu": {"alpha": 1.0},
    "LeakyRelu": {"alpha": 0.01},
    "ThresholdedRelu": {"alpha": 1.0},
}
"""Operators that are activations of ONNX's recurrent operators too, with the defaults of their attributes."""

Side = Rows | npt.NDArray[np.float32]
"""An operand of a sum or product: rows, or a constant that is the same for each row."""


class RowReader:
    """Expressions of the values of one graph; nodes must be visited in order.

    Args:
        constants: The constants of the model.
        shapes: Shapes that shape inference does not provide, by the id of the value.
        first: The number of rows of a loop's states in the first iteration, by the id of the value.
    """

    def __init__(
        self,
        constants: Constants,
        shapes: dict[int, list[int | str | None]] | None = None,
        first: Mapping[int, int | str] | None = None,
    ) -> None:
        self.atoms = Atoms()
        self.constants = constants
        self.shapes = shapes or {}
        self.first = first or {}
        self._rows: dict[int, tuple[Value, Rows | None]] = {}
        self._times_ones: dict[int, Value] = {}
        """Values that are multiplied by ones, by the id of the product."""
        self.indices = Indices(constants, self.shape)

    def shape(self, value: Value | None) -> list[int | str | None] | None:
        """Returns the shape of `value`, as far as it is known."""
        if value is None:
            return None
        held = self._rows.get(id(value))
        if held is not None and held[1] is not None:
            return [*held[1].lead, held[1].width]
        known, told = shape_of(value), self.shapes.get(id(value))
        if known is None or told is None or len(known) != len(told):
            return known if known is not None else told
        return [*known[:-1], known[-1] if isinstance(known[-1], int) else told[-1]]

    def rows(self, value: Value) -> Rows | None:
        """Returns the expression of `value`; a leaf if unknown, None if it has no rows."""
        held = self._rows.get(id(value))
        if held is None:
            held = (value, self._leaf(value))
            self._rows[id(value)] = held
        return held[1]

    def known(self, value: Value) -> Rows | None:
        """Returns the expression of `value` from the visited nodes; None without one."""
        held = self._rows.get(id(value))
        return None if held is None else held[1]

    def _array(self, value: Value) -> npt.NDArray[np.generic] | None:
        """The array of a constant; products of constant states are treated as products."""
        if value.inputs and value.inputs[0].op != "Constant" and self.known(value) is not None:
            return None
        return self.constants.array(value)

    def cut(self, value: Value) -> Atom | None:
        """Makes `value` a leaf: its sources are ignored from here on."""
        held = self.rows(value)
        if held is None:
            return None
        atom = self.atoms.leaf(value, held.width)
        self._rows[id(value)] = (value, Rows(held.lead, (Form(held.width, {atom: ONE}),)))
        return atom

    def visit(self, node: Node) -> None:
        """Records the expressions of a node's outputs."""
        if node.domain:
            return
        made = self._read(node)
        for value, rows in zip(node.outputs, made, strict=False):
            if value.name and rows is not None and rows.width:
                self._rows[id(value)] = (value, rows)
                atom = rows.single
                if atom is not None and atom.value is None:
                    atom.value = value

    def _leaf(self, value: Value) -> Rows | None:
        array = self.constants.array(value)
        if array is not None:
            if array.dtype != np.float32 or array.ndim < 2 or array.shape[-1] == 0:
                return None
            atom = self.atoms.leaf(value, array.shape[-1], self.constants.key(array))
            return checked(array.shape[:-1], (Form(atom.width, {atom: ONE}),))
        shape = self.shape(value)
        if shape is None or len(shape) < 2 or not isinstance(shape[-1], int) or shape[-1] == 0:
            return None
        if dtype_of(value) not in (None, np.dtype(np.float32)):
            return None
        atom = self.atoms.leaf(value, shape[-1])
        return checked(tuple(shape[:-1]), (Form(atom.width, {atom: ONE}),))

    def _read(self, node: Node) -> Sequence[Rows | None]:
        op = node.op
        if op in ("Add", "Sub", "Mul"):
            return [self._arithmetic(node)]
        if op in ("MatMul", "Gemm"):
            return [self._product(node)]
        between = self._between_zero_and(node)
        if between is not None:
            inner = self.rows(between[0])
            return [] if inner is None else [self._hard_sigmoid(inner, np.float32(between[1]))]
        first = input_or_none(node, 0)
        if first is None or self._array(first) is not None:
            return []
        rows = self.rows(first)
        if rows is None:
            return []
        if op in ACTIVATIONS:
            return [self._activation(node, rows)]
        if op in ("Identity", "Dropout", "Cast"):
            same = op != "Cast" or attribute(node, "to", 0) == 1
            return [rows if (same and op != "Dropout") or (input_or_none(node, 2) is None and same) else None]
        if op == "Neg":
            return [rows.times(np.float32(-1))]
        if op == "Div":
            return [self._quotient(node, rows)]
        if op == "Split":
            return split_columns(self.atoms, node, rows, self.indices)
        if op == "Slice":
            return [sliced_columns(self.atoms, node, rows, self.indices)]
        if op == "Concat":
            return [self._concat(node)]
        if op in ("Unsqueeze", "Squeeze", "Reshape", "Transpose", "Flatten"):
            return [viewed(node, rows, self.indices)]
        return []

    def _between_zero_and(self, node: Node) -> tuple[Value, float] | None:
        """The value that `node` clamps to 0 and a number: `Clip(v, 0, 6)`, or Min with 1 and Max with 0 (any order)."""
        if node.op == "Clip":
            low, high = (self._number(input_or_none(node, k)) for k in (1, 2))
            return (node.inputs[0], high) if low == 0 and high is not None and 0 < high < np.inf else None
        limits = {"Min": 1.0, "Max": 0.0}
        value: Value = node.outputs[0]
        while limits:
            made = value.inputs[0] if len(value.inputs) == 1 else None
            if made is None or made.domain or made.op not in limits or len(made.inputs) != 2:
                return None
            limit = limits.pop(made.op)
            held = [v for v in made.inputs if self._number(v) != limit]
            if len(held) != 1 or self.constants.array(held[0]) is not None:
                return None
            (value,) = held
        return value, 1.0

    def _number(self, value: Value | None) -> float | None:
        """The number that a constant of one element holds."""
        array = self.constants.array(value)
        return None if array is None or array.size != 1 else float(array.reshape(-1)[0])

    def _is_unchanged(self, value: Value, factor: Value) -> bool:
        """Whether `factor` is all ones and does not broadcast `value`, as Keras writes a dropout of rate 0."""
        if self.constants.array(factor) is not None or self.constants.uniform(factor) != 1:
            return False
        if _is_shape_of(factor, value):
            return True
        ones, own = self.indices.dimensions(factor), self.indices.dimensions(value)
        if ones is None or own is None or len(ones) > len(own):
            return False
        return all(one in (Index(1), size) for one, size in zip(ones[::-1], own[::-1], strict=False))

    def _without_ones(self, value: Value) -> Value:
        return self._times_ones.get(id(value), value)

    def _arithmetic(self, node: Node) -> Rows | None:
        a, b = node.inputs
        if node.op == "Mul":
            for value, factor in ((a, b), (b, a)):
                if self._is_unchanged(value, factor):
                    self._times_ones[id(node.outputs[0])] = self._without_ones(value)
                    return self.rows(value)
        constants = [self._array(v) for v in (a, b)]
        if all(c is not None for c in constants):
            return None
        sides = [self.rows(v) if c is None else None for v, c in zip((a, b), constants, strict=True)]
        left, right = sides
        if constants[0] is not None:
            return (
                None if right is None else self._combined(node.op, self._constant_side(a, constants[0], right), right)
            )
        if constants[1] is not None:
            return None if left is None else self._combined(node.op, left, self._constant_side(b, constants[1], left))
        return self._combined(node.op, left, right)

    def _quotient(self, node: Node, rows: Rows) -> Rows | None:
        """A quotient by a number: Keras 3 and torch end a hard sigmoid with a division by 6."""
        divisor = self._array(node.inputs[1])
        if divisor is None or divisor.size != 1 or divisor.dtype != np.float32 or not np.all(divisor):
            return None
        return self._combined(
            "Mul", rows, self._constant_side(node.inputs[1], np.float32(1) / np.asarray(divisor, np.float32), rows)
        )

    def _combined(self, op: str, left: Side | None, right: Side | None) -> Rows | None:
        """The sum, difference or product of two operands; None if one is None or their shapes do not match."""
        if left is None or right is None:
            return None
        sign = np.float32(-1 if op == "Sub" else 1)
        if isinstance(left, Rows) and isinstance(right, Rows):
            pair = aligned(self.atoms, left, right)
            if pair is None:
                return None
            lead, forms = pair
            if op == "Mul":
                return Rows(lead, tuple(self.atoms.multiplied(x, y) for x, y in forms))
            return Rows(lead, tuple(x.plus(y.times(sign)) for x, y in forms))
        rows, added = (left, right) if isinstance(left, Rows) else (right, left)
        assert isinstance(rows, Rows) and isinstance(added, np.ndarray)
        dims = broadcast(rows.lead, added.shape[:-1])
        if dims is None:
            return None
        row = np.broadcast_to(added.reshape(-1, added.shape[-1])[0], (rows.width,))
        forms_: list[Form] = []
        low = 0
        for s in rows.segments:
            part = np.ascontiguousarray(row[low : low + s.width])
            low += s.width
            if op == "Mul":
                forms_.append(s.times(part if part.size > 1 and np.any(part != part[0]) else part[0]))
            elif op == "Add":
                forms_.append(s.plus(Form(s.width, {}, part)))
            elif rows is left:
                forms_.append(s.plus(Form(s.width, {}, -part)))
            else:
                forms_.append(s.times(np.float32(-1)).plus(Form(s.width, {}, part)))
        return Rows(dims, tuple(forms_))

    def _constant_side(self, value: Value, array: npt.NDArray[np.generic], rows: Rows) -> Side | None:
        """A constant in a sum or product with `rows`: a number, a row, or a state (one row per row of the batch)."""
        if array.dtype != np.float32:
            return None
        if array.size == 1:
            return np.asarray(array, np.float32).reshape((1,) * max(array.ndim, 1))
        whole = array.reshape(-1, array.shape[-1])
        state = array.ndim >= 2 and array.shape[-1] == rows.width and not all(s.linear for s in rows.segments)
        if state:
            return self.rows(value)
        if array.shape[-1] != rows.width or np.any(whole != whole[0]):
            return self.rows(value)
        return np.asarray(array, np.float32)

    def _product(self, node: Node) -> Rows | None:
        factor = self.constants.array(node.inputs[1])
        if factor is None or factor.ndim != 2 or factor.dtype != np.float32:
            return None
        key = self.constants.key(factor)
        if node.op == "Gemm":
            if attribute(node, "transA", 0):
                return None
            if attribute(node, "transB", 0):
                factor, key = factor.T, (*key, "T")
            alpha = attribute(node, "alpha", 1.0)
            if alpha != 1.0:
                factor, key = np.asarray(factor * np.float32(alpha), np.float32), (*key, "alpha", alpha)
        rows = self._opaque(node.inputs[0], self.rows(node.inputs[0]))
        if rows is None or rows.width != factor.shape[0]:
            rows = self._leaf_of_width(node.inputs[0], factor.shape[0], 2 if node.op == "Gemm" else None)
        if rows is None:
            return None
        width = factor.shape[1]
        total = Form(width)
        low = 0
        for segment in rows.segments:
            atom = segment.single
            if atom is None:
                atom = self.atoms.linear(segment)
                if atom.value is None and len(rows.segments) == 1:
                    atom.value = self._without_ones(node.inputs[0])
            whole_key = key if len(rows.segments) == 1 else (*key, low, low + segment.width)
            weight = Weight(whole_key, factor[low : low + segment.width])
            low += segment.width
            total = total.plus(Form(width, {atom: weight}))
        product = Rows(rows.lead, (total,))
        return self._plus_third(node, product) if node.op == "Gemm" else product

    def _plus_third(self, node: Node, product: Rows) -> Rows | None:
        """The result of a Gemm with the product of its first two operands."""
        third, beta = input_or_none(node, 2), np.float32(attribute(node, "beta", 1.0))
        if third is None or beta == 0:
            return product
        array = self._array(third)
        added = self.rows(third) if array is None else self._constant_side(third, array, product)
        if beta != 1 and added is not None:
            added = (
                Rows(added.lead, tuple(s.times(beta) for s in added.segments))
                if isinstance(added, Rows)
                else added * beta
            )
        return self._combined("Add", product, added)

    def _opaque(self, value: Value, rows: Rows | None) -> Rows | None:
        """The rows of an operand; a leaf if it is a sum of activations and products.

        It may be the state of an unrecognized step: later nodes must not expand it.
        """
        if rows is None or len(rows.segments) != 1 or rows.single is not None or rows.segments[0].linear:
            return rows
        self.cut(value)
        return self.known(value)

    def _leaf_of_width(self, value: Value, width: int, rank: int | None) -> Rows | None:
        """A leaf whose number of columns is only known from the matrix it is multiplied by."""
        if self.constants.array(value) is not None or self.known(value) is not None:
            return None
        if dtype_of(value) not in (None, np.dtype(np.float32)):
            return None
        shape = self.shape(value)
        if shape is None and rank is not None:
            shape = [None, None]
        if shape is None or len(shape) < 2 or isinstance(shape[-1], int):
            return None
        rows = checked(tuple(shape[:-1]), (Form(width, {self.atoms.leaf(value, width): ONE}),))
        self._rows[id(value)] = (value, rows)
        return rows

    def _activation(self, node: Node, rows: Rows) -> Rows:
        defaults = ACTIVATIONS[node.op]
        return self._activated(node.op, {k: float(attribute(node, k, d)) for k, d in defaults.items()}, rows)

    def _hard_sigmoid(self, rows: Rows, high: np.float32) -> Rows:
        """A clamp to 0 and `high`; slope and offset (0.2 and 0.5 in Keras 2) are in the weights.

        Keras 3 and torch write `Clip(v + 3, 0, 6) / 6`.
        """
        if high == 1:
            return self._activated("HardSigmoid", {"alpha": 1.0, "beta": 0.0}, rows)
        return self._activated("HardSigmoid", {"alpha": 1.0, "beta": 0.0}, rows.times(1 / high)).times(high)

    def _activated(self, name: str, parameters: dict[str, float], rows: Rows) -> Rows:
        forms = []
        for segment in rows.segments:
            atom = self.atoms.activation(name, segment, tuple(parameters.items()))
            forms.append(Form(segment.width, {atom: ONE}))
        return Rows(rows.lead, tuple(forms))

    def _concat(self, node: Node) -> Rows | None:
        parts = [self.rows(v) for v in node.inputs]
        if any(p is None for p in parts):
            return None
        known = [p for p in parts if p is not None]
        rank = len(known[0].lead)
        if attribute(node, "axis", 0) not in (-1, rank) or any(len(p.lead) != rank for p in known):
            return None
        lead = known[0].lead
        for part in known[1:]:  # a Concat requires equal sizes, whatever their names
            if any(isinstance(d, int) and isinstance(e, int) and d != e for d, e in zip(lead, part.lead, strict=True)):
                return None
            lead = tuple(e if d is None or isinstance(e, int) else d for d, e in zip(lead, part.lead, strict=True))
        known = [self._opaque(v, p) or p for v, p in zip(node.inputs, known, strict=True)]
        for part, value in zip(known, node.inputs, strict=True):
            if part.single is None and len(part.segments) == 1:
                atom = self.atoms.linear(part.segments[0])
                atom.value = atom.value or self._without_ones(value)
        return checked(lead, tuple(s for p in known for s in p.segments))


def _is_shape_of(filled: Value, value: Value) -> bool:
    """Whether `filled` is an Expand to the shape of `value`, which need not be known."""
    if len(filled.inputs) != 1 or filled.inputs[0].op != "Expand":
        return False
    made = maker_of(behind_views(filled.inputs[0].inputs[1], ("Cast", "Identity")))
    return made is not None and made.op == "Shape" and made.inputs[0] is value and not made.attrs
