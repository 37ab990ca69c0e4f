"""Cells as Brevitas exports them, lowered and compared bit by bit with Brevitas' arithmetic.

What these would catch: an operation in another order or another precision than Brevitas has it, a quantizer that is
left out, applied twice or read from the wrong inputs, a gate in the place of another, a state that is rounded again.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest

import rnnqc
from rnnqc.ir import RELEASED_TAG
from tests.laws.parametrize import every_pair, in_turn
from tests.runs.commands import in_process
from tests.runs.lowered import (
    INTEGER,
    NATIVE,
    STOCK,
    UNROLLED,
    all_nodes,
    assert_all_lowered,
    assert_equals_reference,
    run_both,
    session,
)
from tests.runs.sessions import run, save_arrays
from tests.subjects.brevitas.models import CASES, DOMAINS, MARGIN, Exported, draw_feeds, one_cell, oracle, random_lstm
from tests.subjects.brevitas.reference import Lstm, Quant

MODES = ("ROUND", "FLOOR", "CEIL", "ROUND_TO_ZERO", "DPU")
Arrays = Mapping[str, npt.NDArray[np.float32]]


def assert_same_codes(expected: Arrays, actual: Arrays, what: str) -> None:
    """Asserts equal values; Brevitas has some negative zeros."""
    assert set(actual) == set(expected), what
    for name, wanted in expected.items():
        assert actual[name].dtype == np.float32
        different = int((actual[name] != wanted).sum()) if actual[name].shape == wanted.shape else -1
        assert different == 0, f"{what}: {name} differs at {different} of {wanted.size} places"


LEVELS = ("ORT_ENABLE_ALL", "ORT_DISABLE_ALL")
QCDQ, UNROLLED_QCDQ = "form qcdq", "unrolled form qcdq"


def lower_to_qcdq(model: onnx.ModelProto | Path, way: str) -> rnnqc.Lowered:
    """Lowers to standard operators in float; the results have no cells any more."""
    lowered = rnnqc.lower(model, form="qcdq", unroll=way == UNROLLED_QCDQ)
    assert {e.form for e in lowered.report.entries} == {"qcdq"}, way
    assert {n.domain for n in all_nodes(lowered.proto)} == {""}, way
    assert not lowered.proto.functions
    assert not lowered.model.cells
    return lowered


ALL_WAYS = (STOCK, NATIVE, INTEGER, UNROLLED, QCDQ, UNROLLED_QCDQ)
FEW_WAYS = ((STOCK, NATIVE, INTEGER, UNROLLED_QCDQ), (STOCK, NATIVE, UNROLLED, QCDQ))


def check(
    model: onnx.ModelProto | Path,
    feeds: Arrays,
    expected: Arrays,
    levels: Sequence[str] = LEVELS,
    ways: Sequence[str] = ALL_WAYS,
) -> None:
    """Checks every form in every way of execution, with onnxruntime's optimizations and without."""
    assert any(len(np.unique(v)) > 4 for v in expected.values()), "a trivial case"
    fused = rnnqc.lower(model)
    for way in ways:
        if way in (QCDQ, UNROLLED_QCDQ):
            lowered = lower_to_qcdq(model, way)
        else:
            lowered = fused
            if way in (INTEGER, UNROLLED):
                lowered = rnnqc.lower(model, form="integer", unroll=way == UNROLLED)
            assert_all_lowered(lowered, way)
        for level in levels:
            assert_same_codes(expected, run(session(lowered.proto, way, level), feeds), f"{way}, {level}")


@pytest.mark.few(1)
@pytest.mark.parametrize("name", CASES)
def test_exported_by_brevitas(name: str, shared: Callable[[str], Path]) -> None:
    path = shared(f"brevitas/{name}/model.onnx")
    with np.load(path.parent / "inputs.npz") as feeds, np.load(path.parent / "expected.npz") as expected:
        check(path, dict(feeds), dict(expected))


