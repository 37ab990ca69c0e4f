"""Translates the operators of a custom cell's step to instructions of its program."""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate, pairwise

import numpy as np
import onnx

from rnnqc.ir import Graph, Node, attribute, constant_array, info, input_or_none, shape_of, subgraphs
from rnnqc.passes.custom_cells.program.step_calls import CALLS, called
from rnnqc.passes.custom_cells.program.step_program import StepProgram, axis_of
from rnnqc.passes.custom_cells.program.step_reader import StepReader
from rnnqc.passes.custom_cells.program.step_values import (
    BATCH,
    TYPES,
    StepValue,
    depends_on_batch,
    joined_dims,
    refusal,
    small,
)
from rnnqc.passes.graph.values.sequence_elements import TO_THE_END

_BINARY = {
    "Add": ("f32", "f64", "i32"), "Sub": ("f32", "f64", "i32"), "Mul": ("f32", "f64", "i32"), "Div": ("f32", "f64"),
    "Max": ("i32",), "Min": ("i32",),
}  # fmt: skip
_UNARY = {"Neg": "neg", "Abs": "abs", "Floor": "floor", "Round": "round"}
_CASTS = {
    ("f32", "i32"), ("f32", "u8"), ("f32", "f64"), ("f64", "f32"), ("i32", "f32"), ("i32", "f64"), ("i32", "u8"),
    ("u8", "f32"), ("u8", "i32"),
}  # fmt: skip
_WHOLE = (onnx.TensorProto.UINT8, onnx.TensorProto.INT32, onnx.TensorProto.INT64)


def step_program(loop: Node, opset: int) -> StepProgram:
    """Returns the program of a Scan.

    Raises:
        NotHandled: Its body has an operator, a type or a shape that programs do not support.
    """
    count = len(loop.inputs) - attribute(loop, "num_scan_inputs", 1)
    body: Graph = loop.attrs["body"]
    for name in ("scan_input_axes", "scan_output_axes"):
        if any(attribute(loop, name, ())):
            raise refusal(loop, "its elements are not on the first axis.")
    directions = {d for n in ("scan_input_directions", "scan_output_directions") for d in _directions(loop, n, count)}
    if len(directions) > 1:
        raise refusal(loop, "it reads or writes in two directions.")
    writer = _Writer(opset)
    writer.program.begin(loop, body, count)
    for node in body.nodes:
        writer.node(node)
    writer.program.end(loop, body.outputs, count)
    return writer.program


def _directions(loop: Node, name: str, count: int) -> list[int]:
    """Returns the direction of each input or output of a Scan."""
    total = len(loop.inputs) - count if name == "scan_input_directions" else len(loop.attrs["body"].outputs) - count
    return list(attribute(loop, name, [0] * total))


