"""The resolved formats of custom cells, which show whether an override changes anything."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from rnnqc.data.statistics import Statistics
from rnnqc.formats.format import IntegerFormat
from rnnqc.formats.point_format import STATIC, PointFormat
from rnnqc.ir import constant_array
from rnnqc.passes.analysis.custom_cell import BIAS, HIDDEN, WEIGHT, CustomCell
from rnnqc.passes.custom_cells.custom_formats import custom_formats, dequantizes_weights, operand_format
from rnnqc.passes.formats.override_effects import Resolution, scales_alone
from rnnqc.passes.formats.quantized_parameters import weight_codes
from rnnqc.recipes.keys import Settings
from rnnqc.recipes.recipe import Recipe


def custom_resolution(
    cells: Sequence[CustomCell], opset: int, recipe: Recipe, statistics: Statistics | None, *, integer: bool
) -> Resolution:
    """Resolves a recipe for custom cells.

    Args:
        cells: The cells.
        opset: The operator set of the model.
        recipe: The recipe, with its overrides.
        statistics: The statistics of a calibration.
        integer: Whether matmuls become integer.
    """
    settings: dict[str, Settings] = {}
    made: dict[str, Any] = {}
    written: dict[str, Callable[[], Iterator[Any]]] = {}
    for cell in cells:
        formats = custom_formats(cell, recipe, statistics)
        limits: dict[str, Any] = {}
        found: dict[str, Any] = {f"{cell.name}.{p}": point for p, point in formats.points.items()}
        for name, sites in cell.products.items():
            # The effective format of the operand counts: `hidden` is unused where the operand is quantized already.
            codes = [_without_zero_point(operand_format(cell, formats, name, p)) for p in sites]
            found[f"{cell.name}.{name}.{HIDDEN}"] = codes if len(codes) > 1 else codes[0]
            if not integer and any(dequantizes_weights(cell, formats, name, p, opset) for p in sites):
                limits[name] = formats.points[f"{name}.{WEIGHT}"].complete.clip
        settings |= {f"{cell.name}.{p}": s for p, s in formats.settings.items()}
        made |= found
        written[cell.name] = partial(_written, cell, found, limits, statistics, integer)
    return Resolution(settings, made, written=written)


def _written(
    cell: CustomCell,
    formats: Mapping[str, Any],
    limits: Mapping[str, Any],
    statistics: Statistics | None,
    integer: bool,
) -> Iterator[Any]:
    """Yields the contents of the file, cheap ones first; `limits` are those of weights, if operators state them."""
    paths = {name: f"{cell.name}.{name}" for name in cell.products}
    yield limits, [scales_alone(formats[f"{path}.{WEIGHT}"]) for path in paths.values()]
    values = {p: f for p, f in formats.items() if not p.endswith((f".{WEIGHT}", f".{BIAS}"))}
    yield values if integer else {p: _as_floats(f) for p, f in values.items()}
    for name, path in paths.items():
        weight, product = formats[f"{path}.{WEIGHT}"], cell.products[name][0]
        seen = statistics.points.get(f"{path}.{HIDDEN}") if statistics is not None else None
        if not weight.is_float:
            codes = weight_codes(weight, product.weights, None if seen is None else seen.shrunk_moment)
            yield _raised(weight, codes) if integer else (codes, weight.complete.all_zero_points)
        held, bias = formats.get(f"{path}.{BIAS}"), cell.bias_of(product)
        if held is not None and held.static is not None and bias is not None:
            array = np.asarray(constant_array(bias), np.float32)
            yield replace(held.static, axis=None if held.static.axis is None else array.ndim - 1).fake_quantize(array)


def _as_floats(held: Any) -> Any:
    """Removes from formats what float operators do not show: tables, and all but the bits of per-row formats."""
    if isinstance(held, list):
        return [_as_floats(f) for f in held]
    if not isinstance(held, PointFormat):
        return held
    rows = held.format is not None and held.static is None
    return replace(held, table=None, format=IntegerFormat(held.integers.bits, False) if rows else held.format)


def _raised(weight: PointFormat, codes: Any) -> Any:
    """Returns the quantized weights and zero points of an integer matmul, offset to be unsigned."""
    held = weight.complete
    raised = 2 ** (8 * codes.dtype.itemsize - 1) if held.signed else 0
    zero_points = np.broadcast_to(held.all_zero_points, codes.shape[1:])
    return codes.astype(np.int64) + raised, zero_points + raised


def _without_zero_point(point: PointFormat | None) -> PointFormat | None:
    """Returns a per-row format without its zero point, which depends on the storage of the quantized values."""
    if point is None or point.mode == STATIC:
        return point
    return replace(point, format=replace(point.integers, zero_point=0))
