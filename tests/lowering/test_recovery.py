"""Recovered layers against the original: `lower` finds planted errors of recovery, and takes that recovery back.

What these would catch: a lowering that believes its recovery; one that gives up all layers for one wrong site; a
comparison that is left out silently.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx.helper import make_node, make_tensor_value_info

import rnnqc
from rnnqc.evaluation.evaluate import run_model
from rnnqc.evaluation.numerics import sqnr_db
from rnnqc.lowering import recovery
from rnnqc.lowering.reports.report import Lowered
from rnnqc.passes.normalize import simplify_sequences
from rnnqc.passes.recover import recognize_steps, recover_loops, roll_steps
from rnnqc.passes.recover.loops import loop_layers
from rnnqc.passes.recover.steps.step_weights import StepNode, step_node
from rnnqc.proto import version_conversion
from tests.generate.layers import RecurrentCase
from tests.generate.recurrences import RecurrenceCase
from tests.generate.renaming import rename

SAYS = "does not compute the same as the original"


def swapped_gates(node: StepNode) -> StepNode:
    """Gates o and f of the input exchanged."""
    i, o, f, c = np.split(node.W, 4)
    return replace(node, W=np.concatenate([i, f, o, c]))


def without_bias(node: StepNode) -> StepNode:
    return replace(node, B=None)


def nearly(node: StepNode) -> StepNode:
    """One percent off in one gate."""
    R = node.R.copy()
    R[: len(R) // 4] *= np.float32(1.01)
    return replace(node, R=R)


def other_activation(node: StepNode) -> StepNode:
    return replace(node, attributes={**node.attributes, "activations": ["HardSigmoid", "Tanh", "Tanh"]})


def planted(change: Callable[[StepNode], StepNode], where: str = "") -> Callable[..., StepNode]:
    def made(step: Any, constants: Any) -> StepNode:
        node = step_node(step, constants)
        return change(node) if where in step.h_next.name else node

    return made


def assert_taken_back(lowered: Lowered, proto: onnx.ModelProto, case: RecurrenceCase, pass_name: str) -> None:
    """The lowering reports the recovery that it undid, and the result is still right."""
    (warning,) = [w for w in lowered.report.warnings if SAYS in w]
    assert warning.startswith(f"{pass_name}: ")
    expected, found = run_model(proto, case.feeds()), run_model(lowered.proto, case.feeds())
    assert all(sqnr_db(value, found[name]) > 30 for name, value in expected.items())


@pytest.mark.few(4)
@pytest.mark.parametrize("form", ["scan", "loop", "unrolled"])
@pytest.mark.parametrize("change", [swapped_gates, without_bias, nearly, other_activation])
def test_wrong_steps(form: str, change: Callable[[StepNode], StepNode], monkeypatch: pytest.MonkeyPatch) -> None:
    case = RecurrenceCase(form=form, I=6, H=6, time=3)
    monkeypatch.setattr(recognize_steps, "step_node", planted(change))
    lowered = rnnqc.lower(case.model())
    warnings = [w for w in lowered.report.warnings if SAYS in w]
    assert warnings
    assert all(w.startswith("recognize-steps: ") for w in warnings)
    expected, found = run_model(case.model(), case.feeds()), run_model(lowered.proto, case.feeds())
    assert all(sqnr_db(value, found[name]) > 30 for name, value in expected.items())
    assert not any(e.op == "LSTM" for e in lowered.report.entries)
    assert any("what was made of it does not compute the same" in n for n in lowered.report.notes)


def unturned(b: Any, value: Any, axis: int, name: str) -> Any:
    return value


@pytest.mark.few(1)
@pytest.mark.parametrize("op", ["LSTM", "GRU", "RNN"])
def test_a_loop_read_from_the_wrong_end(op: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case = RecurrenceCase(op=op, form="scan", backwards=True)
    monkeypatch.setattr(loop_layers, "flipped", unturned)
    lowered = rnnqc.lower(case.model())
    assert_taken_back(lowered, case.model(), case, "recover-loops")
    (entry,) = lowered.report.entries
    assert entry.status == "lowered"
    assert "Scan/body/" in entry.node, "the step stays in the loop"


def test_a_loop_that_starts_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    case = RecurrenceCase(form="loop")
    original = recover_loops.LoopLayers._initial
    monkeypatch.setattr(
        recover_loops.LoopLayers,
        "_initial",
        lambda self, layer, k, sequence: original(self, layer, k, sequence) and None,
    )
    assert_taken_back(rnnqc.lower(case.model()), case.model(), case, "recover-loops")


def test_steps_joined_in_another_order(monkeypatch: pytest.MonkeyPatch) -> None:
    case = RecurrenceCase(form="unrolled", time=3)
    original = roll_steps._roll

    def backwards(model: Any, graph: Any, chain: Any, constants: Any) -> None:
        first, last = chain[0], chain[-1]
        first.inputs[0], last.inputs[0] = last.inputs[0], first.inputs[0]
        original(model, graph, chain, constants)

    monkeypatch.setattr(roll_steps, "_roll", backwards)
    assert_taken_back(rnnqc.lower(case.model()), case.model(), case, "roll-steps")


def test_a_layer_that_is_turned_around_wrongly(monkeypatch: pytest.MonkeyPatch) -> None:
    case = RecurrenceCase(form="unrolled", backwards=True, time=3)
    monkeypatch.setattr(simplify_sequences, "FLIPPED", {"forward": "forward", "reverse": "reverse"})
    assert_taken_back(rnnqc.lower(case.model()), case.model(), case, "simplify-sequences")


def two_layers() -> onnx.ModelProto:
    """Two recurrences beside each other."""
    first, second = (RecurrenceCase(form="scan", seed=k, initial="zeros").model() for k in range(2))
    rename(second, lambda name: f"b.{name}")
    for field in ("node", "input", "output", "initializer"):
        getattr(first.graph, field).extend(getattr(second.graph, field))
    return first


def test_one_wrong_site_of_two(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recognize_steps, "step_node", planted(swapped_gates, "b."))
    lowered = rnnqc.lower(two_layers())
    (warning,) = [w for w in lowered.report.warnings if SAYS in w]
    assert "b." in warning
    assert sorted(e.op for e in lowered.report.entries) == ["LSTM", "Scan"]


@pytest.mark.slow
def test_both_branches_are_compared(shared: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """One branch is for 16,000 samples a second, the other for 8,000."""
    path = shared("models/silero_vad/silero_vad_op18_ifless.onnx")
    for name, branch in (("mul_182", "then_branch"), ("mul_182_2", "else_branch")):
        with monkeypatch.context() as context:
            context.setattr(recognize_steps, "step_node", _only(name))
            (warning,) = rnnqc.lower(path).report.warnings
        assert SAYS in warning
        assert branch in warning


def _only(name: str) -> Callable[..., StepNode]:
    def made(step: Any, constants: Any) -> StepNode:
        node = step_node(step, constants)
        return without_bias(node) if step.h_next.name == name else node

    return made


def test_a_model_that_takes_no_generated_input() -> None:
    """Its sequence has to have 7 steps, and only a node inside says so."""
    case = RecurrenceCase(form="scan", dynamic_time=True, batch="B")
    proto = case.model()
    proto.graph.node.insert(0, make_node("Split", ["x", "sizes"], ["first", "rest"], "lengths", axis=0))
    proto.graph.initializer.append(onnx.numpy_helper.from_array(np.array([3, 4]), "sizes"))
    proto.graph.output.append(make_tensor_value_info("first", onnx.TensorProto.FLOAT, None))
    lowered = rnnqc.lower(proto)
    (warning,) = [w for w in lowered.report.warnings if "could not be compared" in w]
    assert "recover-loops" in warning
    assert "Split" in warning
    assert [(e.op, e.status) for e in lowered.report.entries] == [("LSTM", "lowered")]


def _before_resize(opset: int = 10) -> onnx.ModelProto:
    proto = RecurrentCase(opset=opset).model()
    proto.graph.node.append(make_node("Resize", ["Y", "scales"], ["resized"], mode="linear"))
    scales = np.array([1, 1, 1, 1.5], np.float32)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(scales, "scales"))
    proto.graph.output.append(make_tensor_value_info("resized", onnx.TensorProto.FLOAT, None))
    return proto


def test_a_conversion_that_computes_something_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """onnx's converter takes over a Resize as it is, whatever it meant in the old operator set."""
    assert not [w for w in rnnqc.lower(_before_resize()).report.warnings if SAYS in w]
    monkeypatch.setattr(version_conversion, "keep_origins", lambda *_: None)
    (warning,) = [w for w in rnnqc.lower(_before_resize()).report.warnings if SAYS in w]
    assert "in operator set 17, as onnx converts it from 10" in warning
    assert "output 'resized'" in warning
    assert "operator set 13 or later" in warning


