"""Nodes of `ai.rnnqc::QuantLSTMCell` for tests: hand-made and drawn by Hypothesis over everything its page allows."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime as ort
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from rnnqc import runtime_ops
from rnnqc.cells.fused_nodes import MORE_X, PLACES, X_FACTOR
from rnnqc.cells.types import CELL_TYPES
from rnnqc.formats.codebooks import GROUP_BYTES
from rnnqc.formats.packing import pack
from rnnqc.ir import DOMAIN
from rnnqc.proto.graph_walks import blocks_of
from rnnqc.reference import operators as reference
from tests.native.isa_libraries import library_for

INPUTS = (
    "X",
    "W",
    "R",
    "x_multiplier",
    "h_multiplier",
    "B",
    "gate_table",
    "cell_table",
    "sequence_lens",
    "initial_h",
    "initial_c",
    "P",
    "W_zero_point",
    "R_zero_point",
    "W_group_multiplier",
    "R_group_multiplier",
    "X_scale",
    *MORE_X,
    X_FACTOR,
)
OUTPUTS = ("Y", "Y_h", "Y_c", "Y_codes")
PARAMETERS = (
    *("W", "R", "x_multiplier", "h_multiplier", "B", "gate_table", "cell_table", "P", "W_zero_point", "R_zero_point"),
)
NUMBER_KINDS = ("Relu", "LeakyRelu", "ThresholdedRelu", "Affine", "HardSigmoid", "Softsign")

Arrays = dict[str, npt.NDArray[Any]]


@dataclass(frozen=True)
class Operator:
    """Names of its inputs, "" for reserved ones, and outputs."""

    name: str
    inputs: Sequence[str]
    outputs: Sequence[str]


LSTM = Operator("QuantLSTMCell", INPUTS, OUTPUTS)


@dataclass
class Case:
    """One node with values for its inputs."""

    inputs: Arrays
    attributes: dict[str, Any]
    outputs: Sequence[str] = OUTPUTS
    constants: Collection[str] = PARAMETERS
    name: str = "cell"
    symbolic: bool = True
    extra: dict[str, Any] = field(default_factory=dict)
    operator: Operator = LSTM
    plain: bool = False

    def model(self) -> onnx.ModelProto:
        """A model of one node; the arrays in `constants` are initializers, the others graph inputs.

        The node has one of the names with a kernel that files have, and no gaps, or the plain name and gaps.
        """
        last = max(self.operator.inputs.index(name) for name in self.inputs)
        names = [name if name in self.inputs else "" for name in self.operator.inputs[: last + 1]]
        op, places = self.operator.name, dict[str, Any]()
        if not self.plain:
            given = [n for n in names if n]
            op, places = f"{op}_00", {PLACES: [names.index(n) for n in given]}
            names = given
        used = [name if name in self.outputs else "" for name in self.operator.outputs]
        while used and not used[-1]:
            used.pop()
        node = helper.make_node(
            op, names, used, name=self.name, domain="ai.rnnqc", **{**places, **self.attributes, **self.extra}
        )
        graph = helper.make_graph(
            [node],
            "graph",
            [
                helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), self._dims(name))
                for name, value in self.inputs.items()
                if name not in self.constants
            ],
            [
                helper.make_tensor_value_info(name, TensorProto.UINT8 if name == "Y_codes" else TensorProto.FLOAT, None)
                for name in self.outputs
            ],
            [numpy_helper.from_array(value, name) for name, value in self.inputs.items() if name in self.constants],
        )
        opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.rnnqc", 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=8)

    def _dims(self, name: str) -> list[int | str]:
        shape: list[int | str] = list(self.inputs[name].shape)
        if self.symbolic:
            rows = {n: ["T", "B"] for n in ("X", "X_scale", *MORE_X)}
            symbols = {**rows, "sequence_lens": ["B"], "initial_h": ["B"], "initial_c": ["B"]}.get(name, [])
            shape[: len(symbols)] = symbols
        return shape

    def feeds(self) -> Arrays:
        return {name: value for name, value in self.inputs.items() if name not in self.constants}


def native_session(model: onnx.ModelProto, threads: int = 1, isa: str | None = None) -> ort.InferenceSession:
    """With the library's own choice of an instruction set, or with `isa`; of its operators those of the model."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 4
    blocks = blocks_of([model.graph, *model.functions])
    operators = sorted({n.op_type for b in blocks for n in b.node if n.domain == DOMAIN})
    if isa is None:
        runtime_ops.register(options, operators)
    else:
        options.add_session_config_entry("rnnqc.operators", ";".join(operators))
        options.register_custom_ops_library(str(library_for(isa)))
    return ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def run_native(case: Case, threads: int = 1, isa: str | None = None) -> Arrays:
    session = native_session(case.model(), threads, isa)
    return dict(zip(case.outputs, session.run(list(case.outputs), case.feeds()), strict=True))


