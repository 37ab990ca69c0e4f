"""Random changes of layers and recurrences that are drawn already: what their usual draws leave as it mostly is.

They are drawn after everything else, so that a seed keeps its case but for them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from rnnqc.testing.draws import Draws
from rnnqc.testing.layers import RecurrentCase
from rnnqc.testing.random_layers import SMALL_GAIN, is_unbounded
from rnnqc.testing.recurrences import BETWEEN, COUNTERS, INITIAL, RecurrenceCase

MAGNITUDES = (1.0, 0.125, 3.0, 30.0)


def vary_layer(draws: Draws, layer: RecurrentCase) -> RecurrentCase:
    """Initial states of other kinds and magnitudes, tied weights, weights of a body, attributes of a function."""
    changes: dict[str, Any] = {}
    if draws.boolean():
        changes["I"] = layer.H
        changes["tied"] = draws.boolean()
    if draws.boolean() and layer.initial_h is False:
        changes["initial_h"] = True
    kinds = ("input", "constant", "computed") if layer.opset < 8 else ("input", "constant", "learned", "computed")
    changes["states_from"] = draws.choice(kinds)
    magnitude = draws.choice(MAGNITUDES)
    grows = is_unbounded(layer.activations) or layer.gain == SMALL_GAIN
    changes["magnitude"] = min(magnitude, 1.0) if grows else magnitude
    if layer.placement in ("if", "loop", "scan") and draws.boolean():
        changes["weights"] = "body"
    if layer.placement == "function":
        changes["function_attributes"] = draws.choice(("own", "given", "default", "overridden"))
    return layer.replace(**changes)


def vary_recurrence(draws: Draws, made: RecurrenceCase) -> RecurrenceCase:
    """Widths that are equal, operands in the other order, a C that is computed, states from anywhere, and the like."""
    changes: dict[str, Any] = {"tied": False, "twice": False, "local": False}
    changes |= {"state_first": draws.boolean(), "initial": draws.choice(INITIAL)}
    changes["magnitude"] = draws.choice(MAGNITUDES)
    if made.op == "projection":
        changes["P"] = draws.choice((0, made.H, draws.integer(1, 9)))
    equal = draws.choice(("", "h", "h", "H"))
    changes["I"] = {"h": replace(made, P=changes.get("P", 0)).width, "H": made.H}.get(equal, made.I)
    if equal == "h":
        changes["between"] = draws.choice(("", "", *BETWEEN))
        changes["tied"] = draws.boolean()
        changes["twice"] = not made.lengths and draws.integer(0, 3) == 3
    else:
        changes["between"] = draws.choice(("", "", *(b for b in BETWEEN if b != "input")))
    changes["products"] = draws.choice((made.products, "added"))
    changes["cut"] = draws.choice((made.cut, "slices"))
    changes["scales"] = draws.choice(((1.0, 1.0), (1.0, 1.0), (0.5, 2.0)))
    if made.form != "unrolled" and not changes["twice"]:
        changes["local"] = draws.boolean()
    if made.form in ("scan", "loop", "keras"):
        changes["spare"] = draws.integer(0, 3) == 3
    if made.form == "keras":
        changes["counter"] = draws.choice(("int32", *(c for c in COUNTERS if c != "to_int16")))
    return replace(made, **changes)
