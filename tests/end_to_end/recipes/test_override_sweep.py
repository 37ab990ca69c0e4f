"""Every key on every kind of point in every recipe either changes the lowered model, or a message says why not.

What these would catch: an override that is ignored in silence, and a warning about one that is not.
"""

from __future__ import annotations

import functools
import random
from typing import Any

import numpy as np
import onnx
import pytest

import rnnqc
from rnnqc.calibration.float_cells import decompose
from rnnqc.cells.forms import INTEGER, QCDQ
from rnnqc.data.statistics import Statistics
from rnnqc.errors import CompileError
from rnnqc.ir import Model
from rnnqc.lowering.reports.report import Lowered
from rnnqc.passes import PassManager
from rnnqc.passes.analysis.custom_points import points_of_recurrences
from rnnqc.passes.formats.override_effects import idle_overrides, points_of_types
from rnnqc.passes.pipeline import NORMAL_FORM, normal_form, recipe_passes
from rnnqc.recipes.keys import KEYS, keys_of
from rnnqc.recipes.recipe import builtin_recipes, load_recipe
from tests.laws.parametrize import every_pair
from tests.subjects.custom_layers import feeds_of, layer

CELLS = ("LSTM", "GRU", "RNN", "other")
RECIPES = [r.name for r in builtin_recipes()]
VALUES: dict[str, tuple[str, ...]] = {
    "bits": ("none", "6", "16", "4"), "signed": ("true", "false"), "narrow": ("true", "false"),
    "symmetric": ("true", "false"), "granularity": ("per-channel", "per-gate", "per-tensor"),
    "group_size": ("32", "none"), "codebook": ("uneven", "none"), "wide_channels": ("0.25", "0"),
    "mode": ("static", "dynamic-row", "bounded", "activation", "product"), "scale": ("0.03125",),
    "zero_point": ("3", "0"), "rounding": ("floor", "half_away"), "table": ("exact", "piecewise-linear", "vitis"),
    "equalize": ("true", "false"), "chain": ("true", "false"), "range": ("min-max", "mse", "pow2-max", "percentile"),
    "percentile": ("97",), "n_std": ("1.5",), "half_range": ("true",), "limit": ("0.25", "none"),
    "levels": ("max-code", "half-range", "min-code"), "pow2": ("true", "false"), "max_fix_position": ("3", "none"),
    "scale_bits": ("3", "none"), "share": ("one", "none"), "same_as": ("none", "hidden", "cell_state"),
    "compensation": ("true", "false"), "bias_correction": ("true", "false"), "shift_limits": ("true", "false"),
    "rounded_output": ("true", "false"), "store": ("integer", "float16"),
}  # fmt: skip
SAMPLED = 2
"""How many values are tried of one cell in each recipe, and in form qcdq, without --slow."""


@functools.cache
def subject(cell: str) -> tuple[onnx.ModelProto, Statistics, dict[str, list[str]]]:
    """Two layers of LSTMs, GRUs or RNNs, or one of another cell; statistics; the points by the names of the cells."""
    rng = np.random.default_rng(0)
    if cell == "other":
        model = layer(initial_states=True)
        statistics = rnnqc.calibrate(model, [feeds_of(model, seed) for seed in range(3)])
        loaded = Model.load(model)
        PassManager(normal_form()).run(loaded)
        return model, statistics, points_of_recurrences(loaded)
    gates, width = {"LSTM": 4, "GRU": 3, "RNN": 1}[cell], 32
    nodes, initializers = [], []
    for k in range(2):
        for name, shape in (
            ("W", (1, gates * width, width)),
            ("R", (1, gates * width, width)),
            ("B", (1, 2 * gates * width)),
        ):
            array = (rng.standard_normal(shape) * 0.3).astype(np.float32)
            initializers.append(onnx.numpy_helper.from_array(array, f"{name}{k}"))
        options = {"linear_before_reset": k} if cell == "GRU" else {}
        inputs = ["x" if not k else "s", f"W{k}", f"R{k}", f"B{k}"]
        nodes.append(onnx.helper.make_node(cell, inputs, [f"y{k}"], f"l{k}", hidden_size=width, **options))
        nodes.append(onnx.helper.make_node("Squeeze", [f"y{k}", "one"], ["s" if not k else "y"], f"s{k}"))
    initializers.append(onnx.numpy_helper.from_array(np.array([1]), "one"))
    x, y = (onnx.helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, ["T", "B", width]) for n in "xy")
    graph = onnx.helper.make_graph(nodes, "g", [x], [y], initializers)
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    size = 2.0 ** rng.integers(-6, 6, width)  # worth an equalization
    data = [{"x": (rng.standard_normal((9, 2, width)) * size).astype(np.float32)} for _ in range(3)]
    loaded = Model.load(model)
    decompose(loaded, "sweep")
    return model, rnnqc.calibrate(model, data), points_of_types(list(loaded.cells.values()))


