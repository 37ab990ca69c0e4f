"""Selects calibration samples, and cuts independent ones along the batch into the pieces that run."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx

from rnnqc.data.feeds import Feeds, true_inputs
from rnnqc.data.npz import NpzFolder
from rnnqc.data.streaming import Piece
from rnnqc.errors import CompileError, UsageError


@dataclass(frozen=True)
class Selection:
    """The samples to take.

    Attributes:
        limit: How many; all by default.
        seed: Take them at random; the first ones by default.
    """

    limit: int | None = None
    seed: int | None = None

    def __post_init__(self) -> None:
        if self.limit is not None and self.limit < 1:
            raise UsageError(f"{self.limit} samples.", supported="1 or more", action="choose a larger number")
        if self.seed is not None and self.limit is None:
            raise UsageError(
                "A seed chooses samples, and all are taken.",
                supported="a seed together with a number of samples",
                action="say how many samples (--num-samples), or leave the seed out",
            )
        if self.seed is not None and self.seed < 0:
            raise UsageError(f"seed {self.seed}.", supported="0 or more", action="choose another seed")


def batch_axes(proto: onnx.ModelProto, batches: Iterable[int | str | None]) -> dict[str, int] | None:
    """Returns the axis of each input along which samples can be cut apart; None if that is unknown.

    All recurrent layers must have the same symbolic batch dimension. Every input must have it once, or have only fixed
    dimensions and symbols that inputs with the batch have.

    Args:
        proto: The model.
        batches: The batch dimension of each recurrent layer.
    """
    names = set(batches)
    name = names.pop() if len(names) == 1 else None
    if not isinstance(name, str):
        return None
    axes: dict[str, int] = {}
    known: set[str] = set()
    others: set[str] = set()
    for value in true_inputs(proto):
        symbols = ["" if d.HasField("dim_value") else d.dim_param or "?" for d in value.type.tensor_type.shape.dim]
        if symbols.count(name) > 1 or "?" in symbols or not value.type.tensor_type.HasField("shape"):
            return None
        if name in symbols:
            axes[value.name] = symbols.index(name)
            known.update(symbols)
        else:
            others.update(filter(None, symbols))
    return axes if axes and others <= known else None


def sample_count(feeds: Iterable[Any], axes: Mapping[str, int] | None, limit: int | None) -> int | None:
    """Returns the number of samples, if it can be known without taking one."""
    count = None
    if isinstance(feeds, list) and all(isinstance(f, Mapping) for f in feeds):
        rows = [next((np.shape(f[k])[a : a + 1] for k, a in (axes or {}).items() if k in f), ()) for f in feeds]
        count = sum(r[0] if r else 1 for r in rows)
    elif isinstance(feeds, NpzFolder) and axes is None:
        count = len(feeds)
    return count if limit is None or count is None else min(count, limit)


def batches(
    feeds: Iterable[Feeds],
    axes: Mapping[str, int] | None,
    selection: Selection,
    most: Callable[[Feeds], int],
) -> Iterator[Piece]:
    """Yields independent samples, cut along the batch if there is one.

    Args:
        feeds: Checked feeds.
        axes: Batch axes of the inputs; None where a whole feed is one sample.
        selection: Which samples; rows of the batch count.
        most: Returns how many samples of a feed may run at once.
    """
    first = 0
    for feed, chosen in _chosen(feeds, axes, selection):
        size = max(1, most(feed))
        for start in range(0, len(chosen), size):
            rows = chosen[start : start + size]
            yield Piece(_rows(feed, axes, rows), first, len(rows))
            first += len(rows)


def joined_batches(
    feeds: Iterable[Feeds], axes: Mapping[str, int] | None, selection: Selection, size: int
) -> Iterator[Piece]:
    """Yields independent samples, cut and joined along the batch: `size` rows each, the last may have fewer.

    Args:
        feeds: Checked feeds.
        axes: Batch axes of the inputs.
        selection: Which samples; rows of the batch count.
        size: How many rows run at once.

    Raises:
        UsageError: There are no batch axes, or `size` is less than 1.
        CompileError: Samples have different shapes, or inputs without a batch axis different values.
    """
    if size < 1:
        raise UsageError(f"batches of {size} rows.", supported="1 or more", action="choose a larger number")
    if axes is None:
        raise UsageError(
            f"batches of {size} rows: the samples of this model cannot be joined, each runs as it is.",
            supported="models whose inputs share the one symbolic batch dimension of their recurrent layers",
            action="leave the batch (--batch) out, or export the model with a dynamic batch",
        )
    first = held = 0
    waiting: list[Feeds] = []
    for feed, chosen in _chosen(feeds, axes, selection):
        start = 0
        while start < len(chosen):
            rows = chosen[start : start + size - held]
            part = _rows(feed, axes, rows)
            if waiting:
                _check_joins(waiting[0], part, axes, f"samples {first} and {first + held}")
            waiting.append(part)
            start, held = start + len(rows), held + len(rows)
            if held == size:
                yield Piece(_joined(waiting, axes), first, held)
                first, held, waiting = first + held, 0, []
    if waiting:
        yield Piece(_joined(waiting, axes), first, held)


def _check_joins(one: Feeds, other: Feeds, axes: Mapping[str, int], which: str) -> None:
    """Raises CompileError for feeds that cannot form a batch together."""
    for name, array in one.items():
        shapes = [a.shape for a in (array, other[name])]
        if name in axes:
            shapes = [s[: axes[name]] + s[axes[name] + 1 :] for s in shapes]
        if shapes[0] != shapes[1]:
            raise CompileError(
                f"{which} make no batch: array {name!r} has shape {list(array.shape)} in one and "
                f"{list(other[name].shape)} in the other.",
                supported="samples of one shape in a batch",
                action="pad them to one length, calibrate those of one shape apart, or leave the batch (--batch) out",
            )
        if name not in axes and not np.array_equal(array, other[name]):
            raise CompileError(
                f"{which} make no batch: array {name!r}, which has no batch, is not the same in both.",
                supported="one value in a batch",
                action="leave the batch (--batch) out",
            )


def _joined(parts: Sequence[Feeds], axes: Mapping[str, int]) -> Feeds:
    """Joins feeds along the batch."""
    if len(parts) == 1:
        return parts[0]
    return {k: np.concatenate([p[k] for p in parts], axis=axes[k]) if k in axes else v for k, v in parts[0].items()}


def _chosen(
    feeds: Iterable[Feeds], axes: Mapping[str, int] | None, selection: Selection
) -> Iterator[tuple[Feeds, list[int]]]:
    """Yields feeds and their selected rows."""
    if selection.seed is not None:
        yield from _drawn(feeds, axes, selection)
        return
    left = selection.limit
    for feed in feeds:
        rows = list(range(_row_count(feed, axes)))[:left]
        yield feed, rows
        if left is not None:
            left -= len(rows)
            if left <= 0:
                return


def _drawn(
    feeds: Iterable[Feeds], axes: Mapping[str, int] | None, selection: Selection
) -> Iterator[tuple[Feeds, list[int]]]:
    """Yields a random subset in the order of the data; keeps no more than the subset in memory."""
    rng = np.random.default_rng(selection.seed)
    limit = selection.limit or 0
    kept: list[tuple[int, int, Feeds]] = []
    number = 0
    for position, feed in enumerate(feeds):
        for row in range(_row_count(feed, axes)):
            slot = number if number < limit else int(rng.integers(0, number + 1))
            if slot < limit:
                single = {k: v.copy() for k, v in _rows(feed, axes, [row]).items()}
                kept[slot : slot + 1] = [(position, row, single)]
            number += 1
    kept.sort(key=lambda entry: entry[:2])
    for _, group in itertools.groupby(kept, key=lambda entry: entry[0]):
        singles = [single for _, _, single in group]
        if axes is None:
            yield from ((single, [0]) for single in singles)
            continue
        yield _joined(singles, axes), list(range(len(singles)))


def _row_count(feed: Feeds, axes: Mapping[str, int] | None) -> int:
    if axes is None:
        return 1
    counts = {feed[k].shape[axis] for k, axis in axes.items()}
    if len(counts) != 1:
        sizes = ", ".join(f"{k} {feed[k].shape[axis]}" for k, axis in axes.items())
        raise CompileError(
            f"The arrays of a sample have different batch sizes: {sizes}.",
            supported="one batch size",
            action="correct the data",
        )
    return int(counts.pop())


def _rows(feed: Feeds, axes: Mapping[str, int] | None, rows: Sequence[int]) -> Feeds:
    if axes is None or len(rows) == _row_count(feed, axes):
        return feed
    cut = slice(rows[0], rows[-1] + 1)
    return {k: v[(slice(None),) * axes[k] + (cut,)] if k in axes else v for k, v in feed.items()}
