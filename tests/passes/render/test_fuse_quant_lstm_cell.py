"""fuse-quant-lstm-cell: fires, declines, edges, and the functions it writes.

What these would catch: a function that onnxruntime or the checker refuses, configurations that share a function
although they differ, an input at a position where the operator has another.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields

import numpy as np
import onnx
import onnxruntime as ort
import pytest

import rnnqc
from rnnqc.cells.base import Cell
from rnnqc.cells.fused_nodes import CONFIGURATION, PLACES, fused_outputs, input_names, name_of_body
from rnnqc.cells.stages import IntegerCell
from rnnqc.cells.types import LSTM, fused_type
from rnnqc.errors import CompileError
from rnnqc.ir import CELL_TAG, DOMAIN, Model, Node, Value, constant_array, graph_info, info
from rnnqc.passes import FuseQuantLstmCell
from rnnqc.proto.graph_walks import blocks_of
from rnnqc.recipes.recipe import Recipe
from rnnqc.reference.codes import weight_codes
from tests.generate.float_layer import Activation
from tests.generate.layer_specs import Placement
from tests.generate.layers import RecurrentCase, stacked_model
from tests.passes.pass_testing import CASES, INT8, apply, before, nodes_of, text_of
from tests.runs.sessions import Array, assert_same_bits, plain_session, run
from tests.subjects.protos import parse

CASE = RecurrentCase()


def _fused(proto: onnx.ModelProto, recipe: Recipe = INT8) -> Model:
    """Written and valid; that its numbers are right, test_base.py (every pass on every layer) and tests/laws show."""
    model = before("fuse-quant-lstm-cell", proto, recipe)
    FuseQuantLstmCell()(model)
    onnx.checker.check_model(model.proto, full_check=True)
    return model


def _functions(model: Model) -> list[onnx.FunctionProto]:
    return [f for f in model.functions if f.name.startswith("QuantLSTMCell")]


def _given(node: Node) -> dict[str, Value]:
    names = input_names(LSTM)
    places = node.attrs.get(PLACES) or range(len(node.inputs))
    return {names[p]: v for p, v in zip(places, node.inputs, strict=True)}


def test_golden(golden: Callable[[str, str], None]) -> None:
    golden("fuse_quant_lstm_cell.txt", text_of(_fused(RecurrentCase(outputs=("Y_h",), lens=(3, 5)).model())))


def test_one_node_in_place_of_the_cell() -> None:
    model = _fused(CASE.model())
    (node,) = nodes_of(model, "QuantLSTMCell")
    assert (node.domain, node.name, info(node).metadata[CELL_TAG]) == (DOMAIN, "the_lstm.forward", "the_lstm.forward")
    assert not nodes_of(model, "Scan", "If", "MatMulInteger")
    (cell,) = model.cells.values()
    assert cell.form == "fused"
    assert (DOMAIN, 1) in [(o.domain, o.version) for o in model.proto.opset_import]


@pytest.mark.few(4)
@pytest.mark.parametrize("case", [c for c in CASES if c.placement == "main"], ids=str)
def test_inputs_stand_where_the_operator_has_them(case: RecurrentCase) -> None:
    model = _fused(case.model())
    for node in nodes_of(model, "QuantLSTMCell"):
        cell = model.cells[info(node).metadata[CELL_TAG]]
        given = {n: v.name for n, v in _given(node).items()}
        expected = {
            **cell.operands.as_dict(),
            "X": cell.x,
            "sequence_lens": cell.sequence_lens,
            "initial_h": cell.initial_h,
            "initial_c": cell.initial_c,
        }
        assert given == {k: v for k, v in expected.items() if v is not None}
        assert all(v.name for v in node.inputs), "no gaps: operators with one variadic input take none"
        made = {n: v.name for n, v in zip(fused_outputs(LSTM), node.outputs, strict=False) if v.name}
        assert made == {
            k: v for k, v in (("Y", cell.y), ("Y_h", cell.y_h), ("Y_c", cell.y_c), ("Y_codes", cell.y_codes)) if v
        }


@pytest.mark.few(3)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_functions_are_valid_onnx(case: RecurrentCase) -> None:
    model = _fused(case.model())
    proto = model.proto
    assert 10 <= proto.ir_version <= 13, "onnxruntime refuses more than 13"
    keys = [(f.domain, f.name, f.overload) for f in proto.functions]
    assert len(set(keys)) == len(keys)
    assert {n.op for n in nodes_of(model, "QuantLSTMCell")} == {f.name for f in _functions(model)}
    assert {f.overload for f in proto.functions} == {""}
    for function in proto.functions:
        imports = {o.domain: o.version for o in function.opset_import}
        assert imports == {"": model.opset}, "a function is inlined under the operator set of the model"
        assert list(function.output) == list(fused_outputs(LSTM)[: len(function.output)])
        assert function.doc_string
        assert {n.domain for n in function.node} == {""}


def _configurations(model: Model) -> list[int]:
    return [n.attrs[CONFIGURATION] for n in nodes_of(model, "QuantLSTMCell")]


def test_names_say_what_bodies_hold() -> None:
    """Equal bodies have equal names in different models; different bodies have different numbers."""
    one, other = _fused(CASE.model()), _fused(CASE.replace(seed=1).model())
    assert [f.name for f in _functions(one)] == [f.name for f in _functions(other)]
    assert _configurations(one) == _configurations(other)
    reverse = _fused(CASE.replace(direction="reverse").model())
    assert _configurations(one) != _configurations(reverse)
    both = _fused(CASE.replace(direction="bidirectional").model())
    assert set(_configurations(both)) == {*_configurations(one), *_configurations(reverse)}


def test_names_in_use_are_passed_over() -> None:
    """Two bodies of one number modulo the names that there are; a body beyond all names has one without a kernel."""
    names: list[str] = []
    for number in [7 + LSTM.aliases * k for k in range(LSTM.aliases + 1)]:
        names.append(name_of_body(LSTM, number, names))
    numbers = [k % LSTM.aliases for k in range(7, 7 + LSTM.aliases)]
    assert names == [*(f"QuantLSTMCell_{k:02d}" for k in numbers), f"QuantLSTMCell_x{7 + LSTM.aliases**2:012x}"]
    assert all(fused_type(n) is LSTM for n in names)


@pytest.mark.few(1)
@pytest.mark.parametrize("recipe", ["int8", "int16", "brevitas-int8"])
def test_bodies_fail_when_another_configuration_calls_them(recipe: str) -> None:
    """When the session is created, as in two models that were joined and have one name for two bodies."""
    proto = rnnqc.lower(
        RecurrentCase(direction="bidirectional").model(), recipe=recipe, calibration=[CASE.feeds()]
    ).proto
    run(plain_session(proto), CASE.feeds())
    name = next(f.name for f in proto.functions if fused_type(f.name))
    for node in proto.graph.node:
        if node.op_type.startswith("QuantLSTMCell"):
            node.op_type = name
    with pytest.raises(Exception, match="two_lowered_models_have_different_functions_of_this_name"):
        ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    with pytest.raises(rnnqc.CompileError, match="all but one are lost"):
        rnnqc.session(proto, native=False)


def test_branches_hold_nothing_that_folds() -> None:
    """Nothing on constants alone: onnxruntime 1.24 to 1.27 cannot put such a branch in place of the If."""
    for case in (CASE, CASE.replace(dynamic_time=True, dynamic_batch=True), CASE.replace(lens=(3, 5), initial_h=True)):
        for weights in ([], ["*.weight.bits=4", "*.R.weight.group_size=32"]):
            for function in _functions(_fused(case.model(), INT8.with_overrides(weights))):
                nodes = [n for block in blocks_of([function]) for n in block.node]
                branches = [[m.op_type for m in a.g.node] for n in nodes if n.op_type == "If" for a in n.attribute]
                of_products = [kinds for kinds in branches if kinds == ["MatMulInteger"]]
                # With a state from outside there is one more choice, whose condition is never constant.
                assert len(branches) - len(of_products) == 2 * case.initial_h
                assert len(of_products) == 4 + 4 * case.initial_h


def test_a_model_that_is_fused_in_part_is_refused() -> None:
    model = _fused(stacked_model([RecurrentCase(), RecurrentCase(I=4, seed=1)]))
    name, cell = next(iter(model.cells.items()))
    model.cells[name] = IntegerCell(**{f.name: getattr(cell, f.name) for f in fields(IntegerCell)})
    with pytest.raises(CompileError, match=r"some cells are fused already.*lower the float model in one go"):
        FuseQuantLstmCell()(model)


def test_names_inside_do_not_depend_on_the_model_around() -> None:
    proto = CASE.model()
    renamed = CASE.model()
    renamed.graph.node[0].name = "another_name"
    functions = [_functions(_fused(p))[0].SerializeToString(deterministic=True) for p in (proto, renamed)]
    assert functions[0] == functions[1]
    assert b"the_lstm" not in functions[0]


@pytest.mark.parametrize(
    ("layers", "count"),
    [
        ([RecurrentCase(I=4), RecurrentCase(I=4, seed=1)], 2),  # rows, then codes
        (
            [RecurrentCase(I=4), RecurrentCase(I=4, seed=1), RecurrentCase(I=4, seed=2)],
            3,
        ),  # codes with and without Y_h and Y_codes
        ([RecurrentCase(direction="bidirectional")], 2),
    ],
)
def test_one_function_per_configuration(layers: list[RecurrentCase], count: int) -> None:
    model = _fused(stacked_model(layers))
    functions = _functions(model)
    assert len(functions) == count
    assert len({f.name for f in functions}) == count
    bodies = set()
    for function in functions:
        copy = onnx.FunctionProto()
        copy.CopyFrom(function)
        copy.name = ""
        bodies.add(copy.SerializeToString(deterministic=True))
    assert len(bodies) == count


def _parallel(first: RecurrentCase, second: RecurrentCase) -> onnx.ModelProto:
    """Two layers over one input."""
    models = [onnx.compose.add_prefix(c.model(), p) for c, p in ((first, "a/"), (second, "b/"))]
    for model in models:
        model.graph.node[0].input[0] = "X"
        model.graph.input[0].name = "X"
    merged = models[0]
    merged.graph.node.extend(models[1].graph.node)
    merged.graph.initializer.extend(models[1].graph.initializer)
    merged.graph.output.extend(models[1].graph.output)
    return merged


def test_cells_of_one_configuration_share_a_function() -> None:
    model = _fused(_parallel(CASE, CASE.replace(seed=1)))
    assert len(nodes_of(model, "QuantLSTMCell")) == 2
    assert len(_functions(model)) == 1


@pytest.mark.few(2)
@pytest.mark.parametrize(
    "other",
    [
        CASE.replace(direction="reverse"),
        CASE.replace(H=5),
        CASE.replace(clip=2.0),
        CASE.replace(input_forget=True),
        CASE.replace(activations=(Activation("HardSigmoid", 0.2, 0.5), Activation("Tanh"), Activation("Tanh"))),
        CASE.replace(outputs=("Y",)),
        CASE.replace(peepholes=True),
    ],
    ids=str,
)
def test_cells_of_different_configurations_do_not(other: RecurrentCase) -> None:
    model = _fused(_parallel(CASE, other))
    functions = _functions(model)
    assert len(functions) == len({f.name for f in functions}) == 2
    stock = run(plain_session(model.proto), CASE.feeds())
    alone = [run(plain_session(_fused(c.model()).proto), CASE.feeds()) for c in (CASE, other)]
    for prefix, expected in zip(("a/", "b/"), alone, strict=True):
        got = {k.removeprefix(prefix): v for k, v in stock.items() if k.startswith(prefix)}
        assert_same_bits(expected, got, f"{prefix} beside another configuration")


# Packed weights
UNEVEN_R = ("*.R.weight.codebook=uneven", "*.R.weight.bits=4", "*.R.weight.group_size=32")
GROUPS = "*.weight.group_size=32"
WIDE_R = "*.R.weight.wide_channels=0.02"


@pytest.mark.few(3)
@pytest.mark.parametrize("placement", ["main", "if"])
@pytest.mark.parametrize(
    ("overrides", "packed", "groups"),
    [
        ([], {}, ""),
        (["*.W.weight.bits=4"], {"W": 4}, ""),
        (["*.R.weight.bits=3"], {"R": 4}, ""),
        (["*.weight.bits=4", "*.R.weight.group_size=32"], {"W": 4, "R": 4}, "R"),
        (["*.weight.bits=4", "*.weight.group_size=64"], {"W": 4, "R": 4}, "WR"),
        (["*.weight.bits=4", "*.R.weight.wide_channels=0.2"], {"W": 4}, ""),
        (["*.weight.bits=5"], {"W": 5, "R": 5}, ""),
        (["*.weight.bits=6", "*.R.weight.group_size=32"], {"W": 6, "R": 6}, "R"),
        (["*.W.weight.bits=5", "*.W.weight.group_size=64"], {"W": 5}, "W"),
        (["*.weight.bits=7"], {}, ""),
        ([*UNEVEN_R], {"R": 4}, "R"),
        ([*UNEVEN_R, "*.W.weight.bits=6"], {"R": 4, "W": 6}, "R"),
        ([*UNEVEN_R, WIDE_R], {"R": 4}, "R"),
        (["*.weight.bits=4", GROUPS, WIDE_R], {"W": 4, "R": 4}, "WR"),
        (["*.weight.bits=6", GROUPS, WIDE_R], {"W": 6, "R": 6}, "WR"),
        (["*.W.weight.bits=4", "*.R.weight.bits=5", GROUPS, WIDE_R], {"W": 4, "R": 5}, "WR"),
    ],
    ids=str,
)
def test_weights_of_up_to_6_bits_are_packed(
    overrides: list[str], packed: dict[str, int], groups: str, placement: Placement
) -> None:
    """To the same codes; with optimizations and without the function's body gives the same bits as the nodes before."""
    case = RecurrentCase(I=70, H=34, placement=placement)
    model = before("fuse-quant-lstm-cell", case.model(), INT8.with_overrides(overrides))
    expected = {c.name: _stored(model, c) for c in model.cells.values()}
    apply(FuseQuantLstmCell(), model)
    assert len(_functions(model)) == 1
    for node in nodes_of(model, "QuantLSTMCell"):
        cell = model.cells[info(node).metadata[CELL_TAG]]
        stored, given = _stored(model, cell), _given(node)
        for key, rows in (("W", 70), ("R", 34)):
            size = node.attrs.get(f"{key.lower()}_group_size", 0)
            assert (size > 0) == (key in groups)
            assert (f"{key}_group_multiplier" in stored) == (key in groups)
            assert bool(f"{key}_group_multiplier" in given) == (key in groups)
            bits = packed.get(key, 8)
            wide = node.attrs.get(f"{key.lower()}_wide_columns", 0)
            assert wide == (3 if key == "R" and WIDE_R in overrides else 0)  # of 136
            row = 17 * bits + (wide + 1) // 2
            assert (stored[key].dtype, stored[key].shape) == (np.uint8 if bits < 8 else np.int8, (rows, row))
            assert node.attrs.get(f"{key.lower()}_bits", 4) == packed.get(key, 4)
            codebook = node.attrs.get(f"{key.lower()}_codebook", 0)
            assert codebook == (UNEVEN_R[0] in overrides and key == "R")
            multipliers = stored.get(f"{key}_group_multiplier")
            codes = weight_codes(
                stored[key], multipliers, size, 136, min(bits, 6), codebook=codebook, wide_columns=wide
            )
            np.testing.assert_array_equal(codes, expected[cell.name][key])
        assert (cell.operands.W, cell.operands.R) == (cell.W, cell.R)
        needs_newer = any(bits > 4 for bits in packed.values())
        newest = 3 if UNEVEN_R[0] in overrides else 2 if needs_newer else 1
        if WIDE_R in overrides:
            newest = 4  # with 5 and 6 bits, too: libraries of that version refuse these by the attributes
        assert node.attrs.get("operator_version", 1) == newest
    feeds = case.feeds() if placement == "main" else case.feeds(condition=True)
    unoptimized = run(plain_session(model.proto), feeds)
    optimized = run(rnnqc.session(model.proto, native=False), feeds)
    assert_same_bits(unoptimized, optimized, "optimized")


