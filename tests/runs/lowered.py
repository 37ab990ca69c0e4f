"""Lowering in tests: the four ways of executing the same arithmetic, and inspection of the result."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import onnx
import onnxruntime as ort

import rnnqc
from rnnqc.cells.fused_nodes import PLACES, fused_outputs, given_inputs, input_names
from rnnqc.cells.types import CELL_TYPES, fused_type
from rnnqc.reference import operators as reference
from tests.runs.sessions import Array, Outputs, assert_same_bits, options, run

STOCK, NATIVE, INTEGER, UNROLLED = "stock", "native", "integer form", "unrolled integer form"
WAYS = (STOCK, NATIVE, INTEGER, UNROLLED)


def lower_all(model: onnx.ModelProto, dims: Mapping[str, int] | None = None, **arguments: Any) -> dict[str, Any]:
    """The lowered results by way of execution; `dims` binds the sequence length of the unrolled one.

    Asserts that every recurrent node was lowered.
    """
    fused = rnnqc.lower(model, form="fused", **arguments)
    integer = rnnqc.lower(model, form="integer", **arguments)
    unrolled = rnnqc.lower(model, form="integer", unroll=True, dims=dict(dims or {}), **arguments)
    results = {STOCK: fused, NATIVE: fused, INTEGER: integer, UNROLLED: unrolled}
    for way, lowered in results.items():
        assert_all_lowered(lowered, way)
    return results


def assert_all_lowered(lowered: Any, what: str) -> None:
    """Fail unless there was a recurrent node and all of them were lowered and are gone."""
    entries = lowered.report.entries
    assert entries, f"{what}: the report has no entry"
    left = [f"{e.node}: {e.reason}" for e in entries if e.status != "lowered"]
    assert not left, f"{what}: left float: {left}"
    assert not [n.name for n in all_nodes(lowered.proto) if n.op_type in CELL_TYPES and n.domain == ""], what


def session(model: onnx.ModelProto, way: str, level: str = "ORT_ENABLE_ALL", threads: int = 1) -> ort.InferenceSession:
    """A session for one way of execution."""
    return rnnqc.session(model, native=way == NATIVE, options=options(level, threads))


def run_both(model: onnx.ModelProto, feeds: Mapping[str, Array], what: str = "native against stock") -> Outputs:
    """The outputs of stock onnxruntime. Fails unless the native library gives the same bits."""
    found = run(session(model, STOCK), feeds)
    assert_same_bits(found, run(session(model, NATIVE), feeds), what)
    return found


def assert_equals_reference(model: onnx.ModelProto, feeds: Mapping[str, Array]) -> int:
    """Compares every fused cell of the main graph, as stock onnxruntime runs it, with the numpy reference.

    Returns:
        How many cells there were.
    """
    cells = [n for n in model.graph.node if fused_type(n.op_type)]
    names = list(dict.fromkeys(v for n in cells for v in (*n.input, *n.output) if v and v not in feeds))
    seen = onnx.ModelProto()
    seen.CopyFrom(model)
    del seen.graph.output[:]
    seen.graph.output.extend(onnx.ValueInfoProto(name=n) for n in names)
    values = dict(feeds) | run(session(seen, STOCK), feeds)
    for node in cells:
        type_ = fused_type(node.op_type)
        assert type_ is not None
        skipped = ("configuration", PLACES)
        attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute if a.name not in skipped}
        attributes = {k: v.decode() if isinstance(v, bytes) else v for k, v in attributes.items()}
        inputs = {k: values[v] for k, v in given_inputs(node, input_names(type_)).items()}
        expected = reference.run(type_, inputs, attributes)
        got = {k: values[v] for k, v in zip(fused_outputs(type_), node.output, strict=False) if v}
        assert_same_bits({k: expected[k] for k in got}, got, f"{node.name} in stock onnxruntime against the reference")
    return len(cells)


def all_nodes(model: onnx.ModelProto) -> Iterator[onnx.NodeProto]:
    """Every node of the main graph, of subgraphs at any depth and of functions."""
    pending = list(model.graph.node)
    for function in model.functions:
        pending += function.node
    while pending:
        node = pending.pop()
        yield node
        for attribute in node.attribute:
            pending += attribute.g.node
            for graph in attribute.graphs:
                pending += graph.node
