"""Identifies the hidden state among the operands of a step.

The equations determine it, or the use of the new hidden state: in the next iteration of a loop, the next unrolled step
or the next call of the model; or another step with the same weights. Widths and operand order are not evidence.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cache

import numpy as np

from rnnqc.data.state_hints import named_alike
from rnnqc.ir import Value, shape_of
from rnnqc.passes.recover.rows.row_algebra import Atom, Form, Weight
from rnnqc.passes.recover.rows.row_reader import RowReader
from rnnqc.passes.recover.steps.state_flow import Following, StateFlow
from rnnqc.passes.recover.steps.step_matcher import FoundStep, StepFinder, rnn_step

Pairs = Sequence[tuple[Value, Value]]
"""States of a loop: the value a body gets, and the value it hands on."""
_NUMBER_OF_AXES = 3
"""Of a state of torch.nn.RNN: layers, rows and units."""


def steps_of(finder: StepFinder, pairs: Pairs, flow: Callable[[], StateFlow]) -> list[FoundStep]:
    """Returns the steps found, with their hidden states or the doubt about them.

    Args:
        finder: A finder that has walked the graph.
        pairs: States of the loop whose body is the graph.
        flow: Follows states through the graph and those around it; called only if needed.
    """
    reader = finder.reader
    steps = [*finder.steps, *_loop_rnns(finder, pairs)]
    rnns = {id(s.h_next) for s in steps if s.op == "RNN"}
    steps += [s for s in _chained_rnns(finder) if id(s.h_next) not in rnns]
    flow = cache(flow)
    steps += _called_rnns(finder, {id(s.h_next) for s in steps}, flow)
    states = {_atom(reader, s.c_next): s for s in steps if s.c_next is not None}
    open_: list[FoundStep] = []
    for step in steps:
        if step.op == "LSTM" and step.hidden is None:
            by_loop = [reader.rows(a) for a, b in pairs if _atom(reader, b) is _atom(reader, step.h_next)]
            before = states.get(step.cell)
            hints = [r.single for r in by_loop if r is not None]
            hints += [_atom(reader, before.h_next)] if before is not None else []
            _decide(step, {a for a in step.candidates() if a in hints})
            if step.hidden is None:
                open_.append(step)
    if open_:
        evidence = _Evidence(flow(), steps)
        for look in (evidence.exact, evidence.changed):
            for step in (s for s in open_ if s.hidden is None):
                _decide(step, look(step))
    known = [s for s in steps if s.op == "LSTM" and s.hidden is not None]
    for step in (s for s in open_ if s.hidden is None):
        matches = [(m[0], k) for k in known for m in _as_in(step, k)]
        if matches and all(h is matches[0][0] for h, _ in matches):
            step.hidden, like = matches[0]
            step.like = like if step.hidden is None else None
            continue
        step.doubt = _operands(step)
    return steps


def _decide(step: FoundStep, found: Iterable[Atom]) -> None:
    """Sets the hidden state if there is exactly one candidate."""
    only = list(found)
    if len(only) == 1:
        (step.hidden,) = only


class _Evidence:
    """Evidence for the hidden state of a step: its new hidden state returns as this operand."""

    def __init__(self, flow: StateFlow, steps: Sequence[FoundStep]) -> None:
        self.flow, self.steps = flow, steps
        self.ends = [v for s in steps for v in (s.h_next, s.c_next) if v is not None]

    def exact(self, step: FoundStep) -> set[Atom]:
        """Returns the operands that are the new hidden state of the previous call or iteration."""
        return self._returning(step, lambda v, new: v is new)

    def changed(self, step: FoundStep) -> set[Atom]:
        """Returns the operands derived from it without matmuls, e.g. by a residual, a normalisation or a mask."""
        return self._returning(step, self._is_made_of) or self._in_loop(step) or self._in_row(step)

    def _is_made_of(self, value: Value, new: Value) -> bool:
        return self.flow.derives(value, [new], self.ends)

    def _returning(self, step: FoundStep, is_next: Callable[[Value, Value], bool]) -> set[Atom]:
        """Operands whose next value is the new hidden state, according to `is_next`.

        A loop, or the cell state's input and output if it has both, decides alone. Otherwise a model that returns the
        cell state is a step of a stream: then the operand returns as another output.
        """
        assert step.c_next is not None
        cell = step.cell.value if step.cell is not None else None
        cells = [f for f in self._followings(cell) if is_next(f.value, step.c_next)]
        sources, outputs = {id(f.source) for f in cells if f.output is not None}, {id(f.output) for f in cells}
        candidates = step.candidates()
        certain: set[Atom] = set()
        others: dict[Atom, list[Following]] = {}
        for atom in dict.fromkeys(a for _, a, array, _ in step.operands() if array.ndim == 2):
            for following in self._followings(atom.value):
                of_cell = id(following.source) in sources, id(following.output) in outputs
                if following.output is None or all(of_cell):
                    certain |= {atom} if atom in candidates and is_next(following.value, step.h_next) else set()
                elif cells and not any(of_cell):
                    others.setdefault(atom, []).append(following)
        return certain or self._alone(step, is_next, others, cells)

    def _alone(
        self,
        step: FoundStep,
        is_next: Callable[[Value, Value], bool],
        others: Mapping[Atom, Sequence[Following]],
        cells: Sequence[Following],
    ) -> set[Atom]:
        """The only operand that an output of the model depends on, if its next value is the new hidden state.

        If there are several, as x and h of an LSTM whose output has their shape, names must decide.
        """

        def depends(following: Following) -> bool:
            new = step.h_next
            return is_next(following.value, new) or self.flow.derives(following.value, [new], self.ends, products=True)

        alone = {a: found for a, held in others.items() if (found := [f for f in held if depends(f)])}
        if len(alone) > 1:
            alone = {a: [f for f in held if any(_named_alike(f, c) for c in cells)] for a, held in alone.items()}
        named = {a: held for a, held in alone.items() if held}
        only = next(iter(named)) if len(named) == 1 else None
        is_hidden = only in step.candidates() and any(is_next(f.value, step.h_next) for f in named.get(only, ()))
        return {only} if only is not None and is_hidden else set()

    def _followings(self, value: Value | None) -> list[Following]:
        return [] if value is None else self.flow.followings(value)

    def _in_loop(self, step: FoundStep) -> set[Atom]:
        """Operands derived from a state of a loop that derives from the new hidden state."""
        returning = [old for old, new in self.flow.carried.values() if self._is_made_of(new, step.h_next)]
        return {
            a for a in step.candidates() if a.value is not None and self.flow.derives(a.value, returning, self.ends)
        }

    def _in_row(self, step: FoundStep) -> set[Atom]:
        """Operands derived from the hidden state of the step that the cell state derives from."""
        cell = step.cell.value if step.cell is not None else None
        if cell is None:
            return set()
        before = [s for s in self.steps if s is not step and s.c_next is not None and self._is_made_of(cell, s.c_next)]
        if len(before) != 1:
            return set()
        new = before[0].h_next
        return {a for a in step.candidates() if a.value is not None and self._is_made_of(a.value, new)}


def _named_alike(one: Following, other: Following) -> bool:
    """Whether the names of input and output differ in the same way as another pair's: h, h_next and c, c_next."""
    assert one.output is not None and other.output is not None
    names = _differing(one.source.name, other.source.name)
    return all(names) and names == _differing(one.output.name, other.output.name)


