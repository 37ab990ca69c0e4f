"""Writes products of recurrences as matmuls of rows with constant matrices, which can be quantized."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from rnnqc.errors import NotHandled, Outcome, Remark
from rnnqc.evaluation.numerics import Close
from rnnqc.ir import (
    Graph,
    Model,
    Node,
    Value,
    attribute,
    constant_array,
    display_name,
    dtype_of,
    input_or_none,
    maker_of,
    shape_of,
    subgraphs,
)
from rnnqc.ir.builder import Builder
from rnnqc.passes.analysis.float_recurrences import FloatRecurrence, float_recurrences
from rnnqc.passes.base import Pass, PassInfo, PassResult
from rnnqc.passes.custom_cells.turned_values import TurnedValues, kept_in_place, swapped
from rnnqc.passes.graph.loops.loop_reach import reached
from rnnqc.passes.graph.loops.loop_states import bodies, is_real, owners, states_of
from rnnqc.passes.graph.nodes.products import constant_factor
from rnnqc.passes.graph.values.constant_expressions import Constants
from rnnqc.passes.graph.values.index_expressions import Index, Indices, Shape, unknown
from rnnqc.passes.invariants import Property
from rnnqc.passes.recover.loops.step_shapes import StepShapes
from rnnqc.passes.recover.recovery_sites import RecoverySites

_MATRIX = 2


class WriteRows(RecoverySites, Pass):
    """Replaces products that multiply columns by a constant matrix by products that multiply rows.

    Before: `h' = Tanh(Add(MatMul(W, x), MatMul(R, h)))`, in a loop or unrolled

    After: `r' = Tanh(Add(MatMul(Transpose(x), W'), MatMul(r, R')))`, with W', R' transposed and `r = Transpose(h)`;
    Transposes stand around the recurrence

    What is computed of such products (elementwise, by Split and Concat) is computed transposed, too, and so are states,
    elements and results of loops. A Gemm of columns, or one that transposes its left operand, and an Einsum that
    multiplies by a matrix become MatMuls of rows as well. So does a model that is one step of a single column: an input
    `[H,1]` and an output of the same shape. Sums may be added in another order.
    """

    info = PassInfo(
        name="write-rows",
        summary="write products of columns in recurrences as products of rows",
        numerics=Close(1e-5),
        requires=frozenset({Property.CANONICAL}),
    )

    def run(self, model: Model) -> PassResult:
        """Looks at every recurrence."""
        self.sites = []
        remarks: list[Remark] = []
        count = 0
        seen: set[str] = set()
        while (found := _next(model, seen)) is not None:
            graph, outer, recurrence = found
            path, op = recurrence.path, recurrence.op
            seen.add(path)
            if not count:
                model.infer_shapes()
            writing = _Writing(model, graph, outer, recurrence)
            try:
                self.check_kept(path)
                writing.check()
            except NotHandled as why:
                remarks.append(self.refused(Outcome.NOTE, path, op, why))
                continue
            writing.run()
            count += len(writing.products)
            self.sites.append(path)
            remarks.append(
                self.remark(Outcome.NOTE, path, op, f"{len(writing.products)} products are written with rows.")
            )
            model.remove_dead()
            model.sort()
            model.infer_shapes()
        return PassResult(count > 0, tuple(remarks), {"products": count})


@dataclass(frozen=True)
class _Product:
    """A product of columns, or of rows in an operator that no cell reads.

    Attributes:
        node: The node.
        x: What it multiplies.
        weights: The constant, `[K,N]`.
        turns: Whether x is `[...,K,M]` and has to be turned.
        turned: Whether the result is `[...,N,M]`.
        added: What a Gemm adds, or None.
        scale: The factor of what is added.
    """

    node: Node
    x: Value
    weights: npt.NDArray[np.float32]
    turns: bool
    turned: bool
    added: Value | None = None
    scale: float = 1.0


def _next(model: Model, seen: set[str]) -> tuple[Graph, Graph, FloatRecurrence] | None:
    """Returns a recurrence with a product that has to be written anew, its graph, and the graph around its loop."""
    constants = Constants(model)
    for recurrence in float_recurrences(model):
        if recurrence.path in seen or recurrence.branched:
            continue
        if not any(_read(n, constants) for n in recurrence.products):
            continue
        anchor = recurrence.loop if recurrence.loop is not None else recurrence.products[0]
        home = next(g for g, _, _ in bodies(model) if any(n is anchor for n in g.nodes))
        return (home if recurrence.loop is None else recurrence.loop.attrs["body"]), home, recurrence
    step = _single_step(model.graph, constants)
    return None if step is None or step.path in seen else (model.graph, model.graph, step)


def _single_step(graph: Graph, constants: Constants) -> FloatRecurrence | None:
    """Returns the products of a model that may be one step: an input of one column becomes an output of its shape."""
    inside = owners(graph)
    columns = [v for v in graph.inputs if (shape_of(v) or [0])[-1] == 1 and len(shape_of(v) or ()) == _MATRIX]
    products = [n for n in graph.nodes if n.op in ("MatMul", "Gemm") and _read(n, constants) is not None]
    for value in columns if products else ():
        behind = reached([value], inside, is_real)
        states = [v for v in graph.outputs if id(v) in behind and shape_of(v) == shape_of(value)]
        if states and any(id(v) in behind for n in products for v in n.inputs):
            found = f"input {value.name!r} and output {states[0].name!r}"
            return FloatRecurrence(display_name(products[0]), products[0].op, 1, found, tuple(products))
    return None


def _read(node: Node, constants: Constants) -> _Product | None:
    """Reads a product; None if a cell reads it as it is, or if it is another kind of product."""
    if node.domain or dtype_of(node.outputs[0]) not in (None, np.dtype(np.float32)):
        return None
    if node.op == "Einsum":
        return _read_einsum(node, constants)
    if node.op not in ("MatMul", "Gemm"):
        return None
    weight = constant_factor(node, constants.array)
    array = constants.array(weight)
    if weight is None or array is None or array.ndim != _MATRIX or array.dtype != np.float32:
        return None
    first = weight is node.inputs[0]
    if node.op == "MatMul":
        return _Product(node, node.inputs[1], array.T, True, True) if first else None
    alpha, beta = attribute(node, "alpha", 1.0), attribute(node, "beta", 1.0)
    turned = [bool(attribute(node, k, 0)) for k in ("transA", "transB")]
    added = input_or_none(node, 2) if beta else None
    if first:
        return _Product(
            node, node.inputs[1], alpha * (array if turned[0] else array.T), not turned[1], True, added, beta
        )
    if turned[0] or alpha != 1:
        return _Product(node, node.inputs[0], alpha * (array.T if turned[1] else array), turned[0], False, added, beta)
    return None


def _read_einsum(node: Node, constants: Constants) -> _Product | None:
    terms, _, result = str(attribute(node, "equation", "")).replace(" ", "").partition("->")
    names = terms.split(",")
    if len(names) != _MATRIX or not result.isalpha() or not all(t.isalpha() and len(set(t)) == len(t) for t in names):
        return None
    for k in (1, 0):
        array, x, other, own = constants.array(node.inputs[k]), node.inputs[1 - k], names[1 - k], names[k]
        if array is None or array.ndim != _MATRIX or array.dtype != np.float32 or constants.array(x) is not None:
            continue
        inner, free = [c for c in own if c in other], [c for c in own if c not in other]
        if len(inner) != 1 or len(free) != 1 or inner[0] in result:
            continue
        weights = array if own == inner[0] + free[0] else array.T
        wanted = other.replace(inner[0], free[0])
        place = other.index(inner[0]) - len(other)
        turned = result[:-2] + result[-2:][::-1]
        if place in (-1, -2) and wanted in (result, turned):
            return _Product(node, x, weights, place == -2, (place == -2) == (wanted == result))
    return None


def _shapes_of_steps(model: Model, loop: Node, constants: Constants) -> StepShapes:
    """Returns the shapes in a loop's body whose states keep their shapes."""
    body: Graph = loop.attrs["body"]
    indices = Indices(constants, shape_of)
    states = states_of(loop)
    given = [(s.before, indices.dimensions(s.initial) or _declared(s.before)) for s in states]
    if loop.op == "Scan":
        count = len(states)
        axes = attribute(loop, "scan_input_axes", None) or [0] * (len(loop.inputs) - count)
        for value, sequence, axis in zip(body.inputs[count:], loop.inputs[count:], axes, strict=True):
            dims = indices.dimensions(sequence)
            if dims is None:
                given.append((value, _declared(value)))
            else:
                given.append((value, [d for k, d in enumerate(dims) if k != axis % len(dims)]))
    else:
        given += [(v, []) for v in body.inputs[:2]]
    nodes = [n for n in body.nodes if not subgraphs(n)]
    return StepShapes(model, nodes, [(v, dims) for v, dims in given if dims is not None], indices)


