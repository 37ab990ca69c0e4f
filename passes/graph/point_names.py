"""Names of recurrences and of what is in them: how they are made, and what passes add to names of values."""

from __future__ import annotations

import re
from collections.abc import Collection, Hashable, Iterable, Mapping
from typing import TypeVar

from rnnqc.ir import safe_name

Key = TypeVar("Key", bound=Hashable)
WITHIN, BEYOND = "within_bound", "beyond_bound"
"""Kinds of loops: where the hidden states that they start from may lie."""
_NUMBER, _STEP = re.compile(r"_\d+$"), re.compile(r"/step_(\d+)(?=/)")
_KIND = re.compile(rf"/(u?int8|{WITHIN}|{BEYOND})(?=/)")


def distinct_names(wanted: Mapping[Key, tuple[str, Collection[str]]], taken: Iterable[str] = ()) -> dict[Key, str]:
    """A safe name for each thing, such that no two names with one of their endings are the same text.

    Every thing has its own name with the characters that are not safe replaced, `_2`, `_3`, ... behind it where another
    one has that already. Names that are safe as they are come first; after them the order of `wanted` counts.

    Args:
        wanted: For each thing the name it should have, and all endings that are put behind it.
        taken: Names with their endings that something else has.
    """
    usual = {key: safe_name(text) for key, (text, _) in wanted.items()}
    held = set(taken)
    # A number makes no name that another thing has without one.
    reserved = held | {usual[key] + ending for key, (_, endings) in wanted.items() for ending in endings}
    found: dict[Key, str] = {}
    for key, (_, endings) in sorted(wanted.items(), key=lambda item: usual[item[0]] != item[1][0]):
        name, number, avoided = usual[key], 1, held
        while any(name + ending in avoided for ending in endings):
            number += 1
            name, avoided = f"{usual[key]}_{number}", reserved
        found[key] = name
        held |= {name + ending for ending in endings}
        reserved |= held
    return {key: found[key] for key in wanted}


def alias(name: str) -> tuple[str, int]:
    """A name of a value without what passes add to it, and the step of an unrolled loop in it (0 without).

    They add a number that makes it unique, the step, the kind of the integer operands, and that of the loop.
    """
    step = _STEP.search(name)
    return _KIND.sub("", _STEP.sub("", _NUMBER.sub("", name))), int(step.group(1)) if step else 0


def plain_name(name: str, cell: str) -> str:
    """`cell_state.kept` of `encoder.forward/int8/cell_state.kept_2`."""
    return alias(f"/{name.removeprefix(f'{cell}/')}")[0][1:]
