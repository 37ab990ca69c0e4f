"""Analysis: "the rest", float weights outside the recurrent layers, and which of them int8 can store. Reads only."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import TensorProto

from rnnqc.cells.forms import ORT_DOMAIN
from rnnqc.ir import (
    CELL_TAG,
    CUSTOM_TAG,
    Graph,
    Model,
    Node,
    Value,
    attribute,
    constant_array,
    display_name,
    dtype_of,
    graph_info,
    graphs_below,
    info,
    safe_name,
    shape_of,
)
from rnnqc.passes.analysis.float_recurrences import float_recurrences
from rnnqc.passes.analysis.weight_groups import groups_of
from rnnqc.passes.graph.loops.loop_states import is_loop
from rnnqc.passes.graph.nodes.products import constant_factor
from rnnqc.passes.graph.values.constant_expressions import Constants, constant_expression
from rnnqc.passes.graph.values.embedding_rows import reads_int8_rows, reads_scales_of_rows
from rnnqc.passes.recover.float_steps import STEP_NOTE, FloatStep
from rnnqc.recipes.recipe import Recipe

LINEAR, EMBEDDING, CONVOLUTION = "linear layers", "embeddings", "convolutions"
LEAST_SAVING = 1024
"""Bytes: the nodes that make floats of int8 values again take some hundred."""
WEIGHT_OPERANDS: Mapping[str, tuple[str, Sequence[int]]] = {
    "MatMul": (LINEAR, (0, 1)),
    "Gemm": (LINEAR, (0, 1)),
    "Einsum": (LINEAR, (0, 1)),
    "Gather": (EMBEDDING, (0,)),
    "GatherND": (EMBEDDING, (0,)),
    "GatherElements": (EMBEDDING, (0,)),
    "Conv": (CONVOLUTION, (1,)),
    "ConvTranspose": (CONVOLUTION, (1,)),
}
"""By operator, the kind of its layer and the numbers of the inputs that hold weights, without biases."""
_FUSED_OPERANDS: Mapping[str, tuple[str, Sequence[int]]] = {
    "FusedMatMul": (LINEAR, (0, 1)),
    "FusedGemm": (LINEAR, (0, 1)),
    "FusedConv": (CONVOLUTION, (1,)),
}
"""The same of operators that onnxruntime's optimizer makes, whose weights stay float."""
VIEWS = ("Identity", "Transpose", "Reshape", "Squeeze", "Unsqueeze", "Flatten")
"""Operators that may stand between a weight and the operator that computes with it."""
_ROUNDING = ("Round", "Floor", "Ceil", "QuantizeLinear", "DequantizeLinear")
"""Operators that make quantized values, which stay as they are."""
_FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE, TensorProto.BFLOAT16)


@dataclass(frozen=True)
class WeightUse:
    """An operator that computes with a weight.

    Attributes:
        path: Its name with the path through subgraphs.
        node: The operator.
        operand: Position of the weight among its inputs.
        views: The nodes between the weight and that input, in order.
        reads_rows: Whether it reads rows of the weight as stored: an embedding. Rows of a single number do not count.
    """

    path: str
    node: Node
    operand: int
    views: tuple[Node, ...] = ()
    reads_rows: bool = field(init=False)

    def __post_init__(self) -> None:
        """Looks at the operator, which a pass may change or remove."""
        object.__setattr__(self, "reads_rows", not self.views and _reads_rows(self.node))

    @property
    def point(self) -> str:
        """The prefix of its quantization points."""
        return safe_name(self.path)

    @property
    def kind(self) -> str:
        """The kind: LINEAR, EMBEDDING or CONVOLUTION."""
        return _operands(self.node)[0]


