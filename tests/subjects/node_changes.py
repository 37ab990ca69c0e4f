"""Changes that make a valid node invalid."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tests.native.quant_lstm_cases import Case

Change = Callable[[Case], Any]


def set_attribute(**values: Any) -> Change:
    return lambda case: case.attributes.update(values)


def drop_attribute(name: str) -> Change:
    return lambda case: case.attributes.pop(name)


def set_entry(name: str, index: int, value: Any) -> Change:
    """Changes an entry of a list."""

    def change(case: Case) -> None:
        values = list(case.attributes[name])
        values[index] = value
        case.attributes[name] = values

    return change


def set_input(name: str, value: Any) -> Change:
    return lambda case: case.inputs.update({name: np.asarray(value)})


def drop_input(name: str) -> Change:
    return lambda case: case.inputs.pop(name)


def all_of(*changes: Change) -> Change:
    return lambda case: [change(case) for change in changes]
