"""Derives the number formats of a custom cell from a recipe and statistics."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from rnnqc.cells.vitis_tables import STEP_BITS, VITIS
from rnnqc.data.statistics import Statistics
from rnnqc.errors import UsageError
from rnnqc.formats.format import IntegerFormat
from rnnqc.formats.point_format import FLOAT, PointFormat
from rnnqc.ir import Value, constant_array
from rnnqc.passes.analysis.custom_cell import BIAS, HIDDEN, VALUE, WEIGHT, CustomCell
from rnnqc.passes.analysis.custom_products import CustomProduct
from rnnqc.passes.custom_cells.limit_custom_shifts import limit_custom_shifts
from rnnqc.passes.formats.derived_formats import PRODUCT, product_format
from rnnqc.passes.formats.format_checks import check_mode
from rnnqc.passes.formats.formats import scale_of_points
from rnnqc.passes.formats.limit_shifts import ShiftRemark
from rnnqc.passes.formats.point_format import integer_format, naming_point, static_format
from rnnqc.passes.formats.weight_formats import weight_format, weight_scales
from rnnqc.passes.qcdq.emit_qcdq import WIDEST, is_usual
from rnnqc.recipes.keys import NAMED_ACTIVATIONS, Settings, rounding_of
from rnnqc.recipes.recipe import Recipe

ROW_BITS = (8, 16)
"""Bits of quantized values with per-row dynamic scales."""
EXACT = "exact"
_OPSET_OF_PROPAGATION = 21
_MOVED_PAST = ("Reshape", "Transpose", "Squeeze", "Unsqueeze", "Slice")
# Settings that depend on a layer's gates, or need groups of rows.
_NOT_OF_WEIGHTS = ("bias_correction", "shift_limits", "group_size", "codebook", "wide_channels", "share")


@dataclass
class CustomFormats:
    """The formats of one recurrence.

    Attributes:
        points: The format of each point by name; `{"bits": None}` for one that stays float.
        uncalibrated: Points that the recipe quantizes but that have no statistics.
        lacking: Whether such a point is an operand of a matmul and the whole recurrence has no statistics.
        follows: For each value with `same_as`, the point whose format it shares.
        settings: The recipe's settings of each point.
        shifts: Fix positions that were lowered to allow the hardware's shifts.
    """

    points: dict[str, PointFormat] = field(default_factory=dict)
    uncalibrated: list[str] = field(default_factory=list)
    lacking: bool = False
    follows: dict[str, str] = field(default_factory=dict)
    settings: dict[str, Settings] = field(default_factory=dict)
    shifts: list[ShiftRemark] = field(default_factory=list)

    def static(self, point: str | None) -> PointFormat | None:
        """Returns the format of a point with one static scale; None for other points."""
        made = self.points.get(point or "", FLOAT)
        return made if made.static is not None else None

    @property
    def edges(self) -> int:
        """The number of value points that have a format."""
        return sum(self.static(p) is not None for p in self.points if p.endswith(f".{VALUE}"))


def custom_formats(cell: CustomCell, recipe: Recipe, statistics: Statistics | None) -> CustomFormats:
    """Returns the formats that the recipe gives to the points of `cell`.

    * A value has one scale, given or calibrated; without statistics it stays float and is listed in `uncalibrated`.
    * `hidden` has one scale if the recipe asks for one, else per-row dynamic scales. If the statistics of the
      recurrence leave a point out (it cannot be observed), it has per-row scales; without such statistics it is
      `lacking`.
    * `same_as` of a value names another value of the recurrence, or is `hidden`: the state that matmuls read. Sigmoid
      and tanh, whose ranges are known, do not follow `hidden`. A value that follows a float value stays float.

    Raises:
        CompileError: The settings do not form a number format.
        UsageError: The settings contradict each other.
    """
    return _Resolver(cell, recipe, statistics).formats()


class _Resolver:
    def __init__(self, cell: CustomCell, recipe: Recipe, statistics: Statistics | None) -> None:
        self.cell, self.recipe = cell, recipe
        silent = statistics is not None and cell.name in statistics.silent_cells
        self.statistics = None if silent or statistics is None or cell.name not in statistics.cells else statistics
        self.made = CustomFormats()
        self.settings = recipe.settings_of_points(cell.name, cell.points, self._targets)
        self.made.settings = self.settings
        self.shares: dict[str, list[str]] = {}
        for point, s in self.settings.items():
            if self._measured(point, s):
                self.shares.setdefault(self._label(point, s), []).append(point)

    def formats(self) -> CustomFormats:
        points = self.made.points
        later: dict[str, str] = {}
        for point, s in self.settings.items():
            kind = point.rpartition(".")[2]
            with naming_point(f"{self.cell.name}.{point}"):
                target = self._target(point, s)
                if kind in (WEIGHT, BIAS):
                    continue
                if not s.get("bits"):
                    points[point] = FLOAT
                elif target is not None:
                    later[point] = target
                else:
                    check_mode(point, s)
                    points[point] = self._hidden(point, s) if kind == HIDDEN else self._value(point, s)
        self.made.follows = later
        for point, target in later.items():
            if target in later:
                raise UsageError(
                    f"{self.cell.name}.{point}: same_as = {target!r}, which follows from another point itself.",
                    supported="a point with a format of its own",
                )
            held = points[target]
            points[point] = FLOAT if held.is_float else held.with_rounding(rounding_of(self.settings[point]))
            self.made.uncalibrated += [point] if target in self.made.uncalibrated else []
        for point in self.cell.edges:
            with naming_point(f"{self.cell.name}.{point}"):
                points[point] = replace(points[point], table=self._table(point))
        for name, sites in self.cell.products.items():
            weight, bias = f"{name}.{WEIGHT}", f"{name}.{BIAS}"
            points[weight] = self._weight(weight, sites[0])
            if bias in self.settings:
                with naming_point(f"{self.cell.name}.{bias}"):
                    points[bias] = self._bias(name, sites[0])
        self.made.points = {p: points[p] for p in self.cell.points}
        self._limit_shifts()
        multiplied = any(p.endswith(f".{HIDDEN}") for p in self.made.uncalibrated)
        self.made.lacking = multiplied and self.statistics is None
        return self.made

    def _limit_shifts(self) -> None:
        asked = [n for n in self.cell.products if self.settings[f"{n}.{WEIGHT}"].get("shift_limits")]

        def operand(name: str, product: CustomProduct) -> PointFormat | None:
            return operand_format(self.cell, self.made, name, product)

        self.made.shifts = limit_custom_shifts(self.cell, self.made.points, operand, asked)

    def _table(self, point: str) -> str | None:
        """Returns the kind of table that replaces the activation of a point; None if the operator computes it.

        Raises:
            UsageError: The recipe asks for an unknown kind.
        """
        kind = self.settings[point].get("table", EXACT)
        if kind == EXACT or not self.settings[point].get("bits") or activation_of(self.cell, point) is None:
            return None
        if kind != VITIS:
            raise UsageError(f"table = {kind!r} of a custom cell.", supported=f"{VITIS}, {EXACT}")
        return VITIS if self.made.points[point].static is not None else None

    def _measured(self, point: str, s: Settings) -> bool:
        """Whether the scale of a point comes from statistics."""
        kind = point.rpartition(".")[2]
        if kind not in (HIDDEN, VALUE) or not s.get("bits") or "scale" in s or self._target(point, s) is not None:
            return False
        return kind == VALUE or s.get("mode") == "static"

    def _label(self, point: str, s: Settings) -> str:
        """Returns the name of the group of points that share a scale."""
        if not s.get("share"):
            return point
        names = {"cell": self.cell.name, "layer": self.cell.name, "gate": point.rpartition(".")[0], "point": point}
        return str(s["share"]).format(**names)

    def _target(self, point: str, s: Settings) -> str | None:
        """Returns the point whose format `point` shares by `same_as`; None for a format of its own."""
        target = s.get("same_as")
        if not target or not point.endswith(f".{VALUE}"):
            return None
        if target == HIDDEN:
            state = self.cell.state_point
            own = (
                state in (None, point) or point.endswith(NAMED_ACTIVATIONS) or not self.settings[str(state)].get("bits")
            )
            return None if own else state
        if target not in self.settings or not str(target).endswith(f".{VALUE}"):
            raise UsageError(
                f"same_as = {target!r}, which is not a value of this cell.",
                supported=f"hidden, {', '.join(p for p in self.settings if p.endswith(f'.{VALUE}'))}",
            )
        return None if target == point else str(target)

    def _targets(self, point: str, target: str) -> list[str]:
        """Returns the points whose format `point` takes with `same_as = target`."""
        state = self.cell.state_point
        if point.endswith(f".{BIAS}"):
            product = self.cell.products[point.removesuffix(f".{BIAS}")][0]
            origin = self.cell.origins.get(id(self.cell.sum_of(product)))
            return [] if origin is None else [origin]
        if target != HIDDEN:
            return [target]
        return [] if state is None or state == point or point.endswith(NAMED_ACTIVATIONS) else [state]

    def _value(self, point: str, s: Settings) -> PointFormat:
        return _static(s, s["scale"]) if "scale" in s else self._calibrated(point, s) or FLOAT

    def _hidden(self, point: str, s: Settings) -> PointFormat:
        if "scale" in s:
            return _static(s, s["scale"])
        found = self._calibrated(point, s) if s.get("mode") == "static" else None
        return found or PointFormat.of(integer_format(s))

    def _calibrated(self, point: str, s: Settings) -> PointFormat | None:
        group = [f"{self.cell.name}.{p}" for p in self.shares[self._label(point, s)]]
        seen = [p for p in group if self.statistics is not None and p in self.statistics.points]
        if not seen:
            self.made.uncalibrated.append(point)
            return None
        scale, zero_point = scale_of_points(seen, s, self.statistics)
        return _static({**s, "zero_point": zero_point}, scale)

    def _weight(self, point: str, product: CustomProduct) -> PointFormat:
        s = {k: v for k, v in self.settings[point].items() if k not in _NOT_OF_WEIGHTS}
        columns = product.weights.shape[1]
        return weight_format(s, product.weights, np.ones(columns), f"{self.cell.name}.{point}", 1)

    def _bias(self, name: str, product: CustomProduct) -> PointFormat:
        """Returns the format of a bias: that of the accumulator, that of the result, or one of its own."""
        s, points = self.settings[f"{name}.{BIAS}"], self.made.points
        if not s.get("bits"):
            return FLOAT
        origin = self.cell.origins.get(id(self.cell.sum_of(product)))
        if s.get("mode") == PRODUCT:
            code = operand_format(self.cell, self.made, name, product)
            weight = points[f"{name}.{WEIGHT}"].static
            if code is None or code.static is None or weight is None:
                return FLOAT
            return product_format(s, code.static, weight, product.weights.shape[1])
        if s.get("same_as"):
            target = self.made.static(origin)
            return FLOAT if target is None else target.with_rounding(rounding_of(s))
        bias = self.cell.bias_of(product)
        assert bias is not None
        values = np.asarray(constant_array(bias), np.float32).reshape(1, -1)
        found = weight_scales({**s, "granularity": "per-tensor"}, values, 1)
        return _static(s, s["scale"] if found is None else float(found[0][0]))


def activation_of(cell: CustomCell, point: str) -> str | None:
    """Returns the operator that computes all values of a point, if it is an activation with a table."""
    made = {v.inputs[0].op if v.inputs and id(v.inputs[0]) in cell.region else "" for v in cell.edges.get(point, [])}
    return next(iter(made)) if len(made) == 1 and made <= STEP_BITS.keys() else None


def _static(s: Settings, scale: float) -> PointFormat:
    return PointFormat.of(static_format(s, scale))


def operand_format(cell: CustomCell, formats: CustomFormats, name: str, product: CustomProduct) -> PointFormat | None:
    """Returns the format of a matmul's quantized left operand; None if it stays float.

    Values that are quantized already, with no more bits than `hidden` asks for, are not quantized again.
    """
    held = formats.static(cell.origins.get(id(product.x)))
    wanted = formats.points[f"{name}.{HIDDEN}"]
    if held is not None and held.bits is not None and (wanted.bits is None or held.bits <= wanted.bits):
        return held
    return None if wanted.is_float else wanted


def has_quantize_linear(opset: int, format_: IntegerFormat) -> bool:
    """Whether QuantizeLinear and DequantizeLinear support values of a format."""
    return is_usual(format_) and opset < _OPSET_OF_PROPAGATION


def dequantizes_weights(
    cell: CustomCell, formats: CustomFormats, name: str, product: CustomProduct, opset: int
) -> bool:
    """Whether a matmul of real numbers gets its weights from DequantizeLinear, so that the file states their limits.

    It does if x comes from DequantizeLinear too, or has 8 bits with per-row dynamic scales. Otherwise Cast, Sub and Mul
    compute them: onnxruntime 1.31 fuses DequantizeLinear and MatMul into a product that rounds x to 8 bits.
    """
    weight, code = formats.points[f"{name}.{WEIGHT}"], operand_format(cell, formats, name, product)
    if code is None or weight.is_float or weight.integers.bits > WIDEST:
        return False
    if code.static is None:
        return code.bits == WIDEST
    given = code is formats.static(cell.origins.get(id(product.x)))
    return has_quantize_linear(opset, code.integers) and (not given or _comes_from_a_quantizer(cell, product.x))


def _comes_from_a_quantizer(cell: CustomCell, value: Value) -> bool:
    """Whether onnxruntime finds the DequantizeLinear of `value`, which it moves past some views."""
    while id(value) not in cell.quantizable:
        if len(value.inputs) != 1 or value.inputs[0].op not in _MOVED_PAST:
            return False
        value = value.inputs[0].inputs[0]
    return True
