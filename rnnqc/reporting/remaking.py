"""Makes a lowered model again from its float model and from what it says about itself, with changes or without."""

from __future__ import annotations

import glob
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import onnx

from rnnqc.cells.base import Cell
from rnnqc.diagnostics import CompileError
from rnnqc.outcomes import WEIGHT_ONLY
from rnnqc.pipeline import Lowered, lower
from rnnqc.recipe import Rule
from rnnqc.recipe_record import RecipeRecord
from rnnqc.statistics import Statistics, identity

QCDQ = "qcdq"
PARAMETERS = (".weight", ".bias")
"""Points whose scales follow from the model alone."""
Cells = Mapping[str, Cell]


def no_quantizer(points: str) -> Rule:
    """The rule that leaves the points of a glob in float."""
    return Rule(points, {"bits": None})


def exactly(point: str) -> str:
    """The glob that matches one point, and can be written as an override whatever the names in the model are.

    A question mark stands for what overrides and terminals cannot hold.
    """
    text = "".join(c if c.isprintable() and c != "=" else "?" for c in point)
    text = glob.escape(text) if text == point else "?".join(glob.escape(part) for part in text.split("?"))
    return f"?{text[1:]}" if text.startswith(("-", "re:")) or text[:1].isspace() else text


@dataclass
class Remaker:
    """Lowers a float model again.

    Attributes:
        model: The float model.
        record: How it was lowered.
        statistics: Of a calibration; None if there was none.
        pins: Rules that hold formats which other statistics would change.
    """

    model: onnx.ModelProto
    record: RecipeRecord
    statistics: Statistics | None = None
    pins: list[Rule] = field(default_factory=list)

    def lower(
        self, rules: Sequence[Rule] = (), form: str | None = None, model: onnx.ModelProto | None = None
    ) -> Lowered:
        """The model lowered again.

        Args:
            rules: In front of those of the recipe.
            form: Another form than its own.
            model: The float model with other outputs.

        Raises:
            CompileError: It cannot be lowered so.
        """
        record = self.record
        before = (*rules, *self.pins)
        recipe = replace(
            record.recipe, rules=(*before, *record.recipe.rules), overrides=len(before) + record.recipe.overrides
        )
        own = form is None
        asked = record.form if form is None else form
        return lower(
            self.model if model is None else model,
            recipe,
            None if record.form == WEIGHT_ONLY else asked,
            stats=self.statistics,
            unroll=record.unroll and own,
            dims=record.dims if own else None,
        )

    def pin(self, cells: Cells) -> None:
        """Holds the scales that followed from statistics as these cells have them.

        Other statistics would give others, and a search for a range takes longer than everything else in a lowering.
        """
        for cell in cells.values():
            for point, was in cell.points.items():
                path = f"{cell.name}.{point}"
                settings = self.record.recipe.settings(path)
                calibrated = settings.get("mode") == "static" or "range" in settings
                if _single(was) and calibrated and "scale" not in settings and not path.endswith(PARAMETERS):
                    held = {"scale": was["scale"][0], "zero_point": was["zero_point"]}
                    self.pins.append(Rule(exactly(path), held))


def check_same_cells(cells: Cells, made: Cells) -> None:
    """Raises CompileError where the cells of a lowered model are not those that its float model makes."""
    for name, cell in cells.items():
        if name not in made or identity(made[name]) != identity(cell):
            found = ", ".join(made) or "none"
            sizes = f"{cell.input_size} inputs and {cell.hidden_size} states"
            raise CompileError(
                f"the float model has no cell {name!r} of {sizes}; cells: {found}.",
                supported="the model that the quantized one was lowered from",
                action="name that float model",
            )


def _single(point: Mapping[str, Any]) -> bool:
    """Whether the format has one scale that a rule can give; weights in groups, and biases, have others."""
    return point.get("bits") is not None and len(point.get("scale") or ()) == 1 and point.get("mode") == "static"


def differences(cells: Cells, made: Cells) -> list[str]:
    """Points whose formats differ between two lowerings, per-channel scales left out."""

    def formats(cell: Cell) -> dict[str, Any]:
        held = {p: dict(s) for p, s in cell.points.items()}
        for s in held.values():
            if len(s.get("scale") or ()) > 1:
                del s["scale"]
        return held

    found = []
    for name, cell in cells.items():
        was, now = formats(cell), formats(made[name]) if name in made else {}
        found += [f"{name}.{p}" for p in was if was[p] != now.get(p)]
    return found


def weights_of(lowered: Lowered) -> int:
    """Bytes of all recurrent weights."""
    return sum(e.bytes for e in lowered.report.entries)


def forms_of(lowered: Lowered) -> dict[str, str]:
    """The form of each recurrent node."""
    return {e.node: e.form or e.status for e in lowered.report.entries}


def settings_text(rules: Iterable[Rule]) -> list[str]:
    """Rules as `--set` takes them."""
    return [f"{r.points}.{k}={_literal(v)}" for r in rules for k, v in r.settings.items()]


def _literal(value: Any) -> str:
    if value is None:
        return "none"
    return str(value).lower() if isinstance(value, bool) else repr(value) if isinstance(value, float) else str(value)
