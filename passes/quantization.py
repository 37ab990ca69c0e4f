"""From a recipe's settings to the number formats of one cell.

A cell's `points` hold, for each quantization point, JSON-ready values: `{"bits": None}` for a point that stays
float, or `bits`, `signed`, `narrow`, `scale` (a list), `zero_point`, `axis`, `rounding`, `mode` ("static",
"dynamic-row", "codes"), for activations `table`, and for weights `group_size` or `wide_channels` where there are some.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from rnnqc.cells.activations import TABLE
from rnnqc.cells.base import CELL, FORGET, GATES, OUTPUT, Cell
from rnnqc.compensation import compensate_groups, compensate_matrix
from rnnqc.diagnostics import CompileError
from rnnqc.encoding import Encoding, Rounding, symmetric_scale
from rnnqc.recipe import Recipe, Settings, require, rounding_of
from rnnqc.weights import group_scales, largest_magnitudes, mixed_scales, quantize_groups, quantize_matrix

FLOAT: dict[str, Any] = {"bits": None}
CELL_LIMIT = 2.0
CELL_INDEX_BITS = 16
PACKED_BITS = 4
WIDE_BITS = 8


def resolve_points(
    cell: Cell, recipe: Recipe, arrays: Mapping[str, npt.NDArray[np.float32]]
) -> dict[str, dict[str, Any]]:
    """What the recipe says about each quantization point of `cell`.

    Args:
        cell: The cell.
        recipe: Rules and overrides.
        arrays: W `[I,4H]` and R `[H,4H]`.
    """
    points: dict[str, dict[str, Any]] = {}

    def settings(point: str) -> Settings:
        return recipe.settings(f"{cell.name}.{point}")

    def path(point: str) -> str:
        return f"{cell.name}.{point}"

    for name in ("W", "R"):
        s = settings(f"{name}.weight")
        slopes = np.repeat([cell.gate_activation(k).slope for k in range(len(GATES))], cell.hidden_size)
        points[f"{name}.weight"] = weight_point(s, arrays[name], slopes, path(f"{name}.weight"))
    s = settings("input")
    if not s.get("bits"):
        points["input"] = FLOAT
    elif s.get("mode") == "static" or (s.get("mode") is None and "scale" in s):
        points["input"] = {**_static(s, require(s, "scale", path("input"))), "chain": bool(s.get("chain", False))}
    else:
        points["input"] = {**_format(s), "mode": "dynamic-row", "chain": bool(s.get("chain", False))}
    points["hidden"] = _hidden(cell, settings("hidden"), path("hidden"))
    for k, gate in enumerate(GATES):
        if cell.input_forget and k == FORGET:
            points[f"{gate}.acc"] = points[f"{gate}.activation"] = FLOAT
            continue
        points[f"{gate}.acc"] = _accumulator(cell, k, settings(f"{gate}.acc"))
        points[f"{gate}.activation"] = _activation(settings(f"{gate}.activation"))
    points["hidden.activation"] = _activation(settings("hidden.activation"))
    points["cell_state"] = _cell_state(cell, settings("cell_state"), path("cell_state"))
    for name, point in points.items():
        _check(path(name), point)
    return points


def _check(path: str, point: Mapping[str, Any]) -> None:
    """Raises CompileError if the settings make no number format, naming the quantization point."""
    if point["bits"] is None or "table" in point:
        return
    try:
        encoding_of({"scale": [1.0], **point, "axis": None} if "scale" not in point else point)
    except CompileError as error:
        raise CompileError(
            f"Quantization point {path!r}: {error.message}", supported=error.supported, action=f"--set '{path}...'"
        ) from error


def encoding_of(point: Mapping[str, Any]) -> Encoding:
    """The static number format of a resolved point.

    Weights in groups, and those with wide channels, are stored as codes of 8 bits.
    """
    wide = point.get("group_size") or point.get("wide_channels")
    return Encoding(
        bits=WIDE_BITS if wide else point["bits"],
        signed=point["signed"],
        scale=tuple(point["scale"]),
        zero_point=point["zero_point"],
        narrow=point["narrow"],
        axis=point.get("axis"),
        rounding=Rounding(point["rounding"]),
    )


def _format(s: Settings) -> dict[str, Any]:
    signed = bool(s.get("signed", True))
    return {
        "bits": s["bits"],
        "signed": signed,
        "narrow": bool(s.get("narrow", False)),
        "zero_point": int(s.get("zero_point", 0 if signed else 2 ** (s["bits"] - 1))),
        "rounding": rounding_of(s).value,
    }


def _static(s: Settings, scale: float) -> dict[str, Any]:
    # What is stored must be what is computed with: scales are float32.
    return {**_format(s), "scale": [float(np.float32(scale))], "axis": None, "mode": "static"}


def weight_point(
    s: Settings, array: npt.NDArray[np.float32], sensitivity: npt.NDArray[np.float64], path: str
) -> dict[str, Any]:
    """The number format of a weight matrix.

    Args:
        s: What the recipe says.
        array: `[K,n]`.
        sensitivity: What an error of each channel is multiplied by, `[n]`.
        path: Of the quantization point, for messages.

    Raises:
        CompileError: Settings contradict each other, or make no number format.
    """
    if not s.get("bits"):
        return FLOAT
    per_channel = s.get("granularity", "per-channel") == "per-channel"
    bits, group_size, wide = s["bits"], s.get("group_size"), s.get("wide_channels", 0.0)
    _check_weight(s, path)
    if group_size:
        scale = group_scales(array, bits)
    else:
        largest = largest_magnitudes(array)
        scale = symmetric_scale(largest if per_channel else [largest.max()], bits).astype(np.float32)
    if "scale" in s:
        scale = np.full_like(scale, s["scale"])
    point = {
        **_format({**s, "signed": True, "zero_point": 0}),
        "scale": [float(v) for v in scale],
        "axis": 1 if per_channel else None,
        "mode": "static",
    }
    if group_size:
        point["group_size"] = group_size
    if wide:
        point["scale"] = [float(v) for v in mixed_scales(array, encoding_of(point), WIDE_BITS, wide, sensitivity)]
        point["wide_channels"] = wide
    _check(path, point)
    return point


def _check_weight(s: Settings, path: str) -> None:
    """Raises CompileError if keys of a weight contradict each other."""

    def contradiction(key: str, other: str, supported: str) -> CompileError:
        value = str(s.get(other)).lower()
        return CompileError(
            f"Quantization point {path!r}: {key} = {s[key]} with {other} = {value}.",
            supported=supported,
            action=f"--set '{path}.{other}=...' or '{path}.{key}=...'",
        )

    per_tensor = s.get("granularity", "per-channel") != "per-channel"
    if s.get("group_size"):
        if s["bits"] > PACKED_BITS:
            raise contradiction("group_size", "bits", "groups of codes of 2 to 4 bits")
        if per_tensor:
            raise contradiction("group_size", "granularity", "groups in channels, granularity = per-channel")
        if not s.get("narrow", False):
            raise contradiction("group_size", "narrow", "symmetric codes in groups, narrow = true")
        if s.get("wide_channels"):
            raise contradiction("group_size", "wide_channels", "one of the two")
    elif s.get("wide_channels"):
        if s["bits"] >= WIDE_BITS:
            raise contradiction("wide_channels", "bits", "wide channels of 8 bits among others of 2 to 7")
        if per_tensor:
            raise contradiction("wide_channels", "granularity", "granularity = per-channel")
        if "scale" in s:
            raise contradiction("wide_channels", "scale", "scales that follow from the weights")


def weight_codes(
    point: Mapping[str, Any], array: npt.NDArray[np.float32], moment: npt.NDArray[Any] | None = None
) -> npt.NDArray[Any]:
    """Codes of a weight matrix `[K,n]` in the format of its resolved point, as `encoding_of(point)` stores them.

    Args:
        point: The resolved point.
        array: The weights.
        moment: Second moments `[K,K]` of the inputs: codes are compensated.
    """
    size, rounding = point.get("group_size"), Rounding(point["rounding"])
    if size:
        scale = np.asarray(point["scale"], np.float32)
        if moment is None:
            return quantize_groups(array, scale, point["bits"], size, rounding)
        return compensate_groups(array, scale, point["bits"], size, rounding, moment)
    if moment is None:
        return quantize_matrix(encoding_of(point), array)
    narrow = point["bits"] if point.get("wide_channels") else None
    return compensate_matrix(encoding_of(point), array, moment, narrow)


def _hidden(cell: Cell, s: Settings, path: str) -> dict[str, Any]:
    if not s.get("bits"):
        return FLOAT
    if "scale" in s:
        return _static(s, s["scale"])
    bound = hidden_bound(cell)
    mode = s.get("mode", "bounded")
    if mode == "dynamic-row" or (mode == "bounded" and bound is None):
        return {**_format(s), "mode": "dynamic-row"}
    if bound is None:
        return _static(s, require(s, "scale", path))
    return _static(s, float(symmetric_scale(bound, s["bits"])))


def hidden_bound(cell: Cell) -> float | None:
    """The largest possible magnitude of the hidden state, from the activations; None if there is none."""
    o, h = cell.gate_activation(OUTPUT).bounds, cell.activations[2].bounds
    if o is None or h is None:
        return None
    return max(map(abs, o)) * max(map(abs, h))


def _accumulator(cell: Cell, gate: int, s: Settings) -> dict[str, Any]:
    activation = cell.gate_activation(gate)
    if not s.get("bits") or activation.kind != TABLE:
        return FLOAT
    scale = s.get("scale", activation.limit / 2 ** (s["bits"] - 1))
    return _static({**s, "signed": True, "zero_point": 0}, scale)


def _activation(s: Settings) -> dict[str, Any]:
    if not s.get("bits"):
        return FLOAT
    return {"bits": s["bits"], "table": s.get("table", "piecewise-linear")}


def _cell_state(cell: Cell, s: Settings, path: str) -> dict[str, Any]:
    if not s.get("bits"):
        return FLOAT
    scale = require(s, "scale", path)
    if s.get("mode") == "bounded" and not cell_is_bounded(cell, scale * 2 ** (min(s["bits"], CELL_INDEX_BITS) - 1)):
        return FLOAT
    return _static({**s, "signed": True, "zero_point": 0, "narrow": True}, scale)


def cell_is_bounded(cell: Cell, limit: float) -> bool:
    """Whether whole numbers suit the state: |f| <= 1, small i * g, an output activation constant beyond `limit`."""
    f, g, output = cell.gate_activation(FORGET).bounds, cell.gate_activation(CELL).bounds, cell.activations[2]
    if cell.gate_activation(CELL).kind != TABLE:  # only a table can hold its values in units of the cell
        return False
    if f is None or g is None or max(map(abs, f)) > 1.0 or max(map(abs, g)) * max(map(abs, f)) > CELL_LIMIT:
        return False
    return output.kind == TABLE and output.limit <= limit
