"""The integer cell in standard operators: what the function body of `QuantLSTMCell` and its like computes.

docs/quant_lstm_cell.md and docs/quant_gru_cell.md say the same in words, step by step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
import numpy.typing as npt

from rnnqc.cells.base import Cell, Size
from rnnqc.cells.equations import CANDIDATE
from rnnqc.ir import Constant, Graph, Model, Node, Value, Variable, subgraphs
from rnnqc.ir.builder import Builder
from rnnqc.passes.cells.emit_cell import Boundary, dimensions, scan, with_first_step
from rnnqc.passes.fold.fold_cell import CellNumbers
from rnnqc.passes.fold.integer_operands import Operands, Wanted
from rnnqc.passes.graph.point_names import BEYOND, WITHIN
from rnnqc.passes.render.emit_codes import (
    BoundedHidden,
    beyond_codes,
    carries_codes,
    initial_states,
    input_codes,
    limited,
    row_codes,
    static_codes,
    with_zero_point_rows,
    without_nan,
)
from rnnqc.passes.render.emit_integer_step import IntegerStep, LoopConstants, for_each_row, joint_gates, loop_constants
from rnnqc.passes.render.emit_results import finish_integer
from rnnqc.passes.render.emit_wide_codes import WIDE_BITS, combined, low_correction, weighted_sum


def emit_integer_cell(
    model: Model, cell: Cell, numbers: CellNumbers, at: Boundary, w: Operands, codes: Value | None, *, dispatch: bool
) -> list[Node]:
    """The nodes of the integer cell between its boundary values.

    Args:
        model: The model.
        cell: The cell.
        numbers: Its scalars.
        at: Its boundary.
        w: Its constants. Without dispatch W and R are uint8 with zero point 128, and W has its zero-point rows already.
        codes: Value that receives the hidden codes `[T,B,H]`, if an integer consumer follows.
        dispatch: Whether to choose between int8 and uint8 weights when the session is created.
    """
    b = Builder(model, cell.name)
    x_codes, row_scale = input_codes(b, cell, numbers, at)
    given = at.initial_h if numbers.h_bound and dispatch else None
    bounded = BoundedHidden(b, cell, numbers, given, at.x) if given is not None else None
    states = initial_states(b, cell, numbers, at) if bounded is None else []
    emitter = _Loop(cell, numbers, at, w, Wanted.of(at, codes), x_codes, row_scale, states, bounded)
    results = _dispatched(b, emitter) if dispatch else emitter.emit(b, w.W, w.R, b.u8(128))
    finish_integer(b, cell, at, codes, results, numbers.cell_scale, numbers.h_zero_point)
    return b.nodes


def _dispatched(b: Builder, emitter: _Loop) -> dict[str, Value]:
    """An If on whether this machine multiplies uint8 by int8 exactly; onnxruntime keeps one branch of it."""
    left = b.u8(np.full((2, 16), 255))
    right = b.model.constant(np.full((16, 16), 127), np.int8)
    product = b.op("MatMulInteger", [left, right], "exact.product")
    equal = b.op("Equal", [product, b.i32(255 * 127 * 16)], "exact.entries")
    least = b.reduce("ReduceMin", b.cast(equal, np.int32, "exact.numbers"), [0, 1], "exact.least", keepdims=0)
    exact = b.cast(least, np.bool_, "uint8_by_int8_is_exact")

    def weights(inner: Builder) -> tuple[Value, Value]:
        f = emitter.numbers
        w, r = (
            unpacked(inner, emitter.cell, emitter.w, key, size)
            for key, size in (("W", f.w_group_size), ("R", f.r_group_size))
        )
        rows = f.zero_point_rows
        return (with_zero_point_rows(inner, w, rows) if rows else w), r

    def unsigned(inner: Builder) -> dict[str, Value]:
        def shifted(value: Value, name: str) -> Value:
            wide = inner.op("Add", [inner.cast(value, np.int32, f"{name}.int32"), inner.i32(128)], f"{name}.shifted")
            return inner.cast(wide, np.uint8, f"{name}.uint8")

        w, r = weights(inner)
        return emitter.emit(inner, shifted(w, "W"), shifted(r, "R"), inner.u8(128))

    def signed(inner: Builder) -> dict[str, Value]:
        return emitter.emit(inner, *weights(inner), None)

    constants = [v for f in fields(Operands) if (v := getattr(emitter.w, f.name)) is not None]
    return _choose(b, exact, ("int8", signed), ("uint8", unsigned), constants)


def unpacked(b: Builder, cell: Cell, w: Operands, key: str, size: int) -> Value:
    """W or R as codes, also from packed int4 (rnnqc/formats/packing.py), in groups of `size` rows or 0."""
    columns = len(cell.type.gates) * cell.hidden_size
    stored, multiplier, rows = {
        "W": (w.W, w.W_group_multiplier, cell.input_size),
        "R": (w.R, w.R_group_multiplier, cell.hidden_size),
    }[key]
    if stored.dtype != np.uint8:
        return stored
    low = b.op("Mod", [stored, b.u8(16)], f"{key}.low")
    high = b.op("BitShift", [stored, b.u8(4)], f"{key}.high", direction="RIGHT")
    both = b.op("Concat", [low, high], f"{key}.nibbles", axis=1)
    if columns % 2:
        both = b.op("Slice", [both, b.i64([0]), b.i64([columns]), b.i64([1])], f"{key}.nibbles.present")
    nibbles = b.cast(both, np.int32, f"{key}.nibbles.int32")
    codes = b.op("Sub", [nibbles, b.i32(8)], f"{key}.codes.int32")
    if multiplier is not None:
        name = f"{key}.multiplier"
        column = b.op("Unsqueeze", [b.cast(multiplier, np.int32, f"{name}.int32"), b.i64([1])], f"{name}.groups")
        repeated = b.op("Expand", [column, b.i64([1, size, 1])], f"{name}.expanded")
        each: Value = b.op("Reshape", [repeated, b.i64([-1, columns])], f"{name}.rows")
        if rows % size:
            each = b.op("Slice", [each, b.i64([0]), b.i64([rows]), b.i64([0])], f"{name}.rows.present")
        codes = b.op("Mul", [codes, each], f"{key}.codes.multiplied")
    return b.cast(codes, np.int8, f"{key}.codes")


Branch = tuple[str, Callable[[Builder], dict[str, Value]]]


def _choose(
    b: Builder, condition: Value, then_branch: Branch, else_branch: Branch, constants: Sequence[Value] | None = None
) -> dict[str, Value]:
    """An If whose branches make the same results under the same names.

    With a condition that onnxruntime folds, what does not depend on more than `constants` stands in front of it:
    onnxruntime 1.24 to 1.27 cannot put a branch with folded constants in place of the If
    (`HasExternalDataInMemory(tensor_proto) was false`).
    """
    graphs: list[Graph] = []
    names: list[str] = []
    for suffix, make in (then_branch, else_branch):
        inner = Builder(b.model, b.cell, f"{b.prefix}/{suffix}" if b.prefix else suffix)
        results = make(inner)
        if constants is not None:
            b.nodes += _moved_out(inner, constants)
        graphs.append(inner.graph([], list(results.values()), "branch"))
        names = list(results)
    outputs = b.ops("If", [condition], names, then_branch=graphs[0], else_branch=graphs[1])
    for output, made in zip(outputs, graphs[0].outputs, strict=True):
        output.dtype = made.dtype
    return dict(zip(names, outputs, strict=True))


def _moved_out(inner: Builder, constants: Sequence[Value]) -> list[Node]:
    """Takes from a branch what onnxruntime may fold there: nodes on constants, and those on shapes from outside."""
    made = {id(v) for node in inner.nodes for v in node.outputs}
    folded = {id(v) for v in constants}
    moved: list[Node] = []
    for node in inner.nodes:
        if subgraphs(node):
            continue
        of_outside = node.op == "Shape" and id(node.inputs[0]) not in made
        if of_outside or all(isinstance(v, Constant) or not v.name or id(v) in folded for v in node.inputs):
            moved.append(node)
            folded.update(id(v) for v in node.outputs)
    gone = {id(n) for n in moved}
    inner.nodes = [n for n in inner.nodes if id(n) not in gone]
    return moved


@dataclass(frozen=True)
class _Product:
    """The product of hidden codes with (some columns of) R in a loop, in units of pre-activations.

    Attributes:
        numbers: Of the cell.
        r: The columns `[H,n]`.
        weight_zero_points: Zero point of R, or nothing for 0.
        correction: Of the low bytes of 16-bit codes, or None.
        multiplier: `[n]`, or `[B,n]` for a batch that is known.
        grid: Scale and zero point of the codes.
        name: Prefix of the values.
        is_whole: Whether the product with what the codes lose beyond the bound belongs to that with a state.
    """

    numbers: CellNumbers
    r: Value
    weight_zero_points: Sequence[Value]
    correction: Value | None
    multiplier: Value
    grid: tuple[float, int]
    name: str
    is_whole: bool = False

    def of_state(self, body: Builder, state: Value) -> Value:
        """The product with the codes of real values `[B,H]`."""
        if self.numbers.h_mode != "static":
            return self.of_codes(body, *row_codes(body, state, self.numbers.h_bits, self.name, self.grid[1]))
        units = self.of_codes(body, static_codes(body, state, self.numbers, f"{self.name}.codes", self.grid), None)
        return self.without_loss(body, units, state) if self.is_whole else units

    def in_branch(self, b: Builder) -> _Product:
        """The same with R as a constant of a branch: onnxruntime packs no weights for a loop in a branch otherwise."""
        return replace(self, r=b.op("Tile", [self.r, b.i64([1, 1])], f"{self.name}.R"))

    def without_loss(self, b: Builder, units: Value, state: Value) -> Value:
        """`units` and the product with what the codes of a state `[B,H]` lose beyond the bound.

        Rows that lose nothing have a difference of 0, and not -0: taking it away changes no bit of theirs.
        """
        name = f"{self.name}.beyond"
        for k, (codes, scale) in enumerate(beyond_codes(b, state, self.numbers, name, self.grid)):
            part = replace(self, name=f"{name}.{k}").of_codes(b, codes, scale)
            units = b.op("Sub", [units, part], f"{name}.{k}.taken_away")
        return units

    def of_codes(self, body: Builder, codes: Value, scale: Value | None) -> Value:
        """The product with codes, and the scales of their rows if each has its own."""
        name, zero_point = f"{self.name}.product", self.grid[1]
        wide = self.numbers.h_bits == WIDE_BITS
        first = body.u8(zero_point >> 8 if wide else zero_point)
        acc = body.op("MatMulInteger", [codes, self.r, first, *self.weight_zero_points], name)
        if wide:
            real: Value = combined(body, acc, self.correction, name)
            if scale is not None:
                column = body.op("Unsqueeze", [scale, body.i64([1])], f"{self.name}.scale.for_product")
                real = body.op("Mul", [real, column], f"{name}.scaled")
        elif scale is not None:
            real = body.op("DequantizeLinear", [acc, scale], f"{name}.scaled", axis=0)
        else:
            real = body.cast(acc, np.float32, f"{name}.float")
        return body.op("Mul", [real, self.multiplier], f"{self.name}.units")


@dataclass(frozen=True)
class _Loop:
    """The products and the Scan over time, for one form of the weights."""

    cell: Cell
    numbers: CellNumbers
    at: Boundary
    w: Operands
    wanted: Wanted
    x_codes: Sequence[Value]
    row_scale: Value | None
    states: Sequence[Value]
    bounded: BoundedHidden | None

    def emit(self, b: Builder, w: Value, r: Value, weight_zero_point: Value | None) -> dict[str, Value]:
        """Emits into `b`; returns the wanted results by name.

        Args:
            b: Collects the nodes.
            w: W, with its zero-point rows.
            r: R.
            weight_zero_point: Zero point of both; None for 0.
        """
        zero_points = [weight_zero_point] if weight_zero_point is not None else []
        p = self._projection(b, w, zero_points)
        before = loop_constants(b, self.cell, self.numbers, self.w)
        products = self._products(b, r, zero_points)
        if self.at.initial_h is None or not self.numbers.h_bound:
            return self._loop(b, p, before, products, self.states)

        def within(inner: Builder) -> dict[str, Value]:
            states = initial_states(inner, self.cell, self.numbers, self.at, bounded)
            return self._loop(inner, p, before, [v.in_branch(inner) for v in products], states)

        def beyond(inner: Builder) -> dict[str, Value]:
            own, states = products, self.states
            if bounded is not None:
                own = [v.in_branch(inner) for v in products]
                states = initial_states(inner, self.cell, self.numbers, self.at)
            if not carries_codes(self.cell, self.numbers):
                return self._loop(inner, p, before, [replace(v, is_whole=True) for v in own], states)
            return self._loop(inner, self._with_whole_first_step(inner, p, own[0]), before, own, states)

        bounded = self.bounded
        if bounded is None:
            return beyond(b)
        # Whatever branch is taken, rows within the bound have the same bits.
        return _choose(b, bounded.is_within, (WITHIN, within), (BEYOND, beyond))

    def _with_whole_first_step(self, b: Builder, p: Value, product: _Product) -> Value:
        """`p` `[T,B,GH]`, in the first step of the loop with what the codes of the initial state lose."""
        at = self.at
        assert at.initial_h is not None
        state = limited(b, without_nan(b, at.initial_h, "initial_h"), "initial_h")
        whole = replace(product, name="initial_h")
        return with_first_step(b, self.cell, at, p, lambda step: whole.without_loss(b, step, state))

    def _loop(
        self, b: Builder, p: Value, before: LoopConstants, products: Sequence[_Product], states: Sequence[Value]
    ) -> dict[str, Value]:
        """The Scan; returns the wanted results by name."""
        cell, numbers, hidden = self.cell, self.numbers, self.cell.hidden_size
        batch = cell.batch_dimension
        body = b.body()
        carried = carries_codes(cell, numbers)
        wide = numbers.h_bits == WIDE_BITS
        # Two planes of a batch that is only known as a symbol have a symbol of their own.
        code_rows = batch if not wide or batch is None else 2 * batch if isinstance(batch, int) else f"{batch}_planes"
        state_shape = [code_rows if carried else batch, hidden]
        h = body.value("hidden.previous", np.uint8 if carried else np.float32, state_shape)
        inputs: list[Value] = [h]
        if cell.type.cell_state:
            inputs.append(body.value("cell_state.previous", np.float32, [batch, hidden]))
        sequences, of_step = self._sequences(b, body, p)
        units = products[0].of_codes(body, h, None) if carried else products[0].of_state(body, h)
        step = self._step(body, units, of_step, before, inputs[-1], products)
        y, state = cell.type.step(step)
        outputs: list[Value] = []
        names: list[str] = []

        def result(value: Value, name: str, dtype: npt.DTypeLike, shape: Sequence[Size] = (batch, hidden)) -> None:
            # Scan needs the rank of its body's outputs inside a Loop.
            copy = next((v for v in outputs if v is value), None)
            if copy is not None:
                value = body.op("Identity", [value], f"{name}.copy")
            if isinstance(value, Variable):
                value.dtype, value.shape = np.dtype(dtype), list(shape)
            outputs.append(value)
            names.append(name)

        next_h: Value = static_codes(body, y, numbers, "hidden.codes") if carried else y
        result(next_h, "hidden.last", np.uint8 if carried else np.float32, state_shape)
        if cell.type.cell_state:
            result(state, "cell_state.last", np.float32)
        if self.wanted.y or (self.wanted.codes and not carried):
            result(y, "hidden.steps", np.float32)
        if self.wanted.codes and carried:
            result(next_h, "hidden.codes.steps", np.uint8)
        if self.wanted.c_steps:
            result(state, "cell_state.steps", np.float32)
        made = scan(b, body, cell, self.at, list(states), sequences, [*inputs, *of_step], outputs, names)
        kept = {"hidden.steps", "hidden.codes.steps", "cell_state.steps"}
        kept |= {"cell_state.last"} if self.wanted.last_c else set()
        for name, value in zip(names, made, strict=True):
            value.dtype = np.dtype(np.uint8 if "codes" in name or (carried and name == "hidden.last") else np.float32)
        results: dict[str, Value] = {k: v for k, v in zip(names, made, strict=True) if k in kept}
        if self.wanted.codes and not carried:
            results["hidden.codes.steps"] = static_codes(b, results["hidden.steps"], numbers, "hidden.codes")
        return results

    def _projection(self, b: Builder, w: Value, zero_points: Sequence[Value]) -> Value:
        """Returns x W + B in units of pre-activations, `[T,B,GH]`."""
        numbers, wide = self.numbers, self.numbers.x_bits == WIDE_BITS
        x_zero_point = 0 if self.row_scale is not None else numbers.x_zero_point
        x_zero_points = [x_zero_point >> 8, x_zero_point & 255] if wide else [x_zero_point]
        products = [
            b.op("MatMulInteger", [codes, w, b.u8(z), *zero_points], f"x.product{plane}")
            for codes, z, plane in zip(self.x_codes, x_zero_points, (".high", ".low") if wide else ("",), strict=True)
        ]
        if wide:
            real: Value = weighted_sum(b, products[0], products[1], "x.product")
            if self.row_scale is not None:
                column = b.op("Unsqueeze", [self.row_scale, b.i64([1])], "x.scale.for_product")
                real = b.op("Mul", [real, column], "x.product.scaled")
        elif self.row_scale is not None:
            real = b.op("DequantizeLinear", [products[0], self.row_scale], "x.product.scaled", axis=0)
        else:
            real = b.cast(products[0], np.float32, "x.product.float")
        p = b.op("Add", [b.op("Mul", [real, self.w.x_multiplier], "x.projection.units"), self.w.B], "x.projection")
        if self.row_scale is None:
            return p
        columns = b.i64([len(self.cell.type.gates) * self.cell.hidden_size])
        shape = b.op("Concat", [dimensions(b, self.at.x, 0, 2, "x.shape"), columns], "x.projection.shape", axis=0)
        return b.op("Reshape", [p, shape], "x.projection.steps")

    def _sequences(self, b: Builder, body: Builder, p: Value) -> tuple[list[Value], list[Value]]:
        """What the loop scans, and its steps: x W + B of the joint gates and, apart, of a GRU's candidate."""
        hidden, gates, joint = self.cell.hidden_size, len(self.cell.type.gates), joint_gates(self.cell)
        widths, sequences = [joint * hidden], [p]
        names = ["x.projection.step", "x.projection.candidate.step"]
        if joint < gates:
            widths.append(hidden)
            parts = ["x.projection.gates", "x.projection.candidate"]
            sequences = list(b.ops("Split", [p, b.i64(widths)], parts, axis=2))
        batch = self.cell.batch_dimension
        return sequences, [body.value(n, np.float32, [batch, w]) for n, w in zip(names, widths, strict=False)]

    def _products(self, b: Builder, r: Value, zero_points: Sequence[Value]) -> list[_Product]:
        """The product of all gates or, in a GRU with linear_before_reset = 0, of z and r, and of the candidate."""
        cell, numbers, hidden = self.cell, self.numbers, self.cell.hidden_size
        gates = len(cell.type.gates)

        def product(begin: int, end: int, grid: tuple[float, int], name: str) -> _Product:
            part, multiplier = r, self.w.h_multiplier
            if end - begin < gates:
                bounds = [b.i64([v * hidden]) for v in (begin, end)]
                part = b.op("Slice", [r, *bounds, b.i64([1])], f"R.{name}")
                multiplier = b.op("Slice", [multiplier, *bounds, b.i64([0])], f"h_multiplier.{name}")
            correction = None
            if numbers.h_bits == WIDE_BITS:
                weight = zero_points[0] if zero_points else None
                correction = low_correction(b, part, weight, grid[1], "R" if part is r else f"R.{name}")
            rows = for_each_row(b, cell, multiplier, end - begin, "h_multiplier.rows")
            return _Product(numbers, part, zero_points, correction, rows, grid, name)

        of_hidden = numbers.h_scale, numbers.h_zero_point
        if not cell.type.reads_hidden or cell.linear_before_reset:
            return [product(0, gates, of_hidden, "hidden")]
        of_reset = numbers.reset_scale, numbers.reset_zero_point
        return [product(0, CANDIDATE, of_hidden, "hidden"), product(CANDIDATE, gates, of_reset, "reset.hidden")]

    def _step(
        self,
        body: Builder,
        units: Value,
        of_step: Sequence[Value],
        before: LoopConstants,
        state: Value,
        products: Sequence[_Product],
    ) -> IntegerStep:
        cell, numbers, hidden = self.cell, self.numbers, self.cell.hidden_size
        joint = joint_gates(cell)
        if joint == len(cell.type.gates):
            g = body.op("Add", [units, of_step[0]], "preactivation")
            return IntegerStep(body, cell, numbers, self.w, before, g, state if cell.type.cell_state else None)
        sizes = body.i64([joint * hidden, hidden])
        recurrent: Value | None = None
        if cell.linear_before_reset:
            units, recurrent = body.ops(
                "Split", [units, sizes], ["hidden.units.gates", "hidden.units.candidate"], axis=1
            )
        g = body.op("Add", [units, of_step[0]], "preactivation")
        product = products[1].of_state if not cell.linear_before_reset else None
        return IntegerStep(body, cell, numbers, self.w, before, g, state, of_step[1], recurrent, product)
