"""Builds the ONNX model of a `LayerSpec`: one layer, wherever it may stand."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tests.generate.layer_specs import FEATURES, ITERATIONS, NODE_NAME, OUTPUTS, Array, LayerSpec

# Of each operator: the ONNX gates in torch's order, and the ranges of torch's gates that make ONNX's order again.
_FROM_TORCH = {
    "LSTM": ((0, 2, 3, 1), ((0, 1), (3, 4), (1, 3))),
    "GRU": ((1, 0, 2), ((1, 2), (0, 1), (2, 3))),
    "RNN": ((0,), ((0, 1),)),
}


def layer_model(case: LayerSpec) -> onnx.ModelProto:
    """The model of one case; graph inputs are named as the operator's, outputs as in `outputs`."""
    return _Builder(case).model()


class _Builder:
    """Builds the ModelProto of one case."""

    def __init__(self, case: LayerSpec) -> None:
        self.case = case
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: list[onnx.TensorProto] = []
        self.functions: list[onnx.FunctionProto] = []
        self.of_bodies: list[onnx.TensorProto] = []

    def model(self) -> onnx.ModelProto:
        case = self.case
        parameters = self._parameters()
        self._states()
        build = {
            "main": self._main,
            "if": self._if,
            "loop": self._loop,
            "scan": self._scan,
            "function": self._function,
        }[case.placement]
        build(parameters)
        inputs = self._inputs()
        if case.ir_version < 4:
            # Before IR 4 every initializer has to be a graph input too.
            inputs += [helper.make_tensor_value_info(t.name, t.data_type, list(t.dims)) for t in self.initializers]
        graph = helper.make_graph(self.nodes, "lstm_case", inputs, self._outputs(), self.initializers)
        opsets = [helper.make_opsetid("", case.opset)]
        if self.functions:
            opsets.append(helper.make_opsetid("test.functions", 1))
        return helper.make_model(graph, opset_imports=opsets, functions=self.functions, ir_version=case.ir_version)

    def _dims(self) -> tuple[int | str, int | str]:
        return "T" if self.case.dynamic_time else self.case.T, "B" if self.case.dynamic_batch else self.case.B

    def _state_shape(self) -> list[int | str]:
        _, b = self._dims()
        d = self.case.directions
        return [b, d, self.case.H] if self.case.layout else [d, b, self.case.H]

    def _x_shape(self) -> list[int | str]:
        t, b = self._dims()
        return [b, t, self.case.I] if self.case.layout else [t, b, self.case.I]

    def _output_shape(self, name: str) -> list[int | str]:
        if name != "Y":
            return self._state_shape()
        t, b = self._dims()
        d, h = self.case.directions, self.case.H
        return [b, t, d, h] if self.case.layout else [t, d, b, h]

    def _inputs(self) -> list[onnx.ValueInfoProto]:
        case = self.case
        pieces: list[int | str] = [ITERATIONS] if case.placement == "scan" else []
        inputs = [helper.make_tensor_value_info("X", TensorProto.FLOAT, pieces + self._x_shape())]
        if case.lens is not None:
            inputs.append(helper.make_tensor_value_info("sequence_lens", TensorProto.INT32, [self._dims()[1]]))
        for name, present in (("initial_h", case.initial_h), ("initial_c", case.initial_c)):
            if present and case.states_from == "input":
                inputs.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, self._state_shape()))
        if case.states and case.states_from == "computed":
            inputs.append(helper.make_tensor_value_info("features", TensorProto.FLOAT, [self._dims()[1], FEATURES]))
        if case.placement == "if":
            inputs.append(helper.make_tensor_value_info("condition", TensorProto.BOOL, []))
        return inputs

    def _outputs(self) -> list[onnx.ValueInfoProto]:
        stacked: list[int | str] = [ITERATIONS] if self.case.placement in ("loop", "scan") else []
        return [
            helper.make_tensor_value_info(name, TensorProto.FLOAT, stacked + self._output_shape(name))
            for name in self.case.outputs
        ]

    def _constant(self, name: str, value: Array, nodes: list[onnx.NodeProto]) -> str:
        """A value as initializer or, for weights="constant", as Constant node."""
        tensor = numpy_helper.from_array(np.asarray(value, order="C"), name)
        if self.case.weights == "constant":
            nodes.append(helper.make_node("Constant", [], [name], value=tensor))
        else:
            self.initializers.append(tensor)
        return name

    def _states(self) -> None:
        """Makes the initial states that are no inputs, under the operator's names for them."""
        case = self.case
        batch_axis = (1 - case.layout) + (case.placement == "scan")
        for name, value in case.state_values().items():
            turned = np.swapaxes(value, 0, 1) if case.layout and case.states_from != "computed" else value
            if case.states_from == "constant":
                self._constant(name, turned, self.nodes)
                continue
            held = self._constant(f"{name}_of", turned, self.nodes)
            if case.states_from == "computed":
                product = f"{name}_product" if case.layout else name
                self.nodes.append(helper.make_node("MatMul", ["features", held], [product]))
                if case.layout:
                    self.nodes.append(helper.make_node("Transpose", [product], [name], perm=[1, 0, 2]))
                continue
            axis = self._constant(f"{name}_axis", np.array([batch_axis], np.int64), self.nodes)
            sizes = [
                self._constant(f"{name}_{n}", np.array([v], np.int64), self.nodes)
                for n, v in (("directions", case.directions), ("width", case.H))
            ]
            shape = [f"{name}_rows", sizes[0]] if case.layout else [sizes[0], f"{name}_rows"]
            self.nodes += [
                helper.make_node("Shape", ["X"], [f"{name}_x_shape"]),
                helper.make_node("Gather", [f"{name}_x_shape", axis], [f"{name}_rows"]),
                helper.make_node("Concat", [*shape, sizes[1]], [f"{name}_shape"], axis=0),
                helper.make_node("Expand", [held, f"{name}_shape"], [name]),
            ]

    def _parameters(self) -> dict[str, str]:
        """Value names of W, R, B, P in the main graph."""
        made = self._separate_parameters()
        return made | {"R": made["W"]} if self.case.tied else made

    def _separate_parameters(self) -> dict[str, str]:
        parameters = self.case.parameters()
        if self.case.tied:
            del parameters["R"]
        if self.case.weights == "body":
            self.of_bodies = [numpy_helper.from_array(v, k) for k, v in parameters.items()]
            return {k: k for k in parameters}
        if self.case.weights == "computed":
            return {k: self._computed(k, v) for k, v in parameters.items() if k != "P"} | (
                {"P": self._constant("P", parameters["P"], self.nodes)} if "P" in parameters else {}
            )
        return {k: self._constant(k, v, self.nodes) for k, v in parameters.items()}

    def _computed(self, name: str, value: Array) -> str:
        """The parameter from torch's gate order by Slice, Concat, Unsqueeze, as torch's exporters write it.

        torch has i, f, c, o for LSTM and r, z, n for GRU.
        """
        h = self.case.H
        order, cuts_of = _FROM_TORCH[self.case.op]
        rows = []
        for d in range(self.case.directions):
            halves = []
            for k, part in enumerate(np.split(value[d], 2 if name == "B" else 1)):
                gates = np.split(part, self.case.gates)
                prefix = f"{name}_{d}_{k}"
                source = self._constant(f"{prefix}_torch", np.concatenate([gates[g] for g in order]), self.nodes)
                cuts = [self._slice(f"{prefix}_s{a}", source, a * h, b * h) for a, b in cuts_of]
                self.nodes.append(helper.make_node("Concat", cuts, [f"{prefix}_onnx"], axis=0))
                halves.append(f"{prefix}_onnx")
            flat = halves[0]
            if len(halves) > 1:
                flat = f"{name}_{d}_flat"
                self.nodes.append(helper.make_node("Concat", halves, [flat], axis=0))
            rows.append(self._unsqueeze(f"{name}_{d}_row", flat))
        if len(rows) == 1:
            return rows[0]
        self.nodes.append(helper.make_node("Concat", rows, [name], axis=0))
        return name

    def _slice(self, name: str, source: str, start: int, stop: int) -> str:
        if self.case.opset < 10:
            self.nodes.append(helper.make_node("Slice", [source], [name], axes=[0], starts=[start], ends=[stop]))
            return name
        bounds = [
            self._constant(f"{name}_{k}", np.array([v], np.int64), self.nodes)
            for k, v in (("start", start), ("stop", stop), ("axis", 0))
        ]
        self.nodes.append(helper.make_node("Slice", [source, *bounds], [name]))
        return name

    def _unsqueeze(self, name: str, source: str) -> str:
        if self.case.opset < 13:
            self.nodes.append(helper.make_node("Unsqueeze", [source], [name], axes=[0]))
        else:
            axes = self._constant(f"{name}_axes", np.array([0], np.int64), self.nodes)
            self.nodes.append(helper.make_node("Unsqueeze", [source, axes], [name]))
        return name

    def _layer(
        self,
        parameters: Mapping[str, str],
        x: str = "X",
        states: Mapping[str, str] | None = None,
        prefix: str = "",
        wanted: tuple[str, ...] | None = None,
    ) -> onnx.NodeProto:
        """The recurrent node; its outputs are `prefix` + operator name, those not wanted are "" or omitted."""
        case = self.case
        states = states or {}
        inputs = [
            x,
            parameters["W"],
            parameters["R"],
            parameters.get("B", ""),
            "sequence_lens" if case.lens is not None else "",
            states.get("initial_h", "initial_h") if case.initial_h else "",
            states.get("initial_c", "initial_c") if case.initial_c else "",
            parameters.get("P", ""),
        ]
        while inputs[-1] == "":
            inputs.pop()
        wanted = wanted or case.outputs
        outputs = [prefix + name if name in wanted else "" for name in OUTPUTS]
        while outputs[-1] == "":
            outputs.pop()
        return helper.make_node(case.op, inputs, outputs, name=prefix + NODE_NAME, **case.attributes())

    def _main(self, parameters: Mapping[str, str]) -> None:
        self.nodes.append(self._layer(parameters))

    def _if(self, parameters: Mapping[str, str]) -> None:
        branches = {}
        for key, prefix in (("then_branch", "then_"), ("else_branch", "else_")):
            used = dict(parameters)
            nodes: list[onnx.NodeProto] = []
            if key == "else_branch":
                used["R"] = self._negative(parameters["R"], nodes)
            nodes.append(self._layer(used, prefix=prefix))
            outputs = [
                helper.make_tensor_value_info(prefix + n, TensorProto.FLOAT, self._output_shape(n))
                for n in self.case.outputs
            ]
            branches[key] = helper.make_graph(nodes, key, [], outputs, self.of_bodies)
        self.nodes.append(helper.make_node("If", ["condition"], list(self.case.outputs), name="choice", **branches))

    def _negative(self, source: str, nodes: list[onnx.NodeProto]) -> str:
        nodes.append(helper.make_node("Neg", [source], ["R_negative"]))
        return "R_negative"

    def _carried(self) -> dict[str, str]:
        """Carried initial states: operator input -> operator output."""
        return {k: {"initial_h": "Y_h", "initial_c": "Y_c"}[k] for k in self.case.states}

    def _body(
        self, parameters: Mapping[str, str], x: str
    ) -> tuple[list[onnx.NodeProto], list[onnx.ValueInfoProto], list[onnx.ValueInfoProto]]:
        """Nodes, state inputs and outputs (carried states, then wanted outputs) of a Loop or Scan body."""
        carried = self._carried()
        wanted = tuple(n for n in OUTPUTS if n in self.case.outputs or n in carried.values())
        nodes = [self._layer(parameters, x, {k: f"{k}_in" for k in carried}, "body_", wanted)]
        state = self._state_shape()
        inputs = [helper.make_tensor_value_info(f"{k}_in", TensorProto.FLOAT, state) for k in carried]
        outputs = []
        for name, v in carried.items():
            nodes.append(helper.make_node("Identity", [f"body_{v}"], [f"{name}_out"]))
            outputs.append(helper.make_tensor_value_info(f"{name}_out", TensorProto.FLOAT, state))
        outputs += [
            helper.make_tensor_value_info(f"body_{name}", TensorProto.FLOAT, self._output_shape(name))
            for name in self.case.outputs
        ]
        return nodes, inputs, outputs

    def _loop(self, parameters: Mapping[str, str]) -> None:
        nodes, states, outputs = self._body(parameters, "X")
        nodes.append(helper.make_node("Identity", ["keep_going_in"], ["keep_going_out"]))
        inputs = [
            helper.make_tensor_value_info("iteration", TensorProto.INT64, []),
            helper.make_tensor_value_info("keep_going_in", TensorProto.BOOL, []),
            *states,
        ]
        outputs.insert(0, helper.make_tensor_value_info("keep_going_out", TensorProto.BOOL, []))
        body = helper.make_graph(nodes, "loop_body", inputs, outputs, self.of_bodies)
        count = self._constant("trip_count", np.array(ITERATIONS, np.int64), self.nodes)
        going = self._constant("keep_going", np.array(True), self.nodes)
        finals = [f"final_{k}" for k in self._carried()]
        self.nodes.append(
            helper.make_node(
                "Loop", [count, going, *self._carried()], [*finals, *self.case.outputs], name="the_loop", body=body
            )
        )

    def _scan(self, parameters: Mapping[str, str]) -> None:
        nodes, states, outputs = self._body(parameters, "x_piece")
        x = helper.make_tensor_value_info("x_piece", TensorProto.FLOAT, self._x_shape())
        body = helper.make_graph(nodes, "scan_body", [*states, x], outputs, self.of_bodies)
        finals = [f"final_{k}" for k in self._carried()]
        self.nodes.append(
            helper.make_node(
                "Scan",
                [*self._carried(), "X"],
                [*finals, *self.case.outputs],
                name="the_scan",
                body=body,
                num_scan_inputs=1,
            )
        )

    def _function(self, parameters: Mapping[str, str]) -> None:
        node = self._layer({k: k for k in parameters})
        arguments = [name for name in node.input if name]
        body = [node]
        if self.case.leaky is not None:
            body.insert(0, helper.make_node("LeakyRelu", ["X"], ["X_leaky"], alpha=self.case.leaky))
            node.input[0] = "X_leaky"
        outputs = [name for name in node.output if name]
        how, held = self.case.function_attributes, list(node.attribute)
        if how != "own":
            del node.attribute[:]
            node.attribute.extend(onnx.AttributeProto(name=a.name, type=a.type, ref_attr_name=a.name) for a in held)
        defaults = {"default": held, "overridden": [_other(a) for a in held]}.get(how, [])
        self.functions.append(
            helper.make_function(
                "test.functions",
                "Layer",
                arguments,
                outputs,
                body,
                opset_imports=[helper.make_opsetid("", self.case.opset)],
                attributes=[a.name for a in held] if how == "given" else [],
                attribute_protos=defaults,
            )
        )
        actual = [parameters.get(name, name) for name in arguments]
        call = helper.make_node("Layer", actual, outputs, domain="test.functions", name="the_call")
        call.attribute.extend(held if how in ("given", "overridden") else [])
        self.nodes.append(call)


def _other(attribute: onnx.AttributeProto) -> onnx.AttributeProto:
    """An attribute with another value; texts of lists stay."""
    made = onnx.AttributeProto()
    made.CopyFrom(attribute)
    if made.type == onnx.AttributeProto.INT:
        made.i += 1
    elif made.type == onnx.AttributeProto.FLOAT:
        made.f *= 2
    elif made.type == onnx.AttributeProto.FLOATS:
        made.floats[:] = [2 * v for v in made.floats]
    elif made.type == onnx.AttributeProto.STRING:
        made.s = b"forward" if made.s == b"reverse" else b"reverse"
    return made
