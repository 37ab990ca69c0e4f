"""Rows of a batch as expressions of products with constant matrices and activations.

Equivalent forms of a step give the same expression: fused or separate matmuls, Split or Slice, `[x, h] W` or `x W + h
R`, `(1 - z) * n + z * h` or `n + z * (h - n)`.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from rnnqc.ir import Value

Floats = npt.NDArray[np.float32]
Key = Hashable


@dataclass(frozen=True, eq=False)
class Weight:
    """The factor of an atom: a number, one number per column, or a matrix `[columns of the atom, columns]`.

    Attributes:
        key: Equal for equal weights derived in the same way.
        array: float32 of rank 0, 1 or 2.
    """

    key: Key
    array: Floats

    @property
    def dense(self) -> bool:
        """Whether it is a matrix."""
        return self.array.ndim == 2

    def is_number(self, number: float) -> bool:
        """Whether every column is multiplied by `number`."""
        return not self.dense and bool(np.all(self.array == np.float32(number)))

    def sliced(self, low: int, high: int) -> Weight:
        """The weight of columns `low` to `high`."""
        if self.array.ndim == 0:
            return self
        return Weight(("columns", self.key, low, high), self.array[..., low:high])

    def times(self, row: Floats | np.float32) -> Weight:
        """The weight with its columns multiplied by a number or a row."""
        if np.all(row == 1):
            return self
        product = np.asarray(self.array * row, np.float32)
        if self.dense:
            return Weight(("times", self.key, _row_key(np.asarray(row))), product)
        return elementwise(product)

    def plus(self, other: Weight) -> Weight:
        """The sum of two weights."""
        if not (self.dense or other.dense):
            return elementwise(np.asarray(self.array + other.array, np.float32))
        width = (self if self.dense else other).array.shape[1]
        total = _as_matrix(self, width) + _as_matrix(other, width)
        return Weight(("sum", *sorted(map(repr, (self.key, other.key)))), total)


def _row_key(row: Floats) -> Key:
    return (row.shape, row.tobytes())


def elementwise(array: npt.ArrayLike) -> Weight:
    """Returns a weight that multiplies each column of an atom by a number."""
    row = np.asarray(array, np.float32)
    if row.ndim == 1 and row.size and np.all(row == row[0]):
        row = row[0].reshape(())
    return Weight(_row_key(row), row)


ONE = elementwise(1.0)


def _as_matrix(weight: Weight, width: int) -> Floats:
    return weight.array if weight.dense else np.diag(np.broadcast_to(weight.array, (width,)))


@dataclass(eq=False)
class Atom:
    """A basic term of rows; one object for each distinct atom of an `Atoms`.

    Attributes:
        kind: "leaf" (columns of an opaque value), "activation" (of `form`), "product" (of `factors`, element by
            element) or "linear" (`form` as a whole).
        width: Number of columns.
        value: The value that equals this atom, where one is known; for a leaf: its source value.
        identity: For a leaf: equal for equal values.
        whole: For a leaf: number of columns of the value.
        low: For a leaf: its first column.
        name: Operator of an activation.
        parameters: Attributes of an activation.
        form: The argument of an activation, or the linear form.
        factors: The factors of a product.
    """

    kind: str
    width: int
    value: Value | None = None
    identity: Key = None
    whole: int = 0
    low: int = 0
    name: str = ""
    parameters: tuple[tuple[str, float], ...] = ()
    form: Form | None = None
    factors: tuple[Atom, ...] = ()


@dataclass(eq=False)
class Form:
    """A sum of weighted atoms and a constant row.

    Attributes:
        width: Number of columns.
        terms: The weight of each atom.
        bias: The constant, or None for zeros.
    """

    width: int
    terms: Mapping[Atom, Weight] = field(default_factory=dict)
    bias: Floats | None = None

    @property
    def key(self) -> Key:
        """Equal for equal forms."""
        terms = frozenset((id(a), w.key) for a, w in self.terms.items())
        return (self.width, terms, None if self.bias is None else _row_key(self.bias))

    @property
    def single(self) -> Atom | None:
        """The atom that equals this form, if it is a single unweighted atom."""
        if self.bias is not None or len(self.terms) != 1:
            return None
        ((atom, weight),) = self.terms.items()
        return atom if weight.is_number(1) else None

    @property
    def dense(self) -> bool:
        """Whether an atom has a matrix as its weight."""
        return any(w.dense for w in self.terms.values())

    @property
    def linear(self) -> bool:
        """Whether it has no activations and products except behind matrices."""
        return all(w.dense or a.kind == "leaf" for a, w in self.terms.items())

    def plus(self, other: Form) -> Form:
        """The sum."""
        terms = dict(self.terms)
        for atom, weight in other.terms.items():
            terms[atom] = terms[atom].plus(weight) if atom in terms else weight
        terms = {a: w for a, w in terms.items() if w.dense or np.any(w.array)}
        biases = [b for b in (self.bias, other.bias) if b is not None]
        return Form(self.width, terms, np.sum(biases, axis=0, dtype=np.float32) if biases else None)

    def times(self, row: Floats | np.float32) -> Form:
        """Multiplies every column by a number or by its element of a row."""
        terms = {a: w.times(row) for a, w in self.terms.items()}
        return Form(
            self.width,
            {a: w for a, w in terms.items() if np.any(w.array)},
            None if self.bias is None else np.asarray(self.bias * row, np.float32),
        )


class Atoms:
    """Creates atoms, one object for each distinct one."""

    def __init__(self) -> None:
        self._held: dict[Key, Atom] = {}

    def leaf(self, value: Value, width: int, identity: Key = None) -> Atom:
        """A value of `width` columns; values with the same `identity` are equal (by default: none)."""
        return self._columns(value, id(value) if identity is None else identity, width, 0, width)

    def _columns(self, value: Value, identity: Key, whole: int, low: int, high: int) -> Atom:
        made = Atom("leaf", high - low, value, identity, whole, low)
        return self._held.setdefault(("leaf", identity, low, high), made)

    def activation(self, name: str, form: Form, parameters: tuple[tuple[str, float], ...] = ()) -> Atom:
        """`name(form)`."""
        made = Atom("activation", form.width, name=name, form=form, parameters=parameters)
        return self._held.setdefault(("activation", name, parameters, form.key), made)

    def product(self, factors: tuple[Atom, ...]) -> Atom:
        """The elementwise product of atoms."""
        flat = [f for a in factors for f in (a.factors if a.kind == "product" else (a,))]
        ordered = tuple(sorted(flat, key=id))
        made = Atom("product", ordered[0].width, factors=ordered)
        return self._held.setdefault(("product", *map(id, ordered)), made)

    def linear(self, form: Form) -> Atom:
        """`form` as one atom."""
        return self._held.setdefault(("linear", form.key), Atom("linear", form.width, form=form))

    def sliced(self, form: Form, low: int, high: int) -> Form:
        """Columns `low` to `high` of a form."""
        if (low, high) == (0, form.width):
            return form
        terms: dict[Atom, Weight] = {}
        for atom, weight in form.terms.items():
            part = atom if weight.dense else self._sliced_atom(atom, low, high)
            terms[part] = weight.sliced(low, high)
        return Form(high - low, terms, None if form.bias is None else form.bias[low:high])

    def _sliced_atom(self, atom: Atom, low: int, high: int) -> Atom:
        if atom.kind == "leaf":
            assert atom.value is not None
            return self._columns(atom.value, atom.identity, atom.whole, atom.low + low, atom.low + high)
        if atom.kind == "product":
            return self.product(tuple(self._sliced_atom(f, low, high) for f in atom.factors))
        assert atom.form is not None
        inner = self.sliced(atom.form, low, high)
        return self.activation(atom.name, inner, atom.parameters) if atom.kind == "activation" else self.linear(inner)

    def multiplied(self, a: Form, b: Form) -> Form:
        """The elementwise product of two forms; sums of few atoms are expanded."""
        for one, other in ((a, b), (b, a)):
            if not one.terms:
                return other.times(one.bias if one.bias is not None else np.zeros((), np.float32))
        a, b = self._polynomial(a), self._polynomial(b)
        total = Form(a.width)
        for left, v in a.terms.items():
            for right, w in b.terms.items():
                weight = v.times(w.array)
                if np.any(weight.array):
                    total = total.plus(Form(a.width, {self.product((left, right)): weight}))
        for one, other in ((a, b), (b, a)):
            if one.bias is not None:
                total = total.plus(Form(a.width, other.terms).times(one.bias))
        if a.bias is not None and b.bias is not None:
            total = total.plus(Form(a.width, {}, a.bias * b.bias))
        return total

    def _polynomial(self, form: Form) -> Form:
        if form.dense or len(form.terms) > 4:
            return Form(form.width, {self.linear(form): ONE})
        return form
