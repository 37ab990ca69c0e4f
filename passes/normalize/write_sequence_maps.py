"""Writes SequenceMap as a Loop."""

from __future__ import annotations

import contextlib

import numpy as np
import onnx

from rnnqc.evaluation.numerics import Bitwise
from rnnqc.ir import Graph, Model, Node, Value, Variable, display_name, dtype_of
from rnnqc.ir.builder import Builder, onnx_type
from rnnqc.passes.base import Pass, PassInfo, PassResult
from rnnqc.passes.invariants import Property
from rnnqc.proto.graph_walks import blocks_of
from rnnqc.proto.shape_inference import INFERENCE_ERRORS, infer_shapes

_MAKERS = ("SequenceConstruct", "SequenceEmpty", "SequenceErase", "SequenceInsert", "SequenceMap", "SplitToSequence")


class WriteSequenceMaps(Pass):
    """Replaces SequenceMap by the Loop that it is defined as.

    Before: `SequenceMap(sequence, others; body (element, other) -> result)`

    After: `Loop(SequenceLength(sequence), true, SequenceEmpty(); body (k, going, results) -> SequenceInsert(results,
    result))`, with `element = SequenceAt(sequence, k)` in its body

    onnxruntime does not order the nodes of a function that is called in the body of a SequenceMap, and refuses the
    model; cells and linear layers are such functions.
    """

    info = PassInfo(
        name="write-sequence-maps",
        summary="write SequenceMap as Loop",
        numerics=Bitwise(),
        requires=frozenset({Property.CANONICAL}),
    )
    infers_shapes = True

    def run(self, model: Model) -> PassResult:
        """Looks at every node."""
        found = [(g, n) for g in model.graphs() for n in g.nodes if n.op == "SequenceMap" and not n.domain]
        if not found:
            return PassResult(False, (), {"maps": 0})
        sequences = _sequences(model)
        for graph, node in found:
            _write(model, graph, node, sequences)
        return PassResult(True, (), {"maps": len(found)})


def _sequences(model: Model) -> set[str]:
    """Returns the names of values that are sequences, as far as they are known."""
    proto = model.proto
    with contextlib.suppress(*INFERENCE_ERRORS):  # which onnxruntime reports
        proto = infer_shapes(proto)
    names: set[str] = set()
    for block in blocks_of([proto.graph]):
        assert isinstance(block, onnx.GraphProto)
        described = (*block.input, *block.value_info, *block.output)
        names |= {v.name for v in described if v.type.HasField("sequence_type")}
        names |= {o for n in block.node if n.op_type in _MAKERS and not n.domain for o in n.output}
    return names


def _write(model: Model, graph: Graph, node: Node, sequences: set[str]) -> None:
    body: Graph = node.attrs["body"]
    prefix = display_name(node)
    outside, first, last = (Builder(model, prefix=prefix) for _ in range(3))
    index, going = first.value("index", np.int64, []), first.value("going", np.bool_, [])
    for given, formal in zip(node.inputs, body.inputs, strict=True):
        if given.name in sequences:
            first.add("SequenceAt", [given, index], [formal], "element")
        else:
            first.add("Identity", [given], [formal], "whole")
    before: list[Variable] = [last.value("results") for _ in body.outputs]
    more = last.op("Identity", [going], "more")
    after = [last.op("SequenceInsert", [b, made], "inserted") for b, made in zip(before, body.outputs, strict=True)]
    empty: list[Value] = []
    for made in body.outputs:
        kind = onnx_type(dtype_of(made) or np.float32)
        empty.append(outside.op("SequenceEmpty", [], "empty", dtype=kind))
    length = outside.op("SequenceLength", [node.inputs[0]], "length")
    body.nodes[:0] = first.nodes
    body.nodes.extend(last.nodes)
    body.inputs, body.outputs = [index, going, *before], [more, *after]
    node.op, node.inputs = "Loop", [length, model.constant(True, np.bool_), *empty]
    model.insert_nodes(graph, node, outside.nodes)
