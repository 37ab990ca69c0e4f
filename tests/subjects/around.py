"""Puts a layer into the body of a Loop or Scan that runs it several times."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper

TRIPS = 3


def in_loop(model: onnx.ModelProto, x: str = "x") -> onnx.ModelProto:
    """The model in a Loop of three trips, each with `x` times the number of the trip plus one; outputs are stacked."""
    return _around(model, "Loop", x)


def in_scan(model: onnx.ModelProto, x: str = "x") -> onnx.ModelProto:
    """The model in a Scan over three factors of `x`; outputs are stacked."""
    return _around(model, "Scan", x)


def _around(model: onnx.ModelProto, op: str, x: str) -> onnx.ModelProto:
    made = onnx.ModelProto()
    made.CopyFrom(model)
    graph = made.graph
    body = onnx.GraphProto(name="around")
    body.node.extend(graph.node)
    for node in body.node:
        for k, name in enumerate(node.input):
            if name == x:
                node.input[k] = "around_x"
    body.output.extend(graph.output)
    for value in body.output:
        value.name = f"around_{value.name}"
        body.node.append(helper.make_node("Identity", [value.name.removeprefix("around_")], [value.name]))
    scaled = helper.make_node("Mul", [x, "around_factor"], ["around_x"])
    if op == "Loop":
        graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(TRIPS, np.int64), "around_trips"))
        graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(True), "around_go_on"))
        graph.initializer.append(onnx.numpy_helper.from_array(np.float32(1), "around_one"))
        cast = helper.make_node("Cast", ["around_trip"], ["around_trip_float"], to=TensorProto.FLOAT)
        first = [cast, helper.make_node("Add", ["around_trip_float", "around_one"], ["around_factor"]), scaled]
        body.input.append(helper.make_tensor_value_info("around_trip", TensorProto.INT64, []))
        body.input.append(helper.make_tensor_value_info("around_keep", TensorProto.BOOL, []))
        body.output.insert(0, helper.make_tensor_value_info("around_kept", TensorProto.BOOL, []))
        first.append(helper.make_node("Identity", ["around_keep"], ["around_kept"]))
        inputs = ["around_trips", "around_go_on"]
    else:
        factors = np.arange(1, TRIPS + 1, dtype=np.float32)
        graph.initializer.append(onnx.numpy_helper.from_array(factors, "around_factors"))
        body.input.append(helper.make_tensor_value_info("around_factor", TensorProto.FLOAT, []))
        first, inputs = [scaled], ["around_factors"]
    rest = list(body.node)
    del body.node[:]
    body.node.extend([*first, *rest])
    names = [o.name for o in graph.output]
    node = helper.make_node(op, inputs, names, "around", body=body)
    if op == "Scan":
        node.attribute.append(helper.make_attribute("num_scan_inputs", 1))
    del graph.node[:]
    graph.node.append(node)
    for value in graph.output:
        value.type.tensor_type.shape.dim.insert(0, onnx.TensorShapeProto.Dimension(dim_value=TRIPS))
    return made
