"""The float weights outside the recurrent layers.

What these would catch: a weight of a recurrent layer that counts as one of the rest, a weight that is listed twice or
left out, operators in subgraphs that are forgotten, sizes that are not those of the file.
"""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import rnnqc
from rnnqc.ir import Model
from rnnqc.passes import Canonicalize, DecomposeLstm, PassManager
from rnnqc.passes.analysis.rest_weights import CONVOLUTION, EMBEDDING, LINEAR, RestWeight, rest_weights
from rnnqc.passes.pipeline import normal_form
from tests.generate.recurrences import RecurrenceCase
from tests.passes.pass_testing import CASES
from tests.subjects.protos import parse
from tests.subjects.whole_models import AXES, WholeModel


def _found(proto: onnx.ModelProto) -> list[RestWeight]:
    model = Model.load(proto)
    PassManager([Canonicalize()]).run(model)
    return rest_weights(model)


SCALES = {"table": 4 * 60, "kernel": 2 * 24 * 6, "projection": 2 * 3 * 16, "decoder_table": 2 * 2 * 60}
"""Bytes: a float32 for each row of an embedding, else a float16 for 8 weights of a channel."""


@pytest.mark.parametrize("tied", [True, False])
def test_every_weight_around_a_layer(tied: bool) -> None:
    proto = WholeModel(tied=tied).model()
    arrays = {t.name: numpy_helper.to_array(t) for t in proto.graph.initializer}
    found = {w.value.name: w for w in _found(proto)}
    assert found.keys() == arrays.keys() & AXES.keys()
    for name, weight in found.items():
        array = arrays[name]
        assert (weight.shape, weight.bytes, weight.axis) == (array.shape, array.nbytes, AXES[name])
        halved = 2 if name == "table" and not tied else 1  # scales of rows that an embedding alone reads are float16
        assert weight.int8_bytes == array.size + SCALES[name] // halved
        assert weight.refusal == ("", "", "")
    kinds = {n: [u.kind for u in w.uses] for n, w in found.items()}
    table = [EMBEDDING, LINEAR] if tied else [EMBEDDING]
    assert sorted(kinds.pop("table")) == table
    assert kinds == {"kernel": [CONVOLUTION], "projection": [LINEAR]} | ({} if tied else {"decoder_table": [LINEAR]})


@pytest.mark.parametrize("form", ["fused", "integer", "qcdq"])
def test_the_same_weights_after_lowering(form: str) -> None:
    """Weights of the lowered recurrent layer do not count."""
    proto = WholeModel().model()
    lowered = rnnqc.lower(proto, form=form)
    assert [(w.value.name, w.shape) for w in rest_weights(lowered.model)] == [
        (w.value.name, w.shape) for w in _found(proto)
    ]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_recurrent_layer_alone_has_none(case: object) -> None:
    model = Model.load(case.model())  # type: ignore[attr-defined]
    PassManager([*normal_form(), DecomposeLstm()]).run(model)
    assert rest_weights(model) == []


@pytest.mark.few(2)
@pytest.mark.parametrize("form", ["scan", "loop", "unrolled"])
def test_a_custom_cell_alone(form: str) -> None:
    """Its matmuls have an entry of their own, before they are quantized and afterwards."""
    proto = RecurrenceCase(op="highway", form=form, time=4).model()
    model = Model.load(proto)
    PassManager(normal_form()).run(model)
    for made in (model, rnnqc.lower(proto).model):
        assert [w.value.name for w in rest_weights(made)] == []


def test_in_subgraphs() -> None:
    """An initializer of the main graph and a Constant node of a branch, each with the path of its operator."""
    proto = parse(
        """<ir_version: 8, opset_import: ["" : 17]> g (float[N,24] x, bool c) => (float[N,40] y) {
            y = If (c) <
                then_branch = a () => (float[N,40] p) { p = MatMul (x, w) },
                else_branch = b () => (float[N,40] q) { q = MatMul (x, v) }
            >
        }""",
        w=np.ones((24, 40), np.float32),
    )
    proto.graph.node[0].name = "choice"
    branch = next(a.g for a in proto.graph.node[0].attribute if a.name == "else_branch")
    value = numpy_helper.from_array(np.ones((24, 40), np.float32))
    branch.node.insert(0, onnx.helper.make_node("Constant", [], ["v"], value=value))
    for node, name in ((branch.node[1], "else"), (proto.graph.node[0].attribute[0].g.node[0], "then")):
        node.name = name
    paths = sorted(u.path for w in _found(proto) for u in w.uses)
    assert paths == ["choice/else_branch/else", "choice/then_branch/then"]


