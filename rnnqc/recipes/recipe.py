"""Recipes: which number format every quantization point gets, as data.

A recipe is a TOML file of rules. A rule names quantization points by a glob over `<cell>.<point>` (for example
`encoder/lstm.forward.W.weight`), or by `re:` and a regular expression for the whole of it, and sets keys. For each
point and key the first rule that has both counts; overrides (`--set 'encoder/*.weight.bits=4'`) come before all rules.
"""

from __future__ import annotations

import fnmatch
import functools
import re
import string
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Any

from rnnqc.cells.types import all_points
from rnnqc.errors import CompileError, UsageError
from rnnqc.formats.packing import GROUP_UNIT
from rnnqc.formats.rounding import RECIPE_ROUNDINGS, Rounding
from rnnqc.formats.weight_scales import WEIGHT_RULES
from rnnqc.recipes import ranges

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

Settings = dict[str, Any]
Points = Sequence[str] | Mapping[str, Sequence[str]]
"""Names of cells, with those of their points where not all of them count."""
REGEX = "re:"
KINDS = ("cells", "weight-only")
RULES = tuple(dict.fromkeys((*ranges.RULES, *WEIGHT_RULES)))


@dataclass(frozen=True)
class Key:
    """A key of a rule: what it accepts and what it means.

    Attributes:
        accepts: For messages.
        meaning: One line for `rnnqc recipes`.
        parse: The value to keep; raises ValueError for what is not accepted.
    """

    accepts: str
    meaning: str
    parse: Callable[[Any], Any]


