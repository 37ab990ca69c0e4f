"""First steps of GRU layers that start with zeros: exporters omit the terms that are zero."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from rnnqc.passes.recover.rows.row_algebra import Atom, Floats, Form
from rnnqc.passes.recover.steps.step_matcher import FoundStep, StepFinder


def first_steps(finder: StepFinder, steps: Sequence[FoundStep]) -> list[FoundStep]:
    """Returns the steps before those of `steps` that are `(1 - z) * n` with the same weights.

    The matmuls of a first step with a hidden state of zeros are constants, so its equations alone do not identify it:
    it must pass its result to a step with the same weights, and all of its gates must agree.
    """
    made = {id(s.h_next) for s in steps}
    found: dict[int, FoundStep] = {}
    for step in steps:
        value = step.hidden.value if step.op == "GRU" and step.hidden is not None else None
        if value is None or id(value) in made or id(value) in found:
            continue
        form = finder.forms.get(id(value))
        first = _first(form, step, finder) if form is not None else None
        if first is not None:
            found[id(value)] = replace(first, h_next=value)
    return list(found.values())


def _first(form: Form, step: FoundStep, finder: StepFinder) -> FoundStep | None:
    """The step before `step`, if `form` is its new hidden state."""
    pair = _update_and_new(form, finder)
    if pair is None:
        return None
    update, new = pair
    z, n = update.form, new.form
    if z is None or n is None or (update.name, new.name) != tuple(a.name for a in step.activations):
        return None
    atoms = _inputs_of(z, step.gates["z"], step)
    if atoms is None:
        return None
    states = {step.hidden, step.reset}
    gates = {
        gate: Form(f.width, {atoms[a]: w for a, w in f.terms.items() if a not in states}, f.bias)
        for gate, f in step.gates.items()
        if all(a in atoms for a in f.terms if a not in states)
    }
    if len(gates) != len(step.gates) or not _same(z, gates["z"]):
        return None
    row = step.recurrent.bias if step.recurrent is not None else None
    rest, resets = _apart(n, finder)
    if not _same(rest, gates["h"]):
        return None
    if row is None or not np.any(row):
        if resets:
            return None
    elif len(resets) != 1 or not _is_reset(*resets[0], update, gates["r"], row):
        return None
    recurrent = None if step.recurrent is None else Form(n.width, {}, row)
    return replace(step, gates=gates, hidden=None, reset=None, recurrent=recurrent, like=step)


def _update_and_new(form: Form, finder: StepFinder) -> tuple[Atom, Atom] | None:
    """Z and n if `form` is `n - z * n`, with or without `z * zeros`; opposite gates appear as `1 - z`."""
    constants = finder.reader.constants

    def zero(atom: Atom) -> bool:
        return atom.kind == "leaf" and atom.value is not None and constants.zero(atom.value)

    terms = {a: w for a, w in form.terms.items() if not (a.kind == "product" and any(map(zero, a.factors)))}
    if len(terms) != 2 or (form.bias is not None and np.any(form.bias)):
        return None
    for new, product in (tuple(terms), tuple(terms)[::-1]):
        if product.kind != "product" or len(product.factors) != 2 or new not in product.factors:
            continue
        update = product.factors[1] if product.factors[0] is new else product.factors[0]
        if terms[new].is_number(1) and terms[product].is_number(-1) and {update.kind, new.kind} == {"activation"}:
            return update, new
    return None


def _inputs_of(form: Form, other: Form, step: FoundStep) -> dict[Atom, Atom] | None:
    """Maps the operands of the same gate of `step` to those of a gate, if their weights are equal; otherwise None."""
    own = {w.key: a for a, w in form.terms.items()}
    wanted = {w.key: a for a, w in other.terms.items() if a is not step.hidden}
    return {wanted[key]: own[key] for key in wanted} if own.keys() == wanted.keys() and own else None


def _same(a: Form, b: Form) -> bool:
    if {x: w.key for x, w in a.terms.items()} != {x: w.key for x, w in b.terms.items()}:
        return False
    return _close(a.bias, b.bias, a.width)


def _close(a: Floats | None, b: Floats | None, width: int) -> bool:
    """Whether two constants are equal up to summation order."""
    zeros = np.zeros(width, np.float32)
    return bool(np.allclose(zeros if a is None else a, zeros if b is None else b, rtol=1e-5, atol=1e-6))


def _apart(form: Form, finder: StepFinder) -> tuple[Form, list[tuple[Atom, Floats]]]:
    """Splits a gate into terms without and terms with activations times constant rows."""
    resets: list[tuple[Atom, Floats]] = []
    left = dict(form.terms)
    for atom, weight in form.terms.items():
        factors = list(atom.factors) if atom.kind == "product" else [atom]
        rows = [r for f in factors for r in [_row(f, finder)] if r is not None]
        others = [f for f in factors if _row(f, finder) is None]
        if weight.dense or len(rows) > 1 or len(others) != 1 or others[0].kind != "activation":
            continue
        resets.append((others[0], np.asarray(weight.array * (rows[0] if rows else 1), np.float32)))
        del left[atom]
    return Form(form.width, left, form.bias), resets


def _row(atom: Atom, finder: StepFinder) -> Floats | None:
    """The row that a constant repeats in all of its rows; None for other atoms."""
    held = finder.reader.constants.array(atom.value) if atom.kind == "leaf" else None
    if held is None:
        return None
    rows = held.reshape(-1, held.shape[-1])[:, atom.low : atom.low + atom.width]
    return np.asarray(rows[0], np.float32) if np.allclose(rows, rows[:1], rtol=1e-5, atol=1e-6) else None


def _is_reset(reset: Atom, factor: Floats, update: Atom, form: Form, row: Floats) -> bool:
    """Whether an activation times a constant is the reset gate times the bias of h."""
    same_kind = (reset.name, reset.parameters) == (update.name, update.parameters)
    return (
        same_kind
        and reset.form is not None
        and _same(reset.form, form)
        and _close(np.broadcast_to(factor, row.shape), row, row.size)
    )


def with_first_steps(finder: StepFinder, steps: Iterable[FoundStep]) -> list[FoundStep]:
    """Returns `steps` with the first steps before them."""
    known = list(steps)
    return [*first_steps(finder, known), *known]
