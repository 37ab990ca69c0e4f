"""Weights of recurrences of other equations that are computed from constants.

What these would catch: weights that count as live because a node makes them, other numbers, codes that become floats,
constants of feed-forward layers that are copied.
"""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from rnnqc import Model
from rnnqc.passes import Canonicalize, FoldProductWeights, PassManager
from tests.generate import RecurrenceCase
from tests.generate.outer_forms import stored_otherwise
from tests.runs.sessions import assert_same_bits, plain_session, run
from tests.subjects.protos import of_nodes

CASE = RecurrenceCase(op="highway", time=4)


def _folded(model: onnx.ModelProto) -> tuple[onnx.ModelProto, int]:
    loaded = Model.load(model)
    first, result = PassManager([Canonicalize(), FoldProductWeights()]).run(loaded)
    assert result.modified == bool(result.statistics["folded"])
    return loaded.proto, result.statistics["folded"] + first.statistics["shared"]


def _model(source: str, case: RecurrenceCase = CASE) -> onnx.ModelProto:
    model = case.model()
    stored_otherwise(model, source)
    return model


@pytest.mark.few(7)
@pytest.mark.parametrize("form", ["scan", "loop", "unrolled", "keras"])
@pytest.mark.parametrize("source", ["transposed", "half", "sum", "identity"])
def test_fires(source: str, form: str) -> None:
    """Every product of a step gets an initializer, one for all steps; results have the bits they had.

    Identities are left out by canonicalize already.
    """
    case = RecurrenceCase(op="highway", time=4, form=form)
    model = _model(source, case)
    folded, count = _folded(model)
    if form != "keras":  # where weights are carried by the loop until steps are recognized
        assert count >= 3
    expected, got = (run(plain_session(m), case.feeds()) for m in (model, folded))
    assert_same_bits(expected, got, source)


@pytest.mark.parametrize("source", ["initializer", "codes"])
def test_declines(source: str) -> None:
    """Nothing to do, and codes that would grow to floats."""
    assert _folded(_model(source))[1] == 0


def test_declines_products_outside_recurrences() -> None:
    """A feed-forward layer whose weights are turned, used twice."""
    nodes = [
        onnx.helper.make_node("Transpose", ["stored"], ["W"]),
        onnx.helper.make_node("MatMul", ["x", "W"], ["a"]),
        onnx.helper.make_node("MatMul", ["a", "W"], ["y"]),
    ]
    model = of_nodes(nodes, {"x": ["B", 3]}, {"y": ["B", 3]}, {"stored": np.eye(3, dtype=np.float32)})
    assert _folded(model)[1] == 0


def test_declines_what_depends_on_an_input() -> None:
    model = _model("sum")
    name = next(t.name for t in model.graph.initializer if t.name.endswith("_two"))
    tensor = next(t for t in model.graph.initializer if t.name == name)
    every = _folded(model)[1]
    model.graph.initializer.remove(tensor)
    model.graph.input.append(onnx.helper.make_tensor_value_info(name, tensor.data_type, list(tensor.dims)))
    assert _folded(model)[1] < every
