"""Finds formats that clip the calibration data: compares the values seen at a point with its range.

Ranges by votes or percentiles leave out rare values on purpose, and so do formats of few bits. So an override is
reported only if its range loses much more than one that covers the values, and the recipe without it does not. A
recipe itself is reported only if it loses most of the signal although its bits could hold it.
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
"""Keys of overrides that can make a range small, the likeliest cause first; bits only where a scale is given."""
CLIPS = 1e-3
"""A point clips if at least this share of its values is beyond the range; percentiles leave out less on purpose."""
LOST, MUCH = 1e-3, 1e-2
"""Noise of clipping that is reported, over the power of the values or of an activation's result: less than 30 dB.
From the second bound on, it is reported however few the clipped values are.
"""
RUINED = 0.1
"""The share that counts if the recipe itself is to blame: less than 10 dB."""
FEW_BITS = 8
WORSE = 4.0
"""Clipping must make this many times the noise of a covering range, or of the recipe's own: 6 dB."""


@dataclass(frozen=True)
class Clipping:
    """A point whose range is too small.

    Attributes:
        point: `<cell>.<point>`.
        override: The override that causes it, as `--set` takes it; "" if the recipe itself does.
        key: The key of the override.
        low: Lowest number that the format represents.
        high: Highest number.
        min: Smallest value of the calibration data.
        max: Largest value.
        share: Share of the values beyond the range.
        lost: Noise of clipping over the power of the values; if only an activation reads the values, of its result.
        remedy: An override with a range that covers the values, if the recipe is to blame.
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
    """Finds points that clip because of an override or a rule of a recipe file, and points that lose nearly all.

    Args:
        recipe: The recipe that gave the formats.
        formats: Formats of the points.
        statistics: Statistics of the calibration; without them nothing is found.
        activations: Activations of points whose values only the activation reads.
        resolve: Returns the formats by another recipe.
        sources: Maps points to the points that they take their formats from.
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
    """The statistics of points, and the activations of points whose values only an activation reads."""

    points: Mapping[str, PointStatistics]
    activations: Mapping[str, Activation]

    def losses(self, formats: Formats) -> dict[str, tuple[float, float]]:
        """Returns the clipping loss of formats at each point (see `_loss`)."""
        return {p: _loss(formats[p], s, self.activations.get(p)) for p, s in self.points.items() if p in formats}

    def clipping(
        self, point: str, formats: Formats, loss: tuple[float, float], override: str = "", key: str = ""
    ) -> Clipping:
        """Makes the record of a clipped point."""
        values = self.points[point]
        return Clipping(point, override, key, *formats[point].complete.range, values.min, values.max, *loss)


def _resolved(resolve: Callable[[Recipe], Formats], recipe: Recipe) -> Formats:
    """Returns the formats by a recipe; empty if it lacks a format somewhere."""
    try:
        return resolve(recipe)
    except CompileError:
        return {}


def _remedies(points: Iterable[str], formats: Formats) -> dict[str, list[str]]:
    """Returns overrides with ranges that cover all states of a kind, each with the points it is for.

    Only for states: activations soften clipping of other sums, and recipes rely on that. And not for few bits, whose
    coarse steps accumulate over time.
    """
    found: dict[str, list[str]] = {}
    for point, state in ((p, s) for p in points for s in ("cell_state", "hidden_state") if f".{s}" in p):
        if formats[point].integers.bits <= FEW_BITS:
            continue
        covering = "pow2-max" if is_power_of_two(formats[point].complete.scale[0]) else "min-max"
        found.setdefault(f"*.{state}*.range={covering}", []).append(point)
    return found


def clipping_warnings(found: Iterable[Clipping]) -> list[str]:
    """Describes each override, or each remedy, in a sentence or two about the point that loses most."""
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
    """Returns the share of values beyond the range, and the noise of clipping them over their power.

    The noise is 0 for dynamic ranges, and if a range that covers the values would not be clearly better.
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
    """Returns the override that sets the range of a point, and its key."""
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