@dataclass(frozen=True)
class RestWeight:
    """A float weight outside the recurrent layers, with all operators that compute with it.

    Attributes:
        value: The initializer, the output of a Constant node, or the result of operators on constants.
        graph: The graph that contains it.
        uses: The operators; at least one.
        axis: The axis of the int8 scales: rows of an embedding, else output channels.
        refusal: Reason, found and action why int8 cannot or should not store it; empty strings if it can.
        is_small: Whether the reason is that int8 would save too little.
        computed: The result of operators on constants, if `value` is not a constant itself.
        itemsize: Bytes per number in the constants it is computed from.
    """

    value: Value
    graph: Graph
    uses: tuple[WeightUse, ...]
    axis: int
    refusal: tuple[str, str, str] = ("", "", "")
    is_small: bool = False
    computed: npt.NDArray[Any] | None = None
    itemsize: int = 4

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the weight."""
        return _shape(self.value) if self.computed is None else self.computed.shape

    @property
    def bytes(self) -> int:
        """The size of the floats in the file, or of the floats they are computed from."""
        return _bytes(self.value) if self.computed is None else self.computed.size * self.itemsize

    @property
    def is_narrow(self) -> bool:
        """Whether its numbers are float16, which `WidenOperators` makes float32."""
        return _dtype(self.value) == np.float16 if self.computed is None else self.computed.dtype == np.float16

    @property
    def row_readers(self) -> tuple[WeightUse, ...]:
        """The embeddings that may read int8 rows: all, if at least one has indices that are only known at run time."""
        readers = tuple(u for u in self.uses if u.reads_rows)
        return readers if any(constant_array(u.node.inputs[1]) is None for u in readers) else ()

    @property
    def int8_bytes(self) -> int:
        """The approximate size with --rest int8: int8 values and scales, or the floats that it keeps."""
        return self.bytes if self.refusal[0] else _int8_bytes(self.shape, self.axis, self.uses)


def _reads_rows(node: Node) -> bool:
    if node.op != "Gather" or node.domain or attribute(node, "axis", 0) != 0:
        return False
    return bool(np.prod(_shape(node.inputs[0])[1:]) != 1)


def rest_weights(model: Model) -> list[RestWeight]:
    """Returns every float constant that an operator outside the recurrent layers multiplies by or gathers from.

    Weights that operators compute from constants come last, for example parts of a larger weight or float16 weights
    behind a Cast. The model should be in normal form, or lowered. A weight with several uses is listed once.
    """
    recurrent = _recurrent_nodes(model)
    paths = {id(n): f"{path}{display_name(n)}" for path, graph in model.paths() for n in graph.nodes}
    outputs = {id(v) for g in model.graphs() for v in g.outputs}
    replaceable = set(graph_info(model.graph).input_order)
    found = []
    for graph in model.graphs():
        for value in _float_constants(graph):
            uses, others = _uses_of(value, paths, recurrent, outputs)
            if uses:
                found.append(_described(value, graph, uses, others, replaceable))
    listed = {(id(u.node), u.operand) for w in found for u in w.uses}
    return [*found, *_computed_weights(model, paths, {*listed, *((n, k) for n in recurrent for k in range(3))})]


def rest_points(model: Model, recipe: Recipe) -> list[str]:
    """Returns the points of operators outside the recurrent layers, if the recipe covers them.

    Those of embeddings are included when their rows are stored as int8 already.
    """
    if not recipe.rest:
        return []
    stored = [f"{path}{display_name(n)}" for path, g in model.paths() for n in g.nodes if reads_int8_rows(n)]
    return [*(f"{safe_name(path)}.weight" for path in stored), *points_of_weights(rest_weights(model))]


def points_of_weights(weights: Iterable[RestWeight]) -> list[str]:
    """Returns the points of the operators that compute with weights, those of all weights first."""
    uses = [u for w in weights for u in w.uses]
    return [f"{u.point}.weight" for u in uses] + [f"{u.point}.input" for u in uses if u.kind == LINEAR]


def channel_axis(value: Value, uses: Sequence[WeightUse]) -> int:
    """Returns the axis of the scales of a weight; a table that an embedding reads has one for each row."""
    if any(u.reads_rows for u in uses):
        return 0
    rank, use = len(_shape(value)), uses[0]
    operand = use.node.inputs[use.operand]
    known = shape_of(operand)
    axis = _axis_of_operand(use, rank if known is None else len(known))
    for view in reversed(use.views):
        if view.op == "Transpose":
            axis = attribute(view, "perm", None)[axis] if "perm" in view.attrs else len(view.inputs[0].shape) - 1 - axis
        elif view.op != "Identity":
            return _axis_of_size(_shape(value), known[axis] if known is not None else None)
    return axis if axis < rank else 0


def _axis_of_operand(use: WeightUse, rank: int) -> int:
    """The axis of the output channels of an operand."""
    if use.node.op == "Conv":
        return 0
    if use.node.op == "ConvTranspose":
        return 1
    if use.kind == EMBEDDING:
        axis = int(attribute(use.node, "axis", 0))
        return axis + rank if axis < 0 else axis
    if use.node.op == "Einsum":
        terms, made = einsum_terms(use.node)
        others = made.translate(str.maketrans("", "", "".join(t for k, t in enumerate(terms) if k != use.operand)))
        return next((k for k, c in enumerate(terms[use.operand]) if c in others.replace(".", "")), 0)
    transposed = use.node.op == "Gemm" and bool(attribute(use.node, "transA" if use.operand == 0 else "transB", 0))
    is_last = (use.operand == 1) != transposed
    return max(rank - 1 if is_last else rank - 2, 0)


def einsum_terms(node: Node) -> tuple[list[str], str]:
    """Returns the index letters of the inputs and of the output of an Einsum; the output's are empty if implicit."""
    terms, _, made = str(attribute(node, "equation", "")).replace(" ", "").partition("->")
    return terms.split(","), made


