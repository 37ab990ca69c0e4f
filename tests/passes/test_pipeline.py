"""The lists of passes.

What these would catch: an order that cannot work, a pass that a list of all passes leaves out, a line of the table of
contents that names another stage than the folder of its pass.
"""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path

import pytest

import rnnqc.passes
from rnnqc.cells.forms import EVERY_FORM, FORMS, WEIGHT_ONLY
from rnnqc.passes import Pass, PassManager
from rnnqc.passes.pipeline import (
    EXPORTED,
    NORMAL_FORM,
    default_passes,
    every_pass,
    exported_passes,
    last_passes,
    normal_form,
    optional_passes,
    own_passes,
    quantizes_custom_cells,
    recipe_passes,
    rest_passes,
)
from rnnqc.passes.rest.int8_weights import Int8Weights
from rnnqc.recipes.recipe import load_recipe

SOURCE = Path(rnnqc.passes.__file__).parent / "pipeline.py"
INT8, WEIGHTS = load_recipe("int8"), load_recipe("weight-only-int8")


@pytest.mark.parametrize("unroll", [False, True])
@pytest.mark.parametrize("form", FORMS)
def test_default_passes_are_a_possible_order(form: str, unroll: bool) -> None:
    passes = default_passes(load_recipe("int8"), form, unroll)
    names = [p.info.name for p in PassManager(passes).passes]
    assert names.index("canonicalize") < names.index("decompose-lstm")
    assert names.index("decompose-lstm") < names.index("insert-qcdq")
    assert names[-1] == ("shorten-names" if form == "fused" else "cleanup")
    assert ("fold-scales" in names) == (form != "qcdq")
    assert ("fuse-quant-lstm-cell" in names) == (form == "fused")
    assert ("unroll" in names) == unroll


@pytest.mark.parametrize("form", EVERY_FORM)
def test_lists_go_on_from_the_normal_form(form: str) -> None:
    """`lower` runs them in two parts: the first one establishes the requirements of the second."""
    scans = quantizes_custom_cells(INT8, form)
    assert scans == (form not in ("qonnx", "ort"))
    for whole, parts, given in (
        (default_passes(INT8, form, False), [normal_form(scans=scans), recipe_passes(INT8, form, False)], NORMAL_FORM),
        (exported_passes(form, False), [normal_form(keep_codes=True), own_passes(form, False)], EXPORTED),
    ):
        assert [p.info.name for p in whole] == [p.info.name for part in parts for p in part]
        PassManager(parts[0])
        PassManager(parts[1], given=given)


@pytest.mark.parametrize("form", FORMS)
def test_the_rest_comes_after_the_recurrent_layers(form: str) -> None:
    """Its passes require nothing that a form destroys."""
    passes = rest_passes(Int8Weights(INT8), INT8, form)
    PassManager([*default_passes(INT8, form, False), *passes])
    PassManager(passes, given=EXPORTED)
    linear = ["quantize-linear"] if form != "qcdq" else []
    names = ["shorten-names"] if form == "fused" else []
    assert [p.info.name for p in passes] == [*linear, "store-weights", "cleanup", *names]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("unroll", [False, True])
def test_embeddings_come_before_the_cells_that_read_them(form: str, unroll: bool) -> None:
    """A cell gets its formats when the tables are int8 already; custom cells in loops are marked before that."""
    passes = recipe_passes(INT8, form, unroll, None, Int8Weights(INT8))
    PassManager(passes, given=NORMAL_FORM)
    names = [p.info.name for p in passes]
    rest = ["fold-weights", "widen-operators", "quantize-embeddings"]
    order = ["quantize-custom-cells", *rest, "decompose-lstm", "insert-qcdq"]
    assert [n for n in names if n in order] == order
    without = recipe_passes(INT8, form, unroll)
    assert [n for n in names if n not in rest] == [p.info.name for p in without]


def test_embeddings_without_cells() -> None:
    """Recipes of weights alone, and models that keep their own quantization, store embeddings, too."""
    weights = Int8Weights(INT8)
    PassManager(own_passes("fused", False, weights), given=EXPORTED)
    for passes in (own_passes("fused", False, weights), recipe_passes(WEIGHTS, WEIGHT_ONLY, False, None, weights)):
        assert [p.info.name for p in passes].count("quantize-embeddings") == 1


@pytest.mark.parametrize("form", EVERY_FORM)
def test_last_passes(form: str) -> None:
    """They come after every other, whatever the form; readers of QONNX files know the operators as they are."""
    passes = last_passes(form)
    PassManager(passes, given=EXPORTED)
    fused = ["fuse-views", "shorten-names"] if form == "fused" else []
    assert [p.info.name for p in passes] == ([] if form == "qonnx" else ["join-views", "store-shapes", *fused])


def test_weights_alone() -> None:
    names = [p.info.name for p in default_passes(WEIGHTS, WEIGHT_ONLY, False)]
    assert names[-2:] == ["quantize-weights", "cleanup"]
    assert not {"decompose-lstm", "insert-qcdq", "fold-scales"} & set(names)


def test_every_pass_is_in_a_list() -> None:
    known = {v for n, v in vars(rnnqc.passes).items() if inspect.isclass(v) and issubclass(v, Pass) and v is not Pass}
    listed = [type(p) for p in every_pass(INT8, WEIGHTS)]
    optional = [type(p) for p in optional_passes()]
    assert {*listed, *optional} == known, "passes/__init__.py exports each pass, a list of passes/pipeline.py has it"
    assert len(listed) + len(optional) == len(known), "a pass is in both"
    assert listed[: len(normal_form(fold=True))] == [type(p) for p in normal_form(fold=True)]


def test_lines_name_the_folder_of_their_pass() -> None:
    """`Pass(...),  # folder: what it does`."""
    text = SOURCE.read_text(encoding="utf-8")
    folders = {
        a.name: n.module.split(".")[2]
        for n in ast.walk(ast.parse(text))
        if isinstance(n, ast.ImportFrom) and n.module and n.module.count(".") == 3
        for a in n.names
    }
    lines = list(re.finditer(r"\b([A-Z]\w+)\(.*#\s(\w+)", text))
    names = {type(p).__name__ for p in [*every_pass(INT8, WEIGHTS), *optional_passes()]}
    assert {m[1] for m in lines} == names, "its line in passes/pipeline.py ends in `# <folder>: what it does`"
    assert [(m[1], m[2]) for m in lines] == [(m[1], folders[m[1]]) for m in lines]
