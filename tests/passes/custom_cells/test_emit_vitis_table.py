"""Vitis' tables in standard operators: every code of every argument has the entry that the hardware takes."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from onnx import TensorProto, helper

from rnnqc.cells.vitis_tables import vitis_values
from rnnqc.formats.format import Format
from rnnqc.formats.rounding import Rounding
from rnnqc.ir import Model
from rnnqc.ir.builder import Builder
from rnnqc.passes.custom_cells.emit_vitis_table import emit_vitis_table
from tests.runs.lowered import STOCK, session
from tests.runs.sessions import run as run_session

Array = npt.NDArray[Any]
FLOAT = TensorProto.FLOAT
WHOLE = Format(16, True, scale=(2.0**-15,), rounding=Rounding.FLOOR)


def run(proto: onnx.ModelProto, feeds: dict[str, Array]) -> dict[str, Array]:
    return dict(run_session(session(proto, STOCK), feeds))


def model(activation: str, held: Format = WHOLE) -> onnx.ModelProto:
    inputs = [helper.make_tensor_value_info("x", FLOAT, ["A", "B"])]
    proto = helper.make_model(
        helper.make_graph([], "table", inputs, []), opset_imports=[helper.make_opsetid("", 17)], ir_version=8
    )
    loaded = Model(proto)
    b = Builder(loaded, prefix="cell")
    made = emit_vitis_table(b, "value", loaded.graph.inputs[0], activation, held)
    loaded.graph.nodes.extend(b.nodes)
    loaded.graph.outputs.append(made)
    return loaded.proto


@pytest.mark.parametrize("activation", ["Sigmoid", "Tanh"])
def test_every_code_has_the_entry_of_the_hardware(activation: str) -> None:
    """Would catch an index that is one off below zero, at a step, or at the ends of the table."""
    proto = model(activation)
    for position in (0, 3, 7, 8, 12, 15):
        codes = np.arange(-(2**15), 2**15, dtype=np.float32).reshape(256, 256)
        (made,) = run(proto, {"x": codes * np.float32(2.0**-position)}).values()
        np.testing.assert_array_equal(made.ravel(), vitis_values(activation, position, 16))


def test_the_entries_are_as_the_document_says() -> None:
    """Independent constants for the first entries, the middle and beyond the ends."""
    x = np.array([[-100.0, -8.0, 0.0, 0.0079, 7.9999, 8.0, 1e9]], np.float32)
    (made,) = run(model("Sigmoid"), {"x": x}).values()
    np.testing.assert_array_equal(made[0] * 32768, [0, 11, 16384, 16448, 32757, 32767, 32767])
    (made,) = run(model("Tanh"), {"x": np.array([[-4.01, -4.0, 0.0, 3.999, 4.0]], np.float32)}).values()
    np.testing.assert_array_equal(made[0] * 32768, [-32768, -32746, 0, 32746, 32767])


def test_entries_have_the_format_of_their_point() -> None:
    """Would catch a coarser format that is ignored."""
    held = Format(8, True, scale=(2.0**-7,), rounding=Rounding.HALF_EVEN)
    x = np.linspace(-9, 9, 101, dtype=np.float32)[None]
    (fine,), (coarse,) = (run(model("Sigmoid", h), {"x": x}).values() for h in (WHOLE, held))
    np.testing.assert_array_equal(coarse, held.fake_quantize(fine))


def test_values_that_have_no_entry() -> None:
    """NaN and infinities must not index beyond the table."""
    x = np.array([[np.nan, -np.inf, np.inf]], np.float32)
    (made,) = run(model("Sigmoid"), {"x": x}).values()
    assert made[0, 1] == 0.0 and made[0, 2] == 1.0 - 2.0**-15 and np.isfinite(made[0, 0])
