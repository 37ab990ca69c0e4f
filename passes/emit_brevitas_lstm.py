"""A cell of Brevitas in float32 operators and in Brevitas' order: for cells that have no integer form."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from rnnqc.builder import Builder
from rnnqc.ir import Model, Node, Value, Variable, constant_array
from rnnqc.passes.emit_qonnx import emit_quant
from rnnqc.passes.quant_operators import GATES, Parameter, QuantLstm


def emit_brevitas_lstm(
    model: Model, read: QuantLstm, prefix: str, x: Value, outputs: Sequence[Variable | None]
) -> list[Node]:
    """The nodes of a cell.

    `i = Q(sigmoid(Q((x_t W_i + h R_i) + b_i)))` and so on, one operation at a time, in a Scan over time.

    Args:
        model: The model.
        read: The cell.
        prefix: Of names.
        x: `[T,B,I]`, on whatever grid it lies.
        outputs: outputs `[T,B,H]`, hidden_state `[B,H]` and cell_state `[B,H]`; None for one that nothing uses.
    """
    b = Builder(model, prefix=prefix)
    hidden = read.hidden_size
    w, r = (b.model.add_initializer(f"{prefix}.{key}", _joined(held)) for key, held in (("W", read.W), ("R", read.R)))
    products = b.op("MatMul", [x, w], "x.product")
    shape = b.op("Shape", [x], "x.shape")
    batch = b.op("Slice", [shape, b.i64([1]), b.i64([2])], "batch")
    state_shape = b.op("Concat", [batch, b.i64([hidden])], "state.shape", axis=0)
    states = [_state(b, v, state_shape, n) for v, n in ((read.initial_h, "initial_h"), (read.initial_c, "initial_c"))]
    body = b.body()
    h, c = (body.value(n, np.float32, [None, hidden]) for n in ("hidden.previous", "cell_state.previous"))
    step = body.value("x.product.step", np.float32, [None, len(GATES) * hidden])
    made = _step(body, read, step, h, c, r)
    results = [body.value(n, np.float32, [None, hidden]) for n in ("hidden.next", "cell_state.next", "hidden.step")]
    for source, target in zip((made[0], made[1], made[0]), results, strict=True):
        body.add("Identity", [source], [target], target.name)
    graph = body.graph([h, c, step], results, "step")
    last_h, last_c = (outputs[k] or b.value(n, np.float32) for k, n in ((1, "hidden.last"), (2, "cell_state.last")))
    y = outputs[0] or b.value("hidden.steps", np.float32)
    directions: dict[str, Any] = {"scan_input_directions": [1], "scan_output_directions": [1]} if read.reverse else {}
    b.add("Scan", [*states, products], [last_h, last_c, y], "scan", body=graph, num_scan_inputs=1, **directions)
    return b.nodes


def _joined(parameters: Sequence[Parameter]) -> npt.NDArray[np.float32]:
    """The weights of all gates, `[K,4H]`."""
    return np.ascontiguousarray(np.concatenate([p.values for p in parameters]).T)


def _state(b: Builder, value: Value, shape: Value, name: str) -> Value:
    """An initial state `[B,H]`; rows of a constant that are all the same do not bind the batch."""
    array = constant_array(value)
    if array is not None and array.ndim == 2 and array.size and (array == array[:1]).all():
        value = b.f32(array[:1])
    return b.op("Expand", [value, shape], name)


def _step(b: Builder, read: QuantLstm, products: Value, h: Value, c: Value, r: Value) -> tuple[Value, Value]:
    """The hidden and the cell state after one step."""
    q = read.quantizers

    def quantized(name: str, value: Value, what: str) -> Value:
        target = b.value(f"{what}.quantized", np.float32)
        inner = Builder(b.model, prefix=f"{b.prefix}/{what}")
        emit_quant(inner, q[name], value, target)
        b.nodes += inner.nodes
        return target

    total = b.op("Add", [products, b.op("MatMul", [h, r], "hidden.product")], "products")
    total = b.op("Add", [total, b.f32(np.concatenate(read.bias))], "preactivation")
    sizes = b.i64([read.hidden_size] * len(GATES))
    parts = dict(
        zip(GATES, b.ops("Split", [total, sizes], [f"{g}.preactivation" for g in GATES], axis=-1), strict=True)
    )

    def gate(name: str) -> Value:
        op, suffix = ("Tanh", "tanh") if name == "cell" else ("Sigmoid", "sigmoid")
        acc = quantized(f"{name}_acc", parts[name], f"{name}.acc")
        return quantized(f"{name}_{suffix}", b.op(op, [acc], f"{name}.value"), f"{name}.activation")

    i = gate("input")
    if read.cifg:
        one = q["input_sigmoid"](np.ones((), np.float32))
        f: Value = b.op("Sub", [b.f32(one), i], "forget.coupled")
    else:
        f = gate("forget")
    g, o = gate("cell"), gate("output")
    kept = quantized("cell_state", b.op("Mul", [f, c], "cell_state.kept"), "cell_state.kept")
    added = quantized("cell_state", b.op("Mul", [i, g], "cell_state.added"), "cell_state.added")
    state = quantized("cell_state", b.op("Add", [kept, added], "cell_state.sum"), "cell_state")
    squashed = quantized("hidden_state_tanh", b.op("Tanh", [state], "hidden.squashed"), "hidden.activation")
    return quantized("output", b.op("Mul", [o, squashed], "hidden.value"), "hidden"), state