def expected(case: Case) -> Arrays:
    """All outputs of the reference."""
    type_ = CELL_TYPES[case.operator.name.removeprefix("Quant").removesuffix("Cell")]
    return reference.run(type_, case.inputs, case.attributes)


def check(case: Case, threads: int = 1) -> Arrays:
    """Compares the kernel with the reference; returns what they give."""
    found = run_native(case, threads)
    assert_same_bits(found, expected(case))
    return found


def assert_same_bits(found: Mapping[str, npt.NDArray[Any]], expected: Mapping[str, npt.NDArray[Any]]) -> None:
    """Compares the bytes of all arrays of `found`."""
    for name, value in found.items():
        wanted = expected[name]
        assert value.dtype == wanted.dtype, name
        assert value.shape == wanted.shape, name
        same = np.frombuffer(value.tobytes(), np.uint8) == np.frombuffer(wanted.tobytes(), np.uint8)
        if not same.all():
            index = np.unravel_index(int(np.argmin(same)) // value.itemsize, value.shape)
            raise AssertionError(f"{name}{[int(i) for i in index]} is {value[index]!r}, expected {wanted[index]!r}")


def table_case(time: int = 5, batch: int = 2, inputs: int = 9, hidden: int = 21, seed: int = 0) -> Case:
    """The default recipe's configuration with random weights: 13-bit gate codes, 16-bit cell, dynamic input rows."""
    rng = np.random.default_rng(seed)
    n, cells = 4096, 16384
    codes = np.arange(-n, n)
    sigmoid = 1 / (1 + np.exp(-codes / 256))
    cell_scale = 2.0**-11
    gate_table = np.concatenate([sigmoid, np.tanh(codes / 512) / cell_scale]).astype(np.float32)
    cell_codes = np.roll(np.arange(-2 * cells, 2 * cells), 2 * cells)
    steps = np.repeat(np.float32([256, 256, 256, 512]), hidden)
    bias = steps * rng.normal(0, 0.5, 4 * hidden) + n + 0.5
    arrays: Arrays = {
        "X": rng.normal(0, 1, (time, batch, inputs)).astype(np.float32),
        "W": rng.integers(-128, 128, (inputs, 4 * hidden), dtype=np.int8),
        "R": rng.integers(-128, 128, (hidden, 4 * hidden), dtype=np.int8),
        "x_multiplier": (steps * rng.uniform(0.5, 2, 4 * hidden) / 128 / inputs**0.5).astype(np.float32),
        "h_multiplier": (steps * rng.uniform(0.5, 2, 4 * hidden) / 128 / 127 / hidden**0.5).astype(np.float32),
        "B": bias.astype(np.float32),
        "gate_table": gate_table,
        "cell_table": np.tanh(cell_codes * cell_scale).astype(np.float32),
    }
    attributes: dict[str, Any] = {
        "hidden_size": hidden,
        "h_scale": 1 / 127,
        "cell_scale": cell_scale,
        "gate_min": [0.0] * 4,
        "gate_max": [2 * n - 0.5] * 4,
        "gate_table_offset": [0, 0, 0, 2 * n],
    }
    return Case(arrays, attributes)


def draw_gates(draw: st.DrawFn, rng: np.random.Generator, kinds: Sequence[str], attributes: dict[str, Any]) -> Arrays:
    """Draws limits, tables and parameters of gates; returns gate_table, and B without the input's share."""
    tables: list[npt.NDArray[np.float32]] = [rng.normal(0, 1, draw(st.integers(0, 3))).astype(np.float32)]
    columns: dict[str, list[Any]] = {key: [] for key in ("min", "max", "alpha", "beta", "offset", "scale", "size", "B")}
    for kind in kinds:
        n = draw(st.sampled_from([1, 4, 32, 700]))
        low, high, centre, size = -8.0, 9.0, 0.0, 0
        if kind == "table":
            low, high, centre, size = float(draw(st.sampled_from([0, 0.25]))), 2 * n - 0.5, n + 0.5, 2 * n
        elif kind == "relu_table":
            low, high, size = -100.0, 2.0**10, 2 * n
        elif draw(st.booleans()):
            low, high = -(2.0**40), 2.0**40
        columns["offset"].append(sum(table.size for table in tables))
        tables.append(rng.normal(0, 1.5, size).astype(np.float32))
        columns["min"].append(low)
        columns["max"].append(high)
        columns["size"].append(size if kind == "relu_table" else 0)
        columns["scale"].append(draw(st.sampled_from([0.5, 3.7, 100.0])) if kind == "relu_table" else 0.0)
        columns["alpha"].append(draw(st.sampled_from([0.0, 0.2, -1.5, 2.0])))
        columns["beta"].append(draw(st.sampled_from([0.0, 0.5, -0.3])))
        columns["B"].append(centre)
    attributes["gate_kinds"] = ",".join(kinds)
    for key, column in columns.items():
        if key in ("min", "max", "alpha", "beta"):
            attributes[f"gate_{key}"] = column
    attributes["gate_table_offset"] = columns["offset"]
    attributes["gate_index_scale"] = columns["scale"]
    attributes["gate_index_size"] = columns["size"]
    return {"gate_table": np.concatenate(tables), "B": np.float32(columns["B"])}


def with_specials(rng: np.random.Generator, values: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Puts NaN, zeros of both signs, tiny numbers, infinities and the like into some places."""
    specials = np.float32([np.nan, 0.0, -0.0, 1e-42, 2.0**-110, np.inf, -np.inf, 3e38, -3e38])
    places = rng.random(values.shape) < 0.1
    return np.where(places, rng.choice(specials, values.shape), values).astype(np.float32)


def unusual_rows(rng: np.random.Generator, x: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Makes some rows [..., n] of X one-sided, empty, denormal or beyond the limit of dynamic grids."""
    kind = rng.integers(0, 12, (*x.shape[:-1], 1))
    with np.errstate(all="ignore"):
        for k, changed in enumerate(
            (np.abs(x), -np.abs(x), np.float32(0) * x, np.full_like(x, np.nan), x * np.float32(2.0**-140), x * 2.0**100)
        ):
            x = np.where(kind == k, changed, x).astype(np.float32)
    return x


def embedding_rows(rng: np.random.Generator, shape: tuple[int, int, int]) -> Arrays:
    """int8 rows and their scales: usual ones, the least and the largest that are allowed."""
    usual = 10.0 ** rng.uniform(-4, 0, (*shape[:2], 1))
    scale = np.where(
        rng.random(usual.shape) < 0.1, rng.choice([0.0, 2.0**-140, 2.0**-100, 2.0**60], usual.shape), usual
    )
    codes = rng.integers(-128, 128, shape, dtype=np.int8)
    codes[rng.random(shape[:2]) < 0.1] = rng.choice(np.int8([-128, 0, 127]))
    return {"X": codes, "X_scale": scale.astype(np.float32)}


@st.composite
def packed_cases(draw: st.DrawFn) -> Case:
    """A case with W, R or both packed, in groups or not."""
    case = draw(cases())
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    for key in draw(st.sampled_from(["W", "R", "WR"])):
        pack_at_random(case, key, draw(st.sampled_from([0, 32, 64])), rng)
    case.constants = {*case.constants, *(draw(st.sampled_from([(), GROUP_MULTIPLIERS])) if case.constants else ())}
    return case


@st.composite
def wide_cases(draw: st.DrawFn) -> Case:
    """A case with 16-bit codes of the input, the hidden state or both; packed weights among them."""
    case = draw(st.one_of(cases(), packed_cases()).filter(lambda c: set(c.outputs) != {"Y_codes"}))
    attributes = case.attributes
    zero_points = st.sampled_from([0, 1, 255, 256, 257, 30001, 32768, 65535])
    which = draw(st.sampled_from(["x", "h", "xh"]))
    takes_codes = attributes["x_mode"] in ("codes", "row_codes")
    if "x" in which and not takes_codes:
        attributes |= {"x_bits": 16, "x_zero_point": draw(zero_points)}
        attributes["x_scale"] = 0.0001 if attributes["x_mode"] == "static" else 0.0
    if "h" in which or takes_codes:
        attributes |= {"h_bits": 16, "h_zero_point": draw(zero_points)}
        attributes["h_scale"] = draw(st.sampled_from([1 / 32767, 0.0001])) if attributes["h_mode"] == "static" else 0.0
        case.inputs["h_multiplier"] = case.inputs["h_multiplier"] / np.float32(256)
        case.outputs = [name for name in case.outputs if name != "Y_codes"]
    return case


GROUP_MULTIPLIERS = ("W_group_multiplier", "R_group_multiplier")


def pack_at_random(case: Case, key: str, group_size: int, rng: np.random.Generator, bits: int = 0) -> None:
    """Other weights for W or R of `case`: any numbers of `bits` (0: 4, 5 or 6), and multipliers to int8 products.

    Half of those of 4 bits in groups have codebooks; half of all in groups some columns of 8 bits.
    """
    rows, columns = case.inputs[key].shape
    bits = bits or int(rng.choice([4, 5, 6]))
    half = 2 ** (bits - 1)
    numbers = rng.integers(-half, half, (rows, columns))
    if group_size:
        groups = -(-rows // group_size)
        multipliers = rng.integers(1, 19, (groups, columns), dtype=np.uint8)
        if bits == 4 and rng.random() < 0.5:
            multipliers = rng.choice(GROUP_BYTES, (groups, columns))
            case.attributes[f"{key.lower()}_codebook"] = 1
        else:
            scale = np.repeat(multipliers, group_size, axis=0)[:rows].astype(int)
            numbers = np.clip(numbers, -(128 // scale), 127 // scale)
        case.inputs[f"{key}_group_multiplier"] = multipliers
        case.attributes[f"{key.lower()}_group_size"] = group_size
    case.inputs[key] = with_any_padding(pack(numbers, bits), columns, bits, rng)
    if group_size and rng.random() < 0.5:
        wide = rng.permutation(columns)[: rng.integers(1, columns + 1)]
        multipliers[:, wide] = 0
        upper = rng.integers(0, 256, (rows, (len(wide) + 1) // 2), dtype=np.uint8)
        upper &= 17 * (2 ** (8 - bits) - 1)
        case.inputs[key] = np.concatenate([case.inputs[key], upper], axis=1)
        case.attributes[f"{key.lower()}_wide_columns"] = len(wide)
    if bits != 4:
        case.attributes[f"{key.lower()}_bits"] = bits


def with_any_padding(
    packed: npt.NDArray[np.uint8], columns: int, bits: int, rng: np.random.Generator
) -> npt.NDArray[np.uint8]:
    """Packed numbers with any bits in the places of columns that are not there: they do not count."""
    padded, half = packed.copy(), (columns + 1) // 2
    for width, first, stored in ((4, 0, half), (bits - 4, half, packed.shape[1] - half)):
        for part in range(8 // width if stored else 0):
            for j in range(stored):
                if j + part * stored >= columns:
                    padded[:, first + j] ^= rng.integers(0, 2**width, len(padded), dtype=np.uint8) << part * width
    return padded


@st.composite
def cases(draw: st.DrawFn, kinds: str = "any") -> Case:
    """Any allowed node. `kinds="table"` keeps to what the table kernels run."""
    tables_only = kinds == "table"
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    time, batch = draw(st.integers(1, 7)), draw(st.integers(1, 5))
    size, hidden = draw(st.integers(1, 70)), draw(st.integers(1, 70))
    x_mode = draw(st.sampled_from(["dynamic_row", "static", "codes", "row_codes"]))
    h_mode = "static" if tables_only else draw(st.sampled_from(["static", "dynamic_row"]))
    quantized_cell = tables_only or draw(st.booleans())
    all_kinds = ("table", "relu_table", *NUMBER_KINDS)
    gate_kinds = [draw(st.sampled_from(("table",) if tables_only else all_kinds)) for _ in range(4)]
    output_kinds = [kind for kind in all_kinds if kind != "relu_table" or not quantized_cell]
    output_kind = "table" if tables_only else draw(st.sampled_from(output_kinds))
    attributes: dict[str, Any] = {
        "hidden_size": hidden,
        "direction": draw(st.sampled_from(["forward", "reverse"])),
        "x_mode": x_mode,
        "x_scale": 0.03 if x_mode == "static" else 0.0,
        "x_zero_point": draw(st.sampled_from([0, 1, 128, 255])),
        "h_mode": h_mode,
        "h_scale": draw(st.sampled_from([1 / 127, 0.05])) if h_mode == "static" else 0.0,
        "h_zero_point": draw(st.sampled_from([0, 100, 128, 255])),
        "cell_scale": draw(st.sampled_from([2.0**-11, 0.01, 0.3])) if quantized_cell else 0.0,
        "cell_max": draw(st.sampled_from([1.0, 127.0, 1000.0, 2.0**60])),
        "output_kind": output_kind,
        "output_alpha": draw(st.sampled_from([0.0, 0.1, -2.0])),
        "output_beta": draw(st.sampled_from([0.0, 0.25])),
        "cell_index_scale": 0.0 if quantized_cell else draw(st.sampled_from([1.0, 37.5])),
    }
    if not tables_only and draw(st.booleans()):
        attributes["input_forget"] = 1
        attributes["one"] = draw(st.sampled_from([1.0, 0.99609375]))
    gates = draw_gates(draw, rng, gate_kinds, attributes)
    spread = np.repeat(np.maximum(gates["B"], 4), hidden).astype(np.float32)
    spread *= rng.choice([1.0, -1.0], 4 * hidden)
    exponent = rng.integers(-3, 4)
    arrays: Arrays = {
        "X": rng.integers(0, 256, (time, batch, size), dtype=np.uint8)
        if x_mode == "codes"
        else unusual_rows(
            rng, with_specials(rng, (rng.normal(0, 1, (time, batch, size)) * 10.0**exponent).astype(np.float32))
        ),
        "W": rng.integers(-128, 128, (size, 4 * hidden), dtype=np.int8),
        "R": rng.integers(-128, 128, (hidden, 4 * hidden), dtype=np.int8),
        "x_multiplier": (spread / 128 / (64 if x_mode == "codes" else 1) / size**0.5).astype(np.float32),
        "h_multiplier": (spread / 128 / 64 / hidden**0.5).astype(np.float32),
        "B": (np.repeat(gates["B"], hidden) + spread * rng.normal(0, 0.3, 4 * hidden)).astype(np.float32),
    }
    if x_mode == "row_codes":
        arrays |= embedding_rows(rng, (time, batch, size))
    if {"table", "relu_table"} & set(gate_kinds) or draw(st.booleans()):
        arrays["gate_table"] = gates["gate_table"]
    if output_kind in ("table", "relu_table"):
        # Codes beyond the table saturate.
        half = draw(st.sampled_from([1, 20, 500, 1001]))
        arrays["cell_table"] = rng.normal(0, 0.7, 2 * half + 2 * draw(st.integers(0, 3))).astype(np.float32)
    if draw(st.booleans()):
        arrays["sequence_lens"] = rng.integers(0, time + 1, batch, dtype=np.int32)
    if draw(st.booleans()):
        arrays["initial_h"] = with_specials(rng, rng.normal(0, 1, (batch, hidden)).astype(np.float32))
    if draw(st.booleans()):
        arrays["initial_c"] = with_specials(rng, rng.normal(0, 1, (batch, hidden)).astype(np.float32))
    if not tables_only and draw(st.booleans()):
        arrays["P"] = (rng.normal(0, 1, 3 * hidden) * (attributes["cell_scale"] or 1)).astype(np.float32)
    possible = OUTPUTS if h_mode == "static" else OUTPUTS[:3]
    outputs = draw(st.sampled_from([possible, possible, possible[:1], possible[-1:], possible[1:3], possible[1:]]))
    constants = draw(
        st.sampled_from(
            [PARAMETERS, PARAMETERS, (), [n for n in PARAMETERS if "table" not in n], ("W", "R"), ("B", "P")]
        )
    )
    return Case(arrays, attributes, outputs, constants, symbolic=draw(st.booleans()))
