"""Joins the unrolled steps of a custom cell into a Scan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from rnnqc.errors import NotHandled, Outcome, Remark
from rnnqc.evaluation.numerics import Close
from rnnqc.ir import Graph, Model, Node, Value, Variable, display_name, dtype_of, shape_of
from rnnqc.ir.builder import Builder
from rnnqc.passes.analysis.custom_products import read_product
from rnnqc.passes.analysis.float_recurrences import FloatRecurrence, float_recurrences
from rnnqc.passes.analysis.unrolled_steps import (
    ELEMENTWISE,
    SameNode,
    Source,
    UnrolledSteps,
    equal_values,
    unrolled_steps,
)  # fmt: skip
from rnnqc.passes.base import Pass, PassInfo, PassResult
from rnnqc.passes.custom_cells.first_step import with_copies
from rnnqc.passes.graph.loops.loop_states import bodies
from rnnqc.passes.graph.values.constant_expressions import Constants, StoredFloats
from rnnqc.passes.graph.values.index_expressions import Index, Indices
from rnnqc.passes.invariants import Property
from rnnqc.passes.recover.loops.step_shapes import StepShapes
from rnnqc.passes.recover.recovery_sites import RecoverySites

_ROWS = 2
"""Rank of states and elements: rows of the batch, and columns."""


class RollCustomSteps(RecoverySites, Pass):
    """Replaces the unrolled steps of a custom cell by a Scan over the stacked inputs.

    Before: `h_0 = f(x_0, h); h_1 = f(x_1, h_0); ...`, one copy of the nodes of f for each step

    After: `Scan(h, Concat(Unsqueeze(x_0), Unsqueeze(x_1), ...); f) -> h_n, Y; Gather(Y, 0) -> h_0; ...`

    The pass proves the step node by node: every node of a step reads values of the same step, values of the previous
    step, values that all steps read, or its own element or constant, which no step computes. Otherwise the steps stay,
    with a note, as they do if a state may change its shape. Constants of one row that each step has for itself become
    one for each row of the batch, where operators are elementwise. Values that all steps read and that follow from
    constants become initializers. The bits stay the same, except if an initial state of one row is repeated for the
    batch: then its matmuls may be summed in another order.
    """

    info = PassInfo(
        name="roll-custom-steps",
        summary="join the unrolled steps of custom cells into Scan",
        numerics=Close(1e-5),
        requires=frozenset({Property.CANONICAL}),
    )

    def run(self, model: Model) -> PassResult:
        """Rolls the unrolled recurrences of every graph."""
        self.sites = []
        remarks: list[Remark] = []
        seen: set[str] = set()
        steps = 0
        while (found := _next(model, seen)) is not None:
            graph, recurrence = found
            path, op = recurrence.path, recurrence.op
            try:
                self.check_kept(path)
                rolled, batch, constants = with_copies(model, graph, partial(_steps, model, graph, recurrence))
            except NotHandled as why:
                remarks.append(self.refused(Outcome.NOTE, path, op, why))
                seen.add(path)
                continue
            _Rolling(model, graph, rolled, recurrence, batch, constants).run()
            self.sites.append(path)
            steps += rolled.count
            remarks.append(self.remark(Outcome.NOTE, path, op, f"a Scan made of {rolled.count} unrolled steps."))
            model.remove_dead()
            model.sort()
            model.infer_shapes()
        return PassResult(bool(self.sites), tuple(remarks), {"scans": len(self.sites), "steps": steps})


def _next(model: Model, seen: set[str]) -> tuple[Graph, FloatRecurrence] | None:
    """Returns an unrolled recurrence that is not in `seen`, and its graph; None if there are none.

    Steps without a product that can be quantized stay.
    """
    unrolled = (r for r in float_recurrences(model) if r.loop is None and any(map(_is_read, r.products)))
    found = next((r for r in unrolled if r.path not in seen), None)
    if found is None:
        return None
    first = found.products[0]
    return next(g for g, _, _ in bodies(model) if any(n is first for n in g.nodes)), found


def _is_read(node: Node) -> bool:
    """Whether a matmul can be quantized."""
    try:
        read_product(node)
    except NotHandled:
        return False
    return True


def _steps(model: Model, graph: Graph, recurrence: FloatRecurrence) -> tuple[UnrolledSteps, Value | None, Constants]:
    """Returns the steps of a recurrence, what `_rows_to_repeat` says of them, and the constants of the graph."""
    constants = Constants(model)
    indices = Indices(constants, shape_of)
    steps = unrolled_steps(graph, recurrence, indices)
    return steps, _rows_to_repeat(model, steps, indices, constants), constants


def _rows_to_repeat(model: Model, steps: UnrolledSteps, indices: Indices, constants: Constants) -> Value | None:
    """Returns an element with the rows of the batch if initial states have one row for all of them; else None.

    Raises:
        NotHandled: A state is not known to keep the shape of its initial value.
    """
    sources = [s for same in steps.nodes for s in same.inputs if s.late or s.element]
    entering = {id(s.values[0]): s.values[0] for s in sources}
    dims = {k: list(d) for k, v in entering.items() if (d := indices.dimensions(v)) is not None}
    elements = [s.values[0] for s in sources if s.element and constants.array(s.values[0]) is None]
    elements = [v for v in elements if len(dims.get(id(v), [])) == _ROWS]
    repeated: Value | None = None
    for source in sources:
        start = dims.get(id(source.values[0]), [])
        if source.late and len(start) == _ROWS and start[0] == Index(1) and elements:
            batch = dims[id(elements[0])][0]
            if batch != Index(1):
                repeated, start[0] = elements[0], batch
    given = [(v, dims[k]) for k, v in entering.items() if k in dims]
    shapes = StepShapes(model, [same.nodes[0] for same in steps.nodes], given, indices)
    for source in sources:
        if source.maker is not None:
            start, made = source.values[0], source.maker.nodes[0].outputs[source.output]
            sizes = shapes.of(start), shapes.of(made)
            declared = shape_of(start), shape_of(made)
            if not any(_known(one) and one == other for one, other in (sizes, declared)):
                found = f"{start.name!r} {sizes[0]} becomes {made.name!r} {sizes[1]}"
                raise NotHandled("its unrolled steps stay: a state may change its shape.", found, "none")
    return repeated


def _known(sizes: Sequence[int | str | None] | None) -> bool:
    return sizes is not None and None not in sizes


def _takes_rows(node: Node, position: int) -> bool:
    """Whether an input may have a row of numbers for each row of the batch, where it has one for all of them."""
    others = [v for k, v in enumerate(node.inputs) if k != position]
    return node.op in ELEMENTWISE and not node.domain and all(len(shape_of(v) or ()) == _ROWS for v in others)


@dataclass(eq=False)
class _Formal:
    """An input of the Scan's body.

    Attributes:
        source: The source of its values.
        value: The input.
    """

    source: Source
    value: Variable


@dataclass(eq=False)
class _Result:
    """An output of a node of a step.

    Attributes:
        values: Its value in each step.
        used: The numbers of the steps whose value is read outside the steps.
        inside: The value in the body of the Scan.
    """

    values: list[Value]
    used: list[int]
    inside: Value


class _Rolling:
    """The work on one recurrence."""

    def __init__(
        self,
        model: Model,
        graph: Graph,
        steps: UnrolledSteps,
        recurrence: FloatRecurrence,
        batch: Value | None,
        constants: Constants,
    ) -> None:
        self.model, self.graph, self.steps, self.batch, self.constants = model, graph, steps, batch, constants
        self.name = model.fresh_name(f"{display_name(recurrence.products[0])}.steps")
        self.b, self.inner = Builder(model, prefix=self.name), Builder(model, prefix=self.name)
        self.states: list[_Formal] = []
        self.elements: list[_Formal] = []
        self._stored = StoredFloats(constants)
        self._members = {id(n) for n in steps.members}
        self._kept = {id(v) for g in model.graphs() for v in g.outputs}
        elements = [s for same in steps.nodes for s in same.inputs if s.element]
        of_rows = [s.values[0] for s in elements if not self._arrays(s)]
        self._element = next((v for v in of_rows if len(shape_of(v) or ()) == _ROWS), None)
        self._whole = {
            id(s.values[0])
            for same in steps.nodes
            for k, s in enumerate(same.inputs)
            if s.element and not _takes_rows(same.nodes[0], k)
        }

    def run(self) -> None:
        """Replaces the steps by the Scan."""
        given = [[self._given(s) for s in same.inputs] for same in self.steps.nodes]
        made = {id(same): self._results(same) for same in self.steps.nodes}
        self.model.remove_nodes(self.graph, self.steps.members)
        for same, inputs in zip(self.steps.nodes, given, strict=True):
            node = same.nodes[0]
            for source, value in zip(same.inputs, inputs, strict=True):
                earlier = None if source.late else source.maker
                node.inputs.append(value if earlier is None else made[id(earlier)][source.output].inside)
            node.outputs.extend([r.inside for r in made[id(same)]])
            self.inner.nodes.append(node)
        carried = [made[id(f.source.maker)][f.source.output] for f in self.states]
        self._scan(carried, [r for results in made.values() for r in results])
        self.graph.nodes.extend(self.b.nodes)

    def _results(self, same: SameNode) -> list[_Result]:
        """Returns the outputs of the node in all steps."""
        results = []
        for values in zip(*(n.outputs for n in same.nodes[: self.steps.count]), strict=True):
            used = [k for k, v in enumerate(values) if self._is_used(v)]
            inside = values[0]
            if 0 in used:
                inside = self.inner.value(f"{inside.name}.step", dtype_of(inside), shape_of(inside))
            results.append(_Result(list(values), used, inside))
        return results

    def _is_used(self, value: Value) -> bool:
        return id(value) in self._kept or any(id(n) not in self._members for n in value.outputs)

    def _given(self, source: Source) -> Value:
        """Returns the value that a node of the body reads; for values of the same step that of the first step."""
        if source.same:
            return self._stored.of(source.values[0]) or source.values[0]
        if not (source.late or source.element):
            return source.values[0]
        held = self.states if source.late else self.elements
        same = next((f for f in held if self._equal(f.source, source)), None)
        if same is None:
            first = source.values[0]
            name = self.model.fresh_name(f"{first.name}.{'before' if source.late else 'element'}")
            shape = [None, None] if self._has_rows(source) else shape_of(source.values[1 if source.late else 0])
            same = _Formal(source, Variable(name, dtype_of(first), shape))
            self.model.hold(same.value)
            held.append(same)
        return same.value

    def _equal(self, one: Source, other: Source) -> bool:
        if one.late:
            made = one.maker is other.maker and one.output == other.output
            return made and equal_values(one.values[0], other.values[0])
        count = self.steps.count
        return all(a is b for a, b in zip(one.values[:count], other.values[:count], strict=True))

    def _scan(self, carried: Sequence[_Result], every: Sequence[_Result]) -> None:
        """Adds the Scan, and after it a Gather for each value of a single step that is read."""
        outputs: list[Value] = []
        for result in carried:
            if result.used == [self.steps.count - 1]:
                outputs.append(result.values[-1])
                result.used = []
            else:
                outputs.append(self.b.value("final", dtype_of(result.inside)))
        read = [r for r in every if r.used]
        outputs += [self.b.value("output", dtype_of(r.inside)) for r in read]
        distinct: list[Value] = []
        for value in [r.inside for r in (*carried, *read)]:
            again = any(v is value for v in distinct)
            distinct.append(self.inner.op("Identity", [value], "result") if again else value)
        body = self.inner.graph([f.value for f in (*self.states, *self.elements)], distinct, "body")
        given = [*map(self._initial, self.states), *map(self._sequence, self.elements)]
        scan = self.b.add("Scan", given, outputs, "scan", body=body, num_scan_inputs=len(self.elements))
        scan.name = self.name
        for result, sequence in zip(read, outputs[len(carried) :], strict=True):
            for k in result.used:
                self.b.add("Gather", [sequence, self.b.i64(k)], [result.values[k]], "step", axis=0)

    def _initial(self, state: _Formal) -> Value:
        value = state.source.values[0]
        shape = shape_of(value)
        if self.batch is None or shape is None or len(shape) != _ROWS or shape[0] != 1:
            return value
        rows = self.b.op("Slice", [self.b.op("Shape", [self.batch], "shape"), self.b.i64([0]), self.b.i64([1])], "rows")
        sizes = self.b.op("Concat", [rows, self.b.i64([1])], "sizes", axis=0)
        return self.b.op("Expand", [value, sizes], "initial")

    def _arrays(self, element: Source) -> list[npt.NDArray[Any]]:
        """Returns the constants of an element; none if it is computed."""
        arrays = [self.constants.array(v) for v in element.values[: self.steps.count]]
        known = [a for a in arrays if a is not None]
        return known if len(known) == len(arrays) else []

    def _has_rows(self, source: Source) -> bool:
        """Whether constants of one row become one for each row of the batch, which alone has a kernel."""
        if not source.element or self._element is None or id(source.values[0]) in self._whole:
            return False
        return any(a.ndim <= 1 or (a.ndim == _ROWS and len(a) == 1) for a in self._arrays(source)[:1])

    def _sequence(self, element: _Formal) -> Value:
        values = element.source.values[: self.steps.count]
        arrays = self._arrays(element.source)
        if arrays and self._has_rows(element.source) and self._element is not None:
            one = np.stack([np.reshape(a, (1, -1)) for a in arrays])
            shape = self.b.op("Shape", [self._element], "shape")
            rows = self.b.op("Slice", [shape, self.b.i64([0]), self.b.i64([1])], "rows")
            sizes = self.b.op("Concat", [self.b.i64([1]), rows, self.b.i64([1])], "sizes", axis=0)
            return self.b.op("Expand", [self.model.add_initializer(f"{self.name}/constants", one), sizes], "sequence")
        if arrays:
            return self.model.add_initializer(f"{self.name}/constants", np.stack(arrays))
        rows = [self.b.op("Unsqueeze", [v, self.b.i64([0])], "row") for v in values]
        return self.b.op("Concat", rows, "sequence", axis=0)
