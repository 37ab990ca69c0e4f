"""Converts the values that a reference records of an integer cell into named tensors with number formats."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from rnnqc.cells.base import FORGET
from rnnqc.cells.equations import RESET_HIDDEN, RESET_PRODUCT
from rnnqc.cells.fixed_point_numbers import FixedPointNumbers, point_of, quantizers_of
from rnnqc.cells.lut_numbers import LutNumbers
from rnnqc.cells.stages import IntegerCell
from rnnqc.cells.tables import PIECEWISE_LINEAR
from rnnqc.formats.scales import is_power_of_two
from rnnqc.reference.recording import CODES, ROW_SCALE, ZERO_POINT, tensor_names
from rnnqc.tracing.tensors import Tensor, dequantized

Array = npt.NDArray[Any]
Arrays = Mapping[str, Array]
Numbers = LutNumbers | FixedPointNumbers
F32 = np.float32
GRIDS = {"Sigmoid": 2.0**-15, "Tanh": 2.0**-14}
"""Step sizes of the outputs of the default tables."""
_ROWS_OF = {
    "x.product": "input",
    "hidden.product": "hidden.previous",
    f"{RESET_HIDDEN}.product": RESET_HIDDEN,
}
"""Matmuls, and the operand whose row scales their rows have."""


class Recording:
    """Keeps the values that a reference records (`rnnqc.reference.recording.Recorder`).

    Args:
        backwards: Whether steps run from the last to the first; `steps` then returns them in the order of time.
    """

    def __init__(self, backwards: bool) -> None:
        self._backwards = backwards
        self.sequences: dict[str, Array] = {}
        self._steps: dict[str, list[Array]] = defaultdict(list)

    def record(self, name: str, step: int | None, values: Array) -> None:
        """Keeps a value."""
        if step is None:
            self.sequences[name] = values
        else:
            self._steps[name].append(values)

    def steps(self) -> dict[str, Array]:
        """Returns the values `[n,B,K]` of the steps since the last call."""
        made = {}
        for name, held in self._steps.items():
            joined = np.concatenate(held[::-1] if self._backwards else held)
            made[name] = joined.reshape(len(held), *held[0].shape)
        self._steps.clear()
        return made


@dataclass(frozen=True)
class _Format:
    """How to output integers: `scale`, `zero_point`, an offset added to the reference's values, and types."""

    scale: Any
    zero_point: int = 0
    added: int = 0
    integers: npt.DTypeLike | None = None
    real: npt.DTypeLike = F32


class RecordedTensors:
    """Makes tensors from the values that a reference records.

    Args:
        cell: The cell.
        numbers: Its scalars.
        constants: The arrays of its operands, by the names of the operator's inputs.

    Raises:
        KeyError: The cell's description is incomplete.
    """

    def __init__(
        self, cell: IntegerCell, numbers: LutNumbers | FixedPointNumbers, constants: Mapping[str, Array]
    ) -> None:
        self._cell = cell
        left_out = cell.type.gates[FORGET] if cell.input_forget else None
        self._coupled = f"{left_out}.activation"
        names = tensor_names(cell.type, cell.linear_before_reset)
        self._names = [n for n in names if n == self._coupled or n.partition(".")[0] != left_out]
        self._steps = _table_steps(cell, is_fixed_point=isinstance(numbers, FixedPointNumbers))
        if isinstance(numbers, FixedPointNumbers):
            self._formats, self._units = _fixed_point_formats(cell, numbers, constants), {}
        else:
            self._formats, self._units = _table_formats(cell, numbers, constants), _units(cell, numbers)

    def of(self, held: Arrays) -> Iterator[Tensor]:
        """Yields the tensors of some steps, or of the whole sequence, in the order in which a step computes them."""
        for name in self._names:
            if name + CODES in held:
                yield self._integers(name, held)
            elif name in held:
                yield self._reals(name, held[name])

    @property
    def weight_scales(self) -> dict[str, Array]:
        """The scales of W and R, by key: the scale of their matmuls divided by the scale of the other operand.

        Per-column scales come from multipliers in the file, which are rounded: the last bit may be off unless the scale
        of the other operand is a power of two.
        """
        made: dict[str, Array] = {}
        sources = {"W": {"x.product": "input"}, "R": {"hidden.product": "hidden"}}
        if self._cell.resets_state:
            sources["R"][f"{RESET_HIDDEN}.product"] = RESET_HIDDEN
        for key, products in sources.items():
            held = self._cell.point(f"{key}.weight")
            if held.is_float:
                continue
            if len(held.scale) == 1:
                made[key] = np.asarray(held.scale[0], F32)
                continue
            parts = [self._formats[p].scale / np.float64(self._formats[x].scale or 1.0) for p, x in products.items()]
            made[key] = np.concatenate(parts).astype(F32)
        return made

    def _integers(self, name: str, held: Arrays) -> Tensor:
        form, codes = self._formats[name], held[name + CODES]
        if codes.dtype == np.uint16:
            codes = codes.astype(np.int32)
        if form.integers is not None:
            codes = codes.astype(form.integers, copy=False)
        rows = held.get(_ROWS_OF.get(name, name) + ROW_SCALE)
        return dequantized(
            name,
            codes + codes.dtype.type(form.added) if form.added else codes,
            scale=form.scale if rows is None or name in _ROWS_OF else None,
            row_scale=rows,
            zero_point=held.get(name + ZERO_POINT, form.zero_point),
            real=form.real,
        )

    def _reals(self, name: str, values: Array) -> Tensor:
        unit = self._units.get(name)
        real = values if unit is None else np.asarray(values * unit)
        if name not in self._steps:
            return Tensor(name, real)
        step, zero_point, integers = self._steps[name]
        # 1 - i is rounded: unless the step is a power of two it is not an exact multiple.
        units = [*([] if unit is None else [unit]), *([step] if name == self._coupled else [])]
        if not all(map(is_power_of_two, units)):
            return Tensor(name, real)
        made = dequantized(name, np.rint(real / step).astype(integers) + zero_point, scale=step, zero_point=zero_point)
        return made if np.array_equal(made.values, real) else Tensor(name, real)


