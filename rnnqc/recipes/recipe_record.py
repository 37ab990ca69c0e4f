"""The record of a lowering in the lowered model: enough to repeat it, or to repeat it with one format changed.

It is stored in `metadata_props` under `rnnqc.recipe`, as one line of JSON: the recipe with all its rules, the form,
and which statistics the scales came from.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rnnqc.errors import UsageError
from rnnqc.recipes.recipe import KINDS, Recipe
from rnnqc.recipes.rules import parse_rules

RECIPE_KEY = "rnnqc.recipe"
FLOAT = "float"


@dataclass(frozen=True)
class RecipeRecord:
    """How a model was lowered.

    Attributes:
        recipe: The recipe with the overrides of the user in front.
        form: The requested form, or "weight-only".
        unroll: Whether loops were unrolled.
        dims: Symbolic dimensions that were bound.
        statistics: Digest of the statistics of a calibration; "" if there were none.
        rest: How the weights around the recurrent layers were stored: "float" or "int8".
    """

    recipe: Recipe
    form: str
    unroll: bool = False
    dims: Mapping[str, int] = field(default_factory=dict)
    statistics: str = ""
    rest: str = FLOAT

    @property
    def text(self) -> str:
        """One line of JSON, the same for the same lowering."""
        recipe = self.recipe
        data: dict[str, Any] = {
            "name": recipe.name,
            "kind": recipe.kind,
            "overrides": recipe.overrides,
            "form": self.form,
            "rules": [{"points": r.points, **r.settings} for r in recipe.rules],
        }
        data |= {"unroll": True} if self.unroll else {}
        data |= {"dims": dict(self.dims)} if self.dims else {}
        data |= {"statistics": self.statistics} if self.statistics else {}
        data |= {"rest": self.rest} if self.rest != FLOAT else {}
        return json.dumps(data, sort_keys=True, separators=(",", ":"))


def not_applied(asked: RecipeRecord, earlier: RecipeRecord | None, nodes: Sequence[str]) -> str | None:
    """Describes nodes that were lowered earlier with other settings and stay as they are.

    Args:
        asked: The requested lowering.
        earlier: The record of the earlier lowering.
        nodes: Their names, at least one.

    Returns:
        One sentence; None if the settings are the same.
    """
    same = earlier is not None and earlier.recipe.rules == asked.recipe.rules
    if earlier is not None and same and asked.statistics in ("", earlier.statistics):
        return None
    made_with = "the model does not say with which recipe" if earlier is None else f"with {_called(earlier)}"
    return (
        f"{_called(asked)} does not apply to {len(nodes)} recurrent node(s), the first {nodes[0]!r}: they are lowered "
        f"already, {made_with}."
    )


def _called(record: RecipeRecord) -> str:
    """Names the recipe of a record, with properties that distinguish it from others of its name."""
    more = [f"{record.recipe.overrides} override(s)"] if record.recipe.overrides else []
    more += [f"statistics {record.statistics}"] if record.statistics else []
    return f"recipe {record.recipe.name!r}" + (f" ({', '.join(more)})" if more else "")


def read_record(metadata: Mapping[str, str], source: str) -> RecipeRecord | None:
    """Reads the record from the metadata of a model; None if there is none.

    Raises:
        UsageError: The entry is damaged.
    """
    if RECIPE_KEY not in metadata:
        return None
    where = f"{source}: metadata {RECIPE_KEY!r}"
    try:
        data = json.loads(metadata[RECIPE_KEY])
        name, kind, form = str(data["name"]), data["kind"], str(data["form"])
        dims = {str(k): int(v) for k, v in data.get("dims", {}).items()}
        rules, overrides = _rules(data), int(data["overrides"])
        unroll, statistics = bool(data.get("unroll")), str(data.get("statistics", ""))
        rest = str(data.get("rest", FLOAT))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise UsageError(
            f"{where} is damaged ({error!r}).",
            supported="what rnnqc writes there",
            action="lower the float model again, or remove this entry",
        ) from error
    recipe = Recipe(name, "", parse_rules(rules, where), overrides, kind)
    return RecipeRecord(recipe, form, unroll, dims, statistics, rest)


def _rules(data: Mapping[str, Any]) -> list[Any]:
    """Returns the rules of a record; raises ValueError if its kind or number of overrides is impossible."""
    rules = data["rules"]
    if data["kind"] not in KINDS or not isinstance(rules, list) or not 0 <= int(data["overrides"]) <= len(rules):
        raise ValueError("kind or rules")
    return rules
