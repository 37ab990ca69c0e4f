"""Recurrences in loops and unrolled that become LSTM, GRU and RNN nodes, and compute the same.

What these would catch: weights packed in another order, a bias lost or counted twice, a sequence read from the wrong
end, a state that does not start where it did, a loop replaced that does something else, one that stays without a word.
"""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import numpy_helper

import rnnqc
from rnnqc.errors import CompileError
from rnnqc.evaluation.evaluate import run_model
from rnnqc.ir import Model
from rnnqc.layers.layer import layer
from rnnqc.measure.compare import compare_models
from rnnqc.passes import PassManager, PassResult, VerifyModified
from rnnqc.passes.analysis.find_recurrent_nodes import recurrent_nodes
from rnnqc.passes.pipeline import normal_form
from tests.generate.recurrences import COUNTERS, FORMS, GATES, RecurrenceCase
from tests.laws.parametrize import every_pair, in_turn

RECURRENT = ("LSTM", "GRU", "RNN", "Loop", "Scan")


def recovered(proto: onnx.ModelProto) -> tuple[Model, list[PassResult]]:
    model = Model.load(proto)
    return model, PassManager(normal_form(), [VerifyModified()]).run(model)


def layers(model: Model) -> list[str]:
    return [n.op for g in model.graphs() for n in g.nodes if n.op in RECURRENT]


def stays(proto: onnx.ModelProto, reason: str) -> tuple[Model, str]:
    """The model in normal form, and the one remark about a loop or step that stays."""
    model, results = recovered(proto)
    (remark,) = [r for result in results for r in result.remarks if r.action]
    assert reason in remark.reason, remark
    assert remark.found
    return model, remark.node


def check(case: RecurrenceCase, count: int = 1) -> Model:
    """The layer becomes `count` nodes that compute the same; a second run changes nothing."""
    proto = case.model()
    model, results = recovered(proto)
    assert layers(model) == [case.op] * count, [str(r) for result in results for r in result.remarks]
    made = model.proto
    onnx.checker.check_model(made)
    expected, found = run_model(proto, case.feeds()), run_model(made, case.feeds())
    for name, value in expected.items():
        assert found[name].shape == value.shape
        np.testing.assert_allclose(found[name], value, rtol=0, atol=1e-5)
    again = PassManager(normal_form()).run(model)
    assert not any(r.modified for r in again)
    return model


@pytest.mark.few(3)
@every_pair(form=FORMS, op=GATES, backwards=[False, True])
def test_every_form_of_every_layer(op: str, form: str, backwards: bool) -> None:
    case = RecurrenceCase(op=op, form=form, backwards=backwards)
    model = check(case)
    (node,) = [n for n in model.graph.nodes if n.op == op]
    assert node.attrs.get("direction", "forward") == ("reverse" if backwards else "forward")
    assert not any(n.op in ("Slice", "Concat", "Split", "Gather", "Tanh", "MatMul", "Gemm") for n in model.graph.nodes)


@pytest.mark.few(5)
@every_pair(form=FORMS, initial=["zeros", "constant", "input", "dynamic"], batch=[1, 3, "B"])
def test_initial_states(form: str, initial: str, batch: int | str) -> None:
    if initial in ("zeros", "constant") and batch == "B":
        pytest.skip("a constant state has a number of rows")
    for op in GATES:
        model = check(RecurrenceCase(op=op, form=form, initial=initial, batch=batch, bias="x"))
        (node,) = [n for n in model.graph.nodes if n.op == op]
        states = [v.name for v in node.inputs[5:7] if v.name]
        assert bool(states) == (initial in ("constant", "input"))


@pytest.mark.few(5)
@every_pair(form=FORMS, op=GATES, outputs=[("y",), ("final",)], batch_first=[False, True])
def test_outputs(form: str, op: str, outputs: tuple[str, ...], batch_first: bool) -> None:
    check(RecurrenceCase(op=op, form=form, outputs=outputs, batch_first=batch_first, backwards=batch_first))


@pytest.mark.few(4)
@in_turn(
    order=["".join(p) for p in itertools.permutations("ifgo")],
    written=[{"form": "scan"}, {"form": "unrolled", "products": "joined", "cut": "slice"}, {"form": "scan"}],
)
def test_orders_of_lstm_gates(order: str, written: dict[str, str]) -> None:
    check(RecurrenceCase(order=order, **written))  # type: ignore[arg-type]


