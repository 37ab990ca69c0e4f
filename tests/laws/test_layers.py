"""The law for one recurrent layer: the same bits however it is executed.

What these would catch: a native kernel that rounds, saturates or reduces differently from the function body; a body
whose result depends on onnxruntime's optimizations, on threads, on other rows of a batch, on how a sequence is cut or
on what stands in the padding; a form that has other weights, or a format that one of them understands differently; a
layer that stays float; a numpy reference that is none. Each case is one of few in which every two values of two fields
meet (`tests/laws/layers.py`).
"""

from __future__ import annotations

import pytest

from tests.laws.law import assert_on_grids, layer_law
from tests.laws.layers import law_cases

CASES = {case.name: case for case in law_cases()}


@pytest.mark.few(36)
@pytest.mark.parametrize(("number_format", "name"), [(c.format, n) for n, c in CASES.items()], ids=list(CASES))
def test_same_bits(number_format: str, name: str) -> None:
    """Without --slow nearly every number format once."""
    case = CASES[name]
    assert case.format == number_format
    arguments = {"settings": [case.setting], "ways": [case.form], "name": case.name, "stats": case.statistics}
    forms = layer_law(case.layer, case.recipe, case.overrides, **arguments)
    if case.static:
        assert_on_grids(forms.stock)
