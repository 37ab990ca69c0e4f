"""The operators of the native library: the plain ones, and as many aliases as the compiler hands out names.

What these would catch: a name that `lower` writes and no kernel answers to, and nodes of earlier files (operators
without a number, inputs with gaps, fewer outputs than the operator has) that a library no longer takes.
"""

from __future__ import annotations

import pytest
from onnx import parser

import rnnqc
from rnnqc.cells.types import CELL_TYPES, CellType
from tests.generate.layer_specs import Op
from tests.generate.layers import RecurrentCase
from tests.native.quant_lstm_cases import native_session
from tests.runs.sessions import assert_same_bits, plain_session, run
from tests.runs.version_cases import as_in_earlier_files

WITH_KERNEL = {op: type_ for op, type_ in CELL_TYPES.items() if type_.aliases}
"""A type without aliases has no kernel."""


def _refusal(op: str) -> str:
    """onnxruntime's message about a node without attributes."""
    model = parser.parse_model(
        f"""<ir_version: 8, opset_import: ["": 17, "ai.rnnqc": 1]> g (float[1,1,1] X) => (float[1,1,1] Y)
        {{ Y = ai.rnnqc.{op}(X, X, X, X, X, X) }}"""
    )
    with pytest.raises(Exception, match=op.split("_")[0]) as caught:
        native_session(model)
    return str(caught.value)


@pytest.mark.parametrize("type_", WITH_KERNEL.values(), ids=WITH_KERNEL)
def test_aliases_are_those_of_the_compiler(type_: CellType) -> None:
    for op in (type_.fused, *(type_.fused_name(k) for k in (0, 1, type_.aliases // 2, type_.aliases - 1))):
        assert "attribute" in _refusal(op), f"{op} has no kernel"
    for op in (type_.fused_name(type_.aliases), f"{type_.fused}_x0123456789ab"):
        assert "is not a registered" in _refusal(op)


@pytest.mark.few(2)
@pytest.mark.parametrize("op", WITH_KERNEL)
@pytest.mark.parametrize("outputs", [("Y",), ("Y_h",)])
def test_nodes_of_earlier_files(op: Op, outputs: tuple[str, ...]) -> None:
    """One name, inputs with gaps, fewer outputs than the operator has."""
    case = RecurrentCase(op=op, initial_h=True, outputs=outputs)
    now = rnnqc.lower(case.model()).proto
    earlier = as_in_earlier_files(rnnqc.lower(case.model()).proto)
    (node,) = (n for n in earlier.graph.node if n.op_type == CELL_TYPES[op].fused)
    assert "" in node.input
    expected = run(plain_session(now), case.feeds())
    assert_same_bits(expected, run(native_session(earlier), case.feeds()), "native")
    assert_same_bits(expected, run(plain_session(earlier), case.feeds()), "stock")


@pytest.mark.parametrize(
    "places", [[0, 1, 2, 3, 4], [0, 1, 2, 3, 4, 4], [0, 1, 2, 3, 5, 4], [0, 1, 2, 3, 4, 21], [-1, 1, 2, 3, 4, 5]]
)
def test_places_of_inputs_are_checked(places: list[int]) -> None:
    model = parser.parse_model(
        f"""<ir_version: 8, opset_import: ["": 17, "ai.rnnqc": 1]> g (float[1,1,1] X) => (float[1,1,1] Y)
        {{ Y = ai.rnnqc.QuantRNNCell_00 <hidden_size = 1, h_scale = 1.0, gate_min = [0.0], gate_max = [1.0],
            input_places = {places}> (X, X, X, X, X, X) }}"""
    )
    with pytest.raises(Exception, match="input_places: expected the place of each of the node's 6 inputs"):
        native_session(model)
