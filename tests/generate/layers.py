"""Models with one LSTM, GRU or RNN node (two with placement "if"), described by a frozen `RecurrentCase`; rows of them.

Everything about a case, its weights, its feeds and its expected outputs included, is a function of the dataclass.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tests.generate.float_layer import LayerOutputs, run_node
from tests.generate.layer_models import layer_model
from tests.generate.layer_specs import INPUTS, ITERATIONS, Array, LayerSpec


@dataclass(frozen=True)
class RecurrentCase(LayerSpec):
    """A layer, its model and what the model has to give."""

    def expected(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        """Float64 outputs of the model for the feeds, by the numpy reference."""
        parameters = self.parameters()
        feeds = {**feeds, **self.start(feeds)}
        if self.placement == "if" and not feeds["condition"]:
            parameters["R"] = -parameters["R"]
        if self.placement not in ("loop", "scan"):
            return _pick(self._run(parameters, feeds["X"], feeds), self.outputs)
        state = dict(feeds)
        collected: dict[str, list[Array]] = {name: [] for name in self.outputs}
        for k in range(ITERATIONS):
            result = self._run(parameters, feeds["X"][k] if self.placement == "scan" else feeds["X"], state)
            state |= {"initial_h": result.Y_h} if self.initial_h else {}
            state |= {"initial_c": result.Y_c} if self.initial_c else {}
            for name, value in _pick(result, self.outputs).items():
                collected[name].append(value)
        return {name: np.stack(values) for name, values in collected.items()}

    def _run(self, parameters: Mapping[str, Array], x: Array, state: Mapping[str, Array]) -> LayerOutputs:
        if self.leaky is not None:
            x = np.where(x < 0, np.float32(self.leaky) * x, x)
        values = [x if n is None else parameters.get(n, state.get(n)) for n in INPUTS]
        return run_node(helper.make_node(self.op, [], [], **self.attributes()), values)

    def model(self) -> onnx.ModelProto:
        """The model; graph inputs are named as the operator's, outputs as in `outputs`."""
        return layer_model(self)

    def replace(self, **changes: Any) -> RecurrentCase:
        """A copy with the changes."""
        return replace(self, **changes)


def _pick(result: LayerOutputs, names: tuple[str, ...]) -> dict[str, Array]:
    return {name: getattr(result, name) for name in names}


WIRINGS = ("chain", "residual", "concat", "dense", "handed")
"""Connections of two layers: direct; a sum with the input of the previous layer, if the widths are equal; both of them
concatenated; a matmul, a sum and Relu of the same width; direct, with final states as initial ones if the sizes are
equal."""


def width_after(layer: RecurrentCase, wiring: str) -> int:
    """I of the layer behind `layer`."""
    return layer.directions * layer.H + (layer.I if wiring == "concat" else 0)


def stacked_model(
    layers: Sequence[RecurrentCase], shared_weights: bool = False, wiring: str = "chain"
) -> onnx.ModelProto:
    """A chain of layers as torch exports it: Squeeze between one-direction layers, Transpose and Reshape after others.

    The first layer gives T, B, I and opset (13 or later); each next one has to have the I that `width_after` gives.
    `wiring` is one of `WIRINGS`. The output `Y` is `[T,B,directions*H]` of the last layer, `Y_h` and (LSTM) `Y_c` are
    its final states.
    With `shared_weights` every layer uses the parameters of the first, by the same initializers.
    """
    first = layers[0]
    nodes: list[onnx.NodeProto] = []
    initializers = [
        numpy_helper.from_array(np.array([1], np.int64), "axis_1"),
        numpy_helper.from_array(np.array([0, 0, -1], np.int64), "merged"),
    ]
    x = "X"
    for k, layer in enumerate(layers):
        owner = 0 if shared_weights else k
        if owner == k:
            held = {n: v for n, v in layer.parameters().items() if n != "R" or not layer.tied}
            initializers += [numpy_helper.from_array(v, f"{n}{k}") for n, v in held.items()]
        names = [f"{n}{owner}" if n in layer.parameters() else "" for n in ("W", "R", "B")]
        names[1] = names[0] if layer.tied else names[1]
        if wiring == "handed" and k and (layer.directions, layer.H) == (layers[k - 1].directions, layers[k - 1].H):
            cells = {layer.op, layers[k - 1].op} == {"LSTM"}
            names += ["", f"Y_h{k - 1}", *([f"Y_c{k - 1}"] if cells else [])]
        nodes.append(
            helper.make_node(
                layer.op, [x, *names], [f"{o}{k}" for o in layer.outputs], f"layer{k}", **layer.attributes()
            )
        )
        before, x = x, f"X{k + 1}"
        if layer.directions == 1:
            nodes.append(helper.make_node("Squeeze", [f"Y{k}", "axis_1"], [x]))
        else:
            nodes.append(helper.make_node("Transpose", [f"Y{k}"], [f"Y{k}_t"], perm=[0, 2, 1, 3]))
            nodes.append(helper.make_node("Reshape", [f"Y{k}_t", "merged"], [x]))
        if k < len(layers) - 1:
            x = _joined(wiring, x, before, layer, nodes, initializers)
    last = len(layers) - 1
    sources = {"Y": x} | {o: f"{o}{last}" for o in layers[-1].outputs if o != "Y"}
    nodes += [helper.make_node("Identity", [source], [name]) for name, source in sources.items()]
    time, batch = "T" if first.dynamic_time else first.T, "B" if first.dynamic_batch else first.B
    state = [layers[-1].directions, batch, layers[-1].H]
    shapes = {"Y": [time, batch, layers[-1].directions * layers[-1].H], "Y_h": state, "Y_c": state}
    graph = helper.make_graph(
        nodes,
        "stack",
        [helper.make_tensor_value_info("X", TensorProto.FLOAT, [time, batch, first.I])],
        [
            helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
            for name, shape in shapes.items()
            if name in sources
        ],
        initializers,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", first.opset)], ir_version=first.ir_version)


def _joined(
    wiring: str,
    x: str,
    before: str,
    layer: RecurrentCase,
    nodes: list[onnx.NodeProto],
    initializers: list[onnx.TensorProto],
) -> str:
    """The input of the next layer, from the output and the input of `layer`."""
    made, width = f"{x}_joined", layer.directions * layer.H
    if wiring == "residual" and width == layer.I:
        nodes.append(helper.make_node("Add", [x, before], [made]))
    elif wiring == "concat":
        nodes.append(helper.make_node("Concat", [x, before], [made], axis=2))
    elif wiring == "dense":
        weights = np.random.default_rng([layer.seed, 3]).standard_normal((width, width)) / np.sqrt(width)
        initializers.append(numpy_helper.from_array(weights.astype(np.float32), f"{x}_dense"))
        initializers.append(numpy_helper.from_array(np.full(width, 0.125, np.float32), f"{x}_bias"))
        nodes.append(helper.make_node("MatMul", [x, f"{x}_dense"], [f"{x}_product"]))
        nodes.append(helper.make_node("Add", [f"{x}_product", f"{x}_bias"], [f"{x}_sum"]))
        nodes.append(helper.make_node("Relu", [f"{x}_sum"], [made]))
    else:
        return x
    return made