def computed(model: onnx.ModelProto) -> bytes:
    """The model without what it says about itself, and without the order of its constants."""
    kept = onnx.ModelProto()
    kept.CopyFrom(model)
    del kept.metadata_props[:]
    constants = sorted(kept.graph.initializer, key=lambda i: i.name)
    del kept.graph.initializer[:]
    kept.graph.initializer.extend(constants)
    pending: list[Any] = [kept.graph, *kept.functions]
    while pending:
        block = pending.pop()
        del block.metadata_props[:]
        for node in block.node:
            del node.metadata_props[:]
            pending += [a.g for a in node.attribute if a.HasField("g")]
    return kept.SerializeToString(deterministic=True)


@functools.cache
def plain(cell: str, recipe: str) -> bytes:
    return computed(lowered(cell, recipe, []).proto)


def lowered(cell: str, recipe: str, overrides: list[str]) -> Lowered:
    model, statistics, _ = subject(cell)
    return rnnqc.lower(model, recipe, stats=statistics, overrides=overrides)


@functools.cache
def normalized(cell: str) -> onnx.ModelProto:
    loaded = Model.load(subject(cell)[0])
    PassManager(normal_form()).run(loaded)
    return loaded.proto


@functools.cache
def plain_in(form: str, cell: str, recipe: str) -> bytes:
    return by_passes(form, cell, recipe, [])[0]


def by_passes(form: str, cell: str, recipe: str, overrides: list[str]) -> tuple[bytes, list[str]]:
    """As `lowered`, by the passes after the normal form alone; and what is said of overrides that change nothing."""
    asked = load_recipe(recipe).with_overrides(overrides)
    model = Model.load(normalized(cell))
    results = PassManager(recipe_passes(asked, form, False, subject(cell)[1]), given=NORMAL_FORM).run(model)
    return computed(model.proto), idle_overrides(asked, [r.effects for r in results])


def suspected(form: str, cell: str, recipe: str, override: str) -> str | None:
    """Describes an override that neither changes the file nor is reported, or both; None for others."""
    try:
        made, told = by_passes(form, cell, recipe, [override])
    except CompileError:
        return None
    same = made == plain_in(form, cell, recipe)
    return None if same == bool(told) else f"{recipe} {cell} {override}: {told or 'silent'}"


def wrong(cell: str, recipe: str, override: str) -> str | None:
    """Does the same for the whole lowering to one node for each layer."""
    if suspected(INTEGER, cell, recipe, override) is None:
        return None
    made = lowered(cell, recipe, [override])
    told = [w for w in made.report.warnings if "changes nothing" in w]
    same = computed(made.proto) == plain(cell, recipe)
    return None if same == bool(told) else f"{recipe} {cell} {override}: {told or 'silent'}"


def cases(cell: str, recipe: str) -> list[str]:
    """Every key with every value on one point of each kind and place, of the last of the cells."""
    weight_only = recipe.startswith("weight-only") or recipe == "fp16"
    name, points = list(subject(cell)[2].items())[-1]
    kinds: dict[tuple[str, ...], str] = {}
    for point in points:
        kind = point.rpartition(".")[2]
        kinds.setdefault((point.partition(".")[0] if kind in ("weight", "activation") else "", kind), point)
    chosen = [p for p in kinds.values() if not weight_only or p.endswith(".weight")]
    return [f"{name}.{p}.{k}={value}" for p in chosen for k in keys_of(p) for value in VALUES[k]]