Steps = dict[str, tuple[np.float32, int, npt.DTypeLike]]
"""For table entries that have quantized values: their scale, zero point and type."""


def _columns(cell: IntegerCell, name: str, per_column: Array) -> Array:
    """Selects the entries of the columns of one matmul."""
    if not cell.resets_state or name == "x.product":
        return per_column
    candidate = cell.candidate_columns
    return per_column[candidate] if name == f"{RESET_HIDDEN}.product" else per_column[: candidate.start]


def _product_formats(cell: IntegerCell, scales: Mapping[str, Array], real: npt.DTypeLike) -> dict[str, _Format]:
    """Returns the formats of matmul results, from the scales of the columns of W and R."""
    n = cell.numbers
    wide = [True, True] if isinstance(n, FixedPointNumbers) else [n.x_bits > 8, n.h_bits > 8]
    x, h = (np.int64 if w else np.int32 for w in wide)
    keys = {
        "x.product": ("x_multiplier", x),
        "hidden.product": ("h_multiplier", h),
        f"{RESET_HIDDEN}.product": ("h_multiplier", h),
    }
    return {
        name: _Format(_columns(cell, name, scales[key]), integers=integers, real=real)
        for name, (key, integers) in keys.items()
    }


def _gate_step(cell: IntegerCell, numbers: LutNumbers, k: int) -> float:
    """Returns the real value of 1 LSB of gate k's pre-activation."""
    if numbers.gate_kinds[k] != "table":
        return 1.0
    scale = cell.points[f"{cell.type.gates[k]}.acc"].scale
    return float(scale[0]) if scale else 1.0  # with f = 1 - i, gate f has none


def _table_formats(cell: IntegerCell, n: LutNumbers, constants: Mapping[str, Array]) -> dict[str, _Format]:
    """Returns the formats of look-up arithmetic."""
    steps = np.repeat([_gate_step(cell, n, k) for k in range(len(cell.type.gates))], cell.hidden_size)
    units = {k: np.asarray(constants[k], np.float64) * steps for k in ("x_multiplier", "h_multiplier")}
    x_scale = (cell.points["input"].scale or (0.0,))[0] if n.x_mode == "codes" else n.x_scale
    made = {
        **_product_formats(cell, units, np.float64),
        "input": _Format(F32(x_scale), 0 if n.takes_row_codes else n.x_zero_point),
        **dict.fromkeys(("hidden.previous", "hidden"), _Format(F32(n.h_scale), n.h_zero_point)),
        RESET_HIDDEN: _Format(F32(n.reset_scale), n.reset_zero_point),
        "cell_state": _Format(F32(n.cell_scale), integers=np.int64),
    }
    for k, gate in enumerate(cell.type.gates):
        if n.gate_kinds[k] == "table" and not (cell.input_forget and k == FORGET):
            e = cell.points[f"{gate}.acc"].complete
            made[f"{gate}.acc"] = _Format(F32(e.scale[0]), int(e.zero_point), e.minimum, np.int32)
    return made


def _units(cell: IntegerCell, n: LutNumbers) -> dict[str, np.float32]:
    """Returns the real value of 1 LSB of each value that the operator holds in quantization steps."""
    if cell.type.cell_state and n.cell_scale:
        return dict.fromkeys(("cell_gate.activation", "cell_state.kept", "cell_state.added"), F32(n.cell_scale))
    candidate = cell.type.candidate
    return {} if candidate is None else {RESET_PRODUCT: F32(_gate_step(cell, n, candidate))}


def _fixed_point_formats(
    cell: IntegerCell, numbers: FixedPointNumbers, constants: Mapping[str, Array]
) -> dict[str, _Format]:
    """Returns the formats of fixed-point arithmetic: quantized values are those of the quantization points.

    Signed values that a node stores with an offset are signed here.
    """
    real = numbers.real
    multipliers = {k: np.asarray(constants[k], F32) for k in ("x_multiplier", "h_multiplier")}
    made = _product_formats(cell, multipliers, real)
    for name in quantizers_of(cell.type):
        point, grid = point_of(cell, name), numbers.quantizer(cell.type, name)
        zero = _zero_point(cell, point, grid.zero_point)
        made[point] = _Format(F32(grid.scale), zero, zero - grid.zero_point, np.int64, real)
    made["hidden.previous"] = made["hidden"]
    return made


def _zero_point(cell: IntegerCell, point: str, otherwise: int) -> int:
    """Returns the zero point of a quantization point's format; `otherwise` for a float point."""
    held = cell.point(point).format
    return otherwise if held is None else held.zero_point


def _table_steps(cell: IntegerCell, *, is_fixed_point: bool) -> Steps:
    """Returns the steps of piecewise linear tables; in fixed point, of all activations that have a single scale."""
    activations = {f"{g}.activation": cell.gate_activation(k).name for k, g in enumerate(cell.type.gates)}
    if cell.output_activation is not None:
        activations["hidden.activation"] = cell.output_activation.name
    found: Steps = {}
    for point, name in activations.items():
        held = cell.point(point)
        if is_fixed_point and len(held.scale) == 1:
            found[point] = F32(held.scale[0]), held.complete.zero_point, np.int64
        elif not is_fixed_point and name in GRIDS and held.table == PIECEWISE_LINEAR:
            found[point] = F32(GRIDS[name]), 0, np.int32
    return found
