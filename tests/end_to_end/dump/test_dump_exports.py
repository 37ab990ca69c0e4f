"""`rnnqc dump` of recurrences as PyTorch exports them, and of Brevitas' cells in form qcdq.

What these would catch: a way in which an exporter writes a loop whose values are lost or belong to other steps, codes
that are not Brevitas' in the form that other tools read, formats that the index gives to other codes than the arrays
hold, a gate f = 1 - i without the codes that its format promises.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest

import rnnqc
from rnnqc.cells.activations import make_activation
from rnnqc.ir import Model
from tests.generate.layers import RecurrentCase
from tests.laws.parametrize import in_turn
from tests.pages.dumped import (
    BREVITAS,
    POWERS_OF_TWO,
    assert_equals_brevitas,
    assert_follows_the_rule,
    assert_same,
    assert_weights_of_brevitas,
    brevitas_like,
    traced,
    traced_with_parameters,
)
from tests.subjects.brevitas.models import CASES, draw_feeds, one_cell, random_lstm, read_lstms
from tests.subjects.torch.exports import exported, needed

Array = npt.NDArray[Any]


@pytest.mark.few(2)
@in_turn(name=BREVITAS, unroll=[False, True])
def test_brevitas_like_in_form_qcdq(name: str, unroll: bool) -> None:
    lstm, model, feeds = brevitas_like(name)
    cells, parameters = traced_with_parameters(rnnqc.lower(model, form="qcdq", unroll=unroll).proto, feeds)
    (steps,), (weights,) = cells.values(), parameters.values()
    assert_equals_brevitas(lstm, steps, name)
    assert_weights_of_brevitas(lstm, weights, name)


UNEVEN: dict[str, tuple[dict[str, Any], tuple[int, int]]] = {
    "unsigned, 8 bits": ({"weight_signed": 0}, (-128, 127)),
    "unsigned, 6 bits": ({"weight_signed": 0, "weight_bits": 6}, (0, 63)),
    "unsigned, 16 bits": ({"weight_signed": 0, "weight_bits": 16}, (-(2**15), 2**15 - 1)),
    "signed, 5 bits": ({"weight_bits": 5}, (-16, 15)),
}
"""Weights whose channels have zero points of their own, and the limits of the codes as they are stored."""


@pytest.mark.few(1)
@in_turn(name=UNEVEN, form=["fused", "integer"], per_channel=[True, False])
def test_formats_of_weights_are_those_of_the_arrays(name: str, form: str, per_channel: bool) -> None:
    arguments, limits = UNEVEN[name]
    lstm = random_lstm(3, pow2=True, per_channel=per_channel, weight_narrow=0, **arguments)
    middle = 0 if lstm.weight[0].signed else 2 ** (lstm.weight[0].bits - 1)
    for k, q in enumerate(lstm.weight):
        zeros = middle + np.arange(np.size(q.zero_point), dtype=np.float32) % 5 - k
        lstm.weight[k] = replace(q, zero_point=zeros.reshape(np.shape(q.zero_point)))
    feeds = draw_feeds(lstm, 3, False, True)
    tracer = rnnqc.Tracer(rnnqc.lower(one_cell(lstm, feeds), form=form).proto)
    list(tracer.trace([feeds]))
    (cell,) = tracer.names
    weights, points = tracer.weights(cell), tracer.describe(cell)["points"]
    for key in ("W", "R"):
        point, codes = points[f"{key}.weight"], weights[f"{key}.weight.codes"]
        assert point["zero_points"] == weights[f"{key}.weight.zero_point"].tolist()
        assert "zero_point" not in point
        assert (point["minimum"], point["maximum"]) == limits
        assert point["signed"] == (limits[0] < 0)
        assert limits[0] <= codes.min() < np.mean(limits) < codes.max() <= limits[1]


@pytest.mark.parametrize("pow2", [True, False])
def test_a_coupled_gate_has_codes_where_they_are_exact(pow2: bool) -> None:
    """With a power of two as scale 1 - i is a multiple of it, in every form; with others it is a rounded difference."""
    lstm = random_lstm(5, pow2=pow2, cifg=True)
    feeds = draw_feeds(lstm, 5, False, pow2)
    for form in ("fused", "integer", "qcdq"):
        (steps,) = traced(rnnqc.lower(one_cell(lstm, feeds), form=form).proto, feeds).values()
        i, f = steps["input_gate.activation"], steps["forget_gate.activation"]
        one = np.asarray(lstm.quantizers["input_sigmoid"](np.float32(1)))
        assert np.array_equal(f.values, one - i.values), form
        assert (f.codes is not None) == pow2, form
        if f.codes is not None:
            ones = lstm.quantizers["input_sigmoid"].codes(np.float32(1))
            assert i.codes is not None and np.array_equal(f.codes, ones - i.codes), form
            assert f.scale == i.scale


@pytest.mark.few(1)
@in_turn(name=CASES, unroll=[False, True])
def test_exported_by_brevitas_in_form_qcdq(name: str, unroll: bool, shared: Callable[[str], Path]) -> None:
    path = shared(f"brevitas/{name}/model.onnx")
    with np.load(path.parent / "inputs.npz") as given:
        feeds = dict(given)
    cells, weights = traced_with_parameters(rnnqc.lower(path, form="qcdq", unroll=unroll).proto, feeds)
    for node, lstm in read_lstms(onnx.load(path)).items():
        lstm.run(lstm.quantizers["output"](feeds["x"]))
        (cell,) = (c for c in cells if c.startswith(node))
        assert_equals_brevitas(lstm, cells[cell], f"{name}: {node}")
        assert_weights_of_brevitas(lstm, weights[cell], f"{name}: {node}")


def test_a_file_that_was_changed_since(shared: Callable[[str], Path]) -> None:
    """The record of Brevitas' cells in such a file may be out of date."""
    path = shared(f"brevitas/{CASES[0]}/model.onnx")
    with np.load(path.parent / "inputs.npz") as given:
        feeds = dict(given)
    proto = rnnqc.lower(path, form="qcdq", unroll=True).proto
    for node in proto.graph.node:
        for names in (node.input, node.output):
            names[:] = [f"other/{n}" if "QuantLSTMCell_output" in n else n for n in names]
    with pytest.raises(rnnqc.CompileError, match=r"QuantLSTMCell.*is gone.*lower the original model again"):
        list(rnnqc.Tracer(proto).trace([feeds]))


