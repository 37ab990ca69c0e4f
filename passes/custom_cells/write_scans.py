"""Rewrites loops of custom cells as Scans, which can become one node each."""

from __future__ import annotations

import numpy as np

from rnnqc.errors import NotHandled, Outcome, Remark
from rnnqc.evaluation.numerics import Bitwise
from rnnqc.ir import Graph, Model, Node, Value, Variable, dtype_of, info, shape_of
from rnnqc.ir.builder import Builder
from rnnqc.passes.analysis.float_recurrences import float_recurrences
from rnnqc.passes.base import Pass, PassInfo, PassResult
from rnnqc.passes.custom_cells.loop_step import LoopStep
from rnnqc.passes.graph.loops.loop_states import bodies
from rnnqc.passes.graph.values.constant_expressions import Constants
from rnnqc.passes.graph.values.index_expressions import Index
from rnnqc.passes.graph.values.sequence_elements import NEW, changed_axes
from rnnqc.passes.invariants import Property
from rnnqc.passes.recover.loops.filled_sequences import Results, filled_results
from rnnqc.passes.recover.loops.loop_bounds import trips_of
from rnnqc.passes.recover.loops.loop_rewrite import LoopRewrite
from rnnqc.passes.recover.loops.loop_to_sequence import Vectorizer
from rnnqc.passes.recover.loops.sequence_operators import Sequence
from rnnqc.passes.recover.loops.step_shapes import Sizes, StepShapes
from rnnqc.passes.recover.recovery_sites import RecoverySites

STAYS_LOOP = "stays a Loop"
"""Key of the note that says why a Loop was not rewritten as a Scan."""
_ROWS = 2
"""Rank of states and elements in a custom cell node: rows of the batch, and columns."""


class WriteScans(RecoverySites, Pass):
    """Replaces the Loop of a custom cell by a Scan over the same sequences.

    Before: `Loop(T, true, [], h, c; x_t = X[t]; ...; seq' = SequenceInsert(seq, h')) -> seq, h', c'`, and
    `ConcatFromSequence(seq)`

    After: `Scan(h, c, X; ...) -> h', c', Y`

    Elements that the body reads from outer sequences become inputs of the Scan, and so do conditions on the iteration
    number (`t < lengths`); sequences that it fills become outputs. Counters, the condition of the loop and unused
    values disappear. A Loop stays, with a note, if the Scan is not known to do the same, or if fuse-custom-cells could
    not replace the Scan by a node:

    * the number of iterations depends on data, or the step computes floats from the iteration number, or reads the
      condition;
    * a state may change its shape;
    * a state or an element is not a matrix of floats (elements may be booleans);
    * the step has recurrent nodes, nodes with subgraphs, or operators of other domains.
    """

    info = PassInfo(
        name="write-scans",
        summary="write loops of custom cells as Scan",
        numerics=Bitwise(),
        requires=frozenset({Property.CANONICAL}),
    )

    def run(self, model: Model) -> PassResult:
        """Rewrites every Loop that holds a custom cell, if possible."""
        self.sites = []
        if not any(n.op == "Loop" and not n.domain for g in model.graphs() for n in g.nodes):
            return PassResult(False)
        model.infer_shapes()
        remarks: list[Remark] = []
        loops = {id(r.loop): r.path for r in float_recurrences(model) if r.loop is not None and r.loop.op == "Loop"}
        homes = [(g, n) for g, _, _ in reversed(list(bodies(model))) for n in g.nodes if id(n) in loops]
        for graph, node in homes:
            path = loops[id(node)]
            writing = _Writing(model, graph, node)
            try:
                self.check_kept(path)
                writing.run()
            except NotHandled as why:
                writing.undo()
                info(node).notes[STAYS_LOOP] = f"{why.reason.removesuffix('.')} ({why.found})"
                reason = f"the loop stays: {why.reason}"
                remarks.append(self.remark(Outcome.NOTE, path, "Loop", reason, why.found, why.action))
                continue
            self.sites.append(path)
            remarks.append(self.remark(Outcome.NOTE, path, "Loop", "written as a Scan."))
            model.remove_dead()
            model.sort()
            model.infer_shapes()
        return PassResult(bool(self.sites), tuple(remarks), {"scans": len(self.sites)})


