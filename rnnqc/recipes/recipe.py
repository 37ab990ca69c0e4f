"""Recipes: the number format of every quantization point, as data.

A recipe is a TOML file of rules. A rule names quantization points by a glob over `<cell>.<point>` (for example
`encoder/lstm.forward.W.weight`), or by `re:` and a regular expression for the whole of it, and sets keys. For each
point and key the first rule that sets it applies; overrides (`--set 'encoder/*.weight.bits=4'`) precede all rules.
"""

from __future__ import annotations

import functools
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Any

from rnnqc.cells.types import all_points
from rnnqc.counterparts import RECIPES, or_counterpart
from rnnqc.errors import UsageError
from rnnqc.recipes.keys import FORMAT_KEYS, KEYS_OF_RULES, RULES, Settings, keys_of
from rnnqc.recipes.rules import Rule, parse_override, parse_rules, rules_digest, without_old_scale

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_BUILTIN = resources.files("rnnqc.recipes") / "builtin"
Points = Sequence[str] | Mapping[str, Sequence[str]]
"""Names of cells; as a mapping, with the names of the points that count."""
KINDS = ("cells", "weight-only")
MOST_MISSED = 3
"""The most rules without a point, and cells, that one message names."""
SAVED = ("statistics", "origin", "digest")
"""Entries that formats files have in addition to rules."""


