"""Shape inference: constants of outer graphs.

What these would catch: values in branches and loops whose shapes are lost because their axes are constants outside; a
model that shape inference changes.
"""

from __future__ import annotations

from onnx import ModelProto

from rnnqc.proto.shape_inference import infer_shapes
from tests.subjects.protos import parse

IN_BRANCHES = """<ir_version: 10, opset_import: ["": 17]>
g (bool c, float[2,1,3] x) => (float[N,M] y) <int64[1] axes = {1}> {
  y = If (c) <
    then_branch = a () => (float[N,M] then_y) { inner = Squeeze(x, axes) then_y = Neg(inner) },
    else_branch = b () => (float[N,M] else_y) <int64[1] axes = {1}> { other = Squeeze(x, axes) else_y = Neg(other) }
  >
}"""


def _shapes(proto: ModelProto) -> dict[str, list[int]]:
    branches = [a.g for a in proto.graph.node[0].attribute]
    found = [v for g in branches for v in g.value_info]
    return {v.name: [d.dim_value for d in v.type.tensor_type.shape.dim] for v in found}


def test_branches_see_constants_of_the_graph_around() -> None:
    proto = parse(IN_BRANCHES)
    before = proto.SerializeToString()
    assert _shapes(infer_shapes(proto)) == {"inner": [2, 3], "other": [2, 3]}
    assert proto.SerializeToString() == before


LONG = """<ir_version: 10, opset_import: ["": 17]>
g () => (float[N] y)
<int32 start = {-32768}, int32 limit = {32768}, int32 step = {1}, int32 one = {1}> {
  codes = Range(start, limit, step) raised = Add(codes, one) shape = Shape(raised) y = Cast <to = 1> (raised)
}"""


def test_a_long_range_has_a_shape_but_no_values() -> None:
    """The values of a table's indices make no shape, and following them takes a hundred times as long."""
    proto = parse(LONG)
    before = proto.SerializeToString()
    inferred = infer_shapes(proto)
    assert proto.SerializeToString() == before
    assert [n.op_type for n in inferred.graph.node] == ["Range", "Add", "Shape", "Cast"]
    found = {v.name: v.type.tensor_type for v in [*inferred.graph.value_info, *inferred.graph.output]}
    assert {n: t.elem_type for n, t in found.items()} == {"codes": 6, "raised": 6, "shape": 7, "y": 1}
    assert [d.dim_value for n in ("codes", "raised", "shape") for d in found[n].shape.dim] == [2**16, 2**16, 1]


def test_shapes_are_followed_beside_a_long_range() -> None:
    """A shape that is made of the input's, after a Range of 65536 elements."""
    text = LONG.replace("g () =>", "g (float[2,3] x) =>").replace(
        "shape = Shape", "z = Shape(x) w = Expand(one, z) shape = Shape"
    )
    shapes = {v.name: v.type.tensor_type.shape for v in infer_shapes(parse(text)).graph.value_info}
    assert [d.dim_value for n in ("codes", "w") for d in shapes[n].dim] == [2**16, 2, 3]


FUSED = """<ir_version: 10, opset_import: ["": 17, "com.microsoft": 1]>
g (float[2,1,9] x) => (float[N,M] y) <float[4,1,3] w, float[28,5] v> {
  a = com.microsoft.FusedConv <activation = "Relu"> (x, w) b = Flatten (a)
  c = com.microsoft.FusedGemm <activation = "Tanh"> (b, v) d = com.microsoft.QuickGelu <alpha = 1.7> (c)
  e = com.microsoft.FusedMatMul <transA = 1> (d, d) y = Neg (d)
}"""


def test_operators_of_the_optimizer_of_onnxruntime() -> None:
    """Models that onnxruntime has optimized and saved: behind these no layer was recognized."""
    proto = parse(FUSED)
    before = proto.SerializeToString()
    inferred = infer_shapes(proto)
    shapes = {v.name: [d.dim_value for d in v.type.tensor_type.shape.dim] for v in inferred.graph.value_info}
    assert {k: shapes[k] for k in "abcd"} == {"a": [2, 4, 7], "b": [2, 28], "c": [2, 5], "d": [2, 5]}
    assert "e" not in shapes, "what is transposed stays unknown"
    assert proto.SerializeToString() == before
    assert [(n.domain, n.op_type) for n in inferred.graph.node] == [(n.domain, n.op_type) for n in proto.graph.node]
