"""Rewrites Scans as Loops: the values of a Loop's steps may differ in shape and can still be exposed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from rnnqc.passes.cells.observe import NotObservableError, places
from rnnqc.proto.graph_walks import blocks_of

_LISTED = ("If", "Loop")
"""Operators whose inner values are exposed as sequences."""


def write_as_loops(proto: onnx.ModelProto, values: Iterable[str]) -> None:
    """Rewrites Scans as Loops, in place, where an If or a Loop lies between the Scan and one of `values`.

    All steps of a Scan must give tensors of one shape, but a branch that is not taken gives none.

    Args:
        proto: The model, whose names are unique over all graphs.
        values: Names of values.

    Raises:
        NotObservableError: Such a Scan stacks an output of unknown rank along another axis than the first.
    """
    where = dict(places(proto.graph))
    wanted: list[onnx.NodeProto] = []
    for levels in (where[v] for v in values):
        deepest = max((k for k, level in enumerate(levels) if level.owner.op_type in _LISTED), default=0)
        wanted += [level.owner for level in levels[:deepest] if level.owner.op_type == "Scan"]
    names = {next(o for o in scan.output if o) for scan in wanted}
    for graph in list(blocks_of([proto.graph])):
        assert isinstance(graph, onnx.GraphProto)
        for place, node in reversed(list(enumerate(graph.node))):
            if node.op_type == "Scan" and names.intersection(node.output):
                before, after = _rewrite(node)
                for made in reversed(after):
                    graph.node.insert(place + 1, made)
                for made in reversed(before):
                    graph.node.insert(place, made)


def _rewrite(scan: onnx.NodeProto) -> tuple[list[onnx.NodeProto], list[onnx.NodeProto]]:
    """Turns a Scan into a Loop, in place. Returns the nodes that it needs before and after it."""
    given = {a.name: helper.get_attribute_value(a) for a in scan.attribute if a.name != "body"}
    body: onnx.GraphProto = next(a.g for a in scan.attribute if a.name == "body")
    prefix = f"{next(o for o in scan.output if o)}/as_loop"
    count = given["num_scan_inputs"]
    states = len(scan.input) - count
    results = len(scan.output) - states
    axes = given.get("scan_input_axes", [0] * count)
    backwards = given.get("scan_input_directions", [0] * count)
    in_front = _Nodes(f"{prefix}.front")
    shape = in_front.add("Shape", [scan.input[states]])
    trips = in_front.add("Gather", [shape, in_front.number(axes[0])], f"{prefix}.trips")
    last = in_front.add("Sub", [trips, in_front.number(1)])

    inside = _Nodes(f"{prefix}.inside")
    trip = f"{prefix}.trip"
    turned = inside.add("Sub", [last, trip]) if any(backwards) else trip
    for k, element in enumerate(body.input[states:]):
        index = turned if backwards[k] else trip
        inside.add("Gather", [scan.input[states + k], index], element.name, axis=axes[k])
    go_on = inside.add("Identity", [f"{prefix}.go"])
    for made in reversed(inside.nodes):
        body.node.insert(0, made)

    behind = _Nodes(f"{prefix}.behind")
    output_axes = given.get("scan_output_axes", [0] * results)
    for k, turn in enumerate(given.get("scan_output_directions", [0] * results)):
        place, axis = states + k, output_axes[k]
        name = scan.output[place]
        if not name or not (turn or axis):
            continue
        stacked = scan.output[place] = f"{name}/as_loop.stacked"
        order = _order(axis, body.output[place])
        if turn:
            numbers = behind.add("Range", [last, behind.number(-1), behind.number(-1)])
            stacked = behind.add("Gather", [stacked, numbers], "" if order else name, axis=0)
        if order:
            behind.add("Transpose", [stacked], name, perm=order)

    del body.input[states:]
    body.input.insert(0, helper.make_tensor_value_info(trip, TensorProto.INT64, []))
    body.input.insert(1, helper.make_tensor_value_info(f"{prefix}.go", TensorProto.BOOL, []))
    body.output.insert(0, helper.make_tensor_value_info(go_on, TensorProto.BOOL, []))
    for at in reversed([k for k, a in enumerate(scan.attribute) if a.name != "body"]):
        del scan.attribute[at]
    carried = list(scan.input[:states])
    scan.op_type = "Loop"
    scan.input[:] = [trips, "", *carried]
    return in_front.nodes, behind.nodes


def _order(axis: int, element: onnx.ValueInfoProto) -> list[int]:
    """Returns the permutation that moves the stacked axis from 0, as in a Loop, to `axis`; empty for axis 0.

    Raises:
        NotObservableError: The rank is not known.
    """
    if not axis:
        return []
    if not element.type.tensor_type.HasField("shape"):
        raise NotObservableError
    rank = len(element.type.tensor_type.shape.dim) + 1
    order = list(range(1, rank))
    order.insert(axis % rank, 0)
    return order


class _Nodes:
    """Collects nodes and gives them unique names."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self.nodes: list[onnx.NodeProto] = []

    def add(self, op: str, inputs: list[str], name: str = "", **attributes: Any) -> str:
        """Adds a node with one output; returns its name."""
        made = name or f"{self._prefix}{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [made], made, **attributes))
        return made

    def number(self, value: int) -> str:
        """Adds an int64 scalar constant; returns its name."""
        return self.add("Constant", [], value=onnx.numpy_helper.from_array(np.asarray(value, np.int64)))
