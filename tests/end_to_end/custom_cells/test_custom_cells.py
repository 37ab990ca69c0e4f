"""Custom cells, quantized at every value: highway and projection cells, in loops and unrolled.

What these would catch: a value without a quantizer, a quantizer with the range of another value, states that lose their
format between steps or calls, padding that gets into the statistics, forms or ways to run that differ, points that
recipes do not reach, and a recurrence that is quantized less than was asked for in silence.
"""

from __future__ import annotations

import functools
import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime as ort
import pytest

import rnnqc
from rnnqc.cells.forms import FORMS
from rnnqc.data.statistics import Statistics
from rnnqc.errors import UsageError
from rnnqc.evaluation.numerics import sqnr_db
from rnnqc.ir import Model
from rnnqc.passes import PassManager
from rnnqc.passes.analysis.custom_points import custom_cells_of
from rnnqc.passes.analysis.custom_products import custom_cells
from rnnqc.passes.pipeline import normal_form
from tests import generate as testing
from tests.generate.nesting import condition, nested
from tests.generate.recurrences import RecurrenceCase
from tests.generate.renaming import made_values, rename
from tests.laws.parametrize import in_turn
from tests.runs.commands import in_process
from tests.runs.lowered import all_nodes
from tests.subjects.custom_layers import CELL, EVERY_VALUE, VALUES, H, I, M, feeds_of, formats_of, layer, weights
from tests.subjects.protos import parse

Array = npt.NDArray[Any]


def run(model: onnx.ModelProto, feeds: dict[str, Array], level: str = "ORT_ENABLE_ALL") -> list[Array]:
    options = ort.SessionOptions()
    options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, level)
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return list(session.run(None, feeds))


def assert_equal(a: list[Array], b: list[Array]) -> None:
    for x, y in zip(a, b, strict=True):
        np.testing.assert_array_equal(x, y)


@functools.cache
def statistics_of_the_layer() -> Statistics:
    """Statistics of `layer()`; shared by tests, which must not change them."""
    model = layer()
    return rnnqc.calibrate(model, [feeds_of(model, seed) for seed in range(4)])


def test_the_points_of_a_cell() -> None:
    """Products with their biases, every value that is computed, and nothing for the Constant."""
    loaded = Model.load(layer(lengths=True, reverse=True, initial_states=True))
    PassManager(normal_form()).run(loaded)
    (cell,) = custom_cells_of(loaded)
    products = [f"step/{p}" for p in ("from_x", "from_h", "project", "skip")]
    expected = {f"{p}.{k}" for p in products for k in ("weight", "hidden")} | {"step/from_x.bias"}
    assert set(cell.points) == expected | {f"step/{v}" for v in VALUES}
    assert {p: [v.name for v in vs] for p, vs in cell.entering.items()} == {
        "step/output.value": ["h"],
        "step/memory.value": ["c"],
    }


@pytest.mark.few(1)
@in_turn(recipe=EVERY_VALUE, reverse=[False, True])
def test_recipes_of_every_value(recipe: str, reverse: bool) -> None:
    """Every value is on its grid; forms, optimizations, rows of the batch and chunks give the same bits."""
    model = layer(lengths=True, initial_states=True, reverse=reverse)
    statistics = rnnqc.calibrate(model, [feeds_of(model, seed) for seed in range(4)])
    feeds = feeds_of(model, 9)
    lowered = {f: rnnqc.lower(model, recipe, form=f, stats=statistics, strict=True) for f in FORMS}
    (entry,) = lowered["fused"].report.entries
    assert (entry.summary, entry.reason) == (f"4 products, {len(VALUES)} of {len(VALUES)} values", "")
    integer = lowered["integer"].proto
    expected = run(integer, feeds)
    assert_equal(expected, run(integer, feeds, "ORT_DISABLE_ALL"))
    assert_equal(expected, run(lowered["fused"].proto, feeds))
    if recipe.startswith("pow2"):  # form qcdq has no tables
        exact = rnnqc.lower(model, recipe, stats=statistics, overrides=["*.value.table=exact"])
        assert_equal(run(exact.proto, feeds), run(lowered["qcdq"].proto, feeds, "ORT_DISABLE_ALL"))
    rows = [
        run(integer, {k: a[:, r : r + 1] if a.ndim == 3 else a[r : r + 1] for k, a in feeds.items()}) for r in range(3)
    ]
    assert_equal(expected, [np.concatenate(parts, axis=a.ndim - 2) for a, *parts in zip(expected, *rows, strict=True)])
    kinds = [n.op for g in lowered["integer"].model.graphs() for n in g.nodes]
    # A product for each byte of what is multiplied.
    assert kinds.count("MatMulInteger") == 4 * (2 if recipe in ("pow2-int16", "pow2-w8a16") else 1)
    assert "Gemm" not in kinds
    # On its grid: what a step hands on is a multiple of the scale of its point.
    formats = formats_of(model, recipe, statistics)
    for value, point in zip(expected[1:], ("output", "memory"), strict=True):
        held = formats.points[f"step/{point}.value"].complete
        scale = np.float32(held.scale[0])
        codes = np.rint(value / scale)
        np.testing.assert_array_equal(codes.astype(np.float32) * scale, value)
        assert np.abs(codes + held.zero_point).max() <= 2 ** (held.bits - 1)


