"""Formats that clip the calibration data: what calibration saw at a point, against its range.

Ranges by votes or percentiles leave out rare values on purpose, and so do formats of few bits. Told of overrides is a
range that loses much more than one that covered the values, where the recipe without them does not; of a recipe by
itself, one that loses most of the signal, where its own bits could hold it.
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
RUINED = 0.1
"""The same share where the recipe itself is to blame: less than 10 dB are left."""
FEW_BITS = 8
WORSE = 4.0
"""How much more noise clipping has to make than a range that covers the values, or than the recipe's own: 6 dB."""


@dataclass(frozen=True)
class Clipping:
    """A point whose range is too small.

    Attributes:
        point: `<cell>.<point>`.
        override: The override that makes it so, as `--set` takes it; "" where the recipe does by itself.
        key: Of the override.
        low: Lowest number that the format represents.
        high: Highest number.
        min: Smallest value of the calibration data.
        max: Largest value.
        share: Share of the values that lie beyond.
        lost: Noise that clipping makes of the values, over their power; of a value that an activation alone uses, of
            what the activation makes of it.
        remedy: An override with which the range covers the values, where the recipe is to blame.
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
    remedy: str = ""


def find_clipping(
    recipe: Recipe,
    formats: Formats,
    statistics: Statistics | None,
    activations: Mapping[str, Activation],
    resolve: Callable[[Recipe], Formats],
    sources: Mapping[str, str] | None = None,
) -> list[Clipping]:
    """Points whose formats clip because of an override, or of a rule of a recipe file; and those that lose nearly all.

    Args:
        recipe: What the formats follow from.
        formats: Of the points.
        statistics: Of the calibration; without, nothing is known.
        activations: Of points whose values nothing but an activation uses.
        resolve: Formats by another recipe.
        sources: The points that others take their formats from, by these.
    """
    if statistics is None:
        return []
    mine = recipe.of_user
    seen = _Seen({p: s for p, s in statistics.points.items() if p in formats}, activations)
    lost = seen.losses(formats)
    found = {p: loss for p, loss in lost.items() if loss[1] > MUCH or (loss[1] > LOST and loss[0] > CLIPS)}
    causes = {p: _cause(recipe, mine, (p, (sources or {}).get(p, p))) for p in found}
    own = replace(recipe, rules=recipe.rules[mine + recipe.held :], overrides=0, own=0, held=0)
    usual = seen.losses(_resolved(resolve, own)) if any(causes.values()) else {}
    made = [
        seen.clipping(p, formats, found[p], *cause)
        for p, cause in causes.items()
        if cause is not None and found[p][1] > WORSE * usual.get(p, (0.0, 0.0))[1]
    ]
    ruined = [p for p, (_, noise) in found.items() if noise > RUINED and causes[p] is None]
    for remedy, points in _remedies(ruined, formats).items():
        after = seen.losses(_resolved(resolve, recipe.with_overrides([remedy])))
        mended = [p for p in points if p in after and found[p][1] > WORSE * after[p][1]]
        made += [replace(seen.clipping(p, formats, found[p]), remedy=remedy) for p in mended]
    return made


@dataclass(frozen=True)
class _Seen:
    """The statistics of points, and the activations of those whose values nothing but an activation uses."""

    points: Mapping[str, PointStatistics]
    activations: Mapping[str, Activation]

    def losses(self, formats: Formats) -> dict[str, tuple[float, float]]:
        """What formats lose at each point: see `_loss`."""
        return {p: _loss(formats[p], s, self.activations.get(p)) for p, s in self.points.items() if p in formats}

    def clipping(
        self, point: str, formats: Formats, loss: tuple[float, float], override: str = "", key: str = ""
    ) -> Clipping:
        """The clipping of a point that loses so much."""
        values = self.points[point]
        return Clipping(point, override, key, *formats[point].complete.range, values.min, values.max, *loss)


def _resolved(resolve: Callable[[Recipe], Formats], recipe: Recipe) -> Formats:
    """Formats by a recipe; none if it has no format somewhere."""
    try:
        return resolve(recipe)
    except CompileError:
        return {}


def _remedies(points: Iterable[str], formats: Formats) -> dict[str, list[str]]:
    """Overrides for ranges that cover all states of a kind, and which of some points they are for.

    Of states alone: an activation softens what clipping does to other sums, and recipes count on that. And not of few
    bits, whose coarse steps add up from step to step of time.
    """
    found: dict[str, list[str]] = {}
    for point, state in ((p, s) for p in points for s in ("cell_state", "hidden_state") if f".{s}" in p):
        if formats[point].integers.bits <= FEW_BITS:
            continue
        covering = "pow2-max" if is_power_of_two(formats[point].complete.scale[0]) else "min-max"
        found.setdefault(f"*.{state}*.range={covering}", []).append(point)
    return found


def clipping_warnings(found: Iterable[Clipping]) -> list[str]:
    """A sentence or two for each override, or for each that would mend it, about the point that loses most."""
    by_override: dict[str, list[Clipping]] = {}
    for clipping in found:
        by_override.setdefault(clipping.override or clipping.remedy, []).append(clipping)
    return [_text(max(group, key=lambda c: c.lost), len(group) - 1) for group in by_override.values()]


def _text(c: Clipping, others: int) -> str:
    more = f" and at {others} other point{'s' if others > 1 else ''}" if others else ""
    return (
        f"{'the recipe' if c.remedy else f'override {c.override!r}'} clips the calibration data at {c.point!r}{more}. "
        f"Found: a range from {c.low:.4g} to {c.high:.4g}; the values reach from {c.min:.4g} to {c.max:.4g}, and "
        f"{100.0 * c.share:.2g} % of them lie beyond. Resolution: {_action(c)}."
    )


def _action(c: Clipping) -> str:
    if c.remedy:
        return f"--set '{c.remedy}'"
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