CELLS = {
    "lstm": RecurrentCase(direction="bidirectional", B=4, initial_h=True, lens=(5, 3, 0, 1)),
    "peepholes": RecurrentCase(peepholes=True, clip=1.5),
    "coupled": RecurrentCase(input_forget=True, direction="reverse"),
    "gru": RecurrentCase(op="GRU", initial_h=True),
    "gru linear": RecurrentCase(op="GRU", linear_before_reset=True, B=1),
    "rnn": RecurrentCase(op="RNN", direction="reverse"),
    "gru relu": RecurrentCase(op="GRU", activations=tuple(map(make_activation, ("Sigmoid", "Relu")))),
}


@pytest.mark.slow
@pytest.mark.few(1)
@in_turn(name=CELLS, recipe=["int8", "brevitas-int8", "pow2-int16", "w4a8"])
def test_form_qcdq_written_out(name: str, recipe: str) -> None:
    """The dump is that of the loop, bit by bit."""
    case = CELLS[name]
    arguments: dict[str, Any] = {"recipe": recipe, "calibration": [case.feeds()]}
    made = {u: rnnqc.lower(case.model(), form="qcdq", unroll=u, **arguments).proto for u in (False, True)}
    expected = traced(made[False], case.feeds())
    assert_same(expected, traced(made[True], case.feeds()), f"{name}, {recipe}")


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize("name", CELLS)
def test_form_qcdq_has_the_codes_of_the_integer_form(name: str) -> None:
    """Float sums of such codes are exact, and tables hold what the activations make."""
    case = CELLS[name]
    arguments: dict[str, Any] = {"recipe": "brevitas-int8", "overrides": POWERS_OF_TWO, "calibration": [case.feeds()]}
    integer = traced(rnnqc.lower(case.model(), form="integer", **arguments).proto, case.feeds())
    written = rnnqc.lower(case.model(), form="qcdq", **arguments).proto
    for cell, steps in traced(written, case.feeds()).items():
        both = [n for n, t in steps.items() if t.codes is not None]
        assert {"input", "hidden", "hidden.previous"} <= set(both)
        assert len(both) >= {"LSTM": 13, "GRU": 9, "RNN": 5}[case.op]
        for tensor in both:
            one, other = integer[cell][tensor], steps[tensor]
            assert np.array_equal(one.codes, other.codes), f"{cell}: {tensor}"
            assert np.array_equal(one.values, other.values), f"{cell}: {tensor}"
            assert len(np.unique(other.codes)) > 5, f"{cell}: {tensor}: a trivial case"