def test_by_hand() -> None:
    """Every value rounded to a grid that is given: no statistics, equations in numpy."""
    model = layer(initial_states=True)
    step, w = 2.0**-6, weights()
    overrides = [f"*.value.scale={step}", "*.value.bits=10", "*.weight.bits=8", "*.weight.granularity=per-tensor"]
    overrides += [f"*.weight.scale={step}", "*.weight.compensation=false", "*.hidden.bits=10"]
    lowered = rnnqc.lower(model, overrides=overrides, strict=True)
    assert lowered.report.entries[0].reason == ""

    def q(value: Array, bits: int = 10) -> Array:
        return np.clip(np.rint(value / step), -(2 ** (bits - 1)), 2 ** (bits - 1) - 1) * step

    def narrow(value: Array) -> Array:
        return np.clip(np.rint(value / step), -127, 127) * step

    feeds = feeds_of(model, 1, steps=7)
    x, h, c = (q(feeds[k].astype(np.float64)) for k in ("x", "h", "c"))
    W, R, P, V = (narrow(w[k].astype(np.float64)) for k in "WRPV")
    made = []
    for row in x:
        g = q(q(row @ W + w["b"]) + q(h @ R))
        f, a = q(1.0 / (1.0 + np.exp(-g))), q(np.tanh(g))
        c = q(q(c * f) + a)
        u, skip = q(q(np.tanh(c)) @ P), q(row @ V)
        carry = q(1.0 / (1.0 + np.exp(-skip)))
        h = q(q(u * carry) + q(skip * q(1.0 - carry)))
        made.append(h)
    assert_equal([np.stack(made), h, c], [a.astype(np.float64) for a in run(lowered.proto, feeds)])


@pytest.mark.parametrize("rounding", ["floor", "half_up", "half_even"])
@pytest.mark.parametrize("form", ["qcdq", "integer"])
def test_a_state_that_comes_back_stays_what_it_is(form: str, rounding: str) -> None:
    """Would catch: a quantized state rounded again, downwards, where its scale is no power of two."""
    model = layer(initial_states=True)
    overrides = ["*.value.scale=0.0117", "*.value.bits=10", f"*.value.rounding={rounding}"]
    lowered = rnnqc.lower(model, form=form, overrides=overrides, strict=True).proto
    feeds = feeds_of(model, 1, steps=12)
    y, h, c = run(lowered, feeds)
    parts, states = [], {k: feeds[k] for k in ("h", "c")}
    for start in range(0, 12, 2):
        part, *after = run(lowered, {"x": feeds["x"][start : start + 2], **states})
        states = dict(zip(("h", "c"), after, strict=True))
        parts.append(part)
    assert_equal([y, h, c], [np.concatenate(parts), states["h"], states["c"]])


def _vitis(value: Array, step_bits: int, function: Any) -> Array:
    """Entry `floor(value * 2**step_bits)` of 2048, and what is beyond them; in units of 2**-15."""
    k = np.floor(value * 2.0**step_bits)
    inside = np.rint(function(np.clip(k, -1024, 1023) / 2.0**step_bits) * 32768)
    return np.where(k >= 1024, 32767, np.where(k < -1024, -32768 if step_bits == 8 else 0, inside)) / 32768