def _axis_of_size(shape: Sequence[int], size: int | str | None) -> int:
    """The only axis of this size; the first axis if it is not unique."""
    return shape.index(size) if isinstance(size, int) and list(shape).count(size) == 1 else 0


def _recurrent_nodes(model: Model) -> set[int]:
    """Ids of the nodes of recurrent layers, which have their own entries.

    Einsums are not among them, nor are unrolled products with a constant on the left: no cell quantizes these.
    """
    recurrences = list(float_recurrences(model))
    found: set[int] = set()
    loops = [r.loop for r in recurrences if r.loop is not None]
    for graph in model.graphs():
        for node in graph.nodes:
            step: FloatStep | None = info(node).notes.get(STEP_NOTE)
            if step is not None:
                found |= {id(n) for n in step.products}
            if CELL_TAG in info(node).metadata:
                found.add(id(node))
            if is_loop(node) and CUSTOM_TAG in info(node).metadata:
                loops.append(node)
    products = [
        n for r in recurrences for n in r.products if r.loop is not None or constant_factor(n) is not n.inputs[0]
    ]
    products += [n for loop in loops for g in graphs_below(loop.attrs["body"]) for n in g.nodes]
    return found | {id(n) for n in products if n.op != "Einsum"}


def _float_constants(graph: Graph) -> Iterator[Value]:
    values: Iterable[Value] = [
        *graph_info(graph).initializers.values(),
        *(v for n in graph.nodes if n.op == "Constant" and not n.domain for v in n.outputs),
    ]
    for value in values:
        dtype = _dtype(value)
        if dtype is not None and dtype.kind == "f":
            yield value


def _uses_of(
    value: Value, paths: Mapping[int, str], recurrent: set[int], outputs: set[int]
) -> tuple[list[WeightUse], list[str]]:
    """The operators that compute with a constant, and descriptions of its other readers."""
    uses: list[WeightUse] = []
    others: list[str] = []
    stack: list[tuple[Value, tuple[Node, ...]]] = [(value, ())]
    while stack:
        current, views = stack.pop()
        others += ["an output of the graph"] if id(current) in outputs else []
        for node in dict.fromkeys(current.outputs):
            for k in (k for k, v in enumerate(node.inputs) if v is current):
                is_known = id(node) not in recurrent and not reads_scales_of_rows(node)
                if is_known and k in _operands(node)[1]:
                    uses.append(WeightUse(paths[id(node)], node, k, views))
                elif is_known and node.op in VIEWS and not node.domain and k == 0:
                    stack.append((node.outputs[0], (*views, node)))
                else:
                    others.append(f"{node.op} {display_name(node)!r}")
    return uses, others


def _computed_weights(
    model: Model, paths: Mapping[int, str], others: Collection[tuple[int, int]]
) -> Iterator[RestWeight]:
    """Yields the weights that operators compute from constants, except for operands in `others`."""
    constants = Constants(model)
    read: dict[int, tuple[Value, list[WeightUse]]] = {}
    for graph in model.graphs():
        for node in graph.nodes:
            for k in _operands(node)[1] if not reads_scales_of_rows(node) else ():
                value = node.inputs[k] if k < len(node.inputs) and (id(node), k) not in others else None
                if value is not None and value.inputs and (dtype_of(value) or np.dtype(np.float32)).kind == "f":
                    read.setdefault(id(value), (value, []))[1].append(WeightUse(paths[id(node)], node, k))
    for value, uses in read.values():
        weight = _computed_weight(model.graph, value, uses, constants)
        if weight is not None:
            yield weight


