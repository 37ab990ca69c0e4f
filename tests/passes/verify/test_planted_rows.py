"""Errors planted where cells take the int8 rows of an embedding: the verifier of every pass finds them.

What these would catch: a verifier that passes over cells with such inputs, or that feeds them something else than rows.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import rnnqc
from rnnqc.errors import NumericsError
from rnnqc.passes.graph.values.embedding_rows import EmbeddingRows
from rnnqc.passes.render.lut import lut_arithmetic
from tests.subjects.whole_models import WholeModel

MODEL = WholeModel(head=False).model()


def test_nothing_is_wrong() -> None:
    """Every value of a step is compared, in each form."""
    for form in ("fused", "integer"):
        lowered = rnnqc.lower(MODEL, form=form, rest="int8", verify=True)
        told = [text for name, text in lowered.report.checks if name == "fold-scales"]
        assert "rows times scales: bit for bit the inputs of 1 cells before" in told
        assert any(text.startswith("single steps: ") and "passed over" not in text for text in told)


def test_rows_in_a_branch_and_in_a_loop() -> None:
    """Values inside are compared step by step."""
    body = WholeModel(head=False).model()
    for node in body.graph.node:
        node.name = f"{node.op_type} inside"
    inner = helper.make_graph(
        list(body.graph.node),
        "body",
        [
            helper.make_tensor_value_info("k", TensorProto.INT64, []),
            helper.make_tensor_value_info("going", TensorProto.BOOL, []),
        ],
        [
            helper.make_tensor_value_info("going", TensorProto.BOOL, []),
            helper.make_tensor_value_info("y", TensorProto.FLOAT, ["T", 1, "B", 16]),
        ],
    )
    loop = helper.make_node("Loop", ["trips", ""], ["stacked"], body=inner)
    model = onnx.ModelProto()
    model.CopyFrom(body)
    del model.graph.node[:], model.graph.output[:]
    model.graph.node.append(loop)
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array(2), "trips"))
    model.graph.output.append(helper.make_tensor_value_info("stacked", TensorProto.FLOAT, [2, "T", 1, "B", 16]))
    lowered = rnnqc.lower(model, rest="int8", verify=True)
    told = [text for name, text in lowered.report.checks if name == "fold-scales"]
    assert "rows times scales: bit for bit the inputs of 1 cells before" in told


@pytest.mark.parametrize("zero_point", [127, 129])
def test_another_zero_point(zero_point: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Codes that are off by one are found in a single step, by the product of the input."""
    made = lut_arithmetic.input_codes

    def planted(b: Any, loop: Any, numbers: Any) -> Any:
        return made(b, loop, replace(numbers, x_zero_point=zero_point))

    monkeypatch.setattr(lut_arithmetic, "input_codes", planted)
    with pytest.raises(NumericsError, match=r"x\.projection"):
        rnnqc.lower(MODEL, rest="int8", verify=True)


def test_scales_of_other_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Codes and scales that do not belong together are not the floats that the cell read before."""
    made = EmbeddingRows.codes

    def planted(rows: EmbeddingRows, b: Any) -> Any:
        codes, scale = made(rows, b)
        wrong = b.op("Mul", [scale, b.model.constant(np.float32(1.5), np.float32)], "wrong")
        return codes, wrong

    monkeypatch.setattr(EmbeddingRows, "codes", planted)
    with pytest.raises(NumericsError, match=r"times 'y_LSTM.forward/input/wrong', .* are not 'embedded'"):
        rnnqc.lower(MODEL, rest="int8", verify=True)
