"""One side of the comparison of a cell: finds the values between the parts of a step, and their units.

The parts of a step are the matmuls with x and with h, the pre-activation of each gate, the activations, the state and
the hidden state. The values between them ("ports") have the same names for every form of a cell, and are real numbers
here, whatever numbers the form computes with.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from rnnqc.cells.activations import TABLE
from rnnqc.cells.base import CELL, FORGET, INPUT, Cell
from rnnqc.cells.equations import RESET_HIDDEN
from rnnqc.cells.fixed_point_numbers import FIXED_POINT, FIXED_POINT32
from rnnqc.cells.lut_numbers import LutNumbers
from rnnqc.cells.stages import IntegerCell, points_of
from rnnqc.formats.format import Format
from rnnqc.formats.point_format import FLOAT
from rnnqc.formats.scales import power_of_two_from
from rnnqc.passes.cells.cell_graphs import ROW_FORMAT
from rnnqc.passes.formats.point_format import stays_between_bounds
from rnnqc.passes.graph.flat.flat_model import FlatModel
from rnnqc.passes.graph.point_names import IN_GROUPS, WHOLE_X

Array = npt.NDArray[Any]
REAL, LUT = "real", "lut"
X, PROJECTION, HIDDEN, PRODUCT, CANDIDATE_PRODUCT = "x", "x W", "h", "h R", "(r h) R"
STATE, VALUE, SQUASHED, NEXT = "cell_state.previous", "hidden.value", "hidden.squashed", "hidden.next"
PREACTIVATION, INDEX, GATE = "preactivation", "index", "activation"
OUTPUTS = ("output y", "output y_h", "output y_c", "output y_codes")
CODES = OUTPUTS[-1]
_NAMES: Mapping[str, Mapping[str, Sequence[str]]] = {
    REAL: {
        PROJECTION: ("x.projection", "accumulator.x.limited", "x.product"),
        PRODUCT: ("accumulator.h.limited", "hidden.product"),
        CANDIDATE_PRODUCT: ("accumulator.reset.limited", "{candidate}.hidden_product"),
    },
    LUT: {
        PROJECTION: ("x.projection.steps", "x.projection"),
        PRODUCT: ("hidden.units",),
        CANDIDATE_PRODUCT: ("reset.hidden.units",),
        SQUASHED: ("hidden.squashed", "hidden.squashed.values", "hidden.squashed.value"),
    },
    FIXED_POINT: {
        PROJECTION: ("x.projection.exact", "x.product.scaled"),
        PRODUCT: ("hidden.product.scaled",),
        CANDIDATE_PRODUCT: ("reset.product.scaled",),
        SQUASHED: ("hidden.squashed", "hidden.squashed.values"),
    },
}
_WIDE_BITS = 16


def state_name(cell: Cell) -> str:
    """The name of the new state of a cell, a prefix of the names of its two parts."""
    return "cell_state" if cell.type.cell_state else "hidden_state"


def encoding(cell: Cell, point: str) -> Format | None:
    """The static format of a point with one scale; None for other points."""
    held = points_of(cell).get(point, FLOAT)
    return held.static if not held.is_float and len(held.scale) == 1 else None


def acc_point(cell: Cell, k: int) -> str:
    """The name of the point of a gate's pre-activation."""
    return f"{cell.type.gates[k]}.acc"


