"""Which samples are taken, and how batches are cut.

What these would catch: inputs cut where rows do not correspond, subsets that are biased or not the same for a seed,
more held in memory than asked for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from onnx import TensorProto, helper

from rnnqc.calibration.samples import Selection, batch_axes, batches, joined_batches, sample_count
from rnnqc.data.streaming import stream
from rnnqc.errors import CompileError, UsageError

Array = npt.NDArray[Any]


def model(**shapes: list[int | str | None]) -> onnx.ModelProto:
    inputs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in shapes.items()]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
    return helper.make_model(helper.make_graph([], "samples", inputs, outputs))


@pytest.mark.parametrize(
    ("shapes", "layers", "expected"),
    [
        ({"x": ["T", "B", 3]}, ["B"], {"x": 1}),
        ({"x": ["B", 500]}, ["B", "B"], {"x": 0}),
        ({"x": ["T", "B"], "h": [2, "B", 8], "rate": []}, ["B"], {"x": 1, "h": 1}),
        ({"x": ["T", "B"], "mask": ["T"]}, ["B"], {"x": 1}),
        ({"x": ["T", "B"], "lens": ["n"]}, ["B"], None),
        ({"x": ["T", "B"], "lens": [None]}, ["B"], None),
        ({"x": ["B", "B"]}, ["B"], None),
        ({"x": ["T", 4, 3]}, [4], None),
        ({"x": ["T", "B", 3]}, ["B", "C"], None),
        ({"x": ["T", "B", 3]}, ["B", None], None),
        ({"x": ["T", "B", 3]}, [None], None),
        ({"x": ["T", "N", 3]}, ["B"], None),
    ],
)
def test_batch_axes(shapes: dict[str, Any], layers: list[Any], expected: dict[str, int] | None) -> None:
    assert batch_axes(model(**shapes), layers) == expected


def feeds(*rows: int) -> Iterator[dict[str, Array]]:
    """Each row contains its index in the whole data."""
    start = 0
    for count in rows:
        yield {"x": np.arange(start, start + count, dtype=np.float32)[None, :, None], "rate": np.array(8.0)}
        start += count


AXES = {"x": 1}


def taken(selection: Selection, *rows: int, most: int = 4) -> list[list[int]]:
    pieces = list(batches(feeds(*rows), AXES, selection, lambda feed: most))
    assert [p.first for p in pieces] == np.cumsum([0, *(p.samples for p in pieces)])[:-1].tolist()
    assert all(p.feed["rate"] == 8.0 and p.samples == p.feed["x"].shape[1] for p in pieces)
    return [p.feed["x"].ravel().astype(int).tolist() for p in pieces]


def test_pieces_of_batches() -> None:
    assert taken(Selection(), 3, 6, 1) == [[0, 1, 2], [3, 4, 5, 6], [7, 8], [9]]
    assert taken(Selection(limit=5), 3, 6, 1) == [[0, 1, 2], [3, 4]]
    assert taken(Selection(limit=50), 3, 6, most=100) == [[0, 1, 2], [3, 4, 5, 6, 7, 8]]


def test_no_more_feeds_are_taken_than_needed() -> None:
    source = feeds(3, 3, 3)
    assert len(list(batches(source, AXES, Selection(limit=3), lambda feed: 9))) == 1
    assert next(source)["x"][0, 0, 0] == 3.0


def joined(size: int, selection: Selection, *rows: int) -> list[list[int]]:
    pieces = list(joined_batches(feeds(*rows), AXES, selection, size))
    assert [p.first for p in pieces] == np.cumsum([0, *(p.samples for p in pieces)])[:-1].tolist()
    assert all(p.feed["rate"] == 8.0 and p.samples == p.feed["x"].shape[1] for p in pieces)
    return [p.feed["x"].ravel().astype(int).tolist() for p in pieces]


def test_batches_are_cut_and_joined() -> None:
    """Rows that are lost, repeated or out of order where a batch spans feeds, or a feed has several batches."""
    assert joined(4, Selection(), 3, 6, 1) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert joined(2, Selection(), 1, 1, 5, 1) == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert joined(5, Selection(limit=7), 3, 3, 3) == [[0, 1, 2, 3, 4], [5, 6]]
    assert joined(1, Selection(), 2, 1) == [[0], [1], [2]] and joined(9, Selection(), 2, 1) == [[0, 1, 2]]
    drawn = [n for piece in joined(2, Selection(limit=5, seed=1), 7, 6, 7) for n in piece]
    assert drawn == [n for piece in taken(Selection(limit=5, seed=1), 7, 6, 7) for n in piece]


@pytest.mark.parametrize(
    ("second", "message"),
    [
        ({"x": np.zeros((2, 1, 1), np.float32)}, r"samples 0 and 3 make no batch: array 'x' has shape \[1, 3, 1\]"),
        ({"rate": np.array(16.0)}, "array 'rate', which has no batch, is not the same in both"),
        ({"rate": np.array([8.0])}, "array 'rate' has shape"),
    ],
)
def test_rows_that_make_no_batch(second: dict[str, Array], message: str) -> None:
    """A batch that pads or cuts in silence, or takes an input without a batch from one of its samples."""
    (one,) = feeds(3)
    with pytest.raises(CompileError, match=message):
        list(joined_batches([one, {**one, **second}], AXES, Selection(), 4))
    assert len(list(joined_batches([one, {**one, **second}], AXES, Selection(), 3))) == 2


def test_batches_that_cannot_be() -> None:
    with pytest.raises(UsageError, match="batches of 0 rows"):
        list(joined_batches(feeds(3), AXES, Selection(), 0))
    with pytest.raises(UsageError, match="cannot be joined"):
        list(joined_batches(feeds(3), None, Selection(), 2))


def test_random_subsets_are_fair_and_the_same_for_a_seed() -> None:
    counts: Counter[int] = Counter()
    for seed in range(400):
        chosen = [n for piece in taken(Selection(limit=5, seed=seed), 7, 6, 7) for n in piece]
        assert chosen == sorted(set(chosen)) and len(chosen) == 5
        counts.update(chosen)
    assert set(counts) == set(range(20)) and min(counts.values()) > 60 and max(counts.values()) < 140  # 100 each
    assert taken(Selection(limit=5, seed=1), 20) == taken(Selection(limit=5, seed=1), 20)


def test_a_feed_is_a_sample_where_nothing_can_be_cut() -> None:
    pieces = list(batches(feeds(3, 2, 4), None, Selection(limit=2), lambda feed: 1))
    assert [p.feed["x"].shape[1] for p in pieces] == [3, 2] and [p.samples for p in pieces] == [1, 1]
    drawn = list(batches(feeds(*range(1, 9)), None, Selection(limit=3, seed=0), lambda feed: 1))
    assert len(drawn) == 3


def test_counts_that_are_known() -> None:
    known = list(feeds(3, 2))
    assert sample_count(known, AXES, None) == 5 and sample_count(known, AXES, 4) == 4
    assert sample_count(known, None, None) == 2 and sample_count(iter(known), AXES, None) is None


def test_different_batches_in_one_feed() -> None:
    feed = {"x": np.zeros((1, 3, 1), np.float32), "h": np.zeros((2, 4), np.float32)}
    with pytest.raises(CompileError, match="different batch sizes: x 3, h 4"):
        list(batches([feed], {"x": 1, "h": 1}, Selection(), lambda feed: 1))


@pytest.mark.parametrize(("limit", "seed"), [(0, None), (-1, None), (None, 0), (3, -1)])
def test_selections_that_make_no_sense(limit: int | None, seed: int | None) -> None:
    with pytest.raises(UsageError):
        Selection(limit, seed)


def test_streams() -> None:
    proto = model(x=["T", "B"], h=[2, "B", 8])
    x = {"x": np.zeros((4, 3), np.float32)}
    given = {**x, "h": np.ones((2, 3, 8), np.float32)}
    pieces = list(stream([x, x, given, x], proto, ["h"], None))
    assert [p.restart for p in pieces] == [True, False, True, False]
    first = pieces[0].feed["h"]
    assert first.shape == (2, 3, 8) and not first.any() and first.dtype == np.float32
    assert "h" not in pieces[1].feed and pieces[2].feed["h"].all()
    assert len(list(stream([x, x, given], proto, ["h"], 2))) == 2
    (piece,) = stream([x], model(x=["T", "B"], h=[2, "other", 8]), ["h"], None)
    assert piece.feed["h"].shape == (2, 3, 8)  # as the same axis of x
    with pytest.raises(CompileError, match=r"no array for the first 'h' of shape \[2, \?, \?\]"):
        list(stream([x], model(x=["T", "B"], h=[2, "other", "more"]), ["h"], None))


def test_a_stream_beside_an_input_of_any_rank() -> None:
    proto = model(x=["T", "B"], h=[2, 8])
    proto.graph.input[0].type.tensor_type.ClearField("shape")
    (piece,) = stream([{"x": np.zeros((3, 2), np.float32)}], proto, ["h"], None)
    assert piece.feed["h"].shape == (2, 8)
