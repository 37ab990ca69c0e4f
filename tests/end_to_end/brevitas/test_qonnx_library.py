"""Files of form qonnx in the package qonnx; skipped without it.

What these would catch: nodes, attributes or shapes that other QONNX tools do not take, and a graph that means something
else once such a tool has been through it.
"""

from __future__ import annotations

from typing import Any

import onnx
import pytest

import rnnqc
from rnnqc.passes.brevitas.write_qonnx import DOMAIN
from tests.generate.layers import RecurrentCase, stacked_model
from tests.runs.lowered import STOCK, session
from tests.runs.sessions import assert_same_bits, run

qonnx = pytest.importorskip("qonnx", reason="needs qonnx (PyPI)")

LAYERS = (RecurrentCase(T=7, B=1, I=5, H=9, direction="bidirectional"), RecurrentCase(T=7, B=1, I=18, H=6, seed=1))
FEEDS = [LAYERS[0].replace(seed=s).feeds() for s in range(3)]


def written() -> onnx.ModelProto:
    return rnnqc.lower(stacked_model(LAYERS), "brevitas-int8", form="qonnx", calibration=FEEDS[:2]).proto


def test_cleanup_up_to_the_cell() -> None:
    """It meets nothing that it does not know but the cell, which it does not know in Brevitas' own exports either."""
    from qonnx.core.modelwrapper import ModelWrapper
    from qonnx.util.cleanup import cleanup_model

    model = ModelWrapper(written())
    assert len(model.get_nodes_by_op_type("QuantLSTMCell")) == 3
    with pytest.raises(Exception, match="Custom op_type QuantLSTMCell is currently not supported"):
        cleanup_model(model)


def test_cleanup_with_the_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tool that knows the cell's shapes cleans the whole file, and it still is the same model."""
    from qonnx.core.modelwrapper import ModelWrapper
    from qonnx.custom_op import registry
    from qonnx.custom_op.base import CustomOp
    from qonnx.util.cleanup import cleanup_model

    class QuantLSTMCell(CustomOp):  # type: ignore[misc]
        def get_nodeattr_types(self) -> dict[str, Any]:
            return {}

        def make_shape_compatible_op(self, model: Any) -> onnx.NodeProto:
            # The shapes of its outputs are declared.
            return onnx.helper.make_node("Unknown", self.onnx_node.input, self.onnx_node.output, domain=DOMAIN)

        def infer_node_datatype(self, model: Any) -> None:
            raise NotImplementedError

        def execute_node(self, context: Any, graph: Any) -> None:
            raise NotImplementedError

        def verify_node(self) -> None:
            raise NotImplementedError

    known = {d: dict(ops) for d, ops in registry._OP_REGISTRY.items()}
    monkeypatch.setattr(registry, "_OP_REGISTRY", known)
    registry.add_op_to_domain(DOMAIN, QuantLSTMCell)
    before = written()
    cleaned = cleanup_model(ModelWrapper(before)).model
    (x,), (y, *_) = ([v.name for v in values] for values in (cleaned.graph.input, cleaned.graph.output))
    expected = run(session(rnnqc.lower(before).proto, STOCK), FEEDS[2])
    got = run(session(rnnqc.lower(cleaned).proto, STOCK), {x: FEEDS[2]["X"]})
    assert_same_bits({y: expected["Y"]}, {y: got[y]}, "after the cleanup")
