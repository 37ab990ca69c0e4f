"""The functions behind linear layers in standard operators against numpy: the same bytes as the native kernel.

What these would catch: a branch for other processors that computes something else, a size of one model that stays in a
function of all, an operator set that the function does not suit, a level of optimization that reorders operations.
"""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from hypothesis import given, settings

from rnnqc.cells.linear_nodes import KINDS, LinearKind
from rnnqc.passes.linear.linear_function import linear_function
from tests.native.quant_linear_cases import LinearCase, linear_case, linear_cases
from tests.native.quant_lstm_cases import assert_same_bits
from tests.runs.sessions import LEVELS, Outputs, options

every_kind = pytest.mark.parametrize("kind", KINDS, ids=lambda k: k.name)


def stock(case: LinearCase, level: str = "ORT_ENABLE_ALL", threads: int = 1, opset: int = 17) -> Outputs:
    return run_stock(case.model(opset, function=True), case, level, threads)


def run_stock(model: onnx.ModelProto, case: LinearCase, level: str = "ORT_ENABLE_ALL", threads: int = 1) -> Outputs:
    session = ort.InferenceSession(
        model.SerializeToString(), options(level, threads), providers=["CPUExecutionProvider"]
    )
    return {"Y": session.run(None, case.feeds())[0]}


@settings(max_examples=max(15, settings().max_examples))
@given(linear_cases())
def test_any_configuration(case: LinearCase) -> None:
    assert_same_bits(stock(case), case.expected())


@pytest.mark.few(2)
@every_kind
def test_levels_and_threads(kind: LinearKind) -> None:
    case = linear_case((70,), 130, 65, kind=kind)
    for level in LEVELS:
        for threads in (1, 2):
            assert_same_bits(stock(case, level, threads), case.expected())


@pytest.mark.few(2)
@every_kind
def test_operator_sets(kind: LinearKind) -> None:
    case = linear_case((3, 2), 33, 35, kind=kind)
    for opset in (13, 14, 16, 17, 18, 19, 20, 21):
        model = case.model(opset, function=True)
        onnx.checker.check_model(model, full_check=True)
        assert_same_bits(run_stock(model, case), case.expected())


@pytest.mark.few(2)
@every_kind
def test_ranks_and_no_rows(kind: LinearKind) -> None:
    for shape in ((), (1,), (2, 1, 3), (0,), (3, 0), (0, 3)):
        case = linear_case(shape, 5, 7, kind=kind)
        for level in ("ORT_DISABLE_ALL", "ORT_ENABLE_ALL"):
            found = stock(case, level)
            assert found["Y"].shape == (*shape, 7)
            assert_same_bits(found, case.expected())


@pytest.mark.few(6)
@every_kind
def test_branch_of_processors_without_vnni(kind: LinearKind) -> None:
    """Weights as uint8 with zero point 128: what is taken where the probe finds other sums."""
    case = linear_case((9,), 70, 40, kind=kind)
    model = case.model(function=True)
    (probe,) = [n for n in model.functions[0].node if n.op_type == "Constant" and "518160" in n.output[0]]
    probe.attribute[0].t.CopyFrom(onnx.numpy_helper.from_array(np.asarray(-1, np.int32)))
    for level in LEVELS:
        assert_same_bits(run_stock(model, case, level), case.expected())


def test_columns_with_extreme_sums() -> None:
    """A column of largest weights needs as many rows for the zero points as it has; columns of zeros need one."""
    for value in (-128, 127, 0, 1):
        case = linear_case((4,), 50, 6)
        case.inputs["W"][...] = value
        assert_same_bits(stock(case), case.expected())
        case.inputs["W"][:, 1:] = 0
        assert_same_bits(stock(case), case.expected())


def test_functions_depend_on_no_sizes() -> None:
    """So that one is enough for all layers of a model; and none is large."""
    assert len({k.name for k in KINDS}) == len(KINDS)
    for kind in KINDS:
        function = linear_function(kind, 17, 10)
        assert function.ByteSize() < 10_000
        assert {n.op_type for n in function.node if n.domain} == set()
        used = {v for n in function.node for v in n.input}
        used |= {v for n in function.node for a in n.attribute for i in a.g.node for v in i.input}
        used |= {o.name for n in function.node for a in n.attribute for o in a.g.output} | set(function.output)
        assert not [n.name for n in function.node if not used & set(n.output)], "nodes that nothing uses"