def _differing(a: str, b: str) -> tuple[str, str]:
    """Two strings without their common prefix and suffix."""
    low = next((k for k, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    a, b = a[low:], b[low:]
    high = next((k for k, (x, y) in enumerate(zip(a[::-1], b[::-1], strict=False)) if x != y), min(len(a), len(b)))
    return a[: len(a) - high], b[: len(b) - high]


def _atom(reader: RowReader, value: Value | None) -> Atom | None:
    rows = reader.known(value) if value is not None else None
    return None if rows is None else rows.single


def _as_in(step: FoundStep, model: FoundStep) -> list[tuple[Atom | None]]:
    """The operands of `step` with the weights of the hidden state of `model`; None in it if there are none: zeros."""
    wanted = {gate: key for gate, atom, _, key in model.operands() if atom is model.hidden}
    found: list[tuple[Atom | None]] = [
        (atom,)
        for atom in step.candidates()
        if {gate: key for gate, a, _, key in step.operands() if a is atom} == wanted
    ]
    inputs = {
        (gate, key)
        for gate, atom, _, key in model.operands()
        if atom is not model.hidden and atom is not model.cell_atom
    }
    own = {(gate, key) for gate, atom, _, key in step.operands() if atom is not step.cell_atom}
    return found + ([(None,)] if inputs == own else [])


def _loop_rnns(finder: StepFinder, pairs: Pairs) -> Iterable[FoundStep]:
    for before, after in pairs:
        atom, hidden = _atom(finder.reader, after), finder.reader.rows(before)
        if atom is None or hidden is None or hidden.single is None:
            continue
        value = finder.activations.get(atom)
        step = rnn_step(atom, value, hidden.single) if value is not None else None
        if step is not None:
            yield step


def _called_rnns(finder: StepFinder, taken: Collection[int], flow: Callable[[], StateFlow]) -> Iterable[FoundStep]:
    """Steps of RNN layers whose hidden state is an input of the model and returns as an output.

    A sum of two products may be any dense layer: names must identify the state, or the layout of torch.nn.RNN, with a
    leading layer axis. If several operands have that layout, names decide.
    """
    for atom, value in finder.activations.items():
        step = rnn_step(atom, value, None) if id(value) not in taken else None
        if step is None:
            continue
        states: dict[Atom, bool] = {}
        for hidden in step.candidates():
            if hidden.value is None or rnn_step(atom, value, hidden) is None:
                continue
            followings = [f for f in flow().followings(hidden.value) if f.value is value and f.output is not None]
            named = any(named_alike(f.source.name, f.output.name) for f in followings if f.output is not None)
            if named or any(len(shape_of(f.source) or ()) == _NUMBER_OF_AXES for f in followings):
                states[hidden] = named
        step.doubt = _operands(step) if states else ""
        _decide(step, [a for a, named in states.items() if named] or states)
        if step.hidden is not None:
            step.doubt = ""
        if states:
            yield step


def _chained_rnns(finder: StepFinder) -> list[FoundStep]:
    """Steps of unrolled RNN layers: the same matrix passes each step to the next."""
    sources = {a: _steps_before(a, finder) for a in finder.activations}
    open_ = [a for a, found in sources.items() if len(found) > 1]  # for example where layers share their weights
    keys = {w.key for a in open_ for source, w in _dense(a) if source in sources[a]}
    before: dict[Atom, Atom] = {}
    for atom, found in sources.items():
        if found and not any(w.key in keys for _, w in _dense(atom)):
            (before[atom],) = found
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
    doubtful = [rnn_step(a, finder.activations[a], None) for a in open_]
    for step in (s for s in doubtful if s is not None):
        step.doubt = _operands(step)
    return [*steps.values(), *(s for s in doubtful if s is not None)]


def _steps_before(atom: Atom, finder: StepFinder) -> list[Atom]:
    """The activations that may be the step before: the matrix that multiplies them also occurs in their inputs."""
    return [
        source
        for source, weight in _dense(atom)
        if source in finder.activations
        and source.name == atom.name
        and source.width == atom.width
        and (any(w.key == weight.key for _, w in _dense(source)) or _first_of(source, atom, source))
    ]


def _operands(step: FoundStep) -> str:
    """The operands that a step multiplies by matrices, for messages."""
    atoms = dict.fromkeys(a for _, a, array, _ in step.operands() if array.ndim == 2)
    return ", ".join(repr(a.value.name) if a.value is not None else "a sum" for a in atoms)


def _dense(atom: Atom) -> list[tuple[Atom, Weight]]:
    form = atom.form
    return [] if form is None or not form.linear else [(a, w) for a, w in form.terms.items() if w.dense]


def _first_of(source: Atom, atom: Atom, hidden: Atom) -> bool:
    """Whether `source` is the step before `atom` with a hidden state of zeros, which is omitted."""
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
