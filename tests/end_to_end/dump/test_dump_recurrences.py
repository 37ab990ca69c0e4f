"""`rnnqc dump` of recurrences that are no LSTM, GRU or RNN: highway and projection cells, in loops and written out.

What these would catch: a value under the name of another or of another step, codes that are off by what a node adds to
store them, a quantizer whose result is not what it makes of the values in front of it, sums that are not those of the
codes and the weights, forms or ways to write the loop whose dumps differ, runs of nested loops that are mixed up.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest

import rnnqc
from rnnqc.data.statistics import Statistics
from tests.generate.layers import RecurrentCase
from tests.generate.nesting import condition, nested
from tests.generate.recurrences import RecurrenceCase
from tests.laws.parametrize import in_turn
from tests.pages.dumped import Steps, assert_follows_the_rule, assert_same, traced
from tests.runs.commands import in_process
from tests.runs.sessions import save_arrays
from tests.subjects.around import TRIPS, in_loop, in_scan
from tests.subjects.custom_layers import EVERY_VALUE, VALUES, feeds_of, formats_of, layer
from tests.subjects.protos import parse

Array = npt.NDArray[Any]
F32 = np.float32
ROUND: dict[str, Callable[[Array], Array]] = {
    "half_even": np.rint,
    "half_up": lambda x: np.floor(x + F32(0.5)),
    "floor": np.floor,
    "half_away": lambda x: np.sign(x) * np.floor(np.abs(x) + F32(0.5)),
    "half_even_up": lambda x: np.where((x < 0) & (np.floor(x) + F32(0.5) == x), np.ceil(x), np.rint(x)),
}
PRODUCTS = {
    "from_x": "x.input.value", "from_h": "output.value.previous", "project": "memory_tanh.tanh.value",
    "skip": "x.input.value",
}  # fmt: skip
OPERATORS: dict[str, tuple[Callable[..., Array], str, str]] = {
    "gate_sum": (np.add, "from_x_sum.value", "from_h.value"),
    "kept": (np.multiply, "memory.value.previous", "gate_sigmoid.sigmoid.value"),
    "memory": (np.add, "kept.value", "gate_tanh.tanh.value"),
    "left": (np.multiply, "project.value", "carry.sigmoid.value"),
    "right": (np.multiply, "skip.value", "rest.value"),
    "output": (np.add, "left.value", "right.value"),
}
FUNCTIONS = {
    "gate_tanh.tanh": (np.tanh, "gate_sum.value"),
    "memory_tanh.tanh": (np.tanh, "memory.value"),
    "gate_sigmoid.sigmoid": (lambda x: 1 / (1 + np.exp(-x)), "gate_sum.value"),
    "carry.sigmoid": (lambda x: 1 / (1 + np.exp(-x)), "skip.value"),
}
# 10-bit codes of given scales, and 8-bit ones, none of them with statistics.
BY_HAND = {
    bits: [
        *(f"*.{kind}.scale={2.0**-6}" for kind in ("value", "weight")),
        *(f"*.{kind}.bits={b}" for kind, b in (("value", bits), ("hidden", bits), ("weight", 8))),
        "*.weight.granularity=per-tensor",
        "*.weight.compensation=false",
    ]
    for bits in (8, 10)
}


def only(cells: Mapping[str, Steps]) -> Steps:
    (steps,) = cells.values()
    return steps


def lowered(model: onnx.ModelProto, recipe: str, form: str = "integer", **arguments: Any) -> onnx.ModelProto:
    statistics = statistics_of(model.SerializeToString(deterministic=True))
    return rnnqc.lower(model, recipe, form=form, stats=statistics, strict=True, **arguments).proto


@functools.cache
def statistics_of(serialized: bytes) -> Statistics:
    """Statistics of a model; shared by tests, which must not change them."""
    model = onnx.load_from_string(serialized)
    return rnnqc.calibrate(model, [feeds_of(model, seed) for seed in range(2)])


def quantized(value: Array, point: Mapping[str, Any]) -> Array:
    """Codes of float32 values, one operation at a time; zero points are 0."""
    assert not point["zero_point"]
    low, high = limits(point)
    return np.clip(ROUND[point["rounding"]](value.astype(F32) / F32(point["scale"][0])), low, high)


def limits(point: Mapping[str, Any]) -> tuple[int, int]:
    """The lowest and the highest code."""
    if not point["signed"]:
        return 0, 2 ** point["bits"] - 1
    return -(2 ** (point["bits"] - 1)) + int(point["narrow"]), 2 ** (point["bits"] - 1) - 1


def assert_every_quantizer(steps: Steps, points: Mapping[str, Mapping[str, Any]], valid: Array) -> None:
    """Checks that every quantizer, in every step, quantizes its input correctly."""

    def value(name: str) -> Array:
        return steps[f"step/{name}"].values[valid]

    for name, (operator, *sources) in OPERATORS.items():
        expected = quantized(operator(*(value(s) for s in sources)), points[f"step/{name}.value"])
        assert np.array_equal(steps[f"step/{name}.value"].codes[valid], expected), name
        assert len(np.unique(expected)) > 5, f"{name}: a trivial case"
    rest = quantized(F32(1) - value("carry.sigmoid.value"), points["step/rest.value"])
    assert np.array_equal(steps["step/rest.value"].codes[valid], rest)
    for name, (function, source) in FUNCTIONS.items():
        point = points[f"step/{name}.value"]
        if point.get("table") == "vitis":
            expected = tabulated(function, value(source), tanh=name.endswith("tanh"))
            assert np.array_equal(steps[f"step/{name}.value"].codes[valid], expected), name
            continue
        exact = function(value(source).astype(np.float64)) / point["scale"][0]
        exact = np.clip(exact, *limits(point))
        error = steps[f"step/{name}.value"].codes[valid] - exact
        low, high = (-1, 0) if point["rounding"] == "floor" else (-0.5, 0.5)
        assert error.min() > low - 0.02 and error.max() < high + 0.02, name


def tabulated(function: Callable[[Array], Array], value: Array, *, tanh: bool) -> Array:
    """Codes of 2**-15: the entry of 2048 at or below each value."""
    size = 2.0 ** (8 if tanh else 7)
    k = np.floor(value.astype(np.float64) * size)
    inside = np.rint(function(np.clip(k, -1024, 1023) / size) * 2.0**15)
    return np.where(k >= 1024, 32767, np.where(k < -1024, -32768 if tanh else 0, inside))


def assert_products(
    steps: Steps, weights: Mapping[str, Array], valid: Array, points: Mapping[str, Mapping[str, Any]]
) -> None:
    """Checks sums against the quantized operands and weights, and the operands against the values they quantize."""
    for name, source in PRODUCTS.items():
        operand, product = steps[f"step/{name}.hidden"], steps[f"step/{name}.product"]
        codes = weights[f"step/{name}.weight.codes"].astype(np.int64)
        codes = codes - weights.get(f"step/{name}.weight.zero_point", 0)
        assert operand.codes is not None and operand.zero_point is not None
        if product.codes is not None:
            sums = (operand.codes.astype(np.int64) - operand.zero_point) @ codes
            assert np.array_equal(sums[valid], product.codes[valid]), name
            assert len(np.unique(sums)) > 20, f"{name}: a trivial case"
        given = steps[f"step/{source}"]
        if operand.row_scale is not None:
            error = np.abs(operand.values - given.values) / operand.row_scale
            assert error[valid].max() <= 0.5001, name
        elif given.codes is not None and given.scale == operand.scale:
            assert np.array_equal(operand.codes[valid], given.codes[valid]), name
        else:
            point = points[f"step/{name}.hidden"]
            assert np.array_equal(operand.codes[valid], quantized(given.values, point)[valid]), name


def valid_rows(feeds: Mapping[str, Array], steps: Steps) -> Array:
    """`[T,B]`."""
    time, batch = next(iter(steps.values())).values.shape[:2]
    lens = feeds.get("sequence_lens", np.full(batch, time))
    return np.arange(time)[:, None] < lens[None, :]


@pytest.mark.few(1)
@in_turn(recipe=[*EVERY_VALUE, 8, 10], varying=[False, True])
def test_every_quantizer_at_every_step(recipe: str | int, varying: bool) -> None:
    options = {"lengths": True, "reverse": True, "initial_states": True} if varying else {}
    model = layer(**options)
    feeds = feeds_of(model, 9, steps=7)
    if isinstance(recipe, int):
        proto = rnnqc.lower(model, form="integer", overrides=BY_HAND[recipe], strict=True).proto
        made = {"bits": recipe, "signed": True, "narrow": False, "zero_point": 0, "scale": [2.0**-6]}
        points = {f"step/{v}": {**made, "rounding": "half_even"} for v in VALUES}
    else:
        statistics = rnnqc.calibrate(model, [feeds_of(model, seed) for seed in range(2)])
        points = {p: f.as_dict() for p, f in formats_of(model, recipe, statistics).points.items()}
        proto = rnnqc.lower(model, recipe, form="integer", stats=statistics, strict=True).proto
    tracer = rnnqc.Tracer(proto)
    steps = only(traced(proto, feeds))
    assert set(steps) >= {f"step/{v}" for v in VALUES}
    assert_follows_the_rule(steps, str(recipe))
    valid = valid_rows(feeds, steps)
    assert all(t.codes is not None for t in steps.values())
    assert_every_quantizer(steps, points, valid)
    assert_products(steps, tracer.weights("layer"), valid, points)
    for tensor in steps.values():
        assert not tensor.values[~valid].any(), tensor.name
    outputs = dict(
        zip(["h_next", "c_next", "Y"], rnnqc.session(proto).run(["h_next", "c_next", "Y"], feeds), strict=True)
    )
    assert np.array_equal(steps["step/output.value"].values, outputs["Y"])
    for name, state in (("output", "h"), ("memory", "c")):
        after, before = steps[f"step/{name}.value"].values, steps[f"step/{name}.value.previous"].values
        rows = range(after.shape[1])
        if varying:
            last = feeds["sequence_lens"] - 1
            assert np.array_equal(before[:-1][valid[1:]], after[1:][valid[1:]])
            initial = before[last, rows]
            assert np.array_equal(after[0], outputs[f"{state}_next"])
        else:
            assert np.array_equal(before[1:], after[:-1])
            initial = before[0]
            assert np.array_equal(after[-1], outputs[f"{state}_next"])
        given = quantized(feeds.get(state, np.zeros_like(initial)), {**points[f"step/{name}.value"]})
        assert np.array_equal(initial, given * F32(points[f"step/{name}.value"]["scale"][0]))


@pytest.mark.few(1)
@pytest.mark.parametrize("recipe", ["int8", "int16", "w4a8"])
def test_rows_with_a_scale_each(recipe: str) -> None:
    """Values stay float, codes have the largest magnitude of their row as the largest code."""
    model = layer(lengths=True)
    feeds = feeds_of(model, 9, steps=5)
    for form in ("integer", "qcdq"):
        proto = lowered(model, recipe, form)
        steps = only(traced(proto, feeds))
        assert_follows_the_rule(steps, form) if form == "integer" else None
        valid = valid_rows(feeds, steps)
        assert_products(steps, rnnqc.Tracer(proto).weights("layer"), valid, {})
        top = 2 ** ((16 if recipe == "int16" else 8) - 1) - 1
        operand = steps["step/project.hidden"]
        assert operand.codes is not None and operand.row_scale is not None
        largest = np.abs(steps["step/memory_tanh.tanh.value"].values[valid]).max(axis=-1) / F32(top)
        assert np.array_equal(operand.row_scale[valid][:, 0], largest.astype(F32))
        assert (np.abs(operand.codes - operand.zero_point)[valid].max(axis=-1) == top).all()
        assert all(steps[f"step/{v}"].codes is None for v in VALUES)


@pytest.mark.few(1)
@pytest.mark.parametrize("recipe", ["int8", "pow2-int16", "brevitas-int8"])
def test_forms_write_the_same(recipe: str) -> None:
    """Loop and written out bit by bit; form qcdq, which has no tables, where powers of two make its sums exact."""
    model = layer(reverse=True, initial_states=True)
    feeds = feeds_of(model, 9, steps=3)
    made = {f: lowered(model, recipe, f) for f in ("fused", "integer", "qcdq")}
    made["unrolled"] = lowered(model, recipe, unroll=True, dims={"T": 3})
    made["unrolled qcdq"] = lowered(model, recipe, "qcdq", unroll=True, dims={"T": 3})
    expected = traced(made["fused"], feeds, native=True)
    for form in ("integer", "unrolled"):
        assert_same(expected, traced(made[form], feeds), form)
    loop = traced(made["qcdq"], feeds)
    assert_same(loop, traced(made["unrolled qcdq"], feeds), "qcdq")
    if recipe.startswith("pow2"):
        exact = lowered(model, recipe, overrides=["*.value.table=exact"])
        one, other = only(traced(exact, feeds)), only(loop)
        assert list(one) == list(other)
        for name in one:
            assert np.array_equal(one[name].values.astype(F32), other[name].values), name
            assert name.endswith(".product") or np.array_equal(one[name].codes, other[name].codes), name


CASES = [
    RecurrenceCase(op=op, form=form, time=5, I=12, H=16, initial=initial)
    for op, form, initial in [
        ("highway", "scan", "input"), ("highway", "loop", "input"), ("highway", "script", "zeros"),
        ("projection", "keras", "dynamic"), ("highway", "unrolled", "zeros"), ("projection", "unrolled", "input"),
    ]
]  # fmt: skip


def assert_ends_in(piece: Any, y: Array) -> str:
    """Asserts that one tensor equals the layer's output in every step that has it; returns its name."""
    there = {n: [k for k in range(len(y)) if k not in piece.absent.get(n, ())] for n in piece.tensors}
    found = [n for n, t in piece.tensors.items() if np.array_equal(t.values[there[n]], y[there[n]])]
    assert found and np.ptp(y) > 0 and len(there[found[0]]) >= len(y) - 1
    return found[0]


