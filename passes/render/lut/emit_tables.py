"""Activation tables as values of the main graph, shared by all cells.

A piecewise-linear table joins the halves that a call of the model-local function `ai.rnnqc::ActivationTable` computes
from the knots. A large Vitis table is gathered from its steps. onnxruntime folds both into constants when it creates a
session. All other tables are initializers.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence

import numpy as np
import onnx

from rnnqc.cells.fused_nodes import FUNCTION, FUNCTION_INPUTS, FUNCTION_OUTPUTS
from rnnqc.cells.tables import KNOT_UNIT, SEGMENTS, TANH_KNOTS, by_code, table_of
from rnnqc.cells.vitis_tables import ENTRIES, STEP_BITS, UNIT, vitis_ends, vitis_table
from rnnqc.ir import DOMAIN, Model, Value, Variable, safe_name
from rnnqc.ir.builder import Builder, body_nodes
from rnnqc.passes.fold.fixed_point_tables import FixedPointTable, VitisSteps
from rnnqc.passes.fold.fold_lut import TableSpec, linear_length

PREFIX = "rnnqc/table"


class Tables:
    """Builds tables in the main graph, each once.

    Args:
        model: The model whose main graph gets the tables.
        functions: Whether to call `ActivationTable` or to inline its nodes.
    """

    def __init__(self, model: Model, *, functions: bool = True) -> None:
        self.model = model
        self.functions = functions
        self._made: dict[Hashable, Value] = {}
        self._halves_made: dict[TableSpec, tuple[Value, Value]] = {}
        self._nodes = 0

    def gate_table(self, specs: Sequence[TableSpec]) -> Value:
        """Returns the concatenated tables, `[N]` float32, each in ascending order of quantized values."""
        if len(specs) == 1 and not specs[0].piecewise_linear:
            return self._initializer(specs[0], by_code_order=False)
        name = "+".join(_name(s) for s in specs)

        def make(b: Builder, name: str) -> Value:
            parts: list[Value] = []
            for spec in specs:
                if spec.piecewise_linear:
                    from_zero, below_zero = self._halves(spec)
                    parts += [below_zero, from_zero]
                else:
                    parts.append(self._initializer(spec, by_code_order=False))
            return b.op("Concat", parts, name, axis=0)

        return self._once(tuple(specs), name, make)

    def cell_table(self, spec: TableSpec) -> Value:
        """Returns float32 `[M]`: entry k for quantized value k, negative quantized values in the upper half."""
        if not spec.piecewise_linear:
            return self._initializer(spec, by_code_order=True)
        return self._once(spec, f"{_name(spec)}.by_code", lambda b, n: b.op("Concat", self._halves(spec), n, axis=0))

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
                raised = b.op("Sub", [codes, b.i32(first << shift)], f"{name}.raised")
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

    def _halves(self, spec: TableSpec) -> tuple[Value, Value]:
        """Returns the entries for quantized values from 0 on and those for negative ones, each in ascending order."""
        if spec not in self._halves_made:
            builder = Builder(self.model, prefix=PREFIX)
            self._halves_made[spec] = self._call(builder, spec, _name(spec))
            self._insert(builder)
        return self._halves_made[spec]

    def _call(self, b: Builder, spec: TableSpec, name: str) -> tuple[Value, Value]:
        n = linear_length(spec.activation, spec.bits, spec.step)
        assert n is not None
        unit = np.float32(spec.unit)
        tanh = spec.activation.name == "Tanh"
        scale = np.float32(KNOT_UNIT if tanh else KNOT_UNIT / 2) / unit
        offset = np.float32(0.0 if tanh else 0.5) / unit
        knots = np.asarray(TANH_KNOTS, np.int32).reshape(-1, 1)
        segments = [b.i32(knots[:-1]), b.i32(np.diff(knots, axis=0))]
        padding = b.i64([0, spec.size // 2 - n + 1])
        inputs = [*segments, b.i32(n // SEGMENTS), padding, b.f32(scale), b.f32(offset)]
        if not self.functions:
            inner = Builder(self.model, prefix=f"{b.prefix}/{name}")
            results = _emit_halves(inner, inputs)
            b.nodes += inner.nodes
            return results
        from_zero, below_zero = (b.value(f"{name}.{part}") for part in FUNCTION_OUTPUTS)
        b.add(FUNCTION, inputs, [from_zero, below_zero], name, domain=DOMAIN)
        if not any((f.domain, f.name) == (DOMAIN, FUNCTION) for f in self.model.functions):
            self.model.functions.append(table_function(self.model.opset))
        return from_zero, below_zero

    def _initializer(self, spec: TableSpec, by_code_order: bool) -> Value:
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


def table_function(opset: int) -> onnx.FunctionProto:
    """`ActivationTable(low [64,1], rise [64,1], length, padding [2], scale, offset) -> from_zero [N], below_zero [N]`.

    Computes `scale * T(k) + offset` for the quantized values `0 <= k < N` and `-N <= k < 0`, where T is the
    piecewise-linear tanh of docs/quant_lstm_cell.md, "The default tables", in units of the knots. `low` is the first
    knot of each segment, `rise` the difference to the next knot, `length` the number of quantized values per segment,
    `padding` 0 and `N + 1 - 64 * length`. Everything before the multiplication by `scale` is integer.
    """
    proto = onnx.ModelProto(ir_version=10)
    proto.opset_import.add(domain="", version=opset)
    proto.graph.name = "scratch"
    scratch = Model(proto)
    scratch.constant_prefix = ""
    b = Builder(scratch)
    halves = _emit_halves(b, [Variable(name) for name in FUNCTION_INPUTS])
    function = onnx.FunctionProto(domain=DOMAIN, name=FUNCTION)
    function.doc_string = (
        "Halves of a piecewise-linear activation table: scale * T(k) + offset for k >= 0 and for k < 0."
    )
    function.input.extend(FUNCTION_INPUTS)
    function.output.extend(v.name for v in halves)
    function.opset_import.add(domain="", version=opset)
    function.node.extend(body_nodes(b.nodes))
    return function


def _emit_halves(b: Builder, inputs: Sequence[Value]) -> tuple[Variable, Variable]:
    """Emits the nodes of `ActivationTable`.

    onnxruntime takes 40 us for each node that it folds, so there are few: T is odd, and each segment is a row.
    """
    low, rise, length, padding, scale, offset = inputs
    place = b.op("Range", [b.i32(0), length, b.i32(1)], "place")
    raised = b.op("Add", [b.op("Mul", [rise, place], "rises"), b.op("Div", [length, b.i32(2)], "half")], "raised")
    rows = b.op("Add", [b.op("Div", [raised, length], "parts"), low], "rows")
    inside = b.op("Reshape", [rows, b.i64([-1])], "inside")
    magnitudes = b.op("Pad", [inside, padding, b.i32(TANH_KNOTS[-1])], "magnitudes")
    scaled = b.op("Mul", [b.cast(magnitudes, np.float32, "magnitudes.float"), scale], "scaled")
    rising = b.op("Slice", [scaled, b.i64([0]), b.i64([-1])], "rising")
    falling = b.op("Slice", [scaled, *(b.i64([i]) for i in (-1, 0, 0, -1))], "falling")
    return b.op("Add", [rising, offset], FUNCTION_OUTPUTS[0]), b.op("Sub", [offset, falling], FUNCTION_OUTPUTS[1])


def _name(spec: TableSpec) -> str:
    text = f"{spec.activation.name.lower()}_{spec.bits}bit_step_{spec.step:.9g}"
    return safe_name(text if spec.unit == 1.0 else f"{text}_unit_{spec.unit:.9g}")