class _Writing(LoopRewrite):
    """The work on one loop."""

    def run(self) -> None:
        """Replaces the loop by the Scan.

        Raises:
            NotHandled: The loop has to stay.
        """
        constants = Constants(self.model)
        trips = trips_of(self.node, constants)
        self.indices = trips.indices
        vectorizer = Vectorizer(self.node.attrs["body"], {}, trips, constants, self.b)
        step = LoopStep(self.model, self.node, vectorizer)
        if not step.elements:
            raise NotHandled("its step takes no elements of a sequence.", "a Scan needs one")
        self.shapes = self._shapes(step)
        for state in step.states:
            sizes = self._rows(state.before)
            if self.shapes.of(state.after) != sizes:
                found = f"{state.before.name!r} {sizes} becomes {state.after.name!r} {self.shapes.of(state.after)}"
                raise NotHandled("a state may have another shape after an iteration than before.", found)
        formal, sequences = self._sequences(step, vectorizer)
        made: list[Value] = [s.after for s in step.states]
        outputs: list[Value] = [s.final or Variable.empty() for s in step.states]
        results: Results = []
        for final, value in step.emitted:
            row, axes = self._row(value)
            made.append(row)
            outputs.append(self.b.value("output", np.float32) if axes else final)
            if axes:
                results.append((final, self._viewed(outputs[-1], axes)))
        for state, insert in step.filled:
            row, axes = self._row(insert.inputs[1])
            if None in (self.shapes.of(row) or ()):
                raise NotHandled("a sequence may be filled with elements of different shapes.", f"{row.name!r}")
            made.append(row)
            outputs.append(self.b.value("output", np.float32))
            whole = Sequence(self._viewed(outputs[-1], axes), _ROWS + len(axes), frozenset(axes))
            results += filled_results(self.graph, state, insert.inputs[1], whole, self.b)
        self._scan(step, formal, sequences, made, outputs)
        self.connect(results)

    def _shapes(self, step: LoopStep) -> StepShapes:
        given: list[tuple[Value, list[Index]]] = [
            (s.before, self.indices.dimensions(s.initial) or []) for s in step.states
        ]
        for value, element in step.elements:
            sizes = self.indices.dimensions(element.sequence) or []
            given.append((value, [Index(1) if a in (NEW, element.axis) else sizes[a] for a in element.axes]))
        given += [(v, []) for v in step.counters.values()]
        return StepShapes(self.model, step.nodes, given, self.indices)

    def _rows(self, value: Value, kinds: str = "f") -> Sizes:
        """Returns the dimensions of a state or element.

        Raises:
            NotHandled: A custom cell node does not support it.
        """
        sizes, kind = self.shapes.of(value), dtype_of(value)
        known = kind is not None and kind.kind in kinds and (kind.kind != "f" or kind == np.float32)
        if not known or sizes is None or len(sizes) != _ROWS or not isinstance(sizes[1], int):
            reason = "a state or element of its step is no matrix of float32 with a known number of columns."
            raise NotHandled(reason, f"{value.name!r} {kind} {sizes}")
        return sizes

    def _row(self, value: Value) -> tuple[Value, list[int]]:
        """Returns the matrix that the body unsqueezes to `value`, and the added axes.

        Raises:
            NotHandled: It is not a matrix.
        """
        axes: list[int] = []
        node = value.inputs[0] if len(value.inputs) == 1 else None
        row = value
        if node is not None and node.op == "Unsqueeze":
            changed = changed_axes(node, self.indices) or []
            axes, row = sorted(a % (_ROWS + len(changed)) for a in changed), node.inputs[0]
        sizes = self.shapes.of(row)
        if dtype_of(row) != np.float32 or sizes is None or len(sizes) != _ROWS:
            raise NotHandled("a result of its step is no matrix of float32.", f"{row.name!r} {dtype_of(row)} {sizes}")
        return row, axes

    def _viewed(self, value: Value, axes: list[int]) -> Value:
        return self.b.op("Unsqueeze", [value, self.b.i64([a + 1 for a in axes])], "elements") if axes else value

    def _sequences(self, step: LoopStep, vectorizer: Vectorizer) -> tuple[dict[int, Variable], list[Value]]:
        """Returns inputs of the Scan's body, by the ids of the elements that they replace, and their sequences."""
        formal: dict[int, Variable] = {}
        sequences: list[Value] = []
        same: dict[tuple[int, int, Index, tuple[int, ...]], Variable] = {}
        for value, element in step.elements:
            sizes = self._rows(value, "fb")
            key = (id(element.sequence), element.axis, element.index, element.axes)
            if key not in same:
                sequence = vectorizer.element(value)
                if sequence is None:
                    raise NotHandled("it does not go through a sequence element by element.", f"{value.name!r}")
                sequences.append(sequence.value)
                shape = shape_of(element.sequence) or []
                rows = 1 if element.axes[0] in (NEW, element.axis) else shape[element.axes[0]]
                name = self.model.fresh_name(f"{element.sequence.name}.element")
                same[key] = Variable(name, dtype_of(value), [rows, sizes[1]])
                self.model.hold(same[key])
            formal[id(value)] = same[key]
        for value, sequence in step.masks:
            rows, columns = self._rows(value, "b")
            sequences.append(sequence.value)
            name = self.model.fresh_name(f"{value.name}.element")
            formal[id(value)] = Variable(name, np.bool_, [rows if isinstance(rows, int) else None, columns])
            self.model.hold(formal[id(value)])
        return formal, sequences

    def _scan(
        self,
        step: LoopStep,
        formal: dict[int, Variable],
        sequences: list[Value],
        made: list[Value],
        outputs: list[Value],
    ) -> None:
        """Builds the Scan and moves the loop's body to it."""
        body: Graph = self.node.attrs.pop("body")
        for state in step.states:
            shape = shape_of(state.initial) or [None]
            state.before.dtype, state.before.shape = np.float32, [shape[0], self._rows(state.before)[1]]
        inner = Builder(self.model, prefix=self.b.prefix)
        inside = {id(v) for n in step.nodes for v in n.outputs}
        results: list[Value] = []
        for value in made:
            sizes = self.shapes.of(value) or [None, None]
            value = formal.get(id(value), value)
            if id(value) not in inside or any(v is value for v in results):
                value = inner.op("Identity", [value], "result")
            value.dtype, value.shape = np.float32, [None, sizes[1] if isinstance(sizes[1], int) else None]
            results.append(value)
        body.nodes.extend(inner.nodes)
        for value, _ in (*step.elements, *step.masks):
            self.model.replace_all_uses(value, formal[id(value)], [body])
        body.inputs[:] = [*(s.before for s in step.states), *{id(v): v for v in formal.values()}.values()]
        body.outputs[:] = results
        given = [*(s.initial for s in step.states), *sequences]
        attrs = {"body": body, "num_scan_inputs": len(sequences)}
        scan = Node("Scan", self.node.name, attrs, given, outputs)
        info(scan).metadata, info(scan).doc_string = info(self.node).metadata, info(self.node).doc_string
        self.model.hold(scan)
        self.b.nodes.append(scan)
