"""Overrides: rules that precede those of a recipe, and how they are written."""

from __future__ import annotations

import glob
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from rnnqc.recipes.keys import Settings
from rnnqc.recipes.rules import Rule, override_text


@dataclass(frozen=True)
class Override:
    """Rules to try.

    Attributes:
        points: The glob of the points that they are about; "" where they are about several things.
        rules: The rules.
        reason: Why they are tried, for people.
        members: How many points that quantize something they are about.
    """

    points: str
    rules: tuple[Rule, ...]
    reason: str
    members: int = 1

    @property
    def texts(self) -> list[str]:
        """The rules as `--set` takes them."""
        return settings_text(self.rules)


def in_float(points: str) -> Rule:
    """The rule that leaves the points of a glob in float."""
    return Rule(points, {"bits": None})


def exactly(point: str) -> str:
    """The glob that matches one point, and can be written as an override whatever the names in the model are.

    A question mark stands for what overrides and terminals cannot hold.
    """
    text = "".join(c if c.isprintable() and c != "=" else "?" for c in point)
    text = glob.escape(text) if text == point else "?".join(glob.escape(part) for part in text.split("?"))
    return f"?{text[1:]}" if text.startswith(("-", "re:")) or text[:1].isspace() else text


def settings_text(rules: Iterable[Rule]) -> list[str]:
    """Rules as `--set` takes them."""
    return [override_text(r.points, k, v) for r in rules for k, v in r.settings.items()]


def rule_text(points: str, settings: Settings | Mapping[str, Any]) -> str:
    """A rule as a recipe file has it."""
    return "\n".join(["[[rule]]", f"points = {toml(points)}", *(f"{k} = {toml(v)}" for k, v in settings.items())])


def toml(value: Any) -> str:
    """A value as a recipe file has it."""
    if value is None:
        return '"none"'
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        # JSON's strings are TOML's basic strings, but for the one control character that JSON lets stand.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return repr(value)
