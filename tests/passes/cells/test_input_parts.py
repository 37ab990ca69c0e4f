"""The values of which a Concat and a Mul make a cell's input, and fused nodes that take them.

What these would catch: a Concat along another axis that is taken for parts of the rows; one that something else reads,
too, and that is computed twice or gone; operators that only move elements and no longer become one node.
"""

from __future__ import annotations

import re

import numpy as np
import onnx
import pytest

import rnnqc
from rnnqc.cells.fused_nodes import MORE_X, X_FACTOR, given_inputs, input_names
from rnnqc.cells.stages import FusedCell
from rnnqc.cells.types import GRU
from rnnqc.ir import Model, export_nodes
from rnnqc.passes import FuseQuantLstmCell
from rnnqc.tracing.trace import Tracer
from tests.generate.layers import RecurrentCase
from tests.passes.pass_testing import INT8, before, nodes_of
from tests.runs.lowered import run_both
from tests.runs.sessions import Array, assert_same_bits, plain_session, run
from tests.subjects.layers_of_parts import FACTORS, of_parts
from tests.subjects.protos import parse

BODY = """
<ir_version: 8, opset_import: ["" : 17]>
g (float[5,3,4] a, float[5,3,6] b, float[5,1,6] c, float[5,2,6] d, float[5,3,1] s) => (float[5,1,3,8] y{more}) {{
  {text}
  y = GRU <hidden_size = 8> (x, w, r)
}}
"""
RANDOM = np.random.default_rng(2)
FEEDS: dict[str, Array] = {
    n: RANDOM.standard_normal((5, b, k)).astype(np.float32)
    for n, b, k in (("a", 3, 4), ("b", 3, 6), ("c", 1, 6), ("d", 2, 6), ("s", 3, 1))
}


def _model(text: str, width: int, more: str = "", **constants: Array) -> onnx.ModelProto:
    weights = {"w": (1, 24, width), "r": (1, 24, 8)}
    arrays = {n: (0.3 * np.random.default_rng(3).standard_normal(s)).astype(np.float32) for n, s in weights.items()}
    used = {k: v for k, v in constants.items() if re.search(rf"\b{k}\)", text)}
    return parse(BODY.format(text=text, more=more), **arrays, **used)


@pytest.mark.parametrize(
    ("text", "width", "parts"),
    [
        ("x = Concat <axis = 2> (a, b)", 10, ["a", "b"]),
        ("x = Concat <axis = -1> (b, a)", 10, ["b", "a"]),
        ("x = Concat <axis = -1> (b)", 6, None),
        ("m = Relu (a) x = Concat <axis = -1> (m, b, a)", 14, ["m", "b", "a"]),
        ("m = Relu (a) x = Concat <axis = -1> (m, b, a, b)", 20, None),
        ("x = Concat <axis = 1> (c, d)", 6, None),
        ("m = Concat <axis = 2> (a, b) x = Relu (m)", 10, None),
        (
            """n = Constant <value_ints = [2]> () e = Constant <value_ints = [6]> () m = Slice (b, n, e, n)
            x = Concat <axis = 2> (a, m)""",
            8,
            None,
        ),
    ],
)
def test_what_is_a_part(text: str, width: int, parts: list[str] | None) -> None:
    """Different values that a Concat along the last axis joins for one cell alone."""
    model = before("fuse-quant-lstm-cell", _model(text, width), INT8)
    expected = run(plain_session(model.proto), FEEDS)
    FuseQuantLstmCell()(model)
    (cell,) = model.cells.values()
    assert isinstance(cell, FusedCell)
    found = [cell.x, *cell.more_x]
    assert found == parts if parts is not None else len(found) == 1
    assert_same_bits(expected, run_both(model.proto, FEEDS), "fused")


