"""The units that `rnnqc tune` chooses formats for, their choices, and the order of measuring single changes."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection, Sequence
from dataclasses import replace
from itertools import zip_longest
from typing import Any

from rnnqc.calibration.float_cells import decompose
from rnnqc.formats.codebooks import UNEVEN
from rnnqc.ir import Model, safe_name
from rnnqc.lowering.reports.report import Lowered
from rnnqc.passes.cells.cell_graphs import parameters_of
from rnnqc.passes.linear.quantize_linear import FORM as LINEAR_FORM
from rnnqc.recipes.recipe import KINDS, Recipe
from rnnqc.search.tuned import Settings, Unit

AS_THE_RECIPE: Settings = {}
EVEN: Settings = {"codebook": None, "wide_channels": 0.0}
AS_A_WHOLE: Settings = {"group_size": None, **EVEN}
WEIGHT_CHOICES: tuple[Settings, ...] = (
    {"bits": 8, **AS_A_WHOLE},
    {"bits": 6, **AS_A_WHOLE},
    {"bits": 5, "group_size": 32, **EVEN},
    {"bits": 4, "group_size": 32, "codebook": UNEVEN, "wide_channels": 0.01},
    {"bits": 4, "group_size": 32, **EVEN},
    {"bits": 4, "group_size": 64, **EVEN},
    {"bits": 4, **AS_A_WHOLE},
)
LINEAR_CHOICES = tuple({**choice, "wide_channels": 0.0} for choice in WEIGHT_CHOICES[:5])
ACTIVATION_CHOICES: tuple[Settings, ...] = ({"bits": 16},)
COMPENSATION: Settings = {"compensation": True}
WEIGHTS, ACTIVATIONS = ("W.weight", "R.weight"), ("input", "hidden")
MULTIPLIED = {"input": "W", "hidden": "R"}
"""The matrix that an activation is multiplied with."""
USUAL_BITS = 8
"""The width of a weight that the recipe does not mention."""


def units_of(model: Model, recipe: Recipe, compensated: bool, silent: Collection[str] = ()) -> list[Unit]:
    """Returns the matrices and activations of every cell of a float model, except `silent` ones, in order.

    Args:
        model: The float model; it is decomposed in place.
        recipe: The recipe that the search begins with.
        compensated: Whether weights are compensated.
        silent: Names of cells that the data does not run.
    """
    decompose(model, "tune")
    extra = COMPENSATION if compensated else {}
    alike: dict[tuple[Any, ...], Unit] = {}
    for cell in model.cells.values():
        if cell.name in silent:
            continue  # no effect could be measured
        parameters = parameters_of(model, cell)
        held = {k: hashlib.sha256(a.tobytes()).digest() for k, a in parameters.items()}
        sizes = {k: parameters[k].size if k in parameters else 0 for k in "WR"}
        both = held.get("W"), held.get("R")
        for name in WEIGHTS:
            own: dict[str, Any] = {**AS_A_WHOLE, **recipe.settings(f"{cell.name}.{name}")}
            choices = tuple(c for choice in WEIGHT_CHOICES if (c := {**choice, **extra}) != {k: own.get(k) for k in c})
            unit = Unit(
                f"{cell.name}.{name}",
                (AS_THE_RECIPE, *choices),
                layer=cell.name,
                size=sizes[name[0]],
                bits=own.get("bits", USUAL_BITS),
            )
            _add(alike, (name, held.get(name[0]), repr(own)), unit)
        for name in ACTIVATIONS if recipe.kind == KINDS[0] else ():
            bits = recipe.settings(f"{cell.name}.{name}").get("bits")
            size = sizes[MULTIPLIED[name]]
            _add(
                alike,
                (name, both),
                Unit(
                    f"{cell.name}.{name}", (AS_THE_RECIPE, *ACTIVATION_CHOICES), layer=cell.name, size=size, bits=bits
                ),
            )
    return list(alike.values())


def _add(alike: dict[tuple[Any, ...], Unit], key: tuple[Any, ...], unit: Unit) -> None:
    """Adds a unit, or adds its point to the unit of the same weights."""
    known = alike.get(key)
    alike[key] = unit if known is None else replace(known, more=(*known.more, unit.point))


def linear_units(lowered: Lowered, recipe: Recipe) -> list[Unit]:
    """Returns the weights of linear layers that became integer, except those that several operators share."""
    entries, units = lowered.report.rest.entries, []
    shared = {e.shares for e in entries}
    for entry in entries:
        if entry.form == LINEAR_FORM and not entry.shares and entry.node not in shared:
            point = f"{safe_name(entry.node)}.weight"
            own: dict[str, Any] = {**AS_A_WHOLE, **recipe.settings(point)}
            choices = (c for c in LINEAR_CHOICES if c != {k: own.get(k) for k in c})
            size = math.prod(entry.shape)
            units.append(
                Unit(point, (AS_THE_RECIPE, *choices), layer=entry.node, size=size, bits=own.get("bits", USUAL_BITS))
            )
    return units


def in_turns(units: Sequence[Unit], *, cheaper: bool) -> list[tuple[int, int]]:
    """Returns every change of one unit as (unit, choice), the most promising first; layers take turns.

    Each turn has one change of each layer, the largest layer first. In a layer, all units get their first choice, the
    largest unit first, and then the next choices.

    Args:
        units: The units to change.
        cheaper: Whether to save bytes: narrow formats first, of each width the finest groups. Otherwise the aim is
            quality: wide formats first.
    """
    layers: dict[str, list[tuple[bool, int, int, int, int]]] = {}
    for k, unit in enumerate(units):
        for place, (late, choice) in enumerate(_promising(unit, cheaper=cheaper)):
            layers.setdefault(unit.layer, []).append((late, place, -unit.size, k, choice))
    largest = sorted(layers, key=lambda layer: sum(size for _, place, size, *_ in layers[layer] if place == 0))
    turns = zip_longest(*(sorted(layers[layer]) for layer in largest))
    return [change[-2:] for turn in turns for change in turn if change is not None]


def _promising(unit: Unit, *, cheaper: bool) -> list[tuple[bool, int]]:
    """Returns all choices of a unit but the first, most promising first, with a flag for those that come last.

    These are wider formats if the aim is to save bytes, and not wider ones if it is quality.
    """
    keys: list[tuple[bool, int, int, int]] = []
    held: dict[int, int] = {}
    for number, settings in enumerate(unit.choices[1:], 1):
        bits = int(settings["bits"])
        again = held[bits] = held.get(bits, -1) + 1
        wider = unit.bits is not None and bits > unit.bits
        keys.append((wider == cheaper, again, bits if cheaper else -bits, number))
    return [(late, number) for late, _, _, number in sorted(keys)]
