"""Recurrences without matrices: listed by the name of a loop or of a product, and only these.

What these would catch: an exporter's form of such a recurrence that `inspect` does not list; an LSTM, GRU or RNN that
it lists by mistake; a projection beside the recurrence, or in its loop, that stays float.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest

import rnnqc
from rnnqc.ir import Model
from rnnqc.passes import PassManager
from rnnqc.passes.analysis.elementwise_recurrences import elementwise_recurrences
from rnnqc.passes.pipeline import normal_form
from tests.generate.layers import RecurrentCase
from tests.runs.commands import in_process
from tests.subjects.protos import parse
from tests.subjects.torch.exports import exported, needed

STEPS, NAMES = 5, ("MinGru", "Sru", "Qrnn", "Lru", "Selective")
HEAD = '<ir_version: 10, opset_import: ["": 17]> g (float[4, 2, 6] x) => (float[N, M, K] y)\n<{}> {{\n{}\n}}'
SCAN = """h0 = ConstantOfShape <value = float[1] {0}> (sizes)
  last, y = Scan <num_scan_inputs = 1, body = b (float[2, 6] h, float[2, 6] v) => (float[2, 6] n, float[2, 6] s) {
    f = Sigmoid (v) k = OP n = Add (k, v) s = Identity (n) }> (h0, x)"""
ONE_BY_ONE = "a, b, c, d = Split <axis = 0> (x)\n"
NONE = {
    "a sum": SCAN.replace("OP", "Identity (h)"),
    "a step of a layer beside it": SCAN.replace("OP", "Mul (f, h)").replace(
        "s = Identity (n)", "k3 = Unsqueeze (h, at) k4, k5 = RNN <hidden_size = 6> (k3, I, I) s = Squeeze (k5, at)"
    ),
    "layers on one element": ONE_BY_ONE
    + "p = Mul (a, w) q = Add (p, w) r = Mul (q, w) s = Add (r, b) t = Mul (s, w) u = Add (t, w) y = Mul (u, w)",
    "a sum of scaled elements": ONE_BY_ONE
    + "p = Mul (a, w) q = Mul (b, w) r = Mul (c, w) s = Mul (d, w) y = Sum (p, q, r, s)",
    "rows of a matrix in between": ONE_BY_ONE
    + "p = Mul (a, w) q = Add (p, b) q2 = Softmax (q) r = Mul (q2, w) s = Add (r, c) s2 = Softmax (s) t = Mul (s2, w)"
    "  y = Add (t, d)",
}


def found_in(proto: onnx.ModelProto) -> list[tuple[str, list[object]]]:
    """Operator and states of each elementwise recurrence of a model in normal form."""
    model = Model.load(proto)
    PassManager(normal_form()).run(model)
    return [(r.op, r.sizes["state_sizes"]) for r in elementwise_recurrences(model)]


def written(nodes: str) -> onnx.ModelProto:
    arrays = {"w": np.full(6, 0.5, np.float32), "I": np.eye(6, dtype=np.float32)[None]}
    return parse(HEAD.format("int64[2] sizes = {2, 6}, int64[1] at = {0}", nodes), **arrays)


@pytest.mark.few(1)
@pytest.mark.parametrize("dynamo", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_exports_of_torch(name: str, dynamo: bool) -> None:
    torch = needed("recurrences without matrices", dynamo)
    from tests.subjects.torch import scans

    torch.manual_seed(0)
    proto = exported(getattr(scans, name)(), [torch.randn(STEPS, 2, 16)], dynamo)
    states = {"Lru": [[32], [32]], "Selective": [[8]]}.get(name, [[32]])
    assert found_in(proto) == [("Mul", s) for s in states]
    report = rnnqc.lower(proto, rest="int8", measure=True).report
    assert sum("elementwise recurrence" in note for note in report.notes) == len(states)
    assert {e.status for e in report.rest.entries if not e.is_small} == {"quantized"}
    assert min(report.sqnr_db.values()) > 25


def test_loops(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """`inspect` lists it; projections in the loop become integer."""
    torch = needed("loops without matrices")
    from tests.subjects.torch.scans import StepwiseMinGru

    torch.manual_seed(0)
    module = torch.jit.script(StepwiseMinGru(512, 512))
    proto = exported(module, [torch.randn(STEPS, 2, 512)], False, input_names=["x"], dynamic_axes={"x": {0: "T"}})
    assert [op for op, _ in found_in(proto)] == ["Loop"]
    onnx.save(proto, tmp_path / "loop.onnx")
    listed = in_process(capfd, "inspect", tmp_path / "loop.onnx").out
    assert "float: an elementwise recurrence" in listed
    report = rnnqc.lower(proto, rest="int8", measure=True).report
    assert [e.form for e in report.rest.entries] == ["int8 matmul", "int8 matmul"]
    assert min(report.sqnr_db.values()) > 25


def test_a_scan_of_onnx() -> None:
    assert found_in(written(SCAN.replace("OP", "Mul (f, h)"))) == [("Scan", [6])]


MIXING = {
    "Softmax": "Softmax (h) k2 = Mul (k, f)",
    "ReduceSum": "Unsqueeze (h, at) k1 = Mul (k, pairs) k2 = ReduceSum <keepdims = 0> (k1, ends)",
    "Gather": "Gather <axis = 1> (h, order) k2 = Mul (k, f)",
    "MatMul": "Transpose (h) k1 = MatMul (k, h) k3 = MatMul (h, k1) k2 = Mul (k3, f)",
}


@pytest.mark.parametrize("op", MIXING)
def test_loops_that_mix_elements(op: str) -> None:
    """A state that is multiplied and returns, and another operator on the way, a product with itself too."""
    text = SCAN.replace("OP", MIXING[op]).replace("Add (k, v)", "Add (k2, v)")
    constants = "int64[2] sizes = {2, 6}, int64[1] at = {1}, int64[1] ends = {2}, int64[6] order = {1, 2, 3, 4, 5, 0}"
    proto = parse(HEAD.format(constants, text), pairs=np.eye(6, dtype=np.float32))
    found = rnnqc.inspect(proto)
    assert not found.nodes
    (recurrence,) = found.elementwise
    assert recurrence.mixed.startswith(f"{op} (node ") and recurrence.mixed in recurrence.reason
    rnnqc.lower(proto, strict=True)


@pytest.mark.parametrize("what", NONE)
def test_what_is_none(what: str) -> None:
    assert found_in(written(NONE[what])) == []


def test_mixed_elements_are_told() -> None:
    """Sums over all pairs of units, as those of liquid time constants, are not called elementwise."""
    pairs = "p{0} = Unsqueeze (h{0}, one) q{0} = Mul (p{0}, pairs) r{0} = ReduceSum <keepdims = 0> (q{0}, first) "
    step = "k{0} = Mul (h{0}, w) s{0} = Add (k{0}, r{0}) h{1} = Add (s{0}, {2})\n"
    text = ONE_BY_ONE + "h0 = Squeeze (a, zero)\n"
    for t, element in enumerate("bcd" + "bcd"):
        text += f"v{t} = Squeeze ({element}, zero)\n" + (pairs + step).format(t, t + 1, f"v{t}")
    text += "y = Neg (h6)"
    constants = "int64[1] zero = {0}, int64[1] one = {2}, int64[1] first = {1}"
    proto = parse(HEAD.format(constants, text), w=np.full(6, 0.5, np.float32), pairs=np.eye(6, dtype=np.float32))
    found = rnnqc.inspect(proto)
    assert not found.nodes
    (recurrence,) = found.elementwise
    assert recurrence.mixed.startswith("ReduceSum (node ") and recurrence.mixed in recurrence.reason


@pytest.mark.parametrize("model", [RecurrentCase().model, RecurrentCase(op="GRU", placement="loop").model])
def test_layers_are_none(model: Callable[[], onnx.ModelProto]) -> None:
    """Neither float nor unrolled layers count: their gates read the result of a matmul with the state."""
    assert found_in(model()) == []
    assert found_in(rnnqc.lower(model(), form="qcdq", unroll=True).proto) == []