def test_vitis_tables_by_hand() -> None:
    """Tables that are not those of the hardware, or not those of every sigmoid and tanh of the cell."""
    model = layer(initial_states=True)
    step, w = 2.0**-6, weights()
    named = [f"*.{a}.value.{s}" for a in ("sigmoid", "tanh") for s in ("scale=0.000030517578125", "table=vitis")]
    overrides = [*named, "*.value.bits=16", f"*.value.scale={step}", "*.weight.bits=8", "*.hidden.bits=16"]
    overrides += ["*.weight.granularity=per-tensor", f"*.weight.scale={step}", "*.weight.compensation=false"]
    lowered = rnnqc.lower(model, overrides=overrides, strict=True, verify=True)
    assert lowered.report.entries[0].reason == ""

    def q(value: Array) -> Array:
        return np.clip(np.rint(value / step), -(2**15), 2**15 - 1) * step

    def sigmoid(value: Array) -> Array:
        return _vitis(value, 7, lambda v: 1.0 / (1.0 + np.exp(-v)))

    feeds = feeds_of(model, 1, steps=7)
    feeds["x"] *= np.float32(6.0)
    x, h, c = (q(feeds[k].astype(np.float64)) for k in ("x", "h", "c"))
    W, R, P, V = (np.clip(np.rint(w[k].astype(np.float64) / step), -127, 127) * step for k in "WRPV")
    made, seen = [], []
    for row in x:
        g = q(q(row @ W + w["b"]) + q(h @ R))
        c = q(q(c * sigmoid(g)) + _vitis(g, 8, np.tanh))
        u, skip = q(_vitis(c, 8, np.tanh) @ P), q(row @ V)
        h = q(q(u * sigmoid(skip)) + q(skip * q(1.0 - sigmoid(skip))))
        made.append(h)
        seen.append(g)
    assert np.max(seen) > 8.0 and np.min(seen) < -8.0, "beyond both ends"
    got = run(lowered.proto, feeds)
    assert_equal([np.stack(made), h, c], [a.astype(np.float64) for a in got])
    for form in ("fused", "integer"):
        again = rnnqc.lower(model, form=form, overrides=overrides).proto
        assert_equal(got, run(again, feeds, "ORT_DISABLE_ALL"))


def test_tables_that_there_are_not() -> None:
    """A kind that custom cells do not have is refused; where the values have no format nothing is tabulated."""
    model = layer()
    overrides = ["*.value.bits=16", "*.value.scale=0.015625"]
    with pytest.raises(UsageError, match=r"step/gate_\w+.\w+.value': table = 'piecewise-linear' of a custom cell"):
        rnnqc.lower(model, overrides=["*.value.table=piecewise-linear", *overrides])
    made = rnnqc.lower(model, overrides=["*.sigmoid.value.bits=none", "*.value.table=vitis", *overrides])
    kinds = Counter(n.op_type for n in all_nodes(made.proto))
    assert (kinds["GatherElements"], kinds["Tanh"], kinds["Sigmoid"]) == (2, 0, 2)
    with pytest.raises(UsageError, match="table"):
        rnnqc.lower(model, overrides=["*/memory.value.table=vitis", *overrides])


SHIFTS = ["*.weight.shift_limits=true", "*.weight.bits=16", "*.weight.granularity=per-tensor", "*.hidden.bits=16"]


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("weight", "source", "result", "expected"),
    [(12, 12, 7, (11, 7)), (12, 12, 8, (12, 8)), (3, 2, 9, (3, 5)), (14, 12, 4, (8, 4))],
)
def test_shifts_of_products_have_limits(weight: int, source: int, result: int, expected: tuple[int, int]) -> None:
    """Positions whose shift `w + x - y` is not between 0 and 16 after all, or that are lowered without need."""
    model = layer()
    own = [("skip.weight", weight), ("x.input.value", source), ("skip.value", result), ("value", 10)]
    scales = [f"*.{p}.scale={2.0**-k}" if p == "value" else f"*/{p}.scale={2.0**-k}" for p, k in own]
    overrides = [*SHIFTS, *scales, "*.weight.scale=0.0009765625", "*.value.bits=16"]
    lowered = rnnqc.lower(model, overrides=overrides, verify=True)
    (points,) = (record["formats"] for record in custom_cells(lowered.model).values())
    got = tuple(-int(np.log2(points[f"step/skip.{p}"]["scale"][0])) for p in ("weight", "value"))
    assert got == expected
    told = [r for r in lowered.report.notes if "is lowered to" in str(r) and "/skip." in str(r)]
    assert len(told) == sum(a != b for a, b in zip(got, (weight, result), strict=True))
    free = rnnqc.lower(model, overrides=["*.weight.shift_limits=false", *overrides])
    assert not any("is lowered to" in str(r) for r in free.report.notes)


def test_everything_off_is_the_float_model() -> None:
    model = layer(lengths=True)
    feeds = feeds_of(model, 1)
    lowered = rnnqc.lower(model, overrides=["*.bits=none"])
    assert [e.status for e in lowered.report.entries] == ["float"]
    assert_equal(run(model, feeds), run(lowered.proto, feeds))


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "point", ["from_x.weight", "from_h.hidden", "from_x.bias", "memory.value", "output.value", "x.input.value"]
)
def test_one_point_off(point: str) -> None:
    """The point stays float, all others keep their formats, and the result differs only by quantization noise."""
    model, statistics = layer(), statistics_of_the_layer()
    feeds = feeds_of(model, 9)
    want = run(model, feeds)
    lowered = rnnqc.lower(model, "pow2-int16", stats=statistics, overrides=[f"*/{point}.bits=none"])
    (entry,) = lowered.report.entries
    assert [p for p, bits in entry.points.items() if bits is None] == [f"step/{point}"]
    for a, b in zip(want, run(lowered.proto, feeds), strict=True):
        assert sqnr_db(a, b) > 40.0


