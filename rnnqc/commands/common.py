"""What commands share: exit codes, types of arguments, how numbers and JSON are written."""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rnnqc.diagnostics import UsageError, byte_count

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[argparse.ArgumentParser]
else:
    Commands = object

__all__ = [
    "BAD_INPUT", "CHECK_FAILED", "INTERRUPTED", "OK", "STRICT", "TERMINATED", "Commands", "byte_count", "decibels",
    "json_text", "number", "pairs", "verbosity",
]  # fmt: skip

OK, CHECK_FAILED, BAD_INPUT, STRICT = 0, 1, 2, 3
INTERRUPTED, TERMINATED = 130, 143


def verbosity(parser: argparse.ArgumentParser) -> None:
    """Adds -q and -v."""
    group = parser.add_mutually_exclusive_group()
    group.add_argument("-q", "--quiet", action="store_true", help="errors and float layers only")
    group.add_argument("-v", "--verbose", action="store_true", help="all remarks and the time of each pass")


def decibels(text: str) -> float:
    """The type of an argument in decibels."""
    value = float(text)
    if math.isnan(value):
        raise ValueError(text)
    return value


def number(text: str) -> float:
    """The type of an argument that is a number."""
    return decibels(text)


number.__name__ = "number"
decibels.__name__ = "number of decibels"  # what argparse calls it in messages


def pairs(texts: Sequence[str], option: str) -> dict[str, int]:
    """What `option NAME=N ...` says.

    Raises:
        UsageError: A text is not of this form, or a name has two values.
    """
    result: dict[str, int] = {}
    for text in texts:
        name, separator, size = text.rpartition("=")
        if not (separator and name and size.isascii() and size.isdecimal() and len(size) < 19):
            raise UsageError(
                f"{option} {text!r}: not of the form NAME=N.",
                supported="sizes from 1 on",
                action=f"for example {option} T=100",
            )
        if result.setdefault(name, int(size)) != int(size):
            raise UsageError(
                f"{option} {name} has two values, {result[name]} and {size}.", supported="one", action="leave one out"
            )
    return result


def json_text(data: Any) -> str:
    """`data` as JSON, sorted and indented."""
    return json.dumps(_finite(data), indent=2, sort_keys=True, allow_nan=False)


def _finite(data: Any) -> Any:
    """JSON has no infinity: "inf" instead."""
    if isinstance(data, dict):
        return {k: _finite(v) for k, v in data.items()}
    if isinstance(data, list | tuple):
        return [_finite(v) for v in data]
    if isinstance(data, float) and not math.isfinite(data):
        return str(data)
    return data
