"""Resolves the formats of every cell of a model from a recipe, the weights and statistics.

A setting that fixes a scale is used unchanged. Otherwise the scale follows from the weights
(rnnqc/formats/weight_scales.py), from the activation, or by the recipe's `range` from the statistics of a calibration
(rnnqc/recipes/ranges.py), combined for points with the same `share`. Formats derived from another point (`same_as`,
mode "product") come last.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from rnnqc.cells.base import FORGET, GATES, Cell
from rnnqc.cells.equations import RESET_HIDDEN, RESET_PRODUCT
from rnnqc.cells.tables import PIECEWISE_LINEAR
from rnnqc.cells.vitis_tables import STEP_BITS, UNIT, VITIS
from rnnqc.data.statistics import Statistics
from rnnqc.errors import CompileError, UsageError
from rnnqc.formats.format_request import MAX_CODE
from rnnqc.formats.point_format import FLOAT, PointFormat
from rnnqc.formats.scales import symmetric_scale
from rnnqc.passes.formats.derived_formats import (
    Points,
    derived_format,
    follows_float,
    is_derived,
    targets_of,
    waits_for,
)
from rnnqc.passes.formats.format_checks import check_members, check_mode
from rnnqc.passes.formats.gate_noise import gate_noise
from rnnqc.passes.formats.point_format import (
    accumulator_scale,
    cell_state_is_float,
    given_scales,
    hidden_bound,
    integer_format,
    naming_point,
    static_format,
    stored_scales,
    weight_point,
    with_scale,
)
from rnnqc.passes.formats.weight_formats import Scales, format_request, weight_scales
from rnnqc.recipes.keys import Settings, keys_of, rounding_of
from rnnqc.recipes.ranges import RangeRule, scale_of_statistics
from rnnqc.recipes.recipe import Recipe
from rnnqc.recipes.sharing import merge_for_sharing

Arrays = Mapping[str, npt.NDArray[np.float32]]


def resolve_formats(
    cells: Sequence[Cell],
    recipe: Recipe,
    arrays: Mapping[str, Arrays],
    statistics: Statistics | None = None,
    known: dict[str, PointFormat] | None = None,
) -> dict[str, Points | None]:
    """Returns the formats that the recipe sets for each quantization point of each cell.

    Args:
        cells: The cells.
        recipe: Rules and overrides.
        arrays: For each cell's name W `[I,GH]`, R `[H,GH]` and B `[GH]`.
        statistics: Statistics of a calibration.
        known: Cache of formats resolved for the same cells with other recipes; extended.

    Returns:
        For each cell's name its points; None for a cell that needs statistics but never ran in the calibration.

    Raises:
        CompileError: A point has no scale, or its settings do not result in a number format.
        UsageError: Settings contradict each other.
    """
    resolver = _Resolver(recipe, {c.name: c for c in cells}, arrays, statistics, known)
    return {cell.name: resolver.points_or_none(cell) for cell in cells}


def _static(s: Settings, scale: float) -> PointFormat:
    return PointFormat.of(static_format(s, scale))


class _NeverRanError(Exception):
    """A point needs calibration, but the calibration data never ran its cell."""


class _Resolver:
    def __init__(
        self,
        recipe: Recipe,
        cells: Mapping[str, Cell],
        arrays: Mapping[str, Arrays],
        statistics: Statistics | None,
        known: dict[str, PointFormat] | None,
    ) -> None:
        self.recipe, self.cells, self.arrays, self.statistics, self.known = recipe, cells, arrays, statistics, known
        self.settings = {
            name: recipe.settings_of_points(name, [p.name for p in c.type.points], functools.partial(targets_of, c))
            for name, c in cells.items()
        }
        self.silent = frozenset(statistics.silent_cells if statistics is not None else ())
        self.shares: dict[str, list[tuple[str, str]]] = {}
        for cell in cells.values():
            for point in cell.type.points:
                label = self._share(cell, point.name)
                if label is not None and not _unused(cell, point.name):
                    self.shares.setdefault(label, []).append((cell.name, point.name))
        for label, members in self.shares.items():
            check_members(label, members)
        self.grids: dict[str, tuple[float, int]] = {}
        self.weights: dict[str, Scales | None] = {}

    def points_or_none(self, cell: Cell) -> Points | None:
        """Returns all points of one cell; None if statistics are missing because it never ran."""
        try:
            return self.points(cell)
        except _NeverRanError:
            return None

    def points(self, cell: Cell) -> Points:
        """Returns all points of one cell."""
        made: Points = {}
        later: list[str] = []
        floats: set[str] = set()
        for point in cell.type.points:
            name, s = point.name, self._settings(cell, point.name)
            if not s.get("bits") or _unused(cell, name):
                made[name] = FLOAT
                floats |= {name} if not s.get("bits") else set()
                continue
            with naming_point(f"{cell.name}.{name}"):
                check_mode(name, s)
                if is_derived(s):
                    later.append(name)
                else:
                    made[name] = self._known_point(cell, name, s)
        while later:
            ready = [n for n in later if not waits_for(n, self._settings(cell, n), later)]
            if not ready:
                raise UsageError(
                    f"{cell.name}: {', '.join(later)} take their formats from each other.",
                    supported="same_as without a circle",
                )
            for name in ready:
                s = self._settings(cell, name)
                if follows_float(cell, name, s, floats):
                    made[name] = FLOAT
                    floats.add(name)
                    continue
                with naming_point(f"{cell.name}.{name}"):
                    made[name] = derived_format(cell, name, s, made)
            later = [n for n in later if n not in ready]
        return {p.name: made[p.name] for p in cell.type.points}

    def _settings(self, cell: Cell, point: str) -> Settings:
        return self.settings[cell.name][point]

    def _share(self, cell: Cell, point: str) -> str | None:
        """The name of the group that shares the point's scale; None without one."""
        s = self._settings(cell, point)
        if "share" not in keys_of(point) or not s.get("share") or not s.get("bits") or s.get("same_as"):
            return None
        names = {"cell": cell.name, "layer": cell.node, "gate": point.partition(".")[0], "point": point}
        return str(s["share"]).format(**names)

    def _known_point(self, cell: Cell, name: str, s: Settings) -> PointFormat:
        """The format of a measured point, cached by settings unless it shares its scale."""
        if self.known is None or self._share(cell, name) is not None:
            return self._point(cell, name, s)
        key = f"{cell.name}.{name} {s}"
        if key not in self.known:
            self.known[key] = self._point(cell, name, s)
        return self.known[key]

    def _point(self, cell: Cell, name: str, s: Settings) -> PointFormat:
        """The format of a point that does not depend on another one."""
        kind, mode = name.rpartition(".")[2], s.get("mode")
        if s["bits"] == 1 and kind != "weight":
            raise UsageError(
                "bits = 1, and it is no weight.",
                supported="binary weights, 2 bits or more elsewhere",
                action=f"--set '{cell.name}.{name}.bits=2' or more",
            )
        if name == "accumulator":
            return PointFormat(s["bits"])
        listed = [k for k in ("scale", "zero_point") if isinstance(s.get(k), list)]
        if listed and kind not in ("weight", "bias"):
            raise UsageError(f"{listed[0]} is a list.", supported="one number; lists for weights and biases")
        if kind == "acc" and mode in (None, "activation"):
            scale = accumulator_scale(cell, cell.type.gates.index(name.partition(".")[0]), s)
            return FLOAT if scale is None else _static({**s, "signed": True, "zero_point": 0}, scale)
        own = {
            "weight": self._weight,
            "bias": self._bias,
            "activation": self._activation,
            "hidden": self._hidden,
            "input": self._input,
            "cell_state": self._cell_state,
        }
        return own.get(kind, self._measured_point)(cell, name, s)

    def _weight(self, cell: Cell, name: str, s: Settings) -> PointFormat:
        array = self.arrays[cell.name][name[0]]
        noise = gate_noise(cell, self.arrays[cell.name], self.statistics if s.get("wide_channels") else None)
        return weight_point(s, array, np.sqrt(noise), f"{cell.name}.{name}", self._weight_scales(cell, name, s))

    def _bias(self, cell: Cell, name: str, s: Settings) -> PointFormat:
        whole = {**s, "granularity": "per-tensor"}
        found = weight_scales(whole, self.arrays[cell.name]["B"][np.newaxis], len(cell.type.gates))
        if found is None and isinstance(s["scale"], list):
            scales = stored_scales(s, given_scales(s, len(cell.type.gates) * cell.hidden_size, f"{cell.name}.{name}"))
            return PointFormat.of(with_scale(integer_format(s), scales, axis=0))
        return _static(s, s["scale"] if found is None else found[0][0])

    def _input(self, cell: Cell, name: str, s: Settings) -> PointFormat:
        chain, mode = bool(s.get("chain", False)), s.get("mode")
        if mode == "static" or (mode is None and ("scale" in s or "range" in s)):
            return replace(self._measured_point(cell, name, s), chain=chain)
        return PointFormat.of(integer_format(s), chain=chain)

    def _cell_state(self, cell: Cell, name: str, s: Settings) -> PointFormat:
        if cell_state_is_float(cell, s, f"{cell.name}.{name}"):
            return FLOAT
        # The lut arithmetic, which has no static mode, saturates symmetrically.
        narrow = s.get("mode") != "static" and s.get("levels", MAX_CODE) == MAX_CODE
        return self._measured_point(cell, name, {"signed": True, "narrow": narrow, **s})

    def _activation(self, cell: Cell, name: str, s: Settings) -> PointFormat:
        table, activation = s.get("table", PIECEWISE_LINEAR), cell.activation_of(name.rpartition(".")[0])
        assert activation is not None
        if "scale" not in s and s.get("mode") == "static" and table == VITIS and activation.name in STEP_BITS:
            s = {**s, "scale": UNIT}
        static = "scale" in s or s.get("mode") == "static"
        return replace(self._measured_point(cell, name, s) if static else PointFormat(s["bits"]), table=table)

    def _hidden(self, cell: Cell, name: str, s: Settings) -> PointFormat:
        mode = s.get("mode", "bounded")
        bound = hidden_bound(cell) if mode == "bounded" else None
        if "scale" in s or mode not in ("bounded", "dynamic-row"):
            made = self._measured_point(cell, name, s)
        elif bound is None:
            return self._row_scales(s)
        else:
            like = format_request({**s, "zero_point": None})
            made = replace(_static(s, float(like.finished(symmetric_scale(bound, s["bits"])))), bound=bound)
        # A GRU's reset hidden state is not one of its outputs; the output of a GRU or RNN is its state.
        rounded = name == "hidden" and cell.type.cell_state and bool(s.get("rounded_output"))
        return replace(made, rounded_output=rounded)

    def _row_scales(self, s: Settings) -> PointFormat:
        if s.get("rounded_output"):
            raise UsageError(
                "rounded_output = true with scales that follow from rows.",
                supported="rounded outputs of hidden states with one scale",
                action="choose mode = static, or leave rounded_output out",
            )
        return PointFormat.of(integer_format(s))

    def _measured_point(self, cell: Cell, name: str, s: Settings) -> PointFormat:
        """A static format whose scale is set, or follows from statistics."""
        if "scale" in s:
            return _static(s, s["scale"])
        path = f"{cell.name}.{name}"
        label = self._share(cell, name) or path
        if cell.name in self.silent:
            raise _NeverRanError
        key = f"{label} {sorted(s.items(), key=repr)}"  # points share the range: their formats may differ
        if key not in self.grids:
            self.grids[key] = self._measured(self.shares.get(label, [(cell.name, name)]), s)
        scale, zero_point = self.grids[key]
        return _static({**s, "zero_point": zero_point}, scale)

    def _measured(self, members: Sequence[tuple[str, str]], s: Settings) -> tuple[float, int]:
        return scale_of_points([f"{c}.{p}" for c, p in members if c not in self.silent], s, self.statistics)

    def _weight_scales(self, cell: Cell, name: str, s: Settings) -> Scales | None:
        """Scales and zero points of a weight; None if they are set, or belong to groups."""
        label = self._share(cell, name)
        if label is None:
            return weight_scales(s, self.arrays[cell.name][name[0]], len(cell.type.gates))
        key = f"{label} {sorted(s.items(), key=repr)}"
        if key not in self.weights:
            arrays = [self.arrays[c][p[0]] for c, p in self.shares[label]]
            if s.get("granularity") == "per-tensor":
                arrays = [a.reshape(-1, 1) for a in arrays]
            elif len({a.shape[1] for a in arrays}) > 1:
                raise UsageError(
                    f"share = {label!r} of weights with different numbers of output channels.",
                    supported="granularity = per-tensor, or layers of one hidden size",
                )
            self.weights[key] = weight_scales(s, np.concatenate(arrays), len(cell.type.gates))
        return self.weights[key]


