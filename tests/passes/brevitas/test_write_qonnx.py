"""write-qonnx: fires, declines, edges.

What these would catch: a cell that is written in formats it does not have, or twice; declared shapes that are wrong;
names that another tool could mistake.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from rnnqc.errors import Outcome, UsageError
from rnnqc.ir import CELL_TAG, Model, info, shape_of
from rnnqc.passes import DecomposeLstm, InsertQcdq, PassManager, WriteQonnx
from rnnqc.passes.formats.brevitas_contract import misfits
from rnnqc.recipes.recipe import Recipe, load_recipe
from tests.generate.float_layer import Activation
from tests.generate.layers import RecurrentCase, stacked_model
from tests.passes.pass_testing import INT8, apply, before, nodes_of, text_of

SCALES = (
    "re:.*\\.(input|hidden).scale=0.0078125",
    "*.acc.scale=0.03125",
    "re:.*\\.(cell_gate|hidden)\\.activation.scale=0.0078125",
    "*.activation.scale=0.00390625",
    "re:.*\\.cell_state(\\.kept|\\.added)?.scale=0.015625",
)
CASE = RecurrentCase()


def recipe(*overrides: str) -> Recipe:
    """Brevitas' formats with scales that need no data."""
    return load_recipe("brevitas-int8").with_overrides([*overrides, *SCALES])


def quantized(case: RecurrentCase, *overrides: str) -> Model:
    model = before("insert-qcdq", case.model())
    PassManager([InsertQcdq(recipe(*overrides))], given=InsertQcdq.info.requires).run(model)
    return model


def written(case: RecurrentCase, *overrides: str) -> Model:
    model = quantized(case, *overrides)
    apply(WriteQonnx(), model)
    return model


def test_golden(golden: Callable[[str, str], None]) -> None:
    golden("write_qonnx.txt", text_of(written(CASE.replace(outputs=("Y_h",), direction="reverse"))))


@pytest.mark.few(2)
@pytest.mark.parametrize("placement", ["main", "if", "loop", "scan"])
@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
def test_fires(placement: str, direction: str) -> None:
    case = CASE.replace(placement=placement, direction=direction, initial_h=True, opset=20)
    model = written(case)
    cells = nodes_of(model, "QuantLSTMCell")
    assert len(cells) == case.directions * (2 if placement == "if" else 1)
    assert not nodes_of(model, "Scan") or placement == "scan"
    assert {c.form for c in model.cells.values()} == {"qonnx"}
    assert {n.domain for n in nodes_of(model, "Quant", "QuantLSTMCell")} == {"qonnx.custom_op.general"}
    assert not nodes_of(model, "QuantizeLinear", "DequantizeLinear")


def test_shapes_are_declared() -> None:
    static, dynamic = (
        nodes_of(written(CASE.replace(dynamic_time=d, dynamic_batch=d)), "QuantLSTMCell")[0] for d in (False, True)
    )
    t, b, h = CASE.T, CASE.B, CASE.H
    assert [list(v.shape) for v in static.outputs] == [[t, b, h], [b, h], [b, h]]
    assert [list(v.shape) for v in dynamic.outputs] == [[None, None, h], [None, h], [None, h]]


def test_the_input_of_a_second_layer_has_no_quantizer() -> None:
    model = before("insert-qcdq", stacked_model([RecurrentCase(I=3, H=5), RecurrentCase(I=5, H=4)]))
    PassManager([InsertQcdq(recipe())], given=InsertQcdq.info.requires).run(model)
    apply(WriteQonnx(), model)
    first, second = nodes_of(model, "QuantLSTMCell")
    assert [n.inputs[0].inputs[0].op for n in (first, second)] == ["Quant", "Squeeze"]


def test_a_state_that_is_absent_is_a_row_of_zeros() -> None:
    (cell,) = nodes_of(written(CASE.replace(initial_c=True, initial_h=False)), "QuantLSTMCell")
    assert shape_of(cell.inputs[1]) == [1, CASE.H]
    assert cell.inputs[2].inputs[0].op == "Quant"


