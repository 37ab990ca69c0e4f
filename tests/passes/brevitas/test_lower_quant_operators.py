"""lower-quant-operators: the operators of QONNX against their formulas, and these against the package qonnx.

What these would catch: a rounding, a limit or a zero point in another place, weights that are not the same floats any
more, parameters that are computed when the model runs and are taken for constants.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import rnnqc
from rnnqc.errors import Outcome
from rnnqc.formats.qonnx import DOMAINS
from rnnqc.ir import Model
from rnnqc.passes import LowerQuantOperators
from tests.laws.parametrize import every_pair
from tests.passes.pass_testing import declines
from tests.runs.sessions import plain_session, run

F32 = np.float32
Array = npt.NDArray[np.float32]
ROUNDINGS: Mapping[str, Any] = {
    "ROUND": np.round,
    "HALF_EVEN": np.round,
    "CEIL": np.ceil,
    "FLOOR": np.floor,
    "UP": lambda x: np.sign(x) * np.ceil(np.abs(x)),
    "DOWN": np.fix,
    "HALF_UP": lambda x: np.sign(x) * np.floor(np.abs(x) + F32(0.5)),
    "HALF_DOWN": lambda x: np.sign(x) * np.ceil(np.abs(x) - F32(0.5)),
    "ROUND_TO_ZERO": np.trunc,
    "DPU": lambda x: np.where((x < 0) & (x - np.floor(x) == F32(0.5)), np.ceil(x), np.rint(x)),
}
"""The modes of QONNX and the two that only Brevitas has."""
SCALES = (np.array(0.037, F32), np.array(0.25, F32), np.array([0.1, 0.03, 0.5, 0.011], F32))


def limits(bits: float, signed: int, narrow: int) -> tuple[np.float32, np.float32]:
    if signed:
        return F32(-(2 ** (bits - 1)) + narrow), F32(2 ** (bits - 1) - 1)
    return F32(0), F32(2**bits - 1 - narrow)


def quant(x: Array, scale: Array, zero: Array, bits: Array, signed: int, narrow: int, mode: str) -> Array:
    y = x / scale + zero
    if bits == 1 and signed:
        y = np.where(y >= 0, F32(1), F32(-1))
    else:
        y = ROUNDINGS[mode](np.clip(y, *limits(float(bits), signed, narrow)))
    return np.asarray((y - zero) * scale, F32)


def trunc(
    x: Array, scale: Array, zero: Array, in_bits: Array, *rest: Any, mode: str, signed: int, narrow: int
) -> Array:
    y = np.round(x / scale + zero)
    if len(rest) == 1:
        y = ROUNDINGS[mode](y / F32(2) ** (in_bits - rest[0]))
        return np.asarray((y - zero) * scale, F32)
    out_scale, out_bits = rest
    step = F32(2) ** np.round(np.log2(out_scale / scale))
    y = ROUNDINGS[mode](np.clip(y / step, *limits(float(out_bits), signed, narrow)))
    return np.asarray((y - zero / step) * out_scale, F32)


def inputs_for(scale: Array) -> Array:
    """Returns ties of the format, and other values."""
    ties = np.arange(-60, 60, dtype=F32).reshape(-1, 4) / 2 * scale
    return np.concatenate([ties, np.random.default_rng(0).normal(0, 1, (60, 4))]).astype(F32)


@dataclass(frozen=True)
class Operator:
    """A node with its input x and its parameters, and what it has to give."""

    op: str
    x: Array
    parameters: Mapping[str, Array]
    domain: str
    attributes: Mapping[str, Any]
    expected: Array


def check(operators: Sequence[Operator], live: bool) -> None:
    """The lowered operators, side by side in one model, give what is expected; `live` parameters are its inputs."""
    nodes, inputs, outputs, held = [], [], [], []
    for k, made in enumerate(operators):
        names = {n: f"{n}{k}" for n in ("x", *made.parameters)}
        inputs.append(helper.make_tensor_value_info(names["x"], TensorProto.FLOAT, made.x.shape))
        held += [numpy_helper.from_array(np.asarray(v), names[n]) for n, v in made.parameters.items()]
        attributes = {"domain": made.domain, **made.attributes}
        nodes.append(helper.make_node(made.op, list(names.values()), [f"y{k}"], f"node{k}", **attributes))
        outputs.append(helper.make_tensor_value_info(f"y{k}", TensorProto.FLOAT, made.x.shape))
    feeds = {f"x{k}": made.x for k, made in enumerate(operators)}
    if live:
        inputs += [helper.make_tensor_value_info(t.name, TensorProto.FLOAT, t.dims) for t in held]
        feeds |= {t.name: numpy_helper.to_array(t) for t in held}
    graph = helper.make_graph(nodes, "g", inputs, outputs, [] if live else held)
    imports = [helper.make_opsetid("", 17), *(helper.make_opsetid(d, 2) for d in {o.domain for o in operators})]
    lowered = rnnqc.lower(helper.make_model(graph, opset_imports=imports, ir_version=9))
    assert not lowered.report.warnings
    found = run(plain_session(lowered.proto), feeds)
    for k, made in enumerate(operators):
        assert np.array_equal(found[f"y{k}"], made.expected), made


FORMATS = ((4, 1, 0), (5, 1, 1), (3, 0, 0), (6, 0, 1), (1, 1, 0), (1, 0, 0), (8, 1, 0))


@pytest.mark.few(11)
@pytest.mark.parametrize("live", [False, True], ids=["constant", "live"])
@pytest.mark.parametrize("mode", ROUNDINGS)
def test_quant(mode: str, live: bool) -> None:
    operators = []
    drawn = list(itertools.product(enumerate(SCALES), (0.0, 3.0, 2.5), enumerate(FORMATS)))
    for (k, scale), zero, (n, given) in drawn[list(ROUNDINGS).index(mode) % 2 :: 2]:  # every two meet in either half
        bits, signed, narrow = given
        x = inputs_for(scale)
        parameters = {"scale": scale, "zeropt": np.array(zero, F32), "bitwidth": np.array(bits, F32)}
        attributes = {"signed": signed, "narrow": narrow, "rounding_mode": mode if n % 2 else mode.lower()}
        expected = quant(x, *parameters.values(), signed, narrow, mode)
        op = "Quant" if n % 2 else "IntQuant"
        operators.append(Operator(op, x, parameters, DOMAINS[(k + n) % 3], attributes, expected))
    check(operators, live)


@pytest.mark.few(6)
@pytest.mark.parametrize("live", [False, True], ids=["constant", "live"])
@pytest.mark.parametrize("mode", ROUNDINGS)
def test_trunc(mode: str, live: bool) -> None:
    """Versions 1 and 2, by the number of inputs; an output scale that is a power of two apart, and one that is not."""
    operators = []
    for (k, scale), zero in itertools.product(enumerate(SCALES), (0.0, 3.0)):
        x = inputs_for(scale)
        given = {"scale": scale, "zeropt": np.array(zero, F32), "in_bits": np.array(8, F32)}
        first = {**given, "out_bits": np.array(5, F32)}
        expected = trunc(x, *first.values(), mode=mode, signed=1, narrow=0)
        operators.append(Operator("Trunc", x, first, DOMAINS[k], {"rounding_mode": mode}, expected))
        for factor, signed, narrow in ((8.0, 0, 0), (4.4, 0, 1), (4.4, 1, 0), (8.0, 1, 1)):
            second = {**given, "out_scale": np.asarray(scale * F32(factor)), "out_bits": np.array(4, F32)}
            limited = {"signed": signed, "narrow": narrow}
            expected = trunc(x, *second.values(), mode=mode, **limited)
            attributes = {**limited, "rounding_mode": mode.lower()}
            operators.append(Operator("Trunc", x, second, DOMAINS[k], attributes, expected))
    check(operators, live)


def test_attributes_by_default() -> None:
    x = inputs_for(SCALES[0])
    given = {"scale": SCALES[0], "zeropt": np.zeros((), F32), "in_bits": np.array(8, F32), "out_bits": np.array(5, F32)}
    expected = trunc(x, *given.values(), mode="FLOOR", signed=1, narrow=0)
    check([Operator("Trunc", x, given, DOMAINS[0], {}, expected)], live=False)


def test_bipolar_of_a_live_scale() -> None:
    x = inputs_for(SCALES[0])
    expected = np.where(x >= 0, F32(1), F32(-1)) * SCALES[0]
    check([Operator("BipolarQuant", x, {"scale": SCALES[0]}, DOMAINS[1], {}, expected)], live=True)


def test_formulas_are_those_of_qonnx() -> None:
    general = pytest.importorskip("qonnx.custom_op.general", reason="needs qonnx")
    for scale in SCALES:
        x = inputs_for(scale)
        for mode in list(ROUNDINGS)[:8]:
            for zero in (np.array(0, F32), np.array(2.5, F32)):
                for bits, signed, narrow in FORMATS:
                    given = (scale, zero, np.array(bits, F32), signed, narrow, mode)
                    assert np.array_equal(quant(x, *given), general.quant.quant(x, *given))
                widths = np.array(8, F32), np.array(5, F32)
                theirs = general.trunc.trunc_v1(x, scale, zero, *widths, mode)
                assert np.array_equal(trunc(x, scale, zero, *widths, mode=mode, signed=1, narrow=0), theirs)
                for signed, narrow in ((1, 0), (0, 1)):
                    out_scale = np.asarray(scale * F32(4.4))
                    theirs = general.trunc.trunc_v2(
                        x, scale, zero, widths[0], narrow, signed, out_scale, widths[1], mode
                    )
                    ours = trunc(
                        x, scale, zero, widths[0], out_scale, widths[1], mode=mode, signed=signed, narrow=narrow
                    )
                    assert np.array_equal(ours, theirs)


def weights(
    bits: float, scale: Any, zero: float = 0.0, signed: int = 1, op: str = "Gemm", opset: int = 17
) -> tuple[onnx.ModelProto, Array]:
    """A layer of quantized weights `[4,6]`, and the floats they stand for."""
    raw = np.random.default_rng(1).normal(0, 0.4, (4, 6)).astype(F32)
    held = {"w": raw, "s": np.asarray(scale, F32), "z": np.array(zero, F32), "b": np.array(bits, F32)}
    nodes = [helper.make_node("Quant", list(held), ["q"], "quant", domain=DOMAINS[0], signed=signed, narrow=0)]
    shapes: tuple[list[int], list[int]] = [2, 6], [2, 4]
    if op == "MatMul":
        nodes.append(helper.make_node("Transpose", ["q"], ["t"], "transpose", perm=[1, 0]))
        nodes.append(helper.make_node("MatMul", ["x", "t"], ["y"], "matmul"))
    elif op == "Gemm":
        nodes.append(helper.make_node("Gemm", ["x", "q"], ["y"], "gemm", transB=1))
    else:
        held["axes"] = np.array([2], np.int64)
        shapes = [2, 6, 1], [2, 4, 1]
        nodes[0].input[0] = "w3"
        held["w3"] = raw[:, :, None]
        nodes.append(helper.make_node("Conv", ["x", "q"], ["y"], "conv"))
        if held["s"].ndim:
            held["s"] = held["s"][:, :, None]
    inputs, outputs = (
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, s)] for n, s in zip("xy", shapes, strict=True)
    )
    used = {n for node in nodes for n in node.input}
    stored = [numpy_helper.from_array(a, n) for n, a in held.items() if n in used]
    graph = helper.make_graph(nodes, "g", inputs, outputs, stored)
    imports = [helper.make_opsetid("", opset), helper.make_opsetid(DOMAINS[0], 2)]
    expected = quant(raw, np.asarray(scale, F32), held["z"], held["b"], signed, 0, "ROUND")
    return helper.make_model(graph, opset_imports=imports, ir_version=10), expected


CHANNELS = np.array([[0.01], [0.02], [0.004], [0.03]], F32)


WEIGHTS: list[tuple[dict[str, Any], int | None]] = [
    ({"bits": 8, "scale": 0.011}, TensorProto.INT8),
    ({"bits": 3, "scale": CHANNELS}, TensorProto.INT8),
    ({"bits": 8, "scale": CHANNELS, "signed": 0, "zero": 130.0}, TensorProto.UINT8),
    ({"bits": 2, "scale": 0.4}, TensorProto.INT8),
    ({"bits": 1, "scale": 0.4}, TensorProto.INT8),
    ({"bits": 9, "scale": 0.001}, None),
    ({"bits": 16, "scale": 1e-4}, None),
    ({"bits": 8, "scale": 0.011, "zero": 2.5}, None),
    ({"bits": 8, "scale": np.outer(CHANNELS, [1, 2, 3, 4, 5, 6])}, None),
]


@pytest.mark.few(9)
@every_pair(weight=WEIGHTS, op=["Gemm", "MatMul", "Conv"], opset=[13, 17, 21])
def test_weights(weight: tuple[dict[str, Any], int | None], op: str, opset: int) -> None:
    """Quantized values of up to 8 bits that dequantize to the same floats; floats otherwise.

    onnxruntime optimizes: where it makes MatMulNBits of a DequantizeLinear and a MatMul, products are 1 % off.
    """
    arguments, dtype = weight
    if op == "Conv" and np.asarray(arguments["scale"]).size > 4:
        pytest.skip("one case is enough")
    proto, expected = weights(**arguments, op=op, opset=opset)
    made = rnnqc.lower(proto).proto
    stored = [t.data_type for t in made.graph.initializer if len(t.dims) >= 2 and max(t.dims) == 6]
    assert stored == [TensorProto.FLOAT if dtype is None else dtype]
    ops = {n.op_type for n in made.graph.node}
    assert ("DequantizeLinear" in ops) == (dtype is not None and op != "MatMul"), ops
    x = np.eye(6, dtype=F32)
    random = np.random.default_rng(2).normal(size=(2, 6)).astype(F32)
    for rows in (*(x[k : k + 2] for k in range(0, 6, 2)), random):
        feeds = {"x": rows[:, :, None] if op == "Conv" else rows}
        plain, optimized = (run(s, feeds)["y"].reshape(2, 4) for s in (plain_session(made), rnnqc.session(made)))
        if rows is not random:
            assert np.array_equal(plain, expected.T[rows.argmax(1)])
        assert np.allclose(plain, rows @ expected.T, rtol=0, atol=1e-6)
        assert np.allclose(plain, optimized, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"rounding_mode": "STOCHASTIC_ROUND"}, "rounds in an unknown way"),
        ({"bits": 3.5}, "no bit width"),
        ({"scale": 0.0}, "a scale that is none"),
    ],
)
def test_declines(change: dict[str, Any], reason: str) -> None:
    """Such a node stays, and the report warns that no runtime executes it."""
    mode = change.pop("rounding_mode", None)
    proto, _ = weights(**{"bits": 8, "scale": 0.01, **change})
    if mode:
        proto.graph.node[0].attribute.append(helper.make_attribute("rounding_mode", mode))
    declines(LowerQuantOperators(), Model.load(proto), reason, Outcome.NOTE)
    (warning,) = rnnqc.lower(proto).report.warnings
    assert reason in warning


@pytest.mark.parametrize(("op", "reason"), [("Trunc", "no Trunc that is known"), ("FloatQuant", "no operator that is")])
def test_declines_other_operators(op: str, reason: str) -> None:
    node = helper.make_node(op, ["x", "x", "x"], ["y"], "node", domain=DOMAINS[0])
    described = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [2]) for n in "xy"]
    graph = helper.make_graph([node], "g", described[:1], described[1:])
    imports = [helper.make_opsetid("", 17), helper.make_opsetid(DOMAINS[0], 1)]
    model = Model.load(helper.make_model(graph, opset_imports=imports, ir_version=9))
    declines(LowerQuantOperators(), model, reason, Outcome.NOTE)
