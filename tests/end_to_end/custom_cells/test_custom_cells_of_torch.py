"""Cells of one's own, exported by PyTorch: the highway LSTM of AllenNLP, and an LSTM with projection.

What these would catch: a way in which an exporter writes such a cell whose values are not found, or that is less
accurate than the others, forms that differ, a step of the recurrence that is taken for a layer of its own.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest

import rnnqc
from rnnqc.data.statistics import Statistics
from rnnqc.evaluation.evaluate import run_model
from rnnqc.evaluation.numerics import sqnr_db
from rnnqc.ir import Model
from tests.laws.parametrize import in_turn

torch = pytest.importorskip("torch", reason="needs torch: exported cells of one's own NOT tested")
from tests.subjects.torch.recurrences import (  # noqa: E402 - needs torch
    AugmentedLstm,
    AugmentedLstmCell,
    Highway,
    HighwayScript,
    ProjectedCell,
    export,
    export_step,
    values,
)

Array = npt.NDArray[Any]
I, H, M = 24, 32, 48  # noqa: E741 - inputs, hidden units, memory units
# What was measured, less 4 dB; powers of two with exact activations.
LEAST = {"int8": 35.8, "int16": 41.7, "pow2-int16": 43.5, "pow2-w8a16": 35.8, "pow2-int8": 20.0, "brevitas-int8": 24.0}
# With tables, whose steps are 1/128 and 1/256.
TABULATED = {"pow2-int16": 30.9, "pow2-w8a16": 29.8, "pow2-int8": 16.4}
EXACT = ["*.value.table=exact"]


@cache
def exported(kind: str, dynamo: bool) -> onnx.ModelProto:
    """One step, of which the batch is free."""
    torch.manual_seed(0)
    cell: Any = AugmentedLstmCell(I, H) if kind == "highway" else ProjectedCell(I, H, M)
    return export_step(cell, (I, H, H if kind == "highway" else M), dynamo)


def feeds(memory: int, seed: int, varying: bool, steps: int = 20) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    found: dict[str, Array] = {"x": rng.standard_normal((steps, 3, I)).astype(np.float32)}
    if varying:
        found["sequence_lens"] = np.array([steps, 5, 12], np.int32)
        found |= {n: (0.3 * rng.standard_normal((3, w))).astype(np.float32) for n, w in (("h", H), ("c", memory))}
    return found


@cache
def layer(kind: str, dynamo: bool, varying: bool) -> tuple[onnx.ModelProto, list[dict[str, Array]], Statistics]:
    """A layer of such steps, data, and statistics of the data."""
    options = {"reverse": True, "lengths": True, "initial_states": True} if varying else {}
    model = rnnqc.layer(exported(kind, dynamo), **options)
    data = [feeds(H if kind == "highway" else M, seed, varying) for seed in range(6)]
    return model, data, rnnqc.calibrate(model, data)


@cache
def loop(module: Any, dynamo: bool, script: bool) -> tuple[onnx.ModelProto, list[dict[str, Array]], Statistics]:
    """A whole layer as it is exported, data, and statistics of the data."""
    torch.manual_seed(0)
    (x,) = values("LSTM")
    model = export(module(), (x,), dynamo, 18 if dynamo else 17, script)
    name = Model.load(model).graph.inputs[0].name
    rng = np.random.default_rng(0)
    data = [{name: rng.standard_normal(x.shape).astype(np.float32)} for _ in range(8)]
    return model, data, rnnqc.calibrate(model, data)


def torch_stack(cells: list[Any], x: Any, bidirectional: bool) -> Any:
    """AllenNLP's StackedAlternatingLstm or StackedBidirectionalLstm in torch: outputs of the highest layer."""

    def run(cell: Any, sequence: Any, backwards: bool) -> Any:
        h, c = (sequence.new_zeros(sequence.shape[1], H) for _ in range(2))
        made = [None] * len(sequence)
        for t in reversed(range(len(sequence))) if backwards else range(len(sequence)):
            h, c = cell(sequence[t], h, c)
            made[t] = h
        return torch.stack(made)

    with torch.no_grad():
        if bidirectional:
            for forward, backward in zip(cells[::2], cells[1::2], strict=True):
                x = torch.cat([run(forward, x, False), run(backward, x, True)], 2)
        else:
            for k, cell in enumerate(cells):
                x = run(cell, x, k % 2 == 1)
    return x