class _Writer(StepReader):
    """Writes a program node by node."""

    def __init__(self, opset: int) -> None:
        super().__init__(opset)
        self._sequences: dict[int, tuple[Node, list[range]]] = {}
        self.handlers: dict[str, Callable[[Node], StepValue | None]] = {
            "Cast": self._cast, "Clip": self._clip, "Concat": self._concat, "DequantizeLinear": self._dequantize,
            "Expand": self._expand, "GatherElements": self._take, "Greater": self._less, "Identity": self._identity,
            "Less": self._less, "MatMulInteger": self._product,
            "QuantizeLinear": self._quantize, "Reshape": self._reshape,
            "SequenceAt": self._at,
            "Slice": self._slice, "Squeeze": self._squeeze, "Unsqueeze": self._unsqueeze, "Where": self._select,
        }  # fmt: skip
        self.handlers |= dict.fromkeys(_BINARY, self._binary)
        self.handlers |= dict.fromkeys(_UNARY, self._unary)

    def node(self, node: Node) -> None:
        """Writes one node."""
        if node.domain or subgraphs(node):
            raise refusal(node, "the native library has no instruction for it.")
        if node.op == "Constant":
            return
        if self.is_whole(node):
            return
        if node.op == "Split":
            for output, columns in zip(node.outputs, self._parts(node), strict=True):
                if columns:
                    self.program.define(output, self._columns(node, columns))
            return
        if node.op == "SplitToSequence":
            self._sequences[id(node.outputs[0])] = node, self._parts(node)
            return
        own = node.op == "Floor" and info(node).proto is None
        if node.op in CALLS and not own:  # a Floor of rnnqc only rounds, where the sign of zero does not matter
            made: StepValue | None = CALLS[node.op](self, node)
        elif node.op in self.handlers:
            made = self.handlers[node.op](node)
        else:
            raise refusal(node, "the native library has no instruction for it.")
        if made is not None:
            self.program.define(node.outputs[0], made)

    def _identity(self, node: Node) -> StepValue:
        held = self.of(node, node.inputs[0])
        return StepValue(held.type, held.dims, self.operand(node, 0), flat=held.flat)

    def _binary(self, node: Node) -> StepValue:
        values = [self.of(node, v) for v in node.inputs]
        first, word = values[0], node.op.lower()
        if len(values) < 2:
            return self._identity(node)
        if first.type not in _BINARY[node.op] or any(v.type != first.type for v in values):
            raise refusal(node, f"its operands have the types {', '.join(v.type for v in values)}.")
        made = values[0]
        index = self.operand(node, 0)
        for position in range(1, len(values)):
            dims = joined_dims(node, [made, values[position]])
            flat = made.flat or values[position].flat
            made = self.program.make(first.type, dims, word, index, self.operand(node, position), flat=flat)
            assert made.index is not None
            index = made.index
        return made

    def _less(self, node: Node) -> StepValue:
        """Translates Less and Greater."""
        values = [self.typed(node, k, "f32") for k in range(2)]
        indices = [self.operand(node, k) for k in range(2)]
        dims, flat = joined_dims(node, values), any(v.flat for v in values)
        return self.program.make("bool", dims, "less", *indices[:: 1 if node.op == "Less" else -1], flat=flat)

    def _unary(self, node: Node) -> StepValue:
        held = self.typed(node, 0, "f32")
        return self.program.make("f32", held.dims, _UNARY[node.op], self.operand(node, 0), flat=held.flat)

    def _clip(self, node: Node) -> StepValue:
        held, largest = self.typed(node, 0, "f32"), float(np.finfo(np.float32).max)
        if self._shows_zeros(node):
            if held.flat or not held.per_row or len(node.inputs) != 3 or not all(v.name for v in node.inputs):
                raise refusal(node, "it does not limit rows on both sides.")
            limits = [self.program.constant(node, v) for v in node.inputs[1:]]
            return self.program.make("f32", held.dims, *called(self, node), self.operand(node, 0), *limits)
        bounds = []
        for position, absent in ((1, -largest), (2, largest)):
            if input_or_none(node, position) is None:
                bounds.append(self.program.number("f32", absent))
                continue
            if self.typed(node, position, "f32").columns != 1:
                raise refusal(node, "a bound is no number.")
            bounds.append(self.operand(node, position))
        return self.program.make("f32", held.dims, "clip", self.operand(node, 0), *bounds, flat=held.flat)

    def _shows_zeros(self, node: Node) -> bool:
        """Whether the sign of a zero from a Clip at zero matters: only onnxruntime's kernel defines it."""
        bounds = [v for v in node.inputs[1:] if v.name]
        if not any((b := constant_array(v)) is None or not b.all() for v in bounds):
            return False
        readers = [(node.outputs[0], n) for n in node.outputs[0].outputs]
        while readers:
            value, reader = readers.pop()
            if reader.op == "Cast" and attribute(reader, "to", 1) in _WHOLE:
                continue
            scaled = reader.op == "Mul" and any(constant_array(v) is not None for v in reader.inputs if v is not value)
            if not scaled:
                return True
            readers += [(reader.outputs[0], n) for n in reader.outputs[0].outputs]
        return False

    def _cast(self, node: Node) -> StepValue:
        held = self.of(node, node.inputs[0])
        name = onnx.helper.tensor_dtype_to_np_dtype(attribute(node, "to", 1)).name
        type_ = TYPES.get(name, name)
        if held.type == type_:
            return self._identity(node)
        if (held.type, type_) == ("bool", "f32"):
            chosen = [self.program.number("f32", v) for v in (1.0, 0.0)]
            return self.program.make("f32", held.dims, "select", self.operand(node, 0), *chosen, flat=held.flat)
        if (held.type, type_) not in _CASTS:
            raise refusal(node, f"from {held.type} to {type_}.")
        return self.program.make(type_, held.dims, f"to_{type_}", self.operand(node, 0), flat=held.flat)

    def _expand(self, node: Node) -> StepValue:
        held, shape = self.of(node, node.inputs[0]), self.numbers(node, 1, "its shape")
        if held.array is None or held.array.size != 1 or shape != [BATCH]:
            raise refusal(node, "it repeats more than one constant number for each row.")
        return StepValue(held.type, (BATCH,), self.operand(node, 0), array=held.array)

    def _quantize(self, node: Node) -> StepValue:
        held = self.rows(node)
        self.typed(node, 0, "f32")
        scale = self.typed(node, 1, "f32")
        zero = self.of(node, node.inputs[2]) if input_or_none(node, 2) is not None else None
        self._check_scale(node, scale, axis_of(node, "axis", 1))
        if zero is None:
            index = self.program.number("u8", 0)
        elif zero.type == "u8" and zero.array is not None and zero.array.size == 1:
            index = self.program.number("u8", zero.array.item())
        else:
            raise refusal(node, "its zero point is no constant byte.")
        if attribute(node, "block_size", 0) or attribute(node, "output_dtype", 0) not in (0, onnx.TensorProto.UINT8):
            raise refusal(node, "it makes no bytes of rows.")
        return self.program.make("u8", held.dims, "quantize", self.operand(node, 0), self.operand(node, 1), index)

    def _check_scale(self, node: Node, scale: StepValue, axis: int) -> None:
        """Checks that there is one scale, or one for each row."""
        of_rows = scale.dims == (BATCH,) and axis == 0
        if not of_rows and (scale.per_row or scale.columns != 1):
            raise refusal(node, "its scales are those of columns.")

    def _dequantize(self, node: Node) -> StepValue:
        held = self.rows(node)
        scale = self.typed(node, 1, "f32")
        self._check_scale(node, scale, axis_of(node, "axis", 1))
        if held.type != "i32" or input_or_none(node, 2) is not None or attribute(node, "block_size", 0):
            raise refusal(node, f"it reads {held.type}, or has a zero point.")
        real = self.program.line("to_f32", self.operand(node, 0))
        return self.program.make("f32", held.dims, "mul", real, self.operand(node, 1))

    def _product(self, node: Node) -> StepValue:
        held = self.rows(node)
        self.typed(node, 0, "u8")
        if held.array is not None:
            raise refusal(node, "its left operand is constant.")
        matrix, array = self.program.matrix(node, node.inputs[1])
        if held.columns != array.shape[0]:
            raise refusal(node, f"it multiplies {held.columns} columns with {array.shape[0]} rows.")
        zeros = []
        for position, columns in ((2, 1), (3, array.shape[1])):
            if input_or_none(node, position) is None:
                zeros.append(self.program.number("u8", 0))
                continue
            zero = self.typed(node, position, "u8")
            if zero.array is None or zero.array.size not in (1, columns):
                raise refusal(node, "a zero point is not constant.")
            zeros.append(self.operand(node, position))
        return self.program.make(
            "i32", (BATCH, array.shape[1]), "product", self.operand(node, 0), matrix, zeros[0], zeros[1]
        )

    def _take(self, node: Node) -> StepValue:
        table, held = self.typed(node, 0, "f32"), self.typed(node, 1, "i32")
        if table.array is None or table.array.ndim != 1 or table.array.size < 2 or not held.flat:
            raise refusal(node, "it does not take entries of a constant table of one dimension.")
        made = ("take", self.operand(node, 0), self.operand(node, 1))
        return self.program.make("f32", held.dims, *made, flat=True)

    def _select(self, node: Node) -> StepValue:
        values = [self.of(node, v) for v in node.inputs]
        if [v.type for v in values] != ["bool", "f32", "f32"] or not values[0].per_row:
            raise refusal(node, f"its operands have the types {', '.join(v.type for v in values)}.")
        dims = joined_dims(node, values)
        flat = any(v.flat for v in values)
        if values[1].dims != values[2].dims:  # the sign of a zero depends on their broadcasting
            if flat or len(dims) != 2:
                raise refusal(node, "its operands have different shapes.")
            indices = [
                self.operand(node, k) if v.per_row else self.program.constant(node, node.inputs[k])
                for k, v in enumerate(values)
            ]
            return self.program.make("f32", dims, *called(self, node), *indices)
        return self.program.make("f32", dims, "select", *(self.operand(node, k) for k in range(3)), flat=flat)

    # ---- shapes -----------------------------------------------------------------------------------------------------

    def _slice(self, node: Node) -> StepValue:
        held = self.rows(node)
        starts, ends = self.numbers(node, 1, "its start"), self.numbers(node, 2, "its end")
        axes, steps = self.numbers(node, 3, "its axis"), self.numbers(node, 4, "its step")
        if starts is None or ends is None:
            raise refusal(node, "it does not take columns of rows.")
        columns = range(held.columns)
        axes, steps = axes or list(range(len(starts))), steps or [1] * len(starts)
        for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
            if axis % 2 == 1:
                low, high = (small(node, v, "a bound") for v in (start, end))
                columns = columns[slice(low, high, small(node, step, "its step"))]
            elif (start, step) != (0, 1) or not self._is_all_rows(node, end):
                raise refusal(node, "it takes some of the rows.")
        if not columns:
            raise refusal(node, "it takes no columns.")
        return self._columns(node, columns)

    @staticmethod
    def _is_all_rows(node: Node, end: int) -> bool:
        """Whether a Slice from the first row to `end` takes all rows."""
        rows = (shape_of(node.inputs[0]) or [None])[0]
        far = end >= TO_THE_END and not depends_on_batch(end)
        return end == BATCH or far or (isinstance(rows, int) and end >= rows)

    def _columns(self, node: Node, columns: range) -> StepValue:
        held = self.rows(node)
        words = ("slice", self.operand(node, 0), columns.start, len(columns), columns.step)
        return self.program.make(held.type, (BATCH, len(columns)), *words)

    def _parts(self, node: Node) -> list[range]:
        """Returns the columns of each part of a Split or SplitToSequence."""
        total = self.rows(node).columns
        if axis_of(node, "axis", 0) != 1:
            raise refusal(node, "it does not split rows.")
        sizes = self.numbers(node, 1, "a size")
        if node.op == "SplitToSequence":
            if sizes is None:
                raise refusal(node, "it makes no parts of several columns.")
            given = self.whole(node.inputs[1])
            even = 0 if given is None or given.ndim else max(sizes[0], 1)
        else:
            even = 0 if sizes else -(-total // len(node.outputs))
        ends = [*range(even, total, even), total] if even else list(accumulate(sizes or []))
        parts = [range(low, high) for low, high in pairwise([0, *ends])]
        empty = [not p and (node.op != "Split" or bool(node.outputs[k].outputs)) for k, p in enumerate(parts)]
        if any(empty) or ends[-1] > total or (node.op == "Split" and len(parts) != len(node.outputs)):
            raise refusal(node, f"its parts have {[len(p) for p in parts]} columns.")
        return parts

    def _at(self, node: Node) -> StepValue:
        """Translates SequenceAt of the output of a SplitToSequence."""
        maker, parts = self._sequences.get(id(node.inputs[0]), (node, []))
        at = self.numbers(node, 1, "its position")
        if at is None or not -len(parts) <= at[0] < len(parts):
            raise refusal(node, "it does not take a part that a SplitToSequence makes.")
        return self._columns(maker, parts[at[0]])

    def _concat(self, node: Node) -> StepValue:
        values = [self.rows(node, k) for k in range(len(node.inputs))]
        if axis_of(node, "axis", 0) != 1 or any(v.type != values[0].type for v in values):
            raise refusal(node, "it does not join columns of one type.")
        indices = [self.operand(node, k) for k in range(len(values))]
        return self.program.make(values[0].type, (BATCH, sum(v.columns for v in values)), "concat", *indices)

    def _reshape(self, node: Node) -> StepValue:
        held, shape = self.of(node, node.inputs[0]), self.numbers(node, 1, "its shape")
        if not held.per_row or len(held.dims) != 2 or attribute(node, "allowzero", 0):
            raise refusal(node, "the native library has no instruction for it.")
        index = self.operand(node, 0)
        if shape == [-1]:
            return StepValue(held.type, held.dims, index, flat=True)
        whole = shape is not None and len(shape) == 2 and shape[1] in (held.columns, -1)
        if whole and shape is not None and (shape[0] in (BATCH, -1) or (shape[0] == 0 and not held.flat)):
            return StepValue(held.type, held.dims, index)
        raise refusal(node, "it makes other rows.")

    def _unsqueeze(self, node: Node) -> StepValue:
        held, axes = self.of(node, node.inputs[0]), self.numbers(node, 1, "its axis")
        if held.dims != (BATCH,) or axes not in ([1], [-1]):
            raise refusal(node, "it makes no column.")
        return StepValue(held.type, (BATCH, 1), self.operand(node, 0))

    def _squeeze(self, node: Node) -> StepValue:
        held, axes = self.of(node, node.inputs[0]), self.numbers(node, 1, "its axis")
        if held.dims != (BATCH, 1) or held.flat or axes not in ([1], [-1]):
            raise refusal(node, "it removes no column.")
        return StepValue(held.type, (BATCH,), self.operand(node, 0))