def _declared(value: Value) -> list[Index] | None:
    """The axes of a value as it is declared: their number has to be right, and sizes that are numbers."""
    shape = shape_of(value)
    return None if shape is None else [Index(d) if isinstance(d, int) else unknown(object()) for d in shape]


def _is_undone(first: Node, second: Node) -> bool:
    """Whether the second of two Transposes undoes the first one."""
    one, other = (list(n.attrs.get("perm", [])) for n in (first, second))
    turned = list(range(max(len(one), len(other))))[::-1]  # without a permutation
    one, other = one or turned, other or turned
    return [one[k] for k in other] == turned[::-1]


class _Writing:
    """The work on one recurrence."""

    def __init__(self, model: Model, graph: Graph, outer: Graph, recurrence: FloatRecurrence) -> None:
        self.model, self.graph, self.outer, self.loop = model, graph, outer, recurrence.loop
        constants = Constants(model)
        self._steps = None if self.loop is None else _shapes_of_steps(model, self.loop, constants)
        found = [p for n in recurrence.products if (p := _read(n, constants)) is not None]
        vectors = {id(p.node): replace(p, turns=False, turned=False) for p in found if len(self.shape(p.x) or ()) == 1}
        self.products = {id(p.node): vectors.get(id(p.node), p) for p in found}
        self.b, self.around = Builder(model), Builder(model)
        self.values = TurnedValues(model, graph, self.shape, self.b, self.around)
        self._weights: dict[bytes, Value] = {}

    def shape(self, value: Value) -> Shape | None:
        """Returns the shape of a value, in a loop that which follows from the shapes of its inputs."""
        held = None if self._steps is None else self._steps.of(value)
        return shape_of(value) if held is None else held

    def check(self) -> None:
        """Raises an error if the rank of a value is unknown.

        Raises:
            NotHandled: It is.
        """
        for product in self.products.values():
            for value in (product.x, product.node.outputs[0], *([product.added] if product.added is not None else [])):
                if self.shape(value) is None:
                    reason = "its products are not written as products of rows."
                    raise NotHandled(reason, f"the number of axes of {value.name!r} is unknown", "none")
            if product.turns or product.turned:
                self.values.rank(product.node.outputs[0])
                self.values.rank(product.x)
            added = product.added
            if added is not None and product.turned and self.shape(added) != [] and constant_array(added) is None:
                self.values.rank(added)

    def run(self) -> None:
        """Rewrites the products, and what is computed of them."""
        for node in list(self.graph.nodes):
            product = self.products.get(id(node))
            if product is not None:
                self._product(product)
            elif node.outputs:
                self.values.node(node)
        if self.loop is not None:
            self._turn_loop(self.loop)
        self.model.remove_nodes(self.graph, [*self.values.replaced, *(p.node for p in self.products.values())])
        self.graph.nodes.extend(self.b.nodes)
        self.outer.nodes.extend(self.around.nodes)
        for node in [n for n in self.graph.nodes if n.op == "Transpose" and n.outputs]:
            source = node.inputs[0]
            maker = maker_of(source)
            is_result = any(v is node.outputs[0] for v in self.graph.outputs)
            if maker is not None and maker.op == "Transpose" and not is_result and _is_undone(maker, node):
                self.model.replace_all_uses(node.outputs[0], maker.inputs[0], [])

    def _weight(self, product: _Product) -> Value:
        array = np.ascontiguousarray(product.weights, np.float32)
        key = repr(array.shape).encode() + array.tobytes()
        if key not in self._weights:
            self._weights[key] = self.model.add_initializer(f"{product.node.name}.weights", array)
        return self._weights[key]

    def _product(self, product: _Product) -> None:
        name, made = product.node.name, product.node.outputs[0]
        product.node.outputs.clear()
        x = self.values.of(product.x) if product.turns else product.x
        y = self.b.op("MatMul", [x, self._weight(product)], f"{made.name}.rows")
        self.b.nodes[-1].name = name
        if product.added is not None:
            added = product.added
            if product.turned and self.shape(added) != []:
                added = self.values.of(added)
            if product.scale != 1.0:
                added = self.b.op("Mul", [added, self.b.f32(product.scale)], f"{name}.scaled")
            y = self.b.op("Add", [y, added], f"{name}.sum")
        if product.turned:
            self.values.note(made, y)
        else:
            y.dtype, y.shape = dtype_of(made), self.shape(made)
            self.b.add("Identity", [y], [made], f"{name}.same")

    def _turn_loop(self, loop: Node) -> None:
        """Turns the states, elements and results of the loop that are turned inside."""
        body: Graph = loop.attrs["body"]
        values, states = self.values, states_of(loop)
        count, extra = len(states), 2 if loop.op == "Loop" else 0  # a Loop has a number and a condition in front
        results = 1 if loop.op == "Loop" else 0
        for state in states:
            if id(state.before) in values.asked and values.computes(state.after):
                k, perm = state.index, swapped(range(values.rank(state.before)))
                self._turn_input(body, k + extra)
                body.outputs[k + results] = values.made[id(state.after)]
                loop.inputs[k + extra] = values.transposed(self.around, state.initial, perm)
                self._turn_output(loop, k, perm)
        if loop.op == "Scan":
            axes = attribute(loop, "scan_input_axes", None) or [0] * (len(loop.inputs) - count)
            for k, axis in enumerate(axes, count):
                if id(body.inputs[k]) in values.asked:
                    rank = values.rank(body.inputs[k]) + 1
                    self._turn_input(body, k)
                    perm = kept_in_place(rank, axis % rank)
                    loop.inputs[k] = values.transposed(self.around, loop.inputs[k], perm)
        axes = attribute(loop, "scan_output_axes", None) or [0] * len(loop.outputs)
        for k in range(count, len(loop.outputs)):
            value = body.outputs[k + results]
            turned = values.made.get(id(value))
            if turned is not None and not any(v is turned for v in body.outputs):
                body.outputs[k + results] = turned
                rank = values.rank(value) + 1
                self._turn_output(loop, k, kept_in_place(rank, axes[k - count] % rank))

    def _turn_input(self, body: Graph, place: int) -> None:
        """Makes an input of the body a turned one."""
        old = body.inputs[place]
        _, turned = self.values.asked[id(old)]
        (maker,) = turned.inputs
        self.b.nodes = [n for n in self.b.nodes if n is not maker]
        maker.outputs.clear()
        maker.inputs.clear()
        body.inputs[place] = turned
        self.b.add("Transpose", [turned], [old], f"{old.name}.back", perm=swapped(range(self.values.rank(old))))

    def _turn_output(self, loop: Node, k: int, perm: Sequence[int]) -> None:
        """Turns an output of the loop back."""
        if k < len(loop.outputs) and (old := loop.outputs[k]).name:
            shape = self.shape(old)
            sizes = None if shape is None else [shape[a] for a in perm]
            loop.outputs[k] = self.around.value(f"{old.name}.turned", dtype_of(old), sizes)
            self.around.add("Transpose", [loop.outputs[k]], [old], f"{old.name}.back", perm=list(perm))