def test_indices_are_no_recovered_layers() -> None:
    """The same beside a layer that was one from the start: folded sizes alone are nothing to be warned of."""
    proto = RecurrentCase(dynamic_time=True).model()
    x = proto.graph.input[0]
    size = x.type.tensor_type.shape.dim[2].dim_value
    proto.graph.node.insert(0, make_node("Shape", [x.name], ["shape"], "shape"))
    proto.graph.node.insert(1, make_node("Gather", ["shape", "last"], ["size"], "size"))
    proto.graph.node.insert(2, make_node("Sub", ["size", "less"], ["rest"], "rest"))
    proto.graph.node.insert(3, make_node("Concat", ["start", "rest"], ["sizes"], "sizes", axis=0))
    proto.graph.node.insert(4, make_node("Split", [x.name, "sizes"], ["head", "tail"], "lengths", axis=0))
    for name, number in (("last", 2), ("less", size - 4), ("start", 3)):
        proto.graph.initializer.append(onnx.numpy_helper.from_array(np.array([number]), name))
    proto.graph.output.append(make_tensor_value_info("head", onnx.TensorProto.FLOAT, None))
    lowered = rnnqc.lower(proto)
    assert any("fold-constants" in p.value for p in lowered.proto.metadata_props)
    assert not [w for w in lowered.report.warnings if "could not be compared" in w]


