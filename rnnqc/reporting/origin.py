"""Checks that the first model of a report is a float model and that the second was lowered from it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rnnqc.cells.forms import FLOAT
from rnnqc.errors import CompileError, UsageError
from rnnqc.ir import Model
from rnnqc.lowering.lowered_before import is_lowered
from rnnqc.passes.analysis.find_recurrent_nodes import lowered_nodes
from rnnqc.search.recurrences import Recurrence

APART_DB, ANOTHER_DB = 1.0, 10.0
"""Bounds in dB for a second lowering with other statistics: it differs, and it is another model.

Scales are fixed, so only error-compensated weights and the order of weights depend on the statistics.
"""


def check_float(model: Model, name: str) -> None:
    """Raises an error if a float model is expected and `model` is already lowered.

    Raises:
        UsageError: The model has a lowered layer.
    """
    if is_lowered(model):
        cell = next((f"cell {n.name!r}" for n in lowered_nodes(model) if n.form != FLOAT), "a layer")
        raise UsageError(
            f"{name}: {cell} is lowered already; this is no float model.",
            supported="first the float model, then what it was lowered to",
            action="exchange the two, if they are swapped",
        )


def same_outputs(once: Sequence[Mapping[str, Any]], again: Sequence[Mapping[str, Any]]) -> bool:
    """Whether two runs gave the same tensors; NaN equals NaN. Sequences are not compared."""
    return all(
        np.array_equal(value, b[name], equal_nan=np.asarray(value).dtype.kind == "f")
        for a, b in zip(once, again, strict=True)
        for name, value in a.items()
        if not isinstance(value, list)  # a sequence of tensors
    )


def mismatch(float_name: str, quant_name: str, sqnr_db: float, again_db: float, exact: bool) -> str:
    """The message that a second lowering gives another model; empty if different outputs are expected.

    Args:
        float_name: Name of the float model.
        quant_name: Name of the lowered model.
        sqnr_db: SQNR of the lowered model.
        again_db: SQNR of the model lowered a second time.
        exact: Whether the second lowering used the original statistics, or both used none.
    """
    if not exact and distance(sqnr_db, again_db) <= ANOTHER_DB:
        return ""
    text = (
        f"{float_name} is not the model that {quant_name} was made of, or {quant_name} was changed after it was "
        f"lowered: lowered again in the same way, {float_name} makes a model of other outputs ({again_db:.1f} dB; "
        f"{quant_name} has {sqnr_db:.1f} dB). Name the float model that it was made of; if this is the one, lower it "
        "again"
    )
    return f"{text}, or give the statistics of its calibration (--stats)." if not exact else f"{text}."


def distance(sqnr_db: float, again_db: float) -> float:
    """The difference of two SQNRs in dB; infinite where it is undefined."""
    apart = 0.0 if again_db == sqnr_db else abs(again_db - sqnr_db)
    return math.inf if math.isnan(apart) else apart


def check_same_recurrences(recurrences: Mapping[str, Recurrence], made: Mapping[str, Recurrence]) -> None:
    """Raises CompileError if the float model does not produce the recurrences of the lowered model."""
    for name, recurrence in recurrences.items():
        if name not in made or made[name].sizes != recurrence.sizes:
            found, cell = ", ".join(made) or "none", recurrence.cell
            sizes = f"{len(recurrence.sizes['points'])} points" if cell is None else ""
            sizes = sizes if cell is None else f"{cell.input_size} inputs and {cell.hidden_size} states"
            raise CompileError(
                f"the float model has no cell {name!r} of {sizes}; cells: {found}.",
                supported="the model that the quantized one was lowered from",
                action="name that float model",
            )


def differences(recurrences: Mapping[str, Recurrence], made: Mapping[str, Recurrence]) -> list[str]:
    """Returns the points whose formats differ between two lowerings; per-channel scales are ignored."""

    def formats(recurrence: Recurrence) -> dict[str, Any]:
        held = {p: s.as_dict() for p, s in recurrence.points.items()}
        for s in held.values():
            if len(s.get("scale") or ()) > 1:
                del s["scale"]
        return held

    found = []
    for name, recurrence in recurrences.items():
        was, now = formats(recurrence), formats(made[name]) if name in made else {}
        found += [f"{name}.{p}" for p in was if was[p] != now.get(p)]
    return found
