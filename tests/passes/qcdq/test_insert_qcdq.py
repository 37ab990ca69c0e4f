"""insert-qcdq: fires, declines, edges.

What these would catch: a point that is not quantized although the recipe says so, or the other way round; a chain of
layers that takes another number format than the layer before has.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import pytest

from rnnqc.calibration.calibrate import calibrate
from rnnqc.cells.base import LSTM_POINTS
from rnnqc.data.statistics import Statistics
from rnnqc.errors import CompileError, Outcome, UsageError
from rnnqc.evaluation.numerics import Lossy, Numerics
from rnnqc.formats.packing import factorize
from rnnqc.ir import CELL_TAG, Model, constant_array, graph_info, info
from rnnqc.passes import InsertQcdq
from rnnqc.passes.cells.cell_graphs import chain_sources
from rnnqc.recipes.recipe import Recipe
from rnnqc.recipes.rules import parse_override
from tests.generate.float_layer import Activation
from tests.generate.layers import RecurrentCase, stacked_model
from tests.passes.pass_testing import INT8, apply, before, nodes_of, text_of
from tests.runs.sessions import assert_same_bits, plain_session, run

CASE = RecurrentCase()
FLOAT = Recipe("float", "", (parse_override("*.bits=none"),))
STATIC = INT8.with_overrides(["*.input.mode=static", "*.input.scale=0.03125"])


def _recipe(*overrides: str) -> Recipe:
    return FLOAT.with_overrides(overrides)


def _quantized(recipe: Recipe, proto: onnx.ModelProto | None = None) -> Model:
    model = before("insert-qcdq", proto or CASE.model())
    apply(InsertQcdq(recipe), model)
    return model


def test_golden(golden: Callable[[str, str], None]) -> None:
    golden("insert_qcdq.txt", text_of(_quantized(STATIC, CASE.replace(outputs=("Y_h",)).model())))


def test_int8() -> None:
    model = _quantized(INT8)
    (cell,) = model.cells.values()
    assert cell.form == "qcdq"
    assert set(cell.points) == {p.name for p in LSTM_POINTS}
    held = graph_info(model.graph).initializers
    for key, name in (("W", cell.W), ("R", cell.R)):
        codes = constant_array(held[name])
        assert codes is not None
        expected = cell.points[f"{key}.weight"].complete.quantize(CASE.parameters()[key][0].T)
        np.testing.assert_array_equal(codes, expected)
        assert np.abs(codes.astype(int)).max(axis=0).tolist() == [127] * 16, "every channel uses its range"
    assert all(
        info(n).metadata.get(CELL_TAG) == cell.name for n in nodes_of(model, "QuantizeLinear", "DequantizeLinear")
    )


@pytest.mark.parametrize(
    ("overrides", "ops"),
    [
        (["*.W.weight.bits=8"], {"DequantizeLinear": 1}),
        (["*.weight.bits=8", "*.weight.narrow=true"], {"DequantizeLinear": 2, "Clip": 2}),
        (["*.weight.bits=4", "*.weight.narrow=true"], {"DequantizeLinear": 2, "Clip": 2}),
        (["*.hidden.bits=8", "*.hidden.signed=false"], {"QuantizeLinear": 1, "DequantizeLinear": 1}),
        (["*.hidden.bits=5", "*.hidden.signed=false"], {"QuantizeLinear": 1, "DequantizeLinear": 1, "Clip": 1}),
        (["*.input.bits=8", "*.input.scale=0.1"], {"QuantizeLinear": 1, "DequantizeLinear": 1}),
        (["*.input_gate.acc.bits=13"], {"Round": 1, "Clip": 1}),
        (["*.acc.bits=8"], {"QuantizeLinear": 4, "DequantizeLinear": 4}),
        (["*.acc.bits=8", "*.acc.rounding=half_up"], {"Floor": 4, "Clip": 4}),
        (["*.cell_state.bits=16", "*.cell_state.scale=0.001"], {"Round": 1, "Clip": 1}),
    ],
)
def test_each_point_alone(overrides: list[str], ops: dict[str, int]) -> None:
    model = _quantized(_recipe(*overrides))
    float_ops = [n.op for n in nodes_of(before("insert-qcdq", CASE.model()))]
    quantizing = ("QuantizeLinear", "DequantizeLinear", "Clip", "Round", "Floor")
    found = {op: len(nodes_of(model, op)) - float_ops.count(op) for op in quantizing}
    assert {k: v for k, v in found.items() if v} == ops


@pytest.mark.parametrize("bits", [3, 8])
@pytest.mark.parametrize("granularity", ["per-channel", "per-tensor"])
def test_weights_are_quantized_as_the_encoding_says(granularity: str, bits: int) -> None:
    """By a layer without recurrence and with an input that picks rows of W."""
    case = RecurrentCase(T=1, B=3, bias=False, activations=(Activation("Affine", 1.0, 0.0),) * 3, outputs=("Y_c",))
    model = before("insert-qcdq", case.model())
    InsertQcdq(_recipe(f"*.weight.bits={bits}", f"*.weight.granularity={granularity}"))(model)
    got = run(plain_session(model.proto), {"X": np.eye(3, dtype=np.float32)[None]})["Y_c"][0]
    (cell,) = model.cells.values()
    w = case.parameters()["W"][0].T
    point = cell.points["W.weight"]
    assert len(point.scale) == (16 if granularity == "per-channel" else 1)
    encoding = point.complete
    i, _, _, c = np.split(encoding.dequantize(encoding.quantize(w)), 4, axis=1)
    np.testing.assert_array_equal(got, i * c)


def test_rows_get_their_own_scale() -> None:
    """Scaling one row of the input by a power of two scales its codes' meaning, and changes nothing else."""
    recipe = _recipe("*.input.bits=8", "*.input.signed=false", "*.input.mode=dynamic-row")
    case = RecurrentCase(T=1, bias=False, activations=(Activation("Affine", 1.0, 0.0),) * 3, outputs=("Y_c",))
    model = _quantized(recipe, case.model())
    x = case.feeds()["X"]
    outputs = [
        run(plain_session(model.proto), {"X": x * np.array([1, f], np.float32)[None, :, None]})["Y_c"][0]
        for f in (1, 64)
    ]
    np.testing.assert_array_equal(outputs[0][0], outputs[1][0])
    np.testing.assert_array_equal(outputs[0][1] * 64 * 64, outputs[1][1])


