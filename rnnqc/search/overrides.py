"""Overrides: rules that precede those of a recipe, and their text form."""

from __future__ import annotations

import glob
from collections.abc import Iterable
from dataclasses import dataclass

from rnnqc.recipes.rules import Rule, override_text


@dataclass(frozen=True)
class Override:
    """Rules to try.

    Attributes:
        points: The glob of the points they change; "" if it is not a single one.
        rules: The rules.
        reason: Why they are tried, for people.
        members: The number of quantized points that they apply to.
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
    """Returns the rule that leaves the points of a glob in float."""
    return Rule(points, {"bits": None})


def exactly(point: str) -> str:
    """Returns a glob for one point that is valid in an override whatever the name contains.

    Question marks replace characters that overrides and terminals cannot hold.
    """
    text = "".join(c if c.isprintable() and c != "=" else "?" for c in point)
    text = glob.escape(text) if text == point else "?".join(glob.escape(part) for part in text.split("?"))
    return f"?{text[1:]}" if text.startswith(("-", "re:")) or text[:1].isspace() else text


def settings_text(rules: Iterable[Rule]) -> list[str]:
    """Formats rules as `--set` takes them."""
    return [override_text(r.points, k, v) for r in rules for k, v in r.settings.items()]