@dataclass(frozen=True)
class Recipe:
    """A named list of rules.

    Attributes:
        name: As `--recipe` takes it.
        summary: One line.
        rules: For each point and key, the first rule that sets it applies.
        overrides: The number of leading rules that are overrides of the user.
        kind: "cells" (recurrent layers become quantized cells) or "weight-only" (they stay, on quantized weights).
        own: For a recipe file: the number of leading rules that are its own rather than its base's.
        held: The number of rules after the overrides that repeat the scales of a model that is lowered again.
        rest: Whether rules also apply to operators around the recurrent layers.
        statistics: For a formats file: the file with the statistics that they came from; "" for none.
        origin: For a formats file: the record of the lowering that it came from, unless it was edited; "" otherwise.
        formats: Whether it is a formats file. An override of `bits` removes the scale that such a file gives a point.
    """

    name: str
    summary: str
    rules: tuple[Rule, ...]
    overrides: int = 0
    kind: str = "cells"
    own: int = 0
    held: int = 0
    rest: bool = False
    statistics: str = ""
    origin: str = ""
    formats: bool = False

    def with_overrides(self, overrides: Iterable[str]) -> Recipe:
        """Returns this recipe with `PATH=VALUE` overrides in front; the first that matches wins.

        Raises:
            UsageError: An override is malformed or names an unknown key.
        """
        parsed = tuple(parse_override(o) for o in override_texts(overrides))
        if not parsed:
            return self
        own = self.own + len(parsed) if self.own else 0
        rules = self.rules
        if self.formats:
            rules = tuple(without_old_scale(r, (*parsed, *rules[: self.overrides])) for r in rules)
        return replace(self, rules=(*parsed, *rules), overrides=len(parsed) + self.overrides, own=own, origin="")

    @property
    def of_user(self) -> int:
        """The number of leading rules that are the user's: overrides, and the rules of a recipe file."""
        return max(self.overrides, self.own)

    def settings(self, path: str) -> Settings:
        """Returns all settings of the quantization point `path`."""
        if path not in self._known_settings:
            result: Settings = {}
            for rule in self.rules:
                if rule.matches(path):
                    for key, value in rule.settings.items():
                        result.setdefault(key, value)
            self._known_settings[path] = result
        return dict(self._known_settings[path])

    @functools.cached_property
    def _known_settings(self) -> dict[str, Settings]:
        """Cache of settings by point."""
        return {}

    def without_override(self, number: int) -> Recipe:
        """Returns this recipe without one of its overrides."""
        rules = (*self.rules[:number], *self.rules[number + 1 :])
        made = replace(self, rules=rules, overrides=self.overrides - 1, own=max(0, self.own - 1))
        dropped = self.rules[number]
        made._known_settings.update({p: s for p, s in self._known_settings.items() if not dropped.matches(p)})
        return made

    def settings_of_points(
        self, cell: str, points: Iterable[str], targets: Callable[[str, str], Iterable[str]]
    ) -> dict[str, Settings]:
        """Returns the settings of the points of a cell.

        If an override or a rule of a recipe file changes the format of a point, the recipe's own `same_as` of it no
        longer applies, unless the points that it follows get the same format (with `*.bits=16`, for example).

        Args:
            cell: Its name.
            points: Names of its points.
            targets: Returns the points that a point follows, from its name and the value of `same_as`.
        """
        made = {p: self.settings(f"{cell}.{p}") for p in points}
        asked = {p: self._asked(f"{cell}.{p}") for p in made if made[p].get("same_as")}
        sources: dict[str, list[str]] = {}

        def source(point: str, below: tuple[str, ...]) -> list[str]:
            """Returns the points with formats of their own that `point` follows."""
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
        """Returns format keys that overrides, or rules of a recipe file, set for a point without setting `same_as`."""
        asked: set[str] = set()
        for count in (self.overrides, self.own):
            found = [r.settings for r in self.rules[:count] if r.matches(path)]
            if not any("same_as" in s for s in found):
                asked |= {k for k in FORMAT_KEYS if any(k in s for s in found)}
        return sorted(asked)

    def without_effect(self, cells: Points) -> list[tuple[str, str, str]]:
        """Returns glob, key and kind of point for overrides whose key no matching point of `cells` understands."""
        found: list[tuple[str, str, str]] = []
        for rule in self.rules[: self.overrides]:
            matching = [p for p in _paths(cells) if rule.matches(p)]
            unknown = [k for k in rule.settings if matching and not any(k in keys_of(p) for p in matching)]
            found += [(rule.points, key, matching[0].rpartition(".")[2]) for key in unknown]
        return found

    def idle(self, cells: Points, elsewhere: Iterable[str] = ()) -> list[str]:
        """Describes rules of a recipe file without effect: globs and keys that match no point.

        Args:
            cells: The cells.
            elsewhere: Paths of points outside cells; every key is accepted for them.
        """
        whole = Recipe(self.name, "", self.rules, self.own)
        missed = whole.unmatched(cells, elsewhere)
        texts = [f"no quantization point matches {points!r}" for points in missed]
        if len(missed) > MOST_MISSED:
            named = ", ".join(map(repr, missed[:MOST_MISSED]))
            more, there = len(missed) - MOST_MISSED, ", ".join(map(repr, list(cells)[:MOST_MISSED]))
            text = f"no quantization point matches {len(missed)} of its rules: {named} and {more} more"
            texts = [f"{text}; the cells of this model are {there}"]
        return texts + [
            f"{points}.{key}: no quantization point that matches understands {key!r}"
            for points, key, _ in whole.without_effect(cells)
        ]

    def unmatched(self, cells: Points, elsewhere: Iterable[str] = ()) -> list[str]:
        """Returns globs of overrides that match no point of `cells` or `elsewhere`; the recipe's own need not match."""
        paths = [*_paths(cells), *elsewhere]
        return [r.points for r in self.rules[: self.overrides] if not any(r.matches(p) for p in paths)]


def _differ(key: str, one: Settings, other: Settings) -> bool:
    """Whether a key gives two points different formats; false and none equal a missing key."""
    used = all(s.get("range", "min-max") in KEYS_OF_RULES.get(key, RULES) for s in (one, other))
    return used and (one.get(key) or None) != (other.get(key) or None)


def _paths(cells: Points) -> list[str]:
    known = cells if isinstance(cells, Mapping) else dict.fromkeys(cells, tuple(all_points()))
    return [f"{cell}.{point}" for cell, points in known.items() for point in points]