def _computed_weight(graph: Graph, value: Value, uses: Sequence[WeightUse], constants: Constants) -> RestWeight | None:
    """A weight computed from constants; None if it depends on data or quantized values, or if int8 gains little."""
    array = constants.array(value)
    nodes = () if array is None else constant_expression(value) or ()
    sources = {id(v): a for n in nodes for v in n.inputs if (a := constant_array(v)) is not None}.values()
    largest = max(sources, key=lambda a: a.size, default=None)
    if array is None or array.dtype.kind != "f" or largest is None or largest.dtype.kind != "f":
        return None
    axis = channel_axis(value, uses)
    stored = _int8_bytes(array.shape, min(axis, array.ndim - 1), uses) if array.ndim else array.nbytes
    if any(map(_rounds, nodes)) or array.size * largest.itemsize - stored < LEAST_SAVING:
        return None
    refusal = next((r for r in (_refused(value.name, array), _fused(uses)) if r[0]), ("", "", ""))
    held = sum(a.nbytes for a in sources)
    if not refusal[0] and stored > held:
        found = f"{held} bytes of constants become {array.size} numbers"
        refusal = ("its weight is computed from a smaller one.", found, "multiply by the smaller one, if that can be")
    return RestWeight(value, graph, tuple(uses), axis, refusal, computed=array, itemsize=largest.itemsize)


def _rounds(node: Node) -> bool:
    """Whether a node quantizes."""
    return node.op in _ROUNDING or (node.op == "Cast" and attribute(node, "to", 0) not in _FLOATS)


def _operands(node: Node) -> tuple[str, Sequence[int]]:
    """The kind of an operator, and the positions of its weight inputs; empty for most operators."""
    known = {"": WEIGHT_OPERANDS, ORT_DOMAIN: _FUSED_OPERANDS}.get(node.domain or "", {})
    return known.get(node.op, ("", ()))


def _described(
    value: Value, graph: Graph, uses: Sequence[WeightUse], others: Sequence[str], replaceable: set[str]
) -> RestWeight:
    axis, refusal = channel_axis(value, uses), _refusal(value, others, replaceable)
    if refusal[0] or _bytes(value) - _int8_bytes(_shape(value), axis, uses) >= LEAST_SAVING:
        return RestWeight(value, graph, tuple(uses), axis, refusal if refusal[0] else _fused(uses))
    found = f"shape {list(_shape(value))}, {_bytes(value)} bytes"
    small = (f"int8 would save less than {LEAST_SAVING} bytes.", found, "none; nothing is to be gained")
    return RestWeight(value, graph, tuple(uses), axis, small, is_small=True)


def _refusal(value: Value, others: Sequence[str], replaceable: set[str]) -> tuple[str, str, str]:
    """Why int8 cannot store a weight."""
    refusal = _refused(value.name, constant_array(value))
    if refusal[0]:
        return refusal
    if value.name in replaceable:
        found = f"{value.name!r} is both stored and listed as a graph input"
        return "a run may replace its weight.", found, "take the initializer off the graph inputs, if it is constant"
    if others:
        found = f"{value.name!r} is also read by {others[0]}"
        return "its weight is read as floats by another operator.", found, "store a copy of it for each use"
    return "", "", ""


def _refused(name: str, array: npt.NDArray[Any] | None) -> tuple[str, str, str]:
    """Why int8 cannot store the values of a weight."""
    if array is None or array.dtype not in (np.float32, np.float16):
        found = "no dense array" if array is None else str(array.dtype)
        return "its weight is not float32 or float16.", f"{name!r} is {found}", "export the model in float32"
    if not np.isfinite(array).all():
        return "its weight has NaN or infinite entries.", f"in {name!r}", "train or export the model again"
    return "", "", ""


def _fused(uses: Sequence[WeightUse]) -> tuple[str, str, str]:
    """Why a weight stays float if an operator of onnxruntime's optimizer reads it; empty otherwise."""
    fused = next((u.node for u in uses if u.node.domain), None)
    if fused is None:
        return "", "", ""
    reason = "onnxruntime's optimizer has fused its operator with others."
    return reason, f"{fused.domain}.{fused.op}", "lower the model as it was exported, before onnxruntime optimized it"


def _shape(value: Value) -> tuple[int, ...]:
    shape = shape_of(value)
    if shape is not None and all(isinstance(d, int) for d in shape):
        return tuple(int(str(d)) for d in shape)
    array = constant_array(value)
    return () if array is None else tuple(array.shape)


def _bytes(value: Value) -> int:
    return int(np.prod(_shape(value))) * (_dtype(value) or np.dtype(np.float32)).itemsize


def _dtype(value: Value) -> np.dtype[Any] | None:
    array = constant_array(value) if dtype_of(value) is None else None
    return dtype_of(value) if array is None else array.dtype


def _int8_bytes(shape: Sequence[int], axis: int, uses: Sequence[WeightUse]) -> int:
    if 0 in shape:
        return 0
    if shape and not any(u.reads_rows for u in uses):
        return groups_of(shape, axis).bytes
    scale = 2 if all(u.reads_rows for u in uses) else 4
    return int(np.prod(shape)) + scale * (shape[axis] if shape else 1)