def test_a_weight_of_a_layer_and_of_an_operator_stays() -> None:
    """The reason names the other reader of the weight."""
    proto = WholeModel().model()
    proto.graph.node.append(onnx.helper.make_node("Neg", ["kernel"], ["negative"], name="other"))
    proto.graph.output.append(onnx.helper.make_tensor_value_info("negative", onnx.TensorProto.FLOAT, [24, 16, 3]))
    (weight,) = (w for w in _found(proto) if w.value.name == "kernel")
    assert weight.refusal[1] == "'kernel' is also read by Neg 'other'"
    assert weight.int8_bytes == weight.bytes


def test_weights_of_operators_that_onnxruntime_has_fused() -> None:
    """`--strict-rest` passed models that onnxruntime had optimized, and no message named these weights."""
    text = """<ir_version: 10, opset_import: ["": 17, "com.microsoft": 1]> g (float[2,40] x) => (float[N,M] y) {
      [one] h = com.microsoft.FusedGemm <activation = "Relu"> (x, a)
      [two] y = com.microsoft.FusedMatMul <alpha = 0.5> (h, b) }"""
    rng = np.random.default_rng(0)
    proto = parse(text, a=rng.random((40, 60), np.float32), b=rng.random((60, 2), np.float32))
    large, small = _found(proto)
    assert (large.uses[0].path, large.uses[0].kind, large.refusal[1]) == ("one", LINEAR, "com.microsoft.FusedGemm")
    assert small.is_small


COMPUTED = {
    "a part": ("p, q = Split <axis = 1> (w) y = MatMul (x, p) z = MatMul (x, q)", {"w": (24, 80)}, [3840, 3840]),
    "several": ("p = Concat <axis = 1> (w, v) y = MatMul (x, p) z = Neg (y)", {"w": (24, 40), "v": (24, 40)}, [7680]),
    "a product": ("p = Mul (w, v) y = MatMul (x, p) z = Einsum <equation = \"bk,kn->bn\"> (x, p)", {
        "w": (24, 40), "v": (40,)}, [3840]),
    "halves": ("p = Cast <to = 1> (w) y = MatMul (x, p) z = Neg (y)", {"w": (48, 80), "dtype": ("float16",)}, [7680]),
}  # fmt: skip
"""Nodes, shapes of what they compute a weight from, and bytes of the weights, of which several operators read one."""


@pytest.mark.parametrize("name", COMPUTED)
def test_weights_that_are_computed(name: str) -> None:
    """They used to stay float without any message."""
    nodes, shapes, sizes = COMPUTED[name]
    dtype = shapes.get("dtype", ("float32",))[0]
    arrays = {n: np.ones(s, dtype) for n, s in shapes.items() if n != "dtype"}
    depth = shapes["w"][0]
    head = f'<ir_version: 8, opset_import: ["" : 17]> g (float[N,{depth}] x) => (float[N,M] y, float[N,M] z)'
    found = _found(parse(f"{head} {{ {nodes} }}", **arrays))
    assert [w.bytes for w in found] == sizes
    assert [w.refusal[0] for w in found] == [""] * len(sizes)
    assert all(w.computed is not None and w.int8_bytes < w.bytes for w in found)
    assert sum(len(w.uses) for w in found) == (2 if name in ("a part", "a product") else 1)


def test_a_weight_that_is_computed_from_a_smaller_one() -> None:
    text = """<ir_version: 8, opset_import: ["" : 17]> g (float[9,N,24] x) => (float[9,N,40] y) {
        s = Constant <value_ints = [9, 24, 40]> () p = Expand (w, s) y = MatMul (x, p) }"""
    (weight,) = _found(parse(text, w=np.ones((1, 24, 40), np.float32)))
    assert "from a smaller one" in weight.refusal[0]


def test_rows_of_one_number_are_no_embedding() -> None:
    """A scale for each row would make such a table larger."""
    for shape in ((2000,), (2000, 1)):
        text = '<ir_version: 8, opset_import: ["" : 17]> g (int64[N] k) => (float y) { y = Gather (w, k) }'
        (weight,) = _found(parse(text, w=np.ones(shape, np.float32)))
        assert not weight.uses[0].reads_rows
        assert weight.int8_bytes < weight.bytes


def test_integers_and_quantized_weights_do_not_count() -> None:
    text = """<ir_version: 8, opset_import: ["" : 17]> g (float[24,40] x, int64[N] k) => (float[N,40] y, int64[N] z) {
        q = DequantizeLinear (codes, scale)
        y = Gather (q, k)
        z = Gather (numbers, k)
    }"""
    proto = parse(
        text, codes=np.ones((400, 40), np.int8), scale=np.array(0.5, np.float32), numbers=np.arange(400, dtype=np.int64)
    )
    assert _found(proto) == []
