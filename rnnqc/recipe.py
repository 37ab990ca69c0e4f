"""Recipes: which number format every quantization point gets, as data.

A recipe is a TOML file of rules. A rule names quantization points by a glob over `<cell>.<point>` (for example
`encoder/lstm.forward.W.weight`) and sets keys. For each point and key the first rule that has both counts; overrides
(`--set 'encoder/*.weight.bits=4'`) come before all rules.
"""

from __future__ import annotations

import fnmatch
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from rnnqc.cells.base import LSTM_POINTS
from rnnqc.diagnostics import CompileError, UsageError
from rnnqc.encoding import Rounding
from rnnqc.packing import GROUP_UNIT

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

Settings = dict[str, Any]


@dataclass(frozen=True)
class Key:
    """A key of a rule: what it accepts and what it means."""

    accepts: str
    meaning: str


KEYS: dict[str, Key] = {
    "bits": Key("2 to 24, or none", "width of the codes; none leaves the point in float"),
    "signed": Key("true or false", "two's complement codes"),
    "narrow": Key("true or false", "leave out the lowest code"),
    "granularity": Key("per-channel or per-tensor", "scales of weights"),
    "group_size": Key(
        "a multiple of 32, or none",
        "weights of up to 4 bits: inputs whose codes share a multiplier 1 to 18 per channel",
    ),
    "wide_channels": Key("a number from 0 to 1", "share of output channels that keep 8 bits, where fewer hurt most"),
    "mode": Key("dynamic-row, static, bounded or activation", "where the scale comes from"),
    "scale": Key("a positive number", "real value of one code"),
    "zero_point": Key("a code", "code of the real value 0"),
    "rounding": Key(", ".join(r.value for r in Rounding), "how reals become codes"),
    "table": Key("piecewise-linear or exact", "how an activation is tabulated"),
    "chain": Key("true or false", "take the hidden codes of the layer before as they are"),
}
# What each kind of quantization point understands, by the last part of its name.
POINT_KEYS: dict[str, tuple[str, ...]] = {
    "weight": ("bits", "narrow", "granularity", "group_size", "wide_channels", "scale", "rounding"),
    "input": ("bits", "signed", "mode", "scale", "zero_point", "rounding", "chain"),
    "hidden": ("bits", "signed", "mode", "scale", "zero_point", "rounding"),
    "acc": ("bits", "mode", "scale", "rounding"),
    "activation": ("bits", "table"),
    "cell_state": ("bits", "mode", "scale", "rounding"),
}
_CHOICES: dict[str, tuple[str, ...]] = {
    "granularity": ("per-channel", "per-tensor"),
    "mode": ("dynamic-row", "static", "bounded", "activation"),
    "rounding": tuple(r.value for r in Rounding),
    "table": ("piecewise-linear", "exact"),
}


@dataclass(frozen=True)
class Rule:
    """Settings for the points that match a glob."""

    points: str
    settings: Mapping[str, Any]

    def matches(self, path: str) -> bool:
        """Whether the rule speaks about the point `path`."""
        return fnmatch.fnmatchcase(path, self.points)


@dataclass(frozen=True)
class Recipe:
    """A named list of rules."""

    name: str
    summary: str
    rules: tuple[Rule, ...]
    overrides: int = 0

    def with_overrides(self, overrides: Iterable[str]) -> Recipe:
        """This recipe with `PATH=VALUE` overrides in front; the first that matches wins.

        Raises:
            UsageError: An override is malformed or names an unknown key.
        """
        if isinstance(overrides, str):
            raise UsageError(
                f"overrides = {overrides!r} is one text.", supported="a list of texts such as '*.weight.bits=4'"
            )
        parsed = tuple(parse_override(o) for o in overrides)
        return Recipe(self.name, self.summary, (*parsed, *self.rules), len(parsed))

    def settings(self, path: str) -> Settings:
        """Everything the rules say about the quantization point `path`."""
        result: Settings = {}
        for rule in self.rules:
            if rule.matches(path):
                for key, value in rule.settings.items():
                    result.setdefault(key, value)
        return result

    def without_effect(self, cells: Sequence[str]) -> list[tuple[str, str, str]]:
        """Glob, key and kind of point for overrides whose key no matching point of `cells` understands."""
        found: list[tuple[str, str, str]] = []
        for rule in self.rules[: self.overrides]:
            matching = [p for p in _paths(cells) if rule.matches(p)]
            unknown = [k for k in rule.settings if matching and not any(k in keys_of(p) for p in matching)]
            found += [(rule.points, key, matching[0].rpartition(".")[2]) for key in unknown]
        return found

    def unmatched(self, cells: Sequence[str]) -> list[str]:
        """Globs of overrides that match no point of any of `cells`; a recipe's own rules need not match."""
        paths = _paths(cells)
        return [r.points for r in self.rules[: self.overrides] if not any(r.matches(p) for p in paths)]


