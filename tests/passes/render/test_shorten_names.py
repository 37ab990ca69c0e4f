"""shorten-names: short bodies that compute the same, messages that still say what is wrong.

What these would catch: two values of a body with one name, a body that has lost the name onnxruntime prints for the
user, a comparison of bodies that sees no difference.
"""

from __future__ import annotations

import onnx
import pytest

import rnnqc
from rnnqc.ir import DOMAIN, Model
from rnnqc.passes import FuseQuantLstmCell, ShortenNames
from rnnqc.passes.render.cell_function import TWO_BODIES
from rnnqc.passes.render.shorten_names import MESSAGES
from rnnqc.passes.verify.equal_bodies import changed_body
from rnnqc.proto.graph_walks import blocks_of
from tests.generate.layer_specs import Op
from tests.generate.layers import RecurrentCase
from tests.laws.parametrize import in_turn
from tests.passes.pass_testing import CASES, apply, before
from tests.runs.sessions import assert_same_bits, plain_session, run
from tests.subjects.custom_layers import cutting_layer
from tests.subjects.protos import parse

CELL = "the_lstm.forward"


def _fused(proto: onnx.ModelProto) -> Model:
    model = before("fuse-quant-lstm-cell", proto)
    FuseQuantLstmCell()(model)
    return model


def _names(model: onnx.ModelProto) -> set[str]:
    nodes = [n for block in blocks_of(model.functions) for n in block.node]
    return {name for n in nodes for name in (n.name, *n.input, *n.output)}


@pytest.mark.few(2)
@pytest.mark.parametrize("case", CASES)
def test_bodies_are_short_and_compute_the_same(case: RecurrentCase) -> None:
    model = _fused(case.model())
    long = model.proto
    assert apply(ShortenNames(), model).modified
    short, feeds = model.proto, case.feeds()
    formal = {name for f in long.functions for name in (*f.input, *f.output)}
    assert {name for name in _names(short) if len(name) > 3} <= formal | MESSAGES
    assert _names(short) & MESSAGES == _names(long) & MESSAGES != set()
    assert sum(f.ByteSize() for f in short.functions) < 0.5 * sum(f.ByteSize() for f in long.functions)
    assert short.graph == long.graph, "names outside functions are the user's to see"
    assert_same_bits(run(plain_session(long), feeds), run(plain_session(short), feeds), "short names")


@in_turn(op=["LSTM", "GRU", "RNN"], rest=["float", "int8", "int8"])
def test_lowered_files_have_short_bodies(op: Op, rest: str) -> None:
    """Those of linear layers, too, which are made last."""
    lowered = rnnqc.lower(RecurrentCase(op=op).model(), rest=rest).proto
    assert all(not n.name or n.name in MESSAGES for block in blocks_of(lowered.functions) for n in block.node)


def test_nodes_that_cut_several_values_keep_names() -> None:
    """onnxruntime before 1.22 uses their names for a Split."""
    lowered = rnnqc.lower(cutting_layer()).proto
    named = {n.name: n.op_type for block in blocks_of(lowered.functions) for n in block.node if n.name}
    assert sorted(named.values()) == ["Slice"] * 4 + ["Unsqueeze"]
    assert {n for n in named if len(n) > 3} == {TWO_BODIES}


def test_functions_of_others_and_models_without_stay() -> None:
    text = (
        '<ir_version: 10, opset_import: ["": 17, "mine": 1]> g (float[2] x) => (float[2] y) { y = mine.twice(x) }'
        ' <domain: "mine", opset_import: ["": 17]> twice (input) => (output) '
        "{ a_long_name = Identity(input) output = Add(a_long_name, a_long_name) }"
    )
    model = Model(parse(text))
    assert not apply(ShortenNames(), model).modified


def test_lengths_out_of_range_are_named() -> None:
    case = RecurrentCase(lens=(2, 4))
    lowered = rnnqc.lower(case.model()).proto
    feeds = case.feeds()
    feeds = {k: v + 100 if v.dtype == "int32" else v for k, v in feeds.items()}
    with pytest.raises(Exception, match="sequence_lens_must_be_0_to_T"):
        run(plain_session(lowered), feeds)


@pytest.mark.parametrize("spoil", ["operator", "attribute", "input", "output", "node"])
def test_a_changed_body_is_found(spoil: str) -> None:
    model = _fused(RecurrentCase().model())
    long = model.proto
    ShortenNames()(model)
    assert changed_body(long, model.proto, CELL) is None
    wrong = model.proto
    (function,) = (f for f in wrong.functions if f.domain == DOMAIN and f.name.startswith("QuantLSTMCell"))
    nodes = [n for block in blocks_of([function]) for n in block.node]
    if spoil == "operator":
        next(n for n in nodes if n.op_type == "Round").op_type = "Floor"
    elif spoil == "attribute":
        next(a for n in nodes if n.op_type == "Scan" for a in n.attribute if a.name == "num_scan_inputs").i += 1
    elif spoil == "input":
        product = next(n for n in nodes if n.op_type == "Mul" and n.input[0] != n.input[1])
        product.input[1] = product.input[0]
    elif spoil == "output":
        body = next(a.g for n in nodes if n.op_type == "Scan" for a in n.attribute if a.HasField("g"))
        body.output[0].name, body.output[1].name = body.output[1].name, body.output[0].name
    else:
        del next(a.g for n in nodes if n.op_type == "Scan" for a in n.attribute if a.HasField("g")).node[-1]
    found = changed_body(long, wrong, CELL)
    assert found is not None and "computes something else" in found
