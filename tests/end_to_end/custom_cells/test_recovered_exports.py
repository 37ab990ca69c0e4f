"""Loops over recurrent cells as torch's exporters write them: which become layers, and that they are lowered.

What these would catch: an exporter's way to write a step that is not recognized, a layer made of it that computes
something else, a recurrence that stays float without being named.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import onnx
import pytest

import rnnqc
from rnnqc.cli import main
from rnnqc.evaluation.evaluate import run_model
from rnnqc.evaluation.numerics import sqnr_db
from rnnqc.ir import Model, constant_array
from rnnqc.passes import PassManager
from rnnqc.passes.pipeline import normal_form
from tests.laws.parametrize import every_pair, in_turn

torch = pytest.importorskip("torch", reason="needs torch: its exporters' loops NOT tested")
from tests.subjects.torch.recurrences import (  # noqa: E402 - needs torch
    CellLoop,
    CellStep,
    Decoder,
    HigherOrderScan,
    Highway,
    Layer,
    LayerLoop,
    ScriptCells,
    ScriptEquations,
    ScriptLayer,
    SumStep,
    WrittenLoop,
    export,
    export_step,
    feeds,
    values,
)

KINDS = ("LSTM", "GRU", "RNN")
RECURRENT = (*KINDS, "Loop", "Scan")
EXPORTERS = [(False, 9), (False, 13), (False, 17), (True, 18), (True, 20)]


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def _needs(dynamo: bool) -> None:
    if dynamo:
        pytest.importorskip("onnxscript", reason="needs onnxscript: dynamo's exports NOT tested")


def check(proto: onnx.ModelProto, inputs: tuple[Any, ...], expected: list[str]) -> None:
    """The model in normal form has these recurrent nodes, computes the same, and is lowered."""
    model = Model.load(proto)
    results = PassManager(normal_form()).run(model)
    made = [n.op for g in model.graphs() for n in g.nodes if n.op in RECURRENT]
    assert made == expected, [str(r) for result in results for r in result.remarks]
    data = feeds(proto, inputs)
    before, after = run_model(proto, data), run_model(model.proto, data)
    for name, value in before.items():
        np.testing.assert_allclose(after[name], value, rtol=0, atol=1e-5)
    lowered = rnnqc.lower(proto, strict=True)
    assert [(e.op, e.status) for e in lowered.report.entries] == [(op, "lowered") for op in expected]
    quantized = run_model(lowered.proto, data)
    assert max(float(np.abs(quantized[n] - v).max()) for n, v in before.items()) < 0.1


@pytest.mark.few(1)
@in_turn(exporter=[*EXPORTERS, (True, 20)], kind=KINDS, layers=[1, 2])
def test_traced_cells(kind: str, exporter: tuple[bool, int], layers: int) -> None:
    dynamo, opset = exporter
    _needs(dynamo)
    inputs = values(kind)
    check(export(CellLoop(kind, layers), inputs, dynamo, opset), inputs, [kind] * layers)


OPTIONS: list[dict[str, Any]] = [{"backwards": True}, {"batch_first": True, "bias": False}, {"states": True}]


@pytest.mark.few(1)
@every_pair(
    start=["zeros", "like", "none", "given"], end=["stack", "cat", "last"], batch_first=[False, True], batch=[1, 3],
    sizes=[(6, 8), (8, 8), (100, 64)], dynamo=[False, True], kind=["GRU", "LSTM", "RNN"],
)  # fmt: skip
def test_loops_as_people_write_them(
    kind: str, start: str, end: str, *, batch_first: bool, batch: int, sizes: tuple[int, int], dynamo: bool
) -> None:
    """dynamo writes a GRUCell as 23 matmuls of 12 steps, one fewer where the first state is zeros."""
    _needs(dynamo)
    x = torch.randn((batch, 12, sizes[0]) if batch_first else (12, batch, sizes[0]))
    inputs = (x, torch.randn(batch, sizes[1])) if start == "given" else (x,)
    loop = WrittenLoop(kind, start, end, batch_first, sizes)
    check(export(loop, inputs, dynamo, 20 if dynamo else 17), inputs, [kind])


@pytest.mark.few(1)
@in_turn(kind=[*KINDS, *KINDS], dynamo=[False, True], options=[*OPTIONS, OPTIONS[1], OPTIONS[2], OPTIONS[0]])
def test_options_of_traced_cells(kind: str, dynamo: bool, options: dict[str, Any]) -> None:
    _needs(dynamo)
    options, opset = dict(options), 20 if dynamo else 17
    inputs = values(kind, options.get("batch_first", False), options.pop("states", False))
    check(export(CellLoop(kind, **options), inputs, dynamo, opset), inputs, [kind])


RNNS = [({}, 1), ({"nonlinearity": "relu", "bias": False}, 1), ({"num_layers": 2, "bidirectional": True}, 4)]


@pytest.mark.slow
@pytest.mark.few(1)
@in_turn(layer=RNNS, opset=[18, 20])
def test_dynamo_writes_rnn_out(opset: int, layer: tuple[dict[str, Any], int]) -> None:
    options, count = layer
    _needs(True)
    inputs = values("RNN")
    check(export(Layer("RNN", **options), inputs, True, opset), inputs, ["RNN"] * count)


@pytest.mark.few(1)
@in_turn(kind=KINDS, dynamo=[False, True])
def test_layers_called_for_each_element(kind: str, dynamo: bool) -> None:
    _needs(dynamo)
    inputs = values(kind)
    check(export(LayerLoop(kind), inputs, dynamo, 20 if dynamo else 17), inputs, [kind])


@pytest.mark.slow
@in_turn(kind=KINDS, backwards=[False, True])
def test_higher_order_scan(kind: str, backwards: bool) -> None:
    _needs(True)
    inputs = values(kind, states=True)
    proto = export(HigherOrderScan(kind, backwards), inputs, True, 20)
    assert any(n.op_type == "Scan" for n in proto.graph.node)
    check(proto, inputs, [kind])


@pytest.mark.few(1)
@in_turn(script=[(ScriptCells, 2), (ScriptLayer, 1), (ScriptEquations, 1)], opset=[11, 13, 17])
def test_script_loops(script: tuple[Any, int], opset: int) -> None:
    module, count = script
    inputs = values("LSTM")
    proto = export(module(), inputs, False, opset, script=True)
    assert any(n.op_type == "Loop" for n in proto.graph.node)
    check(proto, inputs, ["LSTM"] * count)


@pytest.mark.few(1)
@in_turn(swapped=[False, True, False], width=[12, 7, 7], dynamo=[False, False, True])
def test_a_step_whose_input_is_as_wide_as_its_state(dynamo: bool, swapped: bool, width: int) -> None:
    """Stacked states identify h, or names do; W is the weight of x."""
    _needs(dynamo)
    stacked, apart, cell = SumStep(width, 12, swapped, True), SumStep(width, 12, swapped, False), CellStep(width, 12)
    x, h, c = torch.randn(2, width), torch.rand(2, 12) - 0.5, torch.randn(2, 12)
    state, sizes = torch.stack([h, c]), (width, 12, 12)
    steps = [
        (stacked.x.weight, export(stacked, (x, state), dynamo, 18 if dynamo else 17), (10 * x, state)),
        (apart.x.weight, export_step(apart, sizes, dynamo), (10 * x, h, c)),
        (cell.cell.weight_ih, export_step(cell, sizes, dynamo), (10 * x, h, c)),
    ]
    for weight, proto, inputs in steps:
        model = Model.load(proto)
        PassManager(normal_form()).run(model)
        (node,) = [n for n in model.graph.nodes if n.op == "LSTM"]
        i, f, g, o = np.split(weight.detach().numpy(), 4)
        np.testing.assert_array_equal(constant_array(node.inputs[1])[0], np.concatenate([i, o, f, g]))
        lowered = rnnqc.lower(proto, strict=True)
        data = feeds(proto, inputs)
        before, after = run_model(proto, data), run_model(lowered.proto, data)
        assert all(sqnr_db(v, after[n]) > 30 for n, v in before.items())


@pytest.mark.few(1)
@pytest.mark.parametrize("dynamo", [False, True])
def test_a_step_without_names_is_not_guessed(dynamo: bool) -> None:
    _needs(dynamo)
    inputs = tuple(torch.randn(2, 12) for _ in range(3))
    lowered = rnnqc.lower(export(CellStep(12, 12), inputs, dynamo, 18 if dynamo else 17))
    assert not any(e.status == "lowered" for e in lowered.report.entries)
    assert any("which of its operands is the hidden state" in n for n in lowered.report.notes)


@pytest.mark.few(1)
@pytest.mark.parametrize("dynamo", [False, True])
def test_highway_is_no_layer(dynamo: bool, tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """Its last gate reads the same products as the others; what is listed are the products in a row."""
    _needs(dynamo)
    path = tmp_path / "highway.onnx"
    path.write_bytes(export(Highway(), values("LSTM"), dynamo, 20 if dynamo else 17).SerializeToString())
    assert main(["inspect", str(path), "--json"]) == 0
    nodes = json.loads(capsys.readouterr().out)["nodes"]
    assert [n["op"] for n in nodes if n["op"] not in KINDS] == ["Scan"]
    (entry,) = [e for e in rnnqc.lower(path, strict=True).report.entries if e.op == "Scan"]
    assert entry.form == "products"


def test_steps_of_a_decoder_stay_apart() -> None:
    inputs = values("LSTM")
    proto = export(Decoder(), inputs, False, 17)
    check(proto, inputs, ["LSTM"] * 4)
    notes = rnnqc.lower(proto).report.notes
    assert any("4 steps of one layer are not joined" in n and "Found: the input" in n for n in notes)