def _paths(cells: Sequence[str]) -> list[str]:
    return [f"{c}.{p.name}" for c in cells for p in LSTM_POINTS]


def keys_of(point: str) -> tuple[str, ...]:
    """The keys that the quantization point `point` (a name or path) understands."""
    return POINT_KEYS[point.rpartition(".")[2]]


def parse_override(text: str) -> Rule:
    """`GLOB.KEY=VALUE` as a rule.

    Raises:
        UsageError: The text has another form, or the key or value is unknown.
    """
    path, separator, literal = text.partition("=")
    points, dot, key = path.strip().rpartition(".")
    if not separator or not dot or not points:
        raise UsageError(
            f"Override {text!r} is not of the form PATH.KEY=VALUE.", action="for example --set '*.weight.bits=4'"
        )
    return Rule(points, {key: _checked(key, _literal(literal.strip()), f"override {text!r}")})


def _literal(text: str) -> Any:
    if text.lower() == "none":
        return None
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _checked(key: str, value: Any, where: str) -> Any:
    if key not in KEYS:
        raise UsageError(f"{where}: unknown key {key!r}.", supported=", ".join(sorted(KEYS)))
    bad = UsageError(f"{where}: {key} = {value!r}.", supported=KEYS[key].accepts)
    if key == "bits":
        if value in (None, "none"):
            return None
        if isinstance(value, bool) or not isinstance(value, int) or not 2 <= value <= 24:
            raise bad
    elif key == "group_size":
        if value in (None, "none"):
            return None
        if isinstance(value, bool) or not isinstance(value, int) or value <= 0 or value % GROUP_UNIT:
            raise bad
    elif key == "wide_channels":
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 1:
            raise bad
        return float(value)
    elif key in ("signed", "narrow", "chain"):
        if not isinstance(value, bool):
            raise bad
    elif key == "scale":
        if (
            isinstance(value, bool)
            or not isinstance(value, (int, float))
            or not (math.isfinite(value) and 2.0**-100 <= value <= 2.0**100)
        ):
            raise bad
        return float(value)
    elif key == "zero_point":
        if isinstance(value, bool) or not isinstance(value, int):
            raise bad
    elif value not in _CHOICES[key]:
        raise bad
    return value


def parse_recipe(text: str, source: str) -> Recipe:
    """A recipe from TOML text.

    Raises:
        UsageError: The text is no recipe; says where.
    """
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{source}: not a TOML file ({error}).") from error
    unknown = sorted(set(data) - {"name", "summary", "rule"})
    if unknown:
        raise UsageError(f"{source}: unknown entry {unknown[0]!r}.", supported="name, summary, [[rule]]")
    rules = []
    entries = data.get("rule", [])
    if not isinstance(entries, list):
        raise UsageError(f"{source}: 'rule' is no list of tables.", supported="[[rule]]")
    for number, entry in enumerate(entries, 1):
        where = f"{source}, rule {number}"
        if not isinstance(entry, dict) or not isinstance(entry.get("points"), str):
            raise UsageError(f"{where}: 'points' is missing.", supported="a glob over <cell>.<point>")
        settings = {k: _checked(k, v, where) for k, v in entry.items() if k != "points"}
        rules.append(Rule(entry["points"], settings))
    return Recipe(str(data.get("name", source)), str(data.get("summary", "")), tuple(rules))


def load_recipe(name: str) -> Recipe:
    """A recipe that comes with rnnqc, or one from a `.toml` file.

    Raises:
        UsageError: There is no such recipe or file.
    """
    if name.endswith(".toml"):
        try:
            return parse_recipe(Path(name).read_text(encoding="utf-8"), name)
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"{name}: cannot be read ({error}).") from error
    held = {r.name: r for r in builtin_recipes()}
    if name not in held:
        raise UsageError(
            f"There is no recipe {name!r}.", supported=", ".join(sorted(held)), action="or name a .toml file"
        )
    return held[name]


def builtin_recipes() -> list[Recipe]:
    """The recipes that come with rnnqc, by name."""
    folder = resources.files("rnnqc") / "recipes"
    files = sorted((f for f in folder.iterdir() if f.name.endswith(".toml")), key=lambda f: f.name)
    return [parse_recipe(f.read_text(encoding="utf-8"), f.name) for f in files]


def rounding_of(settings: Mapping[str, Any]) -> Rounding:
    """The rounding a point's settings ask for; half to even unless they say otherwise."""
    return Rounding(settings.get("rounding", Rounding.HALF_EVEN.value))


def require(settings: Mapping[str, Any], key: str, point: str) -> Any:
    """The value of `key`.

    Raises:
        CompileError: The recipe does not say.
    """
    if key not in settings:
        raise CompileError(f"The recipe does not say {key!r} of {point!r}.", action=f"add --set '{point}.{key}=...'")
    return settings[key]
