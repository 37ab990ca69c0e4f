"""Names of recurrences and their values: how passes write them, and how to read them back.

Values rendered from a cell get branches, a step and a number added to their names:

    encoder.forward/int8/within_bound/step_3/cell_state.kept_2
    cell            branches          step   value         number

`branch_path` and `step_path` write that, `alias` and `plain_name` read it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Hashable, Iterable, Mapping
from functools import lru_cache
from typing import TypeVar

from rnnqc.ir import safe_name

Key = TypeVar("Key", bound=Hashable)
SIGNED, UNSIGNED = "int8", "uint8"
"""Branches by the kind of the integer weights."""
WITHIN, BEYOND = "within_bound", "beyond_bound"
"""Branches by where the hidden states that a loop starts from may lie."""
WHOLE_X = "x.whole"
"""The input that a fused cell makes of parts or with factors."""
IN_GROUPS = ".in_groups"
"""Ending of weights and sums with columns that do not count."""
_BRANCHES = (SIGNED, UNSIGNED, WITHIN, BEYOND)
_NUMBER, _STEP = re.compile(r"_\d+$"), re.compile(r"/step_(\d+)(?=/)")
_KIND = re.compile(rf"/({'|'.join(_BRANCHES)})(?=/)")


def distinct_names(wanted: Mapping[Key, tuple[str, Collection[str]]], taken: Iterable[str] = ()) -> dict[Key, str]:
    """Returns a safe name for each thing, so that no two names with any of their endings are equal.

    Each keeps its own name with unsafe characters replaced, followed by `_2`, `_3`, ... if another one already has it.
    Names that are already safe come first; then the order of `wanted` counts.

    Args:
        wanted: For each thing its preferred name, and all endings appended to it.
        taken: Names with their endings that are already in use.
    """
    usual = {key: safe_name(text) for key, (text, _) in wanted.items()}
    held = set(taken)
    # A numbered name must not equal another thing's name without a number.
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


def branch_path(path: str, branch: str) -> str:
    """Returns the path of the values of a branch; raises ValueError for a branch that `alias` does not know."""
    if branch not in _BRANCHES:
        raise ValueError(branch)
    return f"{path}/{branch}" if path else branch


def step_path(path: str, step: int) -> str:
    """Returns the path of the values of one step of an unrolled loop."""
    return f"{path}/step_{step}"


@lru_cache(maxsize=2**14)
def alias(name: str) -> tuple[str, int]:
    """Returns a value's name without branches, step and number, and its step (0 without one)."""
    step = _STEP.search(name)
    return _KIND.sub("", _STEP.sub("", _NUMBER.sub("", name))), int(step.group(1)) if step else 0


def plain_name(name: str, cell: str) -> str:
    """Returns, for example, `cell_state.kept` of `encoder.forward/int8/cell_state.kept_2`."""
    return alias(f"/{name.removeprefix(f'{cell}/')}")[0][1:]
