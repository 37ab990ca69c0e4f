"""The tensors of a cell in form qcdq: float operators with quantizers (rnnqc.passes.cells.float_arithmetic)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from rnnqc.cells.base import FORGET
from rnnqc.cells.equations import RESET_HIDDEN, RESET_PRODUCT
from rnnqc.cells.stages import QuantizedCell
from rnnqc.formats.format import Format
from rnnqc.formats.scales import is_power_of_two
from rnnqc.passes.cells.float_step import ACCUMULATORS
from rnnqc.passes.fold.fold_fixed_point import needs_fixed_point
from rnnqc.passes.graph.nodes.quant_operators import CELL_OP
from rnnqc.tracing.tensors import Tensor, dequantized

Array = npt.NDArray[Any]
F32 = np.float32
_INPUT = "input"
_OF_X, _OF_H, _OF_RESET = ACCUMULATORS
_MADE = ("hidden.value", "hidden.next", "hidden.step")
_PARTS = ("codes", "clipped", "rounded", "zero_point", "scale")


class QcdqReader:
    """Finds the tensors of a cell among the values of its nodes.

    Args:
        cell: The cell.
    """

    before = (*(f"{_INPUT}.{p}" for p in _PARTS), f"{_INPUT}/codes", f"{_INPUT}/sign", "x.product", f"{_OF_X}.limited")

    def __init__(self, cell: QuantizedCell) -> None:
        self.cell = cell
        names = ("hidden.previous", *(f"hidden.{p}" for p in _PARTS), "hidden/codes", "hidden/sign")
        self.entering = () if cell.rounds_output else names
        # In other cells the parts of pre-activations differ from those of the integer forms.
        self._grid = cell.op == CELL_OP or cell.is_float or needs_fixed_point(cell)

    def in_front(self, values: Mapping[str, Array], x: Array) -> Iterator[Tensor]:
        """Yields the tensors computed before the loop: the input and its matmul, for the whole sequence.

        Args:
            values: Values before the loop, by plain names.
            x: The cell's input, in the order of the loop's sequences.
        """
        yield self._point(_INPUT, values, x)
        yield _product("x.product", _OF_X, values)

    def steps(self, values: Mapping[str, Array], after: Mapping[str, Array], backwards: bool) -> Iterator[Tensor]:
        """Yields the tensors computed in the loop.

        Args:
            values: Values of its body `[T,...]`, by plain names.
            after: The values that one further step would compute from the final states.
            backwards: Whether the loop goes from the last step to the first.
        """
        cell = self.cell
        if self._grid:
            for k in range(len(cell.type.gates)):
                if not self._is_coupled(k):
                    yield self._part(k, "input_product", values, values["x.projection.step"])
        if cell.rounds_output:
            yield self._rounded("hidden.previous", values["hidden.previous"])
            hidden = self._point("hidden", values, values["hidden.previous"])
        else:
            entering = self._point("hidden", values, values["hidden.previous"])
            following = self._point("hidden", after, after["hidden.previous"])
            yield replace(entering, name="hidden.previous")
            hidden = _moved(entering, following, backwards)
        yield _product("hidden.product", _OF_H, values)
        for k in range(len(cell.type.gates)):
            yield from self._gate(k, values)
        points = [p.name for p in cell.type.points]
        state = points[points.index(f"{cell.type.gates[-1]}.activation") + 1 :]
        yield from self._points([p for p in state if p != RESET_PRODUCT], values)
        yield Tensor("hidden.value", next(values[n] for n in _MADE if n in values))
        yield hidden

    def _gate(self, k: int, values: Mapping[str, Array]) -> Iterator[Tensor]:
        """Yields pre-activation and value of one gate, in the order of the integer forms."""
        cell, name = self.cell, self.cell.type.gates[k]
        if self._is_coupled(k):
            for made in self._points([f"{name}.activation"], values):
                # 1 - i is rounded: unless the scale is a power of two it is not an exact multiple.
                exact = made.scale is not None and is_power_of_two(float(made.scale))
                yield made if exact else Tensor(made.name, made.values)
            return
        candidate = k == cell.type.candidate
        if candidate and not cell.linear_before_reset:
            yield Tensor(f"{RESET_HIDDEN}.value", values[RESET_HIDDEN])
            yield self._point(RESET_HIDDEN, values, values[RESET_HIDDEN])
            yield _product(f"{RESET_HIDDEN}.product", _OF_RESET, values, f"{name}.hidden_product")
        if self._grid:
            yield self._part(k, "hidden_product", values, values["hidden.product"])
        if candidate and cell.linear_before_reset:
            yield from self._points([RESET_PRODUCT], values)
        sums = first_of(values, f"{name}.sum", f"{name}.product")
        quantized = not self.cell.point(f"{name}.acc").is_float
        if sums is not None and (self._grid or not quantized):
            yield Tensor(f"{name}.preactivation", sums)
        seen = [f"{name}.acc"] if quantized or cell.is_float else []
        yield from self._points([*seen, f"{name}.activation"], values)

    def _is_coupled(self, k: int) -> bool:
        """Whether gate k is f = 1 - i, without matmuls of its own."""
        return self.cell.input_forget and k == FORGET

    def _part(self, k: int, point: str, values: Mapping[str, Array], whole: Array) -> Tensor:
        """The part of gate k of a matmul's result, quantized if it has a quantizer."""
        name, hidden = f"{self.cell.type.gates[k]}.{point}", self.cell.hidden_size
        held = values.get(name)
        return self._point(name, values, whole[..., k * hidden : (k + 1) * hidden] if held is None else held)

    def _points(self, points: Iterable[str], values: Mapping[str, Array]) -> Iterator[Tensor]:
        """Yields the tensors of those `points` that the loop has."""
        for point in points:
            held = self._value(point, values)
            if held is not None:
                yield self._point(point, values, held)

    def _value(self, point: str, values: Mapping[str, Array]) -> Array | None:
        """The value that a point's quantizer reads, or the value at a float point; None if the loop has none."""
        gate, _, part = point.rpartition(".")
        names = [point, f"{point}.sum", f"{point}.next"]
        if part == "acc":
            names = [f"{gate}.clipped", f"{gate}.sum", f"{gate}.product"]
        elif point == "hidden.activation":
            names = ["hidden.squashed"]
        elif part == "activation":
            names = [f"{gate}.value", f"{gate}.coupled"]
        if point == "hidden_state" or (part == "activation" and len(self.cell.type.gates) == 1):
            names = [*names, *_MADE]
        return next((values[n] for n in names if n in values), None)

    def _point(self, point: str, values: Mapping[str, Array], exact: Array) -> Tensor:
        """The tensor at a quantization point, from the quantizer's own values."""
        held = self.cell.point(point).format
        if held is None:
            return Tensor(point, exact)
        if not isinstance(held, Format):
            return self._of_rows(point, values, exact)
        scale, zero_point = F32(held.scale[0]), held.zero_point
        codes = _codes(point, values, zero_point)
        if codes is not None:
            return dequantized(point, codes, scale=scale, zero_point=zero_point)
        made = dequantized(point, _on_grid(exact, scale) + zero_point, scale=scale, zero_point=zero_point)
        return made if np.array_equal(made.values, exact) else Tensor(point, exact)

    def _rounded(self, name: str, values: Array) -> Tensor:
        """The tensor of a hidden state whose values are already multiples of its scale."""
        held = self.cell.points["hidden"].complete
        scale, zero_point = F32(held.scale[0]), held.zero_point
        return dequantized(name, _on_grid(values, scale) + zero_point, scale=scale, zero_point=zero_point)

    def _of_rows(self, point: str, values: Mapping[str, Array], exact: Array) -> Tensor:
        rows = values.get(f"{point}.scale")
        codes = next((values[n] for p in _PARTS[:3] if (n := f"{point}.{p}") in values), None)
        if rows is None or codes is None:
            return Tensor(point, exact)
        whole = np.asarray(codes, np.int64)
        zero: Any = values.get(f"{point}.zero_point")
        if zero is None:  # all rows have the same one; values that are multiples of the scale leave it out
            zero = self.cell.points[point].integers.zero_point
            whole = whole + zero
        return dequantized(point, whole, row_scale=rows, zero_point=zero)