def _of_two_branches(condition: onnx.NodeProto, *inputs: onnx.ValueInfoProto) -> onnx.ModelProto:
    """Unrolled steps in both branches of an If, whose condition a node makes."""
    inner = RecurrenceCase(form="unrolled", initial="zeros", outputs=("y",))
    body = inner.model()
    branches = []
    for k in range(2):
        branch = onnx.compose.add_prefix(body, f"{k}.").graph
        del branch.input[:]
        branch.node.insert(0, make_node("Identity", ["x"], [f"{k}.x"]))
        branches.append(branch)
    nodes = [
        make_node("ReduceSum", ["x"], ["sum"], keepdims=0),
        condition,
        make_node("If", ["beyond"], ["y"], "choice", then_branch=branches[0], else_branch=branches[1]),
    ]
    limit = onnx.numpy_helper.from_array(np.float32(1e9), "limit")
    outputs = [make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)]
    graph = onnx.helper.make_graph(nodes, "choice", [body.graph.input[0], *inputs], outputs, [limit])
    return onnx.helper.make_model(graph, opset_imports=body.opset_import, ir_version=body.ir_version)


def test_a_branch_that_no_generated_input_takes() -> None:
    """The condition is that the sum of the input is beyond 1e9."""
    proto = _of_two_branches(make_node("Greater", ["sum", "limit"], ["beyond"]))
    warnings = [w for w in rnnqc.lower(proto).report.warnings if "known to lead there" in w]
    assert ["choice/then_branch" in w for w in warnings] == [True]


@pytest.mark.parametrize("shape", [[], [1]])
def test_both_branches_of_a_flag_are_compared(shape: list[int]) -> None:
    """numpy's `~` of a 0-d array is not an array, and onnxruntime accepts only arrays."""
    flag = make_tensor_value_info("flag", onnx.TensorProto.BOOL, shape)
    proto = _of_two_branches(make_node("Identity", ["flag"], ["beyond"]), flag)
    assert not [w for w in rnnqc.lower(proto).report.warnings if "known to lead there" in w]


def test_models_of_layers_are_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is recovered in them; lowering them costs no comparison."""

    def fail(*_: Any) -> None:
        raise AssertionError

    monkeypatch.setattr(recovery, "_Trial", fail)
    assert rnnqc.lower(RecurrentCase().model()).report.entries
