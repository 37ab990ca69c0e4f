"""Compares one step of each cell before and after a pass, on the same inputs.

The step is cut into parts (see cell_sides.py), and every part gets inputs of its own: no value is fed back, and no part
sees another one's rounding errors. So both forms agree up to float32 roundings, and a wrong scale, bias, limit, sign,
gate order or table entry shows at once, with its gate and column. Values to quantize lie inside the range and beyond
both ends, away from ties; table indices take every quantized value, so that every entry is read.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from rnnqc.cells.base import FORGET, OUTPUT, Cell
from rnnqc.cells.equations import RESET_PRODUCT
from rnnqc.cells.fixed_point_numbers import FIXED_POINT, FIXED_POINT32
from rnnqc.cells.lut_numbers import STATE_LIMIT
from rnnqc.cells.stages import points_of
from rnnqc.cells.tables import PIECEWISE_LINEAR
from rnnqc.errors import CompileError
from rnnqc.formats.format import Format
from rnnqc.formats.point_format import FLOAT
from rnnqc.passes.formats.point_format import INDEX_BITS
from rnnqc.passes.graph.flat.flat_digests import FlatDigests
from rnnqc.passes.verify.activation_tables import LINEAR_ERROR, activated
from rnnqc.passes.verify.cell_sides import (
    CANDIDATE_PRODUCT,
    CODES,
    GATE,
    HIDDEN,
    INDEX,
    LUT,
    NEXT,
    OUTPUTS,
    PREACTIVATION,
    PRODUCT,
    PROJECTION,
    SQUASHED,
    STATE,
    CellSide,
    X,
    acc_point,
    encoding,
    state_name,
)
from rnnqc.passes.verify.step_feeds import WIDEST, StepFeeds, index_format

Array = npt.NDArray[Any]
RELATIVE = 2.0**-17
"""Allowed difference of two float32 sums, as a share of the largest value of the row."""
EPSILON = 2.0**-21
"""The same, as a share of the largest value of the column: the terms of a sum may cancel."""
ULPS = 4.0
NEAR_TIE = 0.02


@dataclass(frozen=True)
class WrongValue:
    """A wrong value of a step.

    Attributes:
        value: Its name in the model after the pass.
        reference: Its name before the pass.
        place: The gate and the column.
        found: The value with the largest difference, in real units.
        expected: The expected value.
        count: The number of wrong values.
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
        exact: Whether both must be bit-exact.
        right: A cell that has been compared already: parts of `after` that are computed the same way are right, too.
            `before` by default if both must be bit-exact.
    """

    def __init__(self, before: CellSide, after: CellSide, *, exact: bool, right: CellSide | None = None) -> None:
        self.before, self.after, self.exact = before, after, exact
        self._right = before if exact and right is None else right
        self.cell: Cell = before.cell
        self.passed_over: list[str] = []
        self.compared = 0

    def wrong_values(self) -> Iterator[WrongValue]:
        """Compares all parts of the step; yields the differences in the order of computation."""
        common = [p for p in self.before.ports() if self.before.has(p) and self.after.has(p)]
        given = {X, HIDDEN, STATE}
        if not (self.before.has_loop and self.after.has_loop):  # the first step, without values of the graph around it
            common = [p for p in common if p not in self.before.around()]
            given = {p for p in common if p.endswith((PREACTIVATION, ".kept", ".added"))}
        self._note_missing(common)
        made = {p for p in self.after.ports() if not self.before.has(p) and self._follows(p) and self.after.has(p)}
        ports = [p for p in self.after.ports() if p in made or (p in common and p not in given)]
        self.compared += len(ports)
        source = StepFeeds(self.cell)
        common = source.ports(common)
        ports = self._not_alike(ports, common)
        if not ports:
            return
        for several in self._in_groups(ports):
            feeds = source.of(self._needed(several, common), several)
            a = self._run_before(several, feeds)
            try:
                b = self.after.run(feeds, several)
            except CompileError:  # the first parts may show the cause
                first = [p for p in several if p in (PROJECTION, PRODUCT) or p.endswith((PREACTIVATION, INDEX))]
                yield from self._compared(first, a, self.after.run(feeds, first), feeds)
                raise
            yield from self._compared(several, a, b, feeds)

    def _in_groups(self, ports: Sequence[str]) -> list[list[str]]:
        """Returns groups of parts that run together, in the order of computation.

        With a fixed batch size, rows run one batch after the other. To save runs, only the parts that read a table (of
        the gates, or of the state) get a row for every quantized value.
        """
        if self.cell.static_batch is None:
            return [list(ports)]
        groups: dict[str, list[str]] = {}
        for port in ports:
            reads = SQUASHED if port == SQUASHED else GATE if port.endswith((f".{GATE}", f".{INDEX}")) else ""
            groups.setdefault(reads, []).append(port)
        return list(groups.values())

    def _not_alike(self, ports: Sequence[str], given: Sequence[str]) -> list[str]:
        """Returns the parts that are computed differently in `right`."""
        right = self._right
        if right is None or (right.cell.type, right.numbers) != (self.after.cell.type, self.after.numbers):
            return list(ports)
        wanted, found = (_digests(side, ports, given) for side in (right, self.after))
        return [p for p in ports if p not in wanted or wanted[p] != found[p]]

    def _run_before(self, ports: Sequence[str], feeds: Mapping[str, Array]) -> dict[str, Array]:
        """Returns the values of these parts before the pass, and those that decide which of them are judged."""
        ties = {name for p in ports for name, _ in self._ties(p)}
        wanted = {self._source(p) for p in ports} | {p for p in self.before.ports() if p in ties}
        if SQUASHED in wanted:
            wanted.add(state_name(self.cell))
        extra = sorted(ties - set(self.before.ports()))
        a = self.before.run(self._limited(feeds), [p for p in self.before.ports() if p in wanted], extra)
        return a | {p: a[self._source(p)] for p in ports}

    def _needed(self, ports: Sequence[str], given: Sequence[str]) -> list[str]:
        """Returns the ports that must be fed to compute some parts."""
        made = {p for side in (self.before, self.after) for p in side.needed([q for q in ports if side.has(q)], given)}
        return [p for p in given if p in made] or list(given)

    def _source(self, port: str) -> str:
        """Returns the port before the pass that a port is compared with, or computed from."""
        return port if self.before.has(port) else self._follows(port)

    def _limited(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        """Limits feeds like the state of an integer form with a float state; the cell before has no such limit."""
        kept = f"{state_name(self.cell)}.kept"
        limits = not self.exact and self.after.numbers.get("cell_scale") == 0.0 and kept in feeds
        return {**feeds, kept: np.clip(feeds[kept], -STATE_LIMIT, STATE_LIMIT)} if limits else dict(feeds)

    def _follows(self, port: str) -> str:
        """Returns the port that determines one that only integer forms have; "" for other ports."""
        if port == CODES:
            return NEXT
        gate, _, kind = port.rpartition(".")
        return f"{gate}.{PREACTIVATION}" if kind == INDEX else ""

    def _compared(
        self, ports: Sequence[str], a: Mapping[str, Array], b: Mapping[str, Array], feeds: Mapping[str, Array]
    ) -> Iterator[WrongValue]:
        for port in ports:
            expected, allowed = self._expected(port, a, feeds)
            judged = np.ones(expected.shape, bool) if self.exact else self._judged(port, a)
            yield from self._differences(port, expected, b[port], allowed, judged, feeds)
            if not self.exact:
                limit = self._distance(port)
                yield from self._differences(port, a[port], expected, limit, judged, feeds, ", as it is defined,")

    def _distance(self, port: str) -> float:
        """Returns the allowed difference between a table and its function."""
        cell = self.cell
        name = "hidden" if port == SQUASHED else port.removesuffix(f".{GATE}")
        if port != SQUASHED and not port.endswith(f".{GATE}"):
            return np.inf
        activation = cell.output_activation if port == SQUASHED else cell.gate_activation(cell.type.gates.index(name))
        point = points_of(cell).get(f"{name}.activation", FLOAT)
        if activation is None or point.table != PIECEWISE_LINEAR or point.scale or activation.name not in LINEAR_ERROR:
            return np.inf
        is_rounded = port == SQUASHED and encoding(cell, "cell_state") is None  # to the table's own index
        return LINEAR_ERROR[activation.name] + (activation.limit / 2**INDEX_BITS if is_rounded else 0.0)

    def _note_missing(self, common: Collection[str]) -> None:
        parts = (PREACTIVATION, GATE) if self.before.has_loop and self.after.has_loop else (GATE,)
        needed = [p for p in self.before.ports() if p == SQUASHED or p.endswith(parts)]
        missing = [p for p in needed if p not in common and (self.before.has(p) or self.after.has(p))]
        if self.cell.type.state_points:  # otherwise the next state is the activation
            self.passed_over += [f"{self.cell.name}: {p}" for p in missing]

    def _differences(
        self,
        port: str,
        expected: Array,
        found: Array,
        allowed: Array | float,
        judged: Array,
        feeds: Mapping[str, Array],
        remark: str = "",
    ) -> Iterator[WrongValue]:
        if expected.shape != found.shape:
            yield self._wrong(port, f"the shape {list(found.shape)}", 0.0, 0.0, 1)
            return
        off = np.where((expected == found) | (np.isnan(expected) & np.isnan(found)), 0.0, np.abs(expected - found))
        bad = judged & ~(off <= allowed)
        if self.cell.input_forget and port in (PROJECTION, PRODUCT):  # those of the coupled gate are unused
            bad[:, FORGET * self.cell.hidden_size : (FORGET + 1) * self.cell.hidden_size] = False
        if bad.any():
            row, column = np.unravel_index(int(np.argmax(np.where(bad, np.nan_to_num(off, nan=np.inf), -1))), off.shape)
            place = f"{self._place(port, int(row), int(column), feeds)}{remark}"
            yield self._wrong(port, place, float(found[row, column]), float(expected[row, column]), int(bad.sum()))

    def _wrong(self, port: str, place: str, found: float, expected: float, count: int) -> WrongValue:
        reference = self.before.full_name(self._source(port))
        return WrongValue(self.after.full_name(port), reference, place, found, expected, count)

    def _place(self, port: str, row: int, column: int, feeds: Mapping[str, Array]) -> str:
        cell, size = self.cell, self.cell.hidden_size
        gate, _, kind = port.rpartition(".")
        if port in (PROJECTION, PRODUCT):
            return f"{cell.type.gates[column // size]}, column {column % size}"
        if port == CANDIDATE_PRODUCT:
            return f"{cell.type.gates[-1]}, column {column}"
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
        if kind == INDEX:
            return f"{gate}, column {column}, the code"
        return f"{gate if kind == PREACTIVATION else port}, column {column}"

    def _expected(self, port: str, a: Mapping[str, Array], feeds: Mapping[str, Array]) -> tuple[Array, Array | float]:
        """Returns the expected value after the pass, and the allowed difference."""
        value = a[port]
        if self.exact:
            return value, 0.0
        gate, _, kind = port.rpartition(".")
        table: Array | None = None
        if kind == INDEX:
            return self._indices(gate, feeds[f"{gate}.{PREACTIVATION}"]), 0.0
        if kind == GATE:
            k = self.cell.type.gates.index(gate)
            table = self._table(gate, self._clipped(feeds[f"{gate}.{PREACTIVATION}"]), acc_point(self.cell, k), value)
        elif port == SQUASHED:
            table = self._table("hidden", a["cell_state"], "cell_state", value)
        elif port == CODES or (port == NEXT and self.after.carries_codes):
            e = encoding(self.cell, "hidden")
            assert e is not None
            value = e.dequantize(e.quantize(value.astype(np.float32))).astype(np.float64)
        factor, offset = self.after.units(port)
        wanted = value if table is None else table
        units = np.abs(wanted * factor + offset).astype(np.float32)
        allowed = ULPS * np.spacing(np.maximum(units, 2.0**-100)).astype(np.float64) / factor
        if table is None:
            size = np.abs(np.where(np.abs(wanted) < STATE_LIMIT, wanted, 0.0))
            allowed = allowed + RELATIVE * np.abs(wanted).max(axis=1, keepdims=True) + EPSILON * size.max(axis=0)
        return wanted, allowed

    def _indices(self, gate: str, argument: Array) -> Array:
        """Returns the entries of a gate's table for pre-activations, or the multiples of their scale."""
        e = encoding(self.cell, acc_point(self.cell, self.cell.type.gates.index(gate)))
        assert e is not None
        codes = e.quantize(self._clipped(argument).astype(np.float32)).astype(np.float64)
        return np.asarray(codes - (e.minimum if self.after.form == LUT else e.zero_point))

    def _clipped(self, values: Array) -> Array:
        clip = self.cell.clip
        return values if clip is None else np.clip(values, -clip, clip)

    def _table(self, name: str, argument: Array, point: str, reference: Array) -> Array | None:
        """Returns the values that the tables define, which approximate the function; None if there is no table."""
        cell = self.cell
        form = str(self.after.numbers.get("arithmetic", ""))
        values = activated(cell, name, argument, encoding(cell, point), form)
        if values is None:
            return None
        own = encoding(cell, f"{name}.activation")
        if own is not None and form in (FIXED_POINT, FIXED_POINT32):
            values = own.dequantize(own.quantize(values.astype(np.float32))).astype(np.float64)
        return np.asarray(values)

    def _judged(self, port: str, a: Mapping[str, Array]) -> Array:
        """Returns a mask of the values that do not depend on one near a tie, whose rounding may go either way."""
        judged = np.ones(a[port].shape, bool)
        for name, e in self._ties(port):
            raw = a.get(name)
            if raw is not None and raw.shape == judged.shape:
                units = raw.astype(np.float64) / float(e.scale[0])
                fraction = units - np.floor(units)
                near = np.minimum(np.minimum(fraction, 1 - fraction), np.abs(fraction - 0.5))
                judged &= (near > NEAR_TIE) & (np.abs(units) < 2.0 ** (WIDEST + 1))
        return judged

    def _ties(self, port: str) -> list[tuple[str, Format]]:
        """Returns the unrounded values that determine a value, with the formats that round them."""
        cell = self.cell
        state = state_name(cell)
        gate, _, kind = port.rpartition(".")
        wanted: list[tuple[str, str]] = []
        total = (f"{state}.sum", state)
        if port in (f"{state}.kept", f"{state}.added"):
            wanted.append((port, port))
        elif port in (state, SQUASHED) or (cell.type.reads_hidden and (port == NEXT or port in OUTPUTS)):
            wanted.append(total)
        elif kind == PREACTIVATION and gate == cell.type.gates[-1] and cell.linear_before_reset:
            wanted.append((RESET_PRODUCT, RESET_PRODUCT))
        elif (kind == PREACTIVATION and cell.P is not None and gate == cell.type.gates[OUTPUT]) or port == OUTPUTS[2]:
            wanted.append(total)
        elif port in (NEXT, CODES):
            wanted.append((NEXT, "hidden"))
        found = []
        for name, point in wanted:
            e = encoding(cell, point)
            if e is None and port == SQUASHED:
                e = index_format(cell.output_activation, INDEX_BITS)
            full = self.before.exact_name(name) if name not in self.before.ports() or name == port else name
            if e is not None and full is not None:
                found.append((full, e))
        return found


def _digests(side: CellSide, ports: Sequence[str], given: Sequence[str]) -> dict[str, bytes]:
    """Returns digests of the computation of each part: equal ones are computed the same way."""
    fed: dict[str, str] = {}
    for name, port in ((side.full_name(p), p) for p in given if side.has(p)):
        fed[name] = f"{fed.get(name, '')} {port}"  # gates side by side in one value
    names = {p: side.full_name(p) for p in ports if side.has(p)}
    made = FlatDigests(side.flat).of(names.values(), fed)
    return {p: made[name] for p, name in names.items()}
