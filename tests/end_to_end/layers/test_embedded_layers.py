"""Layers behind an embedding, with `--rest int8`: which of them take its int8 rows, and what tells of it.

What these would catch: a recipe or an override that asks for another input and does not get it; floats that something
else reads and that are gone; an override without effect that nobody hears of; a trace that shows other values than the
rows; a file that a lowering of later passes cannot read again.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

import rnnqc
from rnnqc.cells.stages import IntegerCell
from rnnqc.ir import Model
from rnnqc.tracing.trace import Tracer
from tests.runs.commands import Result
from tests.runs.lowered import NATIVE, STOCK, run_both, session
from tests.runs.sessions import assert_same_bits, run
from tests.subjects.protos import parse
from tests.subjects.whole_models import WholeModel, in_rows

BODY = """
<ir_version: 8, opset_import: ["" : 17]>
g (int64[T,B] tokens, int64[T,B] others) => (float[T,1,B,16] y) {{ {text} }}
"""
SEED = np.random.default_rng(3)
WEIGHTS = {
    "table": SEED.standard_normal((90, 16)).astype(np.float32),
    "second": SEED.standard_normal((70, 16)).astype(np.float32),
    "w": (0.4 * SEED.standard_normal((1, 64, 16))).astype(np.float32),
    "wide": (0.4 * SEED.standard_normal((1, 64, 32))).astype(np.float32),
    "r": (0.4 * SEED.standard_normal((1, 64, 16))).astype(np.float32),
}
FEEDS = {n: np.random.default_rng(k).integers(-70, 70, (5, 3)) for k, n in enumerate(("tokens", "others"))}
LSTM = "LSTM <hidden_size = 16>"


def _model(text: str) -> onnx.ModelProto:
    used = set(re.findall(r"\w+", text))
    return parse(BODY.format(text=text), **{k: v for k, v in WEIGHTS.items() if k in used})


def _modes(lowered: rnnqc.Lowered) -> list[str]:
    """How the cells of a model get their inputs."""
    cells = lowered.model.cells.values()
    return [f"{c.numbers.x_mode} {c.numbers.x_bits}" if isinstance(c, IntegerCell) else c.form for c in cells]


@pytest.mark.parametrize(
    ("recipe", "overrides", "mode"),
    [
        ("int8", [], "row_codes 8"),
        ("w4a8", [], "row_codes 8"),
        ("w4a8-uneven", [], "row_codes 8"),
        ("int16", [], "dynamic_row 16"),
        ("int16", ["*.input.bits=8"], "row_codes 8"),
        ("int8", ["*.input.bits=16"], "dynamic_row 16"),
        ("int8", ["*.input.chain=false"], "dynamic_row 8"),
        ("int8", ["*.input.mode=static", "*.input.scale=0.03125"], "static 8"),
        ("int8", ["embedded*.weight.bits=none"], "dynamic_row 8"),
        ("int8", ["embedded*.weight.store=float16"], "dynamic_row 8"),
    ],
)
def test_what_the_recipe_asks_for_counts(recipe: str, overrides: Sequence[str], mode: str) -> None:
    """Rows of 8 bits replace a scale for each row of 8 bits, and nothing else."""
    lowered = rnnqc.lower(WholeModel(head=False).model(), recipe, rest="int8", overrides=overrides)
    assert _modes(lowered) == [mode]
    run_both(lowered.proto, WholeModel.feeds())


@pytest.mark.parametrize(
    ("text", "mode"),
    [
        (f"x = Gather (table, tokens) y = {LSTM} (x, w, r)", "row_codes 8"),
        (f"x = Gather (table, tokens) m = Relu (x) y = {LSTM} (m, w, r)", "dynamic_row 8"),
        (
            f"a = Gather (table, tokens) b = Gather (second, others) x = Add (a, b) y = {LSTM} (x, w, r)",
            "dynamic_row 8",
        ),
        (
            f"""a = Gather (table, tokens) b = Gather (second, others) x = Concat <axis = 2> (a, b)
            y = {LSTM} (x, wide, r)""",
            "dynamic_row 8",
        ),
    ],
)
def test_only_the_rows_of_one_embedding(text: str, mode: str) -> None:
    """Sums, parts and what is computed of rows are no rows of a table; the tables are stored all the same."""
    lowered = rnnqc.lower(_model(text), rest="int8", verify=True)
    assert _modes(lowered) == [mode]
    assert {e.form for e in lowered.report.rest.entries} == {"int8 rows"}
    run_both(lowered.proto, FEEDS)


def test_floats_that_others_read_stay() -> None:
    """A residual around the layer reads the floats: the layer still takes the rows, and both have the same values."""
    text = f"x = Gather (table, tokens) z = {LSTM} (x, w, r) a = Constant <value_ints = [1]> () e = Unsqueeze (x, a)"
    lowered = rnnqc.lower(_model(f"{text} y = Add (z, e)"), rest="int8")
    alone = rnnqc.lower(_model(f"x = Gather (table, tokens) y = {LSTM} (x, w, r)"), rest="int8")
    assert _modes(lowered) == _modes(alone) == ["row_codes 8"]
    floats = in_rows(WEIGHTS["table"])[FEEDS["tokens"]][:, None]
    assert_same_bits(
        {"y": run_both(alone.proto, FEEDS)["y"] + floats}, run_both(lowered.proto, FEEDS), "the sum with the floats"
    )


@pytest.mark.parametrize("inside", [True, False])
def test_layers_in_branches(inside: bool) -> None:
    """A layer takes the rows of an embedding in its own graph; one outside stays as it was."""
    model = _model(f"x = Gather (table, tokens) y = {LSTM} (x, w, r)")
    gather, layer = model.graph.node
    branch = helper.make_graph(
        [gather, layer] if inside else [layer],
        "branch",
        [],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)],
    )
    other = onnx.GraphProto()
    other.CopyFrom(branch)
    node = helper.make_node("If", ["yes"], ["y"], then_branch=branch, else_branch=other)
    for graph in node.attribute[1].g, node.attribute[0].g:
        for k, inner in enumerate(graph.node):
            inner.name = f"{graph.node[k].op_type}_{id(graph)}"
    del model.graph.node[:]
    model.graph.node.extend([*([] if inside else [gather]), node])
    model.graph.input.append(helper.make_tensor_value_info("yes", onnx.TensorProto.BOOL, []))
    lowered = rnnqc.lower(model, rest="int8")
    assert set(_modes(lowered)) == {"row_codes 8" if inside else "dynamic_row 8"}
    for yes in (True, False):
        run_both(lowered.proto, {**FEEDS, "yes": np.array(yes)})


def test_both_directions_share_the_rows() -> None:
    """One Gather of codes, and one of scales."""
    model = _model(f"t = Gather (table, tokens) y = {LSTM} (t, w, r)")
    for tensor in model.graph.initializer:
        if tensor.name in ("w", "r"):
            array = onnx.numpy_helper.to_array(tensor)
            tensor.CopyFrom(onnx.numpy_helper.from_array(np.concatenate([array, -array]), tensor.name))
    model.graph.node[1].attribute.append(helper.make_attribute("direction", "bidirectional"))
    model.graph.output[0].type.tensor_type.shape.dim[1].dim_value = 2
    lowered = rnnqc.lower(model, rest="int8")
    assert _modes(lowered) == ["row_codes 8"] * 2
    assert [n.op_type for n in lowered.proto.graph.node].count("Gather") == 2
    run_both(lowered.proto, FEEDS)


@pytest.mark.parametrize("form", ["fused", "integer", "qcdq"])
@pytest.mark.parametrize("native", [True, False])
def test_a_trace_shows_the_rows(form: str, native: bool) -> None:
    """The input of a cell is what the table holds; integer forms show its int8 values and scales."""
    model = WholeModel(head=False).model()
    lowered = rnnqc.lower(model, form=form, rest="int8")
    table = next(onnx.numpy_helper.to_array(t) for t in model.graph.initializer if t.name == "table")
    (steps,) = Tracer(lowered.proto, native=native).trace([WholeModel.feeds()])
    made = steps.tensors["input"]
    expected = in_rows(table)[WholeModel.feeds()["tokens"]]
    np.testing.assert_array_equal(made.values.astype(np.float32), expected)
    if form != "qcdq":
        assert made.codes is not None and made.row_scale is not None
        assert (made.codes.dtype, int(np.max(made.zero_point))) == (np.int8, 0)
        np.testing.assert_array_equal(made.codes * made.row_scale, expected)


def test_an_override_without_effect_is_told() -> None:
    """Settings of a scale that the row brings with it."""
    overrides = ["*.input.signed=true"]
    lowered = rnnqc.lower(WholeModel(head=False).model(), rest="int8", overrides=overrides)
    told = " ".join(lowered.report.warnings)
    assert "it reads the quantized rows of the embedding directly (chain), unless chain = false" in told


def test_formats_say_where_scales_come_from(tmp_path: Path, cli: Callable[..., Result]) -> None:
    """The formats of a lowering, as a recipe, make the same file again."""
    source = tmp_path / "in.onnx"
    onnx.save(WholeModel(head=False).model(), source)
    first, second, formats = tmp_path / "1.onnx", tmp_path / "2.onnx", tmp_path / "formats.toml"
    assert cli("lower", source, "-o", first, "--rest", "int8", "--save-formats", formats).code == 0
    assert "# quantized rows of the embedding" in formats.read_text()
    assert cli("lower", source, "-o", second, "--rest", "int8", "--recipe", formats).code == 0
    assert first.read_bytes() == second.read_bytes()


def test_a_lowered_file_is_read_again() -> None:
    """Its cells have the same description, and its scales are no weights that could be stored in fewer bytes."""
    lowered = rnnqc.lower(WholeModel(tied=False).model(), rest="int8")
    (cell,) = Model.load(lowered.proto).cells.values()
    (made,) = lowered.model.cells.values()
    assert isinstance(cell, IntegerCell) and isinstance(made, IntegerCell)
    assert cell.x_scale == made.x_scale is not None
    assert (cell.numbers, cell.points["input"]) == (made.numbers, made.points["input"])
    second = rnnqc.lower(lowered.proto, rest="int8")
    assert not [e for e in second.report.rest.entries if e.kind == "embeddings"]
    feeds = WholeModel.feeds()
    first, other = (run(session(m, STOCK), feeds) for m in (lowered.proto, second.proto))
    assert_same_bits(first, other, "lowered again")
    assert_same_bits(first, run(session(second.proto, NATIVE), feeds), "lowered again, native")
