"""Random changes of layers and recurrences that are drawn already: what their usual draws leave as it mostly is.

They are drawn after everything else, so that a seed keeps its case but for them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tests.generate.draws import Draws
from tests.generate.layers import RecurrentCase
from tests.generate.random_layers import may_multiply
from tests.generate.recurrences import BETWEEN, COUNTERS, INITIAL, RecurrenceCase

MAGNITUDES = (1.0, 0.125, 3.0, 30.0)


def vary_layer(draws: Draws, layer: RecurrentCase, any_opset: bool = False) -> RecurrentCase:
    """Initial states of any kind and magnitude, tied weights, weights of a body, attributes and nodes of a function.

    Args:
        draws: Makes the choices.
        layer: What to vary.
        any_opset: Whether a function may get any operator set; otherwise the layer keeps its own.
    """
    changes: dict[str, Any] = {}
    if layer.placement == "function":
        changes["leaky"] = draws.choice((None, 0.3, 0.75))
        if any_opset and not layer.layout:
            layer = layer.replace(opset=draws.choice((layer.opset, draws.integer(7, 14))))
    if draws.boolean():
        changes["I"] = layer.H
        changes["tied"] = draws.boolean()
    if draws.boolean() and layer.initial_h is False:
        changes["initial_h"] = True
    kinds = ("input", "constant", "computed") if layer.opset < 8 else ("input", "constant", "learned", "computed")
    changes["states_from"] = draws.choice(kinds)
    magnitude = draws.choice(MAGNITUDES)
    changes["magnitude"] = min(magnitude, 1.0) if may_multiply(layer) else magnitude
    # Before IR 4 initializers are inputs, which a branch or body has not.
    if layer.placement in ("if", "loop", "scan") and draws.boolean() and layer.ir_version >= 4:
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