@pytest.mark.few(5)
@every_pair(
    order=["".join(p) for p in itertools.permutations("zrn")],
    update=["torch", "keras", "paper"],
    reset_after=[False, True],
)
def test_grus(order: str, update: str, reset_after: bool) -> None:
    model = check(RecurrenceCase(op="GRU", order=order, update=update, reset_after=reset_after))
    (node,) = [n for n in model.graph.nodes if n.op == "GRU"]
    assert node.attrs.get("linear_before_reset", 0) == int(reset_after)


@pytest.mark.few(4)
@every_pair(
    op=["LSTM", "GRU", "RNN"],
    form=["keras", "scan", "unrolled"],
    sigmoid=["clipped", "limited", "relu6"],
    rest=["Tanh", "linear"],
    products=["fused", "separate"],
)
def test_activations_as_keras_writes_them(op: str, form: str, sigmoid: str, rest: str, products: str) -> None:
    """A hard sigmoid of sums and limits; a GRU without activation; an input times ones, as wake words of Precise."""
    written = (sigmoid, {"LSTM": "Tanh", "GRU": rest, "RNN": sigmoid}[op])
    case = RecurrenceCase(op, form, products=products, activations=written, update="keras", dropout=True)
    case = replace(case, reset_after=False)
    model = check(case)
    (node,) = [n for n in model.graph.nodes if n.op == op]
    kinds = {**dict.fromkeys(("clipped", "limited", "relu6"), "HardSigmoid"), "linear": "Affine", "Tanh": "Tanh"}
    of_gates, of_rest = (kinds[name] for name in written)
    expected = {"LSTM": [of_gates, of_rest, of_rest], "GRU": [of_gates, of_rest], "RNN": [of_rest]}
    assert node.attrs["activations"] == expected[op]


@pytest.mark.parametrize(("low", "high"), [(0.0, 6.0), (-1.0, 1.0)])
def test_other_limits_are_no_hard_sigmoid(low: float, high: float) -> None:
    case = RecurrenceCase(op="GRU", form="keras", activations=("limited", "Tanh"), update="keras")
    proto = case.model()
    for tensor in proto.graph.initializer:
        if tensor.name in ("zero_f", "one_f"):
            tensor.CopyFrom(numpy_helper.from_array(np.float32(low if tensor.name == "zero_f" else high), tensor.name))
    model, _ = recovered(proto)
    assert "GRU" not in layers(model)


@st.composite
def cases(draw: st.DrawFn) -> RecurrenceCase:
    op = draw(st.sampled_from(sorted(GATES)))
    products = draw(st.sampled_from(["fused", "separate", "added"] + ["joined"] * (op != "GRU")))
    squeeze = products in ("separate", "added") and draw(st.booleans())
    sigmoid = draw(st.sampled_from(["Sigmoid", "HardSigmoid", "clipped", "limited", "relu6"]))
    update = draw(st.sampled_from(["torch", "keras"] + ["paper"] * (sigmoid == "Sigmoid")))
    linear = op == "GRU" and update != "torch"
    more = ["linear"] * linear + ["clipped", "limited"] * (op == "RNN")
    rest = draw(st.sampled_from(["Tanh", "Relu", "Softsign", *more]))
    return RecurrenceCase(
        op=op,
        form=draw(st.sampled_from(FORMS)),
        order="".join(draw(st.permutations(GATES[op]))),
        products=products,
        gemm=draw(st.booleans()),
        scales=draw(st.sampled_from([(1.0, 1.0), (0.5, 1.0), (1.0, 2.0), (0.5, 0.25)])),
        squeeze=squeeze,
        counter=draw(st.sampled_from(COUNTERS)),
        local=draw(st.booleans()),
        spare=draw(st.booleans()),
        bias=draw(st.sampled_from(["none", "x", "h", "both"])),
        cut=draw(st.sampled_from(["split", "slice", "slices"])),
        reset_after=draw(st.booleans()),
        update=update,
        activations=(sigmoid, rest),
        dropout=draw(st.booleans()),
        initial=draw(st.sampled_from(["zeros", "constant", "input", "dynamic"])),
        backwards=draw(st.booleans()),
        batch_first=draw(st.booleans()),
        outputs=draw(st.sampled_from([("y",), ("final",), ("y", "final")])),
        time=draw(st.integers(2, 5)),
        batch=1 if squeeze else draw(st.integers(1, 3)),
        I=draw(st.integers(1, 7)),
        H=draw(st.integers(2, 6)),
        seed=draw(st.integers(0, 99)),
    )


@given(cases())
def test_all_ways_to_write_a_layer(case: RecurrenceCase) -> None:
    check(case)