@pytest.mark.few(1)
@pytest.mark.parametrize("recipe", ["int8", "int16", "w4a8"])
def test_overrides_turn_values_on(recipe: str) -> None:
    model, statistics = layer(), statistics_of_the_layer()
    feeds = feeds_of(model, 0)  # other data may go beyond ranges that it has not been calibrated for
    want = run(model, feeds)
    plain, fine = (rnnqc.lower(model, recipe, stats=statistics, overrides=o) for o in ([], ["*.value.bits=16"]))
    assert plain.report.entries[0].summary == f"4 products, 0 of {len(VALUES)} values"
    assert fine.report.entries[0].summary == f"4 products, {len(VALUES)} of {len(VALUES)} values"
    for a, b, c in zip(want, run(plain.proto, feeds), run(fine.proto, feeds), strict=True):
        assert sqnr_db(a, c) > sqnr_db(a, b) - 3.0
    without = rnnqc.lower(model, recipe, overrides=["*.value.bits=16"]).report.entries[0]
    assert "16 quantization points stay float" in without.reason
    assert "no statistics of layer.step/" in without.found
    assert "--calibration" in without.action


@pytest.mark.few(1)
@pytest.mark.parametrize(("recipe", "overrides"), [("int8", ["*.hidden.mode=static"]), ("int8-static", [])])
def test_static_scales_of_what_is_multiplied(recipe: str, overrides: list[str]) -> None:
    """As the recipe says, where there are statistics; refused otherwise, as a layer of LSTMs is."""
    model, statistics = layer(), statistics_of_the_layer()
    lowered = rnnqc.lower(model, recipe, stats=statistics, overrides=overrides)
    assert "ReduceMax" not in [n.op for g in lowered.model.graphs() for n in g.nodes]
    feeds = feeds_of(model, 9)
    for a, b in zip(run(model, feeds), run(lowered.proto, feeds), strict=True):
        assert sqnr_db(a, b) > 30.0
    assert_equal(run(lowered.proto, feeds), run(lowered.proto, feeds, "ORT_DISABLE_ALL"))
    with pytest.raises(rnnqc.CompileError, match=r"no statistics of layer.step/from_x.hidden .*calibration=DATA"):
        rnnqc.lower(model, recipe, overrides=overrides)


def test_vitis_formats() -> None:
    """Scales are powers of two, at least 2**-12; sigmoid and tanh have 15 bits behind the point; one scale else."""
    model, statistics = layer(), statistics_of_the_layer()
    own = {}
    for recipe in ("pow2-int16", "pow2-int8"):
        points = formats_of(model, recipe, statistics).points
        scales = {p: s.scale[0] for p, s in points.items() if p.endswith(".value")}
        named = {p for p in scales if ".sigmoid." in p or ".tanh." in p}
        assert len(named) == 4
        assert {scales[p] for p in named} == {2.0**-15}
        rest = {p: s for p, s in scales.items() if p not in named}
        assert all(np.frexp(s)[0] == 0.5 and s >= 2.0**-12 for s in rest.values())
        assert {points[p].integers.rounding.value for p in rest} == {"floor" if recipe == "pow2-int16" else "half_even"}
        own[recipe] = rest
    assert len(set(own["pow2-int16"].values())) == 1, "all follow the hidden state"
    assert len(set(own["pow2-int8"].values())) > 1
    seen = statistics.points["layer.step/output.value"]
    assert seen.fix_positions[16]["mse-floor"], "the search of the quantizer, for each step"
    assert sum(seen.fix_positions[16]["mse-floor"].values()) == seen.calls == 4 * 20


def test_padding_is_not_observed() -> None:
    """NaN beyond the lengths changes nothing, and counts are those of the valid steps."""
    model = layer(lengths=True)
    feeds = feeds_of(model, 1)
    lens = feeds["sequence_lens"]
    poisoned = {**feeds, "x": feeds["x"].copy()}
    for row, length in enumerate(lens):
        poisoned["x"][length:, row] = np.nan
    clean, dirty = (rnnqc.calibrate(model, [f]) for f in (feeds, poisoned))
    assert clean.points["layer.step/output.value"].count == int(lens.sum()) * H
    assert clean.text == dirty.text
    proto = rnnqc.lower(model, "brevitas-int8", stats=clean).proto
    assert_equal(run(proto, feeds), run(proto, poisoned))