@pytest.mark.few(1)
@in_turn(case=[*CASES, CASES[0]], around=["", "if", "loop", "scan"])
def test_ways_to_write_a_loop(case: RecurrenceCase, around: str) -> None:
    """Everything is there, in the order of the steps, in nested graphs, too, where each trip around is a run."""
    plain = case.model()
    overrides = BY_HAND[10] if around == "scan" and case.form != "scan" else []  # there is no calibrating there
    wrapped = {"": plain, "if": nested(plain, 1), "loop": in_loop(plain), "scan": in_scan(plain)}[around]
    feeds = {"x": case.feeds()["x"], **{k: v for k, v in case.feeds().items() if k != "x"}}
    feeds |= {condition(0): np.array(True)} if around == "if" else {}
    if overrides:
        proto = rnnqc.lower(wrapped, overrides=overrides).proto
    else:
        proto = rnnqc.lower(wrapped, "pow2-int16", calibration=[feeds]).proto
    session = rnnqc.session(proto)
    y = session.run(None, feeds)[0]
    pieces = list(rnnqc.Tracer(proto).trace([feeds]))
    assert [(p.run, p.first, p.length) for p in pieces] == [(k, 0, 5) for k in range(TRIPS if y.ndim == 4 else 1)]
    names = {assert_ends_in(p, y[p.run] if y.ndim == 4 else y) for p in pieces}
    assert len(names) == 1 and names.pop().endswith("h_Add.value" if case.op == "highway" else ".value")
    for piece in pieces:
        assert_follows_the_rule(dict(piece.tensors), case.form)
        values = [n for n in piece.tensors if n.endswith(".value")]
        assert len(values) == (23 if case.op == "highway" else 17)
        for name, missing in piece.absent.items():
            assert case.form == "unrolled" and case.initial == "zeros" and missing == [0]
            assert not piece.tensors[name].values[0].any()
    if case.form == "unrolled" and case.initial == "zeros":
        assert any(n.endswith("_from_h_MatMul.hidden") for n in pieces[0].absent)


