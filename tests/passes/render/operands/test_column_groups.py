"""Widths of integer matmuls: with AMX some versions of onnxruntime compute wrong sums of others.

What these would catch: a matmul of more than 16 columns that are no multiple of 16, in the body of a cell or of a
linear layer, or in form integer. Where other versions run on a processor with AMX, "many rows" of
tests/runs/version_cases.py has the sums themselves.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest

import rnnqc
from rnnqc.evaluation.session_options import quiet_options
from rnnqc.passes.render.operands.column_groups import GROUP, missing_columns
from tests.generate.layers import RecurrentCase
from tests.runs.lowered import run_both
from tests.subjects.protos import parse

CELLS: dict[str, tuple[RecurrentCase, dict[str, Any]]] = {
    "LSTM": (RecurrentCase(op="LSTM", H=6), {}),
    "LSTM, 16 bits": (RecurrentCase(op="LSTM", H=9), {"recipe": "int16"}),
    "LSTM, 4 bits": (RecurrentCase(op="LSTM", H=9), {"recipe": "w4a8"}),
    "LSTM, grids": (RecurrentCase(op="LSTM", H=5), {"recipe": "brevitas-int8"}),
    "GRU": (RecurrentCase(op="GRU", H=24), {}),
    "GRU, reset first": (RecurrentCase(op="GRU", H=20, linear_before_reset=0), {}),
    "GRU, grids": (RecurrentCase(op="GRU", H=24), {"recipe": "pow2-int8"}),
    "RNN": (RecurrentCase(op="RNN", H=24), {}),
    "GRU, integer": (RecurrentCase(op="GRU", H=24), {"form": "integer"}),
    "GRU, unrolled": (RecurrentCase(op="GRU", H=24), {"unroll": True}),
}


def widths_of(proto: onnx.ModelProto, folder: Path) -> dict[str, int]:
    """The columns of the integer matmuls that onnxruntime keeps, by the name of their result; weights are constants."""
    options = quiet_options()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.optimized_model_filepath = str(folder / "optimized.onnx")
    ort.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    graphs, columns = [onnx.load(folder / "optimized.onnx").graph], dict[str, int]()
    found: list[onnx.NodeProto] = []
    while graphs:
        graph = graphs.pop()
        columns |= {t.name: t.dims[-1] for t in graph.initializer if t.dims}
        found += [n for n in graph.node if n.op_type == "MatMulInteger"]
        graphs += [a.g for n in graph.node for a in n.attribute if a.type == onnx.AttributeProto.GRAPH]
    return {n.output[0]: columns[n.input[1]] for n in found}


@pytest.mark.parametrize("name", CELLS)
def test_widths_of_cells(name: str, tmp_path: Path) -> None:
    case, lowering = CELLS[name]
    feeds = case.feeds()
    data = {"calibration": [feeds]} if "recipe" in lowering and lowering["recipe"] not in ("int16", "w4a8") else {}
    proto = rnnqc.lower(case.model(), **lowering, **data).proto
    widths = widths_of(proto, tmp_path)
    assert len(widths) >= 2
    assert not [n for n, width in widths.items() if width > GROUP and width % GROUP], widths
    run_both(proto, feeds)


@pytest.mark.parametrize("columns", [520, 528])
def test_widths_of_linear_layers(columns: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    w = rng.standard_normal((512, columns)).astype(np.float32)
    header = f'<ir_version: 9, opset_import: ["": 17]> g (float[B,512] x) => (float[B,{columns}] y)'
    proto = rnnqc.lower(parse(f"{header} {{ y = MatMul (x, w) }}", w=w), rest="int8").proto
    assert list(widths_of(proto, tmp_path).values()) == [columns + missing_columns(columns)]
    run_both(proto, {"x": rng.standard_normal((40, 512)).astype(np.float32)})


def test_missing_columns() -> None:
    assert [missing_columns(n) for n in (1, 16, 17, 24, 32, 72, 400)] == [0, 0, 15, 8, 0, 8, 0]
