"""Passes the quantized hidden states of exported cells directly to the cells that read them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from rnnqc.cells.fixed_point_numbers import BYTE, FixedPointNumbers
from rnnqc.cells.stages import IntegerCell
from rnnqc.formats.point_format import CHAINED
from rnnqc.ir import Graph, Model, Node, Value
from rnnqc.passes.cells.boundary import Boundary
from rnnqc.passes.cells.cell_graphs import chain_sources, replace_cell
from rnnqc.passes.fold.integer_operands import Operands
from rnnqc.passes.render.cell_function import emit_integer
from rnnqc.passes.render.fold_scales import pass_codes

NEAREST = ("half_even", "half_away", "half_up", "half_even_up")


@dataclass
class ReadCell:
    """An integer cell, with the inputs for building its nodes."""

    cell: IntegerCell
    graph: Graph
    numbers: FixedPointNumbers
    at: Boundary
    operands: Operands

    def emit(self, model: Model, codes: Value | None) -> Sequence[Node]:
        """Returns the nodes of the cell; `codes` receives its quantized hidden states."""
        return emit_integer(model, self.cell, self.numbers, self.at, self.operands, codes, dispatch=True)


def chain_codes(model: Model, sites: Mapping[str, ReadCell]) -> None:
    """Passes quantized values between cells, given by name, if a cell reads hidden states of other cells only."""
    codes: dict[str, Value] = {}
    changed: dict[str, ReadCell] = {}
    for name, site in sites.items():
        sources = [sites.get(c.name) for c, _ in chain_sources(model, site.at.x) or []]
        if not sources or not all(s is not None and _same_codes(s.numbers, site.numbers) for s in sources):
            continue
        site.at = replace(site.at, x=pass_codes(model, site.graph, site.cell, site.at.x, codes))
        site.numbers = replace(site.numbers, x_mode="codes")
        point = replace(site.cell.points["input"], mode=CHAINED)
        site.cell = replace(site.cell, x=site.at.x.name, numbers=site.numbers).with_point("input", point)
        changed |= {n: sites[n] for n in (name, *(s.cell.name for s in sources if s is not None))}
    for name, site in changed.items():
        target = codes.get(name)
        site.cell = replace(site.cell, y_codes=target.name if target is not None else None)
        model.cells[name] = site.cell
        replace_cell(model, site.graph, site.cell, site.emit(model, target))


def _same_codes(provider: FixedPointNumbers, consumer: FixedPointNumbers) -> bool:
    """Whether the consumer would quantize the provider's values to the same ones; with some roundings it would not."""
    hidden, x = provider.hidden, consumer.input
    same = replace(hidden, rounding=x.rounding, offset=x.offset) == x
    return same and x.rounding in NEAREST and hidden.maximum <= BYTE
