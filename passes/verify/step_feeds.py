"""Generates inputs for the parts of a cell's step."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from rnnqc.cells.activations import RELU_TABLE, TABLE, Activation
from rnnqc.cells.base import Cell
from rnnqc.cells.equations import RESET_HIDDEN
from rnnqc.cells.lut_numbers import STATE_LIMIT
from rnnqc.cells.stages import points_of
from rnnqc.formats.format import Format
from rnnqc.formats.point_format import CHAINED, EMBEDDED, FLOAT, ROWS
from rnnqc.passes.cells.cell_graphs import ROW_FORMAT
from rnnqc.passes.fold.fold_lut import RESIDUAL_BITS
from rnnqc.passes.formats.point_format import INDEX_BITS, stays_between_bounds
from rnnqc.passes.verify.cell_sides import (
    CANDIDATE_PRODUCT,
    GATE,
    HIDDEN,
    INDEX,
    NEXT,
    OUTPUTS,
    PREACTIVATION,
    PRODUCT,
    PROJECTION,
    SQUASHED,
    STATE,
    VALUE,
    X,
    acc_point,
    encoding,
    state_name,
)

Array = npt.NDArray[Any]
BEYOND = 2.0 * STATE_LIMIT
WIDEST = 16
"""Up to this many bits, every quantized value is tried."""
_FRACTIONS = (0.05, 0.45, 0.55, 0.95)
_ROWS = 32
_NEAR = 8
"""If no table is read: every value fewer steps than this from an end or zero is tried, and some others."""


def index_format(activation: Activation | None, bits: int) -> Format | None:
    """Returns the format of the `bits` wide index that a table makes of unquantized values; None without a table."""
    if activation is None or activation.kind not in (TABLE, RELU_TABLE):
        return None
    return Format(bits, True, scale=(activation.limit / 2 ** (bits - 1),))


class StepFeeds:
    """Real values for every part of a step, away from ties of the formats that round them.

    Args:
        cell: The cell with its formats.
    """

    def __init__(self, cell: Cell) -> None:
        self.cell, self._rng = cell, np.random.default_rng(0)

    def ports(self, ports: Sequence[str]) -> list[str]:
        """Returns the ports to feed; results of the step and table indices are computed from others."""
        results = {NEXT, *OUTPUTS, state_name(self.cell)}
        return [p for p in ports if p not in results and not p.endswith(f".{INDEX}")]

    def of(self, ports: Sequence[str], wanted: Collection[str]) -> dict[str, Array]:
        """Returns values `[N, columns]` by port. Table indices take every value; the last row is zero.

        Args:
            ports: The ports to feed.
            wanted: The ports that are computed from them.
        """
        cell, size, rng = self.cell, self.cell.hidden_size, self._rng
        gates, state = cell.type.gates, state_name(cell)
        rasters: dict[str, Array] = {}
        for k, g in enumerate(gates):
            is_read = not {f"{g}.{GATE}", f"{g}.{INDEX}"}.isdisjoint(wanted)
            point, activation = acc_point(cell, k), cell.gate_activation(k)
            rasters[f"{g}.{PREACTIVATION}"] = self._raster(point, activation, RESIDUAL_BITS, is_read=is_read)
        is_read = SQUASHED in wanted
        rasters[f"{state}.kept"] = self._raster(state, cell.output_activation, INDEX_BITS, is_read=is_read)
        if cell.type.cell_state and encoding(cell, state) is None and not stays_between_bounds(cell):
            rasters[f"{state}.kept"][:2] = BEYOND, -BEYOND
        rasters[VALUE] = self._raster("hidden")
        rows = _ROWS + max((-(-len(r) // size) for p, r in rasters.items() if p in ports), default=0)
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

    def _raster(
        self, point: str, activation: Activation | None = None, bits: int = 0, *, is_read: bool = False
    ) -> Array:
        """Returns values near quantized values of a format and beyond both ends, away from ties.

        Args:
            point: The point of the format.
            activation: The activation that reads the values; unquantized values may index its table.
            bits: Bits of that index.
            is_read: Whether they index a table: then near every quantized value, else near both ends, zero and some
                others.
        """
        rng, e = self._rng, encoding(self.cell, point)
        if e is None:
            e = index_format(activation, bits)
        if e is None:
            return np.concatenate([rng.normal(0, 3, 512), [30.0, -30.0, 1e3, -1e3, 0.0, 0.5, -0.5]])
        low, high = e.minimum - e.zero_point, e.maximum - e.zero_point
        ends = [40.0 * low - 3.3, 40.0 * high + 3.3]
        if e.bits > WIDEST:  # the indices of a table, and some other values
            ends = [*rng.integers(low, high, 64)]
            low, high = -(2 ** (INDEX_BITS - 1)), 2 ** (INDEX_BITS - 1) - 1
        codes = np.arange(low - 3, high + 4)
        each = codes if is_read else codes[np.abs(np.subtract.outer(codes, (low, 0, high))).min(axis=1) < _NEAR]
        each = each + np.resize(_FRACTIONS[:2], len(each))
        drawn = rng.choice(codes, 512) + rng.choice(_FRACTIONS, 512)
        return np.asarray(np.concatenate([each, drawn, ends]) * float(e.scale[0]))

    def _operand(self, point: str, rows: int, columns: int) -> Array:
        """Returns operands of a matmul that quantize to the same values before and after."""
        rng, settings = self._rng, points_of(self.cell).get(point, FLOAT)
        e = encoding(self.cell, point)
        if settings.mode == EMBEDDED:
            values = rng.integers(ROW_FORMAT.minimum, ROW_FORMAT.maximum + 1, (rows, columns)).astype(np.float64)
            values[:, 0] = ROW_FORMAT.maximum
            return np.asarray(values * 2.0 ** rng.integers(-10, 3, (rows, 1)))
        if e is None or settings.mode == ROWS:
            return np.asarray(rng.normal(0, 1, (rows, columns)) * 10.0 ** rng.uniform(-2, 1, (rows, 1)))
        low, high = e.minimum - e.zero_point, e.maximum - e.zero_point
        fixed = settings.mode == CHAINED or settings.on_grid or settings.rounded_output
        if fixed:
            values = rng.integers(low, high + 1, (rows, columns)).astype(np.float64)
        else:
            values = rng.integers(low - 2, high + 3, (rows, columns)) + rng.choice(_FRACTIONS, (rows, columns))
        values *= rng.choice((1.0, 0.0), (rows, columns), p=(0.9, 0.1))
        bound = settings.bound
        real = values * float(e.scale[0])
        return np.asarray(real if bound is None else np.clip(real, -bound, bound))

    def _products(self, port: str, rows: int) -> Array:
        """Returns results of matmuls, away from ties of the formats that round them."""
        cell, gates = self.cell, self.cell.type.gates
        part = "input_product" if port == PROJECTION else "hidden_product"
        names = gates[-1:] if port == CANDIDATE_PRODUCT else gates
        if port == PRODUCT and cell.resets_state:
            names = gates[: cell.type.joint]
        columns = []
        for name in names:
            shape = (rows, cell.hidden_size)
            known = encoding(cell, f"{name}.{part}") is not None
            if known:
                columns.append(self._rng.choice(self._raster(f"{name}.{part}", is_read=True)[:-2], shape))
            else:
                columns.append(self._rng.normal(0, 2, shape))
        return np.concatenate(columns, axis=1)

    def _activations(self, name: str, bounds: tuple[float, float] | None, rows: int) -> Array:
        shape = (rows, self.cell.hidden_size)
        values = self._rng.normal(0, 2, shape) if bounds is None else self._rng.uniform(*bounds, shape)
        return self._on_grid(f"{name}.activation", values)

    def _on_grid(self, point: str, values: Array) -> Array:
        e = encoding(self.cell, point)
        return values if e is None else e.dequantize(e.quantize(values.astype(np.float32))).astype(np.float64)
