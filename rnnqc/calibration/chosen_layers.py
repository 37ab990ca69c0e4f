"""Selects the cells that a calibration measures, by name."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from rnnqc.calibration.observation import Task
from rnnqc.errors import UsageError
from rnnqc.recipes.rules import check_points, matches


def layer_patterns(layers: Iterable[str]) -> list[str]:
    """Checks the patterns in `layers` and returns them.

    Raises:
        UsageError: It is a single text, or one is not a regular expression.
    """
    if isinstance(layers, str):
        raise UsageError(f"layers = {layers!r} is one text.", supported="a list of globs such as '*encoder*'")
    patterns = list(layers)
    for pattern in patterns:
        check_points(pattern, "layers (--layers)", "names of cells")
    return patterns


def only_layers(task: Task, patterns: Sequence[str]) -> Task:
    """Restricts the task to cells that a pattern matches; without patterns it stays unchanged.

    Raises:
        UsageError: A pattern matches no cell.
    """
    if not patterns:
        return task
    for pattern in patterns:
        if not any(matches(pattern, name) for name in task.sites):
            raise UsageError(
                f"layers (--layers) {pattern!r} matches no cell.",
                supported=f"globs over {', '.join(sorted(task.sites))}, or re: and a regular expression",
                action="correct the pattern",
            )
    sites = {name: site for name, site in task.sites.items() if any(matches(p, name) for p in patterns)}
    return replace(task, sites=sites, values=tuple(v for v in task.values if v.cell in sites))
