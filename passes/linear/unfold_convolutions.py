"""Converts convolutions with few positions to matmuls."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from rnnqc.evaluation.numerics import Close
from rnnqc.ir import Graph, Model, Node, Value, attribute, constant_array, display_name, info, safe_name, shape_of
from rnnqc.ir.builder import Builder
from rnnqc.passes.analysis.linear_sites import UNFOLDED_NOTE, Unfolded
from rnnqc.passes.base import Pass, PassInfo, PassResult
from rnnqc.passes.invariants import Property
from rnnqc.passes.views.shapes import infer_shapes_of_values

MOST_POSITIONS = 4
"""Beyond, onnxruntime's convolution is as fast as its matmul with the operators that make windows."""
LEAST_WEIGHTS = 2**13
"""Below so many weights these operators take as long as the convolution."""
_NO_PADS = ("NOTSET", "VALID")


class UnfoldConvolutions(Pass):
    """Converts a Conv along one axis with few known positions to a matmul of its windows.

    Before: `Conv(x [N,C,L], W float32 [M,C,k], b)` with up to four positions, optionally followed by a Relu

    After: `Transpose(x) -> Concat(zeros, x, zeros) -> Gather -> Reshape [N*P,k*C] -> Gemm(W [M,k*C], b) -> Relu ->
    Reshape -> Transpose [N,M,P]`

    onnxruntime's convolution computes eight or sixteen positions at a time, even if there are fewer; its matmul as many
    channels. So streams with a few frames per call take half the time. Weights that only multiply padding are removed;
    where a window is the whole input, the first four operators are one Reshape.

    A Conv stays if its length does not follow from the inputs of the model, if it has groups or `auto_pad`, or if its
    weight is not constant or has other readers.
    """

    info = PassInfo(
        name="unfold-convolutions",
        summary="write convolutions over few positions as matmuls",
        numerics=Close(1e-5),
        requires=frozenset({Property.CANONICAL}),
    )

    def run(self, model: Model) -> PassResult:
        """Looks at every graph."""
        held = {id(v) for g in model.graphs() for v in g.outputs}
        found = [(g, n) for g in model.graphs() for n in g.nodes if _is_candidate(n)]
        if found:
            infer_shapes_of_values(model)
        sites = [(graph, site) for graph, node in found if (site := _site(node, held)) is not None]
        for graph, site in sites:
            _replace(model, graph, site)
        return PassResult(bool(sites), (), {"convolutions": len(sites)})


@dataclass(frozen=True)
class _Site:
    """A convolution that can become a matmul.

    Attributes:
        node: The Conv.
        weight: `[M,C,k]`, without taps that only multiply padding.
        taps: The taps of the convolution that the weight has, `[k]`.
        windows: For each position the elements of its window, `[P,k]`, as indices of the padded input.
        pads: Number of zeros in front of the input and behind it.
        shape: Shape of the input; the first size may be unknown.
        relu: The Relu that is the only reader of the result, or None.
    """

    node: Node
    weight: npt.NDArray[np.float32]
    taps: npt.NDArray[np.int64]
    windows: npt.NDArray[np.int64]
    pads: tuple[int, int]
    shape: Sequence[Any]
    relu: Node | None

    @property
    def is_whole(self) -> bool:
        """Whether there is one window, which is the whole input."""
        return not any(self.pads) and self.windows.tolist() == [list(range(self.shape[2]))]


def _is_candidate(node: Node) -> bool:
    """Whether a node is a Conv along one axis with its own constant weight."""
    if node.op != "Conv" or node.domain or attribute(node, "group", 1) != 1:
        return False
    array = constant_array(node.inputs[1])
    if array is None or array.dtype != np.float32 or array.ndim != 3 or array.size < LEAST_WEIGHTS:
        return False
    return len(node.inputs[1].outputs) == 1 and attribute(node, "auto_pad", _NO_PADS[0]) in _NO_PADS


