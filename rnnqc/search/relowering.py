"""Repeats the lowering recorded in a lowered model, with or without changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import onnx

from rnnqc.cells.forms import WEIGHT_ONLY
from rnnqc.data.statistics import Statistics
from rnnqc.formats.point_format import STATIC, PointFormat
from rnnqc.lowering.lower import lower
from rnnqc.lowering.options import LowerOptions
from rnnqc.lowering.recovery import normal_form_of
from rnnqc.lowering.reports.report import Lowered
from rnnqc.recipes.clipping import RANGE_KEYS
from rnnqc.recipes.recipe_record import RecipeRecord
from rnnqc.recipes.rules import Rule
from rnnqc.search.overrides import exactly
from rnnqc.search.recurrences import Recurrence

QCDQ = "qcdq"
PARAMETERS = (".weight", ".bias")
"""Points whose scales depend on the model alone."""


@dataclass
class Relowering:
    """Lowers a float model again.

    Attributes:
        model: The float model.
        record: How it was lowered.
        statistics: The statistics of a calibration; None if there was none.
        exact: Whether these are the statistics that the model was lowered with, or there were none.
        pins: Fixed scales and zero points, by the names of their points.
        remove_sorting: Whether sorts of a batch by length were removed.
        quantized_outputs: Names of outputs that are quantized values.
    """

    model: onnx.ModelProto
    record: RecipeRecord
    statistics: Statistics | None = None
    exact: bool = True
    pins: dict[str, dict[str, Any]] = field(default_factory=dict)
    remove_sorting: bool = False
    quantized_outputs: Sequence[str] = ()

    def lower(
        self,
        rules: Sequence[Rule] = (),
        form: str | None = None,
        model: onnx.ModelProto | None = None,
        pinned: bool = True,
        rest: str | None = None,
    ) -> Lowered:
        """Lowers the model again.

        Args:
            rules: Rules before those of the recipe.
            form: A form other than the recorded one.
            model: The float model with other outputs.
            pinned: Whether scales are fixed even if the statistics that gave them are available.
            rest: How to store the weights around the recurrent layers, if not as recorded.

        Raises:
            CompileError: The model cannot be lowered like this.
        """
        record = self.record
        held = self.held(rules) if pinned or not self.exact else []
        given, others = record.recipe.rules[: record.recipe.overrides], record.recipe.rules[record.recipe.overrides :]
        recipe = replace(
            record.recipe,
            rules=(*rules, *given, *held, *others),  # overrides have priority over fixed scales
            overrides=len(rules) + len(given),
            held=len(held),
        )
        own = form is None
        asked = record.form if form is None else form
        chosen = self.model if model is None else model
        return lower(
            chosen,
            recipe,
            None if record.form == WEIGHT_ONLY else asked,
            stats=self.statistics,
            unroll=record.unroll and own,
            dims=self._dims(chosen),
            rest=record.rest if rest is None else rest,
            remove_sorting=self.remove_sorting,
            quantized_outputs=[v.name for v in chosen.graph.output if v.name in self.quantized_outputs],
        )

    def in_normal_form(self) -> Relowering:
        """Returns the same lowering of the model in normal form, which takes less time.

        Raises:
            CompileError: The model cannot be lowered.
        """
        record = self.record
        form, dims = None if record.form == WEIGHT_ONLY else record.form, self._dims(self.model)
        options = LowerOptions(record.recipe, form, record.unroll, dims, remove_sorting=self.remove_sorting)
        return replace(self, model=normal_form_of(self.model, options))

    def _dims(self, model: onnx.ModelProto) -> dict[str, int]:
        """Returns the dimensions to bind; a model that is already bound has fewer."""
        names = {d.dim_param for v in model.graph.input for d in v.type.tensor_type.shape.dim}
        return {n: size for n, size in self.record.dims.items() if n in names}

    def held(self, rules: Sequence[Rule] = ()) -> list[Rule]:
        """Returns the pins as rules, except for points whose scale `rules` change."""
        new = [r for r in rules if any(r.settings.get(k) is not None for k in ("rounding", *RANGE_KEYS))]
        return [Rule(exactly(p), s) for p, s in self.pins.items() if not any(r.matches(p) for r in new)]

    def pin(self, recurrences: Mapping[str, Recurrence]) -> None:
        """Fixes the scales that came from statistics to those of these recurrences.

        Other statistics would give other scales, and the search for a range is the slowest part of a lowering.
        """
        for recurrence in recurrences.values():
            for point, was in recurrence.points.items():
                path = f"{recurrence.name}.{point}"
                settings = self.record.recipe.settings(path)
                calibrated = settings.get("mode") == "static" or "range" in settings
                if _single(was) and calibrated and "scale" not in settings and not path.endswith(PARAMETERS):
                    self.pins[path] = {"scale": was.scale[0], "zero_point": was.complete.zero_point}


def _single(point: PointFormat) -> bool:
    """Whether a rule can give the format's scale: one static scale, unlike that of grouped weights or biases."""
    return not point.is_float and len(point.scale) == 1 and point.mode == STATIC
