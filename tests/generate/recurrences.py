"""Recurrent layers that are written in other ways than as LSTM, GRU and RNN nodes: loops and rows of steps.

`RecurrenceCase` says how; `model` builds it from standard operators: gates in any order, products fused or apart, and
around it a loop as torch.jit.script or Keras (tf2onnx) make it, a Scan, or none (a copy for each element).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import onnx
from onnx.helper import make_graph, make_node, make_operatorsetid, make_tensor_value_info
from onnx.numpy_helper import from_array

from rnnqc.proto.graph_walks import reads
from tests.generate.equations import GATES as RANDOM_GATES
from tests.generate.equations import random_step

T = TypeVar("T")
FLOAT, INT64, BOOL = onnx.TensorProto.FLOAT, onnx.TensorProto.INT64, onnx.TensorProto.BOOL
GATES = {"LSTM": "ifgo", "GRU": "zrn", "RNN": "n"}
FORMS = ("unrolled", "scan", "loop", "script", "keras")
COUNTERS = ("int32", "to_float", "to_double", "to_int16", "float", "double", "trips")
"""As they are; after a Cast; counters of floats; the number of the iteration after a Cast, beside a trip count."""
INITIAL = ("zeros", "shared", "constant", "learned", "input", "computed", "dynamic")
"""Initial states of a loop: zeros, zeros of all states in one constant, constants of every row, a row for all rows,
inputs, matmuls of the input "features", zeros computed from the shape of x."""
BETWEEN = ("", "residual", "input", "normalized")
"""Changes of the hidden state between two steps: none, the sum with the previous state, the sum with the step's input,
or LayerNormalization."""
FEATURES = 4


@dataclass(frozen=True)
class RecurrenceCase:
    """A layer.

    Attributes:
        op: What it computes: "LSTM", "GRU" or "RNN"; also "highway", "projection" and "random" (other equations for
            every seed), which no node computes.
        form: One of FORMS.
        order: Order of the gates in the weights.
        products: "fused" (one for x, one for h), "separate" (for each gate), "joined" (`[x, h] W`) or "added" (Gemm of
            x and W that adds the product of h and R).
        gemm: Gemm with transposed weights rather than MatMul and Add.
        scales: `alpha` and `beta` of every Gemm.
        squeeze: Products "separate" and "added", one row: the product of h and R goes through Squeeze without axes.
        state_first: The state is the first operand of sums, of `[h, x] W`, and what products "added" add to.
        tied: W and R are one initializer; I has to be the width of h.
        bias: "none", "x", "h" or "both".
        cut: How gates are cut out: "split", "slice", or "slices" (over both axes).
        reset_after: Of a GRU: linear_before_reset.
        update: Of a GRU: "torch" `n + z * (h - n)`, "keras" `z * h + (1 - z) * n`, or "paper" `(1 - z) * h + z * n`.
        activations: Of the gates and of the rest: operators, "linear" (none), or a hard sigmoid as Keras writes it:
            "clipped" `Clip(0.2 v + 0.5, 0, 1)`, "limited" `Max(Min(0.2 v + 0.5, 1), 0)`, "relu6"
            `Clip(v + 3, 0, 6) / 6`.
        dropout: The step multiplies its input by ones of its shape, as a dropout that drops nothing.
        initial: One of INITIAL.
        magnitude: Of initial states that are no zeros.
        between: One of BETWEEN.
        twice: The layer runs over its own outputs again, with the same weights; I has to be the width of h.
        backwards: Whether it goes through the sequence from its end.
        batch_first: Whether the sequence is [B, T, I].
        outputs: What is used of "y" and "final".
        counter: Form "keras": how the condition compares the counters: one of COUNTERS.
        local: The body holds the constants that it uses, with one that scales its input and one its output.
        spare: The loop carries more than it needs: a matrix that stays, a constant, a sum; nothing reads them.
        lengths: Form "loop": lengths of the rows are an input; "zeros" or "held": what comes out behind their ends.
        time: T.
        dynamic_time: Whether the model leaves T open; not of form "unrolled".
        batch: B, or a name.
        I: Input size.
        H: Hidden size.
        P: Width of h of a projection layer; 0 for H - 2.
        seed: Of the weights.
    """

    op: str = "LSTM"
    form: str = "scan"
    order: str = ""
    products: str = "fused"
    gemm: bool = False
    scales: tuple[float, float] = (1.0, 1.0)
    squeeze: bool = False
    bias: str = "both"
    cut: str = "split"
    reset_after: bool = True
    update: str = "torch"
    activations: tuple[str, str] = ("Sigmoid", "Tanh")
    dropout: bool = False
    initial: str = "input"
    backwards: bool = False
    batch_first: bool = False
    outputs: tuple[str, ...] = ("y", "final")
    counter: str = "int32"
    local: bool = False
    spare: bool = False
    lengths: str = ""
    time: int = 4
    dynamic_time: bool = False
    batch: int | str = 3
    I: int = 5  # noqa: E741 - as ONNX calls it
    H: int = 6
    P: int = 0
    seed: int = 0
    state_first: bool = False
    tied: bool = False
    magnitude: float = 1.0
    between: str = ""
    twice: bool = False

    def __post_init__(self) -> None:
        if self.dynamic_time and self.form == "unrolled":
            raise ValueError("unrolled steps have a number")
        if (self.tied or self.twice or self.between == "input") and self.width != self.I:
            raise ValueError(f"I = {self.I} is not the width of h, {self.width}")
        if self.twice and (self.lengths or self.local):
            raise ValueError("a layer with lengths, or with constants of its body, runs once")
        if self.squeeze and (self.batch != 1 or self.H == 1):
            raise ValueError("Squeeze without axes takes away the axis of one row alone")
        if self.counter == "to_int16" and self.dynamic_time:
            raise ValueError("int16 does not hold every length")

    @property
    def width(self) -> int:
        """The width of h."""
        return self.states[0][1]

    @property
    def gates(self) -> str:
        """The gates in the order of the weights."""
        own = {"highway": "ifgor", "projection": "ifgo", "random": RANDOM_GATES}.get(self.op) or GATES[self.op]
        return self.order or own

    @property
    def states(self) -> tuple[tuple[str, int], ...]:
        """Names and widths of what is carried."""
        if self.op == "projection":
            return (("h", self.P or self.H - 2), ("c", self.H))
        return (("h", self.H), ("c", self.H)) if self.op in ("LSTM", "highway", "random") else (("h", self.H),)

    def feeds(self, seed: int = 5) -> dict[str, np.ndarray]:
        """Seeded inputs; a length may be beyond the sequence, as the loop allows."""
        rng = np.random.default_rng(seed)
        shape = (self.rows, self.time, self.I) if self.batch_first else (self.time, self.rows, self.I)
        made = {"x": rng.uniform(-1, 1, shape).astype(np.float32)}
        if self.lengths:
            made["lengths"] = np.array([self.time, 1, self.time + 2][: self.rows])
        if self.initial == "input":
            for name, width in self.states:
                made[f"{name}0"] = (self.magnitude * rng.uniform(-1, 1, (self.rows, width))).astype(np.float32)
        if self.initial == "computed":
            made["features"] = rng.uniform(-1, 1, (self.rows, FEATURES)).astype(np.float32)
        return made

    def model(self) -> onnx.ModelProto:
        """The model: inputs x and the initial states, if they are inputs; outputs y and h, c."""
        return _Layer(self).model()

    @property
    def rows(self) -> int:
        """A batch size to run with."""
        return self.batch if isinstance(self.batch, int) else 3


class Nodes:
    """A list of nodes under construction, with the initializers they use.

    Args:
        initializers: By name; constants are added.
        prefix: Of the names of nodes and their outputs.
    """

    def __init__(self, initializers: dict[str, np.ndarray], prefix: str = "") -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.initializers = initializers
        self.prefix = prefix

    def part(self, prefix: str) -> Nodes:
        """An empty list of nodes beside this one, with the same initializers."""
        return Nodes(self.initializers, prefix)

    def op(self, op: str, inputs: list[str], name: str, **attrs: Any) -> str:
        """Adds a node with one output and returns the output."""
        return self.ops(op, inputs, [name], **attrs)[0]

    def ops(self, op: str, inputs: list[str], names: list[str], **attrs: Any) -> list[str]:
        """Adds a node and returns its outputs."""
        outputs = [self.prefix + n for n in names]
        self.nodes.append(make_node(op, inputs, outputs, name=f"{self.prefix}{names[0]}:{op}", **attrs))
        return outputs

    def constant(self, name: str, array: Any, dtype: Any = np.int64) -> str:
        """An initializer."""
        self.initializers[name] = np.asarray(array, dtype)
        return name


class _Layer:
    def __init__(self, case: RecurrenceCase) -> None:
        self.case = case
        self.initializers: dict[str, np.ndarray] = {}
        rng = np.random.default_rng(case.seed)
        g, h = len(case.gates), case.states[0][1]

        def draw(*shape: int) -> np.ndarray:
            return rng.normal(0, 0.5, shape).astype(np.float32)

        self.W, self.R = draw(case.I, g * case.H), draw(h, g * case.H)
        self.b, self.rb = draw(g * case.H), draw(g * case.H)
        self.extra, self.project = draw(case.I, case.H), draw(case.H, h)
        self.square = self.project  # of op random
        self.start = {name: draw(case.rows, width) * np.float32(case.magnitude) for name, width in case.states}
        self.from_features = {name: draw(FEATURES, width) * np.float32(case.magnitude) for name, width in case.states}
        self.gain, self.shift = 1 + np.abs(draw(h)), draw(h)
        if case.tied:
            self.R = self.W

    def model(self) -> onnx.ModelProto:
        case = self.case
        outer = Nodes(self.initializers)
        time = "T" if case.dynamic_time else case.time
        shape = [case.batch, time, case.I] if case.batch_first else [time, case.batch, case.I]
        inputs = [make_tensor_value_info("x", FLOAT, shape)]
        x = outer.op("Transpose", ["x"], "x_first", perm=[1, 0, 2]) if case.batch_first else "x"
        if case.lengths:
            inputs.append(make_tensor_value_info("lengths", INT64, [case.batch]))
        if case.initial == "input":
            inputs += [make_tensor_value_info(f"{name}0", FLOAT, [case.batch, width]) for name, width in case.states]
        if case.initial == "computed":
            inputs.append(make_tensor_value_info("features", FLOAT, [case.batch, FEATURES]))
        start = [self._initial(outer, x, name, width) for name, width in case.states]
        run = getattr(self, f"_{case.form}")
        y, finals = run(outer, x, start)
        if case.twice:
            again = outer.part("again_")
            y, finals = run(again, y, start)
            outer.nodes += again.nodes
        outputs = []
        if "y" in case.outputs:
            axis = [time, case.batch, case.states[0][1]]
            if case.batch_first:
                y = outer.op("Transpose", [y], "y_first", perm=[1, 0, 2])
                axis = [case.batch, time, case.states[0][1]]
            outer.nodes.append(make_node("Identity", [y], ["y"]))
            outputs.append(make_tensor_value_info("y", FLOAT, axis))
        if "final" in case.outputs:
            for value, (name, width) in zip(finals, case.states, strict=True):
                outer.nodes.append(make_node("Identity", [value], [f"{name}_final"]))
                outputs.append(make_tensor_value_info(f"{name}_final", FLOAT, [case.batch, width]))
        if case.local and case.form != "unrolled":
            (loop,) = (n for n in outer.nodes if n.op_type in ("Loop", "Scan"))
            (body,) = (a.g for a in loop.attribute if a.name == "body")
            inside = _used(body.node) - {n for node in outer.nodes for n in node.input}
            held = {n: self.initializers.pop(n) for n in sorted(inside & set(self.initializers))}
            body.initializer.extend(from_array(a, n) for n, a in held.items())
        used = _used(outer.nodes)
        stored = [from_array(a, n) for n, a in self.initializers.items() if n in used]
        graph = make_graph(outer.nodes, "layer", inputs, outputs, stored)
        return onnx.helper.make_model(graph, opset_imports=[make_operatorsetid("", 17)], ir_version=10)

    def _initial(self, outer: Nodes, x: str, name: str, width: int) -> str:
        """The initial state."""
        kind = self.case.initial
        if kind == "input":
            return f"{name}0"
        if kind == "computed":
            weights = outer.constant(f"{name}_from_features", self.from_features[name], np.float32)
            made = outer.op("MatMul", ["features", weights], f"{name}_product")
            bias = outer.constant(f"{name}_bias", self.start[name][0], np.float32)
            return outer.op("Add", [made, bias], f"{name}_start")
        if kind in ("dynamic", "learned"):
            shape = outer.op("Shape", [x], f"{name}_x_shape")
            rows = outer.op("Gather", [shape, outer.constant("axis_1", [1])], f"{name}_rows")
            size = outer.op("Concat", [rows, outer.constant(f"{name}_width", [width])], f"{name}_shape", axis=0)
            if kind == "dynamic":
                return outer.op("ConstantOfShape", [size], f"{name}_start")
            row = outer.constant(f"{name}_row", self.start[name][:1], np.float32)
            return outer.op("Expand", [row, size], f"{name}_start")
        value = self.start[name] if kind == "constant" else np.zeros((self.case.rows, width), np.float32)
        key = f"zeros_{width}" if kind == "shared" else f"{name}_start"
        return outer.constant(key, value, np.float32)

    # ---- the loops ----------------------------------------------------------------------------------------------

    def _unrolled(self, outer: Nodes, x: str, states: list[str]) -> tuple[str, list[str]]:
        made: dict[int, str] = {}
        order = range(self.case.time)
        for t in reversed(order) if self.case.backwards else order:
            element = outer.op("Gather", [x, outer.constant(f"t_{t}", t)], f"x_{t}", axis=0)
            states = self.step(outer.part(f"{outer.prefix}s{t}_"), outer, element, states)
            made[t] = outer.op("Unsqueeze", [states[0], outer.constant("axis_0", [0])], f"y_{t}")
        return outer.op("Concat", [made[t] for t in order], "y_all", axis=0), states

    def _scan(self, outer: Nodes, x: str, states: list[str]) -> tuple[str, list[str]]:
        body = Nodes(self.initializers)
        names = [f"{n}_in" for n, _ in self.case.states]
        after = self.step(body.part("b_"), body, self._element(body, "x_t"), names)
        self._result(body, after[0])
        spare = self._spare(body)
        graph = make_graph(
            body.nodes,
            "body",
            [make_tensor_value_info(n, FLOAT, self._declared(n)) for n in (*names, *spare, "x_t")],
            [make_tensor_value_info(n, FLOAT, None) for n in (*after, *(a for _, a in spare.values()), "y_t")],
        )
        direction = [int(self.case.backwards)]
        results = outer.ops(
            "Scan",
            [*states, *(start for start, _ in spare.values()), x],
            [*(f"{n}_out" for n, _ in self.case.states), *(f"{n}_end" for n in spare), "y_all"],
            body=graph,
            num_scan_inputs=1,
            scan_input_directions=direction,
            scan_output_directions=direction,
        )
        return results[-1], results[: len(states)]

    def _declared(self, name: str) -> list[int] | None:
        """The shape that a body declares for a state: Squeeze without axes needs it."""
        widths = {f"{n}_in": width for n, width in self.case.states}
        return [1, widths[name]] if self.case.squeeze and name in widths else None

    def _element(self, body: Nodes, value: str) -> str:
        """The input of the step for the element `value`."""
        if not self.case.local:
            return value
        return body.op(
            "Mul", [value, body.constant("x_scale", np.linspace(0.5, 2, self.case.I), np.float32)], "x_scaled"
        )

    def _result(self, body: Nodes, value: str) -> str:
        """The output of each iteration."""
        if not self.case.local:
            return body.op("Identity", [value], "y_t")
        width = self.case.states[0][1]
        return body.op("Mul", [value, body.constant("y_scale", np.linspace(0.5, 2, width), np.float32)], "y_t")

    def _spare(self, body: Nodes) -> dict[str, tuple[str, str]]:
        """Start and new value of each state that nothing reads, by its name in the body."""
        if not self.case.spare:
            return {}
        matrix = body.constant("spare_matrix", self.W, np.float32)
        row = body.constant("spare_row", np.arange(4.0), np.float32)
        return {
            "spare_same": (matrix, body.op("Identity", ["spare_same"], "spare_same_next")),
            "spare_constant": (row, body.op("Identity", [row], "spare_constant_next")),
            "spare_sum": (row, body.op("Add", ["spare_sum", row], "spare_sum_next")),
        }

    def _loop(self, outer: Nodes, x: str, states: list[str]) -> tuple[str, list[str]]:
        """A trip count, Gather by the number of the iteration, outputs of each iteration."""
        size = outer.op("Gather", [outer.op("Shape", [x], "x_shape"), outer.constant("zero", 0)], "length")
        body = Nodes(self.initializers)
        index = "i"
        if self.case.backwards:
            last = body.op("Sub", [size, body.constant("one", 1)], "last")
            index = body.op("Sub", [last, "i"], "from_end")
        element = self._element(body, body.op("Gather", [x, index], "x_t", axis=0))
        names = [f"{n}_in" for n, _ in self.case.states]
        after = self.step(body.part("b_"), body, element, names)
        result = after[0]
        if self.case.lengths:
            active = body.op(
                "Unsqueeze", [body.op("Less", ["i", "lengths"], "less"), body.constant("axis_1", [1])], "active"
            )
            after = [body.op("Where", [active, n, o], f"{o}_kept") for n, o in zip(after, names, strict=True)]
            nothing = body.constant("nothing", 0, np.float32)
            result = after[0] if self.case.lengths == "held" else body.op("Where", [active, result, nothing], "masked")
        keep = body.op("Identity", ["keep_in"], "keep")
        y = self._result(body, result)
        spare = self._spare(body)
        graph = self._loop_body(body, [*names, *spare], [keep, *after, *(a for _, a in spare.values()), y])
        outer.constant("true", True, np.bool_)
        results = outer.ops(
            "Loop",
            [size, "true", *states, *(start for start, _ in spare.values())],
            [*(f"{n}_out" for n in names), *(f"{n}_end" for n in spare), "y_all"],
            body=graph,
        )
        return self._in_order(outer, results[-1]), results[: len(states)]

    def _script(self, outer: Nodes, x: str, states: list[str]) -> tuple[str, list[str]]:
        """As torch.jit.script: x taken apart into a sequence, another one filled."""
        outer.constant("one", 1)
        sequence = outer.op("SplitToSequence", [x, "one"], "x_parts", axis=0, keepdims=0)
        count = outer.op("SequenceLength", [sequence], "count")
        outer.constant("true", True, np.bool_)
        empty = outer.op("SequenceEmpty", [], "empty", dtype=FLOAT)
        body = Nodes(self.initializers)
        index = "i"
        if self.case.backwards:
            last = body.op("Sub", [count, "one"], "last")
            index = body.op("Sub", [last, "i"], "from_end")
        element = self._element(body, body.op("SequenceAt", [sequence, index], "x_t"))
        names = [f"{n}_in" for n, _ in self.case.states]
        after = self.step(body.part("b_"), body, element, names)
        filled = body.op("SequenceInsert", ["filled_in", after[0]], "filled")
        keep = body.op("Identity", ["true"], "keep")
        graph = self._loop_body(body, names, [keep, *after])
        sequence_type = onnx.helper.make_sequence_type_proto(onnx.helper.make_tensor_type_proto(FLOAT, None))
        graph.input.append(onnx.helper.make_value_info("filled_in", sequence_type))
        graph.output.append(onnx.helper.make_value_info(filled, sequence_type))
        results = outer.ops("Loop", [count, "true", *states, empty], [*(f"{n}_out" for n in names), "all"], body=graph)
        y = outer.op("ConcatFromSequence", [results[-1]], "y_all", axis=0, new_axis=1)
        return self._in_order(outer, y), results[:-1]

    def _keras(self, outer: Nodes, x: str, states: list[str]) -> tuple[str, list[str]]:
        """As tf2onnx writes a while loop of Keras: counters, weights and length are carried, a condition ends it."""
        size = outer.op("Gather", [outer.op("Shape", [x], "x_shape"), outer.constant("zero", 0)], "length64")
        length = outer.op("Cast", [size], "length", to=onnx.TensorProto.INT32)
        sequence = self._in_order(outer, x)
        kind = {"float": np.float32, "double": np.float64}.get(self.case.counter, np.int32)
        outer.constant("zero_counter", 0, kind)
        outer.constant("most", 2**31 - 1)
        counters = ["loop_counter", "time"]
        fixed = [n for n in self._step_weights() if n in self.initializers]
        body = Nodes(self.initializers)
        body.constant("one_counter", 1, kind)
        at = "time_in" if kind == np.int32 else body.op("Cast", ["time_in"], "time_index", to=INT64)
        element = self._element(body, body.op("Gather", [sequence, at], "x_t", axis=0))
        names = [f"{n}_in" for n, _ in self.case.states]
        after = self.step(body.part("b_"), body, element, names, "_in")
        next_ = [body.op("Add", [f"{n}_in", "one_counter"], f"{n}_next") for n in counters]
        keep, before = self._keras_conditions(outer, body, next_, length, size)
        y = self._result(body, after[0])
        same = [body.op("Identity", [f"{n}_in"], f"{n}_same") for n in fixed]
        spare = self._spare(body)
        number = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(kind))
        graph = make_graph(
            body.nodes,
            "body",
            [
                make_tensor_value_info("i", INT64, []),
                make_tensor_value_info("keep_in", BOOL, []),
                *(make_tensor_value_info(f"{n}_in", number, []) for n in counters),
                *(make_tensor_value_info(n, FLOAT, self._declared(n)) for n in names),
                *(make_tensor_value_info(f"{n}_in", FLOAT, self.initializers[n].shape) for n in fixed),
                *(make_tensor_value_info(n, FLOAT, None) for n in spare),
            ],
            [
                make_tensor_value_info(keep, BOOL, []),
                *(make_tensor_value_info(n, number, []) for n in next_),
                *(make_tensor_value_info(n, FLOAT, None) for n in (*after, *same, *(a for _, a in spare.values()), y)),
            ],
        )
        most = size if self.case.counter == "trips" else "most"
        results = outer.ops(
            "Loop",
            [most, before, "zero_counter", "zero_counter", *states, *fixed, *(start for start, _ in spare.values())],
            [
                *(f"{n}_end" for n in counters),
                *(f"{n}_out" for n in names),
                *(f"{n}_end" for n in (*fixed, *spare)),
                "y_all",
            ],
            body=graph,
        )
        return self._in_order(outer, results[-1]), results[2 : 2 + len(states)]

    def _keras_conditions(self, outer: Nodes, body: Nodes, after: list[str], length: str, size: str) -> tuple[str, str]:
        """The condition after an iteration, and the one before the first."""
        counter = self.case.counter
        kind = {
            "to_double": onnx.TensorProto.DOUBLE,
            "double": onnx.TensorProto.DOUBLE,
            "to_int16": onnx.TensorProto.INT16,
        }.get(counter, FLOAT)
        start, limit, compared = "zero_counter", length, after
        if counter != "int32":
            static = None if self.case.dynamic_time else self.case.time
            types = {FLOAT: np.float32, onnx.TensorProto.DOUBLE: np.float64, onnx.TensorProto.INT16: np.int16}
            if static is None:
                limit = outer.op("Cast", [length], "limit", to=kind)
            else:  # as tf2onnx folds it
                limit = outer.constant("limit", static, types[kind])
            start = outer.constant("zero_compared", 0, types[kind])
            given = ["i", after[1]] if counter == "trips" else after
            compared = (
                given
                if counter in ("float", "double")
                else [body.op("Cast", [n], f"compared_{k}", to=kind) for k, n in enumerate(given)]
            )
        less = [body.op("Less", [n, limit], f"less_{k}") for k, n in enumerate(compared)]
        keep = body.op("And", less, "keep")
        return keep, outer.op("And", [outer.op("Less", [start, limit], f"first_{k}") for k in range(2)], "first")

    def _in_order(self, outer: Nodes, value: str) -> str:
        """A sequence of results in the order of time; of elements in the order of the iterations."""
        if not self.case.backwards:
            return value
        minus, zero = outer.constant("minus_1", [-1]), outer.constant("axis_0", [0])
        end = outer.constant("begin", [-(2**63) + 1])
        return outer.op("Slice", [value, minus, end, zero, minus], f"{value}_reversed")

    def _loop_body(self, body: Nodes, names: list[str], outputs: list[str]) -> onnx.GraphProto:
        return make_graph(
            body.nodes,
            "body",
            [
                make_tensor_value_info("i", INT64, []),
                make_tensor_value_info("keep_in", BOOL, []),
                *(make_tensor_value_info(n, FLOAT, self._declared(n)) for n in names),
            ],
            [
                make_tensor_value_info(outputs[0], BOOL, []),
                *(make_tensor_value_info(n, FLOAT, None) for n in outputs[1:]),
            ],
        )

    # ---- the step -----------------------------------------------------------------------------------------------

    def _step_weights(self) -> list[str]:
        """Names of the weights, stored."""
        self.step(Nodes(self.initializers), Nodes(self.initializers), "x", [n for n, _ in self.case.states])
        return [n for n in self.initializers if n.startswith("weight_")]

    def step(self, b: Nodes, into: Nodes, x: str, states: list[str], suffix: str = "") -> list[str]:
        """Adds one step to `into`; the new states. Weights are called by their names and `suffix`."""
        case = self.case
        if case.dropout:
            one = b.constant("one_f", 1, np.float32)
            x = b.op("Mul", [x, b.op("Expand", [one, b.op("Shape", [x], "x_shape")], "x_ones")], "x_dropped")
        gate = self._gates(b, x, states[0], suffix)
        squash, rest = case.activations
        new: list[str]
        if case.op == "RNN":
            new = [self._activated(b, rest, b.op("Add", self._ordered(*gate("n")), "pre"), "h")]
        elif case.op == "GRU":
            new = [self._gru(b, gate, states[0], suffix)]
        elif case.op == "random":

            def product(value: str) -> str:
                return b.op("MatMul", [value, self._weight(b, "square", self.square, suffix)], f"{value}_product")

            new = random_step(b, gate, states, product, case.seed)
        else:
            i, f, o = (self._activated(b, squash, self._sum(b, gate, k), f"gate_{k}") for k in "ifo")
            g = self._activated(b, rest, self._sum(b, gate, "g"), "gate_g")
            c = b.op("Add", [b.op("Mul", [f, states[1]], "kept"), b.op("Mul", [i, g], "added")], "c")
            h = b.op("Mul", [o, self._activated(b, rest, c, "squashed")], "h" if case.op == "LSTM" else "inner")
            if case.op == "highway":
                r = self._activated(b, squash, self._sum(b, gate, "r"), "gate_r")
                through = b.op("MatMul", [x, self._weight(b, "extra", self.extra, suffix)], "through")
                left = b.op("Sub", [b.constant("one_f", 1, np.float32), r], "left")
                h = b.op("Add", [b.op("Mul", [r, h], "changed"), b.op("Mul", [left, through], "carried")], "h")
            if case.op == "projection":
                h = b.op("MatMul", [h, self._weight(b, "project", self.project, suffix)], "h")
            new = [h, c]
        new[0] = self._between(b, x, states[0], new[0], suffix)
        into.nodes += b.nodes
        return new

    def _between(self, b: Nodes, x: str, before: str, h: str, suffix: str) -> str:
        """The hidden state that the next step gets."""
        kind = self.case.between
        if kind == "normalized":
            given = [self._weight(b, key, a, suffix) for key, a in (("gain", self.gain), ("shift", self.shift))]
            return b.op("LayerNormalization", [h, *given], "h_normalized")
        if not kind:
            return h
        return b.op("Add", self._ordered(x if kind == "input" else before, h), "h_sum")

    def _ordered(self, x: T, state: T) -> list[T]:
        """Two operands, in their order."""
        return [state, x] if self.case.state_first else [x, state]

    def _gru(self, b: Nodes, gate: Any, h: str, suffix: str) -> str:
        case = self.case
        squash, rest = case.activations
        z, r = (self._activated(b, squash, self._sum(b, gate, k), f"gate_{k}") for k in "zr")
        x_part, h_part = gate("n")
        if case.reset_after:
            h_part = b.op("Mul", [r, h_part], "reset")
        else:
            k = case.gates.index("n")
            weights = self._weight(b, "reset_R", self.R[:, k * case.H : (k + 1) * case.H], suffix)
            h_part = b.op("MatMul", [b.op("Mul", [r, h], "reset"), weights], "reset_product")
            if case.bias in ("h", "both"):
                row = self._weight(b, "reset_b", self.rb[k * case.H : (k + 1) * case.H], suffix)
                h_part = b.op("Add", [h_part, row], "reset_sum")
        n = self._activated(b, rest, b.op("Add", self._ordered(x_part, h_part), "pre_n"), "gate_n")
        if case.update == "torch":
            return b.op("Add", [b.op("Mul", [z, b.op("Sub", [h, n], "gap")], "step"), n], "h")
        one = b.constant("one_f", 1, np.float32)
        left = b.op("Sub", [one, z], "left")
        first, second = (h, n) if case.update == "keras" else (n, h)
        return b.op("Add", [b.op("Mul", [z, first], "one_part"), b.op("Mul", [left, second], "other_part")], "h")

    def _activated(self, b: Nodes, activation: str, value: str, name: str) -> str:
        """An activation of `value`."""
        if activation == "linear":
            return b.op("Identity", [value], name)
        if activation == "relu6":
            zero, three, six = (b.constant(f"{n}_f", n, np.float32) for n in (0, 3, 6))
            limited = b.op("Clip", [b.op("Add", [value, three], f"{name}_line"), zero, six], f"{name}_limited")
            return b.op("Div", [limited, six], name)
        if activation not in ("clipped", "limited"):
            return b.op(activation, [value], name)
        slope, offset, zero, one = (
            b.constant(f"{key}_f", number, np.float32)
            for key, number in (("slope", 0.2), ("offset", 0.5), ("zero", 0), ("one", 1))
        )
        line = b.op("Add", [b.op("Mul", [value, slope], f"{name}_slope"), offset], f"{name}_line")
        if activation == "clipped":
            return b.op("Clip", [line, zero, one], name)
        return b.op("Max", [b.op("Min", [line, one], f"{name}_limited"), zero], name)

    def _sum(self, b: Nodes, gate: Any, key: str) -> str:
        """The pre-activation of a gate."""
        return b.op("Add", self._ordered(*gate(key)), f"pre_{key}")

    def _gates(self, b: Nodes, x: str, h: str, suffix: str) -> Any:
        """A function from a gate to the two parts of its pre-activation."""
        case = self.case
        width = case.H
        count = len(case.gates)
        alpha, beta = case.scales

        def key_of(name: str) -> str:
            """The weights of h are those of x if they are tied."""
            return name.replace("h_", "x_").replace("from_h", "from_x") if case.tied else name

        def product(value: str, weights: np.ndarray, bias: np.ndarray | None, key: str) -> str:
            if case.gemm:
                operands = [value, self._weight(b, f"{key_of(key)}_T", np.ascontiguousarray(weights.T) / alpha, suffix)]
                if bias is not None:
                    operands.append(self._weight(b, f"{key}_b", bias / beta, suffix))
                return b.op("Gemm", operands, key, transB=1, alpha=alpha, beta=beta)
            made = b.op("MatMul", [value, self._weight(b, key_of(key), weights, suffix)], key)
            return (
                made if bias is None else b.op("Add", [made, self._weight(b, f"{key}_b", bias, suffix)], f"{key}_sum")
            )

        bx = self.b if case.bias in ("x", "both") else None
        bh = self.rb if case.bias in ("h", "both") else None

        def separate(gate: str) -> tuple[str, str]:
            k = case.gates.index(gate)
            columns = slice(k * width, (k + 1) * width)
            from_x = product(x, self.W[:, columns], None if bx is None else bx[columns], f"x_{gate}")
            from_h = product(h, self.R[:, columns], None if bh is None else bh[columns], f"h_{gate}")
            return from_x, b.op("Squeeze", [from_h], f"h_{gate}_row") if case.squeeze else from_h

        if case.products == "separate":
            return separate
        if case.products == "added":

            def added(gate: str, columns: slice) -> str:
                """The sum: of x and W with the product of h and R as C, or the other way round."""
                parts = [(x, self.W, bx, f"x_{gate}"), (h, self.R, bh, f"h_{gate}")]
                (value, array, row, name), (other, other_array, other_row, other_name) = self._ordered(*parts)
                rest = None if other_row is None else other_row[columns] / beta
                first = product(other, other_array[:, columns] / beta, rest, other_name)
                if case.squeeze:
                    first = b.op("Squeeze", [first], f"{other_name}_row")
                weights = (array[:, columns].T if case.gemm else array[:, columns]) / alpha
                operands = [value, self._weight(b, f"{name}_sum", np.ascontiguousarray(weights), suffix), first]
                made = b.op("Gemm", operands, name, transB=int(case.gemm), alpha=alpha, beta=beta)
                if row is None:
                    return made
                return b.op("Add", [made, self._weight(b, f"{name}_b", row[columns], suffix)], f"{name}_biased")

            zero = b.constant("zero_f", 0, np.float32)
            if case.op != "GRU":
                cut = self._cut(b, added("all", slice(None)), "all", count)
                return lambda gate: (cut[case.gates.index(gate)], zero)

            def of_gru(gate: str) -> tuple[str, str]:
                k = case.gates.index(gate)
                columns = slice(k * width, (k + 1) * width)
                return separate(gate) if gate == "n" else (added(gate, columns), zero)

            return of_gru
        if case.products == "joined":
            both = b.op("Concat", self._ordered(x, h), "x_and_h", axis=1)
            given = [part for part in (bx, bh) if part is not None]
            bias = np.add.reduce(np.stack(given)) if given else None
            joint = np.concatenate(self._ordered(self.W, self.R))
            parts = self._cut(b, product(both, joint, bias, "joined"), "joined", count)
            zero = b.constant("zero_f", 0, np.float32)
            return lambda gate: (parts[case.gates.index(gate)], zero)
        from_x = self._cut(b, product(x, self.W, bx, "from_x"), "from_x", count)
        from_h = self._cut(b, product(h, self.R, bh, "from_h"), "from_h", count)
        return lambda gate: (from_x[case.gates.index(gate)], from_h[case.gates.index(gate)])

    def _cut(self, b: Nodes, value: str, key: str, count: int) -> list[str]:
        if count == 1:
            return [value]
        if self.case.cut == "split":
            return b.ops("Split", [value], [f"{key}_{k}" for k in range(count)], axis=1)
        if self.case.cut == "slices":
            made = []
            for k in range(count):
                kind, tag = (np.int32, "32") if k % 2 else (np.int64, "64")
                end = (k + 1) * self.case.H if k + 1 < count else 2**31 - 1
                low = b.constant(f"low_{k}", [0, k * self.case.H], kind)
                high = b.constant(f"high_{k}", [2**31 - 1, end], kind)
                both, steps = b.constant(f"axes_{tag}", [0, 1], kind), b.constant(f"steps_{tag}", [1, 1], kind)
                made.append(b.op("Slice", [value, low, high, both, steps], f"{key}_{k}"))
            return made
        axis = b.constant("last_axis", [-1])
        ends = [b.constant(f"end_{k}", [k * self.case.H]) for k in range(count + 1)]
        return [b.op("Slice", [value, ends[k], ends[k + 1], axis], f"{key}_{k}") for k in range(count)]

    def _weight(self, b: Nodes, key: str, array: np.ndarray, suffix: str) -> str:
        return b.constant(f"weight_{key}", array, np.float32) + suffix


def _used(nodes: Iterable[onnx.NodeProto]) -> set[str]:
    return set[str]().union(*map(reads, nodes))
