"""Constants of few bits with the weights of a recurrent node, and the standard operators that dequantize them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from rnnqc.formats.packing import NIBBLE_BITS, pack
from rnnqc.ir import Graph, Model, Node, Value, constant_array, safe_name
from rnnqc.ir.builder import Builder
from rnnqc.passes.formats.quantized_parameters import weight_codes
from rnnqc.passes.formats.weight_formats import weight_format
from rnnqc.recipes.keys import Settings

RAISED = 8
"""The zero point of packed quantized values: a nibble v stands for v - 8."""


@dataclass
class WeightMatrix:
    """The weights `[rows,K]` of one direction, for all nodes that share them.

    Attributes:
        name: The first quantization point that uses them.
        source: The constant `[D,rows,K]` that contains them.
        direction: Their index in it.
        graph: The graph of the constant.
        settings: Their settings in the recipe.
        gates: Number of gates among the rows.
        moments: Second moments of the inputs, from the calibration of each use.
        stored: The dequantized value `[1,rows,K]`, once it is created.
        size: Size of the stored constants in bytes.
        counted: Whether a node has counted the size.
    """

    name: str
    source: Value
    direction: int
    graph: Graph
    settings: Settings
    gates: int
    moments: list[npt.NDArray[Any]] = field(default_factory=list)
    stored: Value | None = None
    size: int = 0
    counted: bool = False

    @property
    def array(self) -> npt.NDArray[np.float32]:
        """Returns a copy `[K,rows]`, the layout of cells."""
        array = constant_array(self.source)
        assert array is not None
        return np.ascontiguousarray(array[self.direction].T)


def is_float16(s: Settings) -> bool:
    """Whether weights are stored as float16."""
    return bool(s.get("store", "integer") == "float16")


def format_of(matrix: WeightMatrix | None) -> str:
    """Returns the storage type of the weights."""
    if matrix is None:
        return "float32"
    return "float16" if is_float16(matrix.settings) else f"int{matrix.settings['bits']}"


def store_weights(model: Model, node: Node, k: int, matrices: Sequence[WeightMatrix | None]) -> None:
    """Replaces input k of `node` by a value computed from quantized weights; a direction that is None stays float."""
    source = node.inputs[k]
    array = constant_array(source)
    assert array is not None
    home = next(m.graph for m in matrices if m)
    parts: list[Value] = []
    for d, matrix in enumerate(matrices):
        if matrix is None:
            name = f"{safe_name(source.name)}/direction_{d}"
            parts.append(model.add_initializer(name, np.ascontiguousarray(array[d : d + 1]), home))
            continue
        if matrix.stored is None:
            matrix.stored = _dequantized(model, matrix)
        parts.append(matrix.stored)
    if len(parts) == 1:
        node.inputs[k] = parts[0]
        return
    known = next(
        (c for c in parts[0].outputs if c.op == "Concat" and [id(v) for v in c.inputs] == [id(v) for v in parts]), None
    )
    if known is None:
        builder = Builder(model, prefix=matrices[0].name if matrices[0] else safe_name(source.name))
        joined = builder.op("Concat", parts, "directions", axis=0)
        _place(home, builder.nodes)
        known = joined.inputs[0]
    node.inputs[k] = known.outputs[0]


def _place(graph: Graph, nodes: Sequence[Node]) -> None:
    """Inserts nodes with constant inputs at the front; the pass sorts at the end."""
    graph.nodes[:0] = list(nodes)


def _dequantized(model: Model, matrix: WeightMatrix) -> Value:
    """Stores the quantized values; returns the float value `[1,rows,K]` computed from them."""
    builder = Builder(model, prefix=matrix.name)
    array = matrix.array
    rows = array.shape[1]

    def constant(name: str, held: npt.NDArray[Any]) -> Value:
        # onnxruntime 1.31 fails on a DequantizeLinear in a subgraph with constants of an outer graph.
        matrix.size += held.nbytes
        return model.add_initializer(f"{matrix.name}.{name}", held, matrix.graph)

    if is_float16(matrix.settings):
        half = constant("half", np.ascontiguousarray(array.T, np.float16)[None])
        value: Value = builder.cast(half, np.float32, "float")
        _place(matrix.graph, builder.nodes)
        return value
    moment = np.mean(matrix.moments, axis=0) if matrix.moments else None
    point = weight_format(matrix.settings, array, np.ones(rows), matrix.name, matrix.gates)
    held, codes = point.complete, weight_codes(point, array, moment)
    scale, zero_point = held.linear_parameters()
    if held.bits <= NIBBLE_BITS:
        raised = RAISED if held.signed else 0  # the offset that makes the nibbles unsigned
        nibbles = pack(codes.astype(np.int16) + raised - RAISED)
        packed = constant("packed", np.ascontiguousarray(nibbles.T)[None])
        low = builder.op("Mod", [packed, builder.u8(16)], "low")
        high = builder.op("BitShift", [packed, builder.u8(4)], "high", direction="RIGHT")
        stored: Value = builder.op("Concat", [low, high], "codes", axis=1)
        if rows % 2:
            stored = builder.op("Slice", [stored, builder.i64([0]), builder.i64([rows]), builder.i64([1])], "rows")
        zero_point = (zero_point.astype(np.int16) + raised).astype(np.uint8)
    else:
        stored = constant("codes", np.ascontiguousarray(codes.T)[None])
    inputs = [stored, constant("scale", scale), constant("zero_point", zero_point)]
    value = builder.op("DequantizeLinear", inputs, "float", **({} if held.axis is None else {"axis": 1}))
    _place(matrix.graph, builder.nodes)
    return value
