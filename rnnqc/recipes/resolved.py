"""The recipe's settings for one quantization point, the resulting format, and a rule that gives it without data."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from rnnqc.formats.point_format import CHAINED, EMBEDDED, STATIC, PointFormat
from rnnqc.recipes.keys import RANGE_KEYS, Settings, keys_of
from rnnqc.recipes.rules import Rule, pattern_of

DERIVED = ("same_as", "share")
"""Keys that an explicit scale makes ineffective."""


@dataclass(frozen=True)
class ResolvedPoint:
    """A quantization point: the recipe's settings and the resulting format.

    Attributes:
        settings: The settings of the recipe.
        format: The format.
    """

    settings: Mapping[str, Any]
    format: PointFormat

    @property
    def source(self) -> str:
        """Where the scale comes from, for people; "" for a point without one."""
        s, held = self.settings, self.format
        if held.format is None:
            return ""
        if s.get("same_as"):
            return f"as {s['same_as']}"
        if "scale" in s:
            return "given"
        mode = s.get("mode")
        if held.mode != STATIC:
            sources = {CHAINED: "quantized values of the layer before", EMBEDDED: "quantized rows of the embedding"}
            return sources.get(held.mode or "", "each row")
        if mode in ("product", "bounded", "activation"):
            return {"product": "input and W", "bounded": "bound of the activations", "activation": "activation"}[mode]
        return f"range {s.get('range', 'min-max')}"

    def as_dict(self) -> dict[str, Any]:
        """Returns JSON-ready values: the format, its limits if it has a single scale, and the source of the scale."""
        made = self.format.as_dict()
        static = self.format.static
        made |= {"limits": list(static.range)} if static is not None and len(static.scale) == 1 else {}
        return made | ({"source": self.source} if self.source else {})

    def rule_of(self, path: str) -> Rule:
        """Returns a rule for the point `path` that gives it this format."""
        understood = keys_of(path)
        settings: Settings = {k: v for k, v in self.settings.items() if k in understood}
        given = self._given(understood)
        if self.format.is_float:
            settings = {"bits": None}
        elif given is not None:
            ended = (*RANGE_KEYS, *DERIVED)
            settings = {k: v for k, v in settings.items() if k not in ended} | given
            settings |= {k: None for k in DERIVED if self.settings.get(k) and k in understood}
        return Rule(pattern_of(path), settings)

    def _given(self, understood: Iterable[str]) -> Settings | None:
        """Returns scale, zero point and their format; None if the model alone gives them, or a rule cannot."""
        held, static = self.format, self.format.static
        if static is None or held.bound is not None or held.group_size or held.wide_channels:
            return None
        one = len(static.scale) == 1 and static.axis is None
        zeros = list(static.zero_points) if static.zero_points else static.zero_point
        values: Settings = {
            "bits": held.bits,
            "signed": static.signed,
            "narrow": static.narrow,
            "zero_point": zeros,
            "scale": static.scale[0] if one else list(static.scale),
            "rounding": static.rounding.value,
        }
        plain = {"signed": True, "narrow": False, "zero_point": 0}
        if any(values[k] != v for k, v in plain.items() if k not in understood):
            return None
        made = {k: v for k, v in values.items() if k in understood}
        if self.settings.get("mode") == "product" or self.settings.get("same_as"):
            made |= {"mode": STATIC} if "mode" in understood else {}
        return made