ASYMMETRIC = {k: {"zero_point": z} for k, z in (("output", 5.0), ("cell_state", -9.0), ("input_acc", 7.0))}
ASYMMETRIC |= {"cell_tanh": {"zero_point": -3.0}, "forget_sigmoid": {"zero_point": 11.0}}
MIXED = {
    "*": {"bits": 6},
    "output": {"bits": 8},
    "cell_acc": {"bits": 5},
    "output_sigmoid": {"bits": 4, "scale": 1 / 15},
}
WIDE = {
    **{f"{g}_acc": {"bits": 16, "scale": 2.0**-11} for g in ("input", "forget", "cell", "output")},
    "cell_state": {"bits": 16, "scale": 2.0**-12},
}
VARIATIONS: dict[str, dict[str, Any]] = {
    "default": {},
    "narrow": {"changes": {"*": {"narrow": 1}}},
    "wide weights not narrow": {"weight_narrow": 0},
    "zero points": {"changes": ASYMMETRIC},
    "unsigned state": {"changes": {"output": {"signed": 0, "zero_point": 120.0}}},
    "cifg": {"cifg": True},
    "cifg, sigmoid below one": {"cifg": True, "changes": {"input_sigmoid": {"scale": 0.0033}}},
    "reverse": {"reverse": True},
    "batch first": {"batch_first": True},
    "no bias": {"bias": False},
    "per channel": {"per_channel": True},
    "per channel, asymmetric weights": {"per_channel": True, "weight_zero_point": 9.0, "weight_narrow": 0},
    "unsigned weights": {"weight_signed": 0, "weight_zero_point": 128.0, "weight_narrow": 0},
    "binary weights": {"weight_bits": 1, "weight_narrow": 0},
    "ternary weights": {"weight_bits": 2},
    **{f"{b}-bit weights": {"weight_bits": b} for b in range(3, 8)},
    "12-bit weights": {"weight_bits": 12},
    "mixed widths": {"changes": MIXED},
    "16-bit accumulators and cells": {"changes": WIDE},
    "16-bit states": {"changes": {"output": {"bits": 16, "scale": 2.0**-14}}},
    **{f"rounding {m}": {"changes": {"*": {"mode": m}}} for m in MODES},
    **{f"rounding {m}, zero points": {"changes": {k: {**v, "mode": m} for k, v in ASYMMETRIC.items()}} for m in MODES},
    "larger": {"size": 40, "hidden": 35},
}


@pytest.mark.few(3)
@in_turn(name=VARIATIONS, pow2=[False, True], states=[False, False, True, True], turn=[0, 1, 1, 0])
def test_one_cell(name: str, pow2: bool, states: bool, turn: int) -> None:
    """Zeros or initial states, any scales or powers of two, and each level of optimizations, in turn."""
    lstm = random_lstm(100 + len(name), pow2=pow2, **VARIATIONS[name])
    feeds = draw_feeds(lstm, 1, states, pow2)
    check(one_cell(lstm, feeds), feeds, oracle(lstm, feeds), LEVELS[int(states) :][:1], FEW_WAYS[turn])


@pytest.mark.few(2)
@in_turn(bits=[8, 16], form=["fused", "integer", "qcdq"])
def test_gates_of_unsigned_and_of_signed_weights(bits: int, form: str) -> None:
    """Unsigned weights are stored with an offset, signed ones without: their lowest values would overflow the type."""
    lstm = random_lstm(
        3, pow2=True, weight_bits=bits, weight_narrow=0, weight_signed=0, weight_zero_point=2.0 ** (bits - 1)
    )
    lstm.weight[1] = replace(lstm.weight[1], signed=1, zero_point=np.float32(0))
    feeds = draw_feeds(lstm, 3, False, True)
    lowered = rnnqc.lower(one_cell(lstm, feeds), form=form, strict=True)
    assert_same_codes(oracle(lstm, feeds), run(rnnqc.session(lowered.proto), feeds), form)


@in_turn(domain=DOMAINS, misspelt=[False, True])
def test_spellings(domain: str, misspelt: bool) -> None:
    """The narrow output sigmoid shows in the codes: a reader that misses the attribute gives others."""
    saturating = {"output_sigmoid": {"narrow": 1, "bits": 3, "scale": 0.11}}
    lstm = random_lstm(3, changes=saturating)
    lstm.bias = [b + 2 for b in lstm.bias or []]
    feeds = draw_feeds(lstm, 2, False, False)
    expected = oracle(lstm, feeds)
    wide = random_lstm(3, changes={"output_sigmoid": {**saturating["output_sigmoid"], "narrow": 0}})
    wide.bias = lstm.bias
    assert not np.array_equal(oracle(wide, feeds)["outputs"], expected["outputs"])
    quant = "IntQuant" if misspelt else "Quant"
    check(one_cell(lstm, feeds, Exported(domain, misspelt, quant)), feeds, expected, LEVELS[:1], (STOCK, NATIVE, QCDQ))


def test_lower_case_rounding() -> None:
    lstm = random_lstm(5, changes={"cell_state": {"mode": "FLOOR"}})
    feeds = draw_feeds(lstm, 2, False, False)
    expected = oracle(lstm, feeds)
    model = one_cell(lstm, feeds)
    text = model.SerializeToString().replace(b"FLOOR", b"floor")
    check(onnx.ModelProto.FromString(text), feeds, expected, LEVELS[:1], (STOCK, NATIVE, QCDQ))


def test_a_recipe_that_is_asked_for_and_does_not_apply_is_named() -> None:
    lstm = random_lstm(6)
    model = one_cell(lstm, draw_feeds(lstm, 3, False, False))
    assert not rnnqc.lower(model).report.warnings
    for arguments, named in (({"recipe": "w4a8"}, "recipe 'w4a8'"), ({"overrides": ["*.weight.bits=4"]}, "bits=4")):
        (warning,) = rnnqc.lower(model, **arguments).report.warnings
        assert "does not apply to 1 cell(s)" in warning and named in warning and "'int8'" not in warning