@pytest.mark.few(1)
@pytest.mark.parametrize("form", ["scan", "loop", "unrolled"])
def test_initial_states_are_values_of_the_state(form: str) -> None:
    """Initial states in the data beyond the range of computed states count for the range of the state's point, once."""
    model = RecurrenceCase(op="highway", form=form, time=5, I=12, H=16).model()
    feeds = feeds_of(model, 0)
    small, large, none = ({**feeds, "h0": feeds["h0"] * np.float32(f)} for f in (1, 10, 0))
    seen = [rnnqc.calibrate(model, [f]) for f in (small, large, none)]
    (name,) = seen[0].cells
    loaded = Model.load(model)
    PassManager(normal_form()).run(loaded)
    (cell,) = custom_cells_of(loaded)
    (point,) = (p for p, values in cell.entering.items() if values[0].name == "h0")
    of_small, of_large, of_none = (s.points[f"{name}.{point}"] for s in seen)
    assert of_small.count == of_large.count == of_none.count + feeds["h0"].size
    assert of_large.max == large["h0"].max() > of_small.max
    lowered = rnnqc.lower(model, "brevitas-int8", stats=seen[1], strict=True).proto
    for a, b in zip(run(model, large), run(lowered, large), strict=True):
        assert sqnr_db(a, b) > 20


@pytest.mark.parametrize("reverse", [False, True])
def test_initial_states_of_rows_without_a_step_are_padding(reverse: bool) -> None:
    model = layer(lengths=True, initial_states=True, reverse=reverse)
    feeds = feeds_of(model, 1)
    feeds["sequence_lens"][1] = 0
    statistics = rnnqc.calibrate(model, [feeds])
    lens = feeds["sequence_lens"]
    counted = {k: statistics.points[f"layer.step/{k}.value"].count for k in ("output", "memory")}
    assert counted == {"output": (int(lens.sum()) + 2) * H, "memory": (int(lens.sum()) + 2) * M}


def test_statistics_are_of_this_model(tmp_path: Path) -> None:
    model = layer()
    statistics = rnnqc.calibrate(model, [feeds_of(model, 0)])
    statistics.save(tmp_path / "s.json")
    again = Statistics.load(tmp_path / "s.json")
    assert again.text == statistics.text
    assert again.cells["layer"]["products"]["step/project"] == [M, H]
    shorter = {**weights(), "V": weights()["V"][:, :H]}
    text = CELL.replace("skip = MatMul (x, V)", "half = MatMul (x, V2) skip = MatMul (half, V)")
    other = rnnqc.layer(parse(text, V2=np.eye(I, dtype=np.float32), **shorter))
    with pytest.raises(UsageError, match=r"cell 'layer' is .* there, and .* in the model"):
        rnnqc.lower(other, "brevitas-int8", stats=again)


def test_the_first_step_from_zeros_is_no_layer_of_its_own() -> None:
    """With state 0, a highway step looks like an LSTM step; the steps after it do not."""
    model = RecurrenceCase(op="highway", form="unrolled", time=5, I=12, H=16, initial="zeros").model()
    lowered = rnnqc.lower(model, strict=True)
    assert [e.form for e in lowered.report.entries] == ["products"]


WRITTEN = [("unrolled", {}), ("scan", {"backwards": True}), ("loop", {}), ("loop", {"lengths": "held"}), ("script", {}),
         ("keras", {"gemm": True, "products": "joined"})]  # fmt: skip


@pytest.mark.few(1)
@in_turn(written=WRITTEN, op=["highway", "projection"])
def test_however_the_recurrence_is_written(op: str, written: tuple[str, dict[str, Any]]) -> None:
    form, options = written
    model = RecurrenceCase(op=op, form=form, time=3, I=12, H=16, **options).model()
    statistics = rnnqc.calibrate(model, [feeds_of(model, seed) for seed in range(5)])
    feeds = feeds_of(model, 0)
    want = run(model, feeds)
    for recipe, least in (("int8", 28.0), ("pow2-int16", 38.0), ("brevitas-int8", 16.0)):
        forms = ("fused", "qcdq") if recipe == "pow2-int16" else ("fused",)
        lowered = {f: rnnqc.lower(model, recipe, form=f, stats=statistics, strict=True) for f in forms}
        (entry,) = lowered["fused"].report.entries
        values = [bits for p, bits in entry.points.items() if p.endswith(".value")]
        assert all((b is None) == (recipe == "int8") for b in values)
        assert entry.reason == ""
        got = run(lowered["fused"].proto, feeds)
        assert_equal(got, run(lowered["fused"].proto, feeds, "ORT_DISABLE_ALL"))
        if recipe == "pow2-int16":  # form qcdq has no tables
            exact = rnnqc.lower(model, recipe, stats=statistics, overrides=["*.value.table=exact"])
            assert_equal(run(exact.proto, feeds), run(lowered["qcdq"].proto, feeds))
            assert all(sqnr_db(a, b) > 48.0 for a, b in zip(want, run(exact.proto, feeds), strict=True))
        for a, b in zip(want, got, strict=True):
            assert sqnr_db(a, b) > least


