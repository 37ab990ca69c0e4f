"""Running models.

What these would catch: an error of onnxruntime that reaches the user as a traceback, feeds that are silently dropped or
missing, a constant expression evaluated wrongly.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rnnqc.errors import CompileError
from rnnqc.evaluation import evaluate
from rnnqc.evaluation.evaluate import evaluate_nodes, evaluate_values, make_session, run_model, run_session
from rnnqc.ir import Model
from rnnqc.sessions import session
from tests.subjects.protos import parse

HEADER = '<ir_version: 8, opset_import: ["": 17]>'
ADD = (
    f"{HEADER} g (float[2] a, float[2] b) => (float[2] sum, float[2] difference) {{ sum = "
    f"Add(a, b) difference = Sub(a, b) }}"
)
A, B = np.array([1, 2], np.float32), np.array([3, 5], np.float32)


@pytest.mark.parametrize("optimize", [False, True])
def test_outputs_by_name(optimize: bool) -> None:
    got = run_model(parse(ADD), {"a": A, "b": B, "unknown": A}, optimize=optimize)
    assert {k: v.tolist() for k, v in got.items()} == {"sum": [4, 7], "difference": [-2, -3]}


def test_bytes_and_paths(tmp_path: object) -> None:
    from pathlib import Path

    path = Path(str(tmp_path)) / "m.onnx"
    path.write_bytes(parse(ADD).SerializeToString())
    for source in (path.read_bytes(), str(path)):
        assert list(run_model(source, {"a": A, "b": B})) == ["sum", "difference"]


def test_missing_array_is_named() -> None:
    with pytest.raises(CompileError, match=r"no array for input 'b'.*Supported: a, b.*add the array"):
        run_model(parse(ADD), {"a": A})


def test_model_that_onnxruntime_refuses() -> None:
    model = parse(f"{HEADER} g (float[2] a) => (float[2] y) {{ y = Mystery(a) }}")
    with pytest.raises(CompileError, match=r"onnxruntime [\d.]+ refuses the model: .*Mystery") as caught:
        make_session(model)
    assert "\n" not in str(caught.value)


def test_run_that_fails() -> None:
    session = make_session(parse(ADD))
    with pytest.raises(CompileError, match=r"onnxruntime failed while running the model: .*give data that fits it"):
        run_session(session, {"a": A, "b": np.zeros(3, np.float32)})


def test_outputs_that_are_no_tensors() -> None:
    model = parse(f"{HEADER} g (float[2] a) => (seq(float[2]) y) {{ y = SequenceConstruct(a) }}")
    with pytest.raises(CompileError, match=r"output 'y' is a list.*remove the output"):
        run_model(model, {"a": A})


def test_constant_expression() -> None:
    model = Model.load(
        parse(f"{HEADER} g (float[2] x) => (float[2] y) {{ a = Neg(k) b = Add(a, k) c = Exp(b) y = Add(x, c) }}", k=A)
    )
    nodes = model.graph.nodes[:3]
    got = evaluate_nodes(model, nodes, nodes[-1].outputs[0])
    assert got is not None
    assert got.tolist() == [1.0, 1.0]


def test_expression_that_cannot_be_computed() -> None:
    model = Model.load(
        parse(f"{HEADER} g (float[2] x) => (float[2] y) {{ a = Reshape(k, s) y = Add(x, a) }}", k=A, s=np.array([7]))
    )
    assert evaluate_nodes(model, model.graph.nodes[:1], model.graph.nodes[0].outputs[0]) is None


def test_operands_of_many_divisions_are_computed_in_one_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the sizes of a few hundred unrolled steps, each halved, take minutes."""
    halves = " ".join(f"s{k} = Add(n, n) h{k} = Div(s{k}, two)" for k in range(20))
    text = f"{HEADER} g (int64[1] x) => (int64[1] y) <int64[1] n = {{6}}, int64[1] two = {{2}}>"
    model = Model.load(parse(f"{text} {{ {halves} q = Div(h0, h19) y = Add(x, q) }}"))
    runs, real = [], evaluate.run_model

    def counted(*arguments: Any) -> dict[str, Any]:
        runs.append(arguments)
        return real(*arguments)

    monkeypatch.setattr(evaluate, "run_model", counted)
    nodes = model.graph.nodes[:-1]
    got = evaluate_values(model, nodes, [n.outputs[0] for n in nodes])
    assert {k: v.tolist() for k, v in got.items() if k in ("h0", "h19", "q")} == {"h0": [6], "h19": [6], "q": [1]}
    assert len(runs) == 3, "operands of those without a division before, of the other one, and the values"


@pytest.mark.parametrize("divisor", [1, -1])
def test_a_division_of_the_least_integer_behind_another_one(divisor: int) -> None:
    """By -1 it ends the process."""
    text = f"{HEADER} g (int64[1] x) => (int64[1] y) <int64[1] n = {{{-(2**63)}}}, int64[1] d = {{{divisor}}}>"
    body = "one = Div(d, d) least = Div(n, one) q = Div(least, d) y = Add(x, q)"
    model = Model.load(parse(f"{text} {{ {body} }}"))
    got = evaluate_nodes(model, model.graph.nodes[:-1], model.graph.nodes[-2].outputs[0])
    assert got == (None if divisor == -1 else [-(2**63)])


PRODUCTS = """<ir_version: 8, opset_import: ["": 17]>
g (float[1,4] x) => (float[1,2] y, float[1,2] z)
<float s = {1}, uint8 zero = {0}, int8 none = {0},
 int8[4,2] w = {127,127,127,127,127,127,127,127}, int8[4,2] v = {127,127,127,127,127,127,127,127}>
{
  q = QuantizeLinear(x, s, zero)
  a = DequantizeLinear(q, s, zero)
  b = DequantizeLinear(w, s, none)
  c = DequantizeLinear(v, s, none)
  y = MatMul(a, b)
  z = MatMul(a, c)
}"""


def test_products_of_dequantized_weights_are_exact() -> None:
    """onnxruntime fuses them into integer matmuls, which by default saturate at 16 bits on x86 without VNNI."""
    feed = {"x": np.full((1, 4), 255, np.float32)}
    proto = parse(PRODUCTS)
    runs = [make_session(proto), make_session(proto, optimize=False), session(proto, native=False)]
    assert [float(v.max()) for live in runs for v in run_session(live, feed).values()] == [4 * 255 * 127] * 6
