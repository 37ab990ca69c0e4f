"""The entries of recurrent nodes in the report of a lowering.

What these would catch: a lowered model that is said to have no recurrent layer, a second lowering that puts its own
recipe in the place of the one that made the codes, sizes that `inspect` and `lower` count in two ways.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import rnnqc
from rnnqc.ir import Model
from rnnqc.passes import PassManager
from rnnqc.passes.analysis.find_recurrent_nodes import lowered_nodes, recurrent_nodes
from rnnqc.passes.pipeline import normal_form
from rnnqc.recipes.recipe_record import RECIPE_KEY
from tests.generate.layers import RecurrentCase
from tests.generate.recurrences import RecurrenceCase
from tests.subjects.protos import parse

LSTM = RecurrentCase(T=3, B=2, I=4, H=5)
LOOP = RecurrenceCase(op="highway", form="scan", time=4)
MODELS = {
    "LSTM": LSTM.model(),
    "loop": LOOP.model(),
    "written out": RecurrenceCase(op="highway", form="unrolled", time=4).model(),
}
DIGITS = Path(__file__).resolve().parents[3] / "models" / "digits_lstm.onnx"
"""Has a linear layer, too."""
each_model = pytest.mark.parametrize("name", MODELS)


def record_of(proto: onnx.ModelProto) -> Any:
    return json.loads({p.key: p.value for p in proto.metadata_props}[RECIPE_KEY])


@pytest.mark.few(3)
@each_model
@pytest.mark.parametrize("form", ["fused", "qcdq"])
def test_what_is_lowered_already_is_listed(name: str, form: str) -> None:
    once = rnnqc.lower(MODELS[name], form=form, overrides=["*.weight.bits=6"])
    again = rnnqc.lower(once.proto, form=form)
    (first,), (second,) = once.report.entries, again.report.entries
    assert (first.earlier, second.earlier) == (False, True)
    assert (second.node, second.op, second.status, second.form) == (first.node, first.op, "lowered", first.form)
    assert (second.bytes, second.float_bytes) == (first.bytes, first.bytes)
    assert (second.cells, second.points, second.summary) == (first.cells, first.points, first.summary)
    assert record_of(once.proto)["overrides"] == record_of(again.proto)["overrides"] == 1


@pytest.mark.few(1)
@pytest.mark.parametrize("form", ["fused", "integer"])
def test_a_layer_of_two_directions_is_one_entry_again(form: str) -> None:
    """As at the first lowering, with the bytes of both."""
    once = rnnqc.lower(RecurrentCase(T=3, B=2, I=4, H=5, direction="bidirectional").model(), form=form)
    again = rnnqc.lower(once.proto, form=form)
    (first,), (second,) = once.report.entries, again.report.entries
    assert len(first.cells) == 2
    assert (second.node, second.cells, second.bytes) == (first.node, first.cells, first.bytes)
    assert "1 of 1 lowered already" in again.headline


@pytest.mark.few(1)
@each_model
def test_another_recipe_than_that_of_what_is_lowered_already(name: str) -> None:
    """It is refused; the message names both recipes, and the first node. Only the existing recipe may be given."""
    once = rnnqc.lower(MODELS[name], "int16", overrides=["*.weight.bits=6"])
    node = once.report.entries[0].node
    refused(once.proto, "w4a8", told=f"recipe 'w4a8' does not apply to 1 recurrent node(s), the first {node!r}")
    refused(once.proto, "w4a8", told="lowered already, with recipe 'int16' (1 override(s)). Supported: float models")
    assert rnnqc.lower(once.proto).report.warnings == []
    assert rnnqc.lower(once.proto, "int16", overrides=["*.weight.bits=6"]).report.warnings == []
    for other in ([], ["*.weight.bits=5"]):
        refused(once.proto, "int16", overrides=other, told="with recipe 'int16' (1 override(s))")
    bare = onnx.ModelProto()
    bare.CopyFrom(once.proto)
    del bare.metadata_props[[p.key for p in bare.metadata_props].index(RECIPE_KEY)]
    refused(bare, "int16", told="the model does not say with which recipe")


def refused(proto: onnx.ModelProto, recipe: str, *, told: str, **options: Any) -> None:
    with pytest.raises(rnnqc.CompileError, match=re.escape(told)) as caught:
        rnnqc.lower(proto, recipe, **options)
    assert "Resolution: lower the float model that it was made from" in str(caught.value)


def test_another_recipe_for_what_is_left() -> None:
    """Where it applies to something, what it does not apply to is warned of."""
    once = rnnqc.lower(DIGITS, "int16")
    again = rnnqc.lower(once.proto, "w4a8", rest="int8")
    assert again.report.rest.is_changed
    (warning,) = (w for w in again.report.warnings if "does not apply" in w)
    assert "lowered already, with recipe 'int16'. Resolution: lower the float model" in warning


def test_other_statistics_than_those_of_what_is_lowered_already() -> None:
    feeds = LSTM.feeds()
    wider = {**feeds, "X": 2 * feeds["X"]}
    statistics = [rnnqc.calibrate(MODELS["LSTM"], [f]) for f in (feeds, wider)]
    once = rnnqc.lower(MODELS["LSTM"], "int8-static", stats=statistics[0])
    assert rnnqc.lower(once.proto, "int8-static", stats=statistics[0]).report.warnings == []
    refused(once.proto, "int8-static", stats=statistics[1], told="recipe 'int8-static' (statistics ")


def test_the_record_has_the_form_that_cells_have_now() -> None:
    """Its rules remain those that made the quantized values."""
    once = record_of((lowered := rnnqc.lower(MODELS["LSTM"], "int16", "qcdq")).proto)
    again = record_of(rnnqc.lower(lowered.proto, form="fused").proto)
    assert (once["form"], again["form"]) == ("qcdq", "fused")
    assert {**again, "form": "qcdq"} == once
    refused(lowered.proto, "int8", form="fused", told="recipe 'int8' does not apply")


@each_model
def test_a_lowered_model_is_not_calibrated(name: str) -> None:
    feeds = LSTM.feeds() if name == "LSTM" else LOOP.feeds()
    with pytest.raises(rnnqc.CompileError, match=r"cell '.*' is lowered already.*calibrate the model that it was"):
        rnnqc.calibrate(rnnqc.lower(MODELS[name]).proto, [feeds])


def _sizes(model: onnx.ModelProto) -> Sequence[int]:
    loaded = Model.load(model)
    done = lowered_nodes(loaded)
    PassManager(normal_form()).run(loaded)
    return [n.weight_bytes for n in (*done, *recurrent_nodes(loaded))]


STEP = """
  [g] g = MatMul (x, W)
  [s] s = MatMul (h, R)
  [t] t = MatMul (h, R)
  k = Tanh (t)
  [u] u = MatMul (h, S)
  r = Add (u, b)
  v = Add (g, s)
  w = Add (v, r)
  m = Mul (w, k)
  h_next = Tanh (m)