def _stored(model: Model, cell: Cell) -> dict[str, Array]:
    held = {n: c for g in model.graphs() for n, c in graph_info(g).initializers.items()}
    arrays = {k: constant_array(held[n]) for k, n in cell.operands.as_dict().items() if n in held}
    return {k: a for k, a in arrays.items() if a is not None}


def test_packed_cells_have_functions_of_their_own() -> None:
    recipe = INT8.with_overrides(["a/*.weight.bits=4", "a/*.W.weight.group_size=32"])
    model = _fused(_parallel(CASE, CASE.replace(seed=1)), recipe)
    assert len(_functions(model)) == 2
    assert_same_bits(
        {k: v for k, v in run(plain_session(model.proto), CASE.feeds()).items() if k.startswith("b/")},
        {
            k: v
            for k, v in run(plain_session(_fused(_parallel(CASE, CASE.replace(seed=1))).proto), CASE.feeds()).items()
            if k.startswith("b/")
        },
        "beside a packed cell",
    )


def test_codes_of_edited_files_that_fit_no_nibble_stay() -> None:
    """The recipe said 4 bits, but the integer form was changed by hand."""
    model = before("fuse-quant-lstm-cell", CASE.model(), INT8.with_overrides(["*.weight.bits=4"]))
    (cell,) = model.cells.values()
    held = graph_info(model.graph).initializers
    held[cell.operands.W].values = np.full((3, 16), 9, np.int8)
    apply(FuseQuantLstmCell(), model)
    (cell,) = model.cells.values()
    assert (_stored(model, cell)["W"].dtype, _stored(model, cell)["R"].dtype) == (np.int8, np.uint8)


