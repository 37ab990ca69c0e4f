"""Writes the operators of a plan in place of a region, after a run that verifies them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rnnqc.ir import Graph, Model, Node, Value, Variable, output_number, safe_name
from rnnqc.ir.builder import Builder
from rnnqc.passes.views.moves import Made, Move, Source, View, slice_operands
from rnnqc.passes.views.plans import Plan
from rnnqc.passes.views.regions import Region, elements


def replace_region(model: Model, graph: Graph, region: Region, plan: Plan) -> bool:
    """Replaces a region by a plan; returns False and changes nothing if the elements differ."""
    planned = [(v, view) for v, view in zip(region.outputs, plan.views, strict=True) if view is not None]
    writer = _Writer(model, region.sources, safe_name(planned[0][0].name))
    made = [writer.output(view) for _, view in planned]
    if not _is_proven(model, region, plan, writer.nodes, made):
        for node in writer.nodes:
            node.inputs.clear()
            node.outputs.clear()
        return False
    kept = {id(n) for n in plan.kept}
    gone = [n for n in region.nodes if id(n) not in kept]
    model.insert_nodes(graph, gone[0], writer.nodes)
    model.remove_nodes(graph, gone)
    for (target, _), value in zip(planned, made, strict=True):
        maker = value.inputs[0]
        target.inputs.clear()
        maker.outputs[output_number(maker, value)] = target
        model.replace_all_uses(value, target, [])
    return True


def _is_proven(model: Model, region: Region, plan: Plan, nodes: Sequence[Node], made: Sequence[Value]) -> bool:
    """Whether operators, run in onnxruntime, produce the same elements as the region."""
    starts = {v.name: t for v, t in zip(region.sources, region.starts, strict=True)}
    found = elements(model, nodes, starts, [v.name for v in made])
    tables = [t for t, view in zip(region.tables, plan.views, strict=True) if view is not None]
    return found is not None and all(np.array_equal(found[v.name], t) for v, t in zip(made, tables, strict=True))


class _Writer:
    """Creates nodes for expressions, one for each distinct operator."""

    def __init__(self, model: Model, sources: Sequence[Value], prefix: str) -> None:
        self._model = model
        self._sources = sources
        self._builder = Builder(model, prefix=prefix)
        self._made: dict[Move, list[Variable]] = {}
        self._given: set[int] = set()

    @property
    def nodes(self) -> list[Node]:
        """The nodes, in order."""
        return self._builder.nodes

    def output(self, view: View) -> Value:
        """Returns a separate value for a view: an Identity if a source or another output is equal."""
        value = self._value(view.made)
        if isinstance(view.made, Source) or id(value) in self._given:
            value = self._builder.op("Identity", [value], "view")
        self._given.add(id(value))
        return value

    def _value(self, made: Made) -> Value:
        if isinstance(made, Source):
            return self._sources[made.number]
        if made.move not in self._made:
            self._made[made.move] = self._written(made.move, [self._value(m) for m in made.move.inputs])
        return self._made[made.move][made.number]

    def _written(self, move: Move, inputs: list[Value]) -> list[Variable]:
        b, operand = self._builder, move.operand
        if move.op == "Reshape":
            return b.ops("Reshape", [*inputs, b.i64(operand[0])], ["view"])
        if move.op == "Transpose":
            return b.ops("Transpose", inputs, ["view"], perm=list(operand))
        if move.op == "Slice":
            return b.ops("Slice", [*inputs, *map(b.i64, slice_operands(operand))], ["view"])
        if move.op == "Gather":
            axis, shape, indices = operand
            return b.ops("Gather", [*inputs, b.i64(np.reshape(indices, shape))], ["view"], axis=axis)
        if move.op == "Concat":
            return b.ops("Concat", inputs, ["view"], axis=operand[0])
        axis, sizes = operand
        return b.ops("Split", [*inputs, b.i64(sizes)], ["view"] * len(sizes), axis=axis)
