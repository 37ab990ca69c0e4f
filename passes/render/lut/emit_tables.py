"""Activation tables as values of the main graph, shared by all cells.

A piecewise-linear table is computed from the knots by a few operators, and a large Vitis table is gathered from its
steps. onnxruntime folds both into constants when it creates a session. All other tables are initializers.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from itertools import groupby

import numpy as np
import numpy.typing as npt

from rnnqc.cells.tables import KNOT_UNIT, SEGMENTS, TANH_KNOTS, by_code, piecewise_linear_tanh, signed_codes, table_of
from rnnqc.cells.vitis_tables import ENTRIES, STEP_BITS, UNIT, vitis_ends, vitis_table
from rnnqc.ir import Model, Value, safe_name
from rnnqc.ir.builder import Builder
from rnnqc.passes.fold.fixed_point_tables import FixedPointTable, VitisSteps
from rnnqc.passes.fold.fold_lut import TableSpec, linear_length

PREFIX = "rnnqc/table"
MOST_PLACES = 512
"""Quantized values of a segment in the largest table: 16 bits."""


class Tables:
    """Builds tables in the main graph, each once."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self._made: dict[Hashable, Value] = {}
        self._nodes = 0

    def gate_table(self, specs: Sequence[TableSpec]) -> Value:
        """Returns the concatenated tables, `[N]` float32, each in ascending order of quantized values."""
        parts: list[Value] = []
        for (length, _), group in groupby(specs, lambda s: (_segment_length(s), s.size)):
            if length is None:
                parts += [self._initializer(s, by_code_order=False) for s in group]
            else:
                parts.append(self._expanded(tuple(group), by_code_order=False))
        if len(parts) == 1:
            return parts[0]
        return self._once(tuple(specs), _joined(specs), lambda b, n: b.op("Concat", parts, n, axis=0))

    def cell_table(self, spec: TableSpec) -> Value:
        """Returns float32 `[M]`: entry k for quantized value k, negative quantized values in the upper half."""
        if _segment_length(spec) is None:
            return self._initializer(spec, by_code_order=True)
        return self._expanded((spec,), by_code_order=True)

    def fixed_point_table(self, tables: Sequence[FixedPointTable]) -> Value:
        """Returns the concatenated tables of fixed-point arithmetic, `[N]` float32."""
        if all(t.vitis is None for t in tables):
            return self.model.constant(np.concatenate([t.values for t in tables]), np.float32)
        parts = [self._steps(t.vitis) if t.vitis is not None else self.fixed_point_table([t]) for t in tables]
        if len(parts) == 1:
            return parts[0]
        name = "+".join(v.name.removeprefix(f"{PREFIX}/") for v in parts)
        return self._once(name, name, lambda b, n: b.op("Concat", parts, n, axis=0))

    def _steps(self, table: VitisSteps) -> Value:
        """Returns entry `floor(code * steps per unit)` of the Vitis table, for all quantized values."""
        shift = table.fix_position - STEP_BITS[table.activation]
        below, above = vitis_ends(table.activation)
        entries = np.concatenate([[below], vitis_table(table.activation), [above]])

        def make(b: Builder, name: str) -> Value:
            codes = b.op("Range", [b.i32(table.low), b.i32(table.high + 1), b.i32(1)], f"{name}.codes")
            if shift > 0:
                # Div rounds towards zero, so the dividend must not be negative.
                first = table.low >> shift
                raised = b.op("Sub", [codes, b.i32(first << shift)], "raised")
                steps: Value = b.op("Div", [raised, b.i32(2**shift)], f"{name}.steps")
            else:
                steps = b.op("Mul", [codes, b.i32(2**-shift)], f"{name}.steps") if shift else codes
                first = 0
            index = b.op("Add", [steps, b.i32(first + ENTRIES // 2 + 1)], f"{name}.index")
            inside = b.op(
                "Min", [b.op("Max", [index, b.i32(0)], f"{name}.above"), b.i32(ENTRIES + 1)], f"{name}.inside"
            )
            taken = b.op("Gather", [self.model.constant(entries, np.int16), inside], f"{name}.taken", axis=0)
            return b.op("Mul", [b.cast(taken, np.float32, f"{name}.units"), b.f32(UNIT)], name)

        text = f"vitis_{table.activation.lower()}_{table.fix_position}_{table.low}_{table.high}"
        return self._once(table, safe_name(text), make)

    def _expanded(self, specs: tuple[TableSpec, ...], by_code_order: bool) -> Value:
        """Returns the concatenated tables of specs with equal sizes and equal segments, computed from the knots."""
        name = _joined(specs) + (".by_code" if by_code_order else "")
        return self._once((specs, by_code_order), name, lambda b, n: _emit_expansion(b, specs, by_code_order, n))

    def _initializer(self, spec: TableSpec, by_code_order: bool) -> Value:
        if spec.piecewise_linear:
            scale, offset = _scale_and_offset(spec)
            entries = (
                piecewise_linear_tanh(signed_codes(spec.bits), _knot_steps(spec)).astype(np.float32) * scale + offset
            )
        else:
            activation = spec.activation
            function = activation.residual if activation.kind == "relu_table" else activation
            entries = table_of(lambda x: function(x) / spec.unit, spec.step, spec.bits)
        return self.model.constant(by_code(entries) if by_code_order else entries, np.float32)

    def _once(self, what: Hashable, name: str, make: Callable[[Builder, str], Value]) -> Value:
        """Returns the value with the key `what`, built once. The name alone is not unique."""
        if what not in self._made:
            builder = Builder(self.model, prefix=PREFIX)
            self._made[what] = make(builder, name)
            self._insert(builder)
        return self._made[what]

    def _insert(self, builder: Builder) -> None:
        """Inserts nodes after those of earlier tables, at the start of the main graph."""
        self.model.graph.nodes[self._nodes : self._nodes] = builder.nodes
        self._nodes += len(builder.nodes)


def _emit_expansion(b: Builder, specs: Sequence[TableSpec], by_code_order: bool, name: str) -> Value:
    """Emits the entries `floor(rise * place + start) * scale + offset`, each segment a row.

    onnxruntime takes 40 us and more for each node that it folds, so there are few. `place` is the place within a
    segment, 0 .. `length - 1`, and `rise` that of one place. All steps before the multiplication by `scale` are exact
    in float32: segments have up to 512 quantized values, and knots are at most 2^14. Range has steps of 1: tract
    divides by its step as an integer.
    """
    length = _segment_length(specs[0])
    assert length is not None
    rise, start = _segments(specs[0].size // length, by_code_order)
    if length <= SEGMENTS:
        place: Value = b.f32(np.arange(length))
    else:
        place = b.op("Range", [b.f32(0.0), b.f32(length), b.f32(1.0)], "place")
    rises = b.op("Mul", [b.f32(rise / length), place], "rises")
    rows = b.op("Floor", [b.op("Add", [rises, b.f32(start)], "raised")], "rows")
    scales, offsets = zip(*map(_scale_and_offset, specs), strict=True)
    entries = b.op("Mul", [rows, b.f32(_stacked(scales))], "scaled")
    if any(offsets):
        entries = b.op("Add", [entries, b.f32(_stacked(offsets))], "entries")
    return b.op("Reshape", [entries, b.i64([-1])], name)


def _segments(count: int, by_code_order: bool) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """Returns the rise and the start of `count` segments, those beyond the knots among them, each `[count, 1]`.

    Starts hold what rounds halves away from zero: 1/2 for segments from 0 on, and for others, which begin at the knot
    that is farther from 0, the largest number below 1/2 that the places of every length make a difference of.
    """
    knots = np.pad(np.asarray(TANH_KNOTS, np.float64), (0, count // 2 - SEGMENTS), mode="edge")
    rise = np.diff(knots)
    from_zero = np.stack([rise, knots[:-1] + 0.5])
    below_zero = np.stack([rise[::-1], -knots[:0:-1] + (0.5 - 1 / MOST_PLACES)])
    order = (from_zero, below_zero) if by_code_order else (below_zero, from_zero)
    rises, starts = np.concatenate(order, axis=1).astype(np.float32).reshape(2, -1, 1)
    return rises, starts


def _stacked(values: Sequence[np.float32]) -> npt.NDArray[np.float32]:
    """Returns one value for each table, which has the axes segment and place."""
    return np.asarray(values, np.float32).reshape(-1, 1, 1) if len(values) > 1 else np.asarray(values[0], np.float32)


def _scale_and_offset(spec: TableSpec) -> tuple[np.float32, np.float32]:
    """Returns what tanh in units of the knots is multiplied by, and what is added to it."""
    unit = np.float32(spec.unit)
    if spec.activation.name == "Tanh":
        return np.float32(KNOT_UNIT) / unit, np.float32(0.0)
    return np.float32(KNOT_UNIT / 2) / unit, np.float32(0.5) / unit


def _knot_steps(spec: TableSpec) -> int:
    """Returns the number of quantized values between 0 and the last knot."""
    steps = linear_length(spec.activation, spec.bits, spec.step)
    assert steps is not None
    return steps


def _segment_length(spec: TableSpec) -> int | None:
    """Returns the quantized values of a segment; None if the table is not computed from the knots.

    Only powers of two divide the table into whole segments.
    """
    if not spec.piecewise_linear:
        return None
    length = _knot_steps(spec) // SEGMENTS
    return length if length.bit_count() == 1 else None


def _joined(specs: Sequence[TableSpec]) -> str:
    return "+".join(map(_name, specs))


def _name(spec: TableSpec) -> str:
    text = f"{spec.activation.name.lower()}_{spec.bits}bit_step_{spec.step:.9g}"
    return safe_name(text if spec.unit == 1.0 else f"{text}_unit_{spec.unit:.9g}")
