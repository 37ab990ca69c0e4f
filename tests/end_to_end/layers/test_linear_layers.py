"""Linear layers behind recurrent ones: what `lower(rest="int8")` makes of those that are large enough to gain.

What these would catch: bits that depend on the form, the way of execution, the level of optimization, the number of
threads or on how rows are put together; a large layer that stays float in silence; a tied table that is stored twice.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnxruntime.quantization import quantize_dynamic

import rnnqc
from tests.laws.law import law
from tests.runs.lowered import INTEGER, NATIVE, STOCK, run_both, session
from tests.runs.sessions import Array, assert_same_bits, plain_session, run, sqnr
from tests.subjects.protos import parse

WIDTH, TOKENS = 64, 4200


def language_model(tied: bool) -> onnx.ModelProto:
    """Tokens `[T,B]` through embedding and LSTM to logits; the decoder has more than 2^18 weights."""
    rng = np.random.default_rng(7)

    def draw(*shape: int) -> Array:
        return (rng.standard_normal(shape) * 0.2).astype(np.float32)

    weights = {
        "table": draw(TOKENS, WIDTH), "w": draw(1, 4 * WIDTH, WIDTH), "r": draw(1, 4 * WIDTH, WIDTH),
        "bias": draw(1, 8 * WIDTH), "b": draw(TOKENS),
    }  # fmt: skip
    weights |= {} if tied else {"decoder": draw(TOKENS, WIDTH)}
    text = f"""
    <ir_version: 8, opset_import: ["" : 17]>
    lm (int64[T,B] tokens) => (float[T,B,{TOKENS}] logits)
    {{
        embedded = Gather (table, tokens)
        y = LSTM <hidden_size = {WIDTH}> (embedded, w, r, bias)
        axes = Constant <value_ints = [1]> ()
        h = Squeeze (y, axes)
        turned = Transpose <perm = [1, 0]> ({"table" if tied else "decoder"})
        p = MatMul (h, turned)
        logits = Add (p, b)
    }}
    """
    return parse(text, **weights)


def feeds(seed: int = 0) -> dict[str, Array]:
    """Tokens of three sequences."""
    return {"tokens": np.random.default_rng(seed).integers(0, TOKENS, (5, 3))}


@pytest.mark.few(1)
@pytest.mark.parametrize("tied", [True, False])
def test_the_law_with_a_decoder(tied: bool) -> None:
    proto = language_model(tied)
    forms = law(proto, feeds=[feeds(0), feeds(1)], rest="int8", ways=(STOCK, NATIVE, INTEGER))
    entries = {e.kind: e for e in forms.stock.report.rest.entries}
    assert {k: e.form for k, e in entries.items()} == {"linear layers": "int8 matmul", "embeddings": "int8 rows"}
    nodes = [n for n in forms.stock.proto.graph.node if n.op_type == "QuantLinear"]
    assert len(nodes) == 1
    tables = [t for t in forms.stock.proto.graph.initializer if sorted(t.dims) == [WIDTH, TOKENS]]
    assert len(tables) == (1 if tied else 2)
    assert {t.data_type for t in tables} == {onnx.TensorProto.INT8}
    expected = run(plain_session(proto), feeds())["logits"]
    found = run(forms.session(STOCK), feeds())["logits"]
    assert sqnr(expected, found) > 33
    for way in (STOCK, NATIVE):
        rows = [run(forms.session(way), {"tokens": feeds()["tokens"][:, k : k + 1]})["logits"] for k in range(3)]
        assert_same_bits({"logits": found}, {"logits": np.concatenate(rows, axis=1)}, way)


@pytest.mark.parametrize("tied", [True, False])
def test_quantize_dynamic_afterwards(tied: bool, tmp_path: Path) -> None:
    """It finds nothing that is float. It took the scales of an embedding: no session opened the file, or other bits."""
    lowered = rnnqc.lower(language_model(tied), rest="int8")
    lowered.save(tmp_path / "lowered.onnx")
    quantize_dynamic(tmp_path / "lowered.onnx", tmp_path / "both.onnx")
    expected = run(session(lowered.proto, STOCK), feeds())
    assert_same_bits(expected, run_both(onnx.load(tmp_path / "both.onnx"), feeds()), "both")


def test_four_bits() -> None:
    """As the recipe says of all weights."""
    lowered = rnnqc.lower(language_model(False), recipe="w4a8", rest="int8")
    assert [n.op_type for n in lowered.proto.graph.node if n.op_type.startswith("QuantLinear")] == ["QuantLinearInt4"]
    run_both(lowered.proto, feeds())


def test_without_the_option_nothing_changes() -> None:
    lowered = rnnqc.lower(language_model(True)).proto
    assert not [f.name for f in lowered.functions if f.name.startswith("QuantLinear")]


def test_the_form_for_other_tools_has_no_such_nodes() -> None:
    lowered = rnnqc.lower(language_model(False), form="qcdq", rest="int8")
    assert {e.form for e in lowered.report.rest.entries} == {"int8 rows", "int8 storage"}
    assert not [n for n in lowered.proto.graph.node if n.op_type == "MatMulInteger"]
