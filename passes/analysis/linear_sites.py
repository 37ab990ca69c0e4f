"""Analysis: matmuls with constant weights, and why some of them cannot become integer. Reads only."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from rnnqc.data.statistics import Statistics
from rnnqc.errors import NotHandled
from rnnqc.ir import Graph, Model, Node, Value, attribute, constant_array, dtype_of, info, shape_of
from rnnqc.passes.analysis.rest_weights import LINEAR, RestWeight, WeightUse, einsum_terms, rest_weights
from rnnqc.passes.graph.values.constant_expressions import Constants

FloatArray = npt.NDArray[np.float32]
INPUT = "input"
"""The quantization point of the input of a linear layer."""
UNFOLDED_NOTE = "unfolded"
"""The note of a matmul that holds `Unfolded`."""
CONVOLUTIONS = ("Conv", "ConvTranspose")
"""Operators whose channels are the second axis of input and output instead of the last one."""
LARGEST_DEPTH = 65024
"""Rows of a weight matrix up to which sums of products are exact (docs/quant_linear.md)."""


@dataclass(frozen=True)
class LinearSite:
    """A matmul `alpha * X W + B`, or a convolution, which multiplies windows of X.

    Attributes:
        weight: The float weight, with all its uses.
        use: The use at this site.
        transposed: Whether the operand is W transposed, as in a Gemm with transB or a convolution.
        alpha: Factor of the matmul.
        bias: `[N]` or `[1]`.
        add: The node that adds the bias, if the operator does not.
    """

    weight: RestWeight
    use: WeightUse
    transposed: bool
    alpha: float
    bias: FloatArray
    add: Node | None = None

    @property
    def is_convolution(self) -> bool:
        """Whether it multiplies windows."""
        return self.use.node.op in CONVOLUTIONS

    @property
    def unfolded(self) -> Unfolded | None:
        """The convolution that the matmul computes, or None."""
        return info(self.use.node).notes.get(UNFOLDED_NOTE)

    @property
    def point(self) -> str:
        """The prefix of its quantization points."""
        return self.use.point

    @property
    def output(self) -> Value:
        """The output value of the node."""
        return (self.add or self.use.node).outputs[0]

    def matrix(self, constants: Constants) -> FloatArray:
        """W `[K,N]`; for a convolution, K are the channels of a window, each with its taps.

        Where channels are in groups, N are the output channels of all groups, and K the channels that one of them
        reads.
        """
        array = constants.array(self.use.node.inputs[1])
        assert array is not None
        return np.asarray(self.layout(array.shape).matrix(array), np.float32)

    def layout(self, shape: Sequence[int]) -> Layout:
        """Returns where W `[K,N]` stands in an operand of this shape."""
        if self.use.node.op != "ConvTranspose":
            joined = (shape[0], math.prod(shape[1:]))
            return Layout(joined, (1,), (0,)) if self.transposed else Layout(joined, (0,), (1,))
        groups = attribute(self.use.node, "group", 1)
        return Layout((groups, shape[0] // groups, shape[1], math.prod(shape[2:])), (1, 3), (0, 2))


@dataclass(frozen=True)
class Layout:
    """Where a matrix `[K,N]` stands in the weight of a layer.

    Attributes:
        shape: Shape of the weight, with axes joined or split.
        rows: The axes of that shape that are K.
        columns: Those that are N.
    """

    shape: tuple[int, ...]
    rows: tuple[int, ...]
    columns: tuple[int, ...]

    @property
    def sizes(self) -> tuple[int, int]:
        """K and N."""
        depth, columns = (math.prod(self.shape[k] for k in axes) for axes in (self.rows, self.columns))
        return depth, columns

    def matrix(self, weight: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Returns the matrix in a weight of any shape with these elements."""
        return weight.reshape(self.shape).transpose(*self.rows, *self.columns).reshape(self.sizes)

    def weight(self, matrix: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Returns the weight in which a matrix stands, with the shape of the layout."""
        order = (*self.rows, *self.columns)
        return matrix.reshape([self.shape[k] for k in order]).transpose(np.argsort(order))


@dataclass(frozen=True)
class Unfolded:
    """A convolution that was written as a matmul of its windows.

    Attributes:
        depth: Values in a window: channels, each with its taps.
        rows: The value that each row of the matmul's W multiplies.
    """

    depth: int
    rows: npt.NDArray[np.int64]


def linear_identity(site: LinearSite, constants: Constants) -> dict[str, Any]:
    """Returns what distinguishes a linear layer from another one of the same name: its matmul.

    A convolution has the same identity before and after it is unfolded.
    """
    depth, columns = site.matrix(constants).shape
    if site.unfolded is not None:
        return {"op": "Conv", "products": {"weight": [site.unfolded.depth, columns]}}
    return {"op": site.use.node.op, "products": {"weight": [depth, columns]}}


def input_moment(statistics: Statistics | None, site: LinearSite, constants: Constants) -> npt.NDArray[Any] | None:
    """Returns the second moments `[K,K]` of the input of a site, shrunk for few rows; None where none are known.

    Raises:
        UsageError: The statistics belong to another model.
    """
    if statistics is None:
        return None
    statistics.check_cell(site.point, linear_identity(site, constants))
    seen = statistics.points.get(f"{site.point}.{INPUT}")
    moment = None if seen is None else seen.shrunk_moment
    return moment if moment is None or site.unfolded is None else moment[np.ix_(site.unfolded.rows, site.unfolded.rows)]


def linear_uses(weight: RestWeight) -> Iterator[WeightUse]:
    """Returns the uses of a weight that are matmuls, including convolutions, which multiply windows."""
    return (u for u in weight.uses if u.kind == LINEAR or u.node.op in CONVOLUTIONS)


def has_windows(node: Node) -> bool:
    """Whether an operator is a convolution whose positions are not those of its input, with one element each."""
    shape = shape_of(node.inputs[1]) or ()
    is_plain = len(shape) > 2 and all(v == 1 for v in (*shape[2:], *attribute(node, "strides", ())))
    moves = any(attribute(node, name, ()) for name in ("pads", "output_padding", "output_shape"))
    return node.op in CONVOLUTIONS and (not is_plain or moves)


def is_matmul(use: WeightUse) -> bool:
    """Whether an operator multiplies all channels by one matrix."""
    node = use.node
    return use.kind == LINEAR or (node.op == "Conv" and attribute(node, "group", 1) == 1 and not has_windows(node))


def every_linear_site(
    model: Model, constants: Constants, weights: Iterable[RestWeight] | None = None
) -> Iterator[LinearSite]:
    """Yields the matmuls of a model that `linear_site` can read, including convolutions.

    Args:
        model: The model.
        constants: Its constants.
        weights: The weights to look at, those without a refusal; by default all outside the recurrent layers.
    """
    homes = {id(n): g for g in model.graphs() for n in g.nodes}
    for weight in rest_weights(model) if weights is None else weights:
        for use in linear_uses(weight) if not weight.refusal[0] else ():
            with contextlib.suppress(NotHandled):
                yield linear_site(weight, use, homes[id(use.node)], constants)


def linear_site(weight: RestWeight, use: WeightUse, graph: Graph, constants: Constants) -> LinearSite:
    """Reads a matmul as a site.

    Args:
        weight: A weight that int8 can store.
        use: The matmul.
        graph: The graph that contains it.
        constants: The constants of the model.

    Raises:
        NotHandled: The operator does not support it.
    """
    node = use.node
    transposed = node.op == "Gemm" and bool(attribute(node, "transB", 0))
    if use.operand != 1:
        raise NotHandled(
            "its weight is the left operand.",
            f"{weight.value.name!r} times {node.inputs[1].name!r}",
            "multiply the transposed values from the right, if the layer is to be integer",
        )
    if node.op == "Gemm" and attribute(node, "transA", 0):
        raise NotHandled("it transposes its input.", "transA = 1", "transpose the input in a node of its own")
    if dtype_of(node.inputs[0]) not in (None, np.dtype(np.float32)):
        raise NotHandled("its input is not float32.", str(dtype_of(node.inputs[0])), "export the model in float32")
    array = constants.array(node.inputs[1])
    shape = () if array is None else array.shape
    if node.op == "Einsum":
        transposed = _turns_weight(node)
    if len(shape) != 2 and (node.op not in CONVOLUTIONS or len(shape) < 2):
        raise NotHandled(
            "its weight is no matrix.", f"shape {list(shape)}", "multiply by each matrix in a node of its own"
        )
    site = LinearSite(weight, use, transposed or node.op == "Conv", 1.0, np.zeros(1, np.float32))
    depth, columns = site.layout(shape).sizes
    if depth > LARGEST_DEPTH:
        raise NotHandled("its sums may not be exact.", f"{depth} inputs", f"up to {LARGEST_DEPTH} inputs are supported")
    if node.op == "Gemm":
        return replace(site, alpha=attribute(node, "alpha", 1.0), bias=_own_bias(node, columns, constants))
    if node.op in CONVOLUTIONS:
        return replace(site, bias=_own_bias(node, columns, constants))
    add, bias = _added_bias(node, graph, columns)
    return replace(site, bias=bias, add=add)


def _turns_weight(node: Node) -> bool:
    """Whether an Einsum is a matmul with W transposed (`bk,nk->bn`) instead of plain (`bk,kn->bn`).

    Raises:
        NotHandled: It is neither.
    """
    terms, made = einsum_terms(node)
    if len(terms) == 2 and len(terms[1]) == 2 and terms[0] and made:
        rows, depth, channel = terms[0][:-1], terms[0][-1], made[-1]
        letters = [*rows.replace("...", ""), depth, channel]
        is_product = made == rows + channel and len(set(letters)) == len(letters) and "." not in (depth, channel)
        if is_product and terms[1] in (depth + channel, channel + depth):
            return terms[1][0] == channel
    found = f"equation = {attribute(node, 'equation', '')!r}"
    raise NotHandled("it is no matmul of rows and a matrix.", found, "write it as MatMul, if it is one")


def _own_bias(node: Node, columns: int, constants: Constants) -> FloatArray:
    """The bias of a Gemm or Conv."""
    given = node.inputs[2] if len(node.inputs) > 2 and node.inputs[2].name else None
    beta = attribute(node, "beta", 1.0)
    if given is None or beta == 0.0:
        return np.zeros(1, np.float32)
    array = constants.array(given)
    if array is None or not _is_row(array, columns):
        found = f"{given.name!r} of shape {list(shape_of(given) or ())}" if array is None else f"shape {array.shape}"
        raise NotHandled("its bias is no constant row.", found, "add it in a node of its own")
    row = np.asarray(array, np.float32).reshape(-1)
    return row if beta == 1.0 else np.asarray(np.float32(beta) * row)


def _added_bias(node: Node, graph: Graph, columns: int) -> tuple[Node | None, FloatArray]:
    """The Add that is a matmul's only reader and adds a constant row, with this row; None and [0] without one."""
    none = None, np.zeros(1, np.float32)
    made = node.outputs[0]
    if len(made.outputs) != 1 or any(made is v for v in graph.outputs):
        return none
    (add,) = made.outputs
    if add.op != "Add" or add.domain or all(n is not add for n in graph.nodes) or add.inputs[0] is add.inputs[1]:
        return none
    array = constant_array(add.inputs[1] if add.inputs[0] is made else add.inputs[0])
    if array is None or array.dtype != np.float32 or not np.isfinite(array).all():
        return none
    rank = len(shape_of(made) or ()) or 1
    if not _is_row(array, columns) or array.ndim > rank:
        return none
    return add, array.reshape(-1)


def _is_row(array: npt.NDArray[Any], columns: int) -> bool:
    """Whether an array adds the same row to each row: a scalar, or one number per column."""
    return array.size == 1 or (array.size == columns and array.shape[-1] == columns)