def test_unused_outputs_are_absent() -> None:
    model = _fused(CASE.replace(outputs=("Y_h",)).model())
    (node,) = nodes_of(model, "QuantLSTMCell")
    assert [bool(v.name) for v in node.outputs] == [False, True]
    (function,) = _functions(model)
    assert list(function.output) == ["Y", "Y_h"]
    (node,) = nodes_of(_fused(CASE.replace(outputs=("Y",)).model()), "QuantLSTMCell")
    assert [bool(v.name) for v in node.outputs] == [True]


def test_cells_in_subgraphs() -> None:
    case = RecurrentCase(placement="if")
    model = before("fuse-quant-lstm-cell", case.model())
    apply(FuseQuantLstmCell(), model, [case.feeds(condition=c) for c in (True, False)])
    assert len(nodes_of(model, "QuantLSTMCell")) == 2
    assert len(_functions(model)) == 1


def test_cells_without_integer_form_stay() -> None:
    recipe = INT8.with_overrides(["layer0*.weight.bits=9"])
    model = _fused(stacked_model([RecurrentCase(), RecurrentCase(I=4, seed=1)]), recipe)
    assert [n.name for n in nodes_of(model, "QuantLSTMCell")] == ["layer1.forward"]
    assert len(nodes_of(model, "Scan")) == 1
    assert {c.name: c.form for c in model.cells.values()} == {"layer0.forward": "qcdq", "layer1.forward": "fused"}


def test_nothing_to_fuse() -> None:
    model = before("fuse-quant-lstm-cell", CASE.model(), INT8.with_overrides(["*.weight.bits=9"]))
    result = FuseQuantLstmCell()(model)
    assert (result.modified, result.statistics["cells"]) == (False, 0)


def test_user_functions_stay() -> None:
    proto = CASE.model()
    proto.ir_version = 10
    twice = parse(
        '<ir_version: 10, opset_import: ["": 17, "test.f": 1]> g (float[2] x) => (float[2] y) { y = test.f.Twice(x) } '
        '<domain: "test.f", opset_import: ["": 17]> Twice (a) => (b) { b = Add(a, a) }'
    )
    proto.functions.extend(twice.functions)
    proto.opset_import.add(domain="test.f", version=1)
    proto.graph.node.append(onnx.helper.make_node("Twice", ["Y_h"], ["doubled"], domain="test.f"))
    proto.graph.output.append(onnx.helper.make_tensor_value_info("doubled", onnx.TensorProto.FLOAT, [1, 2, 4]))
    model = _fused(proto)
    assert [f.name for f in model.functions].count("Twice") == 1
