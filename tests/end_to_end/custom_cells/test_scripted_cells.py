"""Custom cells in loops of torch.jit.script: lowered, they are nodes that the native library runs.

What these would catch: a scripted recurrence that stays a loop of standard operators, a number of steps or rows that is
that of the export, a form, a recipe or a command that does not know the loop any more.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import onnx
import pytest

import rnnqc
from rnnqc.cells.custom_nodes import is_custom_node
from rnnqc.evaluation.evaluate import run_model
from rnnqc.evaluation.numerics import sqnr_db
from rnnqc.proto.graph_walks import blocks_of
from tests.laws.parametrize import in_turn
from tests.runs.lowered import STOCK, run_both, session
from tests.runs.sessions import Array, assert_same_bits, run

torch = pytest.importorskip("torch", reason="needs torch: scripted cells NOT tested")
from tests.subjects.torch.recurrences import B, HighwayScript, I, NormalizedScript, T, export  # noqa: E402 - needs torch

AXES = {"x": {0: "T", 1: "B"}, "h": {0: "B"}, "c": {0: "B"}}
SIZES = ((1, 1), (50, 2), (3, 5))
"""T and B."""


@cache
def exported(backwards: bool, joined: bool, opset: int) -> onnx.ModelProto:
    torch.manual_seed(0)
    inputs = (torch.zeros(4, 2, I), torch.zeros(2, 7), torch.zeros(2, 7))
    names: dict[str, Any] = {"input_names": list(AXES), "output_names": ["y", "h_last", "c_last"]}
    return export(NormalizedScript(backwards, joined), inputs, False, opset, True, dynamic_axes=AXES, **names)


def feeds(steps: int, rows: int) -> dict[str, Array]:
    rng = np.random.default_rng(steps)
    shapes = {"x": (steps, rows, I), "h": (rows, 7), "c": (rows, 7)}
    return {n: (0.5 * rng.standard_normal(s)).astype(np.float32) for n, s in shapes.items()}


@pytest.mark.few(1)
@in_turn(
    backwards=[False, True, True],
    joined=[False, True, False],
    opset=[17, 11, 14],
    recipe=["int8", "pow2-int16", "int8-static"],
)
def test_forms(backwards: bool, joined: bool, opset: int, recipe: str) -> None:
    """Fused with the bits of the loop and of form integer, for other lengths and batches than the export's."""
    model = exported(backwards, joined, opset)
    statistics = rnnqc.calibrate(model, [feeds(20, 3), feeds(9, 2)])
    made = {f: rnnqc.lower(model, recipe, form=f, stats=statistics, strict=True) for f in ("fused", "integer", "qcdq")}
    fused = made["fused"].proto
    assert [n for n in fused.graph.node if is_custom_node(n.op_type)], made["fused"].report.warnings
    assert not [n for n in fused.graph.node if n.op_type in ("Loop", "Scan")]
    for steps, rows in SIZES:
        data = feeds(steps, rows)
        expected = run_both(fused, data, f"{steps} steps of {rows}")
        assert_same_bits(expected, run(session(made["integer"].proto, STOCK), data), "integer")
        if steps > 3:  # errors grow with the steps
            continue
        for lowered in (fused, made["qcdq"].proto):
            got = run_model(lowered, data)
            for name, value in run_model(model, data).items():
                assert sqnr_db(value, got[name]) > 20.0, f"{name}, {steps} steps"


@pytest.mark.few(1)
@in_turn(opset=[11, 13, 17], recipe=["int8", "pow2-int16", "int8-static"])
def test_parts_of_a_sequence(opset: int, recipe: str) -> None:
    """`chunk` whose parts are indexed: a sequence in the step, and positions that are constants outside of the loop."""
    torch.manual_seed(0)
    model = export(HighwayScript(), (torch.zeros(T, B, I),), False, opset, True)
    assert {"SplitToSequence", "SequenceAt"} <= {n.op_type for b in blocks_of([model.graph]) for n in b.node}
    rng = np.random.default_rng(0)
    data = [{model.graph.input[0].name: rng.standard_normal((T, B, I)).astype(np.float32)} for _ in range(3)]
    made = {f: rnnqc.lower(model, recipe, form=f, calibration=data, strict=True).proto for f in ("fused", "integer")}
    assert [n for n in made["fused"].graph.node if is_custom_node(n.op_type)]
    expected = run_both(made["fused"], data[0])
    assert_same_bits(expected, run(session(made["integer"], STOCK), data[0]), "integer")
    for name, value in run_model(model, data[0]).items():
        assert sqnr_db(value, expected[name]) > 25.0, name
