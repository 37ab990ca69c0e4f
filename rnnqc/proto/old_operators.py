"""Handles operators that onnx's version converter keeps although their meaning has changed.

* Hardmax before operator set 13 runs over all axes from `axis` on (1 by default), then over one (the last by default).
* Pad before 11 may have its attribute `value` in every mode; the converter makes it an input only in one mode.
* Resize before 11, and Upsample, find element k at k / scale, and take the nearest below, or above where they shrink;
  then it is at (k + 0.5) / scale - 0.5, rounded, by default.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
from onnx import helper, numpy_helper

from rnnqc.errors import CompileError
from rnnqc.proto.graph_walks import blocks_of, named_tensors
from rnnqc.proto.value_names import free_name, names_of

HARDMAX_OF_ONE_AXIS = 13
PAD_WITH_INPUTS = 11
RESIZE_WITH_ORIGINS = 11


def spell_out(proto: onnx.ModelProto, old: int, new: int) -> None:
    """Rewrites operators of the operator set `old`, in place, to ones that mean the same in `new`."""
    taken = names_of(proto.graph)
    for block in blocks_of([proto.graph]):
        nodes: list[onnx.NodeProto] = []
        for node in block.node:
            kind = node.op_type if node.domain in ("", "ai.onnx") else ""
            if kind == "Pad" and old < PAD_WITH_INPUTS <= new and _text(node, "mode", "constant") != "constant":
                _drop(node, "value")
            flat = kind == "Hardmax" and old < HARDMAX_OF_ONE_AXIS <= new and _axis(node) != -1
            nodes += _over_all_axes(node, taken) if flat else [node]
        del block.node[:]
        block.node.extend(nodes)


def keep_origins(converted: onnx.ModelProto, old: int, what: str) -> None:
    """Restores, in place, the original meaning of every Resize after a conversion from the operator set `old`.

    Raises:
        CompileError: One takes the nearest element, and shrinks one axis and enlarges another.
    """
    if old >= RESIZE_WITH_ORIGINS:
        return
    blocks = list(blocks_of([converted.graph]))
    stored = dict(t for b in blocks for t in named_tensors(b))
    for node in (n for b in blocks for n in b.node if n.op_type == "Resize" and not n.domain):
        wanted = {"coordinate_transformation_mode": "asymmetric"}
        if _text(node, "mode", "nearest") == "nearest":
            wanted["nearest_mode"] = _nearest(node, stored, what)
        for name, value in wanted.items():
            _drop(node, name)
            node.attribute.append(helper.make_attribute(name, value))


def _over_all_axes(node: onnx.NodeProto, taken: set[str]) -> list[onnx.NodeProto]:
    """Replaces a Hardmax over several axes by one over a matrix and a Reshape."""
    given, made, axis = node.input[0], node.output[0], _axis(node)
    shape, flat, hard = (free_name(f"{made}/{part}", taken) for part in ("shape", "flat", "hard"))
    inner = helper.make_node("Hardmax", [flat], [hard], node.name, axis=1)
    return [
        helper.make_node("Shape", [given], [shape]),
        helper.make_node("Flatten", [given], [flat], axis=axis),
        inner,
        helper.make_node("Reshape", [hard, shape], [made]),
    ]


def _nearest(node: onnx.NodeProto, stored: Mapping[str, onnx.TensorProto], what: str) -> str:
    """Returns onnxruntime's `nearest_mode` for a Resize; unknown scales count as enlarging."""
    tensor = stored.get(node.input[2]) if len(node.input) > 2 else None
    scales = np.empty(0) if tensor is None else numpy_helper.to_array(tensor)
    if (scales < 1).any() and (scales > 1).any():
        raise CompileError(
            f'{what} Operator "Resize" (node {node.name or node.output[0]!r}) takes the nearest element, and shrinks '
            "one axis and enlarges another; no newer operator set has that.",
            supported="scales of at least 1, or of at most 1",
            action="export the model again with a newer operator set",
        )
    return "ceil" if (scales < 1).any() else "floor"


def _axis(node: onnx.NodeProto) -> int:
    return next((a.i for a in node.attribute if a.name == "axis"), 1)


def _text(node: onnx.NodeProto, name: str, default: str) -> str:
    return next((a.s.decode() for a in node.attribute if a.name == name), default)


def _drop(node: onnx.NodeProto, name: str) -> None:
    kept = [a for a in node.attribute if a.name != name]
    del node.attribute[:]
    node.attribute.extend(kept)
