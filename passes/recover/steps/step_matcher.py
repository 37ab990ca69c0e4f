"""Finds the steps of LSTM, GRU and RNN layers in a graph; the only module that knows their equations."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import permutations

import numpy as np

from rnnqc.ir import CELL_TAG, Graph, Node, Value, info
from rnnqc.passes.recover.rows.row_algebra import Atom, Floats, Form
from rnnqc.passes.recover.rows.row_reader import RowReader

Gates = dict[str, Form]
_ENDS = ("Clip", "Max", "Min", "Mul", "Div")
"""Operators that a hard sigmoid may end with."""


@dataclass(eq=False)
class FoundStep:
    """A step whose equations match, before the hidden state is identified among its operands.

    Attributes:
        op: "LSTM", "GRU" or "RNN".
        gates: Pre-activations by gate: i, o, f, c; z, r, h; h. For a GRU with linear_before_reset: h without its
            recurrent part.
        activations: Operators and attributes in ONNX order: f, g, h.
        h_next: The new hidden state.
        c_next: The new cell state.
        hidden: The hidden state before, if the equations determine it.
        cell: The cell state before.
        recurrent: For a GRU with linear_before_reset: the recurrent part of gate h.
        reset: For other GRUs: reset gate times hidden state.
        cell_atom: The new cell state as an atom, for the peephole of o.
        input_forget: Whether f = 1 - i.
        negated: Gates whose pre-activation has the opposite sign.
        like: For a step without a hidden state (zeros): a step of the same layer that has one.
        doubt: Its operands, if the hidden state among them is unknown; otherwise "".
    """

    op: str
    gates: Gates
    activations: list[Atom]
    h_next: Value
    c_next: Value | None = None
    hidden: Atom | None = None
    cell: Atom | None = None
    recurrent: Form | None = None
    reset: Atom | None = None
    cell_atom: Atom | None = None
    input_forget: bool = False
    negated: tuple[str, ...] = ()
    like: FoundStep | None = None
    doubt: str = ""

    @property
    def width(self) -> int:
        """The hidden size."""
        return next(iter(self.gates.values())).width

    def operands(self) -> Iterator[tuple[str, Atom, Floats, object]]:
        """Yields gate, atom, weight (a matrix, or its diagonal) and its key, for every term of the pre-activations."""
        for gate, form in self.gates.items():
            for atom, weight in form.terms.items():
                yield gate, atom, weight.array, weight.key

    def candidates(self) -> list[Atom]:
        """Returns the atoms that may be the hidden state, in operand order: only square matrices multiply them."""
        found: dict[Atom, None] = {}
        for _, atom, array, _ in self.operands():
            if array.ndim == 2 and array.shape == (self.width, self.width):
                found[atom] = None
        for _, atom, array, _ in self.operands():  # the x of a single matmul may have the same width
            if array.ndim == 2 and array.shape[0] != self.width:
                found.pop(atom, None)
        return list(found)


@dataclass
class _CellState:
    gates: Gates
    activations: list[Atom]
    before: Atom
    input_forget: bool
    value: Value


@dataclass
class StepFinder:
    """Walks a graph and collects its steps.

    Attributes:
        reader: Reads the nodes.
        steps: The steps found, in order.
        activations: Every activation with its value, among them the steps of an RNN.
        forms: Sums of activations and products that are not steps, by the id of the value.
    """

    reader: RowReader
    steps: list[FoundStep] = field(default_factory=list)
    activations: dict[Atom, Value] = field(default_factory=dict)
    forms: dict[int, Form] = field(default_factory=dict)
    _cells: dict[Atom, _CellState] = field(default_factory=dict)

    def walk(self, graph: Graph) -> None:
        """Reads all nodes in order except those that rnnqc has inserted."""
        for node in graph.nodes:
            if CELL_TAG not in info(node).metadata:
                self._visit(node)

    def _visit(self, node: Node) -> None:
        self.reader.visit(node)
        for value in node.outputs:
            rows = self.reader.known(value)
            if rows is None or len(rows.segments) != 1:
                continue
            form = rows.segments[0]
            step = self._lstm(value, form) or _gru(value, form)
            if step is not None:
                self.steps.append(step)
                self.reader.cut(value)
                continue
            cell = _cell_state(value, form)
            if cell is not None:
                atom = self.reader.cut(value)
                if atom is not None:
                    self._cells[atom] = cell
                continue
            atom = form.single
            if atom is None and not form.linear:
                self.forms[id(value)] = form
            if atom is not None and atom.kind == "activation" and node.op in (atom.name, *_ENDS):
                self.activations.setdefault(atom, value)

    def _lstm(self, value: Value, form: Form) -> FoundStep | None:
        atom = form.single
        if atom is None or atom.kind != "product" or len(atom.factors) != 2:
            return None
        for output, squashed in permutations(atom.factors):
            if output.kind != "activation" or squashed.kind != "activation":
                continue
            assert output.form is not None and squashed.form is not None
            inner = squashed.form.single
            cell = self._cells.get(inner) if inner is not None else None
            if cell is None or not output.form.dense or output.name != cell.activations[0].name:
                continue
            gates = {"i": cell.gates["i"], "o": output.form, "f": cell.gates["f"], "c": cell.gates["c"]}
            if _parameters(output) != _parameters(cell.activations[0]):
                continue
            return FoundStep(
                "LSTM",
                gates,
                [*cell.activations, squashed],
                value,
                cell.value,
                cell=cell.before,
                cell_atom=inner,
                input_forget=cell.input_forget,
            )
        return None


def rnn_step(atom: Atom, value: Value, hidden: Atom | None) -> FoundStep | None:
    """Returns the step `value = activation(x W + hidden R + b)`; None if it does not match."""
    if atom.kind != "activation" or atom.form is None or not atom.form.linear:
        return None
    step = FoundStep("RNN", {"h": atom.form}, [atom], value, hidden=hidden)
    if hidden is not None and hidden not in step.candidates():
        return None
    return step if any(a is not hidden for a in atom.form.terms) else None


def _activated(atom: Atom) -> Atom:
    """Returns an atom as an activation; a sum without one is an Affine, as Keras writes `activation="linear"`."""
    if atom.kind != "linear":
        return atom
    return replace(atom, kind="activation", name="Affine", parameters=(("alpha", 1.0), ("beta", 0.0)))


def _parameters(atom: Atom) -> object:
    return atom.name, atom.parameters


def _weights(form: Form, *numbers: float) -> list[Atom] | None:
    """The atoms of `form` whose weights are `numbers`, each once, in that order; None if it does not match."""
    if (form.bias is not None and np.any(form.bias)) or len(form.terms) != len(numbers):
        return None
    left = dict(form.terms)
    found = []
    for number in numbers:
        atom = next((a for a, w in left.items() if w.is_number(number)), None)
        if atom is None:
            return None
        found.append(atom)
        del left[atom]
    return found


def _cell_state(value: Value, form: Form) -> _CellState | None:
    both = _weights(form, 1.0, 1.0)
    if both is not None and all(a.kind == "product" and len(a.factors) == 2 for a in both):
        for kept, added in permutations(both):
            for forget, before in permutations(kept.factors):
                for entered, squashed in permutations(added.factors):
                    made = _with_forget_gate(value, forget, before, entered, squashed)
                    if made is not None:
                        return made
    for before in [a for a, w in form.terms.items() if w.is_number(1) and a.kind != "product"]:
        made = _coupled(value, form, before)
        if made is not None:
            return made
    return None


def _with_forget_gate(value: Value, forget: Atom, before: Atom, entered: Atom, squashed: Atom) -> _CellState | None:
    gates = (entered, forget, squashed)
    if any(g.kind != "activation" or g.form is None or not g.form.dense for g in gates):
        return None
    sources = [_sources(g) for g in gates]
    if before.kind == "activation" and _sources(before) & (sources[0] | sources[1] | sources[2]):
        return None
    if _parameters(entered) != _parameters(forget) or not sources[0] & sources[1] & sources[2]:
        return None
    if entered.name == "Tanh" != squashed.name:
        return None
    forms = {"i": entered.form, "f": forget.form, "c": squashed.form}
    return _CellState({k: f for k, f in forms.items() if f is not None}, [entered, squashed], before, False, value)


def _coupled(value: Value, form: Form, before: Atom) -> _CellState | None:
    """C' = c + i * g - i * c."""
    terms = {a: w for a, w in form.terms.items() if a is not before}
    plus = _weights(Form(form.width, terms, form.bias), 1.0, -1.0)
    if plus is None or any(a.kind != "product" or len(a.factors) != 2 for a in plus):
        return None
    added, lost = plus
    if before not in lost.factors:
        return None
    entered = lost.factors[1] if lost.factors[0] is before else lost.factors[0]
    if entered not in added.factors:
        return None
    squashed = added.factors[1] if added.factors[0] is entered else added.factors[0]
    if any(g.kind != "activation" or g.form is None or not g.form.dense for g in (entered, squashed)):
        return None
    assert entered.form is not None and squashed.form is not None
    if any(w.dense for f in (entered.form, squashed.form) for a, w in f.terms.items() if a is before):
        return None  # a GRU: a matrix multiplies its state
    gates = {"i": entered.form, "f": entered.form, "c": squashed.form}
    return _CellState(gates, [entered, squashed], before, True, value)


