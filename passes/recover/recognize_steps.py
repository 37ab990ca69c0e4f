"""Recognizes single steps of unrolled recurrent layers and turns them into nodes."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from functools import partial

from rnnqc.errors import NotHandled, Outcome, Remark
from rnnqc.evaluation.numerics import Close
from rnnqc.ir import Graph, Model, Node, Value, display_name, info
from rnnqc.passes.base import Pass, PassInfo, PassResult
from rnnqc.passes.graph.loops.loop_states import (
    bodies,
    capture_invariants,
    first_rows,
    gather_elements,
    is_loop,
    shapes_of_states,
    states_of,
)
from rnnqc.passes.graph.values.constant_expressions import Constants
from rnnqc.passes.invariants import Property
from rnnqc.passes.recover.float_steps import STEP_NOTE, FloatStep
from rnnqc.passes.recover.recovery_sites import RecoverySites
from rnnqc.passes.recover.rows.row_reader import RowReader
from rnnqc.passes.recover.steps.emit_step_node import (
    STAYS,
    StepWeights,
    emit_step_node,
    rows_differ,
    rows_of_step,
    with_zeros,
)
from rnnqc.passes.recover.steps.first_steps import with_first_steps
from rnnqc.passes.recover.steps.shapes_of_steps import without_shapes_alone
from rnnqc.passes.recover.steps.state_flow import StateFlow
from rnnqc.passes.recover.steps.step_checks import PRODUCTS, check_hidden, check_uses, check_weights
from rnnqc.passes.recover.steps.step_matcher import FoundStep, StepFinder
from rnnqc.passes.recover.steps.step_roles import steps_of
from rnnqc.passes.recover.steps.step_weights import step_node

_NAME_STATES = (
    "name its inputs and outputs of states alike (h and h_next as c and c_next), or make a layer of the step by "
    "`rnnqc layer --state`"
)


_Found = tuple[Graph, str, RowReader, list[FoundStep]]
"""A graph, its path, what read it, and the steps in it."""


class RecognizeSteps(RecoverySites, Pass):
    """Replaces unrolled steps of LSTM, GRU and RNN layers by nodes over one element.

    Before: `Split(x MatMul W + h MatMul R + b, 4) -> Sigmoid, Sigmoid, Sigmoid, Tanh -> c' = f * c + i * g, h' = o *
    tanh(c')`

    After: `LSTM(x [1,B,I], initial_h = h, initial_c = c) -> Y_h, Y_c`

    Matmuls, biases and gates may be split and ordered in any way. A step of an RNN is one activation of one sum; the
    pass looks for it in loops, and where several copies form a chain. These steps stay, with a note:

    * It is unknown which operand is the hidden state: nothing shows where the new one returns.
    * A value inside the step is used elsewhere.
    * x, h and c are inputs of the model that are not declared to have the same number of rows.
    * Only its shape is used: that is computed without the step.
    * Its hidden state depends on that of the step before through other matmuls: it is part of another recurrence.
    * It starts with zeros, and other candidates with its weights are not steps: it is the first of another recurrence.

    Non-constant weights and other equations are not recognized as a step.

    Attributes:
        rows: After a run, for each step: the row counts of the parts of its input and of its states, as numbers or
            names.
    """

    def __init__(self) -> None:
        """Creates a pass that has not run yet."""
        super().__init__()
        self.rows: list[list[int | str | None]] = []

    info = PassInfo(
        name="recognize-steps",
        summary="recognize single unrolled steps of LSTM, GRU and RNN",
        numerics=Close(1e-5),
        requires=frozenset({Property.CANONICAL}),
    )
    infers_shapes = True

    def run(self, model: Model) -> PassResult:
        """Looks at every graph."""
        self.sites, self.rows = [], []
        captured = 0
        graphs = [(g, n, p) for g, n, p in bodies(model) if any(node.op in PRODUCTS for node in g.nodes)]
        if graphs:
            model.infer_shapes()
        for graph, owner, _ in graphs:
            if owner is not None and is_loop(owner):
                captured += capture_invariants(model, owner) + gather_elements(model, graph, Constants(model))
        if captured:
            model.infer_shapes()
        constants = Constants(model)
        found: list[_Found] = []
        carried: dict[int, Value] = {}
        shapes = False
        for graph, owner, path in graphs:
            loop = owner if owner is not None and is_loop(owner) else None
            reader = (
                RowReader(constants) if loop is None else RowReader(constants, shapes_of_states(loop), first_rows(loop))
            )
            finder = StepFinder(reader)
            finder.walk(graph)
            pairs = [(s.before, s.new) for s in states_of(loop)] if loop is not None else []
            carried.update((id(before), new) for before, new in pairs)
            flow = partial(StateFlow, model, constants, graph, reader.shape)
            steps, less = without_shapes_alone(model, graph, reader, steps_of(finder, pairs, flow))
            shapes |= less
            found.append((graph, path, reader, with_first_steps(finder, steps)))
        remarks = self._replaced(model, constants, found, carried)
        made = len(self.sites)
        return PassResult(bool(made or captured or shapes), tuple(remarks), {"steps": made})

    def _replaced(
        self, model: Model, constants: Constants, found: Sequence[_Found], carried: Mapping[int, Value]
    ) -> list[Remark]:
        """Replaces the steps that a node can compute; `carried`: new states of loops, by the id of the state before."""
        remarks: list[Remark] = []
        weights = StepWeights(model, constants)
        own, states = _steps_made(found, constants)
        for graph, path, reader, steps in found:
            for step in steps:
                anchor = step.h_next.inputs[0]
                where = f"{path}{display_name(anchor)}"
                try:
                    self.check_kept(where)
                    node = step_node(step, constants)
                    inside = check_uses(graph, reader, step, node)
                    if node.h is None and step.like is None:
                        check_weights(graph, inside, own)
                    check_hidden(graph, node, own, states, carried)
                    node = with_zeros(reader, step, node)
                    self.rows.append(rows_of_step(reader, node))
                    expand = rows_differ(model, reader, step, node)
                except NotHandled as refusal:
                    reason = f"a step is not taken over: {refusal.reason}"
                    action = refusal.action or (_NAME_STATES if step.doubt else STAYS)
                    remarks.append(self.remark(Outcome.NOTE, where, step.op, reason, refusal.found, action))
                    left = FloatStep(step.op, (reason, refusal.found, action), _products_of(step, reader))
                    info(anchor).notes[STEP_NOTE] = left
                    continue
                name = emit_step_node(model, graph, reader, node, weights, expand)
                self.sites.append(where)
                text = f"made of the step around node {display_name(anchor)!r}."
                remarks.append(self.remark(Outcome.NOTE, f"{path}{name}", step.op, text))
        return remarks


def _steps_made(found: Sequence[_Found], constants: Constants) -> tuple[set[int], dict[int, bytes]]:
    """For all steps that can be nodes: the ids of their matmuls, and R by the id of each new hidden state."""
    products: set[int] = set()
    states: dict[int, bytes] = {}
    for graph, _, reader, steps in found:
        for step in steps:
            with contextlib.suppress(NotHandled):
                node = step_node(step, constants)
                inside = check_uses(graph, reader, step, node)
                products |= {n for n, node in inside.items() if node.op in PRODUCTS}
                states[id(node.h_next)] = node.R.tobytes()
    return products, states


def _products_of(step: FoundStep, reader: RowReader) -> tuple[Node, ...]:
    """The matmuls with constants inside a step, up to its operands."""
    atoms = [a for _, a, _, _ in step.operands()] + [a for a in (step.hidden, step.cell) if a is not None]
    starts = [v for v in (step.h_next, step.c_next) if v is not None]
    seen = {id(a.value) for a in atoms if a.value is not None} - {id(v) for v in starts}
    found: dict[int, Node] = {}
    while starts:
        value = starts.pop()
        if id(value) in seen or reader.constants.array(value) is not None:
            continue
        seen.add(id(value))
        for node in value.inputs:
            if node.op in PRODUCTS:
                found[id(node)] = node
            starts += node.inputs
    return tuple(found.values())
