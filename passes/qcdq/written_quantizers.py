"""Reads the quantizers of a cell in form qcdq back from its nodes, by the names of values and the constants they meet.

Whatever wrote them: nothing here knows the recipe, or the points that the cell says it has.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rnnqc.cells.base import Cell
from rnnqc.formats.encoding import Rounding
from rnnqc.ir import CELL_TAG, Model, Node, Value, constant_array, info
from rnnqc.passes.graph.point_names import alias

Vector = npt.NDArray[np.float64]
QUANTIZED, LIMITED = "quantized", "limited"


@dataclass(frozen=True)
class WrittenQuantizer:
    """The nodes of one quantizer.

    Attributes:
        point: Its quantization point, or what emit_step calls it.
        nodes: By what their values are called behind the point: `codes`, `units`, `clipped`, `quantized`, ...
    """

    point: str
    nodes: dict[str, Node]

    @property
    def has_operators(self) -> bool:
        """Whether QuantizeLinear makes its codes."""
        return "codes" in self.nodes and self.nodes["codes"].op == "QuantizeLinear"

    @property
    def last(self) -> Node:
        """The node that makes the values on the grid."""
        return self.nodes.get(QUANTIZED) or self.nodes[LIMITED]

    @property
    def source(self) -> Value:
        """What is quantized."""
        first = "codes" if self.has_operators else "units" if "units" in self.nodes else "below"
        return self.nodes[first].inputs[0]

    @property
    def rounding(self) -> Rounding | None:
        """How it rounds; None if its nodes are those of no rounding."""
        if self.has_operators:
            return Rounding.HALF_EVEN
        node = self.nodes.get("rounded")
        if node is None:
            return None
        half = {n for n in ("raised", "size.raised") if _is_raised_by_half(self.nodes.get(n))}
        return _ROUNDINGS.get((node.op, *sorted(half)))


_ROUNDINGS = {
    ("Round",): Rounding.HALF_EVEN,
    ("Ceil",): Rounding.CEIL,
    ("Floor",): Rounding.FLOOR,
    ("Floor", "raised"): Rounding.HALF_UP,
    ("Where", "raised"): Rounding.HALF_EVEN_UP,
    ("Mul", "size.raised"): Rounding.HALF_AWAY,
    ("Mul",): Rounding.TOWARD_ZERO,
}


def _is_raised_by_half(node: Node | None) -> bool:
    held = constant_array(node.inputs[1]) if node is not None and node.op == "Add" else None
    return held is not None and held.size == 1 and float(held.ravel()[0]) == 0.5


@dataclass(frozen=True)
class Steps:
    """What a static quantizer does: `scale * clip(round(v / scale), low, high)`.

    Attributes:
        scale: Of one number, or one for each channel.
        low: The least multiple; of a weight, -inf.
        high: The largest one.
        rounding: How it rounds.
    """

    scale: Vector
    low: float
    high: float
    rounding: Rounding | None

    @property
    def step(self) -> float:
        """The scale, of which there is one."""
        return float(self.scale.ravel()[0])


def steps_of(quantizer: WrittenQuantizer) -> Steps | None:
    """What a static quantizer does; None for one whose scale is computed, or none at all."""
    nodes = quantizer.nodes
    scale = constant_array(nodes[QUANTIZED].inputs[1]) if QUANTIZED in nodes else None
    if scale is None:
        return None
    clip = nodes.get("clipped")
    limits = [constant_array(v) for v in clip.inputs[1:]] if clip is not None else []
    low, high = -np.inf, np.inf
    if quantizer.has_operators:
        zero = constant_array(nodes["codes"].inputs[2])
        if zero is None or zero.size != 1:
            return None
        kind = np.iinfo(zero.dtype)
        given = [float(a) for a in limits if a is not None] or [float(kind.min), float(kind.max)]
        low, high = (v - float(zero.ravel()[0]) for v in given)
    elif "units" in nodes and limits and all(a is not None for a in limits):
        low, high = (float(a.ravel()[0]) for a in limits if a is not None)
    return Steps(scale.astype(np.float64), low, high, quantizer.rounding)


def nodes_of_cell(model: Model, cell: Cell) -> Iterator[tuple[str, Node]]:
    """The nodes of a cell in all graphs, with the first value each makes: its name below the cell's, unnumbered."""
    prefix = f"{cell.name}/"
    for graph in model.graphs():
        for node in graph.nodes:
            if info(node).metadata.get(CELL_TAG) == cell.name and node.outputs:
                name = node.outputs[0].name
                if name.startswith(prefix):
                    yield _short(name, prefix), node


def _short(name: str, prefix: str) -> str:
    """A name below that of a cell, without what passes add to names."""
    return alias(f"/{name.removeprefix(prefix)}")[0].removeprefix("/")


def written_quantizers(model: Model, cell: Cell) -> dict[str, list[WrittenQuantizer]]:
    """The quantizers of a cell by the point each is written for; and limits of accumulators."""
    found: dict[str, list[WrittenQuantizer]] = {}
    own, ends = {p.name for p in cell.type.points}, set[int]()
    for name, node in nodes_of_cell(model, cell):
        point, _, what = name.rpartition(".")
        last: Node | None = None
        if what == QUANTIZED or (what == LIMITED and point.startswith("accumulator.")):
            last = node
        elif point in own and (what == "clipped" or (what == "codes" and node.op == "QuantizeLinear")):
            # What leaves a loop may have lost its name to the result of the body.
            last = next((n for n in node.outputs[0].outputs if n.op in ("DequantizeLinear", "Mul")), None)
        if last is not None and id(last) not in ends:
            ends.add(id(last))
            found.setdefault(point, []).append(WrittenQuantizer(point, _nodes_behind(cell, point, last)))
    return found


def _nodes_behind(cell: Cell, point: str, last: Node) -> dict[str, Node]:
    """The nodes that make a quantized value, as far as their values are called like the point."""
    prefix = f"{point}."
    found = {LIMITED if last.op == "Max" else QUANTIZED: last}
    stack = [n for v in last.inputs for n in v.inputs]
    while stack:
        node = stack.pop()
        name = _short(node.outputs[0].name, f"{cell.name}/")
        if name.startswith(prefix) and name.removeprefix(prefix) not in found:
            found[name.removeprefix(prefix)] = node
            stack += [n for v in node.inputs for n in v.inputs]
    return found