def test_nodes_belong_to_the_cell() -> None:
    model = written(CASE)
    tags = {info(n).metadata.get(CELL_TAG) for n in nodes_of(model, "Quant", "QuantLSTMCell")}
    assert tags == {"the_lstm.forward"}
    model.release_cells(model.cells)
    assert not model.cells
    assert not any(info(n).metadata.get(CELL_TAG) for n in nodes_of(model))


def test_float_cells_stay() -> None:
    """A recipe that quantizes nothing leaves nothing to write."""
    model = before("insert-qcdq", CASE.model())
    PassManager([InsertQcdq(INT8.with_overrides(["*.bits=none"]))], given=InsertQcdq.info.requires).run(model)
    assert not apply(WriteQonnx(), model).modified


DECLINED: dict[str, tuple[RecurrentCase, Sequence[str], str]] = {
    "lengths": (CASE.replace(lens=(5, 2)), (), "sequence_lens: an input of the layer"),
    "clip": (CASE.replace(clip=0.5), (), "clip: 0.5"),
    "peepholes": (CASE.replace(peepholes=True), (), "peepholes"),
    "float input": (CASE, ("*.input.bits=none", "*.bias.bits=none"), "input: bits = none"),
    "float state": (CASE, ("*.cell_state.bits=none",), "cell_state: bits = none"),
    "another activation": (
        CASE.replace(activations=tuple(map(Activation, ("HardSigmoid", "Tanh", "Tanh")))),
        (),
        "activations: HardSigmoid",
    ),
    "input of another scale": (CASE, ("*.input.share=none", "*.input.scale=0.02"), "input: scale"),
    "weights of several scales": (CASE, ("*.weight.share=none",), "R.weight"),
    "output that is not rounded": (CASE, ("*.hidden.rounded_output=false",), "rounded_output"),
    "part of the state": (CASE, ("*.cell_state.added.bits=7",), "cell_state.added: bits = 7"),
    "zero point": (CASE, ("*.input_gate.acc.zero_point=3",), "input_gate.acc: zero_point = 3"),
    "table": (CASE, ("*.output_gate.activation.table=piecewise-linear",), "table"),
    "a further quantizer": (
        CASE,
        ("*.forget_gate.hidden_product.bits=8", "*.forget_gate.hidden_product.scale=0.01"),
        "forget_gate.hidden_product",
    ),
    "accumulator": (CASE, ("*.accumulator.bits=20",), "accumulator"),
    "another rounding of sums": (CASE, ("*.acc.rounding=half_up",), "half_up"),
    "another rounding": (CASE, ("*.hidden.rounding=half_up",), "hidden: rounding = half_up"),
    "too wide": (CASE, ("*.acc.bits=20",), "input_gate.acc, output_gate.acc, .*: 20 bits"),
    "groups": (CASE, ("*.weight.bits=4", "*.weight.group_size=32", "*.weight.share=none"), "W.weight"),
}


@pytest.mark.parametrize("name", DECLINED)
def test_declines(name: str) -> None:
    case, overrides, text = DECLINED[name]
    if name == "groups":
        overrides = [*overrides, "*.weight.granularity=per-channel", "*.weight.narrow=true"]
    model = quantized(case, *overrides)
    (cell,) = model.cells.values()
    held = model.proto.SerializeToString(deterministic=True)
    with pytest.raises(UsageError, match=text) as raised:
        WriteQonnx()(model)
    assert "'the_lstm.forward'" in raised.value.message
    assert raised.value.supported
    assert "--recipe brevitas-int8" in raised.value.action
    assert model.proto.SerializeToString(deterministic=True) == held
    assert bool(misfits(cell)) == (name != "lengths")


def test_coupled_gates_have_no_misfit_of_a_gate_they_do_not_have() -> None:
    model = quantized(CASE.replace(input_forget=True))
    (cell,) = model.cells.values()
    assert misfits(cell) == []


def test_other_types_of_layers_are_left_to_others() -> None:
    model = before("decompose-lstm", CASE.model())
    result = DecomposeLstm(("GRU",))(model)
    (remark,) = [r for r in result.remarks if r.outcome is Outcome.FLOAT]
    assert "form" in remark.reason
    assert not model.cells
