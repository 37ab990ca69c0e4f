"""Activation tables as values of the main graph, shared by all cells.

A piecewise-linear table is a call of the model-local function `ai.rnnqc::ActivationTable` on the 65 knots, a large
Vitis table a look-up in its steps. onnxruntime folds both into constants when a session is created. Any other table is
an initializer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import onnx

from rnnqc.cells.fused_nodes import FUNCTION, FUNCTION_INPUTS
from rnnqc.cells.tables import KNOT_UNIT, SEGMENTS, TANH_KNOTS, by_code, table_of
from rnnqc.cells.vitis_tables import ENTRIES, STEP_BITS, UNIT, vitis_ends, vitis_table
from rnnqc.ir import DOMAIN, Model, Value, Variable, safe_name
from rnnqc.ir.builder import Builder, body_nodes
from rnnqc.passes.fold.fixed_point_tables import FixedPointTable, VitisSteps
from rnnqc.passes.fold.fold_lut import TableSpec, linear_length

PREFIX = "rnnqc/table"


class Tables:
    """Makes tables in the main graph, each once.

    Args:
        model: The model whose main graph gets the tables.
        functions: Whether to call `ActivationTable` or to write its nodes out.
    """

    def __init__(self, model: Model, *, functions: bool = True) -> None:
        self.model = model
        self.functions = functions
        self._made: dict[str, Value] = {}
        self._nodes = 0

    def gate_table(self, specs: Sequence[TableSpec]) -> Value:
        """The tables one after the other, `[N]` float32, quantized values in ascending order."""
        parts = [self._ascending(s) for s in specs]
        if len(parts) == 1:
            return parts[0]
        name = "+".join(_name(s) for s in specs)
        return self._once(name, lambda b, n: b.op("Concat", parts, n, axis=0))

    def cell_table(self, spec: TableSpec) -> Value:
        """`[M]` float32, entry k for quantized value k, negative quantized values in the upper half."""
        if not spec.piecewise_linear:
            return self._initializer(spec, by_code_order=True)
        half = spec.size // 2

        def make(b: Builder, name: str) -> Value:
            parts = [
                self._call(b, spec, 0, half, f"{name}.from_zero"),
                self._call(b, spec, -half, 0, f"{name}.below_zero"),
            ]
            return b.op("Concat", parts, name, axis=0)

        return self._once(f"{_name(spec)}.by_code", make)

    def fixed_point_table(self, tables: Sequence[FixedPointTable]) -> Value:
        """The tables of fixed-point arithmetic one after the other, `[N]` float32."""
        if all(t.vitis is None for t in tables):
            return self.model.constant(np.concatenate([t.values for t in tables]), np.float32)
        parts = [self._steps(t.vitis) if t.vitis is not None else self.fixed_point_table([t]) for t in tables]
        if len(parts) == 1:
            return parts[0]
        name = "+".join(v.name.removeprefix(f"{PREFIX}/") for v in parts)
        return self._once(name, lambda b, n: b.op("Concat", parts, n, axis=0))

    def _steps(self, table: VitisSteps) -> Value:
        """Entry `floor(code * steps per unit)` of the Vitis table, for all quantized values."""
        shift = table.fix_position - STEP_BITS[table.activation]
        below, above = vitis_ends(table.activation)
        entries = np.concatenate([[below], vitis_table(table.activation), [above]])

        def make(b: Builder, name: str) -> Value:
            codes = b.op("Range", [b.i32(table.low), b.i32(table.high + 1), b.i32(1)], f"{name}.codes")
            if shift > 0:
                # Div cuts towards zero: what it divides must not be negative.
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
        return self._once(safe_name(text), make)

    def _ascending(self, spec: TableSpec) -> Value:
        if not spec.piecewise_linear:
            return self._initializer(spec, by_code_order=False)
        half = spec.size // 2
        return self._once(_name(spec), lambda b, n: self._call(b, spec, -half, half, n))

    def _call(self, b: Builder, spec: TableSpec, first: int, end: int, name: str) -> Value:
        n = linear_length(spec.activation, spec.bits, spec.step)
        assert n is not None
        unit = np.float32(spec.unit)
        tanh = spec.activation.name == "Tanh"
        scale = np.float32(KNOT_UNIT if tanh else KNOT_UNIT / 2) / unit
        offset = np.float32(0.0 if tanh else 0.5) / unit
        knots = self.model.constant(np.asarray(TANH_KNOTS), np.int32)
        inputs = [knots, b.i32(first), b.i32(end), b.i32(n), b.f32(scale), b.f32(offset)]
        if not self.functions:
            inner = Builder(self.model, prefix=f"{b.prefix}/{name}")
            result = _emit_entries(inner, inputs)
            b.nodes += inner.nodes
            return result
        result = b.value(name, np.float32, [None])
        b.add(FUNCTION, inputs, [result], name, domain=DOMAIN)
        if not any((f.domain, f.name) == (DOMAIN, FUNCTION) for f in self.model.functions):
            self.model.functions.append(table_function(self.model.opset))
        return result

    def _initializer(self, spec: TableSpec, by_code_order: bool) -> Value:
        activation = spec.activation
        function = activation.residual if activation.kind == "relu_table" else activation
        entries = table_of(lambda x: function(x) / spec.unit, spec.step, spec.bits)
        return self.model.constant(by_code(entries) if by_code_order else entries, np.float32)

    def _once(self, name: str, make: Callable[[Builder, str], Value]) -> Value:
        full = f"{PREFIX}/{name}"
        if full not in self._made:
            builder = Builder(self.model, prefix=PREFIX)
            self._made[full] = make(builder, name)
            self.model.graph.nodes[self._nodes : self._nodes] = builder.nodes
            self._nodes += len(builder.nodes)
        return self._made[full]


def table_function(opset: int) -> onnx.FunctionProto:
    """`ActivationTable(knots, first, end, n, scale, offset) -> table [end - first]`.

    `scale * T(k) + offset` for the quantized values `first <= k < end`, where T is the piecewise-linear tanh of
    docs/quant_lstm_cell.md, "The default tables", in units of the knots. Everything but the last two operations is
    in int32.
    """
    proto = onnx.ModelProto(ir_version=10)
    proto.opset_import.add(domain="", version=opset)
    proto.graph.name = "scratch"
    scratch = Model(proto)
    scratch.constant_prefix = ""
    b = Builder(scratch)
    table = _emit_entries(b, [Variable(name) for name in FUNCTION_INPUTS])
    function = onnx.FunctionProto(domain=DOMAIN, name=FUNCTION)
    function.doc_string = "Entries of a piecewise-linear activation table: scale * T(k) + offset for first <= k < end."
    function.input.extend(FUNCTION_INPUTS)
    function.output.append(table.name)
    function.opset_import.add(domain="", version=opset)
    function.node.extend(body_nodes(b.nodes))
    return function


def _emit_entries(b: Builder, inputs: Sequence[Value]) -> Variable:
    """The nodes of `ActivationTable`."""
    knots, first, end, n, scale, offset = inputs
    length = b.op("Div", [n, b.i32(SEGMENTS)], "length")
    codes = b.op("Range", [first, end, b.i32(1)], "codes")
    u = b.op("Min", [b.constant_size(codes, "size"), n], "u")
    segment = b.op("Min", [b.op("Div", [u, length], "quotient"), b.i32(SEGMENTS - 1)], "segment")
    v = b.op("Sub", [u, b.op("Mul", [segment, length], "start")], "v")
    low = b.op("Gather", [knots, segment], "low", axis=0)
    high = b.op("Gather", [knots, b.op("Add", [segment, b.i32(1)], "next")], "high", axis=0)
    rise = b.op("Mul", [b.op("Sub", [high, low], "difference"), v], "rise")
    half = b.op("Div", [length, b.i32(2)], "half")
    part = b.op("Div", [b.op("Add", [rise, half], "rise.raised"), length], "part")
    signed = b.op("Mul", [b.op("Sign", [codes], "sign"), b.op("Add", [low, part], "magnitude")], "T")
    scaled = b.op("Mul", [b.cast(signed, np.float32, "T.float"), scale], "T.scaled")
    return b.op("Add", [scaled, offset], "table")


def _name(spec: TableSpec) -> str:
    text = f"{spec.activation.name.lower()}_{spec.bits}bit_step_{spec.step:.9g}"
    return safe_name(text if spec.unit == 1.0 else f"{text}_unit_{spec.unit:.9g}")