@pytest.mark.few(2)
@every_pair(op=GATES, gemm=[False, True], squeeze=[False, True])
def test_gemm_that_adds_the_product_of_the_state(op: str, gemm: bool, squeeze: bool) -> None:
    """As tf2onnx fuses `x W + h R`; of one row the second product may have lost its axis of rows."""
    check(RecurrenceCase(op=op, form="unrolled", products="added", gemm=gemm, scales=(0.5, 2.0), batch=3))
    check(RecurrenceCase(op=op, form="keras", products="added", gemm=gemm, squeeze=squeeze, batch=1, counter="trips"))


@pytest.mark.few(5)
@pytest.mark.parametrize("counter", COUNTERS)
@pytest.mark.parametrize("dynamic", [False, True])
def test_counters_of_every_type(counter: str, dynamic: bool) -> None:
    """A condition through a Cast, or counters of floats: a loop over the sequence all the same."""
    if counter == "to_int16" and dynamic:
        pytest.skip("int16 does not hold every length")
    check(RecurrenceCase(form="keras", counter=counter, dynamic_time=dynamic, time=6))


@pytest.mark.few(1)
@pytest.mark.parametrize("form", ["scan", "loop", "script", "keras"])
def test_constants_of_the_body(form: str) -> None:
    """Nodes that move out of the loop take the constants of the body along."""
    case = RecurrenceCase(form=form, local=True, spare=True)
    check(case)
    check(RecurrenceCase(op="GRU", form=form, local=True, initial="zeros", lengths="zeros" if form == "loop" else ""))
    rnnqc.lower(case.model(), "weight-only-int8", verify=True)


@pytest.mark.parametrize("cut", ["split", "slice"])
def test_a_part_of_a_product_that_nothing_uses(cut: str) -> None:
    """The reset state has a matmul of its own, although h's matmul has columns for the candidate, too."""
    check(RecurrenceCase(op="GRU", form="keras", products="fused", cut=cut, reset_after=False, order="znr"))


@pytest.mark.parametrize("op", GATES)
def test_lengths_of_rows(op: str) -> None:
    model = check(RecurrenceCase(op=op, form="loop", lengths="zeros", initial="zeros"))
    (node,) = [n for n in model.graph.nodes if n.op == op]
    assert node.inputs[4].name


def layer_of_lstm_step(reverse: bool = False, lengths: bool = False) -> onnx.ModelProto:
    """The layer that `rnnqc layer` makes of an LSTM step."""
    step = RecurrenceCase(form="unrolled", time=1, batch="B", outputs=("final",)).model()
    step.graph.input[0].CopyFrom(onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["B", 5]))
    gather = next(n for n in step.graph.node if n.op_type == "Gather")
    gather.op_type, gather.input[:] = "Identity", ["x"]
    del gather.attribute[:]
    return layer(step, reverse=reverse, lengths=lengths)


@pytest.mark.few(2)
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("lengths", [False, True])
def test_layers_of_a_cell(reverse: bool, lengths: bool) -> None:
    """`rnnqc layer` of an LSTM step is recovered as an LSTM; its mask is an element of a sequence."""
    proto = layer_of_lstm_step(reverse, lengths)
    model, _ = recovered(proto)
    assert layers(model) == ["LSTM"]
    (node,) = [n for n in model.graph.nodes if n.op == "LSTM"]
    assert node.attrs.get("direction", "forward") == ("reverse" if reverse else "forward")
    data = {"x": np.random.default_rng(2).uniform(-1, 1, (4, 3, 5)).astype(np.float32)}
    for lens in ([4, 0, 2], [1, 3, 3]) if lengths else ([],):
        data["sequence_lens"] = np.array(lens, np.int32)
        expected, found = run_model(proto, data), run_model(model.proto, data)
        for name, value in expected.items():
            np.testing.assert_allclose(found[name], value, rtol=0, atol=1e-5)