def test_quantizers_off_is_equal_bits() -> None:
    model = before("insert-qcdq", CASE.model())
    expected = run(plain_session(model.proto), CASE.feeds())
    result = InsertQcdq(FLOAT)(model)
    assert (result.modified, result.statistics) == (False, {"cells": 0})
    (remark,) = result.remarks
    assert (remark.outcome, remark.node, remark.reason) == (
        Outcome.FLOAT,
        "the_lstm",
        "the recipe quantizes nothing in it.",
    )
    assert_same_bits(expected, run(plain_session(model.proto), CASE.feeds()), "nothing quantized")


def test_a_cell_the_recipe_leaves_is_explained() -> None:
    (remark,) = InsertQcdq(FLOAT)(before("insert-qcdq", CASE.model())).remarks
    assert remark.found
    assert remark.action


def test_one_layer_of_two() -> None:
    proto = stacked_model([RecurrentCase(), RecurrentCase(I=4, seed=1)])
    model = before("insert-qcdq", proto)
    result = InsertQcdq(INT8.with_overrides(["layer1*.bits=none"]))(model)
    assert {c.name: c.form for c in model.cells.values()} == {"layer0.forward": "qcdq", "layer1.forward": "float"}
    assert [r.node for r in result.remarks] == ["layer1"]


def test_glob_without_a_point() -> None:
    model = before("insert-qcdq", CASE.model())
    with pytest.raises(
        UsageError, match=r"No quantization point matches 'encoder\*'.*the_lstm\.forward\.input.*rnnqc\.inspect"
    ):
        InsertQcdq(INT8.with_overrides(["encoder*.bits=4"]))(model)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["*.input.bits=8", "*.input.mode=static"], r"'the_lstm\.forward\.input': it has no scale.*calibration=DATA"),
        (["*.cell_state.bits=16"], r"'the_lstm\.forward\.cell_state': it has no scale"),
        (["*.input.bits=8", "*.input.scale=1", "*.input.zero_point=300"], r"zero_point = 300"),
        pytest.param(
            ["*.hidden.bits=7", "*.hidden.signed=false", "*.hidden.zero_point=128"], r"zero_point = 128.*hidden"
        ),
    ],
)
def test_recipes_that_leave_a_question(overrides: list[str], message: str) -> None:
    with pytest.raises(CompileError, match=message):
        InsertQcdq(_recipe(*overrides))(before("insert-qcdq", CASE.model()))


def test_the_forget_gate_of_coupled_gates_has_no_quantizer() -> None:
    model = _quantized(INT8, CASE.replace(input_forget=True).model())
    (cell,) = model.cells.values()
    assert cell.points["forget_gate.acc"].is_float
    assert cell.points["input_gate.acc"].bits == 13