def test_single_constants_are_no_lost_layer() -> None:
    """Would catch: a QuantTensor's scale, zero point and bits, told as layers that the exporter dropped."""
    lstm = random_lstm(6)
    model = one_cell(lstm, draw_feeds(lstm, 3, False, False))
    for name in ("cell_output_scale", "cell_output_bit_width"):
        model.graph.output.append(onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, []))
    assert not rnnqc.lower(model).report.warnings


@pytest.mark.few(1)
@pytest.mark.parametrize("opset", [13, 17, 18, 20, 21])
def test_operator_sets(opset: int) -> None:
    lstm = random_lstm(6)
    feeds = draw_feeds(lstm, 3, True, False)
    check(one_cell(lstm, feeds, opset=opset), feeds, oracle(lstm, feeds), LEVELS[opset % 2 :][:1], FEW_WAYS[opset % 2])


def test_ties() -> None:
    """Untrained scales: inputs and accumulators fall on ties all the time, and their sums are exact in any order."""
    powers = {"*": {"scale": 2.0**-7}, **{f"{g}_sigmoid": {"scale": 1 / 255} for g in ("input", "forget", "output")}}
    for zero, ways in zip((0.0, 1.0), FEW_WAYS, strict=True):
        changes = {
            **powers,
            **{k: {"scale": 2.0**-7, "zero_point": zero} for k in ("output", "cell_state", "input_acc")},
        }
        lstm = random_lstm(7, pow2=True, changes=changes)
        feeds = {"x": (np.random.default_rng(4).integers(-256, 256, (6, 3, 7)) / 256).astype(np.float32)}
        check(one_cell(lstm, feeds), feeds, oracle(lstm, feeds), LEVELS[:1], ways)


def test_layers_and_directions() -> None:
    """Two bidirectional layers; the second one takes what the first one makes."""
    e = Exported()
    cells: list[list[Lstm]] = []
    shared = {k: random_lstm(8).quantizers[k].__dict__ for k in ("output", "cell_state")}
    value = "x"
    collected: list[list[str]] = [[], []]
    axes = e.constant("axes", np.zeros(1, np.int64))
    for layer, size in enumerate((7, 18)):
        pair = [random_lstm(10 + 2 * layer + r, size, changes=shared, reverse=bool(r)) for r in (0, 1)]
        cells.append(pair)
        made = []
        for r, lstm in enumerate(pair):
            x = value if layer else e.quant("x", lstm.quantizers["output"], f"x_quant_{r}")
            outputs = e.cell(lstm, x, f"cell_{layer}_{r}")
            made.append(outputs[0])
            for k in (0, 1):
                collected[k].append(e.op("Unsqueeze", [outputs[k + 1], axes], f"state_{k}_{layer}_{r}"))
        value = e.op("Concat", made, f"layer_{layer}", axis=-1)
    e.op("Identity", [value], "outputs")
    for name, parts in zip(("h", "c"), collected, strict=True):
        e.op("Concat", parts, name, axis=0)
    model = e.model({"x": ["T", "B", 7]}, {"outputs": 3, "h": 3, "c": 3})
    for attempt in range(50):
        x = np.random.default_rng(attempt).normal(0, 0.6, (5, 2, 7)).astype(np.float32)
        sequence, states = cells[0][0].quantizers["output"](x), []
        for pair in cells:
            results = [lstm.run(sequence) for lstm in pair]
            sequence = np.concatenate([r[0] for r in results], axis=-1)
            states += results
        if min(m for pair in cells for lstm in pair for m in lstm.margins) > MARGIN:
            break
    expected = {"outputs": sequence, "h": np.stack([r[1] for r in states]), "c": np.stack([r[2] for r in states])}
    lowered = rnnqc.lower(model)
    assert_all_lowered(lowered, "two layers")
    assert modes_of_input(lowered) == ["static", "static", "codes", "codes"]
    for way in (STOCK, NATIVE):
        for level in LEVELS:
            assert_same_codes(expected, run(session(lowered.proto, way, level), {"x": x}), f"{way}, {level}")
    assert assert_equals_reference(lowered.proto, {"x": x}) == 4


def modes_of_input(lowered: rnnqc.Lowered) -> list[str]:
    return sorted((c.numbers.x_mode for c in lowered.model.cells.values()), reverse=True)


STACKS: dict[str, tuple[dict[str, Any], list[str]]] = {
    "default": ({}, ["static", "codes", "codes"]),
    "narrow": ({"output": {"narrow": 1}}, ["static", "codes", "codes"]),
    "5 bits, zero point": ({"output": {"bits": 5, "zero_point": 3.0, "scale": 0.07}}, ["static", "codes", "codes"]),
    "floor": ({"output": {"mode": "FLOOR"}}, ["static", "codes", "codes"]),
    "unsigned": ({"output": {"signed": 0, "zero_point": 120.0}}, ["static", "codes", "codes"]),
    "16 bits": ({"output": {"bits": 16, "scale": 2.0**-14}}, ["static"] * 3),
}


