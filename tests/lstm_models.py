"""Models with one LSTM, GRU or RNN node (two with placement "if"), described by a frozen `RecurrentCase`.

Everything about a case, its weights, its feeds and its expected outputs included, is a function of the dataclass.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import onnx
from float_lstm import GATES, USES_ALPHA, USES_BETA, Activation, Direction, LayerOutputs, run_node
from onnx import TensorProto, helper, numpy_helper

Array = npt.NDArray[Any]
Weights = Literal["initializer", "constant", "computed"]
Op = Literal["LSTM", "GRU", "RNN"]
Placement = Literal["main", "if", "loop", "scan", "function"]
OUTPUTS = ("Y", "Y_h", "Y_c")
INPUTS = (None, "W", "R", "B", "sequence_lens", "initial_h", "initial_c", "P")
ITERATIONS = 2  # of placements "loop" and "scan"
NODE_NAME = "the_lstm"
# onnx's own node cases, of LSTM, GRU and RNN.
BACKEND_CASES = (
    "lstm_defaults", "lstm_with_initial_bias", "lstm_with_peepholes", "lstm_reverse", "lstm_bidirectional",
    "lstm_batchwise",
    "gru_defaults", "gru_with_initial_bias", "gru_seq_length", "gru_reverse", "gru_bidirectional", "gru_batchwise",
    "simple_rnn_defaults", "simple_rnn_with_initial_bias", "rnn_seq_length", "simple_rnn_reverse",
    "simple_rnn_bidirectional", "simple_rnn_batchwise",
)  # fmt: skip


@dataclass(frozen=True)
class RecurrentCase:
    """One recurrent layer and where it stands; `outputs` that the operator does not have are left out.

    Placements: "if" has the layer in the then-branch and the layer with R negated in the else-branch, input
    `condition` chooses; "loop" runs the layer over the same X, "scan" over the slices of X `[ITERATIONS, ...]`, both
    carry the states that the case has as initial ones and stack the outputs; "function" calls a model-local function
    with the layer in it.
    """

    T: int = 5
    B: int = 2
    I: int = 3  # noqa: E741 - the operator's name for it
    H: int = 4
    direction: Direction = "forward"
    bias: bool = True
    lens: tuple[int, ...] | None = None
    initial_h: bool = False
    initial_c: bool = False
    peepholes: bool = False
    clip: float | None = None
    input_forget: bool = False
    layout: int = 0
    activations: tuple[Activation, ...] | None = None
    outputs: tuple[str, ...] = OUTPUTS
    dynamic_time: bool = False
    dynamic_batch: bool = False
    opset: int = 17
    weights: Weights = "initializer"
    placement: Placement = "main"
    gain: float = 1.0
    seed: int = 0
    op: Op = "LSTM"
    linear_before_reset: bool = False

    def __post_init__(self) -> None:
        if self.op != "LSTM":
            object.__setattr__(self, "outputs", tuple(o for o in self.outputs if o != "Y_c"))
            if self.initial_c or self.peepholes or self.input_forget:
                raise ValueError(f"{self.op} has no cell state")
        if self.op != "GRU" and self.linear_before_reset:
            raise ValueError(f"{self.op} has no reset gate")
        if self.lens is not None and (len(self.lens) != self.B or not all(0 <= n <= self.T for n in self.lens)):
            raise ValueError(f"lens {self.lens} do not fit B = {self.B}, T = {self.T}")
        if self.layout == 1 and self.opset < 14:
            raise ValueError("layout exists from opset 14 on")
        if not self.outputs or [o for o in OUTPUTS if o in self.outputs] != list(self.outputs):
            raise ValueError(f"outputs {self.outputs} must be an ordered non-empty subset of {OUTPUTS}")

    @property
    def directions(self) -> int:
        """Number of directions."""
        return 2 if self.direction == "bidirectional" else 1

    @property
    def gates(self) -> int:
        """Number of gates, G."""
        return GATES[self.op]

    @property
    def states(self) -> tuple[str, ...]:
        """The initial states that the case has, as the operator names them."""
        present = {"initial_h": self.initial_h, "initial_c": self.initial_c}
        return tuple(k for k, v in present.items() if v)

    @property
    def ir_version(self) -> int:
        """An IR version of the time of the opset, 8 at least where functions need it."""
        return 8 if self.placement == "function" or self.opset >= 15 else {7: 3, 8: 3}.get(self.opset, 4)

    @property
    def dims(self) -> dict[str, int]:
        """What has to be bound to make the sequence length static."""
        return {"T": self.T} if self.dynamic_time else {}

    def parameters(self) -> dict[str, Array]:
        """Float32 W `[D,GH,I]`, R `[D,GH,H]` and, if present, B `[D,2GH]`, P `[D,3H]`, all N(0, gain^2/H)."""
        rng = np.random.default_rng([self.seed, 1])
        d, h, g = self.directions, self.H, self.gates
        shapes = {"W": (d, g * h, self.I), "R": (d, g * h, h), "B": (d, 2 * g * h), "P": (d, 3 * h)}
        values = {k: (rng.standard_normal(s) * self.gain / np.sqrt(h)).astype(np.float32) for k, s in shapes.items()}
        kept = {"W": True, "R": True, "B": self.bias, "P": self.peepholes}
        return {k: v for k, v in values.items() if kept[k]}

    def attributes(self) -> dict[str, Any]:
        """Attributes of the node; those at their defaults are left out."""
        attributes: dict[str, Any] = {"hidden_size": self.H}
        if self.direction != "forward":
            attributes["direction"] = self.direction
        if self.clip is not None:
            attributes["clip"] = self.clip
        if self.input_forget:
            attributes["input_forget"] = 1
        if self.linear_before_reset:
            attributes["linear_before_reset"] = 1
        if self.layout:
            attributes["layout"] = self.layout
        if self.activations is not None:
            attributes["activations"] = [a.name for a in self.activations]
            alphas = [a.alpha for a in self.activations if a.name in USES_ALPHA and a.alpha is not None]
            betas = [a.beta for a in self.activations if a.name in USES_BETA and a.beta is not None]
            attributes |= {"activation_alpha": alphas} if alphas else {}
            attributes |= {"activation_beta": betas} if betas else {}
        return attributes

    def feeds(self, padding: float = float("nan"), condition: bool = True) -> dict[str, Array]:
        """Seeded inputs; `padding` stands in X at and beyond each sequence's length."""
        rng = np.random.default_rng([self.seed, 2])
        pieces = (ITERATIONS,) if self.placement == "scan" else ()
        x = rng.standard_normal((*pieces, self.T, self.B, self.I)).astype(np.float32)
        feeds: dict[str, Array] = {"X": x}
        if self.lens is not None:
            feeds["sequence_lens"] = np.array(self.lens, np.int32)
            for row, length in enumerate(self.lens):
                x[..., length:, row, :] = padding
        states = rng.standard_normal((2, self.directions, self.B, self.H)).astype(np.float32)
        if self.initial_h:
            feeds["initial_h"] = np.tanh(states[0])
        if self.initial_c:
            feeds["initial_c"] = states[1]
        if self.layout == 1:
            feeds["X"] = np.ascontiguousarray(np.swapaxes(x, -3, -2))
            for name in feeds.keys() & {"initial_h", "initial_c"}:
                feeds[name] = np.ascontiguousarray(np.swapaxes(feeds[name], 0, 1))
        if self.placement == "if":
            feeds["condition"] = np.array(condition)
        return feeds

    def expected(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        """Float64 outputs of the model for the feeds, by the numpy reference."""
        parameters = self.parameters()
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
        values = [x if n is None else parameters.get(n, state.get(n)) for n in INPUTS]
        return run_node(helper.make_node(self.op, [], [], **self.attributes()), values)

    def model(self) -> onnx.ModelProto:
        """The model; graph inputs are named as the operator's, outputs as in `outputs`."""
        return _Builder(self).model()

    def replace(self, **changes: Any) -> RecurrentCase:
        """A copy with the changes."""
        return replace(self, **changes)


LstmCase = RecurrentCase


def _pick(result: LayerOutputs, names: tuple[str, ...]) -> dict[str, Array]:
    return {name: getattr(result, name) for name in names}


# Of each operator: the ONNX gates in torch's order, and the ranges of torch's gates that make ONNX's order again.
_FROM_TORCH = {
    "LSTM": ((0, 2, 3, 1), ((0, 1), (3, 4), (1, 3))),
    "GRU": ((1, 0, 2), ((1, 2), (0, 1), (2, 3))),
    "RNN": ((0,), ((0, 1),)),
}


class _Builder:
    """Builds the ModelProto of one case."""

    def __init__(self, case: RecurrentCase) -> None:
        self.case = case
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: list[onnx.TensorProto] = []
        self.functions: list[onnx.FunctionProto] = []

    def model(self) -> onnx.ModelProto:
        case = self.case
        parameters = self._parameters()
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
            if present:
                inputs.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, self._state_shape()))
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

    def _parameters(self) -> dict[str, str]:
        """Value names of W, R, B, P in the main graph."""
        parameters = self.case.parameters()
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
            branches[key] = helper.make_graph(nodes, key, [], outputs)
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
        body = helper.make_graph(nodes, "loop_body", inputs, outputs)
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
        body = helper.make_graph(nodes, "scan_body", [*states, x], outputs)
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
        outputs = [name for name in node.output if name]
        self.functions.append(
            helper.make_function(
                "test.functions",
                "Layer",
                arguments,
                outputs,
                [node],
                opset_imports=[helper.make_opsetid("", self.case.opset)],
            )
        )
        actual = [parameters.get(name, name) for name in arguments]
        self.nodes.append(helper.make_node("Layer", actual, outputs, domain="test.functions", name="the_call"))


def stacked_model(layers: Sequence[RecurrentCase], shared_weights: bool = False) -> onnx.ModelProto:
    """A chain of layers as torch exports it: Squeeze between one-direction layers, Transpose and Reshape after others.

    The first layer gives T, B, I and opset (13 or later); each next one has to have I equal to directions * H of the
    one before. The output `Y` is `[T,B,directions*H]` of the last layer, `Y_h` and (LSTM) `Y_c` are its final states.
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
            initializers += [numpy_helper.from_array(v, f"{n}{k}") for n, v in layer.parameters().items()]
        names = [f"{n}{owner}" if n in layer.parameters() else "" for n in ("W", "R", "B")]
        nodes.append(
            helper.make_node(
                layer.op, [x, *names], [f"{o}{k}" for o in layer.outputs], f"layer{k}", **layer.attributes()
            )
        )
        x = f"X{k + 1}"
        if layer.directions == 1:
            nodes.append(helper.make_node("Squeeze", [f"Y{k}", "axis_1"], [x]))
        else:
            nodes.append(helper.make_node("Transpose", [f"Y{k}"], [f"Y{k}_t"], perm=[0, 2, 1, 3]))
            nodes.append(helper.make_node("Reshape", [f"Y{k}_t", "merged"], [x]))
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
