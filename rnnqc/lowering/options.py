"""The options of `lower`."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rnnqc.cells.forms import EVERY_FORM, FORMS, FUSED, INTEGER, ORT, QONNX, WEIGHT_ONLY
from rnnqc.data.given_data import Data
from rnnqc.data.statistics import Statistics
from rnnqc.errors import UsageError
from rnnqc.recipes.recipe import Recipe, load_recipe

DEFAULT_RECIPE = "int8"
REST_FLOAT, REST_INT8 = "float", "int8"
REST = (REST_FLOAT, REST_INT8)
"""How the weights around the recurrent layers can be stored."""


@dataclass(frozen=True)
class LowerOptions:
    """The arguments of `lower`, which documents them: `statistics` is its `stats`, the others have the same names."""

    recipe: str | Recipe | None = DEFAULT_RECIPE
    form: str | None = None
    unroll: bool = False
    dims: Mapping[str, int] = field(default_factory=dict)
    overrides: Sequence[str] = ()
    verify: bool = False
    reproducer: Path | None = None
    measure: bool = False
    statistics: Statistics | str | os.PathLike[str] | None = None
    calibration: Data | None = None
    state: Mapping[str, str] | Iterable[str] | None = None
    strict: bool = False
    patience: float = math.inf
    rest: str = REST_FLOAT
    strict_rest: bool = False
    bind: Mapping[str, Any] = field(default_factory=dict)
    batch: int | None = None
    remove_sorting: bool = False
    quantized_outputs: Sequence[str] = ()

    @property
    def resolved_form(self) -> str:
        """The form that a recipe of cells produces.

        Raises:
            UsageError: The form is unknown, or contradicts `unroll`.
        """
        if self.form is None:
            return INTEGER if self.unroll else FUSED
        if self.form not in EVERY_FORM:
            raise UsageError(f"form {self.form!r}.", supported=", ".join(EVERY_FORM))
        if self.unroll and self.form in (FUSED, QONNX, ORT):
            raise UsageError(
                f"A cell of form {self.form} holds its loop; it cannot be unrolled.",
                action="use --form integer or --form qcdq",
            )
        return self.form

    def check_rest(self, form: str) -> None:
        """Checks `rest` against the form to produce; raises UsageError."""
        if self.rest not in REST:
            raise UsageError(f"rest {self.rest!r}.", supported=", ".join(REST))
        if self.rest != REST_FLOAT and form == QONNX:
            raise UsageError(
                f"rest {self.rest!r} with form {QONNX}, which has a notation of its own for quantized weights.",
                supported=f"rest = {REST_FLOAT}, or another form",
                action="leave one of the two out",
            )

    def check_outputs(self, form: str) -> None:
        """Checks `quantized_outputs` against the form to produce; raises UsageError."""
        if self.quantized_outputs and form not in FORMS:
            raise UsageError(
                f"Outputs cannot be quantized in form {form}.",
                supported=f"quantized outputs (return_quant_tensor in Brevitas) of forms {', '.join(FORMS)}",
                action="choose one of these forms, or leave the outputs float",
            )

    def recipe_and_form(self) -> tuple[Recipe, str]:
        """Returns the recipe with its overrides, and the form to produce, or WEIGHT_ONLY.

        Raises:
            CompileError: There is no such recipe.
            UsageError: The recipe has no cells, and a form or `unroll` is given.
        """
        named = self.recipe if isinstance(self.recipe, Recipe) else load_recipe(self.recipe or DEFAULT_RECIPE)
        chosen = named.with_overrides(self.overrides)
        if chosen.kind != WEIGHT_ONLY:
            return chosen, self.resolved_form
        if self.form is not None or self.unroll:
            raise UsageError(
                f"Recipe {chosen.name!r} keeps ONNX's recurrent operators; there is no cell to give a form or to "
                "unroll.",
                supported="recipes of cells, such as int8",
                action="leave the form out, or choose another recipe",
            )
        return chosen, WEIGHT_ONLY
