"""Shape inference: constants of outer graphs.

What these would catch: values in branches and loops whose shapes are lost because their axes are constants outside; a
model that shape inference changes.
"""

from __future__ import annotations

from onnx import ModelProto
from protos import parse

from rnnqc.proto.shape_inference import infer_shapes

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
