"""Reads an ONNX LSTM, GRU or RNN node: makes attributes explicit, checks shapes, finds constants."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from rnnqc.cells.activations import ACTIVATION_NAMES, Activation, make_activation, takes_alpha, takes_beta
from rnnqc.cells.types import CELL_TYPES, CellType, output_names, type_of
from rnnqc.errors import CompileError, NotHandled
from rnnqc.ir import (
    Graph,
    Node,
    Value,
    attribute,
    constant_array,
    display_name,
    dtype_of,
    input_or_none,
    output_or_none,
    shape_of,
)
from rnnqc.passes.graph.nodes.projection import check_projection

TYPE_TAG = "rnnqc.type"
"""Metadata of a node that computes in float32 now: the type it had."""
WEIGHTS_TAG = "rnnqc.weights"
"""Metadata of a node whose weights rnnqc has stored: JSON with their format and size."""
DIRECTIONS = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}
X, W, R, B, SEQUENCE_LENS, INITIAL_H, INITIAL_C, P = range(8)
Shape = list[int | str | None] | None
UNUSED = ("nothing uses it.", "no used output", "remove the node")
"""Reason, found and action for a recurrent node without an effect."""
INPUT_NAMES = ("X", "W", "R", "B", "sequence_lens", "initial_h", "initial_c", "P")


@dataclass(frozen=True)
class Layer:
    """A recurrent node with all attributes explicit. G is the number of its gates.

    Attributes:
        name: Its name in messages.
        type: LSTM, GRU or RNN.
        hidden_size: H.
        input_size: I.
        directions: One flag per direction: whether it is reversed.
        activations: For each direction the activations f, g, h of ONNX, as many as the type has.
        clip: Limit of pre-activations, or None.
        input_forget: LSTM: whether f = 1 - i.
        linear_before_reset: GRU: whether the reset gate multiplies the matmul with R instead of the hidden state.
        weights: W `[D,GH,I]`, R `[D,GH,H]`, B `[D,2GH]` (zeros if absent), P `[D,3H]` or None; float32.
    """

    name: str
    type: CellType
    hidden_size: int
    input_size: int
    directions: tuple[bool, ...]
    activations: tuple[tuple[Activation, ...], ...]
    clip: float | None
    input_forget: bool
    linear_before_reset: bool
    weights: dict[str, npt.NDArray[np.float32] | None]


def is_recurrent(node: Node) -> bool:
    """Whether a node is a layer of a cell type that rnnqc supports."""
    return type_of(node.op, node.domain) is not None


def input_count(type_: CellType) -> int:
    """Returns the maximum number of inputs of the operator."""
    return P + 1 if type_.cell_state else INITIAL_H + 1


def fail(node: Node, message: str, supported: str, action: str = "export the model again") -> CompileError:
    """Returns a CompileError about an invalid recurrent node."""
    return CompileError(
        f'Operator "{node.op}" (node {display_name(node)!r}): {message}', supported=supported, action=action
    )


def read_layer(node: Node) -> Layer:
    """Reads all properties of `node` that a lowering needs; an LSTM, GRU or RNN with layout 0.

    Raises:
        CompileError: The node is invalid.
        NotHandled: It is valid but stays float.
    """
    type_ = CELL_TYPES[node.op]
    directions = _directions(node)
    d, gates = len(directions), len(type_.gates)
    shapes = _shapes(node, type_)
    hidden = _hidden_size(node, shapes)
    if type_.cell_state:
        check_projection(node, hidden, {INPUT_NAMES[k]: shapes[k] for k in (R, INITIAL_H, INITIAL_C)})
    _check_sizes(node, shapes, d, gates, hidden)
    _check_batch(shapes)
    clip = _clip(node)
    flag = _flag(node, type_)
    lens = dtype_of(input_or_none(node, SEQUENCE_LENS))
    if lens is not None and lens != np.int32:
        raise fail(node, f"input sequence_lens is {lens}.", "int32", "put a Cast to int32 in front")
    activations = _activations(node, type_, d)
    if all(output_or_none(node, k) is None for k in range(len(output_names(type_)))):
        raise NotHandled(*UNUSED)
    weights = {
        "W": _weight(node, W, None),
        "R": _weight(node, R, None),
        "B": _weight(node, B, (d, 2 * gates * hidden)),
        "P": _weight(node, P, ()) if P in shapes else None,
    }
    held = weights["W"]
    assert held is not None
    return Layer(
        display_name(node),
        type_,
        hidden,
        held.shape[2],
        directions,
        activations,
        clip,
        flag and type_.flag == "input_forget",
        flag and type_.flag == "linear_before_reset",
        weights,
    )


def _directions(node: Node) -> tuple[bool, ...]:
    direction = attribute(node, "direction", "forward")
    if direction not in DIRECTIONS:
        raise fail(node, f"direction = {direction!r}.", ", ".join(DIRECTIONS))
    return DIRECTIONS[direction]


def _shapes(node: Node, type_: CellType) -> dict[int, Shape]:
    """The shapes of all inputs of the operator, None if unknown; checks their ranks."""
    count = input_count(type_)
    if input_or_none(node, X) is None:
        raise fail(node, "input X is missing.", "X, W and R are required")
    if len(node.inputs) > count and any(v.name for v in node.inputs[count:]):
        raise fail(node, f"{len(node.inputs)} inputs.", f"up to {count}")
    shapes = {k: _shape(node, k) for k in range(count)}
    for k, rank in ((X, 3), (W, 3), (R, 3), (B, 2), (SEQUENCE_LENS, 1), (INITIAL_H, 3), (INITIAL_C, 3), (P, 2)):
        shape = shapes.get(k)
        if shape is not None and len(shape) != rank:
            raise fail(node, f"input {INPUT_NAMES[k]} has shape {shape}.", f"rank {rank}")
    return shapes


def _hidden_size(node: Node, shapes: Mapping[int, Shape]) -> int:
    """H, from the attribute or from R."""
    r = shapes[R]
    hidden = attribute(node, "hidden_size", None)
    if hidden is None and r is not None and isinstance(r[2], int):
        hidden = r[2]
    if hidden is None:
        raise NotHandled(
            "the hidden size is not known.",
            "no attribute hidden_size, and R of unknown shape",
            "export with hidden_size",
        )
    if hidden <= 0:
        raise fail(node, f"hidden_size = {hidden}.", "a positive number")
    return int(hidden)


def _check_sizes(node: Node, shapes: Mapping[int, Shape], d: int, gates: int, hidden: int) -> None:
    """Raises CompileError for inputs whose shapes contradict the numbers of directions and gates, H or I."""
    w = shapes[W]
    size = w[2] if w is not None and isinstance(w[2], int) else None
    if size == 0:
        raise fail(node, "W has no columns (input size 0).", "a positive input size")
    expected: dict[int, list[int | None]] = {
        W: [d, gates * hidden, None],
        R: [d, gates * hidden, hidden],
        B: [d, 2 * gates * hidden],
        P: [d, 3 * hidden],
        X: [None, None, size],
        INITIAL_H: [d, None, hidden],
        INITIAL_C: [d, None, hidden],
    }
    for k, want in expected.items():
        got = shapes.get(k)
        if got is not None and any(
            isinstance(g, int) and e is not None and g != e for g, e in zip(got, want, strict=True)
        ):
            text = ", ".join("?" if e is None else str(e) for e in want)
            raise fail(
                node,
                f"input {INPUT_NAMES[k]} has shape {got}; hidden_size {hidden} and {d} direction(s) need [{text}].",
                f"[{text}]",
            )


def _check_batch(shapes: Mapping[int, Shape]) -> None:
    """Raises NotHandled where inputs declare different batch sizes."""
    axes = ((X, 1), (SEQUENCE_LENS, 0), (INITIAL_H, 1), (INITIAL_C, 1))
    batches = {INPUT_NAMES[k]: shape[axis] for k, axis in axes if (shape := shapes.get(k)) is not None}
    if len({b for b in batches.values() if isinstance(b, int)}) > 1:
        raise NotHandled(
            "the declared batch sizes contradict each other.",
            ", ".join(f"{name}: {b}" for name, b in batches.items()),
            "export the model again, or correct the shapes of its inputs and value_info",
        )


def _clip(node: Node) -> float | None:
    """The limit of pre-activations; None without one."""
    value = attribute(node, "clip", None)
    if value is None:
        return None
    clip = float(value)
    if math.isnan(clip) or clip <= 0:
        raise fail(
            node,
            f"clip = {clip}.",
            "a positive number",
            "leave clip out for no clipping; onnxruntime refuses this, too",
        )
    return None if math.isinf(clip) else clip


def _flag(node: Node, type_: CellType) -> bool:
    """The attribute that selects between two forms of the equations; False for a type without one."""
    flag = attribute(node, type_.flag, 0) if type_.flag is not None else 0
    if flag not in (0, 1):
        raise fail(node, f"{type_.flag} = {flag}.", "0 or 1")
    return bool(flag)


def _shape(node: Node, k: int) -> Shape:
    value = input_or_none(node, k)
    if value is None and k in (W, R):
        raise fail(node, f"input {INPUT_NAMES[k]} is missing.", "X, W and R are required")
    array = constant_array(value)
    return list(array.shape) if array is not None else shape_of(value)


def _weight(node: Node, k: int, default: tuple[int, ...] | None) -> npt.NDArray[np.float32] | None:
    value = input_or_none(node, k)
    name = INPUT_NAMES[k]
    if value is None:
        return np.zeros(default, np.float32) if default else None
    array = constant_weight(value, name)
    check_float32(array.dtype, name)
    x = dtype_of(input_or_none(node, X))
    if x is not None:
        check_float32(x, "X")
    check_finite(array, name)
    if array.shape[0] == 0 or 0 in array.shape:
        raise fail(node, f"input {name} has shape {list(array.shape)}.", "no empty dimension")
    return array


def constant_weight(value: Value, name: str) -> npt.NDArray[Any]:
    """Returns the array of input `name` of a node.

    Raises:
        NotHandled: It is not constant.
    """
    array = constant_array(value)
    if array is None:
        raise NotHandled(
            f"{name} is not constant.",
            f"{name} is {describe_source(value)}",
            "make the weights initializers, or constant expressions of initializers",
        )
    return array


def check_float32(dtype: np.dtype[Any], name: str) -> None:
    """Raises NotHandled for input `name` of another type."""
    if dtype != np.float32:
        raise NotHandled(f"{name} is {dtype}.", f"{name} of type {dtype}", "convert the layer to float32")


def check_finite(array: npt.NDArray[Any], name: str) -> None:
    """Raises NotHandled for weights `name` with NaN or infinity."""
    if not np.isfinite(array).all():
        raise NotHandled(
            f"{name} is not finite.",
            f"NaN or infinity in {name}",
            "repair the weights; the float layer computes nothing useful either",
        )


def used_output(graph: Graph, node: Node, k: int) -> Value | None:
    """Returns output k of the node if it is used."""
    value = output_or_none(node, k)
    if value is None or not (value.outputs or any(v is value for v in graph.outputs)):
        return None
    return value


def describe_source(value: Value) -> str:
    """Describes the source of a value, for messages."""
    if value.inputs:
        return f"the output of node {display_name(value.inputs[0])!r} ({value.inputs[0].op})"
    return f"the graph input {value.name!r}"


def _activations(node: Node, type_: CellType, d: int) -> tuple[tuple[Activation, ...], ...]:
    count = len(type_.activations)
    names = attribute(node, "activations", None)
    if names is None:
        names = list(type_.activations) * d
    if len(names) != count * d:
        wanted = ", ".join("fgh"[:count])
        raise fail(node, f"{len(names)} activations for {d} direction(s).", f"{count * d}: {wanted} for each direction")
    alphas = list(attribute(node, "activation_alpha", None) or [])
    betas = list(attribute(node, "activation_beta", None) or [])
    found: list[Activation] = []
    for name in names:
        if name.lower() not in {n.lower() for n in ACTIVATION_NAMES}:
            raise fail(node, f"activation {name!r}.", ", ".join(ACTIVATION_NAMES))
        alpha = alphas.pop(0) if alphas and takes_alpha(name) else None
        beta = betas.pop(0) if betas and takes_beta(name) else None
        try:
            found.append(make_activation(name, alpha, beta))
        except ValueError as error:
            raise fail(node, f"activation {name} with {error}.", "finite parameters up to 2^20") from error
    return tuple(tuple(found[count * k : count * (k + 1)]) for k in range(d))
