"""Nodes in fixed-point arithmetic (LSTM), drawn over what the operators' pages allow."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime as ort
from hypothesis import given, settings
from hypothesis import strategies as st

from rnnqc.cells.activations import make_activation
from rnnqc.cells.base import CELL, FORGET, GATES, INPUT, Cell
from rnnqc.cells.fixed_point_numbers import (
    FIXED_POINT,
    FIXED_POINT32,
    RESET,
    FixedPointNumbers,
    FixedPointQuantizer,
    quantizers_of,
)
from rnnqc.cells.fused_nodes import CONFIGURATION
from rnnqc.cells.stages import IntegerCell, OperandNames, QuantizedCell
from rnnqc.cells.types import GRU, LSTM, RNN, CellType
from rnnqc.ir import Graph, Model, Value, Variable
from rnnqc.passes.render.cell_function import CellSite, cell_function
from tests.native.quant_gru_cases import GRU as GRU_OPERATOR
from tests.native.quant_gru_cases import OUTPUTS as HIDDEN_OUTPUTS
from tests.native.quant_gru_cases import RNN as RNN_OPERATOR
from tests.native.quant_lstm_cases import LSTM as LSTM_OPERATOR
from tests.native.quant_lstm_cases import (
    OUTPUTS,
    PARAMETERS,
    Arrays,
    Case,
    Operator,
    assert_same_bits,
    pack_at_random,
    run_native,
)
from tests.native.quant_lstm_cases import expected as of_reference
from tests.runs.sessions import LEVELS, options

ALL_PARAMETERS = (*PARAMETERS, "hidden_bias")
ROUNDINGS = ("half_even", "half_away", "half_up", "floor", "ceil", "half_even_up", "toward_zero")


@dataclass
class GridCase:
    """One node, for every way of execution.

    Attributes:
        cell: The cell behind it.
        numbers: Its scalars.
        inputs: Arrays by input name.
        outputs: The outputs it has.
        constants: The inputs that are initializers in the native model.
        symbolic: Whether T and B are symbols in the native model.
    """

    cell: Cell
    numbers: FixedPointNumbers
    inputs: Arrays
    outputs: Sequence[str]
    constants: Sequence[str] = ALL_PARAMETERS
    symbolic: bool = True

    @property
    def operator(self) -> Operator:
        """Of its type of cell."""
        return {LSTM: LSTM_OPERATOR, GRU: GRU_OPERATOR, RNN: RNN_OPERATOR}[self.cell.type]

    @property
    def node(self) -> Case:
        """For the kernel and the reference."""
        return Case(
            self.inputs,
            self.numbers.attributes(self.cell),
            self.outputs,
            self.constants,
            symbolic=self.symbolic,
            operator=self.operator,
        )

    def stock_model(self, opset: int = 17) -> onnx.ModelProto:
        """The node with the function behind it."""
        proto = onnx.ModelProto(ir_version=8)
        proto.opset_import.add(domain="", version=opset)
        proto.graph.name = "scratch"
        model = Model(proto)
        values: dict[str, Value | None] = {
            n: Variable(n, dtype=a.dtype, shape=list(a.shape)) for n, a in self.inputs.items()
        }
        outputs: dict[str, Value | None] = {
            n: Variable(n) if n in self.outputs else None for n in self.operator.outputs
        }
        names = OperandNames(
            "W", "R", "x_multiplier", "h_multiplier", "B", P=self.cell.P, hidden_bias=self.cell.hidden_bias
        )
        cell = IntegerCell.of_quantized(QuantizedCell.of(self.cell, {}), self.numbers, names, None)
        site = CellSite(cell, Graph(), values, outputs, {}, [])
        native = self.node.model()
        native.functions.append(cell_function(model, site).numbered(0))
        (node,) = native.graph.node
        native.functions[0].name = node.op_type
        node.attribute.append(onnx.helper.make_attribute(CONFIGURATION, 0))
        for entry in native.opset_import:
            if not entry.domain:
                entry.version = opset
        native.ir_version = 8
        return native


def run_stock(case: GridCase, opset: int = 17, level: str = "ORT_ENABLE_ALL", threads: int = 1) -> Arrays:
    """Results of the function body in onnxruntime without the native library."""
    model = case.stock_model(opset).SerializeToString()
    session = ort.InferenceSession(model, options(level, threads), providers=["CPUExecutionProvider"])
    return dict(zip(case.outputs, session.run(list(case.outputs), case.node.feeds()), strict=True))


def assert_levels_and_threads_do_not_matter(case: GridCase, wanted: Arrays) -> None:
    """Runs the function body with every optimization level, with one thread and with two by turns."""
    for k, level in enumerate(LEVELS):
        assert_same_bits(run_stock(case, 17, level, 1 + k % 2), wanted)


def assert_not_trivial(cases: st.SearchStrategy[GridCase], expected: Callable[[GridCase], Arrays]) -> None:
    """Whether the results of most drawn cases vary."""
    varied = []

    @settings(max_examples=60, database=None)
    @given(cases)
    def count(case: GridCase) -> None:
        varied.append(len(np.unique(expected(case)["Y"])) > 4)

    count()
    assert sum(varied) > 30


def a_cell(
    inputs: int,
    hidden: int,
    *,
    type_: CellType = LSTM,
    reverse: bool = False,
    clip: float | None = None,
    input_forget: bool = False,
    static_batch: int | None = None,
    linear_before_reset: bool = False,
) -> Cell:
    """A cell with the fields that the emitters read."""
    return Cell(
        name="cell",
        node="cell",
        op=type_.op,
        hidden_size=hidden,
        input_size=inputs,
        reverse=reverse,
        activations=tuple(make_activation(name) for name in type_.activations),
        clip=clip,
        input_forget=input_forget,
        static_length=None,
        static_batch=static_batch,
        x="X",
        sequence_lens=None,
        initial_h=None,
        initial_c=None,
        y="Y",
        y_h="Y_h",
        y_c="Y_c",
        W="W",
        R="R",
        B="B",
        P=None,
        linear_before_reset=linear_before_reset,
        hidden_bias="hidden_bias" if linear_before_reset else None,
    )


def grid(
    draw: st.DrawFn, bits: int, span: float, *, unsigned: bool = False, rounding: str | None = None
) -> FixedPointQuantizer:
    """A quantizer of up to `bits` bits whose range reaches about `span`."""
    count = 2**bits
    narrow = draw(st.integers(0, 1)) if count > 2 else 0
    minimum = narrow if unsigned else -(count // 2) + narrow
    maximum = minimum + count - 1 - narrow
    middle = count // 2 if unsigned else 0
    zero = draw(st.sampled_from([middle, middle, minimum, maximum, (minimum + maximum) // 2]))
    scale = span / max(maximum - zero, zero - minimum)
    if draw(st.booleans()):
        scale = 2.0 ** round(float(np.log2(scale)))
    rounding = rounding or draw(st.sampled_from(ROUNDINGS))
    offset = draw(st.sampled_from([0, 0, zero if abs(zero) <= 2**20 else 0, -3, 7]))
    return FixedPointQuantizer(float(np.float32(scale)), zero, minimum, maximum, rounding, offset)


def _quantizers(
    draw: st.DrawFn, type_: CellType, linear: bool, bits: dict[str, int], span: float, widest: int
) -> dict[str, FixedPointQuantizer]:
    made = {
        "input": grid(draw, bits["input"], 3.0, unsigned=True),
        "hidden": grid(draw, bits["hidden"], 1.0, unsigned=True),
        "cell_state": grid(draw, bits["cell"], draw(st.sampled_from([1.0, 8.0]))),
    }
    for name in quantizers_of(type_)[2 + 3 * len(type_.gates) :]:
        if name == RESET and not linear:
            made[name] = grid(draw, bits["cell"], 1.0, unsigned=True)
        elif name != "cell_state":
            present = draw(st.booleans())
            made[name] = (
                grid(draw, draw(st.sampled_from([4, 8, 16, widest])), 4.0) if present else FixedPointQuantizer()
            )
    for kind in ("input_product", "hidden_product", "acc"):
        how = draw(st.sampled_from(["one", "one", "each", "alike"] + (["none"] if kind != "acc" else [])))
        rounding = draw(st.sampled_from(ROUNDINGS)) if how == "alike" else None
        width = bits["acc"]
        shared = grid(draw, width, span) if how == "one" else FixedPointQuantizer()
        for gate in type_.gates:
            drawn = how in ("each", "alike") and (kind == "acc" or how == "alike" or draw(st.booleans()))
            made[f"{gate}.{kind}"] = grid(draw, width, span, rounding=rounding) if drawn else shared
    return made


def _weights(rng: np.random.Generator, shape: tuple[int, int], bits: int) -> npt.NDArray[Any]:
    low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1)) if bits > 1 else (-1, 2)
    codes = rng.integers(low, high, shape, dtype=np.int64)
    if bits == 1:
        codes = np.where(codes < 1, -1, 1)
    return codes.astype(np.int8 if bits <= 8 else np.int16)


def _table(rng: np.random.Generator, size: int, on_grid: bool) -> npt.NDArray[np.float32]:
    values = np.sort(rng.uniform(-1, 1, size))
    return (np.rint(values * 128) / 128 if on_grid else values).astype(np.float32)


def _special(rng: np.random.Generator, values: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    specials = np.float32([np.nan, 0.0, -0.0, 1e-42, np.inf, -np.inf, 3e38, -3e38])
    # Multiples of one half of a power of two make ties.
    ties = np.rint(values * 256) / 256
    kind = rng.random(values.shape)
    values = np.where(kind < 0.5, ties, values)
    return np.where(kind > 0.95, rng.choice(specials, values.shape), values).astype(np.float32)


@st.composite
def grid_cases(draw: st.DrawFn, types: Sequence[CellType] = (LSTM,)) -> GridCase:
    """Any node in fixed-point arithmetic."""
    type_ = draw(st.sampled_from(types))
    gates, lstm = type_.gates, type_ is LSTM
    linear = type_ is GRU and draw(st.booleans())
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    time, batch = draw(st.integers(1, 6)), draw(st.integers(1, 4))
    size, hidden = draw(st.integers(1, 40)), draw(st.integers(1, 40))
    code_bits = st.sampled_from([2, 3, 5, 8, 8, 8, 9, 12, 16, 16])
    bits = {"input": draw(code_bits), "hidden": draw(code_bits), "cell": draw(code_bits), "acc": draw(code_bits)}
    w_bits, r_bits = (draw(st.sampled_from([1, 2, 4, 8, 8, 8, 11, 16, 16])) for _ in range(2))
    arithmetic = draw(st.sampled_from([FIXED_POINT, FIXED_POINT32])) if lstm else FIXED_POINT
    quantizers = _quantizers(
        draw, type_, linear, bits, draw(st.sampled_from([2.0, 8.0])), 32 if arithmetic == FIXED_POINT else 20
    )
    x_mode = "codes" if bits["input"] <= 8 and draw(st.booleans()) else "static"
    input_forget = lstm and draw(st.booleans())
    if input_forget:
        for kind in ("input_product", "hidden_product", "acc"):
            quantizers[f"{GATES[FORGET]}.{kind}"] = quantizers[f"{GATES[INPUT]}.{kind}"]
    offsets, tables, end = [], [], 0
    on_grid = draw(st.booleans())
    shared = draw(st.booleans())
    for k, gate in enumerate(gates):
        acc = quantizers[f"{gate}.acc"]
        if shared and 0 < k < len(gates) - 1 and acc == quantizers[f"{gates[0]}.acc"]:
            offsets.append(offsets[0])
            continue
        gap = int(rng.integers(0, 3))
        tables.append(_table(rng, gap + acc.size, on_grid))
        offsets.append(end + gap)
        end += gap + acc.size
    numbers = FixedPointNumbers.of(
        x_mode,
        [quantizers[n] for n in quantizers_of(type_)],
        gate_table_offset=offsets,
        one=draw(st.sampled_from([1.0, 0.99609375])) if input_forget else 1.0,
        accumulator_bits=draw(st.sampled_from([0, 0, 0, 8, 16, 31, 32])),
        rounded_output=lstm and draw(st.booleans()),
        arithmetic=arithmetic,
    )
    cell = a_cell(
        size,
        hidden,
        type_=type_,
        linear_before_reset=linear,
        reverse=draw(st.booleans()),
        clip=draw(st.sampled_from([None, None, 0.7, 3.0])),
        input_forget=input_forget,
        static_batch=draw(st.sampled_from([None, batch])),
    )
    x_grid, h_grid = quantizers["input"], quantizers["hidden"]
    columns = len(gates) * hidden

    def multiplier(codes: FixedPointQuantizer, weight_bits: int, depth: int) -> npt.NDArray[np.float32]:
        spread = rng.uniform(0.5, 4.0, columns) if draw(st.booleans()) else np.full(columns, 2.0)
        typical = spread / (max(abs(codes.low), abs(codes.high)) * 2.0 ** (weight_bits - 1) * depth**0.5)
        exponents = np.floor(np.log2(typical))
        return (2.0**exponents if draw(st.booleans()) else typical).astype(np.float32)

    inputs: Arrays = {
        "X": rng.integers(x_grid.minimum, x_grid.maximum + 1, (time, batch, size)).astype(np.uint8)
        if x_mode == "codes"
        else _special(rng, rng.normal(0, 1.5, (time, batch, size))),
        "W": _weights(rng, (size, columns), w_bits),
        "R": _weights(rng, (hidden, columns), r_bits),
        "x_multiplier": multiplier(x_grid, w_bits, size),
        "h_multiplier": multiplier(h_grid, r_bits, hidden),
        "B": (np.rint(rng.normal(0, 0.5, columns) * 256) / 256).astype(np.float32),
        "gate_table": np.concatenate(tables),
    }
    if lstm:
        inputs["cell_table"] = _table(rng, quantizers["cell_state"].size, on_grid)
    if linear:
        inputs["hidden_bias"] = (np.rint(rng.normal(0, 0.5, hidden) * 256) / 256).astype(np.float32)
    for key, width in (("W", w_bits), ("R", r_bits)):
        if draw(st.booleans()):
            limits = np.iinfo(inputs[key].dtype)
            wide = draw(st.booleans())
            low, high = (limits.min, limits.max + 1) if wide else (-3, 4)
            inputs[f"{key}_zero_point"] = rng.integers(low, high, columns).astype(np.int32)
        if width == 4 and draw(st.booleans()):
            packed = Case(inputs, {})
            pack_at_random(packed, key, draw(st.sampled_from([0, 32])), rng)
            numbers = FixedPointNumbers(**{**numbers.__dict__, **packed.attributes})
    if draw(st.booleans()):
        inputs["sequence_lens"] = rng.integers(0, time + 1, batch, dtype=np.int32)
    if draw(st.booleans()):
        inputs["initial_h"] = _special(rng, rng.normal(0, 1, (batch, hidden)))
    if lstm and draw(st.booleans()):
        inputs["initial_c"] = _special(rng, rng.normal(0, 1, (batch, hidden)))
    if lstm and draw(st.booleans()):
        inputs["P"] = rng.normal(0, 1, 3 * hidden).astype(np.float32)
    all_outputs = OUTPUTS if lstm else HIDDEN_OUTPUTS
    possible = all_outputs if bits["hidden"] <= 8 else all_outputs[:-1]
    outputs = draw(st.sampled_from([possible, possible, possible[:1], possible[-1:], possible[1:3], possible[1:]]))
    tables_apart = tuple(n for n in ALL_PARAMETERS if "table" not in n)
    constants = draw(st.sampled_from([ALL_PARAMETERS, ALL_PARAMETERS, (), tables_apart, ("W", "R"), ("B", "P")]))
    return GridCase(cell, numbers, inputs, tuple(outputs), constants, draw(st.booleans()))


def expected(case: GridCase) -> Arrays:
    """All outputs of the reference."""
    return of_reference(case.node)


def check(case: GridCase, threads: int = 1) -> Arrays:
    """Compares kernel and function body with the reference, whose results are returned."""
    wanted = expected(case)
    assert_same_bits(run_native(case.node, threads), wanted)
    assert_same_bits(run_stock(case), wanted)
    return wanted


def plain_grid_case(
    time: int = 5,
    batch: int = 2,
    inputs: int = 9,
    hidden: int = 21,
    bits: int = 8,
    seed: int = 0,
    type_: CellType = LSTM,
    linear_before_reset: bool = False,
    **numbers: Any,
) -> GridCase:
    """Codes, weights and points of `bits` bits, powers of two, every quantizer there; `numbers` changes its scalars."""
    gates, lstm = len(type_.gates), type_ is LSTM
    columns = gates * hidden
    rng = np.random.default_rng(seed)
    half = 2 ** (bits - 1)

    def signed(span: float, rounding: str = "half_even") -> FixedPointQuantizer:
        return FixedPointQuantizer(span / half, 0, -half, half - 1, rounding)

    def codes(span: float) -> FixedPointQuantizer:
        return FixedPointQuantizer(span / half, half, 0, 2 * half - 1)

    acc, cell = signed(8.0, "floor"), signed(4.0)
    grids = [codes(4.0), codes(1.0), *[signed(8.0)] * (2 * gates), *[acc] * gates]
    if lstm:
        grids += [signed(4.0), signed(4.0), cell]
    elif type_ is GRU:
        grids += [signed(8.0) if linear_before_reset else codes(1.0), *[signed(1.0)] * 3]
    positions = np.arange(acc.low, acc.high + 1) * acc.scale
    tables = [1 / (1 + np.exp(-positions)), np.tanh(positions)]
    made = FixedPointNumbers.of(
        "static", grids, **{"gate_table_offset": [*[0] * (gates - 1), len(positions)], **numbers}
    )
    weight = 1.0 / half
    arrays: Arrays = {
        "X": rng.normal(0, 1, (time, batch, inputs)).astype(np.float32),
        "W": _weights(rng, (inputs, columns), bits),
        "R": _weights(rng, (hidden, columns), bits),
        "x_multiplier": np.full(columns, weight * grids[0].scale, np.float32),
        "h_multiplier": np.full(columns, weight * grids[1].scale, np.float32),
        "B": (rng.integers(-half, half, columns) * (1.0 / half)).astype(np.float32),
        "gate_table": np.concatenate(tables).astype(np.float32),
    }
    if lstm:
        arrays["cell_table"] = np.tanh(np.arange(cell.low, cell.high + 1) * cell.scale).astype(np.float32)
    if linear_before_reset:
        arrays["hidden_bias"] = (rng.integers(-half, half, hidden) * (1.0 / half)).astype(np.float32)
    outputs = OUTPUTS if lstm else HIDDEN_OUTPUTS
    cell_of = a_cell(inputs, hidden, type_=type_, linear_before_reset=linear_before_reset)
    return GridCase(cell_of, made, arrays, outputs if bits <= 8 else outputs[:-1])


def byte_grid_case(
    time: int = 5,
    batch: int = 2,
    inputs: int = 9,
    hidden: int = 21,
    seed: int = 0,
    *,
    bits: int = 8,
    weight_bits: int = 8,
    pow2: bool = False,
    narrow: bool = False,
    **flags: Any,
) -> GridCase:
    """A cell as Brevitas makes them: quantizers of `bits` bits round half to even, activations are codes; binary32."""
    rng = np.random.default_rng(seed)
    half = 2 ** (bits - 1)

    def scale(low: float, high: float) -> float:
        value = rng.uniform(low, high) * 128 / half
        return float(np.float32(2.0 ** round(np.log2(value)) if pow2 else value))

    def signed(value: float) -> FixedPointQuantizer:
        return FixedPointQuantizer(value, 0, -half + narrow, half - 1)

    io = FixedPointQuantizer(scale(0.006, 0.008), half, int(narrow), 2 * half - 1)
    accs = [signed(scale(0.015, 0.03)) for _ in GATES]
    cell = signed(scale(0.008, 0.016))
    if flags.get("input_forget"):
        accs[FORGET] = accs[INPUT]

    def table(
        argument: FixedPointQuantizer, function: str, unit: float, low: int, high: int
    ) -> npt.NDArray[np.float32]:
        values = make_activation(function)(np.arange(argument.low, argument.high + 1) * argument.scale)
        codes = np.clip(np.rint(np.asarray(values) / unit), low, high)
        return codes.astype(np.float32) * np.float32(unit)

    units = [scale(0.007, 0.008) if k == CELL else scale(0.0035, 0.004) for k in range(len(GATES))]
    tables = [
        table(a, "Tanh", unit, -half, half - 1) if k == CELL else table(a, "Sigmoid", unit, 0, 2 * half - 1)
        for k, (a, unit) in enumerate(zip(accs, units, strict=True))
    ]
    one = float(np.float32(min(round(1 / units[INPUT]), 2 * half - 1)) * np.float32(units[INPUT]))
    offsets = np.concatenate([[0], np.cumsum([t.size for t in tables])[:-1]]).tolist()
    numbers = FixedPointNumbers.of(
        "static",
        [io, io, *[FixedPointQuantizer()] * 8, *accs, cell, cell, cell],
        gate_table_offset=offsets,
        rounded_output=True,
        arithmetic=FIXED_POINT32,
        one=one if flags.get("input_forget") else 1.0,
    )
    weight = scale(0.003, 0.006) if weight_bits == 8 else 0.05
    arrays: Arrays = {
        "X": rng.normal(0, 0.6, (time, batch, inputs)).astype(np.float32),
        "W": _weights(rng, (inputs, 4 * hidden), weight_bits),
        "R": _weights(rng, (hidden, 4 * hidden), weight_bits),
        "x_multiplier": np.full(4 * hidden, weight * io.scale, np.float32),
        "h_multiplier": np.full(4 * hidden, weight * io.scale, np.float32),
        "B": (np.rint(rng.normal(0, 0.5, 4 * hidden) * 256) / 256).astype(np.float32),
        "gate_table": np.concatenate(tables),
        "cell_table": table(cell, "Tanh", scale(0.007, 0.008), -half, half - 1),
    }
    return GridCase(a_cell(inputs, hidden, **flags), numbers, arrays, OUTPUTS)


@st.composite
def byte_grid_cases(draw: st.DrawFn) -> GridCase:
    """Cells as `byte_grid_case` makes them, with everything that the operator's byte form allows around them."""
    seed = draw(st.integers(0, 2**32 - 1))
    rng = np.random.default_rng(seed)
    time, batch = draw(st.integers(1, 6)), draw(st.integers(1, 4))
    size, hidden = draw(st.integers(1, 40)), draw(st.sampled_from([1, 7, 16, 17, 33, 48, 64, 65, 80]))
    case = byte_grid_case(
        *(time, batch, size, hidden, seed),
        bits=draw(st.sampled_from([2, 3, 4, 6, 8, 8, 8])),
        weight_bits=draw(st.sampled_from([1, 2, 4, 8, 8])),
        pow2=draw(st.booleans()),
        narrow=draw(st.booleans()),
        reverse=draw(st.booleans()),
        input_forget=draw(st.booleans()),
    )
    grids = case.numbers.input, case.numbers.hidden
    if draw(st.booleans()):
        case.numbers = replace(case.numbers, x_mode="codes")
        case.inputs["X"] = rng.integers(grids[0].minimum, grids[0].maximum + 1, (time, batch, size)).astype(np.uint8)
    else:
        case.inputs["X"] = _special(rng, case.inputs["X"])
    if draw(st.booleans()):
        case.inputs["sequence_lens"] = rng.integers(0, time + 1, batch, dtype=np.int32)
    for name in ("initial_h", "initial_c"):
        if draw(st.booleans()):
            case.inputs[name] = _special(rng, rng.normal(0, 0.7, (batch, hidden)))
    case.outputs = draw(st.sampled_from([OUTPUTS, OUTPUTS, OUTPUTS[:1], OUTPUTS[-1:], OUTPUTS[1:3], OUTPUTS[1:]]))
    case.symbolic = draw(st.booleans())
    return case