@pytest.mark.parametrize("mask", ["greater", "smaller lengths", "steps from one", "every second step"])
def test_other_masks_of_a_layer_of_a_cell(mask: str) -> None:
    """`lengths > step` is a mask by lengths, too; another order of them is not, nor steps not counted from 0 by 1."""
    proto = layer_of_lstm_step(lengths=True)
    nodes = proto.graph.node
    less = next(n for n in nodes if n.op_type == "Less")
    steps = next(k for k, n in enumerate(nodes) if n.op_type == "Range")
    if mask == "greater":
        less.op_type, less.input[:] = "Greater", less.input[::-1]
    elif mask == "smaller lengths":
        less.op_type = "Greater"
    else:
        # The first and the last of the steps, or all, are others.
        dtype = onnx.TensorProto.INT64
        first, by = (1, 1) if mask == "steps from one" else (0, 2)
        for name, number in (("begin", first), ("by", by)):
            proto.graph.initializer.append(onnx.helper.make_tensor(name, dtype, [], [number]))
        count = nodes[steps].input[1]
        further = onnx.helper.make_node("Add" if first else "Mul", [count, "by"], ["further"])
        nodes[steps].input[:] = ["begin", "further", "by"]
        nodes.insert(steps, further)
    onnx.checker.check_model(proto)
    model, _ = recovered(proto)
    assert layers(model) == ["LSTM"]
    assert any(n.op == "TopK" for n in model.graph.nodes) == (mask != "greater")
    data = {"x": np.random.default_rng(2).uniform(-1, 1, (4, 3, 5)).astype(np.float32)}
    for lens in ([4, 0, 2], [1, 3, 3]):
        data["sequence_lens"] = np.array(lens, np.int32)
        expected, found = run_model(proto, data), run_model(model.proto, data)
        for name, value in expected.items():
            np.testing.assert_allclose(found[name], value, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        (RecurrenceCase(form="loop", lengths="held", initial="zeros"), "more than the layer's states"),
        (RecurrenceCase(form="loop", lengths="zeros", initial="input"), "lose their initial state"),
    ],
)
def test_masks_that_no_node_has(case: RecurrenceCase, reason: str) -> None:
    """The step in the loop is a node; the loop stays."""
    model, _ = stays(case.model(), reason)
    assert layers(model) == ["Loop", "LSTM"]
    expected, found = run_model(case.model(), case.feeds()), run_model(model.proto, case.feeds())
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=0, atol=1e-5)


def edited(case: RecurrenceCase, name: str, **changes: object) -> onnx.ModelProto:
    """The model with one node changed, of the graph or of a loop's body: its operator, or inputs by position."""
    proto = case.model()
    bodies = [a.g.node for n in proto.graph.node for a in n.attribute if a.type == onnx.AttributeProto.GRAPH]
    (node,) = [n for nodes in (proto.graph.node, *bodies) for n in nodes if n.output and n.output[0] == name]
    node.op_type = str(changes.get("op", node.op_type))
    for key, value in changes.items():
        if key.startswith("input"):
            node.input[int(key.removeprefix("input"))] = str(value)
    return proto


@pytest.mark.parametrize(
    ("case", "name", "changes", "made"),
    [
        # Other equations: nothing is made.
        (RecurrenceCase(), "b_gate_o", {"op": "Tanh"}, ["Scan"]),
        (RecurrenceCase(), "b_kept", {"op": "Add"}, ["Scan"]),
        (RecurrenceCase(), "b_squashed", {"input0": "b_kept"}, ["Scan"]),
        (RecurrenceCase(op="GRU"), "b_gap", {"op": "Add"}, ["Scan"]),
        (RecurrenceCase(op="GRU", products="separate", I=6), "b_pre_n", {"input0": "b_h_n_sum"}, ["Scan"]),
        # Another state: c goes where h should, so there is no hidden state that comes back.
        (RecurrenceCase(products="separate"), "b_h_g", {"input0": "c_in"}, ["Scan"]),
        # Of the loop, not of the step.
        (RecurrenceCase(form="loop"), "x_t", {"input1": "one"}, ["Loop", "LSTM"]),
        (RecurrenceCase(form="loop"), "y_t", {"input0": "b_c"}, ["Loop", "LSTM"]),
        (RecurrenceCase(form="loop"), "y_t", {"input0": "h_in"}, ["Loop", "LSTM"]),
        (RecurrenceCase(form="loop", lengths="zeros", initial="zeros"), "y_t", {"input0": "b_h"}, ["Loop", "LSTM"]),
        (RecurrenceCase(form="keras"), "keep", {"op": "Or"}, ["Loop", "LSTM"]),
        # One gate in the place of two: its weights stand for both.
        (RecurrenceCase(op="GRU"), "b_reset", {"input0": "b_gate_z"}, ["GRU"]),
        # An input for each gate: a wider x.
        (RecurrenceCase(products="separate", I=6, bias="none"), "b_x_g", {"input0": "h_in"}, ["LSTM"]),
    ],
)
def test_almost_a_layer(case: RecurrenceCase, name: str, changes: dict[str, object], made: list[str]) -> None:
    """The recovered model computes the same, whatever it consists of."""
    proto = edited(case, name, **changes)
    if changes.get("input1") == "one":
        proto.graph.initializer.append(onnx.numpy_helper.from_array(np.array(1), "one"))
    model, _ = recovered(proto)
    assert layers(model) == made
    expected, found = run_model(proto, case.feeds()), run_model(model.proto, case.feeds())
    for key, value in expected.items():
        np.testing.assert_allclose(found[key], value, rtol=0, atol=1e-5)


