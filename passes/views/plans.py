"""Searches for the fewest operators that produce all outputs of a region."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from rnnqc.ir import Node
from rnnqc.passes.views.moves import Made, Source, Table, View, cost
from rnnqc.passes.views.regions import Region, moved
from rnnqc.passes.views.several_sources import from_any, parts_of

WORTH = 512
"""Elements that may be copied for each operator that goes: copying them takes about as long as calling it."""
_FEW = 8
"""Outputs whose pairs are looked at."""
Views = tuple[View | None, ...]


@dataclass(frozen=True)
class Plan:
    """The replacement of a region.

    Attributes:
        views: The new expression of each output; None for one that stays as before.
        kept: The operators that stay for the latter.
    """

    views: Views
    kept: Sequence[Node]


def make_plan(region: Region) -> Plan | None:
    """Returns a plan with fewer operators than the region; None if none is found."""
    if not _may_save(region):
        return None
    sources = [View(Source(k), table) for k, table in enumerate(region.starts)]
    views = _with_parts(region, sources, _one_by_one(region, sources))
    kept = needed_nodes(region, [k for k, v in enumerate(views) if v is None])
    count, copied, _ = cost(v for v in views if v is not None)
    saved = len(region.nodes) - count - len(kept) - _identities(region, views)
    copied += copied_by(region, kept)
    if saved <= 0 or copied > region.copied + WORTH * saved or not any(views):  # unused operators are saved, too
        return None
    return Plan(views, kept)


def _may_save(region: Region) -> bool:
    """Whether fewer operators are possible: each output needs one, unless it equals a value or is part of a Split.

    This avoids futile searches, for example for two overlapping halves of a table.
    """
    tables = region.tables
    if len(region.nodes) > len(tables) or len(tables) > _FEW:
        return True
    pairs = list(itertools.combinations(tables, 2))
    same = any(np.array_equal(t, s) for t in tables for s in region.starts)
    return same or any(np.array_equal(a, b) or _disjoint([a, b]) for a, b in pairs)


def _identities(region: Region, views: Views) -> int:
    """The number of graph outputs that equal a source or another output; Identities for other outputs are removed."""
    found, others = 0, set[Made]()
    for view, given in zip(views, region.given, strict=True):
        if view is None:
            continue
        found += given and (isinstance(view.made, Source) or view.made in others)
        others.add(view.made)
    return found


def _one_by_one(region: Region, sources: Sequence[View]) -> Views:
    """The cheapest view for each output separately; later ones may use earlier ones that need no other source."""
    views: list[View | None] = []
    for table, reach in zip(region.tables, region.reach, strict=True):
        earlier = [v for v, r in zip(views, region.reach, strict=False) if v is not None and r <= reach]
        views.append(from_any(table, [s for k, s in enumerate(sources) if k in reach], earlier))
    return tuple(views)


def _with_parts(region: Region, sources: Sequence[View], views: Views) -> Views:
    """The views, with Splits replacing several views of one source where that is cheaper."""
    for source in sources:
        for chosen in _bundles(region, source, views):
            for pieces in parts_of(source, [region.tables[k] for k in chosen]):
                made = dict(zip(chosen, pieces, strict=True))
                other = tuple(made.get(k, v) for k, v in enumerate(views))
                if cost(v for v in other if v is not None) < cost(v for v in views if v is not None):
                    views = other
    return views


def _bundles(region: Region, source: View, views: Views) -> Iterator[list[int]]:
    """Outputs with disjoint elements of a single source: all of them, and those of each shape."""
    low, high = int(source.table.min()), int(source.table.max())
    of_source = [
        k for k, t in enumerate(region.tables)
        if views[k] is not None and low <= t.min() and t.max() <= high and t.size < source.table.size
    ]  # fmt: skip
    shapes = dict.fromkeys(region.tables[k].shape for k in of_source)
    seen: list[list[int]] = []
    for group in [of_source, *([k for k in of_source if region.tables[k].shape == s] for s in shapes)]:
        if len(group) > 1 and group not in seen and _disjoint([region.tables[k] for k in group]):
            seen.append(group)
            yield group


def _disjoint(tables: Sequence[Table]) -> bool:
    whole = np.concatenate([t.ravel() for t in tables])
    taken = np.zeros(int(whole.max(initial=-1)) + 1, np.bool_)
    taken[whole] = True
    return int(np.count_nonzero(taken)) == whole.size


def needed_nodes(region: Region, outputs: Sequence[int]) -> list[Node]:
    """Returns the operators of a region that some of its outputs need."""
    wanted = {id(region.outputs[k]) for k in outputs}
    found: list[Node] = []
    for node in reversed(region.nodes):
        if any(id(v) in wanted for v in node.outputs):
            found.append(node)
            wanted |= {id(v) for v in moved(node)}
    return found[::-1]


def copied_by(region: Region, nodes: Sequence[Node]) -> int:
    """Returns the number of elements of a region's outputs that some of its operators produce."""
    made = {id(v) for n in nodes for v in n.outputs}
    return sum(t.size for v, t in zip(region.outputs, region.tables, strict=True) if id(v) in made)
