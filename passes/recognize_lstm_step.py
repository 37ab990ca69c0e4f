"""Finds single LSTM steps that an exporter has written out, and makes LSTM nodes of them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rnnqc.builder import Builder
from rnnqc.diagnostics import Outcome, Remark
from rnnqc.ir import Graph, Model, Node, Value, attribute, constant_array, display_name, shape_of
from rnnqc.numerics import Close
from rnnqc.passes.base import Pass, PassInfo, PassResult
from rnnqc.properties import Property


class RecognizeLstmStep(Pass):
    """Replaces a written-out LSTM step by an LSTM node over one element.

    Before: `Split(x MatMul W + h MatMul R + b, 4) -> Sigmoid, Sigmoid, Sigmoid, Tanh -> c' = f * c + i * g, h' = o *
    tanh(c')`

    After: `LSTM(x [1,B,I], initial_h = h, initial_c = c) -> Y_h, Y_c`

    The order of the gates is found from what the four parts do. What does not have this form exactly is left alone:

    * W, R or b are not constant, or there is no h, or a part of the step is used elsewhere.
    * The four parts have different widths, or other activations.
    * x, h and c are not known to be matrices with the same number of rows, or a constant of the sum is no row.

    Where both products have H rows, the second operand of the addition is taken for h, as Keras and torch write it.
    """

    info = PassInfo(
        name="recognize-lstm-step",
        summary="make LSTM nodes of written-out LSTM steps",
        numerics=Close(1e-5),
        requires=frozenset({Property.CANONICAL}),
    )

    def run(self, model: Model) -> PassResult:
        """Looks at every Split with four outputs in every graph."""
        remarks: list[Remark] = []
        model.infer_shapes()
        for _, graph in list(model.paths()):
            for node in list(graph.nodes):
                if node.op != "Split" or node.domain or len(node.outputs) != 4:
                    continue
                step = _match(node, {id(v) for v in graph.outputs})
                if step is not None:
                    name = _replace(model, graph, node, step)
                    remarks.append(
                        self.remark(Outcome.NOTE, name, "LSTM", f"made of the step around node {display_name(node)!r}.")
                    )
        if remarks:
            model.remove_dead()
            model.sort()
            model.infer_shapes()
        return PassResult(bool(remarks), tuple(remarks), {"steps": len(remarks)})


@dataclass(frozen=True)
class _Step:
    """A written-out step; weights have their columns in the order of the Split."""

    x: Value
    h: Value
    c: Value
    w: npt.NDArray[np.float32]
    r: npt.NDArray[np.float32]
    b: npt.NDArray[np.float32]
    order: tuple[int, int, int, int]  # positions of i, o, f, c among the outputs of the Split
    c_next: Value
    h_next: Value


def _match(split: Node, outputs: set[int]) -> _Step | None:
    def only_user(value: Value) -> Node | None:
        return value.outputs[0] if len(value.outputs) == 1 and id(value) not in outputs else None

    products, bias = _terms(split.inputs[0])
    if products is None or len(products) != 2 or attribute(split, "axis", 0) not in (1, -1):
        return None
    users = [only_user(v) for v in split.outputs]
    parts: list[Node] = [p for p in users if p is not None]
    operators = [p.op for p in parts]
    if sorted(operators) != ["Sigmoid", "Sigmoid", "Sigmoid", "Tanh"]:
        return None
    g = operators.index("Tanh")
    candidate = only_user(_output(parts[g]))
    if candidate is None or candidate.op != "Mul":
        return None
    i = _position(parts, _other(candidate, _output(parts[g])))
    total = only_user(candidate.outputs[0])
    if i is None or total is None or total.op != "Add":
        return None
    c_next = total.outputs[0]
    kept = _producer(_other(total, candidate.outputs[0]), "Mul")
    if kept is None or only_user(kept.outputs[0]) is not total:
        return None
    keepers = [k for k in range(4) if k not in (g, i) and only_user(_output(parts[k])) is kept]
    if not keepers:
        return None
    f = keepers[0]
    state = _other(kept, _output(parts[f]))
    o = 6 - g - i - f
    last = only_user(_output(parts[o]))
    if last is None or last.op != "Mul":
        return None
    squashed = _producer(_other(last, _output(parts[o])), "Tanh")
    if squashed is None or squashed.inputs[0] is not c_next:
        return None
    hidden = products[0][1].shape[1] // 4
    sizes = constant_array(split.inputs[1]) if len(split.inputs) > 1 else None
    if (
        products[0][1].shape[1] != 4 * hidden
        or products[1][1].shape[1] != 4 * hidden
        or (sizes is not None and len(set(sizes.tolist())) != 1)
    ):
        return None
    (x, w), (h, r) = products if products[1][1].shape[0] == hidden else products[::-1]
    if r.shape[0] != hidden:
        return None
    if not _same_rows([x, h, state]):
        return None
    whole = np.zeros(4 * hidden, np.float32)
    for term in bias:
        if term.dtype != np.float32 or term.shape not in ((), (1,), (1, 1), (4 * hidden,), (1, 4 * hidden)):
            return None
        whole = whole + term.reshape(-1)
    return _Step(x, h, state, w, r, whole, (i, o, f, g), c_next, last.outputs[0])


def _same_rows(values: list[Value]) -> bool:
    """Whether `values` are matrices with one number of rows, as far as shapes are declared or inferred."""
    shapes = [shape_of(v) for v in values]
    rows = {shape[0] for shape in shapes if shape is not None and len(shape) == 2}
    return all(shape is not None and len(shape) == 2 for shape in shapes) and len(rows) == 1 and None not in rows


def _terms(value: Value) -> tuple[list[tuple[Value, npt.NDArray[np.float32]]] | None, list[npt.NDArray[np.float32]]]:
    """The products with constant matrices and the constants that add up to `value`; None if the sum has other terms."""
    products: list[tuple[Value, npt.NDArray[np.float32]]] = []
    constants: list[npt.NDArray[np.float32]] = []
    stack = [value]
    while stack:
        current = stack.pop()
        array = constant_array(current)
        if array is not None:
            constants.append(array)
            continue
        if len(current.inputs) != 1 or len(current.outputs) != 1 or current.inputs[0].domain:
            return None, []
        node = current.inputs[0]
        if node.op == "Add":
            stack.extend(reversed(list(node.inputs)))
            continue
        factor = constant_array(node.inputs[1]) if len(node.inputs) > 1 else None
        if node.op == "Gemm" and factor is not None and attribute(node, "transA", 0) == 0:
            if attribute(node, "alpha", 1.0) != 1.0 or attribute(node, "beta", 1.0) != 1.0:
                return None, []
            factor = factor.T if attribute(node, "transB", 0) else factor
            if len(node.inputs) > 2:
                added = constant_array(node.inputs[2])
                if added is None:
                    return None, []
                constants.append(added)
        elif node.op != "MatMul" or factor is None:
            return None, []
        if factor.ndim != 2 or factor.dtype != np.float32:
            return None, []
        products.append((node.inputs[0], factor))
    return products, constants


def _output(node: Node) -> Value:
    return node.outputs[0]


def _other(node: Node, value: Value) -> Value:
    return node.inputs[1] if node.inputs[0] is value else node.inputs[0]


def _producer(value: Value, op: str) -> Node | None:
    return (
        value.inputs[0] if len(value.inputs) == 1 and value.inputs[0].op == op and not value.inputs[0].domain else None
    )


def _position(parts: list[Node], value: Value) -> int | None:
    return next((k for k, p in enumerate(parts) if _output(p) is value and p.op == "Sigmoid"), None)


def _replace(model: Model, graph: Graph, split: Node, step: _Step) -> str:
    hidden = step.r.shape[0]
    columns = np.concatenate([np.arange(k * hidden, (k + 1) * hidden) for k in step.order])
    name = model.fresh_name(f"{display_name(split)}.lstm")
    b = Builder(model, prefix=name)

    def stored(key: str, array: npt.NDArray[np.float32]) -> Value:
        return model.add_initializer(f"{name}/{key}", np.ascontiguousarray(array[np.newaxis]))

    def lifted(value: Value, key: str) -> Value:
        return b.op("Unsqueeze", [value, b.i64([0])], key)

    inputs = [
        lifted(step.x, "X"),
        stored("W", step.w[:, columns].T),
        stored("R", step.r[:, columns].T),
        stored("B", np.concatenate([step.b[columns], np.zeros(4 * hidden, np.float32)])),
        None,
        lifted(step.h, "initial_h"),
        lifted(step.c, "initial_c"),
    ]
    outputs = [b.value("Y_h", np.float32), b.value("Y_c", np.float32)]
    node = b.add("LSTM", inputs, [b.value("Y"), *outputs], name, hidden_size=hidden)
    node.name = name
    for made, target, key in zip(outputs, (step.h_next, step.c_next), ("h", "c"), strict=True):
        old = target.inputs[0]
        position = next(k for k, v in enumerate(old.outputs) if v is target)
        old.outputs[position] = b.value(f"{key}.replaced")
        b.add("Squeeze", [made, b.i64([0])], [target], key)
    model.insert_nodes(graph, split, b.nodes)
    return name