@pytest.mark.parametrize(
    ("activations", "mode"),
    [(None, "static"), ((Activation("Sigmoid"), Activation("Tanh"), Activation("Relu")), "dynamic-row")],
)
def test_hidden_states_are_bounded_or_scaled_by_row(activations: Any, mode: str) -> None:
    (cell,) = _quantized(INT8, CASE.replace(activations=activations, gain=0.125).model()).cells.values()
    assert cell.points["hidden"].mode == mode
    if mode == "static":
        assert cell.points["hidden"].scale == (float(np.float32(1 / 127)),)


# Weights in groups and with wide channels


def test_groups_of_weights() -> None:
    """Codes of all groups have the channel's scale; the error is smaller than without groups."""
    case = RecurrentCase(I=70, H=40)
    parameters = case.parameters()
    errors = []
    for overrides in ([], ["*.weight.group_size=32"]):
        model = _quantized(INT8.with_overrides(["*.weight.bits=4", *overrides]), case.model())
        (cell,) = model.cells.values()
        held = graph_info(model.graph).initializers
        for key, name in (("W", cell.W), ("R", cell.R)):
            codes, point = constant_array(held[name]), cell.points[f"{key}.weight"]
            assert codes is not None
            assert codes.dtype == np.int8
            assert point.group_size == (32 if overrides else 0)
            encoding = point.complete
            assert (encoding.bits, len(encoding.scale)) == (8 if overrides else 4, 160)
            assert factorize(codes, 32)[1].all() or not overrides
            assert np.abs(codes.astype(int)).max() <= (126 if overrides else 7)
            errors.append(float(np.square(encoding.dequantize(codes) - parameters[key][0].T).sum()))
    assert errors[2] < 0.8 * errors[0]
    assert errors[3] < 0.8 * errors[1]


def test_wide_channels() -> None:
    """Ten of a hundred channels, those of the cell gate first: tanh passes more of an error on than a sigmoid."""
    model = _quantized(
        INT8.with_overrides(["*.weight.bits=4", "*.R.weight.wide_channels=0.1"]), RecurrentCase(H=25).model()
    )
    (cell,) = model.cells.values()
    codes = constant_array(graph_info(model.graph).initializers[cell.R])
    assert codes is not None
    largest = np.abs(codes.astype(int)).max(axis=0)
    assert sorted(set(largest.tolist())) == [7, 127]
    assert [int((largest == 127)[k : k + 25].sum()) for k in range(0, 100, 25)] == [0, 0, 0, 10]
    assert cell.points["R.weight"].complete.bits == 8
    assert cell.points["W.weight"].complete.bits == 4


@pytest.mark.parametrize(("bits", "gain"), [(3, 50), (4, 50), (5, 10), (6, 4)])
def test_wide_channels_among_groups(bits: int, gain: float) -> None:
    """Without data, too: those of the cell gate, at the scale of the groups; the others are what they are without."""
    made = {}
    for fraction in (0, 0.1):
        overrides = [f"*.weight.bits={bits}", "*.weight.group_size=32", f"*.R.weight.wide_channels={fraction}"]
        case = RecurrentCase(H=25)
        model = _quantized(INT8.with_overrides(overrides), case.model())
        (cell,) = model.cells.values()
        codes = constant_array(graph_info(model.graph).initializers[cell.R])
        assert codes is not None
        error = np.square(cell.points["R.weight"].complete.dequantize(codes) - case.parameters()["R"][0].T).sum(axis=0)
        made[fraction] = codes, cell.points["R.weight"].complete.scale, error
    (narrow, scale, before), (codes, same, after) = made.values()
    wide = (narrow != codes).any(axis=0)
    assert scale == same
    assert [int(wide[k : k + 25].sum()) for k in range(0, 100, 25)] == [0, 0, 0, 10]
    assert (factorize(codes, 32, max(bits, 4))[1] == 0).any(axis=0).tolist() == wide.tolist()
    assert (after[wide] < before[wide] / gain).all()


