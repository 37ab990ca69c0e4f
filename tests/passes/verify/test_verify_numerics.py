"""Verified lowerings with losses that are not errors of a pass, and with values that drift.

What these would catch: a false alarm about ranges that were made for other data, a fault that hides behind such a loss,
and models that are run more often than needed.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import rnnqc
from rnnqc.calibration.calibrate import calibrate
from rnnqc.cells.stages import QuantizedCell
from rnnqc.data.generated_feeds import generate_feeds
from rnnqc.data.statistics import Statistics
from rnnqc.errors import NumericsError
from rnnqc.ir import Model, Node
from rnnqc.lowering.executable import executable
from rnnqc.passes import PassManager, VerifyNumerics
from rnnqc.passes.invariants import Property
from rnnqc.passes.pipeline import default_passes
from rnnqc.passes.verify.model_runs import ModelRuns
from rnnqc.passes.verify.pass_comparison import OWN_LOSS
from rnnqc.passes.verify.step_feeds import StepFeeds
from rnnqc.recipes.recipe import load_recipe
from tests.generate.float_layer import Activation
from tests.generate.layers import RecurrentCase, stacked_model
from tests.passes.pass_testing import INT8, before
from tests.passes.planting import Spoilt, verifier_of
from tests.runs.commands import in_process

CASE = RecurrentCase(T=12, B=3, I=6, H=8, dynamic_time=True, dynamic_batch=True)
RNN = RecurrentCase(op="RNN", T=12, B=3, I=6, H=8, dynamic_time=True, dynamic_batch=True)
"""Compared in half of the time."""


def of_other_data(case: RecurrentCase, share: float) -> Statistics:
    """Statistics of much larger inputs than those that are generated."""
    return calibrate(case.model(), [{"X": share * case.replace(seed=s).feeds()["X"]} for s in (1, 2)])


def own_losses(checks: list[tuple[str, str]]) -> list[str]:
    return [name for name, text in checks if text.startswith(OWN_LOSS)]


def test_ranges_of_other_data_raise_no_alarm() -> None:
    """Ranges promise nothing for other data; a note says so, and everything else is compared exactly."""
    checks = rnnqc.lower(CASE.model(), "pow2-int8-floor", stats=of_other_data(CASE, 300.0), verify=True).report.checks
    assert set(own_losses(checks)) == {"insert-qcdq"}
    assert "without quantizers: max abs difference 0" in [text for _, text in checks]


def test_the_command_says_so(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    source, output, stats = (tmp_path / n for n in ("in.onnx", "out.onnx", "stats.json"))
    source.write_bytes(RNN.model().SerializeToString())
    of_other_data(RNN, 300.0).save(stats)
    options = ["--recipe", "pow2-int8-floor", "--stats", stats, "--verify"]
    result = in_process(capfd, "lower", source, "-o", output, *options)
    assert result.code == 0, result.err
    assert "pass 'insert-qcdq': a loss of the recipe's own" in " ".join(result.err.split())


def test_a_fault_does_not_hide_behind_such_a_loss() -> None:
    """An error of the structure, which no constant shows."""

    def wrong_gate(model: Model) -> bool:
        found = [n for g in model.graphs() for n in g.nodes if n.op == "Tanh" and "cell_gate" in n.name]
        for node in found:
            node.op = "Sigmoid"
        return bool(found)

    passes = default_passes(load_recipe("pow2-int8-floor"), "integer", False, of_other_data(CASE, 300.0))
    place = next(k for k, p in enumerate(passes) if p.info.name == "insert-qcdq")
    passes[place] = Spoilt(passes[place], wrong_gate)
    proto = CASE.model()
    with pytest.raises(NumericsError, match=r"'insert-qcdq' changed .*without its quantizers the model is another"):
        PassManager(passes, [verifier_of(proto)], given=frozenset({Property.CANONICAL})).run(Model.load(proto))


def test_a_loss_without_statistics_is_an_alarm() -> None:
    """The same loss with a recipe that promises a bound for any data."""
    passes = default_passes(load_recipe("int8"), "integer", False)
    place = next(k for k, p in enumerate(passes) if p.info.name == "insert-qcdq")

    def coarse(model: Model) -> bool:
        nodes = [n for g in model.graphs() for n in g.nodes if n.op == "Clip" and "acc.clipped" in n.name]
        for node in nodes:
            node.inputs[2] = model.constant(1.0, np.float32)
        return bool(nodes)

    passes[place] = Spoilt(passes[place], coarse)
    proto = CASE.model()
    with pytest.raises(NumericsError, match=r"'insert-qcdq' changed .*SQNR .* 10 dB declared.* A constant is wrong"):
        PassManager(passes, [verifier_of(proto)], given=frozenset({Property.CANONICAL})).run(Model.load(proto))


ODD = tuple(Activation(n, a) for n, a in (("HardSigmoid", None), ("Elu", 1.0), ("LeakyRelu", 0.01)))
DRIFTING = {
    "behind another layer": (
        [RecurrentCase(op="GRU", T=9, B=3, I=22, H=11, direction="bidirectional", bias=False, opset=17)] * 2,
        "pow2-w8a16", ["*.weight.scale_bits=8"],
    ),
    "tables of Vitis AI in a row": (
        [RecurrentCase(T=4, B=2, I=8, H=8, gain=0.3, seed=8, opset=17)] * 4, "pow2-w8a16", [],
    ),
    "columns that do not vary": (
        [RecurrentCase(T=2, B=1, I=2, H=2, direction="reverse", clip=30.0, input_forget=True, activations=ODD,
                       gain=0.125, dynamic_time=True, opset=17, seed=49158)] * 3,
        "pow2-int16", ["*.weight.bits=3"],
    ),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", DRIFTING)
def test_right_models_that_drift(name: str) -> None:
    """Offsets of values whose inputs differ between the two forms already, or that hardly vary at all."""
    layers, recipe, overrides = DRIFTING[name]
    proto = stacked_model(layers, shared_weights=True)
    statistics = calibrate(proto, [generate_feeds(proto, seed=s) for s in (1, 2)])
    rnnqc.lower(proto, recipe, "integer", overrides=overrides, stats=statistics, verify=True)


def test_a_model_is_run_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The model after a pass is the one before the next pass."""
    made: list[int] = []
    right = ModelRuns.__init__

    def counted(self: Any, *arguments: Any, **options: Any) -> None:
        made.append(1)
        right(self, *arguments, **options)

    monkeypatch.setattr(ModelRuns, "__init__", counted)
    passes = default_passes(load_recipe("int8"), "fused", False)
    proto = RNN.model()
    verifier = VerifyNumerics([RNN.feeds()], executable=executable)
    results = PassManager(passes, [verifier], given=frozenset({Property.CANONICAL})).run(Model.load(proto))
    without_loss = 1  # of insert-qcdq
    assert len(made) == 1 + sum(r.modified for r in results) + without_loss