def _boolean(value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError(value)
    return value


def _whole(low: int, high: int, multiple: int = 1) -> Callable[[Any], int]:
    def parse(value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high or value % multiple:
            raise ValueError(value)
        return value

    return parse


def _number(low: float, high: float) -> Callable[[Any], float]:
    def parse(value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high:
            raise ValueError(value)
        return float(value)

    return parse


def _one_of(*choices: str) -> Callable[[Any], str]:
    def parse(value: Any) -> str:
        if value not in choices:
            raise ValueError(value)
        return str(value)

    return parse


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError(value)
    return value


ACCUMULATOR = "accumulator"
SHARE_NAMES = ("cell", "layer", "gate", "point")
"""What `share` may name in braces, and no more: formats can ask for any amount of memory."""


def _group_name(value: Any) -> str:
    text = _text(value)
    for _, name, spec, conversion in string.Formatter().parse(text):
        if name is not None and (name not in SHARE_NAMES or spec or conversion):
            raise ValueError(value)
    return text


def _or_none(parse: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: None if value in (None, "none") else parse(value)


_ROUNDINGS = tuple(r.value for r in RECIPE_ROUNDINGS)
KEYS: dict[str, Key] = {
    "bits": Key("1 to 32, or none", "width of the codes; none leaves the point in float", _or_none(_whole(1, 32))),
    "signed": Key("true or false", "two's complement codes", _boolean),
    "narrow": Key("true or false", "leave out the lowest code", _boolean),
    "symmetric": Key("true or false", "a range around zero, or one that follows the values", _boolean),
    "granularity": Key(
        "per-channel, per-gate or per-tensor",
        "scales of weights",
        _one_of("per-channel", "per-gate", "per-tensor"),
    ),
    "group_size": Key(
        f"a multiple of {GROUP_UNIT}, or none",
        "weights of up to 4 bits: inputs whose codes share a multiplier 1 to 18 per channel",
        _or_none(_whole(GROUP_UNIT, 2**30, GROUP_UNIT)),
    ),
    "wide_channels": Key(
        "a number from 0 to 1", "share of output channels that keep 8 bits, where fewer hurt most", _number(0.0, 1.0)
    ),
    "mode": Key(
        "dynamic-row, static, bounded, activation or product",
        "where the scale comes from",
        _one_of("dynamic-row", "static", "bounded", "activation", "product"),
    ),
    "scale": Key("a positive number", "real value of one code", _number(2.0**-100, 2.0**100)),
    "zero_point": Key("a code", "code of the real value 0", _whole(-(2**31), 2**31 - 1)),
    "rounding": Key(", ".join(_ROUNDINGS), "how reals become codes", _one_of(*_ROUNDINGS)),
    "table": Key(
        "piecewise-linear, exact or vitis",
        "how an activation is tabulated; vitis: sigmoid and tanh, which have 15 bits behind the point then",
        _one_of("piecewise-linear", "exact", "vitis"),
    ),
    "equalize": Key(
        "true or false",
        "with statistics: scale the channels of an input by powers of two where they differ much; W takes the inverse",
        _boolean,
    ),
    "chain": Key("true or false", "take the hidden codes of the layer before as they are", _boolean),
    "range": Key(", ".join(RULES), "how a range follows from statistics, or from the weights", _one_of(*RULES)),
    "percentile": Key("a number from 50 to 100", "of the range rules percentile and ema-percentile", _number(50, 100)),
    "n_std": Key("a positive number", "standard deviations of the range rule n-std", _number(2.0**-20, 2.0**20)),
    "half_range": Key("true or false", "of the range rules gauss and laplace: one side only, as after Relu", _boolean),
    "limit": Key("a positive number, or none", "clips the range to +-limit", _or_none(_number(2.0**-100, 2.0**100))),
    "levels": Key(
        "max-code, half-range or min-code",
        "what the end of a symmetric range maps to: 127, 127.5 or 128 with 8 bits",
        _one_of("max-code", "half-range", "min-code"),
    ),
    "pow2": Key("true or false", "round the scale up to a power of two", _boolean),
    "max_fix_position": Key(
        "a whole number, or none", "of power-of-two scales: at least 2**-max_fix_position", _or_none(_whole(-64, 64))
    ),
    "scale_bits": Key("2 to 24, or none", "scale = A / 2**n, with A of so many bits", _or_none(_whole(2, 24))),
    "share": Key(
        "a text with {cell}, {layer}, {gate}, {point}, or none",
        "points of one text have one scale; {cell}, {layer}, {gate} and {point} stand for their names",
        _or_none(_group_name),
    ),
    "same_as": Key("a point of the same cell, or none", "takes the format of that point", _or_none(_text)),
    "compensation": Key("true or false", "round weights so that errors cancel on the calibration data", _boolean),
    "bias_correction": Key("true or false", "undo the mean error that rounded weights make", _boolean),
    "shift_limits": Key(
        "true or false",
        "power-of-two weights: lower fix positions until hardware can shift between product, bias and result",
        _boolean,
    ),
    "rounded_output": Key("true or false", "hand out the hidden state as its codes say, not unrounded", _boolean),
    "store": Key("integer or float16", "how weight-only recipes store weights", _one_of("integer", "float16")),
}
_STATIC = ("bits", "signed", "narrow", "symmetric", "mode", "scale", "zero_point", "rounding")
RANGE_KEYS = ("range", "percentile", "n_std", "half_range", "limit", "levels", "pow2", "max_fix_position", "scale_bits")
_SHARING = ("share", "same_as")
KEYS_OF_RULES = {
    "percentile": ("percentile", "ema-percentile"),
    "n_std": ("n-std",),
    "half_range": ("gauss", "laplace"),
}
"""Keys that some rules of `range` alone use."""
FORMAT_KEYS = ("bits", "signed", "narrow", "symmetric", "mode", "scale", "zero_point", *RANGE_KEYS, "share")
"""Keys that a point which follows another one (`same_as`) takes from it, or has no use for."""
# What each kind of quantization point understands, by the last part of its name.
POINT_KEYS: dict[str, tuple[str, ...]] = {
    "weight": (
        "bits", "signed", "narrow", "symmetric", "granularity", "group_size", "wide_channels", "scale", "zero_point",
        "rounding", "range", "percentile", "limit", "levels", "pow2", "max_fix_position", "scale_bits", "share",
        "compensation", "bias_correction", "shift_limits", "store",
    ),
    "bias": ("bits", "mode", "scale", "rounding", *RANGE_KEYS, "same_as"),
    "input": (*_STATIC, "chain", "equalize", *RANGE_KEYS, *_SHARING),
    "hidden": (*_STATIC, *RANGE_KEYS, *_SHARING, "rounded_output"),
    "accumulator": ("bits",),
    "input_product": (*_STATIC, *RANGE_KEYS, *_SHARING),
    "hidden_product": (*_STATIC, *RANGE_KEYS, *_SHARING),
    "reset_product": (*_STATIC, *RANGE_KEYS, *_SHARING),
    "acc": (*_STATIC, *RANGE_KEYS, *_SHARING),
    "activation": (*_STATIC, "table", *RANGE_KEYS, *_SHARING),
    "kept": (*_STATIC, *RANGE_KEYS, *_SHARING),
    "added": (*_STATIC, *RANGE_KEYS, *_SHARING),
    "cell_state": (*_STATIC, *RANGE_KEYS, *_SHARING),
    "hidden_state": (*_STATIC, *RANGE_KEYS, *_SHARING),
    "value": (*_STATIC, *RANGE_KEYS, *_SHARING),
}  # fmt: skip


@functools.lru_cache(2**16)
def _matches(points: str, path: str) -> bool:
    """The same few rules are asked about the same points for every override that is looked at."""
    if points.startswith(REGEX):
        return re.fullmatch(points.removeprefix(REGEX), path) is not None
    return fnmatch.fnmatchcase(path, points)


@dataclass(frozen=True)
class Rule:
    """Settings for the points that match a glob, or wholly match a regular expression after `re:`."""

    points: str
    settings: Mapping[str, Any]

    def matches(self, path: str) -> bool:
        """Whether the rule speaks about the point `path`.

        Of accumulators, whose width is no format of a value but where sums saturate, only rules speak that name them.
        """
        if path.endswith(f".{ACCUMULATOR}") and ACCUMULATOR not in self.points:
            return False
        return _matches(self.points, path)


@dataclass(frozen=True)
class Recipe:
    """A named list of rules.

    Attributes:
        name: As `--recipe` takes it.
        summary: One line.
        rules: The first that speaks of a point and key counts.
        overrides: How many of them, from the first on, are overrides of the user.
        kind: "cells" (recurrent layers become quantized cells) or "weight-only" (they stay, on quantized weights).
        own: Of a recipe file: how many rules, from the first on, stand in it rather than in its base.
        held: How many rules behind the overrides repeat scales of a model that is made again.
    """

    name: str
    summary: str
    rules: tuple[Rule, ...]
    overrides: int = 0
    kind: str = "cells"
    own: int = 0
    held: int = 0

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
        own = self.own + len(parsed) if self.own else 0
        return replace(self, rules=(*parsed, *self.rules), overrides=len(parsed) + self.overrides, own=own)

    def settings(self, path: str) -> Settings:
        """Everything the rules say about the quantization point `path`."""
        result: Settings = {}
        for rule in self.rules:
            if rule.matches(path):
                for key, value in rule.settings.items():
                    result.setdefault(key, value)
        return result

    def settings_of_points(
        self, cell: str, points: Iterable[str], targets: Callable[[str, str], Iterable[str]]
    ) -> dict[str, Settings]:
        """Everything the rules say about the points of a cell.

        An override of the format of a point, or a rule of a recipe file, ends a `same_as` of the recipe's own, unless
        the points whose format it names are given the same: with `*.bits=16` they may follow each other.

        Args:
            cell: Its name.
            points: Names of its points.
            targets: The points of the cell whose format a point takes, by its name and the value of `same_as`.
        """
        made = {p: self.settings(f"{cell}.{p}") for p in points}
        asked = {p: self._asked(f"{cell}.{p}") for p in made if made[p].get("same_as")}
        sources: dict[str, list[str]] = {}

        def source(point: str, below: tuple[str, ...]) -> list[str]:
            """The points with formats of their own that `point` has its format of."""
            if point in sources or point not in asked or point in below:
                return sources.get(point, [point])
            named = [t for t in targets(point, made[point]["same_as"]) if t in made]
            found = [s for t in named for s in source(t, (*below, point))]
            if any(_differ(k, made[s], made[point]) for s in found for k in asked[point]):
                del made[point]["same_as"]
                found = [point]
            sources[point] = found or [point]
            return sources[point]

        for point in asked:
            source(point, ())
        return made

    def _asked(self, path: str) -> list[str]:
        """Keys of a format that overrides, or rules of a recipe file, set for a point whose `same_as` they leave."""
        asked: set[str] = set()
        for count in (self.overrides, self.own):
            found = [r.settings for r in self.rules[:count] if r.matches(path)]
            if not any("same_as" in s for s in found):
                asked |= {k for k in FORMAT_KEYS if any(k in s for s in found)}
        return sorted(asked)

    def without_effect(self, cells: Points) -> list[tuple[str, str, str]]:
        """Glob, key and kind of point for overrides whose key no matching point of `cells` understands."""
        found: list[tuple[str, str, str]] = []
        for rule in self.rules[: self.overrides]:
            matching = [p for p in _paths(cells) if rule.matches(p)]
            unknown = [k for k in rule.settings if matching and not any(k in keys_of(p) for p in matching)]
            found += [(rule.points, key, matching[0].rpartition(".")[2]) for key in unknown]
        return found

    def idle(self, cells: Points) -> list[str]:
        """What a recipe file says in vain: globs that match no point, keys that no matching point understands."""
        whole = Recipe(self.name, "", self.rules, self.own)
        missed = [f"no quantization point matches {points!r}" for points in whole.unmatched(cells)]
        return missed + [
            f"{points}.{key}: no quantization point that matches understands {key!r}"
            for points, key, _ in whole.without_effect(cells)
        ]

    def unmatched(self, cells: Points) -> list[str]:
        """Globs of overrides that match no point of any of `cells`; a recipe's own rules need not match."""
        paths = _paths(cells)
        return [r.points for r in self.rules[: self.overrides] if not any(r.matches(p) for p in paths)]


def _differ(key: str, one: Settings, other: Settings) -> bool:
    """Whether a key gives two points different formats; false and none are what is left out."""
    used = all(s.get("range", "min-max") in KEYS_OF_RULES.get(key, RULES) for s in (one, other))
    return used and (one.get(key) or None) != (other.get(key) or None)


def _paths(cells: Points) -> list[str]:
    known = cells if isinstance(cells, Mapping) else dict.fromkeys(cells, tuple(all_points()))
    return [f"{cell}.{point}" for cell, points in known.items() for point in points]


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
    _check_points(points, f"override {text!r}")
    return Rule(points, {key: _checked(key, _literal(literal.strip()), f"override {text!r}")})


def override_text(points: str, key: str, value: Any) -> str:
    """The inverse of `parse_override`, of a rule of one key."""
    if value is None:
        text = "none"
    else:
        text = (
            str(value).lower() if isinstance(value, bool) else repr(value) if isinstance(value, float) else str(value)
        )
    return f"{points}.{key}={text}"


def _check_points(points: str, where: str) -> None:
    if points.startswith(REGEX):
        try:
            re.compile(points.removeprefix(REGEX))
        except re.error as error:
            raise UsageError(
                f"{where}: {points!r} is no regular expression ({error}).",
                supported="a glob over <cell>.<point>, or re: and a regular expression",
            ) from error


def _literal(text: str) -> Any:
    if text.lower() == "none":
        return None
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (tomllib.TOMLDecodeError, RecursionError):
        return text


def _checked(key: str, value: Any, where: str) -> Any:
    if key not in KEYS:
        raise UsageError(f"{where}: unknown key {key!r}.", supported=", ".join(sorted(KEYS)))
    try:
        return KEYS[key].parse(value)
    except (ValueError, TypeError) as error:
        raise UsageError(f"{where}: {key} = {value!r}.", supported=KEYS[key].accepts) from error


def parse_recipe(text: str, source: str) -> Recipe:
    """A recipe from TOML text.

    Raises:
        UsageError: The text is no recipe; says where.
    """
    try:
        data = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise UsageError(f"{source}: not a TOML file ({error}).") from error
    unknown = sorted(set(data) - {"name", "summary", "base", "kind", "rule"})
    if unknown:
        raise UsageError(f"{source}: unknown entry {unknown[0]!r}.", supported="name, summary, base, kind, [[rule]]")
    base = _base(data.get("base"), source)
    kind = data.get("kind", base.kind if base is not None else KINDS[0])
    if kind not in KINDS:
        raise UsageError(f"{source}: kind = {kind!r}.", supported=", ".join(KINDS))
    rules = list(parse_rules(data.get("rule", []), source))
    own = len(rules)
    if base is not None:
        rules += base.rules
    return Recipe(str(data.get("name", source)), str(data.get("summary", "")), tuple(rules), kind=kind, own=own)


def parse_rules(entries: Any, source: str) -> tuple[Rule, ...]:
    """Rules from a list of tables, each with `points` and the keys that it sets.

    Raises:
        UsageError: The entries are no rules; says where.
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
        _check_points(entry["points"], where)
        settings = {k: _checked(k, v, where) for k, v in entry.items() if k != "points"}
        rules.append(Rule(entry["points"], settings))
    return tuple(rules)


def _base(name: Any, source: str) -> Recipe | None:
    """The recipe whose rules follow those of `source`: one that comes with rnnqc."""
    if name is None:
        return None
    path = resources.files("rnnqc.recipes") / f"{name}.toml"
    if not isinstance(name, str) or not re.fullmatch(r"[\w-]+", name) or not path.is_file():
        raise UsageError(f"{source}: base = {name!r}.", supported="the name of a recipe that comes with rnnqc")
    text = path.read_text(encoding="utf-8")
    return parse_recipe(text, f"{name}.toml")


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
            f"There is no recipe {name!r}.",
            supported=", ".join(sorted(held)),
            action="choose one, or name a .toml file",
        )
    return held[name]


def recipe_text(name: str) -> str:
    """The TOML text of a recipe that comes with rnnqc.

    Raises:
        UsageError: There is none of that name.
    """
    load_recipe(name)
    if name.endswith(".toml"):
        return Path(name).read_text(encoding="utf-8")
    return (resources.files("rnnqc.recipes") / f"{name}.toml").read_text(encoding="utf-8")


def builtin_recipes() -> list[Recipe]:
    """The recipes that come with rnnqc, by name."""
    return [replace(r, rules=tuple(Rule(u.points, dict(u.settings)) for u in r.rules)) for r in _builtin_recipes()]


@functools.cache
def _builtin_recipes() -> list[Recipe]:
    folder = resources.files("rnnqc.recipes")
    files = sorted((f for f in folder.iterdir() if f.name.endswith(".toml")), key=lambda f: f.name)
    return [replace(parse_recipe(f.read_text(encoding="utf-8"), f.name), own=0) for f in files]


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