def _site(node: Node, held: set[int]) -> _Site | None:
    """Reads a Conv; None if its length is unknown or it has many positions."""
    shape, weight = shape_of(node.inputs[0]), constant_array(node.inputs[1])
    if shape is None or len(shape) != 3 or not isinstance(shape[2], int) or weight is None:
        return None
    before, behind = attribute(node, "pads", [0, 0])
    taps, step = np.arange(weight.shape[2]) * attribute(node, "dilations", [1])[0], attribute(node, "strides", [1])[0]
    positions = (shape[2] + before + behind - taps[-1] - 1) // step + 1
    if not 0 < positions <= MOST_POSITIONS or min(before, behind) < 0:
        return None
    windows = step * np.arange(positions)[:, None] + taps
    meets = ((windows >= before) & (windows < before + shape[2])).any(axis=0)
    windows, weight = windows[:, meets], weight[:, :, meets]
    pads = before - min(before, windows.min(initial=before)), max(0, windows.max(initial=0) + 1 - before - shape[2])
    windows = windows - (before - pads[0])
    if not meets.any() or (positions == 1 and weight.shape[2] == shape[2] == taps.size == 1):
        return None
    made = node.outputs[0]
    readers = made.outputs if id(made) not in held else []
    relu = readers[0] if len(readers) == 1 and readers[0].op == "Relu" and not readers[0].domain else None
    return _Site(node, weight, np.flatnonzero(meets), windows, (int(pads[0]), int(pads[1])), shape, relu)


def _replace(model: Model, graph: Graph, site: _Site) -> None:
    """Replaces a Conv and its Relu by a Gemm, between operators that only move elements."""
    node, last = site.node, site.relu or site.node
    channels, positions = len(site.weight), len(site.windows)
    order = (0, 1, 2) if site.is_whole else (0, 2, 1)
    matrix = np.ascontiguousarray(site.weight.transpose(order)).reshape(channels, -1)
    b = Builder(model, prefix=safe_name(display_name(node)))
    windows = node.inputs[0] if site.is_whole else _windows(b, site)
    rows = b.op("Reshape", [windows, b.i64([-1, matrix.shape[1]])], "rows")
    w = model.add_initializer(node.inputs[1].name, matrix)
    made = b.op("Gemm", [rows, w, *node.inputs[2:3]], "product", transB=1)
    b.nodes[-1].name = node.name
    info(b.nodes[-1]).notes[UNFOLDED_NOTE] = _unfolded(site, order)
    if site.relu is not None:
        made = b.op("Relu", [made], "relu")
    if positions > 1:
        made = b.op("Reshape", [made, b.i64([-1, positions, channels])], "positions")
        b.add("Transpose", [made], last.outputs[:1], "channels_first", perm=[0, 2, 1])
    else:
        b.add("Reshape", [made, b.i64([-1, channels, 1])], last.outputs[:1], "channels_first")
    model.insert_nodes(graph, last, b.nodes)
    model.remove_nodes(graph, [node] if site.relu is None else [node, site.relu])


def _unfolded(site: _Site, order: Sequence[int]) -> Unfolded:
    """Where the rows of the matmul's W were in the convolution's weight, `[C,k]` for each output channel."""
    weight = constant_array(site.node.inputs[1])
    assert weight is not None
    number = np.arange(weight[0].size).reshape(1, *weight.shape[1:])[:, :, site.taps]
    return Unfolded(weight[0].size, number.transpose(order).reshape(-1))


def _windows(b: Builder, site: _Site) -> Value:
    """`[N,P,k,C]`; keeps elements adjacent that are adjacent in all windows.

    A Pad where the batch is known would keep the operators around it from becoming one node.
    """
    x, pads, (batch, channels, length) = site.node.inputs[0], site.pads, site.shape
    x = b.op("Transpose", [x], "channels_last", perm=[0, 2, 1])
    if any(pads) and isinstance(batch, int):
        zeros = [b.f32(np.zeros((batch, n, channels))) if n else None for n in pads]
        x = b.op("Concat", [v for v in (zeros[0], x, zeros[1]) if v is not None], "padded", axis=1)
    elif any(pads):
        x = b.op("Pad", [x, b.i64([0, pads[0], 0, 0, pads[1], 0])], "padded")
    windows, size = site.windows, 1
    if (np.diff(windows, axis=1) == 1).all():
        size = math.gcd(length + sum(pads), windows.shape[1], *windows[:, 0].tolist())
    if size > 1:
        x = b.op("Reshape", [x, b.i64([-1, (length + sum(pads)) // size, size * channels])], "neighbours")
    return b.op("Gather", [x, b.i64(windows[:, ::size] // size)], "windows", axis=1)