@pytest.mark.slow
@in_turn(name=CELLS, recipe=["int8", "pow2-int8", "brevitas-int8"])
def test_names_are_those_of_the_integer_form(name: str, recipe: str) -> None:
    """Tensors in the same order, parameters with the same values, and nothing of how the file stores them."""
    case = CELLS[name]
    arguments: dict[str, Any] = {"recipe": recipe, "calibration": [case.feeds()]}
    made = {f: rnnqc.lower(case.model(), form=f, **arguments).proto for f in ("fused", "integer", "qcdq")}
    found = {f: traced_with_parameters(p, case.feeds()) for f, p in made.items()}
    in_units = recipe == "int8"  # there pre-activations and biases are in units of codes
    for cell, steps in found["qcdq"][0].items():
        for form in ("fused", "integer"):
            integer = found[form][0][cell]
            unlike = [n.replace(".acc", ".preactivation") for n in integer if in_units and n.endswith(".acc")]
            assert list(steps) == [n for n in integer if n not in unlike], f"{cell}: {form}"
            for n, t in integer.items():
                if n in steps and t.codes is not None and steps[n].codes is not None:
                    assert t.zero_point is not None, n
                    assert t.zero_point.ndim or t.zero_point == steps[n].zero_point, f"{cell}: {form}: {n}"
            ours, theirs = found["qcdq"][1][cell], found[form][1][cell]
            real = {n for n in ours if in_units and not n.endswith((".codes", ".scale"))}
            assert set(theirs) == set(ours) - real
            assert {f"{k}.weight.{part}" for k in "WR" for part in ("codes", "scale")} <= set(theirs)
            used = np.ones(theirs["W.weight.codes"].shape[1], bool)
            used[2 * case.H : 3 * case.H] = not case.input_forget  # gate f = 1 - i
            for n, array in theirs.items():
                columns = used if array.shape[-1:] == used.shape else slice(None) if array.ndim else ...
                # Scales of weights are quotients of multipliers, exact where the other scale is a power of two.
                exact = not n.endswith(".scale") or recipe == "pow2-int8"
                off = np.abs(array[..., columns].astype(np.float64) - ours[n][..., columns])
                assert np.all(off <= (0.0 if exact else 2.0**-22 * np.abs(ours[n][..., columns]))), f"{cell}: {n}"
    tracer = rnnqc.Tracer(made["qcdq"])
    list(tracer.trace([case.feeds()]))
    assert all(not tracer.constants(cell) for cell in tracer.names)


@pytest.mark.few(1)
@in_turn(kind=["script", "traced", "dynamo"], recipe=["int8", "pow2-int16", "brevitas-int8"])
def test_exports_of_torch(kind: str, recipe: str) -> None:
    """Layers as a Loop with a list of tensors, and as written-out steps from a state of zeros."""
    torch = needed("dumps of exported recurrences", dynamo=kind == "dynamo")
    from tests.subjects.torch.recurrences import Highway, HighwayScript, export, values

    torch.manual_seed(0)
    (x,) = values("LSTM")
    dynamo = kind == "dynamo"
    module = HighwayScript() if kind == "script" else Highway()
    model = export(module, (x,), dynamo, 18 if dynamo else 17, kind == "script")
    feeds = {Model.load(model).graph.inputs[0].name: x.numpy()}
    proto = rnnqc.lower(model, recipe, calibration=[feeds]).proto
    y = rnnqc.session(proto).run(None, feeds)[0]
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # what is brought out may be constant
        tracer = rnnqc.Tracer(proto)
    (piece,) = tracer.trace([feeds])
    assert piece.length == len(y) == 4
    assert any(np.array_equal(t.values, y) for t in piece.tensors.values())
    assert not piece.absent
    if recipe != "int8":
        assert_follows_the_rule(dict(piece.tensors), kind)
        assert all(t.codes is not None for t in piece.tensors.values())


