"""Overrides whose formats clip the calibration data: what calibration saw at a point, against its range.

Ranges by votes or percentiles leave out rare values on purpose, and so do formats of few bits. What is told is a range
that loses much more than one that covered the values, where the recipe without the overrides does not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from rnnqc.cells.activations import Activation
from rnnqc.data.statistics import PointStatistics, Statistics
from rnnqc.errors import CompileError
from rnnqc.formats.point_format import STATIC, PointFormat
from rnnqc.formats.scales import is_power_of_two
from rnnqc.recipes.recipe import Recipe
from rnnqc.recipes.rules import override_text

Formats = Mapping[str, PointFormat]
"""Resolved formats by `<cell>.<point>`."""
RANGE_KEYS = (
    "scale", "limit", "percentile", "n_std", "max_fix_position", "range", "half_range", "zero_point", "signed", "bits",
    "levels", "same_as", "share", "symmetric", "narrow", "pow2", "scale_bits", "mode",
)  # fmt: skip
"""Keys of overrides that can make a range small, the most likely cause first; bits where a scale is given."""
CLIPS = 1e-3
"""Share of values beyond the range from which on a point is said to clip: percentiles leave out less on purpose."""
LOST, MUCH = 1e-3, 1e-2
"""What clipping has to lose, as a share of the power of the values or of what an activation makes of them, to be told:
less than 30 dB are left. Beyond the second, how few values they are does not matter."""
WORSE = 4.0
"""How much more noise clipping has to make than a range that covers the values, or than the recipe's own: 6 dB."""


@dataclass(frozen=True)
class Clipping:
    """A point whose range an override makes too small.

    Attributes:
        point: `<cell>.<point>`.
        override: As `--set` takes it.
        key: Of the override.
        low: Lowest number that the format represents.
        high: Highest number.
        min: Smallest value of the calibration data.
        max: Largest value.
        share: Share of the values that lie beyond.
        lost: Noise that clipping makes of the values, over their power; of a value that an activation alone uses, of
            what the activation makes of it.
    """

    point: str
    override: str
    key: str
    low: float
    high: float
    min: float
    max: float
    share: float
    lost: float


def find_clipping(
    recipe: Recipe,
    formats: Formats,
    statistics: Statistics | None,
    activations: Mapping[str, Activation],
    resolve: Callable[[Recipe], Formats],
    sources: Mapping[str, str] | None = None,
) -> list[Clipping]:
    """Points whose formats clip because of an override, or of a rule of a recipe file.

    Args:
        recipe: What the formats follow from.
        formats: Of the points.
        statistics: Of the calibration; without, nothing is known.
        activations: Of points whose values nothing but an activation uses.
        resolve: Formats by another recipe.
        sources: The points that others take their formats from, by these.
    """
    mine = max(recipe.overrides, recipe.own)
    if statistics is None or not mine:
        return []
    seen = {p: s for p, s in statistics.points.items() if p in formats}
    lost = {p: _loss(formats[p], s, activations.get(p)) for p, s in seen.items()}
    found = {p: loss for p, loss in lost.items() if loss[1] > MUCH or (loss[1] > LOST and loss[0] > CLIPS)}
    named = {p: _cause(recipe, mine, (p, (sources or {}).get(p, p))) for p in found}
    if not any(named.values()):
        return []
    own = replace(recipe, rules=recipe.rules[mine + recipe.held :], overrides=0, own=0, held=0)
    try:
        usual = resolve(own)
    except CompileError:
        usual = {}
    made = []
    for point, (share, noise) in found.items():
        cause, values = named[point], seen[point]
        without = _loss(usual[point], values, activations.get(point))[1] if point in usual else 0.0
        if cause is not None and noise > WORSE * without:
            low, high = formats[point].complete.range
            made.append(Clipping(point, *cause, low, high, values.min, values.max, share, noise))
    return made


def clipping_warnings(found: Iterable[Clipping]) -> list[str]:
    """A sentence or two for each override, about the point that loses most."""
    by_override: dict[str, list[Clipping]] = {}
    for clipping in found:
        by_override.setdefault(clipping.override, []).append(clipping)
    return [_text(max(group, key=lambda c: c.lost), len(group) - 1) for group in by_override.values()]


def _text(c: Clipping, others: int) -> str:
    more = f" and at {others} other point{'s' if others > 1 else ''}" if others else ""
    return (
        f"override {c.override!r} clips the calibration data at {c.point!r}{more}. "
        f"Found: a range from {c.low:.4g} to {c.high:.4g}; the values reach from {c.min:.4g} to {c.max:.4g}, and "
        f"{100.0 * c.share:.2g} % of them lie beyond. Resolution: {_action(c)}."
    )


def _action(c: Clipping) -> str:
    times = max(c.max / c.high if c.high > 0.0 else 1.0, c.min / c.low if c.low < 0.0 else 1.0)
    bound = max(abs(c.min), abs(c.max))
    ways = {
        "scale": f", or give a scale {times:.2g} times as large",
        "limit": f", or give a limit of {bound:.4g} or more",
        "max_fix_position": ", or give a lower max_fix_position",
        "signed": ", or give signed = true",
        "bits": ", or give more bits",
    }
    ways |= dict.fromkeys(("range", "percentile", "n_std", "half_range"), ", or give range = min-max")
    return "leave the override out" + ways.get(c.key, "")


def _loss(point: PointFormat, values: PointStatistics, activation: Activation | None) -> tuple[float, float]:
    """Share of the values beyond the range, and the noise of clipping them over their power.

    No noise where the range is one of data (a row), or where one that covers the values were not clearly better.
    """
    held = point.static if point.mode == STATIC else None
    if held is None or len(held.scale) != 1:
        return 0.0, 0.0
    (low, high), histogram = held.range, values.histogram
    step = max(held.scale[0], histogram.width)
    if values.min >= low - step and values.max <= high + step:
        return 0.0, 0.0
    x = np.clip(histogram.centers, values.min, values.max)
    kept = np.clip(x, low, high)
    beyond = np.abs(x - kept) > step
    counts = histogram.counts.astype(np.float64)
    share = float(counts[beyond].sum() / counts.sum())
    a, b = (x, kept) if activation is None else (activation(x), activation(kept))
    noise = float((counts * np.square(np.where(beyond, a - b, 0.0))).sum() / counts.sum())
    power = float((counts * np.square(a)).sum() / counts.sum())
    covering = (max(values.max, 0.0) - min(values.min, 0.0)) / 2.0**held.bits
    covering *= 2.0 if is_power_of_two(held.scale[0]) else 1.0
    return share, noise / power if power > 0.0 and noise > WORSE * covering**2 / 12.0 else 0.0


def _cause(recipe: Recipe, mine: int, paths: Iterable[str]) -> tuple[str, str] | None:
    """The override that the range of a point follows from, and its key."""
    for path in dict.fromkeys(paths):
        known: dict[str, int] = {}
        for number, rule in enumerate(recipe.rules):
            if rule.matches(path):
                for key in rule.settings:
                    known.setdefault(key, number)
        for key in RANGE_KEYS:
            if known.get(key, mine) < mine and (key != "bits" or "scale" in known):
                rule = recipe.rules[known[key]]
                return override_text(rule.points, key, rule.settings[key]), key
    return None
