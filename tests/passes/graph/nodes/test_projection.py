"""LSTM nodes with the shapes of a projection: named as what they are.

What these would catch: a message about some shape, where the exporter has lost a layer; other invalid shapes that are
taken for a projection.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

import rnnqc
from rnnqc.errors import CompileError
from tests.runs.commands import in_process
from tests.subjects.protos import of_nodes
from tests.subjects.torch.exports import exported, needed

TEXT = r"proj_size = 4.*onnxruntime does not run.*Resolution: .*loop over its step"


def model(hidden: int, r: tuple[int, int], states: tuple[int, int] | None) -> onnx.ModelProto:
    """A layer with these sizes of R, initial_h and initial_c."""
    shapes = {"W": (1, r[0], 5), "R": (1, *r)}
    shapes |= {"initial_h": (1, 2, states[0]), "initial_c": (1, 2, states[1])} if states else {}
    arrays = {n: np.full(s, 0.1, np.float32) for n, s in shapes.items()}
    inputs = ["X", "W", "R", *(["", "", "initial_h", "initial_c"] if states else [])]
    node = helper.make_node("LSTM", inputs, ["Y"], "layer", hidden_size=hidden)
    return of_nodes([node], {"X": [7, 2, 5]}, {"Y": None}, arrays)


@pytest.mark.parametrize(
    ("hidden", "r", "states"),
    [
        (4, (16, 4), (4, 6)),  # as PyTorch's exporter cuts it
        (6, (24, 4), (4, 6)),
        (6, (24, 4), None),
    ],
)
def test_named(hidden: int, r: tuple[int, int], states: tuple[int, int] | None) -> None:
    with pytest.raises(CompileError, match=TEXT) as caught:
        rnnqc.lower(model(hidden, r, states))
    assert "'layer'" in str(caught.value) and "this file does not hold the layer" in str(caught.value)


@pytest.mark.parametrize(
    ("hidden", "r", "states"), [(4, (16, 6), None), (4, (12, 3), None), (4, (16, 4), (6, 6)), (4, (16, 4), (6, 4))]
)
def test_other_invalid_shapes(hidden: int, r: tuple[int, int], states: tuple[int, int] | None) -> None:
    with pytest.raises(CompileError, match="has shape") as caught:
        rnnqc.lower(model(hidden, r, states))
    assert "projection" not in str(caught.value)


@pytest.mark.slow
@pytest.mark.parametrize("dynamic", [False, True])
def test_export_of_torch(dynamic: bool, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    torch = needed("PyTorch's export of proj_size", dynamo=True)
    sizes = {"dynamic_shapes": ({1: torch.export.Dim.DYNAMIC},)} if dynamic else {}
    proto = exported(torch.nn.LSTM(5, 6, proj_size=4), [torch.zeros(7, 2, 5)], dynamo=True, **sizes)
    onnx.save(proto, tmp_path / "in.onnx")
    for command in (("inspect",), ("lower", "-o", tmp_path / "out.onnx")):
        result = in_process(capfd, command[0], tmp_path / "in.onnx", *command[1:])
        text = " ".join(result.err.split())
        assert result.code == 2 and not (tmp_path / "out.onnx").exists(), text
        assert "in.onnx" in text and "proj_size = 4" in text and "Resolution" in text