def scale_of_points(paths: Sequence[str], s: Settings, statistics: Statistics | None) -> tuple[float, int]:
    """Returns scale and zero point of a point, or of several that share them, by the recipe's `range`.

    Args:
        paths: Names of the points in the statistics.
        s: Their settings in the recipe.
        statistics: Statistics of a calibration.

    Raises:
        CompileError: There are no statistics, or none of a point.
        UsageError: Settings contradict each other.
    """
    if statistics is None:
        raise CompileError(
            "it has no scale, and there is no calibration data.",
            supported="a scale, or calibration data",
            action="give --calibration DATA or --stats STATS.json",
        )
    missing = [p for p in paths if p not in statistics.points]
    if missing:
        raise CompileError(
            f"the statistics say nothing about {missing[0]!r}.",
            supported="statistics of this model",
            action="calibrate it again (rnnqc calibrate)",
        )
    merged = merge_for_sharing([statistics.points[p] for p in paths], [statistics.cell_of(p) for p in paths])
    rule = RangeRule(
        s.get("range", "min-max"),
        percentile=s.get("percentile"),
        n_std=s.get("n_std"),
        half_range=bool(s.get("half_range", False)),
        limit=s.get("limit"),
        rounding=rounding_of(s),
    )
    return scale_of_statistics(merged, rule, format_request(s))


def _unused(cell: Cell, point: str) -> bool:
    """Whether the cell does not have this value.

    The coupled forget gate is 1 minus the input gate; GRU's reset gate multiplies a state or a matmul result.
    """
    if point in (RESET_HIDDEN, RESET_PRODUCT):
        return cell.linear_before_reset == (point == RESET_HIDDEN)
    return cell.input_forget and point.startswith(f"{GATES[FORGET]}.")