def test_weights_that_differ_in_one_step() -> None:
    """Copies of a step with other weights are other layers; equal weights may be stored twice."""
    case = RecurrenceCase(form="unrolled", time=3, products="fused", bias="none")
    proto = case.model()
    weights = next(t for t in proto.graph.initializer if t.name == "weight_from_h")
    for name, factor in (("copy", 1.0), ("other", 0.5)):
        array = onnx.numpy_helper.to_array(weights) * np.float32(factor)
        changed = onnx.ModelProto.FromString(proto.SerializeToString())
        changed.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
        (node,) = [n for n in changed.graph.node if n.output[0] == "s2_from_h"]
        node.input[1] = name
        model, _ = recovered(changed)
        assert layers(model) == ["LSTM"] * (1 if name == "copy" else 2)
        expected, found = run_model(changed, case.feeds()), run_model(model.proto, case.feeds())
        for key, value in expected.items():
            np.testing.assert_allclose(found[key], value, rtol=0, atol=1e-5)


def test_a_value_inside_the_step_that_is_used() -> None:
    proto = RecurrenceCase(form="unrolled", time=1).model()
    proto.graph.output.append(onnx.helper.make_tensor_value_info("s0_added", onnx.TensorProto.FLOAT, [3, 6]))
    model, _ = stays(proto, "a value inside the step is used elsewhere")
    assert layers(model) == []


@pytest.mark.few(2)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("op", ["highway", "projection"])
def test_other_cells_are_no_nodes_and_are_named(op: str, form: str) -> None:
    proto = RecurrenceCase(op=op, form=form, H=9, I=8).model()
    model, _ = recovered(proto)
    assert not {"LSTM", "GRU", "RNN"} & set(layers(model))
    found = recurrent_nodes(model)
    assert [(n.status, n.refusal) for n in found] == [("lowered", ("", "", ""))], found
    (entry,) = rnnqc.lower(proto, strict=True).report.entries
    assert (entry.node, entry.form) == (found[0].path, "products"), "its products, by a pass of their own"


@pytest.mark.few(2)
@pytest.mark.parametrize("form", FORMS)
def test_an_lstm_inside_another_recurrence_stays_part_of_it(form: str) -> None:
    """A highway layer with a product for each gate holds whole LSTM steps; its states leave the bounds of an LSTM's."""
    case = RecurrenceCase(op="highway", form=form, products="separate", time=3, H=12)
    model, _ = recovered(case.model())
    assert layers(model).count("LSTM") == (1 if form == "unrolled" else 0)  # the first step alone begins with inputs
    lowered = rnnqc.lower(case.model())
    comparison = compare_models(case.model(), lowered.proto, [case.feeds()])
    assert min(c.sqnr_db for c in comparison) > 40.0


@pytest.mark.few(1)
@in_turn(form=[*FORMS, *FORMS[:1]], op=GATES)
def test_what_is_made_is_lowered(op: str, form: str) -> None:
    case = RecurrenceCase(op=op, form=form, initial="zeros", time=3)
    lowered = rnnqc.lower(case.model(), strict=True, verify=True)
    assert [(e.op, e.status) for e in lowered.report.entries] == [(op, "lowered")]
    assert {"recognize-steps", "roll-steps" if form == "unrolled" else "recover-loops"} <= {
        c[0] for c in lowered.report.checks
    }
    expected, found = run_model(case.model(), case.feeds()), run_model(lowered.proto, case.feeds())
    assert max(float(np.abs(expected[n] - found[n]).max()) for n in expected) < 0.05


def test_shared_steps_are_one_initializer() -> None:
    """Ten steps do not store ten copies of the weights."""
    case = RecurrenceCase(form="unrolled", time=10)
    model, _ = recovered(case.model())
    stored = sum(t.ByteSize() for t in model.proto.graph.initializer)
    assert stored < 1.5 * sum(t.ByteSize() for t in replace(case, time=2).model().graph.initializer)


def test_other_recurrences_in_form_qonnx_are_named() -> None:
    with pytest.raises(CompileError, match=r"the form asked for has LSTM layers only\.") as caught:
        rnnqc.lower(RecurrenceCase(op="highway").model(), form="qonnx")
    assert "Found: " in caught.value.message and "Resolution: " in caught.value.message