def test_a_branch_that_is_not_taken_has_no_steps() -> None:
    proto = rnnqc.lower(nested(CASES[0].model(), 1)).proto
    tracer = rnnqc.Tracer(proto)
    feeds = {**CASES[0].feeds(), condition(0): np.array(False)}
    counts = dict.fromkeys(tracer.names, 0)
    for piece in tracer.trace([feeds]):
        counts[piece.cell] += 1
    assert sorted(counts.values()) == [0, 1]


def write(folder: Path, proto: onnx.ModelProto, feeds: Mapping[str, Array]) -> tuple[Path, Path]:
    """The files of a model and its data."""
    onnx.save(proto, folder / "model.onnx")
    save_arrays(folder / "in.npz", feeds)
    return folder / "model.onnx", folder / "in.npz"


def arrays(folder: Path) -> dict[str, Array]:
    """All arrays of the only `.npz` of a dump."""
    (file,) = folder.glob("*.npz")
    with np.load(file, allow_pickle=False) as held:
        return dict(held)


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize("recipe", ["int8", "pow2-int16"])
def test_files(tmp_path: Path, capfd: pytest.CaptureFixture[str], recipe: str) -> None:
    """Stock and native, pieces with states, rows, steps and text say what the whole says."""
    model = layer(initial_states=True)
    feeds = feeds_of(model, 9, steps=6)
    path, data = write(tmp_path, lowered(model, recipe, "fused"), feeds)

    def dump(name: str, *arguments: str | Path) -> dict[str, Array]:
        result = in_process(capfd, "dump", path, "-i", data, "-o", tmp_path / name, *arguments)
        assert result.code == 0, result.text
        return arrays(tmp_path / name)

    whole = dump("whole", "--text")
    (cell,) = json.loads((tmp_path / "whole/index.json").read_text())["cells"].values()
    assert (cell["op"], cell["form"], cell["direction"], cell["steps"]) == ("Scan", "integer", "forward", 6)
    assert set(cell["tensors"]) <= set(whole) and whole["step/memory.value"].shape == (6, 3, 24)
    assert whole["step/from_x.weight.codes"].shape == (12, 24) and whole["operand.step/from_x.bias"].shape == (24,)
    shown = (tmp_path / "whole/frame_4/layer_step_memory_value.txt").read_text().splitlines()
    assert shown == [f"{v:12g}" for v in whole["step/memory.value"][4, 0]]
    dump("stock", "--stock")
    assert (tmp_path / "whole/layer.npz").read_bytes() == (tmp_path / "stock/layer.npz").read_bytes()
    part = dump("part", "--row", "2", "--steps", "1:4")
    for name, array in whole.items():
        assert np.array_equal(array[1:4, 2:] if array.ndim == 3 else array, part[name]), name
    save_arrays(data, {**feeds, "x": feeds["x"].reshape(3, 2, 3, 12)})
    pieces = dump("pieces", "--state", "h:h_next", "--state", "c:c_next")
    assert list(whole) == list(pieces)
    for name, array in whole.items():
        assert array.tobytes() == pieces[name].tobytes(), name


