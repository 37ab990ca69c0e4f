"""write-ort-lstm: onnxruntime's quantized LSTM computes what the float layer does, within its 8 bits.

What these would catch: gates or directions in another order, a scale that belongs to another channel, an input (states,
lengths, peepholes) or an attribute that gets lost, weights that are stored twice.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rnnqc
from rnnqc.cells.activations import Activation
from rnnqc.cells.forms import ORT, ORT_LSTM
from rnnqc.errors import CompileError, Outcome, UsageError
from rnnqc.ir import Model, constant_array
from rnnqc.passes import Canonicalize, PassManager, QuantizeWeights, WriteOrtLstm
from rnnqc.passes.graph.nodes.lstm_node import R, W
from rnnqc.recipes.recipe import Recipe, load_recipe
from rnnqc.recipes.rules import Rule
from tests.generate.layers import RecurrentCase
from tests.laws.parametrize import every_pair
from tests.passes.pass_testing import apply, nodes_of
from tests.runs.lowered import all_nodes
from tests.runs.sessions import options, run, sqnr

MODELS = Path(__file__).resolve().parents[3] / "models" / "tiny"
LEAST_DB = 30.0
UNUSUAL = (Activation("HardSigmoid"), Activation("Relu"), Activation("Softsign"))


def session(proto: Any) -> Any:
    return rnnqc.session(proto, native=False, options=options())


@pytest.mark.few(7)
@every_pair(
    direction=["forward", "reverse", "bidirectional"],
    lens=[None, (5, 3)],
    states=[False, True],
    peepholes=[False, True],
    special=[{}, {"clip": 0.7}, {"input_forget": True}, {"activations": UNUSUAL}],
    placement=["main", "if", "loop"],
)
def test_it_computes_the_layer(
    direction: str, lens: Any, states: bool, peepholes: bool, special: Any, placement: str
) -> None:
    if "activations" in special:
        special = {"activations": UNUSUAL * (1 + (direction == "bidirectional"))}
    case = RecurrentCase(
        T=5, B=2, I=6, H=9, direction=direction, lens=lens, initial_h=states, initial_c=states, peepholes=peepholes,
        placement=placement, **special,
    )  # fmt: skip
    model, feeds = case.model(), case.feeds()
    lowered = rnnqc.lower(model, form=ORT, strict=True)
    assert {e.form for e in lowered.report.entries} == {ORT}
    for name, value in run(session(model), feeds).items():
        assert sqnr(value, run(session(lowered.proto), feeds)[name]) > LEAST_DB, name
    again = rnnqc.lower(lowered.proto, form=ORT)
    assert {(e.form, e.earlier) for e in again.report.entries} == {(ORT, True)}


@pytest.mark.parametrize(("bits", "dtype", "raised"), [(8, np.uint8, 128), (7, np.int8, 0)])
def test_the_codes_are_those_of_the_stored_weights(bits: int, dtype: type, raised: int) -> None:
    """Every entry, of both directions, and each constant once for nodes that share it."""
    model = Model.load(MODELS / "lstm_shared_weights.onnx")
    PassManager([Canonicalize(), QuantizeWeights(load_recipe("int8").with_overrides([f"*.weight.bits={bits}"]))]).run(
        model
    )
    expected = {}
    for node in nodes_of(model, "LSTM"):
        for k in (W, R):
            maker = node.inputs[k].inputs[0]
            expected[node.name, k] = [constant_array(v) for v in maker.inputs]
    result = apply(WriteOrtLstm(), model)
    assert result.modified
    made = nodes_of(model, ORT_LSTM)
    assert len(made) == len({name for name, _ in expected}) == 2
    assert made[0].inputs[R] is made[1].inputs[R] and made[0].inputs[W] is made[1].inputs[W]
    for node in made:
        for k, place in ((W, 8), (R, 10)):
            codes, scale, zero = expected[node.name, k]
            np.testing.assert_array_equal(constant_array(node.inputs[k]), np.swapaxes(codes.astype(int) + raised, 1, 2))
            np.testing.assert_array_equal(constant_array(node.inputs[place]), scale[None])
            np.testing.assert_array_equal(constant_array(node.inputs[place + 1]), zero[None].astype(int) + raised)
            assert constant_array(node.inputs[k]).dtype == dtype  # either product is exact without VNNI


@pytest.mark.parametrize(
    ("settings", "found"),
    [
        ({"bits": 4}, "4 bits or fewer"),
        ({"bits": None, "store": "float16"}, "float16"),
        ({"bits": 8, "signed": False, "granularity": "per-channel", "symmetric": False}, "other zero points"),
    ],
)
def test_formats_that_the_operator_has_not(settings: dict[str, Any], found: str) -> None:
    model = Model.load(RecurrentCase().model())
    PassManager([Canonicalize(), QuantizeWeights(Recipe("weights", "", (Rule("*.weight", settings),)))]).run(model)
    result = apply(WriteOrtLstm(), model)
    assert not result.modified
    (remark,) = result.remarks
    assert remark.outcome is Outcome.NOTE and found in remark.found and remark.action


@pytest.mark.parametrize("op", ["GRU", "RNN"])
def test_other_layers_stay_float_with_a_reason(op: str) -> None:
    (entry,) = rnnqc.lower(RecurrentCase(op=op).model(), form=ORT).report.entries
    assert (entry.status, entry.found) == ("float", f"operator {op}") and "weight-only-int8" in entry.action
    with pytest.raises(CompileError, match="LSTM alone"):
        rnnqc.lower(RecurrentCase(op=op).model(), form=ORT, strict=True)


def test_options_that_the_form_has_not() -> None:
    model = RecurrentCase().model()
    with pytest.raises(UsageError, match="is no weight"):
        rnnqc.lower(model, form=ORT, overrides=["*.cell_state.bits=16"])
    with pytest.raises(UsageError, match="cannot be unrolled"):
        rnnqc.lower(model, form=ORT, unroll=True)
    with pytest.raises(CompileError, match="group_size"):
        rnnqc.lower(model, "w4a8", ORT)


def test_stock_speed_is_told_of_small_layers_alone() -> None:
    for units, op, told in ((255, "LSTM", "--form ort"), (256, "LSTM", ""), (200, "GRU", "weight-only-int8")):
        report = rnnqc.lower(RecurrentCase(op=op, I=2, H=units).model()).report
        assert bool(report.slow_stock) == bool(told) and told in report.slow_stock
    assert not rnnqc.lower(RecurrentCase().model(), form=ORT).report.slow_stock


def test_the_operator_holds_no_floats_of_weights() -> None:
    lowered = rnnqc.lower(RecurrentCase(direction="bidirectional").model(), form=ORT).proto
    assert not [n for n in all_nodes(lowered) if n.op_type in ("DequantizeLinear", "Concat")]
