"""fold-scales: fires, edges, layers in a row (what declines is in test_fold_cell.py).

What these would catch: a product that stays float, a table made twice, codes that take a detour through float, a
difference to the quantized graph.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import pytest

from rnnqc.evaluation.numerics import sqnr_db
from rnnqc.ir import Model, constant_array, dtype_of, graph_info
from rnnqc.passes import Cleanup, FoldScales
from rnnqc.passes.render.lut.emit_tables import PREFIX
from rnnqc.recipes.recipe import Recipe
from tests.generate.float_layer import ACTIVATION_NAMES, Activation
from tests.generate.layers import RecurrentCase, stacked_model
from tests.laws.parametrize import in_turn
from tests.passes.pass_testing import INT8, apply, before, nodes_of, text_of
from tests.runs.sessions import assert_same_bits, plain_session, run

CASE = RecurrentCase()


def _folded(proto: onnx.ModelProto, recipe: Recipe = INT8, dispatch: bool = True) -> Model:
    """Written and valid; that its numbers are right, test_base.py (every pass on every layer) and tests/laws show."""
    model = before("fold-scales", proto, recipe)
    FoldScales(dispatch=dispatch)(model)
    onnx.checker.check_model(model.proto, full_check=True)
    return model


def test_golden(golden: Callable[[str, str], None]) -> None:
    """With one kind of weights: both kinds would duplicate the text."""
    recipe = INT8.with_overrides(["*.input.mode=static", "*.input.scale=0.03125"])
    model = _folded(CASE.replace(outputs=("Y_h",)).model(), recipe, dispatch=False)
    Cleanup()(model)
    golden("fold_scales.txt", text_of(model))


@pytest.mark.parametrize("dispatch", [True, False])
def test_products_are_integer(dispatch: bool) -> None:
    model = _folded(CASE.model(), dispatch=dispatch)
    assert not nodes_of(model, "MatMul")
    # The input's and the recurrent product in each form, and the one that tests the processor.
    assert len(nodes_of(model, "MatMulInteger")) == (5 if dispatch else 2)
    assert bool(nodes_of(model, "If")) == dispatch
    (cell,) = model.cells.values()
    assert cell.form == "integer"
    weights = {v.name: v for g in model.graphs() for v in graph_info(g).initializers.values()}
    codes = constant_array(weights[cell.operands.W])
    assert codes is not None
    assert codes.dtype == (np.int8 if dispatch else np.uint8)


def test_dispatch_does_not_change_a_bit() -> None:
    outputs = [run(plain_session(_folded(CASE.model(), dispatch=d).proto), CASE.feeds()) for d in (True, False)]
    assert_same_bits(outputs[0], outputs[1], "uint8 weights")


@pytest.mark.parametrize(
    "case",
    [
        CASE,
        RecurrentCase(peepholes=True, clip=2.0),
        RecurrentCase(direction="bidirectional", input_forget=True, H=8, T=12),
    ],
    ids=str,
)
def test_close_to_the_quantized_graph(case: RecurrentCase) -> None:
    """The tables are exact to half an LSB, which is the only difference."""
    model = before("fold-scales", case.model())
    expected = run(plain_session(model.proto), case.feeds())
    FoldScales()(model)
    got = run(plain_session(model.proto), case.feeds())
    for name in expected:
        assert sqnr_db(expected[name], got[name]) > 40, name


ALPHAS = {"Affine": 0.5, "ScaledTanh": 0.75, "LeakyRelu": 0.1, "ThresholdedRelu": 0.1, "HardSigmoid": 0.2, "Elu": 1.0}
BETAS = {"Affine": 0.1, "ScaledTanh": 1.25, "HardSigmoid": 0.5}


@pytest.mark.few(6)
@in_turn(name=ACTIVATION_NAMES, gate=["Sigmoid", "HardSigmoid"])
def test_cell_gates_of_every_kind(gate: str, name: str) -> None:
    names = (gate, name, "Tanh")
    activations = tuple(Activation(n, ALPHAS.get(n), BETAS.get(n)) for n in names)
    case = RecurrentCase(T=4, H=8, gain=0.25, activations=activations)
    got = run(plain_session(_folded(case.model()).proto), case.feeds())
    for output, expected in case.expected(case.feeds()).items():
        assert sqnr_db(expected, got[output]) > 30, output


def test_tables_are_shared() -> None:
    model = _folded(
        stacked_model([RecurrentCase(), RecurrentCase(I=4, seed=1), RecurrentCase(I=4, seed=2, direction="reverse")])
    )
    made = [n.name for n in model.graph.nodes if n.op == "Floor" and n.name.startswith(PREFIX)]
    assert len(made) == 2, "the gates' tables, and the output table"
    assert len({c.operands.gate_table for c in model.cells.values()}) == 1
    assert len({c.operands.cell_table for c in model.cells.values()}) == 1
    assert model.graph.nodes[0].name.startswith(PREFIX), (
        "tables stand at the head of the main graph, visible to every subgraph"
    )


def test_different_tables_are_kept_apart() -> None:
    recipe = INT8.with_overrides(["layer1*.acc.bits=12"])
    model = _folded(stacked_model([RecurrentCase(), RecurrentCase(I=4, seed=1)]), recipe)
    assert len({c.operands.gate_table for c in model.cells.values()}) == 2


def test_tables_of_other_forms_are_initializers() -> None:
    recipe = INT8.with_overrides(["*.activation.table=exact"])
    model = _folded(CASE.model(), recipe)
    assert not nodes_of(model, "Floor")
    (cell,) = model.cells.values()
    table = constant_array(graph_info(model.graph).initializers[cell.operands.cell_table])
    assert table is not None
    np.testing.assert_allclose(table[[0, 1, -1]], np.tanh(np.array([0, 1, -1]) * 2.0**-12), rtol=1e-6)


@pytest.mark.parametrize("placement", ["if", "loop", "scan"])
def test_constants_stand_in_the_graph_of_the_cell(placement: str) -> None:
    model = _folded(RecurrentCase(placement=placement).model())  # type: ignore[arg-type]
    for cell in model.cells.values():
        (graph,) = [g for g in model.graphs() if cell.operands.W in graph_info(g).initializers]
        assert graph is not model.graph


def _modes(model: Model) -> dict[str, str]:
    return {c.name: c.numbers.x_mode for c in model.cells.values()}


def test_codes_pass_from_layer_to_layer() -> None:
    proto = stacked_model(
        [RecurrentCase(direction="bidirectional"), RecurrentCase(I=8, seed=1), RecurrentCase(I=4, seed=2)]
    )
    model = _folded(proto)
    Cleanup()(model)
    assert _modes(model) == {
        "layer0.forward": "dynamic_row",
        "layer0.reverse": "dynamic_row",
        "layer1.forward": "codes",
        "layer2.forward": "codes",
    }
    for name in ("layer1.forward", "layer2.forward"):
        x = model.find(model.cells[name].x)
        stack, seen = [x], []
        while stack:
            value = stack.pop()
            assert value is not None
            (producer,) = value.inputs
            if value.name in {c.y_codes for c in model.cells.values()}:
                assert dtype_of(value) == np.uint8
                continue
            seen.append(producer.op)
            stack += list(producer.inputs) if producer.op == "Concat" else [producer.inputs[0]]
        assert set(seen) <= {"Unsqueeze", "Squeeze", "Concat", "Transpose", "Reshape", "Identity"}
    assert all(model.cells[f"layer{k}"].y is None for k in ("0.forward", "0.reverse", "1.forward"))
    assert [v.name for v in model.graph.outputs] == ["Y", "Y_h", "Y_c"]


def test_codes_are_those_of_the_float_states() -> None:
    """Passing codes gives the bits that quantizing the float hidden states with their format gives."""
    proto = stacked_model([RecurrentCase(), RecurrentCase(I=4, seed=1)])
    chained = _folded(proto)
    scale = chained.cells["layer0.forward"].points["hidden"].scale[0]
    detour = _folded(
        proto, INT8.with_overrides(["*.chain=false", "layer1*.input.mode=static", f"layer1*.input.scale={scale}"])
    )
    assert _modes(detour)["layer1.forward"] == "static"
    outputs = [run(plain_session(m.proto), CASE.feeds()) for m in (chained, detour)]
    assert_same_bits(outputs[0], outputs[1], "a detour through float")


def test_16_bit_codes_do_not_pass_but_are_made_again() -> None:
    """The layer quantizes the float hidden states again, with their scale and zero point."""
    proto = stacked_model([RecurrentCase(), RecurrentCase(I=4, seed=1), RecurrentCase(I=4, seed=2)])
    recipe = INT8.with_overrides(["layer[02]*.hidden.bits=16", "layer0*.hidden.zero_point=30000"])
    model = before("fold-scales", proto, recipe)
    apply(FoldScales(), model)
    assert _modes(model) == {"layer0.forward": "dynamic_row", "layer1.forward": "static", "layer2.forward": "codes"}
    first, second, third = (model.cells[f"layer{k}.forward"].numbers for k in range(3))
    assert [(c.x_bits, c.h_bits) for c in (first, second, third)] == [(8, 16), (16, 8), (8, 16)]
    assert (second.x_scale, second.x_zero_point) == (first.h_scale, first.h_zero_point)
    assert first.h_zero_point == 30000
    assert model.cells["layer0.forward"].y_codes is None
    assert model.cells["layer1.forward"].y_codes is not None


def test_hidden_states_that_are_outputs_too_stay_float() -> None:
    proto = stacked_model([RecurrentCase(), RecurrentCase(I=4, seed=1)])
    proto.graph.output.append(onnx.helper.make_tensor_value_info("Y0", onnx.TensorProto.FLOAT, [5, 1, 2, 4]))
    model = _folded(proto)
    assert _modes(model)["layer1.forward"] == "codes"
    assert model.cells["layer0.forward"].y is not None
    assert model.cells["layer0.forward"].y_codes is not None


def test_first_layer_without_integer_form() -> None:
    """Its quantized values do not exist: the second layer computes the same ones from the float states."""
    recipe = INT8.with_overrides(["layer0*.acc.bits=none"])
    proto = stacked_model([RecurrentCase(), RecurrentCase(I=4, seed=1)])
    model = before("fold-scales", proto, recipe)
    assert model.cells["layer1.forward"].points["input"].mode == "codes"
    result = apply(FoldScales(), model)
    assert [r.node for r in result.remarks] == ["layer0"]
    assert {c.name: c.form for c in model.cells.values()} == {"layer0.forward": "qcdq", "layer1.forward": "integer"}
    assert model.cells["layer1.forward"].numbers.x_mode == "static"