@pytest.mark.slow
def test_comparison(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The first value that a step makes differently is named; steps that do not make it do not count."""
    case = RecurrenceCase(op="highway", form="unrolled", time=5, I=12, H=16, initial="zeros")
    proto = rnnqc.lower(case.model(), "pow2-int16", calibration=[case.feeds()]).proto
    path, data = write(tmp_path, proto, case.feeds())
    arguments = ("dump", path, "-i", data, "--overwrite", "-o")
    assert in_process(capfd, *arguments, tmp_path / "one").code == 0
    (file,) = (tmp_path / "one").glob("*.npz")
    (cell,) = json.loads((tmp_path / "one/index.json").read_text())["cells"].values()
    names = list(cell["tensors"])
    absent = [n for n in names if cell["tensors"][n].get("absent") == [0] and n.endswith(".hidden")]
    assert absent
    theirs = arrays(tmp_path / "one")
    theirs[f"{absent[0]}.codes"][0] = 99
    (tmp_path / "theirs").mkdir()
    save_arrays(tmp_path / "theirs" / file.name, theirs)
    result = in_process(capfd, *arguments, tmp_path / "two", "--compare", tmp_path / "theirs")
    assert result.code == 0 and "arrays agree" in result.out, result.text
    for k in (len(names) - 1, 7):
        theirs[f"{names[k]}.codes"][3, 1, 2] += 1
    save_arrays(tmp_path / "theirs" / file.name, theirs)
    result = in_process(capfd, *arguments, tmp_path / "two", "--compare", tmp_path / "theirs")
    assert result.code == 1
    assert f"step 3, {names[7]}.codes, row 1, column 2" in " ".join(result.out.split()), result.text


def test_refusals(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    model = layer()
    feeds = feeds_of(model, 9, steps=6)
    case = RecurrentCase()
    without = parse('<ir_version: 8, opset_import: ["" : 17]> g (float[2] x) => (float[2] y) { y = Tanh(x) }')

    def refused(proto: onnx.ModelProto, given: Mapping[str, Array], *texts: str, options: tuple[str, ...] = ()) -> None:
        path, data = write(tmp_path, proto, given)
        result = in_process(capfd, "dump", path, "-i", data, "-o", tmp_path / "out", *options)
        assert result.code == 2 and "Traceback" not in result.text, result.text
        for text in texts:
            assert text in " ".join(result.err.split()), result.err
        assert not (tmp_path / "out").exists()

    refused(without, {"x": np.zeros(2, F32)}, "no recurrent layer")
    for recipe in ("weight-only-int8", "fp16"):
        weights = rnnqc.lower(case.model(), recipe=recipe).proto
        refused(weights, case.feeds(), "stores the weights alone", "without quantized values", "--recipe int8")
    bad = {**feeds, "x": feeds["x"].copy()}
    bad["x"][4, 1, 2] = np.nan
    refused(lowered(model, "brevitas-int8"), bad, "layer", "step/", "is nan in step 4")
    made = lowered(model, "pow2-int8")
    refused(made, feeds, "--row 3", "3 rows", options=("--row", "3"))
    refused(made, feeds, "no cell has such a name", "layer", options=("--cells", "lstm*"))
