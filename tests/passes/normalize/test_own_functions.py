"""Functions of rnnqc's domain that rnnqc has not written.

What these would catch: a model whose own function is replaced by a kernel, or called in the place of one of rnnqc's; a
lowered file that is refused.
"""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from onnx import helper

import rnnqc
from rnnqc.errors import CompileError
from rnnqc.ir import DOMAIN
from tests.generate.layers import RecurrentCase
from tests.runs.commands import in_process

CASE = RecurrentCase()


def _with_own(name: str, inputs: list[str]) -> onnx.ModelProto:
    """A layer, and behind it a function in rnnqc's domain that doubles."""
    model = CASE.model()
    node = helper.make_node("Add", [inputs[0], inputs[0]], ["Y"])
    function = helper.make_function(DOMAIN, name, inputs, ["Y"], [node], [helper.make_opsetid("", 17)])
    model.functions.append(function)
    model.ir_version = max(model.ir_version, 8)
    model.opset_import.append(helper.make_opsetid(DOMAIN, 1))
    model.graph.node.append(helper.make_node(name, ["Y"], ["doubled"], "own", domain=DOMAIN))
    model.graph.output.append(helper.make_tensor_value_info("doubled", onnx.TensorProto.FLOAT, None))
    return model


@pytest.mark.parametrize("name", ["Twice", "QuantLSTMCell", "QuantLSTMCell_2", "QuantLinearTable"])
def test_own_functions_are_refused(name: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    model = _with_own(name, ["a", "b"])
    said = rf"domain 'ai\.rnnqc' is not one of rnnqc's. Found: {name}\(a, b\) -> Y.*another domain"
    with pytest.raises(CompileError, match=said):
        rnnqc.lower(model)
    for native in (True, False):
        with pytest.raises(CompileError, match=said):
            rnnqc.session(model, native=native)
    onnx.save(model, tmp_path / "own.onnx")
    for command in (("lower", tmp_path / "own.onnx", "-o", tmp_path / "out.onnx"), ("inspect", tmp_path / "own.onnx")):
        result = in_process(capfd, *command)
        assert result.code == 2 and "is not one of rnnqc's" in result.err
    assert not (tmp_path / "out.onnx").exists()


@pytest.mark.few(1)
@pytest.mark.parametrize("op", ["LSTM", "GRU", "RNN"])
@pytest.mark.parametrize("recipe", ["int8", "pow2-int8"])
def test_functions_of_rnnqc_are_not(op: str, recipe: str) -> None:
    """Even without the model's metadata about its cells."""
    case = RecurrentCase(op=op)  # type: ignore[arg-type]
    lowered = rnnqc.lower(case.model(), recipe, calibration=[case.feeds()]).proto
    assert {f.domain for f in lowered.functions} == {DOMAIN}
    del lowered.metadata_props[:]
    assert rnnqc.session(lowered, native=False)
    assert [e.status for e in rnnqc.lower(lowered).report.entries] == []