@pytest.mark.parametrize(
    ("text", "width", "parts"),
    [
        ("m = Concat <axis = 2> (a, b) x = Mul (m, f)", 10, ["a", "b"]),
        ("x = Mul (b, f)", 6, ["b"]),
        ("m = Sigmoid (b) x = Mul (m, f)", 6, ["m"]),
        ("x = Mul (b, g)", 6, None),  # a number for all columns
        ("x = Mul (s, f)", 6, None),  # a column for all factors
        ("m = Concat <axis = 2> (a, b) x = Mul (m, f) z = Relu (m)", 10, ["m"]),
        ("x = Mul (b, f) z = Relu (x)", 6, None),
        ("x = Mul (b, b)", 6, None),
    ],
)
def test_what_is_a_factor(text: str, width: int, parts: list[str] | None) -> None:
    """A constant for each column, of a product that the cell alone reads."""
    factors = {"f": FACTORS[:width], "g": FACTORS[:1]}
    more = f", float[5,3,{width}] z" if "z =" in text else ""
    model = before("fuse-quant-lstm-cell", _model(text, width, more, **factors), INT8)
    expected = run(plain_session(model.proto), FEEDS)
    FuseQuantLstmCell()(model)
    (node,) = nodes_of(model, "QuantGRUCell")
    given = given_inputs(export_nodes([node])[0], input_names(GRU))
    assert ([given[n] for n in ("X", *MORE_X) if n in given] if X_FACTOR in given else None) == parts
    assert_same_bits(expected, run_both(model.proto, FEEDS), "fused")


@pytest.mark.parametrize(
    ("more", "other"),
    [
        (", float[5,3,10] x", ""),
        (", float[5,3,10] z", "z = Relu (x)"),
        (", float[5,1,3,8] z", "z = GRU <hidden_size = 8> (x, w, r)"),
    ],
    ids=["an output", "another operator", "another cell"],
)
def test_a_concat_that_others_read_stays(more: str, other: str) -> None:
    lowered = rnnqc.lower(_model(f"x = Concat <axis = 2> (a, b) {other}", 10, more))
    assert [n.op_type for n in lowered.proto.graph.node].count("Concat") == 1
    assert {len(c.more_x) for c in lowered.model.cells.values() if isinstance(c, FusedCell)} == {0}
    run_both(lowered.proto, FEEDS)


@pytest.mark.parametrize(("second", "parts"), [("p = Concat <axis = 2> (b, a)", 2), ("p = Mul (x, f)", 1)])
def test_cells_of_one_function_take_parts_together(second: str, parts: int) -> None:
    """One function stays one: where one of its cells reads no parts, the Concat in front of another stays."""
    text = f"q = Concat <axis = 2> (a, b) x = Relu (q) n = Concat <axis = 2> (a, b) m = Neg (n) k = Abs (a) {second} "
    text += "z = GRU <hidden_size = 8> (p, w, r) o = Concat <axis = 2> (k, b) u = GRU <hidden_size = 8> (o, w, r)"
    more = ", float[5,1,3,8] z, float[5,1,3,8] u"
    proto = _model(text, 10, more, f=FACTORS[:10])
    del proto.graph.node[-1]  # the layer y
    del proto.graph.output[0]
    lowered = rnnqc.lower(proto)
    assert len([f for f in lowered.proto.functions if f.name.startswith("QuantGRUCell")]) == 1
    assert {len(c.more_x) + 1 for c in lowered.model.cells.values() if isinstance(c, FusedCell)} == {parts}
    run_both(lowered.proto, FEEDS)


def test_a_file_with_parts_is_read_again_and_traced() -> None:
    """Its cells have the same description; a trace has the whole input, in both ways to run it."""
    case = RecurrentCase(T=4, B=2, I=9, H=5)
    lowered = rnnqc.lower(of_parts(case, 3, factor=True), verify=True)
    (made,), (cell,) = lowered.model.cells.values(), Model.load(lowered.proto).cells.values()
    assert isinstance(made, FusedCell)
    assert isinstance(cell, FusedCell)
    assert (cell.x, cell.more_x, cell.numbers, cell.operands) == (made.x, made.more_x, made.numbers, made.operands)
    (node,) = nodes_of(lowered.model, made.type.fused)
    assert node.attrs["operator_version"] == 6
    assert [v.name for v in node.inputs][-3:] == [*made.more_x, "factor"]
    feeds = case.feeds()
    whole = rnnqc.lower(of_parts(case, 3, factor=True), form="integer")
    (wanted,) = Tracer(whole.proto, native=False).trace([feeds])
    for native in (True, False):
        (steps,) = Tracer(lowered.proto, native=native).trace([feeds])
        np.testing.assert_array_equal(steps.tensors["input"].values, wanted.tensors["input"].values)
    second = rnnqc.lower(lowered.proto, rest="int8")
    assert_same_bits(run_both(lowered.proto, feeds), run_both(second.proto, feeds), "lowered again")


def test_a_renamed_part_keeps_its_place() -> None:
    (cell,) = rnnqc.lower(of_parts(RecurrentCase(I=9), 3)).model.cells.values()
    assert isinstance(cell, FusedCell)
    assert cell.renamed(cell.more_x[1], "new").more_x == (cell.more_x[0], "new")