def _product(name: str, limits: str, values: Mapping[str, Array], held: str = "") -> Tensor:
    """Results of a matmul, after the limits of their accumulator."""
    sums = first_of(values, f"{limits}.limited", held or name)
    assert sums is not None
    return Tensor(name, sums)


def _moved(entering: Tensor, following: Tensor, backwards: bool) -> Tensor:
    """The hidden state after each step, from the states entering the steps and the one entering the next step."""
    zero = entering.zero_point
    if zero is not None and zero.ndim:
        zero = moved(zero, following.zero_point, backwards)
    values, codes, rows = (
        moved(getattr(entering, n), getattr(following, n), backwards) for n in ("values", "codes", "row_scale")
    )
    return replace(entering, name="hidden", values=values, codes=codes, row_scale=rows, zero_point=zero)


def _on_grid(values: Array, scale: np.float32) -> Array:
    """Returns `values` as multiples of `scale`, rounded to int64."""
    multiples: Array = np.rint(values / scale).astype(np.int64)
    return multiples


def _codes(point: str, values: Mapping[str, Array], zero_point: int) -> Array | None:
    """Returns a quantizer's values as integers: integers as they are, floats of Brevitas, or multiples of the scale."""
    exported, sign = values.get(f"{point}/codes"), values.get(f"{point}/sign")
    if exported is not None:
        return np.asarray(exported, np.int64)
    clipped, codes = (values.get(f"{point}.{p}") for p in ("clipped", "codes"))
    held = next((v for v in (sign, clipped, codes) if v is not None), None)
    if held is None or held.dtype.kind in "iu":
        return held
    return np.asarray(held, np.int64) + zero_point


def first_of(values: Mapping[str, Array], *names: str) -> Array | None:
    """Returns the value of the first of `names` that exists."""
    return next((values[n] for n in names if n in values), None)


def moved(values: Array | None, after: Array | None, backwards: bool) -> Any:
    """Returns the values after each step, from those before each step and before the next one."""
    if values is None or after is None:
        return None
    return np.concatenate([after, values[:-1]] if backwards else [values[1:], after])