def test_an_edit_between_passes_is_noticed() -> None:
    """If a caller edits the model, the runs after the previous pass are not reused."""
    first, second = default_passes(load_recipe("int8"), "integer", False)[-2:]
    passes = default_passes(load_recipe("int8"), "integer", False)[:-2]
    verifier, model = VerifyNumerics([CASE.feeds()]), Model.load(CASE.model())
    PassManager(passes, [verifier], given=frozenset({Property.CANONICAL})).run(model)
    output = model.graph.outputs[0]
    maker: Node = output.inputs[0]
    maker.op = "Neg" if maker.op == "Identity" else maker.op
    given = frozenset({Property.CANONICAL, Property.CELLS_QUANTIZED})
    PassManager([first, second], [verifier], given=given).run(model)
    assert {"fold-scales"} <= {name for name, _ in verifier.checks}


COARSE = RecurrentCase(T=24, B=3, I=6, H=16, gain=10.0, seed=1, outputs=("Y_h",), dynamic_time=True, dynamic_batch=True)
TWO_BITS = load_recipe("w4a8").with_overrides(["*.weight.bits=2"])


def test_weights_of_few_bits_raise_no_alarm() -> None:
    """Where the weights alone lose beyond the bound, and their codes are right."""
    checks = rnnqc.lower(COARSE.model(), TWO_BITS, verify=True).report.checks
    (text,) = {text for name, text in checks if text.startswith(OWN_LOSS)}
    assert re.search(r"SQNR -\d.* without quantizers the model is the same", text)