@pytest.mark.slow
@pytest.mark.parametrize("bidirectional", [False, True], ids=["alternating", "bidirectional"])
def test_stacks_of_highway_layers(bidirectional: bool) -> None:
    """Four layers, all but the first of equal sizes: the float model is torch's, every layer is quantized."""
    torch.manual_seed(3)
    widths = [I, I, *[2 * H] * 6] if bidirectional else [I, H, H, H]
    cells = [AugmentedLstmCell(n, H) for n in widths]
    model = rnnqc.stack([export_step(c, (n, H, H), False) for c, n in zip(cells, widths, strict=True)],
                        alternate=not bidirectional, bidirectional=bidirectional)  # fmt: skip
    rng = np.random.default_rng(4)
    data = [{"x": rng.standard_normal((12, 3, I)).astype(np.float32)} for _ in range(3)]
    want = torch_stack(cells, torch.from_numpy(data[0]["x"]), bidirectional).numpy()
    np.testing.assert_allclose(run_model(model, data[0])["Y"], want, rtol=0, atol=1e-6)
    statistics = rnnqc.calibrate(model, data)
    for recipe, overrides, least in (("int8", [], 35.0), ("pow2-int16", EXACT, 34.5), ("pow2-int16", [], 26.0)):
        lowered = rnnqc.lower(model, recipe, stats=statistics, strict=True, overrides=overrides)
        assert [e.summary.split(",")[0] for e in lowered.report.entries] == ["2 products"] * len(cells)
        assert sqnr_db(want, run_model(lowered.proto, data[0])["Y"]) > least


def check(
    model: onnx.ModelProto, data: list[dict[str, Array]], statistics: Statistics, recipe: str, least: float
) -> None:
    """Every value is quantized where the recipe does so; near the float model; without tables the bits of form qcdq."""
    lowered = {f: rnnqc.lower(model, recipe, form=f, stats=statistics, strict=True) for f in ("fused", "qcdq")}
    (entry,) = lowered["fused"].report.entries
    bits = [b for p, b in entry.points.items() if p.endswith(".value")]
    assert len(bits) >= 14
    assert all((b is None) == (recipe in ("int8", "int16")) for b in bits)
    want, got = run_model(model, data[0]), run_model(lowered["fused"].proto, data[0])
    if recipe.startswith("pow2"):
        assert all(sqnr_db(value, got[name]) > TABULATED[recipe] for name, value in want.items())
        got = run_model(rnnqc.lower(model, recipe, stats=statistics, overrides=EXACT).proto, data[0])
    for name, value in want.items():
        assert sqnr_db(value, got[name]) > least, name
    if recipe.startswith("pow2"):
        for name, value in run_model(lowered["qcdq"].proto, data[0]).items():
            np.testing.assert_array_equal(value, got[name])


@pytest.mark.few(1)
@in_turn(recipe=LEAST, kind=["highway", "projection"], varying=[False, True, True, False], dynamo=[False] * 5 + [True])
def test_layers_of_cells(recipe: str, kind: str, varying: bool, dynamo: bool) -> None:
    """Forward; or backward, with lengths and states."""
    if dynamo:
        pytest.importorskip("onnxscript", reason="needs onnxscript: dynamo's exports NOT tested")
    check(*layer(kind, dynamo, varying), recipe, LEAST[recipe])


@pytest.mark.slow
@pytest.mark.few(1)
@in_turn(
    module=[HighwayScript, Highway, Highway], dynamo=[False, False, True], recipe=["int8", "pow2-int16", "pow2-int16"]
)
def test_loops(module: Any, dynamo: bool, recipe: str) -> None:
    """A Loop with sequences of tensors, and four written-out steps from a state of zeros."""
    if dynamo:
        pytest.importorskip("onnxscript", reason="needs onnxscript: dynamo's exports NOT tested")
    check(*loop(module, dynamo, module is HighwayScript), recipe, {"int8": 40.0, "pow2-int16": 48.0}[recipe])


@pytest.mark.few(1)
@in_turn(bias=[True, False], recipe=["int8", "pow2-int16"])
def test_no_weight_of_a_traced_layer_stays_float(recipe: str, bias: bool) -> None:
    """Without a bias torch writes a copy of the weights for each step, and the first step alone were an LSTM."""
    torch.manual_seed(0)
    x = torch.randn(6, 2, 8)
    model = export(AugmentedLstm(8, 16, bias), (x,), False, 17)
    name = model.graph.input[0].name
    data = [{name: x.numpy() * np.float32(k)} for k in (1.0, 0.5)]
    lowered = rnnqc.lower(model, recipe, calibration=data, strict=True)
    (entry,) = lowered.report.entries
    assert entry.summary.startswith("2 products")
    assert entry.float_bytes == 4 * (8 * 96 + 16 * 80)
    read = {
        i
        for g in lowered.model.graphs()
        for n in g.nodes
        if n.op in ("MatMul", "Gemm")
        for i in (v.name for v in n.inputs)
    }
    floats = {i.name for i in lowered.proto.graph.initializer if i.data_type == onnx.TensorProto.FLOAT}
    assert not read & floats
    want, got = (run_model(m, data[0]) for m in (model, lowered.proto))
    for key, value in want.items():
        assert sqnr_db(value, got[key]) > 20.0
