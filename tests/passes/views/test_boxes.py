"""Copies of boxes: every element of an output once, from where it stands in a source.

What these would catch: an element from another place, one that is copied twice or not at all, a source taken for its
neighbour, an arrangement without order that becomes thousands of copies.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rnnqc.passes.views.boxes import MOST_BOXES, Box, boxes_of
from rnnqc.passes.views.moves import Table

SOURCES = ((2, 3, 4), (5,), (2, 6))


def numbered(*shapes: tuple[int, ...]) -> list[Table]:
    """Sources whose elements have consecutive numbers."""
    ends = np.cumsum([np.prod(s) for s in shapes])
    return [np.arange(e - np.prod(s), e).reshape(s) for s, e in zip(shapes, ends, strict=True)]


def copied(boxes: list[Box], starts: list[Table], size: int) -> Table:
    """The result of the copies, element by element; -1 for an element that none writes, -2 for one that two write."""
    made = np.full(size, -1)
    for box in boxes:
        for place in itertools.product(*(range(n) for n, _, _ in box.axes)):
            to = box.to + sum(i * t for i, (_, t, _) in zip(place, box.axes, strict=True))
            start = box.start + sum(i * s for i, (_, _, s) in zip(place, box.axes, strict=True))
            made[to] = starts[box.source].ravel()[start] if made[to] == -1 else -2
    return made


@st.composite
def tables(draw: st.DrawFn) -> Table:
    """Views of views of the sources."""
    values = list(numbered(*SOURCES))
    for _ in range(draw(st.integers(1, 6))):
        value = draw(st.sampled_from(values))
        axis = draw(st.integers(0, value.ndim - 1))
        kind = draw(st.sampled_from(["transpose", "flat", "slice", "back", "take", "join", "repeat"]))
        if kind == "transpose":
            value = value.transpose(draw(st.permutations(range(value.ndim))))
        elif kind == "flat":
            value = value.reshape(-1) if value.ndim > 1 else value[:, None]
        elif kind == "slice":
            value = np.take(value, range(draw(st.integers(0, value.shape[axis] - 1)), value.shape[axis]), axis)
        elif kind == "back":
            value = np.flip(value, axis)
        elif kind == "take":
            places = st.lists(st.integers(0, value.shape[axis] - 1), min_size=1, max_size=4)
            value = np.take(value, draw(places), axis)
        elif kind == "join":
            other = draw(st.sampled_from([v.ravel() for v in values]))
            value = np.concatenate([value.ravel(), other])
        else:
            value = np.broadcast_to(value, (2, *value.shape))
        values.append(value[..., :40])
    return values[-1]


@settings(max_examples=max(50, settings().max_examples))
@given(tables())
def test_every_element_once(table: Table) -> None:
    starts = numbered(*SOURCES)
    boxes = boxes_of(table, starts)
    if boxes is not None:
        assert np.array_equal(copied(boxes, starts, table.size), table.ravel())


@pytest.mark.parametrize(
    ("table", "count"),
    [
        (np.arange(24).reshape(2, 3, 4).transpose(2, 0, 1), 1),
        (
            np.concatenate(
                [np.arange(24).reshape(2, 3, 4), np.arange(29, 41).reshape(2, 6)[:, :4, None] + np.zeros(4, int)], 1
            ),
            2,
        ),
        (np.arange(10)[:, None] + np.arange(3), 1),
        (np.arange(24)[::-1], 1),
        (np.zeros((3, 4), int), 1),
        (np.array(7), 1),
        (np.arange(24, 29), 1),
        (np.arange(22, 31), 3),
    ],
    ids=["transposed", "joined", "windows", "backwards", "repeated", "a scalar", "another source", "three sources"],
)
def test_as_few_as_there_have_to_be(table: Table, count: int) -> None:
    starts = numbered(*SOURCES)
    boxes = boxes_of(table, starts)
    assert boxes is not None
    assert len(boxes) == count
    assert np.array_equal(copied(boxes, starts, table.size), table.ravel())


def test_no_order() -> None:
    source = np.arange(1000)
    assert boxes_of(np.random.default_rng(0).permutation(source), [source]) is None
    assert len(boxes_of(np.random.default_rng(0).permutation(source[:50]), [source]) or []) <= MOST_BOXES
