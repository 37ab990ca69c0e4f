"""The feeds on which `--verify` compares the model before and after every pass."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import onnx

from rnnqc.data.feeds import Feeds
from rnnqc.data.given_data import Data
from rnnqc.data.state_pairs import state_pairs
from rnnqc.data.streaming import Piece, calls_of, run_calls
from rnnqc.errors import CompileError
from rnnqc.evaluation.evaluate import make_session, run_model, run_session
from rnnqc.measure.feeds import FeedGenerator

CALIBRATION_DATA, GENERATED_DATA = "calibration data", "generated data"
"""Names that stand for a pass in checks about this data."""
REMEMBERED_CALLS, VERIFIED_CALLS = 256, 4
"""The number of calibration calls that are kept, and of those on which passes are verified."""
MOST_BYTES = 2**27
"""The largest size of the kept feeds; the first is always kept."""


class Remembered:
    """Feeds of an iterable that can be read once; the first of them are kept and can be read again."""

    def __init__(self, feeds: Iterable[Any]) -> None:
        self._feeds, self.first, self._bytes = feeds, list[Any](), 0

    def __iter__(self) -> Iterator[Any]:
        for feed in self._feeds:
            if len(self.first) < REMEMBERED_CALLS and self._bytes < MOST_BYTES:
                self.first.append(feed)
                self._bytes += _bytes_of(feed)
            yield feed


def first_calls(proto: onnx.ModelProto, data: Data, carried: Mapping[str, str]) -> Iterator[Piece]:
    """Yields the first calls of the calibration data, as many as may be kept."""
    size = 0
    again = data.first if isinstance(data, Remembered) else data
    for call in calls_of(again, proto, carried, limit=REMEMBERED_CALLS):
        yield call
        size += _bytes_of(call.feed)
        if size >= MOST_BYTES:
            return


def _bytes_of(feed: Any) -> int:
    """Returns the size of the arrays and tensors of a feed, in any container."""
    values = feed.values() if isinstance(feed, Mapping) else feed if isinstance(feed, tuple | list) else [feed]
    return sum(int(getattr(v, "nbytes", 0)) for v in values)


class VerificationFeeds(NamedTuple):
    """The feeds that passes are verified on.

    Attributes:
        usual: Feeds for every pass.
        extreme: Additional feeds for passes that promise something of every value.
        left_out: Why there is no calibration data among them; "" if there is, or none was given.
    """

    usual: list[Feeds]
    extreme: list[Feeds]
    left_out: str = ""


def spread(feeds: Sequence[Feeds], count: int) -> list[Feeds]:
    """Returns at most `count` of the feeds, evenly spread from the first to the last."""
    places = np.linspace(0, len(feeds) - 1, count).round().astype(int)
    return [feeds[k] for k in sorted(set(places.tolist()))]


def verification_feeds(
    proto: onnx.ModelProto,
    generator: FeedGenerator,
    calibration: Data | None,
    state: Mapping[str, str] | Iterable[str] | None,
) -> VerificationFeeds:
    """Returns feeds to verify passes with.

    `usual` has two generated feeds and some of the calibration data; a model that does not run on short sequences (such
    as one that frames sound) has the generated ones in `extreme`. In a stream, the states of the calls are those of the
    float model, so every pass is checked on its own.
    """
    usual, extreme = [], list[Feeds]()
    if generator.refusal is None:
        usual, extreme = [generator.feeds(seed) for seed in range(2)], [generator.feeds(0, extreme=True)]
    if not generator.takes_short:
        usual, extreme = [], [*usual, *extreme]
    try:
        for feed in extreme[-1:]:
            run_model(proto, feed)
    except CompileError:  # for example because it does not accept a sequence of length zero
        extreme.pop()
    if calibration is None:
        return VerificationFeeds(usual, extreme)
    try:
        carried = state_pairs(state, proto)
        session = make_session(proto)
        fed: list[Feeds] = []

        def run(feed: Feeds) -> Mapping[str, np.ndarray[Any, Any]]:
            fed.append(feed)
            return run_session(session, feed) if carried else {}

        for _ in run_calls(run, first_calls(proto, calibration, carried), carried):
            pass
        usual += spread(fed, VERIFIED_CALLS)
    except CompileError as error:  # for example because dimensions were bound to other sizes
        return VerificationFeeds(usual, extreme, str(error))
    return VerificationFeeds(usual, extreme)