def parse_recipe(text: str, source: str) -> Recipe:
    """Parses a recipe from TOML text.

    Raises:
        UsageError: The text is not a recipe; the message names the place.
    """
    try:
        data = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise UsageError(f"{source}: not a TOML file ({error}).") from error
    unknown = sorted(set(data) - {"name", "summary", "base", "kind", "rule", *SAVED})
    if unknown:
        raise UsageError(f"{source}: unknown entry {unknown[0]!r}.", supported="name, summary, base, kind, [[rule]]")
    base = _base(data.get("base"), source)
    kind = data.get("kind", base.kind if base is not None else KINDS[0])
    if kind not in KINDS:
        raise UsageError(f"{source}: kind = {kind!r}.", supported=", ".join(KINDS))
    saved = {k: data.get(k, "") for k in SAVED}
    if not all(isinstance(v, str) for v in saved.values()):
        raise UsageError(
            f"{source}: {', '.join(SAVED)} are no texts.", supported="what `rnnqc lower --save-formats` writes"
        )
    rules = list(parse_rules(data.get("rule", []), source))
    own, unedited = len(rules), rules_digest(rules) == saved["digest"]
    if base is not None:
        rules += base.rules
    return Recipe(
        str(data.get("name", source)), str(data.get("summary", "")), tuple(rules), kind=kind, own=own,
        statistics=saved["statistics"], origin=saved["origin"] if unedited else "", formats=bool(saved["digest"]),
    )  # fmt: skip


def _base(name: Any, source: str) -> Recipe | None:
    """Returns the built-in recipe whose rules follow those of `source`."""
    if name is None:
        return None
    path = _BUILTIN / f"{name}.toml"
    if not isinstance(name, str) or not re.fullmatch(r"[\w-]+", name) or not path.is_file():
        raise UsageError(f"{source}: base = {name!r}.", supported="the name of a recipe that comes with rnnqc")
    return parse_recipe(_text(name), path.name)


def override_texts(overrides: Iterable[str]) -> tuple[str, ...]:
    """Returns a list of overrides as a tuple.

    Raises:
        UsageError: It is a single text.
    """
    if isinstance(overrides, str):
        raise UsageError(
            f"overrides = {overrides!r} is one text.", supported="a list of texts such as '*.weight.bits=4'"
        )
    return tuple(overrides)


def load_recipe(given: str | os.PathLike[str]) -> Recipe:
    """Loads a built-in recipe, or one from a `.toml` file.

    Raises:
        UsageError: There is no such recipe or file.
    """
    try:
        name = os.fspath(given)
    except TypeError as error:
        raise UsageError(
            f"recipe is a {type(given).__name__}.",
            supported="a name, a .toml file, a Recipe",
            action="data is given as calibration=...",
        ) from error
    if name.endswith(".toml"):
        try:
            recipe = parse_recipe(Path(name).read_text(encoding="utf-8"), name)
            beside = str(Path(name).parent / recipe.statistics) if recipe.statistics else ""
            return replace(recipe, statistics=beside)
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"{name}: cannot be read ({error}).") from error
    held = {r.name: r for r in _builtin_recipes()}
    if name not in held:
        raise UsageError(
            f"There is no recipe {name!r}.",
            supported=", ".join(sorted(held)),
            action=or_counterpart("choose one, or name a .toml file", name, RECIPES),
        )
    return _own_copy(held[name])


def is_builtin(recipe: Recipe) -> bool:
    """Whether `--recipe` with its name selects this recipe, overrides aside: a recipe file may have any name."""
    rules = recipe.rules[recipe.overrides :]
    return any((r.name, r.kind, r.rules) == (recipe.name, recipe.kind, rules) for r in _builtin_recipes())


def recipe_text(name: str) -> str:
    """Returns the TOML text of a built-in recipe.

    Raises:
        UsageError: There is none of that name.
    """
    load_recipe(name)
    if name.endswith(".toml"):
        return Path(name).read_text(encoding="utf-8")
    return _text(name)


def builtin_recipes() -> list[Recipe]:
    """Returns the built-in recipes, by name."""
    return [_own_copy(r) for r in _builtin_recipes()]


def _own_copy(recipe: Recipe) -> Recipe:
    return replace(recipe, rules=tuple(Rule(u.points, dict(u.settings)) for u in recipe.rules))


@functools.cache
def _builtin_recipes() -> list[Recipe]:
    files = sorted(f.name for f in _BUILTIN.iterdir() if f.name.endswith(".toml"))
    names = [f.removesuffix(".toml") for f in files]
    return [replace(parse_recipe(_text(name), name), name=name, own=0) for name in names]


def _text(name: str) -> str:
    """The TOML text of the built-in recipe `name`, which is the name of its file."""
    return (_BUILTIN / f"{name}.toml").read_text(encoding="utf-8")