"""


@pytest.mark.few(2)
@pytest.mark.parametrize("overrides", [[], ["*/t.weight.bits=none"], ["*/u.weight.bits=none"]])
def test_sizes_of_a_recurrence(overrides: list[str]) -> None:
    """The weights of matmuls, each constant once, without biases, before and after, also those that stay float."""
    rng = np.random.default_rng(0)
    shapes = {"W": (3, 5), "R": (5, 5), "S": (5, 5), "b": (5,)}
    arrays = {k: rng.normal(0, 1, s).astype(np.float32) for k, s in shapes.items()}
    text = (
        f'<ir_version: 8, opset_import: ["": 17]> cell (float[B,3] x, float[B,5] h) => (float[B,5] h_next) {{{STEP}}}'
    )
    model = rnnqc.layer(parse(text, **arrays))
    before = 4 * (3 * 5 + 5 * 5 + 5 * 5)
    assert _sizes(model) == [before]
    lowered = rnnqc.lower(model, overrides=overrides)
    (entry,) = lowered.report.entries
    assert (entry.status, entry.float_bytes) == ("lowered", before)
    integer = {"g": ("W", 15), "s": ("R", 25), "t": ("R", 25), "u": ("S", 25)}
    left = {o.partition("/")[2].partition(".")[0] for o in overrides}
    stored = {what for name, what in integer.items() if name not in left}
    codes = sum(size + 4 * 5 for _, size in stored)  # a byte each, scales of columns
    assert entry.bytes == codes + 4 * 25 * len(left)
    assert _sizes(lowered.proto) == [entry.bytes]


def test_several_remarks_of_one_kind_about_a_node() -> None:
    """The first one is shown with the number of others, without a form it does not explain; notes have all of them."""
    overrides = ["*.same_as=none", "*.input.scale=4.0"]
    report = rnnqc.lower(MODELS["LSTM"], "pow2-int16", overrides=overrides, calibration=[LSTM.feeds()]).report
    notes = [n for n in report.notes if "is lowered to" in n]
    assert len(notes) > 1
    (entry,) = report.entries
    assert re.search(rf"fix position \d+ is lowered to -?\d+, and {len(notes) - 1} more\.$", entry.reason)
    (text,) = (t for _, t in report.told() if "is lowered to" in t)
    assert text.startswith(f'Operator "LSTM" (node {entry.node!r}): {entry.reason} Found: ')


UNUSED = {
    "its output": "y = LSTM <hidden_size = 4> (x, W, R) z = Relu (x)",
    "what is made of it": "y = LSTM <hidden_size = 4> (x, W, R) u = Relu (y) z = Relu (x)",
    "computed weights": "V = Identity (W) y = LSTM <hidden_size = 4> (x, V, R) z = Relu (x)",
}


@pytest.mark.parametrize("nodes", UNUSED.values(), ids=UNUSED.keys())
@pytest.mark.parametrize("recipe", ["int8", "weight-only-int8"])
def test_a_layer_that_nothing_uses(recipe: str, nodes: str) -> None:
    """With a recipe of weights alone it was called a custom cell; with computed weights it had no entry."""
    text = f'<ir_version: 8, opset_import: ["": 17]> g (float[T,B,3] x) => (float[T,B,3] z) {{ {nodes} }}'
    arrays = {"W": np.ones((1, 16, 3), np.float32), "R": np.ones((1, 16, 4), np.float32)}
    (entry,) = rnnqc.lower(parse(text, **arrays), recipe=recipe).report.entries
    assert (entry.status, entry.reason, entry.action) == ("float", "nothing uses it.", "remove the node")