def _sources(atom: Atom) -> set[Atom]:
    return set() if atom.form is None else {a for a, w in atom.form.terms.items() if w.dense or a.kind == "leaf"}


def _gru(value: Value, form: Form) -> FoundStep | None:
    terms = [a for a in form.terms if a.kind == "product"]
    others = [a for a in form.terms if a.kind != "product"]
    if len(terms) != 2 or len(others) != 1 or _weights(form, 1.0, 1.0, -1.0) is None:
        return None
    (kept,) = others
    if not form.terms[kept].is_number(1):
        return None
    negative = next(a for a in terms if form.terms[a].is_number(-1))
    positive = next(a for a in terms if a is not negative)
    if len(negative.factors) != 2 or len(positive.factors) != 2 or kept not in negative.factors:
        return None
    update = negative.factors[1] if negative.factors[0] is kept else negative.factors[0]
    if update not in positive.factors:
        return None
    other = positive.factors[1] if positive.factors[0] is update else positive.factors[0]
    # h' = n - z n + z h, or with the opposite gate h' = h - z h + z n
    for new, hidden, negated in ((kept, other, ()), (other, kept, ("z",))):
        step = _gru_gates(value, new, hidden, update, negated)
        if step is not None:
            return step
    return None


def _gru_gates(value: Value, new: Atom, hidden: Atom, update: Atom, negated: tuple[str, ...]) -> FoundStep | None:
    new = _activated(new)
    if new.kind != "activation" or update.kind != "activation" or new.form is None or update.form is None:
        return None
    if negated and update.name != "Sigmoid":
        return None
    if hidden not in {a for a, w in update.form.terms.items() if w.dense}:
        return None
    products = [(a, w) for a, w in new.form.terms.items() if a.kind == "product"]
    if len(products) != 1 or len(products[0][0].factors) != 2:
        return None
    product, weight = products[0]
    rest = Form(new.form.width, {a: w for a, w in new.form.terms.items() if a is not product}, new.form.bias)
    if hidden in rest.terms:
        return None
    for reset, behind in permutations(product.factors):
        if reset.kind != "activation" or reset.form is None or _parameters(reset) != _parameters(update):
            continue
        if hidden not in {a for a, w in reset.form.terms.items() if w.dense}:
            continue
        gates = {"z": update.form, "r": reset.form, "h": rest}
        step = FoundStep("GRU", gates, [update, new], value, hidden=hidden, negated=negated)
        if weight.dense and behind is hidden:
            return replace(step, gates={**gates, "h": new.form}, reset=product)
        inner = behind.form if behind.kind == "linear" else None
        if weight.is_number(1) and inner is not None and set(inner.terms) == {hidden} and inner.terms[hidden].dense:
            return replace(step, recurrent=inner)
    return None
