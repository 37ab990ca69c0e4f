"""Reads from a lowered model how it was lowered, as far as its metadata says."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort

from rnnqc.data.binding import bound_text, bound_values
from rnnqc.data.feeds import Feeds
from rnnqc.formats.quantized_outputs import read_outputs
from rnnqc.ir import Model
from rnnqc.lowering.reports.report import Entry
from rnnqc.passes import PassManager
from rnnqc.passes.analysis.find_recurrent_nodes import lowered_nodes, recurrent_nodes
from rnnqc.passes.normalize.remove_sorting import RemoveSorting
from rnnqc.passes.pipeline import normal_form
from rnnqc.recipes.recipe import is_builtin
from rnnqc.recipes.recipe_record import RecipeRecord
from rnnqc.search.overrides import settings_text


def entries_of(quant: onnx.ModelProto) -> list[Entry]:
    """Returns the entries of the report's layer table, read from the lowered model alone."""
    model = Model.load(quant)
    found = [Entry(n.path, n.op, "lowered", n.form, cells=[n.name], bytes=n.weight_bytes) for n in lowered_nodes(model)]
    PassManager(normal_form()).run(model)
    for node in recurrent_nodes(model):
        reason, what, action = node.refusal
        size = node.weight_bytes
        why = reason or "it was not lowered."
        found.append(Entry(node.path, node.op, "float", "", why, what, action, float_bytes=size, bytes=size))
    return found


def recipe_of(record: RecipeRecord | None, quant: Model, calibrated_by: Sequence[str] = ()) -> dict[str, Any]:
    """Returns how the model was lowered. `calibrated_by`: the options that supplied the calibration, if known."""
    passes = {"passes": list(quant.provenance)}
    if record is None:
        return passes
    recipe = record.recipe
    return {
        "name": recipe.name,
        "builtin": is_builtin(recipe),
        "form": record.form,
        "unroll": record.unroll,
        "dims": dict(record.dims),
        "rest": record.rest,
        "bind": {n: bound_text(v) for n, v in sorted(bound_values(quant.metadata).items())},
        "quantized_outputs": [*read_outputs(quant.metadata)],
        "remove_sorting": RemoveSorting.info.name in quant.provenance,
        "calibrated": bool(record.statistics),
        "statistics": list(calibrated_by),
        "overrides": settings_text(recipe.rules[: recipe.overrides]),
        "rules": [{"points": r.points, **r.settings} for r in recipe.rules],
        **passes,
    }


def versions() -> dict[str, str]:
    """Returns the versions of rnnqc and of its dependencies."""
    from rnnqc import __version__

    return {"rnnqc": __version__, **{m.__name__: m.__version__ for m in (onnx, ort, np)}}


def shapes_of(feeds: Sequence[Feeds]) -> dict[str, str]:
    """Returns type and shape of every input of the first call."""
    return {name: f"{array.dtype} {list(array.shape)}" for name, array in feeds[0].items()} if feeds else {}
