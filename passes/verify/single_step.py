"""One step of each cell before and after a pass, fed the same.

The step is cut between its parts (see cell_sides.py), and every part gets its own values: nothing is fed back, and no
part sees what another one rounds. So both forms agree up to float32 roundings, and a wrong scale, bias, limit, sign,
order of gates or entry of a table shows at once, with its gate and column. Values that are quantized run through every
code and beyond both ends, away from ties; so every entry of every table is read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from rnnqc.cells.base import FORGET, OUTPUT, Cell
from rnnqc.cells.equations import CANDIDATE, RESET_HIDDEN, RESET_PRODUCT
from rnnqc.formats.encoding import Encoding
from rnnqc.passes.fold.fold_cell import STATE_LIMIT
from rnnqc.passes.fold.grid_numbers import GRID, GRID32
from rnnqc.passes.verify.activation_tables import activated
from rnnqc.passes.verify.cell_sides import (
    CANDIDATE_PRODUCT,
    GATE,
    HIDDEN,
    NEXT,
    PREACTIVATION,
    PRODUCT,
    PROJECTION,
    SQUASHED,
    STATE,
    VALUE,
    CellSide,
    X,
    acc_point,
    encoding,
    state_name,
)

Array = npt.NDArray[Any]
RELATIVE = 2.0**-17
"""How far two sums of float32 products may be apart, as a share of the largest value of the row."""
ULPS = 4.0
NEAR_TIE = 0.02
BEYOND = 2.0 * STATE_LIMIT
_FRACTIONS = (0.05, 0.45, 0.55, 0.95)
_ROWS, _MOST_CODES, _WIDEST = 32, 2**14, 16


@dataclass(frozen=True)
class WrongValue:
    """A value of a step that is not what it has to be.

    Attributes:
        value: Its name in the model after the pass.
        reference: Its name before it.
        place: The gate and the column.
        found: The value furthest off, in real units.
        expected: What it has to be.
        count: How many values are wrong.
    """

    value: str
    reference: str
    place: str
    found: float
    expected: float
    count: int

    def __str__(self) -> str:
        return (
            f"{self.value!r} is not {self.reference!r} in a single step: {self.place} is {self.found:.9g}, "
            f"not {self.expected:.9g} ({self.count} such values)"
        )


class SingleStep:
    """The comparison of one cell.

    Args:
        before: The cell before the pass.
        after: The cell after it.
        exact: Whether both have the same bits.
    """

    def __init__(self, before: CellSide, after: CellSide, *, exact: bool) -> None:
        self.before, self.after, self.exact = before, after, exact
        self.cell: Cell = before.cell
        self._rng = np.random.default_rng(0)
        self.passed_over: list[str] = []
        self.compared = 0

    def wrong_values(self) -> Iterator[WrongValue]:
        """Compares all parts of the step; yields what is wrong, in the order of computation."""
        feeds = self._feeds()
        ports = [p for p in self.after.ports() if p not in (X, HIDDEN, STATE) and self._is_common(p)]
        raw = {p: [n for n in names if n] for p, names in self._raw_names().items()}
        extra = sorted({n for names in raw.values() for n in names})
        a = self.before.run({k: v for k, v in feeds.items() if self.before.has(k)}, ports, extra)
        b = self.after.run({k: v for k, v in feeds.items() if self.after.has(k)}, ports)
        for port in ports:
            expected, allowed = self._expected(port, a, feeds)
            judged = np.ones(expected.shape, bool) if self.exact else self._judged(port, a)
            self.compared += 1
            yield from self._differences(port, expected, b[port], allowed, judged, feeds)

    def _is_common(self, port: str) -> bool:
        if not (self.before.has(port) and self.after.has(port)):
            if self.before.has(port) and not port.startswith("output "):
                self.passed_over.append(f"{self.cell.name}: {port}")
            return False
        return True

    def _differences(
        self,
        port: str,
        expected: Array,
        found: Array,
        allowed: Array | float,
        judged: Array,
        feeds: Mapping[str, Array],
    ) -> Iterator[WrongValue]:
        if expected.shape != found.shape:
            yield self._wrong(port, f"the shape {list(found.shape)}", 0.0, 0.0, 1)
            return
        off = np.where((expected == found) | (np.isnan(expected) & np.isnan(found)), 0.0, np.abs(expected - found))
        bad = judged & ~(off <= allowed)
        if self.cell.input_forget and port in (PROJECTION, PRODUCT):  # nothing reads those of the coupled gate
            bad[:, FORGET * self.cell.hidden_size : (FORGET + 1) * self.cell.hidden_size] = False
        if bad.any():
            row, column = np.unravel_index(int(np.argmax(np.where(bad, np.nan_to_num(off, nan=np.inf), -1))), off.shape)
            place = self._place(port, int(row), int(column), feeds)
            yield self._wrong(port, place, float(found[row, column]), float(expected[row, column]), int(bad.sum()))

    def _wrong(self, port: str, place: str, found: float, expected: float, count: int) -> WrongValue:
        return WrongValue(self.after.full_name(port), self.before.full_name(port), place, found, expected, count)

    def _place(self, port: str, row: int, column: int, feeds: Mapping[str, Array]) -> str:
        cell, size = self.cell, self.cell.hidden_size
        gate, _, kind = port.rpartition(".")
        if port in (PROJECTION, PRODUCT):
            return f"{cell.type.gates[column // size]}, column {column % size}"
        if port == CANDIDATE_PRODUCT:
            return f"{cell.type.gates[CANDIDATE]}, column {column}"
        if kind == GATE:
            value = float(feeds[f"{gate}.{PREACTIVATION}"][row, column])
            e = encoding(cell, acc_point(cell, cell.type.gates.index(gate)))
            at = f"code {int(e.quantize(value)) - e.minimum}" if e is not None else f"{value:.6g}"
            return f"{gate}, column {column} at {at}"
        if port == SQUASHED:
            value = float(feeds["cell_state.kept"][row, column] + feeds["cell_state.added"][row, column])
            e = encoding(cell, "cell_state")
            at = f"code {int(e.quantize(value)) - e.zero_point}" if e is not None else f"{value:.6g}"
            return f"the output activation, column {column} at {at}"
        return f"{gate if kind == PREACTIVATION else port}, column {column}"

    def _expected(self, port: str, a: Mapping[str, Array], feeds: Mapping[str, Array]) -> tuple[Array, Array | float]:
        """What a value after the pass has to be, and how far it may be off."""
        value = a[port]
        if self.exact:
            return value, 0.0
        gate, _, kind = port.rpartition(".")
        table: Array | None = None
        if kind == GATE:
            k = self.cell.type.gates.index(gate)
            table = self._table(gate, self._clipped(feeds[f"{gate}.{PREACTIVATION}"]), acc_point(self.cell, k), value)
        elif port == SQUASHED:
            table = self._table("hidden", a["cell_state"], "cell_state", value)
        elif port in ("cell_state", "output y_c") and self.after.cell.integer.get("cell_scale") == 0.0:
            value = np.clip(value, -STATE_LIMIT, STATE_LIMIT)
        elif port == NEXT and self.after.carries_codes:
            e = encoding(self.cell, "hidden")
            assert e is not None
            value = e.dequantize(e.quantize(value.astype(np.float32))).astype(np.float64)
        factor, offset = self.after.units(port)
        wanted = value if table is None else table
        units = np.abs(wanted * factor + offset).astype(np.float32)
        allowed = ULPS * np.spacing(np.maximum(units, 2.0**-100)).astype(np.float64) / factor
        if table is None:
            allowed = allowed + RELATIVE * np.abs(wanted).max(axis=1, keepdims=True)
        return wanted, allowed

    def _clipped(self, values: Array) -> Array:
        clip = self.cell.clip
        return values if clip is None else np.clip(values, -clip, clip)

    def _table(self, name: str, argument: Array, point: str, reference: Array) -> Array | None:
        """What tables give, which is near the function; None where there is no table."""
        cell = self.cell
        form = str(self.after.cell.integer.get("arithmetic", ""))
        values = activated(cell, name, argument, encoding(cell, point), form)
        if values is None:
            return None
        own = encoding(cell, f"{name}.activation")
        if own is not None and form in (GRID, GRID32):
            values = own.dequantize(own.quantize(values.astype(np.float32))).astype(np.float64)
        return np.asarray(values)

    def _judged(self, port: str, a: Mapping[str, Array]) -> Array:
        """Where a value does not depend on one next to a tie, which may be rounded either way."""
        judged = np.ones(a[port].shape, bool)
        for name, e in self._ties(port):
            raw = a[name] if name in a else None
            if raw is not None and raw.shape == judged.shape:
                units = raw.astype(np.float64) / float(e.scale[0])
                fraction = units - np.floor(units)
                near = np.minimum(np.minimum(fraction, 1 - fraction), np.abs(fraction - 0.5))
                judged &= near > NEAR_TIE * (e.bits <= _WIDEST)
        return judged

    def _raw_names(self) -> dict[str, list[str]]:
        return {p: [n for n, _ in self._ties(p) if n not in self.before.ports()] for p in self.before.ports()}

    def _ties(self, port: str) -> list[tuple[str, Encoding]]:
        """The values, before they are rounded, that a value follows from."""
        cell = self.cell
        state = state_name(cell)
        gate, _, kind = port.rpartition(".")
        wanted: list[tuple[str, str]] = []
        total = (f"{state}.sum", state)
        if port in (f"{state}.kept", f"{state}.added"):
            wanted.append((port, port))
        elif port in (state, SQUASHED) or (cell.type.reads_hidden and (port == NEXT or port.startswith("output y"))):
            wanted.append(total)
        elif kind == PREACTIVATION and gate == cell.type.gates[-1] and cell.linear_before_reset:
            wanted.append((RESET_PRODUCT, RESET_PRODUCT))
        elif (kind == PREACTIVATION and cell.P is not None and gate == cell.type.gates[OUTPUT]) or port == "output y_c":
            wanted.append(total)
        elif port == NEXT or port == "output y_codes":
            wanted.append((NEXT, "hidden"))
        found = []
        for name, point in wanted:
            e = encoding(cell, point)
            full = self.before.exact_name(name) if name not in self.before.ports() or name == port else name
            if e is not None and full is not None:
                found.append((full, e))
        return found

    def _feeds(self) -> dict[str, Array]:
        """Real values for every part of the step."""
        cell, size, rng = self.cell, self.cell.hidden_size, self._rng
        gates, state = cell.type.gates, state_name(cell)
        ports = [p for p in self.before.ports() if self.before.has(p)]
        rasters = {f"{g}.{PREACTIVATION}": self._raster(acc_point(cell, k)) for k, g in enumerate(gates)}
        rasters[f"{state}.kept"] = self._raster(state)
        if cell.type.cell_state and encoding(cell, state) is None:
            rasters[f"{state}.kept"][:2] = BEYOND, -BEYOND
        rasters[VALUE] = self._raster("hidden")
        rows = _ROWS + max(-(-len(r) // size) for p, r in rasters.items() if p in ports)
        made: dict[str, Array] = {}
        for port in ports:
            gate, _, kind = port.rpartition(".")
            if port in rasters:
                made[port] = np.resize(rasters[port], (rows, size))
            elif port == X:
                made[port] = self._operand("input", rows, cell.input_size)
            elif port == HIDDEN:
                made[port] = self._operand("hidden", rows, size)
            elif port == RESET_HIDDEN:
                made[port] = self._operand(RESET_HIDDEN, rows, size)
            elif port in (PROJECTION, PRODUCT, CANDIDATE_PRODUCT):
                made[port] = self._products(port, rows)
            elif kind == GATE:
                made[port] = self._activations(gate, cell.gate_activation(gates.index(gate)).bounds, rows)
            elif port == SQUASHED:
                assert cell.output_activation is not None
                made[port] = self._activations("hidden", cell.output_activation.bounds, rows)
            elif port == STATE:
                made[port] = self._on_grid("cell_state", rng.normal(0, 1, (rows, size)))
            elif port == f"{state}.added":
                made[port] = np.zeros((rows, size))
                made[port][-_ROWS:] = rng.normal(0, 1, (_ROWS, size))
        for array in made.values():
            array[-1] = 0.0
        return made

    def _raster(self, point: str) -> Array:
        """Values at every code of a format and beyond both ends, away from ties."""
        rng, e = self._rng, encoding(self.cell, point)
        if e is None:
            return np.concatenate([rng.normal(0, 3, 512), [30.0, -30.0, 1e3, -1e3, 0.0, 0.5, -0.5]])
        low, high = e.minimum - e.zero_point, e.maximum - e.zero_point
        if e.bits > _WIDEST:
            return np.asarray(rng.integers(low, high, _MOST_CODES) * float(e.scale[0]))
        codes = np.arange(low - 3, high + 4)
        each = codes + np.resize(_FRACTIONS[:2], len(codes))
        drawn = rng.choice(codes, 512) + rng.choice(_FRACTIONS, 512)
        return np.asarray(np.concatenate([each, drawn, [40.0 * low - 3.3, 40.0 * high + 3.3]]) * float(e.scale[0]))

    def _operand(self, point: str, rows: int, columns: int) -> Array:
        """Values for a product, whose codes are the same before and after."""
        rng, settings = self._rng, self.cell.points.get(point, {"bits": None})
        e = encoding(self.cell, point)
        if e is None or settings.get("mode") == "dynamic-row":
            return np.asarray(rng.normal(0, 1, (rows, columns)) * 10.0 ** rng.uniform(-2, 1, (rows, 1)))
        low, high = e.minimum - e.zero_point, e.maximum - e.zero_point
        fixed = settings.get("mode") == "codes" or settings.get("on_grid") or settings.get("rounded_output")
        if fixed:
            values = rng.integers(low, high + 1, (rows, columns)).astype(np.float64)
        else:
            values = rng.integers(low - 2, high + 3, (rows, columns)) + rng.choice(_FRACTIONS, (rows, columns))
        values *= rng.choice((1.0, 0.0), (rows, columns), p=(0.9, 0.1))
        bound = settings.get("bound")
        real = values * float(e.scale[0])
        return np.asarray(real if bound is None else np.clip(real, -bound, bound))

    def _products(self, port: str, rows: int) -> Array:
        """Values of products, off the ties of the formats that they are rounded to."""
        cell, gates = self.cell, self.cell.type.gates
        part = "input_product" if port == PROJECTION else "hidden_product"
        names = gates[CANDIDATE:] if port == CANDIDATE_PRODUCT else gates
        if port == PRODUCT and cell.type.reads_hidden and not cell.linear_before_reset:
            names = gates[:CANDIDATE]
        columns = []
        for name in names:
            shape = (rows, cell.hidden_size)
            known = encoding(cell, f"{name}.{part}") is not None
            values = self._rng.normal(0, 2, shape)
            columns.append(self._rng.choice(self._raster(f"{name}.{part}")[:-2], shape) if known else values)
        return np.concatenate(columns, axis=1)

    def _activations(self, name: str, bounds: tuple[float, float] | None, rows: int) -> Array:
        shape = (rows, self.cell.hidden_size)
        values = self._rng.normal(0, 2, shape) if bounds is None else self._rng.uniform(*bounds, shape)
        return self._on_grid(f"{name}.activation", values)

    def _on_grid(self, point: str, values: Array) -> Array:
        e = encoding(self.cell, point)
        return values if e is None else e.dequantize(e.quantize(values.astype(np.float32))).astype(np.float64)
