"""Which operand of a step is its hidden state.

The equations say so, or the loop, or the step before, or another step with the same weights.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from rnnqc.ir import Value
from rnnqc.passes.row_algebra import Atom, Form, Weight
from rnnqc.passes.row_reader import RowReader
from rnnqc.passes.step_matcher import FoundStep, StepFinder, rnn_step

Pairs = Sequence[tuple[Value, Value]]
"""States of a loop: the value a body gets, and the value it hands on."""


def steps_of(finder: StepFinder, pairs: Pairs) -> list[FoundStep]:
    """The steps that were found, with their hidden states."""
    reader = finder.reader
    steps = [*finder.steps, *_loop_rnns(finder, pairs)]
    rnns = {id(s.h_next) for s in steps if s.op == "RNN"}
    steps += [s for s in _chained_rnns(finder) if id(s.h_next) not in rnns]
    made = {_atom(reader, s.h_next): s for s in steps}
    states = {_atom(reader, s.c_next): s for s in steps if s.c_next is not None}
    open_: list[FoundStep] = []
    for step in steps:
        if step.op != "LSTM" or step.hidden is not None:
            continue
        candidates = step.candidates()
        before = states.get(step.cell)
        by_loop = [reader.rows(a) for a, b in pairs if _atom(reader, b) is _atom(reader, step.h_next)]
        hints = [r.single for r in by_loop if r is not None]
        if before is not None:
            hints.append(_atom(reader, before.h_next))
        step.hidden = next((h for h in hints if h in candidates), None)
        if step.hidden is None:
            open_.append(step)
    known = [s for s in steps if s.op == "LSTM" and s.hidden is not None]
    for step in open_:
        match = next(((m[0], k) for k in known for m in [_as_in(step, k)] if m is not None), None)
        if match is not None:
            step.hidden, like = match
            step.like = like if step.hidden is None else None
            continue
        candidates = step.candidates()
        # Where nothing else tells, the second operand of the addition is taken for h, as Keras and torch write it.
        preferred = [a for a in candidates if a not in made] or candidates
        step.hidden = preferred[-1] if preferred else None
        if step.hidden is None:
            steps.remove(step)
    return steps


def _atom(reader: RowReader, value: Value | None) -> Atom | None:
    rows = reader.known(value) if value is not None else None
    return None if rows is None else rows.single


def _as_in(step: FoundStep, model: FoundStep) -> tuple[Atom | None] | None:
    """The hidden state of `step` if it has the weights of `model`; (None,) if it is left out, as zeros."""
    wanted = {gate: key for gate, atom, _, key in model.operands() if atom is model.hidden}
    for atom in step.candidates():
        if {gate: key for gate, a, _, key in step.operands() if a is atom} == wanted:
            return (atom,)
    inputs = {
        (gate, key)
        for gate, atom, _, key in model.operands()
        if atom is not model.hidden and atom is not model.cell_atom
    }
    own = {(gate, key) for gate, atom, _, key in step.operands() if atom is not step.cell_atom}
    return (None,) if inputs == own else None


def _loop_rnns(finder: StepFinder, pairs: Pairs) -> Iterable[FoundStep]:
    for before, after in pairs:
        atom, hidden = _atom(finder.reader, after), finder.reader.rows(before)
        if atom is None or hidden is None or hidden.single is None:
            continue
        value = finder.activations.get(atom)
        step = rnn_step(atom, value, hidden.single) if value is not None else None
        if step is not None:
            yield step


def _chained_rnns(finder: StepFinder) -> list[FoundStep]:
    """Steps of RNN layers that are written out one after the other: each is fed to the next by the same matrix."""
    before: dict[Atom, Atom] = {}
    for atom in finder.activations:
        for source, weight in _dense(atom):
            if source not in finder.activations or source.name != atom.name or source.width != atom.width:
                continue
            if any(w.key == weight.key for _, w in _dense(source)) or _first_of(source, atom, source):
                before[atom] = source
    steps: dict[Atom, FoundStep] = {}
    for atom, source in before.items():
        (key,) = [w.key for a, w in _dense(atom) if a is source]
        step = rnn_step(atom, finder.activations[atom], source)
        if step is None:
            continue
        steps[atom] = step
        if source not in before and source not in steps:
            hidden = next((a for a, w in _dense(source) if w.key == key), None)
            first = rnn_step(source, finder.activations[source], hidden)
            if first is not None:
                first.like = step if hidden is None else None
                steps[source] = first
    return list(steps.values())


def _dense(atom: Atom) -> list[tuple[Atom, Weight]]:
    form = atom.form
    return [] if form is None or not form.linear else [(a, w) for a, w in form.terms.items() if w.dense]


def _first_of(source: Atom, atom: Atom, hidden: Atom) -> bool:
    """Whether `source` is the step before `atom` with a hidden state of zeros, which is left out."""
    first, second = source.form, atom.form
    if first is None or second is None or not first.linear or not second.linear:
        return False
    rest = Form(second.width, {a: w for a, w in second.terms.items() if a is not hidden}, second.bias)
    if not rest.terms or sorted(repr(w.key) for w in first.terms.values()) != sorted(
        repr(w.key) for w in rest.terms.values()
    ):
        return False
    zeros = np.zeros(first.width, np.float32)
    return np.array_equal(zeros if first.bias is None else first.bias, zeros if rest.bias is None else rest.bias)