def test_a_quantizer_that_runs_by_itself_shows_a_fault() -> None:
    """A range of rows that is computed wrongly: no constant is wrong, nor is anything without quantizers."""

    def wrong_range(model: Model) -> bool:
        found = [n for g in model.graphs() for n in g.nodes if n.op == "ReduceMax" and "/input." in n.outputs[0].name]
        for node in found:
            node.op = "ReduceMin"
        return bool(found)

    passes = default_passes(TWO_BITS, "integer", False)
    place = next(k for k, p in enumerate(passes) if p.info.name == "insert-qcdq")
    passes[place] = Spoilt(passes[place], wrong_range)
    proto = COARSE.model()
    with pytest.raises(NumericsError, match=r"'insert-qcdq' .*quantized values of a row of the_lstm.forward.input: "):
        PassManager(passes, [verifier_of(proto)], given=frozenset({Property.CANONICAL})).run(Model.load(proto))


def test_what_was_not_compared_is_not_counted(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Of a model that does not run on short sequences no data is usual, so that no loss can be compared."""
    proto = RNN.model()
    proto.graph.initializer.append(onnx.numpy_helper.from_array(np.array([100]), "late"))
    proto.graph.node.append(onnx.helper.make_node("Gather", ["X", "late"], ["picked"], axis=0))
    proto.graph.output.append(onnx.helper.make_tensor_value_info("picked", onnx.TensorProto.FLOAT, None))
    source, output, report = (tmp_path / n for n in ("in.onnx", "out.onnx", "report.json"))
    source.write_bytes(proto.SerializeToString())
    result = in_process(capfd, "lower", source, "-o", output, "--verify", "--json", report)
    assert result.code == 0, result.err
    data = json.loads(report.read_text())
    assert data["unverified"] == ["insert-qcdq", "fold-scales"]
    assert {"decompose-lstm", "cleanup", "fuse-quant-lstm-cell"} <= set(data["verified"])
    assert f"verified  {len(data['verified'])} passes compared, 2 not compared (said above)" in result.out
    assert "pass 'fold-scales' was not compared: a loss is declared" in " ".join(result.err.split())


def test_every_pass_is_counted_once(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    source, output, report = (tmp_path / n for n in ("in.onnx", "out.onnx", "report.json"))
    source.write_bytes(RNN.model().SerializeToString())
    result = in_process(capfd, "lower", source, "-o", output, "--verify", "--json", report)
    data = json.loads(report.read_text())
    assert data["unverified"] == [] and len(set(data["verified"])) == len(data["verified"])
    assert f"verified  {len(data['verified'])} passes changed no more than declared" in result.out


@pytest.mark.parametrize("recipe", ["pow2-int8", "distiller-sym"])
def test_a_value_whose_name_went_to_another_raises_no_alarm(recipe: str) -> None:
    """The new state of an RNN is its gate behind the quantizer; tidied up, both have one name: that of the state."""
    case = RecurrentCase(op="RNN", activations=(Activation("Tanh"),), outputs=("Y_h",))
    stats = calibrate(case.model(), [case.feeds()])
    checks = rnnqc.lower(case.model(), recipe, "qcdq", stats=stats, verify=True).report.checks
    compared = [text for name, text in checks if name == "cleanup" and text.startswith("single steps")]
    assert compared and "passed over" not in compared[0], checks


def test_every_code_is_tried_where_a_table_is_read_and_few_elsewhere() -> None:
    recipe = INT8.with_overrides(["*.cell_state.bits=24"])
    (cell,) = before("fold-scales", CASE.model(), recipe).cells.values()
    assert isinstance(cell, QuantizedCell)
    read = {"input_gate.preactivation": "input_gate.activation", "cell_state.kept": "hidden.squashed"}
    made = StepFeeds(cell).of([*read, "x"], list(read.values()))
    for port, point in zip(read, ("input_gate.acc", "cell_state"), strict=True):
        held = cell.point(point).complete
        codes = held.quantize(made[port].astype(np.float32)).astype(np.int64)
        low, high = max(held.minimum, -(2**15)), min(held.maximum, 2**15 - 1)  # a table has no more entries
        assert set(range(low, high + 1)) <= set(codes.ravel())
    few = StepFeeds(cell).of([*read, "x"], [])
    assert all(len(a) < len(made["x"]) / 50 for a in few.values())


def test_a_state_without_the_limit_does_not_stand_for_it() -> None:
    """Of one step, unrolled, the limited state gets the name of the output when the graph is tidied up."""
    case = RecurrentCase(T=1, B=2, outputs=("Y_c",))
    overrides = ["*.cell_state.bits=none"]
    checks = rnnqc.lower(case.model(), "int8", "integer", unroll=True, overrides=overrides, verify=True).report.checks
    assert any(name == "cleanup" and text.startswith("single steps") for name, text in checks), checks
