"""Puts everything a model does into the branches of an If."""

from __future__ import annotations

import onnx
from onnx import TensorProto, helper

from tests.generate.renaming import made_values, rename


def condition(level: int) -> str:
    """The boolean input that chooses the branch at a level, counted from the inside."""
    return f"nest_condition_{level}"


def nested(model: onnx.ModelProto, depth: int) -> onnx.ModelProto:
    """The model inside `depth` If nodes; both branches do the same, with weights of the main graph.

    The new inputs `condition(level)` choose the branches.
    """
    result = model
    for level in range(depth):
        result = _inside_if(result, f"level_{level}", condition(level))
        result.graph.input.append(helper.make_tensor_value_info(condition(level), TensorProto.BOOL, []))
    return result


def _inside_if(model: onnx.ModelProto, name: str, chosen: str) -> onnx.ModelProto:
    result = onnx.ModelProto()
    result.CopyFrom(model)
    outputs = [value.name for value in model.graph.output]
    branches = {}
    for key in ("then_branch", "else_branch"):
        branch = onnx.ModelProto()
        branch.graph.node.extend(model.graph.node)
        branch.graph.output.extend(model.graph.output)
        made = made_values(branch.graph)
        rename(branch, f"{name}_{key}_{{}}".format, made)
        branch.graph.name = f"{name}_{key}"
        branches[key] = branch.graph
    del result.graph.node[:]
    result.graph.node.append(helper.make_node("If", [chosen], outputs, name=name, **branches))
    return result