@pytest.mark.parametrize(
    ("overrides", "found", "supported"),
    [
        (["group_size=32"], "group_size = 32 with bits = 8", "2 to 6 bits"),
        (["group_size=32", "bits=7"], "group_size = 32 with bits = 7", "2 to 6 bits"),
        (["group_size=32", "bits=4", "granularity=per-tensor"], "with granularity = per-tensor", "per-channel"),
        (["group_size=32", "bits=4", "narrow=false"], "group_size = 32 with narrow = false", "narrow = true"),
        (["group_size=32", "bits=4", "range=mse"], "group_size = 32 with range = mse", "range = min-max"),
        (["group_size=32", "bits=4", "pow2=true"], "group_size = 32 with pow2 = true", "follow from the weights alone"),
        (["group_size=32", "bits=4", "share=x"], "group_size = 32 with share = x", "follow from the weights alone"),
        (["wide_channels=0.1"], "wide_channels = 0.1 with bits = 8", "2 to 7"),
        (["wide_channels=0.1", "bits=4", "signed=false", "narrow=false"], "with signed = false", "signed symmetric"),
        (["wide_channels=0.1", "bits=4", "symmetric=false"], "with symmetric = false", "signed symmetric"),
        (["wide_channels=0.1", "bits=4", "zero_point=2"], "with zero_point = 2", "around 0"),
        (["wide_channels=0.1", "bits=4", "granularity=per-tensor"], "with granularity = per-tensor", "per-channel"),
        (
            ["wide_channels=0.1", "bits=4", "scale=0.1"],
            "wide_channels = 0.1 with scale = 0.1",
            "follow from the weights",
        ),
    ],
)
def test_weight_formats_that_contradict_themselves(overrides: list[str], found: str, supported: str) -> None:
    with pytest.raises(CompileError) as caught:
        _quantized(INT8.with_overrides([f"*.R.weight.{o}" for o in overrides]))
    assert f"Quantization point 'the_lstm.forward.R.weight': {overrides[0].replace('=', ' = ')} with" in str(
        caught.value
    )
    assert found in str(caught.value)
    assert supported in caught.value.supported
    assert "--set 'the_lstm.forward.R.weight." in caught.value.action


# Layers in a row


def test_the_second_layer_takes_the_format_of_the_first() -> None:
    model = _quantized(INT8, stacked_model([RecurrentCase(), RecurrentCase(I=4, seed=1)]))
    first, second = model.cells.values()
    assert second.points["input"] == replace(first.points["hidden"], mode="codes")
    assert first.points["input"].mode == "dynamic-row"


def test_a_bidirectional_layer_in_front() -> None:
    model = _quantized(INT8, stacked_model([RecurrentCase(direction="bidirectional"), RecurrentCase(I=8, seed=1)]))
    assert model.cells["layer1.forward"].points["input"].mode == "codes"


@pytest.mark.few(2)
@pytest.mark.parametrize(
    "overrides",
    [
        ["*.chain=false"],
        ["layer0*.hidden.bits=none"],
        ["layer0.reverse.hidden.bits=7", "layer0.reverse.hidden.zero_point=64"],
    ],
)
def test_declines_to_chain(overrides: list[str]) -> None:
    proto = stacked_model([RecurrentCase(direction="bidirectional"), RecurrentCase(I=8, seed=1)])
    model = _quantized(INT8.with_overrides(overrides), proto)
    assert model.cells["layer1.forward"].points["input"].mode == "dynamic-row"


def _with_node_between(op: str) -> onnx.ModelProto:
    proto = stacked_model([RecurrentCase(), RecurrentCase(I=4, seed=1)])
    proto.graph.node.insert(2, onnx.helper.make_node(op, ["X1"], ["X1_changed"], name="between"))
    proto.graph.node[3].input[0] = "X1_changed"
    return proto


@pytest.mark.parametrize(("op", "chained"), [("Relu", False), ("Identity", True), ("Neg", False)])
def test_only_operators_that_move_are_passed(op: str, chained: bool) -> None:
    model = _quantized(INT8, _with_node_between(op))
    cell = model.cells["layer1.forward"]
    assert (cell.points["input"].mode == "codes") == chained
    value = model.find(cell.x)
    assert value is not None
    sources = chain_sources(model, value)
    assert (sources is not None) == chained
    if sources is not None:
        assert [c.name for c, _ in sources] == ["layer0.forward"]


def test_what_it_promises() -> None:
    """10 dB with usual widths; nothing with few bits, saturating accumulators or calibrated ranges."""

    def declared(recipe: Recipe, statistics: Statistics | None = None) -> Numerics | None:
        return InsertQcdq(recipe, statistics).run(before("insert-qcdq", CASE.model())).numerics

    assert declared(INT8) == Lossy(10.0)
    assert declared(INT8.with_overrides(["*.weight.bits=5"])) is None
    assert declared(INT8.with_overrides(["*.accumulator.bits=16", "*.input.scale=0.1", "*.input.mode=static"])) is None
    assert declared(INT8, calibrate(CASE.model(), [CASE.feeds()])) is None
