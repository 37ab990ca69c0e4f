"""Zeros as initial states of a stream whose data does not give them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

from rnnqc.data.declared_shapes import fixed_size
from rnnqc.data.feeds import Feeds, element_type, true_inputs
from rnnqc.data.input_uses import Role, Use, input_uses, known_shapes
from rnnqc.errors import CompileError

Shape = tuple[int, ...]


class InitialStates:
    """Derives the sizes of states from the arrays of a call. Analyzes the model once.

    Args:
        proto: The model.
        carried: Inputs that carry states.
    """

    def __init__(self, proto: onnx.ModelProto, carried: Iterable[str]) -> None:
        self._proto = proto
        self._declared = {i.name: i for i in true_inputs(proto)}
        self._states = list(carried)
        self._uses: dict[str, list[Use]] | None = None
        self._known: dict[tuple[tuple[str, Shape], ...], dict[tuple[str, int], int]] = {}

    def sizes(self, feed: Feeds) -> dict[tuple[str, int], int]:
        """Returns the size of each open axis of a state, by input and axis, as far as the other arrays determine it.

        Dimensions of one name have one size. A dimension without a size so far is taken as the batch: that of the
        sequence if a recurrent node reads the state; else the common size of that axis in the other arrays, or of all
        their open axes; 1 if no other array has an open axis.
        """
        shapes = tuple((name, array.shape) for name, array in feed.items() if name in self._declared)
        if shapes not in self._known:
            self._known[shapes] = self._sizes(dict(shapes))
        return self._known[shapes]

    def named_sizes(self, feed: Feeds) -> dict[str, int]:
        """Returns the sizes that the arrays of a call give to the named dimensions of states."""
        of_states = {d.dim_param for state in self._states for d in self._dims(state) if d.dim_param}
        named = self._named({n: a.shape for n, a in feed.items() if n in self._declared})
        return {name: size for name, size in named.items() if name in of_states}

    def open_sizes(self, feed: Feeds) -> set[int]:
        """Returns the sizes that the arrays of a call, except states, have where the model leaves them open."""
        return {size for _, size in self._open_axes(self._others({n: a.shape for n, a in feed.items()}))}

    def _others(self, shapes: Mapping[str, Shape]) -> dict[str, Shape]:
        return {n: s for n, s in shapes.items() if n in self._declared and n not in self._states}

    def _open_axes(self, shapes: Mapping[str, Shape]) -> set[tuple[int, int]]:
        """Returns axis and size wherever the model leaves the size open."""
        return {
            (axis, size)
            for name, shape in shapes.items()
            for axis, (dim, size) in enumerate(zip(self._dims(name), shape, strict=False))
            if fixed_size(dim) is None
        }

    def _sizes(self, shapes: Mapping[str, Shape]) -> dict[tuple[str, int], int]:
        named = self._named(shapes)
        found: dict[tuple[str, int], int] = {}
        for state in self._states:
            left = {axis: dim for axis, dim in enumerate(self._dims(state)) if fixed_size(dim) is None}
            for axis, dim in tuple(left.items()):
                if dim.dim_param in named:
                    found[state, axis] = named[dim.dim_param]
                    del left[axis]
            if len(left) == 1:
                (axis,) = left
                rows = self._rows(state, axis, self._others(shapes))
                if rows is not None:
                    found[state, axis] = rows
        return found

    def zeros(self, name: str, sizes: Mapping[tuple[str, int], int], where: str) -> npt.NDArray[Any]:
        """Returns zeros for a state, with open axes of the sizes in `sizes`.

        Raises:
            CompileError: An axis has no size.
        """
        shape = [sizes.get((name, axis), fixed_size(dim)) for axis, dim in enumerate(self._dims(name))]
        known = [size for size in shape if size is not None]
        ranked = self._declared[name].type.tensor_type.HasField("shape")
        if len(known) < len(shape) or not ranked:
            text = ", ".join("?" if size is None else str(size) for size in shape) if ranked else "..."
            raise CompileError(
                f"{where}: no array for the first {name!r} of shape [{text}], which neither the model nor the other "
                "arrays fix.",
                supported="zeros by default, where the shape is fixed by the model or the other arrays",
                action="give its first value in the data",
            )
        return np.zeros(known, element_type(self._declared[name]))

    def _dims(self, name: str) -> list[onnx.TensorShapeProto.Dimension]:
        return list(self._declared[name].type.tensor_type.shape.dim)

    def _named(self, shapes: Mapping[str, Shape]) -> dict[str, int]:
        """Returns the sizes that arrays give to named dimensions."""
        return {
            d.dim_param: n
            for key, shape in shapes.items()
            for d, n in zip(self._dims(key), shape, strict=False)  # empty for an input of any rank
            if d.dim_param
        }

    def _rows(self, state: str, axis: int, others: Mapping[str, Shape]) -> int | None:
        """Returns the size of a state's one remaining open axis; None if the arrays contradict one another."""
        in_node = self._rows_in_node(state, others)
        if in_node is not None:
            return in_node
        open_axes = self._open_axes(others)
        for sizes in ({n for a, n in open_axes if a == axis}, {n for _, n in open_axes}):
            if sizes:
                return sizes.pop() if len(sizes) == 1 else None
        return 1

    def _rows_in_node(self, state: str, others: Mapping[str, Shape]) -> int | None:
        """Returns the batch size of the sequence that a recurrent node reads together with the state."""
        if self._uses is None:
            self._uses = input_uses(self._proto)
        uses = [u for u in self._uses.get(state, ()) if u.role in (Role.STATE, Role.CELL)]
        if not uses:
            return None
        known = known_shapes(self._proto, {n: s for n, s in others.items() if len(s) == len(self._dims(n))})
        sizes = {known[u.value][u.batch_axis] for u in uses if u.batch_axis < len(known.get(u.value, ()))} - {None}
        return sizes.pop() if len(sizes) == 1 else None
