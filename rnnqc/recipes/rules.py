"""Rules of recipes, and their text forms: tables of TOML files, and overrides."""

from __future__ import annotations

import fnmatch
import functools
import glob
import hashlib
import json
import re
import sys
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from rnnqc.errors import UsageError
from rnnqc.recipes.keys import ACCUMULATOR, KEYS, checked

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

REGEX = "re:"
_WITH_SCALE = ("scale", "zero_point", "mode", "share", "same_as")
"""Keys that a formats file sets for a point together with its scale."""


@functools.lru_cache(2**16)
def matches(points: str, path: str) -> bool:
    """Whether a glob, or a regular expression after `re:`, matches the whole name `path`.

    Cached, because every override that is examined asks about the same rules and points.
    """
    if points.startswith(REGEX):
        return re.fullmatch(points.removeprefix(REGEX), path) is not None
    return fnmatch.fnmatchcase(path, points)


@dataclass(frozen=True)
class Rule:
    """Settings for the points that match a glob, or fully match a regular expression after `re:`."""

    points: str
    settings: Mapping[str, Any]

    def matches(self, path: str) -> bool:
        """Whether the rule applies to the point `path`.

        Only rules that name accumulators apply to them: their width is where sums saturate, not the format of a value.
        """
        if path.endswith(f".{ACCUMULATOR}") and ACCUMULATOR not in self.points:
            return False
        return matches(self.points, path)


def parse_override(text: str) -> Rule:
    """Parses `GLOB.KEY=VALUE` to a rule.

    Raises:
        UsageError: The text has another form, or the key or value is unknown.
    """
    path, separator, literal = text.partition("=")
    points, dot, key = path.strip().rpartition(".")
    if not separator or not dot or not points:
        raise UsageError(
            f"Override {text!r} is not of the form PATH.KEY=VALUE.", action="for example --set '*.weight.bits=4'"
        )
    check_points(points, f"override {text!r}")
    return Rule(points, {key: checked(key, _literal(literal.strip()), f"override {text!r}")})


def override_text(points: str, key: str, value: Any) -> str:
    """Formats a rule with a single key for `parse_override`."""
    if value is None:
        text = "none"
    else:
        text = (
            str(value).lower() if isinstance(value, bool) else repr(value) if isinstance(value, float) else str(value)
        )
    return f"{points}.{key}={text}"


def rule_text(points: str, settings: Mapping[str, Any]) -> str:
    """Formats a rule for a recipe file."""
    return "\n".join(["[[rule]]", f"points = {toml(points)}", *(f"{k} = {toml(v)}" for k, v in settings.items())])


def toml(value: Any) -> str:
    """Formats a value for a recipe file."""
    if value is None:
        return '"none"'
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        # JSON's strings are TOML basic strings, except for the one control character that JSON does not escape.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(toml, value))}]"
    return repr(value)


def parse_rules(entries: Any, source: str) -> tuple[Rule, ...]:
    """Parses rules from a list of tables, each with `points` and the keys that it sets.

    Raises:
        UsageError: The entries are not rules; the message names the place.
    """
    if not isinstance(entries, list):
        raise UsageError(f"{source}: 'rule' is no list of tables.", supported="[[rule]]")
    rules = []
    for number, entry in enumerate(entries, 1):
        where = f"{source}, rule {number}"
        if not isinstance(entry, dict) or not isinstance(entry.get("points"), str):
            unknown = sorted(set(entry) - {"points", *KEYS}) if isinstance(entry, dict) else []
            what = f"unknown key {unknown[0]!r}, and no 'points'" if unknown else "'points' is missing, or no text"
            raise UsageError(
                f"{where}: {what}.",
                supported="one glob over <cell>.<point>, or re: and a regular expression",
                action="write a rule for each glob",
            )
        check_points(entry["points"], where)
        settings = {k: checked(k, v, where) for k, v in entry.items() if k != "points"}
        rules.append(Rule(entry["points"], settings))
    return tuple(rules)


def check_points(points: str, where: str, of: str = "<cell>.<point>") -> None:
    """Raises UsageError for an invalid regular expression (after `re:`); messages begin with `where`.

    `of` is what patterns match.
    """
    if points.startswith(REGEX):
        try:
            with warnings.catch_warnings():  # about sets that future Python versions may read differently
                warnings.simplefilter("ignore", FutureWarning)
                re.compile(points.removeprefix(REGEX))
        except re.error as error:
            raise UsageError(
                f"{where}: {points!r} is no regular expression ({error}).",
                supported=f"a glob over {of}, or re: and a regular expression",
            ) from error


def _literal(text: str) -> Any:
    if text.lower() == "none":
        return None
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (tomllib.TOMLDecodeError, RecursionError):
        return text


def pattern_of(path: str) -> str:
    """Returns the glob that matches only the point `path`."""
    name = glob.escape(path)
    return f"?{name[1:]}" if name.startswith(REGEX) else name


def _path_of(points: str) -> str:
    """Returns the path for a glob of `pattern_of`; "" for other patterns."""
    path = re.sub(r"\[([*?[])\]", r"\1", points)
    path = f"{REGEX[0]}{path[1:]}" if path.startswith(f"?{REGEX[1:]}") else path
    return path if pattern_of(path) == points else ""


def without_old_scale(rule: Rule, overrides: Iterable[Rule]) -> Rule:
    """Removes the scale from a rule of a formats file if an override changes the bits of its point."""
    path, bits = _path_of(rule.points), rule.settings.get("bits")
    if not path or "scale" not in rule.settings:
        return rule
    given = next((o.settings["bits"] for o in overrides if "bits" in o.settings and o.matches(path)), bits)
    if given in (None, bits):
        return rule
    return replace(rule, settings={k: v for k, v in rule.settings.items() if k not in _WITH_SCALE})


def rules_digest(rules: Iterable[Rule]) -> str:
    """Returns a hash of a list of rules."""
    text = json.dumps([{"points": r.points, **r.settings} for r in rules], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