def test_another_arithmetic_is_an_effect() -> None:
    """The formats are the same, but a cell with such a table does not compute as Brevitas does."""
    override = "l1.forward.hidden.activation.table=piecewise-linear"
    assert wrong("LSTM", "brevitas-int8", override) is None
    assert computed(lowered("LSTM", "brevitas-int8", [override]).proto) != plain("LSTM", "brevitas-int8")


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("cell", "recipe", "override", "reason"),
    [
        ("RNN", "brevitas-int8", "hidden.rounded_output=false", "its outputs are the states that it keeps"),
        ("GRU", "int8", "hidden.rounded_output=true", "its outputs are the states that it keeps"),
        ("GRU", "pow2-int8-floor", "reset_gate.activation.zero_point=3", "the numbers in the file are the same"),
        ("LSTM", "distiller-sym", "W.weight.signed=false", "the numbers in the file are the same"),
    ],
)
def test_formats_that_come_to_the_same_numbers_are_told(cell: str, recipe: str, override: str, reason: str) -> None:
    made = lowered(cell, recipe, [f"l1.forward.{override}"])
    (told,) = [w for w in made.report.warnings if "changes nothing" in w]
    assert reason in told
    assert [r["status"] for r in made.rows] == ["lowered", "lowered"]
    assert computed(made.proto) == plain(cell, recipe)


@pytest.mark.parametrize(
    ("cell", "recipe", "override", "is_idle"),
    [
        ("LSTM", "int8", "l1.forward.hidden.rounded_output=true", False),
        ("LSTM", "int8", "l1.forward.W.weight.rounding=half_away", True),
        ("LSTM", "int8", "l1.forward.input.same_as=hidden", True),
        ("other", "int8", "layer.step/from_h.weight.narrow=false", False),
        ("other", "brevitas-int8", "layer.step/from_x.weight.narrow=false", False),
        ("other", "brevitas-int8", "layer.step/from_h.weight.narrow=false", True),
    ],
)
def test_what_form_qcdq_writes(cell: str, recipe: str, override: str, is_idle: bool) -> None:
    """The rounding of weights shows in their values alone; where rounded states leave the cell, in the operators.

    Limits of weights show in the Clip in front of a DequantizeLinear, where a product has one.
    """
    _, told = by_passes(QCDQ, cell, recipe, [override])
    assert bool(told) == is_idle
    assert suspected(QCDQ, cell, recipe, override) is None


def test_a_cell_without_integer_form_is_judged_by_its_quantizers() -> None:
    """One whose hidden state stays float."""
    override = "l1.forward.cell_state.rounding=floor"
    made = lowered("LSTM", "brevitas-int8", ["l1.forward.hidden.bits=none", override])
    assert computed(made.proto) != computed(lowered("LSTM", "brevitas-int8", ["l1.forward.hidden.bits=none"]).proto)
    assert not any("changes nothing" in w for w in made.report.warnings)


def test_an_exact_table_of_one_layer_is_not_that_of_another() -> None:
    """Tables of the same name: `l0` has the default ones."""
    overrides = [f"l1.forward.{gate}.activation.table=exact" for gate in ("input_gate", "output_gate", "forget_gate")]
    assert computed(lowered("LSTM", "int8", [*overrides, "l1.forward.cell_gate.activation.table=exact"]).proto) not in (
        plain("LSTM", "int8"),
        computed(lowered("LSTM", "int8", overrides).proto),
    )


def test_every_key_has_values() -> None:
    assert set(VALUES) == set(KEYS)


EVERY = [(cell, recipe) for cell in CELLS for recipe in RECIPES]


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("cell", "recipe"),
    # Each recipe with two cells in turn.
    [
        pytest.param(c, r, marks=[] if (CELLS.index(c) + RECIPES.index(r)) % 2 == 0 else pytest.mark.slow)
        for c, r in EVERY
    ],
)
def test_overrides_change_something_or_are_told(cell: str, recipe: str, request: pytest.FixtureRequest) -> None:
    if cell == "other" and (recipe.startswith("weight-only") or recipe == "fp16"):
        pytest.skip("recipes of weights are for ONNX's operators")
    every = cases(cell, recipe)
    if not request.config.getoption("--slow"):
        every = random.Random(f"{cell} {recipe}").sample(every, min(len(every), SAMPLED))
    assert [found for override in every if (found := wrong(cell, recipe, override))] == []


@pytest.mark.few(1)
@every_pair(cell=CELLS, recipe=("brevitas-int8", "int8", "pow2-int8-floor", "w4a8"))
def test_overrides_in_form_qcdq(cell: str, recipe: str, request: pytest.FixtureRequest) -> None:
    """Tables of activations and quantized values from layer to layer are no part of this form."""
    every = cases(cell, recipe)
    if not request.config.getoption("--slow"):
        every = random.Random(f"{cell} {recipe} {QCDQ}").sample(every, SAMPLED)
    assert [found for override in every if (found := suspected(QCDQ, cell, recipe, override))] == []