def test_steps_of_values_that_some_steps_lack() -> None:
    """Steps that differ have products alone; in the first one, from a state of zeros, one of them is a constant."""
    torch = needed("dumps of written-out recurrences")
    from tests.subjects.torch.recurrences import GatedProduct, I

    torch.manual_seed(1)
    x = torch.randn(5, 3, I)
    module = GatedProduct(skip=True)
    model = exported(module, [x], False, opset_version=17)
    (first,) = (n for n in model.graph.node if n.name == "/u/Gemm")
    bias = np.tile(module.u.bias.detach().numpy(), (3, 1))
    model.graph.initializer.append(onnx.numpy_helper.from_array(bias, first.output[0]))
    model.graph.node.remove(first)
    feeds = {Model.load(model).graph.inputs[0].name: x.numpy()}
    proto = rnnqc.lower(model, calibration=[feeds], overrides=["*.hidden.bits=16"]).proto
    (piece,) = rnnqc.Tracer(proto).trace([feeds])
    assert piece.length == 5
    assert piece.absent == {"/u_1/Gemm.hidden": [0], "/u_1/Gemm.product": [0]}
    made = {n: t.values for n, t in piece.tensors.items()}
    assert set(made) == {f"/{n}/Gemm.{p}" for n in ("f", "n", "m", "u_1") for p in ("hidden", "product")}
    y = rnnqc.session(proto).run(None, feeds)[0]
    np.testing.assert_allclose(made["/u_1/Gemm.hidden"][1:], y[:-1], atol=1e-3)
    np.testing.assert_allclose(made["/f/Gemm.hidden"], x.numpy(), atol=1e-3)


@pytest.mark.slow
@pytest.mark.few(1)
@in_turn(kind=["highway", "projection"], recipe=["int8", "pow2-int16"])
def test_layers_of_exported_steps(kind: str, recipe: str) -> None:
    """A step that torch exports, made a layer with lengths, in both directions: each row is as it is alone."""
    torch = needed("dumps of layers of exported steps")
    from tests.subjects.torch.recurrences import AugmentedLstmCell, ProjectedCell

    torch.manual_seed(0)
    cell, memory = (AugmentedLstmCell(24, 32), 32) if kind == "highway" else (ProjectedCell(24, 32, 48), 48)
    names = ("x", "h", "c", "h_next", "c_next")
    options = {
        "input_names": names[:3], "output_names": names[3:], "opset_version": 17,
        "dynamic_axes": {n: {0: "B"} for n in names},
    }  # fmt: skip
    step = exported(cell, [torch.zeros(2, k) for k in (24, 32, memory)], False, **options)
    model = rnnqc.layer(step, lengths=True, reverse=True)
    rng = np.random.default_rng(0)
    x, lens = rng.standard_normal((6, 3, 24)).astype(np.float32), np.array([6, 2, 4], np.int32)
    feeds = {"x": x, "sequence_lens": lens}
    proto = rnnqc.lower(model, recipe, calibration=[feeds]).proto
    (piece,) = rnnqc.Tracer(proto).trace([feeds])
    for row, length in enumerate(lens):
        alone = {"x": x[:length, row : row + 1], "sequence_lens": lens[row : row + 1]}
        (one,) = rnnqc.Tracer(proto).trace([alone])
        assert one.length == length and list(one.tensors) == list(piece.tensors)
        for name, tensor in one.tensors.items():
            held = piece.tensors[name].row(row)
            assert np.array_equal(held.values[:length], tensor.values), name
            assert not held.values[length:].any(), name