def test_steps_share_their_points() -> None:
    """Three steps, one format: a value is observed in each."""
    model = RecurrenceCase(op="highway", form="unrolled", time=3, I=12, H=16).model()
    statistics = rnnqc.calibrate(model, [feeds_of(model, 0)])
    (cell,) = statistics.cells
    calls = {p.removeprefix(f"{cell}."): s.calls for p, s in statistics.points.items()}
    assert sorted(calls.values()) == [3] * (len(calls) - 2) + [4, 4]  # the states have initial values, too
    lowered = rnnqc.lower(model, "pow2-int16", stats=statistics)
    (entry,) = lowered.report.entries
    assert set(calls) == {p for p in entry.points if p.endswith((".value", ".hidden"))}
    scan = RecurrenceCase(op="highway", form="scan", time=3, I=12, H=16).model()
    looped = rnnqc.calibrate(scan, [feeds_of(scan, 0)])
    assert_equal(
        run(lowered.proto, feeds_of(model, 3)),
        run(rnnqc.lower(scan, "pow2-int16", stats=looped).proto, feeds_of(scan, 3)),
    )


def beside(left: str, right: str) -> onnx.ModelProto:
    """Two loops of the same cell, with these names, over separate sequences."""
    made = layer()
    (scan,) = [n for n in made.graph.node if n.op_type == "Scan"]
    other = layer()
    inner = {n for node in other.graph.node for n in node.output} | {"x"}
    rename(other, lambda name: f"second/{name}", [*made_values(other.graph), *inner])
    scan.name = left
    for node in other.graph.node:
        node.name = right if node.op_type == "Scan" else f"second/{node.name}"
    made.graph.node.extend(other.graph.node)
    made.graph.input.extend(other.graph.input)
    made.graph.output.extend(other.graph.output)
    return made


@pytest.mark.slow
def test_recurrences_of_names_that_differ_in_replaced_characters() -> None:
    """Each has statistics of its own sequence, which is a hundred times as large in one of them."""
    plain, alike = beside("r1", "r2"), beside("r 1", "r_1")
    feeds = feeds_of(plain, 0)
    feeds["second/x"] = feeds["x"] * np.float32(100.0)
    seen = {m: rnnqc.calibrate(model, [feeds]) for m, model in (("plain", plain), ("alike", alike))}
    assert (sorted(seen["plain"].cells), sorted(seen["alike"].cells)) == (["r1", "r2"], ["r_1", "r_1_2"])
    assert len(seen["alike"].points) == len(seen["plain"].points)
    want, got = (
        rnnqc.lower(model, "pow2-int16", stats=seen[m], strict=True)
        for m, model in (("plain", plain), ("alike", alike))
    )
    assert_equal(run(want.proto, feeds), run(got.proto, feeds))
    assert [len(e.points) for e in got.report.entries] == [len(e.points) for e in want.report.entries]


def with_lstm(name: str) -> onnx.ModelProto:
    """A loop of this name, and an LSTM `a b` with an input of its own."""
    lstm = testing.RecurrentCase(I=I, H=M, T=20, B=3).model()
    made = layer()
    for model, op, new in ((made, "Scan", name), (lstm, "LSTM", "a b")):
        (node,) = [n for n in model.graph.node if n.op_type == op]
        node.name = new
    held = [*made_values(lstm.graph), "X", *(t.name for t in lstm.graph.initializer)]
    rename(lstm, lambda value: f"lstm/{value}", held)
    for part in ("node", "input", "output", "initializer"):
        getattr(made.graph, part).extend(getattr(lstm.graph, part))
    return made


def test_a_loop_and_an_lstm_of_one_name() -> None:
    """Cells of an LSTM are named after it and its direction; so may a loop be."""
    results = []
    for name, cells in (("loop", ["a_b.forward", "loop"]), ("a b.forward", ["a_b.forward", "a_b.forward_2"])):
        model = with_lstm(name)
        feeds = feeds_of(model, 0)
        statistics = rnnqc.calibrate(model, [feeds])
        assert sorted(statistics.cells) == cells
        lowered = rnnqc.lower(model, "pow2-int16", stats=statistics, strict=True)
        assert [e.status for e in lowered.report.entries] == ["lowered", "lowered"]
        results.append(run(lowered.proto, feeds))
    assert_equal(*results)


