"""The order in which `rnnqc tune` measures single changes.

What these would catch: a bound of time that goes to the first layer alone, or to formats that cannot help.
"""

from __future__ import annotations

from rnnqc.search.tuned import Unit
from rnnqc.search.units import ACTIVATION_CHOICES, AS_THE_RECIPE, WEIGHT_CHOICES, in_turns

LAYERS = ("first", "second", "third")


def units(bits: int = 8) -> list[Unit]:
    """Three layers, each larger than the one before."""
    weights, activations = (AS_THE_RECIPE, *WEIGHT_CHOICES), (AS_THE_RECIPE, *ACTIVATION_CHOICES)
    found = []
    for size, layer in enumerate(LAYERS, 1):
        found.append(Unit(f"{layer}.W.weight", weights, layer=layer, size=10 * size, bits=bits))
        found.append(Unit(f"{layer}.R.weight", weights, layer=layer, size=20 * size, bits=bits))
        found.append(Unit(f"{layer}.hidden", activations, layer=layer, size=20 * size, bits=8))
    return found


def test_layers_take_turns_and_every_change_comes_once() -> None:
    made = units()
    for cheaper in (True, False):
        order = in_turns(made, cheaper=cheaper)
        layers = [made[unit].layer for unit, _ in order]
        assert all(layers[k : k + 3] == [*reversed(LAYERS)] for k in range(0, len(layers), 3)), "the largest first"
        assert sorted(order) == [(k, c) for k, unit in enumerate(made) for c in range(1, len(unit.choices))]


def test_few_bits_come_first_where_bytes_are_to_be_saved() -> None:
    made = units()
    first = [(made[u].point, made[u].choices[c]["bits"]) for u, c in in_turns(made, cheaper=True)[:9]]
    assert first[:6] == [(f"{layer}.{m}.weight", 4) for m in "RW" for layer in reversed(LAYERS)]
    assert first[6:] == [(f"{layer}.R.weight", 5) for layer in reversed(LAYERS)]
    last = in_turns(made, cheaper=True)[-3:]
    assert {made[u].point for u, _ in last} == {f"{layer}.hidden" for layer in LAYERS}, "16 bits save nothing"


def test_many_bits_come_first_where_quality_is_to_be_won() -> None:
    made = units(bits=4)
    first = [(made[u].point, made[u].choices[c]["bits"]) for u, c in in_turns(made, cheaper=False)[:9]]
    assert set(first) == {(f"{layer}.{m}", b) for layer in LAYERS
                          for m, b in (("R.weight", 8), ("W.weight", 8), ("hidden", 16))}  # fmt: skip