class CellSide:
    """A cell in one model.

    Args:
        flat: The model.
        cell: The cell of this model, with its formats.
    """

    def __init__(self, flat: FlatModel, cell: Cell) -> None:
        self.flat, self.cell = flat, cell
        self.numbers: Mapping[str, Any] = vars(cell.numbers) if isinstance(cell, IntegerCell) else {}
        self.form = (
            REAL
            if cell.form not in ("integer", "fused")
            else (FIXED_POINT if self.numbers.get("arithmetic") in (FIXED_POINT, FIXED_POINT32) else LUT)
        )
        self.bias_last = self._named("products") is not None
        self.real = np.dtype(np.float64 if self.numbers.get("arithmetic") == FIXED_POINT else np.float32)
        self._places = {port: self._find(port) for port in self.ports()}

    def ports(self) -> list[str]:
        """Returns the names of the values between the parts of a step."""
        cell, gates = self.cell, self.cell.type.gates
        found = [X, PROJECTION, HIDDEN, PRODUCT]
        if cell.resets_state:
            found += [RESET_HIDDEN, CANDIDATE_PRODUCT]
        own = [g for k, g in enumerate(gates) if not (cell.input_forget and k == FORGET)]
        found += [f"{g}.{PREACTIVATION}" for g in own]
        found += [f"{g}.{INDEX}" for g in own]
        found += [f"{g}.{GATE}" for g in own]
        if cell.type.cell_state:
            found.append(STATE)
        found += cell.type.state_points
        if cell.type.cell_state:
            found += [SQUASHED, VALUE]
        return [*found, NEXT, *OUTPUTS]

    @property
    def has_loop(self) -> bool:
        """Whether the step is in a loop, and not the first of unrolled steps."""
        return bool(self.flat.carried[self.cell.name])

    def around(self) -> set[str]:
        """Returns the ports whose values depend on the graph around the step."""
        return {X, PROJECTION, HIDDEN, PRODUCT, RESET_HIDDEN, CANDIDATE_PRODUCT, STATE, NEXT, *OUTPUTS}

    def has(self, port: str) -> bool:
        """Whether the cell has the value."""
        return self._places.get(port) is not None

    def full_name(self, port: str) -> str:
        """Returns the name of the value in the model."""
        place = self._places[port]
        assert place is not None
        return place[0]

    @property
    def carries_codes(self) -> bool:
        """Whether the loop carries quantized hidden states."""
        mode = self.numbers.get("h_mode", "static")
        return self.form != REAL and mode == "static" and not self.cell.type.reads_hidden

    def needed(self, ports: Sequence[str], given: Sequence[str]) -> set[str]:
        """Returns those of `given` that `ports` are computed from."""
        names = {p: self.full_name(p) for p in given}
        found = self.flat.needed([self.full_name(p) for p in ports], set(names.values()))
        return {p for p, name in names.items() if name in found}

    def exact_name(self, name: str) -> str | None:
        """Returns the name in the model of a value of the step; None if there is none."""
        return self._named(name)

    def units(self, port: str) -> tuple[Array | float, Array | float]:
        """Returns factor and offset from real values to those of the model, as scalars or for each column."""
        if self.form != LUT:
            return 1.0, 0.0
        cell, size = self.cell, self.cell.hidden_size
        steps, halves = (np.array(v) for v in zip(*(self._step(k) for k in range(len(cell.type.gates))), strict=True))
        if port == PROJECTION:
            return np.repeat(1.0 / steps, size), np.repeat(halves, size)
        if port == PRODUCT:
            count = cell.type.joint if cell.resets_state else len(steps)
            return np.repeat(1.0 / steps[:count], size), 0.0
        if port == CANDIDATE_PRODUCT:
            return 1.0 / float(steps[-1]), 0.0
        gate, _, kind = port.rpartition(".")
        if kind == PREACTIVATION:
            k = cell.type.gates.index(gate)
            return 1.0 / float(steps[k]), float(halves[k])
        scale = self.numbers["cell_scale"] or 1.0
        in_units = {STATE, "cell_state", "cell_state.kept", "cell_state.added"}
        if cell.type.cell_state:
            in_units.add(f"{cell.type.gates[CELL]}.{GATE}")
        return (1.0 / scale, 0.0) if port in in_units else (1.0, 0.0)

    def _step(self, k: int) -> tuple[float, float]:
        """Returns the real value of a gate's pre-activation step, and the offset of 0."""
        k = INPUT if self.cell.input_forget and k == FORGET else k
        e = encoding(self.cell, acc_point(self.cell, k))
        if self.cell.gate_activation(k).kind != TABLE or e is None:
            return 1.0, 0.0
        return float(e.scale[0]), float(e.zero_point - e.minimum) + 0.5

    def run(self, real: Mapping[str, Array], ports: Sequence[str], extra: Sequence[str] = ()) -> dict[str, Array]:
        """Computes real values of ports, and unconverted values of other names, from real values of other ports.

        Args:
            real: Values by port, `[N, columns]`.
            ports: The ports to compute.
            extra: Other names of values to compute.
        """
        rows, batch = len(next(iter(real.values()))), self.cell.static_batch
        wanted = [self.full_name(p) for p in ports]
        if batch is None:
            made = self.flat.run(self._fed(real), [*wanted, *extra])
        else:
            count = -(-rows // batch)
            padded = {p: a[np.arange(count * batch) % rows] for p, a in real.items()}
            feeds = {n: _in_runs(a, count, batch) for n, a in self._fed(padded).items()}
            several = self.flat.run(feeds, [*wanted, *extra], repeated=True)
            made = {n: _joined(a, rows) for n, a in several.items()}
        found = {p: self._to_real(p, made[n]) for p, n in zip(ports, wanted, strict=True)}
        return found | {n: _flat(made[n]) for n in extra}

    def _fed(self, real: Mapping[str, Array]) -> dict[str, Array]:
        """Converts real values of ports to feeds of the model."""
        feeds: dict[str, Array] = {}
        for port, array in real.items():
            name, gate = self._places[port] or ("", None)
            if not name:
                continue
            if port == X:
                feeds |= self._of_x(array)
                continue
            fed = self._to_model(port, array)
            if gate is not None:  # gates side by side in one value
                joint = feeds.setdefault(name, np.zeros((len(array), self._joint * self.cell.hidden_size), fed.dtype))
                joint[:, gate * self.cell.hidden_size : (gate + 1) * self.cell.hidden_size] = fed
            else:
                feeds[name] = fed
        return feeds | self._boundary(real, len(next(iter(real.values()))))

    def _boundary(self, real: Mapping[str, Array], count: int) -> dict[str, Array]:
        """Returns feeds for the inputs of the cell that `real` does not give."""
        cell, feeds = self.cell, dict[str, Array]()
        if X not in real:
            feeds |= self._of_x(np.zeros((count, cell.input_size)))
        for name, port in ((cell.initial_h, "initial_h"), (cell.initial_c, "initial_c")):
            if name is not None:
                has_axis = self._named(f"{port}.without_direction") is not None
                feeds[name] = np.zeros((*([1] if has_axis else []), count, cell.hidden_size), np.float32)
        if cell.sequence_lens is not None:
            feeds[cell.sequence_lens] = np.ones(count, np.int32)
        return feeds

    def _to_model(self, port: str, array: Array) -> Array:
        factor, offset = self.units(port)
        if port == HIDDEN and not self.cell.type.reads_hidden:
            return self._carried(array)
        values = array * factor + offset
        kind = self.real
        if port == HIDDEN:
            kind = np.dtype(np.float32)
        values = values.astype(kind)
        return self._in_time(values) if port == PROJECTION else values

    @property
    def _x(self) -> str:
        """The input: what a fused cell makes of its parts and factors, or the value that the cell names."""
        return self._named(WHOLE_X) or self.cell.x

    @property
    def _takes_codes(self) -> bool:
        return self.form != REAL and self.numbers.get("x_mode") == "codes"

    def _in_time(self, array: Array) -> Array:
        """Returns `[T,B,...]` for one step."""
        cell = self.cell
        steps = cell.static_length if cell.reverse and cell.static_length and cell.initial_h else 1
        return np.repeat(array[np.newaxis], steps, axis=0)

    def _of_x(self, array: Array) -> dict[str, Array]:
        """Returns the feeds of the input: floats, quantized values, or int8 rows and powers of two as their scales."""
        cell, e = self.cell, encoding(self.cell, "input")
        if isinstance(cell, IntegerCell) and cell.x_scale is not None:
            scale = power_of_two_from(np.abs(array).max(axis=1, keepdims=True) / ROW_FORMAT.maximum)
            made: dict[str, Array] = {
                self._x: np.rint(array / scale).astype(np.int8),
                cell.x_scale: scale.astype(np.float32),
            }
        elif self._takes_codes:
            assert e is not None
            made = {self._x: (e.quantize(array).astype(np.int64) - e.minimum).astype(np.uint8)}
        else:
            made = {self._x: array.astype(np.float32)}
        return {name: self._in_time(values) for name, values in made.items()}

    def _carried(self, array: Array) -> Array:
        """Returns the hidden state as the loop carries it: quantized, as multiples of the scale, or float."""
        e = encoding(self.cell, "hidden")
        if not self.carries_codes or e is None:
            return array.astype(np.float32)
        codes = e.quantize(array.astype(np.float32)).astype(np.int64)
        if self.form == FIXED_POINT and not self._carries_bytes:
            return (codes - e.zero_point).astype(self.real)
        raised = codes - e.zero_point + int(self._hidden_zero)
        if e.bits == _WIDE_BITS:
            return np.concatenate([raised >> 8, raised & 255]).astype(np.uint8)
        return raised.astype(np.uint8)

    @property
    def _hidden_zero(self) -> int:
        n = self.numbers
        return int(n["grid_zero_point"][1] if self.form == FIXED_POINT else n["h_zero_point"])

    @property
    def _carries_bytes(self) -> bool:
        """Whether the loop's matmul is one of integers."""
        made = self._named(f"hidden.product{IN_GROUPS}") or self._named("hidden.product")
        return made is not None and self.flat.makers[made].op_type == "MatMulInteger"

    @property
    def _joint(self) -> int:
        """The number of gates side by side in the joint pre-activation."""
        return self.cell.type.joint

    def _named(self, name: str) -> str | None:
        return self.flat.name(self.cell.name, name)

    def _first(self, *names: str) -> tuple[str, int | None] | None:
        return next(((full, None) for n in names if (full := self._named(n)) is not None), None)

    def _find(self, port: str) -> tuple[str, int | None] | None:
        """Returns the name of a port's value; with the number of the gate if it is a part of a joint value."""
        cell, form = self.cell, self.form
        if port == X:
            return self._x, None
        if port == HIDDEN:
            return self._first("hidden.previous")
        if port == RESET_HIDDEN:
            return self._first(RESET_HIDDEN)
        if port == STATE:
            return self._first("cell_state.previous")
        if port == PROJECTION and form == REAL and self.bias_last:
            return self._first("accumulator.x.limited", "x.product")
        if port in _NAMES[form]:
            return self._first(*(n.format(candidate=cell.type.gates[-1]) for n in _NAMES[form][port]))
        if port == NEXT:
            carried = self.flat.carried[cell.name]
            return (carried[0], None) if carried else None
        if port in OUTPUTS:
            name = getattr(cell, port.removeprefix("output "), None)
            return (name, None) if name in self.flat.makers else None
        if port == SQUASHED:
            return self._quantized("hidden.activation", port)
        gate, _, kind = port.rpartition(".")
        if kind == PREACTIVATION:
            return self._first(f"{gate}.sum", f"{gate}.product") or self._of_joint(cell.type.gates.index(gate))
        if kind == INDEX:
            return self._index(gate)
        if kind == GATE:
            return self._activated(gate)
        carried = self.flat.carried[cell.name]
        if port in ("cell_state", "hidden_state") and form == REAL and carried:
            return carried[-1], None
        if port in ("cell_state", "hidden_state"):
            return self._first(*self._names_of_state(port))
        return self._quantized(port, port)

    def _quantized(self, point: str, port: str) -> tuple[str, int | None] | None:
        """Returns the quantized value of a quantized point, never its input; else the value itself."""
        is_quantized = points_of(self.cell).get(point, FLOAT).is_quantized
        return self._first(f"{point}.quantized" if is_quantized else port)

    def _names_of_state(self, port: str) -> Sequence[str]:
        """Returns names of the state in the units of the form, never of the state before its limit."""
        if self.form == REAL:
            return (f"{port}.quantized" if points_of(self.cell).get(port, FLOAT).is_quantized else f"{port}.sum",)
        is_float = encoding(self.cell, port) is None if self.form == FIXED_POINT else not self.numbers["cell_scale"]
        if is_float:  # limited, unless the equations bound the state
            is_sum = self.form == LUT and stays_between_bounds(self.cell)
            return (port, f"{port}.sum") if is_sum else (port,)
        numbers = self.cell.numbers if isinstance(self.cell, IntegerCell) else None
        return (f"{port}.rounded",) if isinstance(numbers, LutNumbers) and numbers.cell_is_wide else (port,)

    def _of_joint(self, k: int) -> tuple[str, int | None] | None:
        found = self._named("preactivation")
        return None if found is None or k >= self._joint else (found, k)

    def _index(self, gate: str) -> tuple[str, int | None] | None:
        """Returns the limited index of a gate's table; only integer forms have one."""
        k = self.cell.type.gates.index(gate)
        if self.form == REAL or encoding(self.cell, acc_point(self.cell, k)) is None:
            return None
        ending = "limited" if self.form == LUT else "multiples"
        own = self._first(f"{gate}.limited" if self.form == LUT else f"{gate}.acc.multiples")
        joint = self._named(f"preactivation.{ending}")
        return own or (None if joint is None or k >= self._joint else (joint, k))

    def _activated(self, gate: str) -> tuple[str, int | None] | None:
        if self.form == REAL:
            return self._quantized(f"{gate}.{GATE}", f"{gate}.value")
        alone = self.cell.type.joint == 1 and gate == self.cell.type.gates[0]  # the only joint gate
        return self._first(gate, f"{gate}.values", *(("gates.values",) if alone else ()))

    def _to_real(self, port: str, made: Array) -> Array:
        place = self._places[port]
        assert place is not None
        array, size = _flat(made), self.cell.hidden_size
        if place[1] is not None:
            array = array[:, place[1] * size : (place[1] + 1) * size]
        if port.endswith(f".{INDEX}"):
            return np.floor(array.astype(np.float64))
        if (port == NEXT and array.dtype == np.uint8) or port == CODES:
            return self._real_of_codes(array)
        if port == NEXT and self.form == FIXED_POINT and not self.cell.type.reads_hidden:
            return array.astype(np.float64) * float(self.numbers["grid_scale"][1])
        factor, offset = self.units(port)
        return np.asarray((array.astype(np.float64) - offset) / factor)

    def _real_of_codes(self, array: Array) -> Array:
        e = encoding(self.cell, "hidden")
        assert e is not None
        codes = array.astype(np.int64)
        if e.bits == _WIDE_BITS:
            high, low = np.split(codes, 2)
            codes = 256 * high + low
        return np.asarray((codes - self._hidden_zero) * float(e.scale[0]))


def _in_runs(array: Array, count: int, batch: int) -> Array:
    """Splits a feed into `count` runs of `batch` rows; two planes of bytes stay one above the other."""
    if array.ndim == 3:  # time first
        return np.moveaxis(array.reshape(len(array), count, batch, -1), 1, 0)
    if array.ndim == 2 and len(array) == 2 * count * batch:
        return np.concatenate([p.reshape(count, batch, -1) for p in np.split(array, 2)], axis=1)
    return array.reshape(count, batch, *array.shape[1:])


def _joined(runs: Array, rows: int) -> Array:
    """Joins the results of several runs; two planes of bytes stay one above the other."""
    each = runs.reshape(len(runs), -1, *runs.shape[-2:])[:, 0]
    if each.dtype == np.uint8 and each.ndim == 3 and each.shape[0] * each.shape[1] >= 2 * rows:
        half = each.shape[1] // 2
        return np.concatenate([p.reshape(-1, p.shape[-1])[:rows] for p in (each[:, :half], each[:, half:])])
    return each.reshape(-1, each.shape[-1])[:rows]


def _flat(array: Array) -> Array:
    """Returns `[N, columns]` from `[...,N,columns]` with one step."""
    return array.reshape(-1, *array.shape[-2:])[0] if array.ndim > 2 else array