def in_branch_in_scan(**options: Any) -> onnx.ModelProto:
    """The layer in the branches of an If that a Scan runs for each of several sequences."""
    inner = nested(layer(**options), 1)
    body = onnx.GraphProto(name="outer_body", node=inner.graph.node)
    body.input.append(onnx.helper.make_tensor_value_info("x", 1, ["T", "B", I]))
    body.output.add().CopyFrom(inner.graph.output[0])
    del inner.graph.node[:], inner.graph.input[0], inner.graph.output[:]
    inner.graph.input.append(onnx.helper.make_tensor_value_info("xs", 1, ["N", "T", "B", I]))
    inner.graph.output.append(onnx.helper.make_tensor_value_info("ys", 1, ["N", "T", "B", H]))
    inner.graph.node.append(onnx.helper.make_node("Scan", ["xs"], ["ys"], "outer", body=body, num_scan_inputs=1))
    return inner


def test_what_cannot_be_observed_is_said(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A loop in an If inside a Scan: an error where nothing else can be observed, else a remark."""
    rng = np.random.default_rng(1)
    alone = in_branch_in_scan()
    feeds: dict[str, Array] = {
        "xs": rng.standard_normal((2, 5, 3, I)).astype(np.float32),
        condition(0): np.array(True),
    }
    run(alone, feeds)
    with pytest.raises(rnnqc.CompileError, match=r"cell .*layer' stands in an If .* inside a Scan.*as a Loop"):
        rnnqc.calibrate(alone, [feeds])

    both = in_branch_in_scan()
    other = layer()
    rename(other, lambda name: f"second/{name}", [*made_values(other.graph), "x"])
    for part in ("node", "input", "output"):
        getattr(both.graph, part).extend(getattr(other.graph, part))
    feeds["second/x"] = feeds["xs"][0]
    statistics = rnnqc.calibrate(both, [feeds])
    hidden = [r for r in statistics.remarks if r.node.startswith("outer/")]
    assert len(hidden) == len(statistics.remarks) == 2, "one for each branch"
    assert list(statistics.cells) == ["layer"]
    for remark in hidden:
        assert remark.node.endswith("layer") and "If or Loop inside a Scan" in remark.reason
        assert f"{4 + len(VALUES)} values" in remark.found and "Loop" in remark.action

    path, data, out = (tmp_path / n for n in ("in.onnx", "data.npz", "stats.json"))
    onnx.save(both, path)
    np.savez(data, **feeds)
    done = in_process(capfd, "calibrate", path, "--data", data, "-o", out)
    assert done.code == 0, done.text
    assert all(r.node in " ".join(done.err.split()) for r in hidden)
    lowered = rnnqc.lower(both, calibration=[feeds])
    assert all(r.told in lowered.report.warnings for r in hidden)
    onnx.save(alone, path)
    refused = in_process(capfd, "calibrate", path, "--data", data, "-o", tmp_path / "none.json")
    assert (refused.code, (tmp_path / "none.json").exists()) == (2, False), refused.text


def test_streams_are_calibrated() -> None:
    """States as inputs and outputs: the calls of a stream are the steps of the sequence."""
    model = layer(initial_states=True)
    feeds = feeds_of(model, 2, steps=12)
    whole = rnnqc.calibrate(model, [feeds])
    calls = [{"x": part} for part in np.split(feeds["x"], 4)]
    calls[0] |= {"h": feeds["h"], "c": feeds["c"]}
    stream = rnnqc.calibrate(model, calls, state=["h:h_next", "c:c_next"])
    for name, seen in whole.points.items():
        assert (seen.min, seen.max, seen.count) == (
            stream.points[name].min, stream.points[name].max, stream.points[name].count,
        ), name  # fmt: skip


def test_a_step_that_multiplies_one_matrix_again_and_again_is_one_recurrence() -> None:
    """The matmuls of a step look like an unrolled recurrence."""
    rng = np.random.default_rng(0)
    model = parse(
        """<ir_version: 8, opset_import: ["" : 17]>
        m (float[T,2,12] x, float[2,16] h0, float[12,16] W, float[16,16] R) => (float[2,16] h, float[T,2,16] y) {
          h, y = Scan <num_scan_inputs = 1, body = step (float[2,16] before, float[2,12] x_t)
            => (float[2,16] after, float[2,16] y_t) {
              a = MatMul(x_t, W)
              b = MatMul(before, R)
              c = Add(a, b)
              d = Tanh(c)
              e = MatMul(d, R)
              f = Tanh(e)
              g = MatMul(f, R)
              i = Tanh(g)
              j = MatMul(i, R)
              after = Tanh(j)
              y_t = Identity(after)
            }> (h0, x)
        }""",
        W=rng.normal(0, 0.3, (12, 16)).astype(np.float32),
        R=rng.normal(0, 0.3, (16, 16)).astype(np.float32),
    )
    del model.graph.input[2:]
    lowered = rnnqc.lower(model, strict=True)
    assert [(e.form, e.summary.split(",")[0]) for e in lowered.report.entries] == [("products", "5 products")]
    feeds = {"x": rng.normal(size=(7, 2, 12)).astype(np.float32), "h0": np.zeros((2, 16), np.float32)}
    for want, found in zip(run(model, feeds), run(lowered.proto, feeds), strict=True):
        assert sqnr_db(want, found) > 30


@pytest.mark.parametrize("recipe", ["int8", "w4a8"])
def test_a_step_that_may_be_skipped_is_told(recipe: str) -> None:
    """The product is not in the body of the loop, but in a branch of an If there."""
    model = parse(
        """<ir_version: 8, opset_import: ["" : 17]>
        m (float[T,2,12] x, bool[T] take, float[2,16] h0) => (float[2,16] h, float[T,2,16] y) {
          h, y = Scan <num_scan_inputs = 2, body = step (float[2,16] before, float[2,12] x_t, bool now)
            => (float[2,16] after, float[2,16] y_t) {
              a = MatMul(x_t, W)
              after = If (now) <
                then_branch = taken () => (float[2,16] new) {
                  b = MatMul(before, R)
                  c = Add(a, b)
                  new = Tanh(c)
                },
                else_branch = passed () => (float[2,16] old) { old = Identity(before) }
              >
              y_t = Identity(after)
            }> (h0, x, take)
        }""",
        W=np.ones((12, 16), np.float32),
        R=np.ones((16, 16), np.float32),
    )
    (entry,) = rnnqc.lower(model, recipe).report.entries
    assert (entry.status, entry.op) == ("float", "Scan")
    assert "branches of an If" in entry.reason
    assert "in a branch of node 'after:If'" in entry.found


def test_commands(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    model = layer()
    path, data, out, report = (tmp_path / n for n in ("in.onnx", "data.npz", "out.onnx", "report.json"))
    onnx.save(model, path)
    np.savez(data, **feeds_of(model, 0))
    listed = json.loads(in_process(capfd, "inspect", path, "--json").out)["nodes"][0]
    assert f"step/{VALUES[0]}" in listed["attributes"]["points"]
    shown = in_process(capfd, "inspect", path).out
    assert f"4 products, and {len(VALUES)} values" in shown
    assert ["layer", "Scan", str(I), f"{H}+{M}", "T", "B"] in [line.split()[:6] for line in shown.splitlines()]
    done = in_process(capfd, "lower", path, "-o", out, "--recipe", "pow2-int8", "--calibration", data, "--json", report)
    assert done.code == 0, done.text
    assert f"lowered (4 products, {len(VALUES)} of {len(VALUES)} values)" in done.out
    entry = json.loads(report.read_text())["entries"][0]
    assert (entry["points"]["step/carry.sigmoid.value"], entry["points"]["step/project.weight"]) == (16, 8)
    assert f"{len(VALUES)} of {len(VALUES)} values" in in_process(capfd, "inspect", out).out
    points = in_process(capfd, "recipes", "--points").out
    assert "<node>.value" in points
    wrong = in_process(capfd, "lower", path, "-o", out, "--set", "*.values.bits=16")
    assert wrong.code == 2
    assert "layer.step/" in wrong.err
    needs = in_process(capfd, "lower", path, "-o", tmp_path / "no.onnx", "--recipe", "pow2-int16", "--strict")
    assert needs.code == 2
    assert "needs calibration data" in needs.err
    assert not (tmp_path / "no.onnx").exists()
    again = in_process(capfd, "lower", out, "-o", tmp_path / "again.onnx")
    assert again.code == 0, again.text
    assert "lowered already (4 products" in again.out
    assert (tmp_path / "again.onnx").read_bytes() == out.read_bytes()


def test_a_cell_whose_values_alone_are_quantized_is_listed_in_every_form() -> None:
    """Would catch: a record on matmuls, of which there are none, and on a loop that is written out then."""
    model = RecurrenceCase(op="highway", form="scan", time=3, I=12, H=16).model()
    options: dict[str, Any] = {"calibration": [feeds_of(model, 0)], "overrides": ["*.weight.bits=none"]}
    entries, results = [], []
    for how in ({"form": "integer"}, {"form": "integer", "unroll": True}):
        lowered = rnnqc.lower(model, "pow2-int8", **how, **options)
        entries += [(e.status, e.summary, e.reason, e.found, e.points) for e in lowered.report.entries]
        (again,) = rnnqc.lower(lowered.proto).report.entries
        assert (again.status, again.earlier) == ("lowered", True)
        results.append(run(lowered.proto, feeds_of(model, 3)))
    assert len(entries) == 2 and entries[0] == entries[1]
    status, summary, reason, *_ = entries[0]
    assert status == "lowered" and summary.startswith("0 products") and "matmuls stay float" in reason
    assert_equal(*results)
