"""Lowering in tests: the four ways of executing the same arithmetic, and looking into the result."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import onnx
import onnxruntime as ort
from running import Array, Outputs, options, run

import rnnqc

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
    assert not [n.name for n in all_nodes(lowered.proto) if n.op_type == "LSTM" and n.domain == ""], what


def session(model: onnx.ModelProto, way: str, level: str = "ORT_ENABLE_ALL", threads: int = 1) -> ort.InferenceSession:
    """A session for one way of execution."""
    return rnnqc.session(model, native=way == NATIVE, options=options(level, threads))


def run_all(results: Mapping[str, Any], feeds: Mapping[str, Array]) -> dict[str, Outputs]:
    """Outputs by way of execution."""
    return {way: run(session(lowered.proto, way), feeds) for way, lowered in results.items()}


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