@pytest.mark.few(1)
@in_turn(what=STACKS, batch_first=[False, True], turn=[0, 1, 1, 0])
def test_codes_pass_between_layers(what: str, batch_first: bool, turn: int) -> None:
    """Every layer's hidden states are also outputs of the model, and the last layer runs backwards."""
    changes, modes = STACKS[what]
    e = Exported()
    shared = {"output": {**random_lstm(8).quantizers["output"].__dict__, **changes.get("output", {})}}
    flags = {"changes": shared, "batch_first": batch_first}
    layers = [random_lstm(20 + k, 7 if k == 0 else 9, **flags, reverse=k == 2) for k in range(3)]
    value = e.quant("x", layers[0].quantizers["output"], "x_quant")
    for k, lstm in enumerate(layers):
        value = e.cell(lstm, value, f"cell_{k}")[0]
        e.op("Identity", [value], f"layer_{k}")
    shape = (2, 5, 7) if batch_first else (5, 2, 7)
    model = e.model({"x": shape}, {f"layer_{k}": 3 for k in range(3)})
    for attempt in range(50):
        x = np.random.default_rng(attempt).normal(0, 0.6, shape).astype(np.float32)
        expected, sequence = {}, layers[0].quantizers["output"](x)
        for k, lstm in enumerate(layers):
            sequence = lstm.run(sequence)[0]
            expected[f"layer_{k}"] = sequence
        if min(m for lstm in layers for m in lstm.margins) > MARGIN:
            break
    assert modes_of_input(rnnqc.lower(model)) == modes
    check(model, {"x": x}, expected, LEVELS[turn:][:1], FEW_WAYS[turn])


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("changes", "mode"),
    [({}, "codes"), ({"scale": np.float32(0.0071)}, "static"), ({"bits": 7}, "static"), ({"mode": "FLOOR"}, "static")],
)
def test_codes_of_other_formats_do_not_pass(changes: dict[str, Any], mode: str) -> None:
    """A layer with its own input quantizer quantizes float values, unless the result must be the same."""
    shared = {"output": random_lstm(8).quantizers["output"].__dict__}
    first, second = (random_lstm(30 + k, 7 if k == 0 else 9, changes=shared) for k in range(2))
    between = Quant(**{**shared["output"], **changes})
    for attempt in range(50):
        x = np.random.default_rng(attempt).normal(0, 0.6, (5, 2, 7)).astype(np.float32)
        expected = second.run(between(first.run(first.quantizers["output"](x))[0]))[0]
        if min(*first.margins, *second.margins) > MARGIN:
            break
    e = Exported()
    made = e.cell(first, e.quant("x", first.quantizers["output"], "x_quant"), "first")[0]
    e.op("Identity", [e.cell(second, e.quant(made, between, "between"), "second")[0]], "y")
    lowered = rnnqc.lower(e.model({"x": [5, 2, 7]}, {"y": 3}))
    assert modes_of_input(lowered) == ["static", mode]
    assert_same_codes({"y": expected}, run_both(lowered.proto, {"x": x}), mode)


def _of_any_size(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with names for length and batch of its input x."""
    shape = next(i for i in model.graph.input if i.name == "x").type.tensor_type.shape
    for dim, name in zip(shape.dim, ("T", "B"), strict=False):
        dim.dim_param = name
    return model


def test_batch_of_the_zero_states_is_free() -> None:
    """Traced with a batch of 1, run with another one and another length."""
    lstm = random_lstm(9)
    feeds = draw_feeds(lstm, 5, False, False)
    lowered = rnnqc.lower(_of_any_size(one_cell(lstm, feeds)))
    assert_same_codes(oracle(lstm, feeds), run_both(lowered.proto, feeds), "another batch")


@every_pair(mode=MODES, zero_point=[0.0, 3.0], domain=DOMAINS)
def test_quantizers_alone(domain: str, mode: str, zero_point: float) -> None:
    e = Exported(domain)
    q = Quant(np.float32(0.037), 5, 1, zero_point, 1, mode)
    e.op("Relu", [e.quant("x", q, "quantized")], "y")
    e.op("Neg", [e.quant("x", Quant(np.float32(0.3), 1), "bipolar")], "sign")
    ties = (np.arange(-60, 60) / 2).astype(np.float32) * np.float32(0.037)
    x = np.concatenate([ties, np.random.default_rng(0).normal(0, 0.4, 200)]).astype(np.float32)
    lowered = rnnqc.lower(e.model({"x": [len(x)]}, {"y": 1, "sign": 1}))
    got = run(session(lowered.proto, STOCK), {"x": x})
    expected = {"y": np.maximum(q(x), 0), "sign": -Quant(np.float32(0.3), 1)(x)}
    assert_same_codes(expected, got, mode)


def refused(change: Callable[[onnx.ModelProto], None]) -> Any:
    lstm = random_lstm(9)
    feeds = draw_feeds(lstm, 5, False, False)
    model = one_cell(lstm, feeds)
    change(model)
    (entry,) = rnnqc.lower(model).report.entries
    assert entry.status == "float"
    assert entry.action
    return entry


def _initializer(model: onnx.ModelProto, name: str, value: float) -> None:
    tensor = next(t for t in model.graph.initializer if t.name == name)
    tensor.CopyFrom(onnx.numpy_helper.from_array(np.float32(value), name))


def test_refusals_say_why() -> None:
    def raw_input(model: onnx.ModelProto) -> None:
        cell = next(n for n in model.graph.node if n.op_type == "QuantLSTMCell")
        cell.input[0] = "x"

    def float_weight(model: onnx.ModelProto) -> None:
        cell = next(n for n in model.graph.node if n.op_type == "QuantLSTMCell")
        cell.input[3] = "cell_W_input_raw"

    def unknown(model: onnx.ModelProto) -> None:
        cell = next(n for n in model.graph.node if n.op_type == "QuantLSTMCell")
        next(a for a in cell.attribute if a.name == "output_rounding_mode").s = b"STOCHASTIC_ROUND"

    assert "Nothing runs it as it is" in refused(unknown).reason
    assert "its input is not quantized" in refused(raw_input).reason
    assert "W is not quantized" in refused(float_weight).reason
    assert "too wide" in refused(lambda m: _initializer(m, "cell_input_acc_bit_width", 24)).reason
    assert "zero point" in refused(lambda m: _initializer(m, "cell_cell_tanh_zero_point", 0.5)).reason
    assert "scale" in refused(lambda m: _initializer(m, "cell_output_scale", 0)).reason


@pytest.mark.few(2)
@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("name", ["cell_W_input_raw", "cell_R_cell_raw", "cell_bias_output_raw"])
def test_parameters_that_are_not_finite(name: str, value: float) -> None:
    """Would catch: NaN that becomes the quantized value 0, infinity that becomes the largest one."""

    def poison(model: onnx.ModelProto) -> None:
        tensor = next(t for t in model.graph.initializer if t.name == name)
        array = onnx.numpy_helper.to_array(tensor).copy()
        array.flat[1] = value
        tensor.CopyFrom(onnx.numpy_helper.from_array(array, name))

    entry = refused(poison)
    assert "NaN or infinite" in entry.reason and "1 of " in entry.found


@pytest.mark.few(4)
@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("cifg", 2, "attribute cifg is neither 0 nor 1"),
        ("batch_first", "no", "attribute batch_first is neither 0 nor 1"),
        ("output_signed", [0], "attribute output_signed is neither 0 nor 1"),
        ("input_acc_narrow", -1, "attribute input_acc_narrow is neither 0 nor 1"),
        ("reverse_input", None, "lacks the attribute reverse_input"),
        ("cell_state_signed", None, "lacks the attribute cell_state_signed"),
        ("output_sigmoid_narrow_range", None, "lacks the attribute output_sigmoid_narrow"),
        ("cell_tanh_rounding_mode", None, "lacks the attribute cell_tanh_rounding_mode"),
    ],
)
def test_attributes_say_what_is_meant(name: str, value: Any, text: str) -> None:
    """Would catch: text that counts as on, an attribute that is guessed."""

    def change(model: onnx.ModelProto) -> None:
        (cell,) = (n for n in model.graph.node if n.op_type == "QuantLSTMCell")
        kept = [a for a in cell.attribute if a.name != name]
        assert len(kept) == len(cell.attribute) - 1, "no such attribute"
        del cell.attribute[:]
        cell.attribute.extend(kept)
        if value is not None:
            cell.attribute.append(onnx.helper.make_attribute(name, value))

    assert text in refused(change).reason


@pytest.mark.few(1)
@pytest.mark.parametrize("form", ["fused", "integer", "qcdq"])
def test_one_row_of_initial_states_stands_for_all(form: str) -> None:
    """Would catch: states [1,H] beside inputs of three rows, which no runtime loads as they are."""
    lstm = random_lstm(9)
    feeds = draw_feeds(lstm, 5, True, False)
    row = {**feeds, "h0": feeds["h0"][:, :1], "c0": feeds["c0"][:, :1]}
    full = {**feeds, "h0": np.repeat(row["h0"], 3, 1), "c0": np.repeat(row["c0"], 3, 1)}
    wanted = run(rnnqc.session(rnnqc.lower(one_cell(lstm, full))), full)
    made = rnnqc.lower(one_cell(lstm, row), form=form)
    for native in (False, True):
        assert_same_codes(wanted, run(rnnqc.session(made, native=native), row), f"{form}, {native}")


def test_initial_states_of_three_axes_are_refused() -> None:
    def keep_layers(model: onnx.ModelProto) -> None:
        (cell,) = (n for n in model.graph.node if n.op_type == "QuantLSTMCell")
        model.graph.input.append(onnx.helper.make_tensor_value_info("h3", onnx.TensorProto.FLOAT, [1, 3, 5]))
        cell.input[1] = "h3"

    entry = refused(keep_layers)
    assert "initial hidden state has not two axes" in entry.reason and "[B,H]" in entry.action


@pytest.mark.parametrize(
    ("state", "text"),
    [
        (np.zeros((3, 8), np.float32), "initial hidden state does not fit"),
        (np.full((3, 9), np.nan, np.float32), "initial hidden state has values that are NaN or infinite"),
    ],
)
def test_initial_states_that_are_none(state: npt.NDArray[np.float32], text: str) -> None:
    """Would catch: zeros of any width that count as no state, NaN that becomes a quantized value."""

    def change(model: onnx.ModelProto) -> None:
        (cell,) = (n for n in model.graph.node if n.op_type == "QuantLSTMCell")
        model.graph.initializer.append(onnx.numpy_helper.from_array(state, "other_state"))
        cell.input[1] = "other_state"

    assert text in refused(change).reason


def test_attributes_of_another_version_are_refused() -> None:
    """Would catch: a cell that computes something else, read as the one that is known."""

    def change(model: onnx.ModelProto) -> None:
        (cell,) = (n for n in model.graph.node if n.op_type == "QuantLSTMCell")
        cell.attribute.append(onnx.helper.make_attribute("peephole_signed", 1))

    entry = refused(change)
    assert "attribute that no version of Brevitas writes" in entry.reason and entry.found == "peephole_signed"


def _raw_weights(model: onnx.ModelProto) -> None:
    cell = next(n for n in model.graph.node if n.op_type == "QuantLSTMCell")
    for k in range(3, 11):
        cell.input[k] = f"{cell.input[k]}_raw"


WITHOUT_INTEGER_FORM: dict[str, dict[str, Any]] = {
    "float weights": {},
    "20-bit accumulators": {
        "pow2": True,
        "changes": {f"{g}_acc": {"bits": 20, "scale": 2.0**-15} for g in ("input", "forget", "cell", "output")},
    },
    "binary states": {"changes": {"output": {"bits": 1, "scale": 0.4}}},
    "zero point beside the codes": {"changes": {"cell_tanh": {"zero_point": 0.5}, "cell_state": {"zero_point": 2.5}}},
}


FLAGS: list[dict[str, bool]] = [{}, {"reverse": True}, {"batch_first": True, "cifg": True}]


@pytest.mark.few(2)
@every_pair(name=WITHOUT_INTEGER_FORM, flags=FLAGS, states=[False, True])
def test_cells_without_an_integer_form(name: str, states: bool, flags: dict[str, bool]) -> None:
    """They run in float32, in Brevitas' order, and the report says why."""
    arguments = WITHOUT_INTEGER_FORM[name]
    lstm = random_lstm(31, **arguments, **flags)
    exported = one_cell(lstm, draw_feeds(random_lstm(31, **flags), 1, states, False))
    if name == "float weights":
        _raw_weights(exported)
        lstm.weight = [lambda values: values] * 4  # type: ignore[assignment,list-item]
    for seed in range(40):
        feeds = draw_feeds(random_lstm(31, **flags), seed, states, False)
        expected = oracle(lstm, feeds)
        if arguments.get("pow2") or min(lstm.margins) > MARGIN:
            break
    lowered = rnnqc.lower(exported)
    (entry,) = lowered.report.entries
    assert entry.status == "float"
    assert entry.reason.endswith("It runs in float32 operators, exactly but without a native kernel.")
    assert not [n for n in lowered.proto.graph.node if n.domain]
    for level in LEVELS:
        assert_same_codes(expected, run(session(lowered.proto, STOCK, level), feeds), f"{name}, {level}")


def test_command_line(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    lstm = random_lstm(9)
    feeds = draw_feeds(lstm, 5, False, False)
    source, target = tmp_path / "exported.onnx", tmp_path / "lowered.onnx"
    onnx.save(one_cell(lstm, feeds), source)
    inspected = in_process(capfd, "inspect", source)
    assert inspected.code == 0
    assert "QuantLSTMCell" in inspected.out
    lowered = in_process(capfd, "lower", source, "-o", target, "--strict")
    assert lowered.code == 0, lowered.text
    assert_same_codes(oracle(lstm, feeds), run(rnnqc.session(target), feeds), "lowered by the command")
    save_arrays(tmp_path / "inputs.npz", feeds)
    for options in ([], ["--stock"]):
        ran = in_process(capfd, "run", source, "-i", tmp_path / "inputs.npz", "-o", tmp_path / "out.npz", *options)
        assert ran.code == 0, ran.text
        with np.load(tmp_path / "out.npz") as results:
            assert_same_codes(oracle(lstm, feeds), dict(results), "run as it was exported")
    qcdq = in_process(capfd, "lower", source, "-o", target, "--form", "qcdq", "--strict")
    assert qcdq.code == 0, qcdq.text
    assert_same_codes(oracle(lstm, feeds), run(session(onnx.load(target), STOCK), feeds), "form qcdq by the command")
    again = in_process(capfd, "lower", target, "-o", tmp_path / "again.onnx")
    assert again.code == 0, again.text
    assert "stays in form qcdq" in again.err


def test_what_inspect_says_of_scales_is_true(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The command that it names for writing the scales of channels does so."""
    lstm = random_lstm(9)
    source, target, said = (tmp_path / n for n in ("exported.onnx", "lowered.onnx", "said.json"))
    onnx.save(one_cell(lstm, draw_feeds(lstm, 5, False, False)), source)
    assert in_process(capfd, "lower", source, "-o", target, "--json", said).code == 0
    inspected = in_process(capfd, "inspect", target)
    assert "rnnqc lower EXPORT --json writes them" in " ".join(inspected.out.split())
    assert "save-formats" not in inspected.out
    points = json.loads(said.read_text())["points"]
    assert {len(p["scale"]) for n, p in points.items() if n.endswith(".weight")} == {4 * 9}


@pytest.mark.few(1)
@pytest.mark.parametrize("unroll", [False, True])
def test_its_own_file_of_form_qcdq_is_known(tmp_path: Path, capfd: pytest.CaptureFixture[str], unroll: bool) -> None:
    """No pass processes such cells further: every command reports them, their formats, and what to do."""
    lstm = random_lstm(9, pow2=True)
    source, out = tmp_path / "qcdq.onnx", tmp_path / "out.onnx"
    rnnqc.lower(one_cell(lstm, draw_feeds(lstm, 5, False, True)), form="qcdq", unroll=unroll).save(source)
    found = rnnqc.inspect(source)
    (node,) = found.nodes
    assert (node.op, node.status, node.form, node.attributes["hidden_size"]) == ("QuantLSTMCell", "done", "qcdq", 9)
    assert {f"{node.path}.{p}" for p in ("W.weight", "cell_state", "hidden")} <= set(found.points)
    printed = in_process(capfd, "inspect", source)
    assert "done (qcdq)" in printed.out and "lower the exported model" in printed.out
    for options in (["--strict"], ["--form", "qcdq"], []):
        lowered = in_process(capfd, "lower", source, "-o", out, *options)
        assert lowered.code == 0, lowered.text
        assert "1 of 1 lowered already (form qcdq)" in lowered.text
        assert ("stays in form qcdq" in lowered.err) == ("--form" not in options)
        out.unlink()
    refused = in_process(capfd, "lower", source, "-o", out, "--form", "integer")
    assert refused.code == 2 and not out.exists()
    assert "Supported: --form qcdq. Resolution: for another form lower the exported model" in " ".join(
        refused.err.split()
    )
    proto = onnx.load(source)
    next(p for p in proto.metadata_props if p.key == RELEASED_TAG).value = "zlib:?"
    onnx.save(proto, source)
    for command in (["inspect", source], ["lower", source, "-o", out]):
        damaged = in_process(capfd, *command)
        assert damaged.code == 2 and "is damaged" in damaged.err, damaged.text


def test_float_layers_beside() -> None:
    """Without a recipe a float LSTM stays as it is, and the report says so; a recipe quantizes it."""
    lstm = random_lstm(9)
    feeds = draw_feeds(lstm, 5, False, False)
    model = one_cell(lstm, feeds)
    shapes = {"W": (1, 16, 9), "R": (1, 16, 4)}
    for name, shape in shapes.items():
        array = np.random.default_rng(0).normal(0, 0.3, shape).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    made = onnx.helper.make_node("LSTM", ["outputs", "W", "R"], ["Y"], "float_layer", hidden_size=4)
    model.graph.node.append(made)
    model.graph.output.append(onnx.helper.make_tensor_value_info("Y", 1, [None] * 4))
    alone, both = rnnqc.lower(model), rnnqc.lower(model, "int8")
    assert alone.report.recipe != both.report.recipe == "int8"
    status = [{e.node: e.status for e in lowered.report.entries} for lowered in (alone, both)]
    assert [s["float_layer"] for s in status] == ["float", "lowered"]
    assert [s["cell_node"] for s in status] == ["lowered"] * 2
    assert {e.form for e in both.report.entries} == {"fused"}
    (left,) = alone.report.float_entries
    assert "--recipe" in left.action
    for lowered in (alone, both):
        got = run(session(lowered.proto, NATIVE), feeds)
        assert got.pop("Y").any()
        assert_same_codes(oracle(lstm, feeds), got, "beside a float layer")


@pytest.mark.parametrize("opset", [17, 21])
def test_operators_of_form_qcdq(opset: int) -> None:
    """QuantizeLinear where it computes what Brevitas computes, the same operation by operation elsewhere."""
    changes = {
        "cell_state": {"mode": "FLOOR"},
        "input_acc": {"zero_point": 7.0},
        "cell_acc": {"bits": 12, "scale": 0.002},
    }
    lstm = random_lstm(6, changes=changes, weight_bits=4)
    feeds = draw_feeds(lstm, 3, False, False)
    lowered = rnnqc.lower(one_cell(lstm, feeds, opset=opset), form="qcdq")
    count = Counter(n.op_type for n in all_nodes(lowered.proto))
    # Of x, the hidden state, two accumulators and five activations. onnxruntime fails on signed codes from 21 on: three
    # sigmoids are left.
    assert count["QuantizeLinear"] == (9 if opset < 21 else 3)
    # Weights have one where the other operand has one, too: onnxruntime makes other products of one alone.
    assert count["DequantizeLinear"] == count["QuantizeLinear"] + (2 if opset < 21 else 0)
    assert count["Floor"] == 3
    weights = [t for t in lowered.proto.graph.initializer if t.data_type == onnx.TensorProto.INT8 and len(t.dims) == 2]
    assert len(weights) == 2
    assert max(int(np.abs(onnx.numpy_helper.to_array(t)).max()) for t in weights) == 7


def test_form_qcdq_takes_any_length_and_batch() -> None:
    lstm = random_lstm(9)
    feeds = draw_feeds(lstm, 5, False, False)
    lowered = rnnqc.lower(_of_any_size(one_cell(lstm, feeds)), form="qcdq")
    assert_same_codes(oracle(lstm, feeds), run(session(lowered.proto, STOCK), feeds), "dynamic")


def test_form_qcdq_in_a_branch() -> None:
    """onnxruntime 1.31 fails on a DequantizeLinear in a subgraph whose constants stand in an outer graph."""
    lstm = random_lstm(9)
    feeds = draw_feeds(lstm, 5, False, False)
    inner = one_cell(lstm, feeds)
    stored = {t.name for t in inner.graph.initializer}
    x = next(i for i in inner.graph.input if i.name == "x")
    branch = onnx.helper.make_graph(list(inner.graph.node), "branch", [], list(inner.graph.output))
    names = [o.name for o in inner.graph.output]
    outputs = [onnx.helper.make_tensor_value_info(f"{n}_out", 1, [None] * 3) for n in names]
    condition = onnx.helper.make_tensor_value_info("condition", onnx.TensorProto.BOOL, [])
    other = onnx.helper.make_graph(
        [onnx.helper.make_node("Identity", ["x"], [f"{n}_else"]) for n in names],
        "other", [], [onnx.helper.make_tensor_value_info(f"{n}_else", 1, [None] * 3) for n in names],
    )  # fmt: skip
    choice = onnx.helper.make_node(
        "If", ["condition"], [o.name for o in outputs], "choice", then_branch=branch, else_branch=other
    )
    graph = onnx.helper.make_graph([choice], "outer", [x, condition], outputs, list(inner.graph.initializer))
    assert stored
    model = onnx.helper.make_model(graph, opset_imports=list(inner.opset_import), ir_version=9)
    expected = {f"{n}_out": v for n, v in oracle(lstm, feeds).items()}
    for form in ("qcdq", "fused"):
        lowered = rnnqc.lower(model, form=form)
        assert_all_lowered(lowered, form)
        got = run(session(lowered.proto, STOCK), {**feeds, "condition": np.array(True)})
        assert_same_codes(expected, got, form)


def test_comparisons(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The cell does not run as exported: every pass is compared with its form qcdq."""
    source = tmp_path / "exported.onnx"
    lstm = random_lstm(9)
    onnx.save(one_cell(lstm, draw_feeds(lstm, 5, False, False)), source)
    lowered = rnnqc.lower(source, verify=True, measure=True)
    assert not [text for _, text in lowered.report.checks if "not compared" in text]
    assert {"read-quant-lstm-cell", "fuse-quant-lstm-cell"} <= {name for name, _ in lowered.report.checks}
    assert set(lowered.report.sqnr_db) == {"outputs", "h", "c"}
    compared = in_process(
        capfd,
        "lower",
        source,
        "-o",
        tmp_path / "out.onnx",
        "--verify",
        "--min-sqnr",
        "30",
        "--json",
        tmp_path / "r.json",
    )
    assert compared.code == 0, compared.text
    assert "verified" in compared.out
    verified = in_process(capfd, "verify", source, tmp_path / "out.onnx", "--min-sqnr", "30")
    assert verified.code == 0, verified.text


def test_a_pass_that_changes_an_exported_cell_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparison is effective: it finds a halved scale of the hidden state."""
    from rnnqc.errors import NumericsError
    from rnnqc.passes.brevitas import read_quant_lstm_cell as module

    fold = module.fold_quant_lstm

    def wrong(*arguments: Any) -> Any:
        folded = fold(*arguments)
        return replace(folded, h_multiplier=folded.h_multiplier * np.float32(0.5), B=folded.B * np.float32(0))

    monkeypatch.setattr(module, "fold_quant_lstm", wrong)
    lstm = random_lstm(9)
    lstm.bias = [b * 4 for b in lstm.bias or []]
    with pytest.raises(NumericsError, match="read-quant-lstm-cell"):
        rnnqc.lower(one_cell(lstm, draw_feeds(lstm, 5, False, False)), verify=True)
