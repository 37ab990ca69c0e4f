"""Feeds for comparing models: generated ones, and some of what calibration used."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import onnx

from rnnqc.diagnostics import CompileError
from rnnqc.evaluate import make_session, run_model, run_session
from rnnqc.feeds import Feeds, generate_feeds
from rnnqc.ir import Model
from rnnqc.passes import PassManager
from rnnqc.passes.normal_form import normal_form
from rnnqc.streaming import calls_of, run_calls, state_pairs

LONG_LENGTH = 512
"""Of generated sequences where the model does not run on short ones."""
CALIBRATION_DATA = "calibration data"
"""What stands for the name of a pass where a check is about them."""
REMEMBERED_CALLS, VERIFIED_CALLS = 64, 4
"""Calls of calibration data among which passes are verified on so many."""


class FeedGenerator:
    """Generates feeds for a float model; what its inputs mean shows best where written-out steps are nodes again.

    Free sequences are long where the model does not run on short ones: of samples of sound, say, a step needs many.

    Args:
        proto: The model.

    Attributes:
        takes_short: Whether it runs on short sequences.
    """

    def __init__(self, proto: onnx.ModelProto) -> None:
        readable = Model.load(proto)
        PassManager(normal_form()).run(readable)
        self._proto, self._readable = proto, readable.proto
        self._length: int | None = None
        self.takes_short = self._is_run(None)
        if not self.takes_short and self._is_run(LONG_LENGTH):
            self._length = LONG_LENGTH

    def feeds(self, seed: int, *, extreme: bool = False) -> Feeds:
        """Feeds with the numbers of a seed."""
        return generate_feeds(self._readable, seed, extreme=extreme, length=self._length)

    def _is_run(self, length: int | None) -> bool:
        try:
            run_model(self._proto, generate_feeds(self._readable, length=length))
        except CompileError:
            return False
        return True


def generated_feeds(proto: onnx.ModelProto, count: int = 2) -> list[Feeds]:
    """Feeds for a float model."""
    generator = FeedGenerator(proto)
    return [generator.feeds(seed) for seed in range(count)]


def generated_stream(proto: onnx.ModelProto, carried: Mapping[str, str], count: int = 16) -> list[Feeds]:
    """The calls of a stream for a float model; its first one holds zeros for the states."""
    calls = generated_feeds(proto, count)
    first = {n: np.zeros_like(a) if n in carried else a for n, a in calls[0].items()}
    return [first, *({n: a for n, a in feed.items() if n not in carried} for feed in calls[1:])]


class Remembered:
    """Feeds that are taken once, and the first of them again."""

    def __init__(self, feeds: Iterable[Feeds]) -> None:
        self._feeds, self.first = feeds, list[Feeds]()

    def __iter__(self) -> Iterator[Feeds]:
        for feed in self._feeds:
            if len(self.first) < REMEMBERED_CALLS:
                self.first.append(feed)
            yield feed


class VerificationFeeds(NamedTuple):
    """What passes are verified on.

    Attributes:
        usual: For every pass.
        extreme: More, for passes that promise something of every value.
        left_out: Why there is no calibration data among them; "" if there is, or none was given.
    """

    usual: list[Feeds]
    extreme: list[Feeds]
    left_out: str = ""


def verification_feeds(
    proto: onnx.ModelProto,
    generator: FeedGenerator,
    calibration: Iterable[Feeds] | str | os.PathLike[str] | None,
    state: Mapping[str, str] | Iterable[str] | None,
) -> VerificationFeeds:
    """Feeds to verify passes with.

    Usual are two generated ones, but for a model that does not run on short sequences (it makes something of sound,
    say, and of noise nothing), and some of the calibration data. Of a stream, the states of these calls are those of
    the float model; so every pass is looked at on its own.
    """
    usual, extreme = [generator.feeds(seed) for seed in range(2)], [generator.feeds(0, extreme=True)]
    if not generator.takes_short:
        usual, extreme = [], [*usual, *extreme]
    try:
        run_model(proto, extreme[-1])
    except CompileError:  # it does not take a sequence of length zero, say
        extreme.pop()
    if calibration is None:
        return VerificationFeeds(usual, extreme)
    data = calibration.first if isinstance(calibration, Remembered) else calibration
    try:
        carried = state_pairs(state, proto)
        session = make_session(proto)
        fed: list[Feeds] = []

        def run(feed: Feeds) -> Mapping[str, np.ndarray[Any, Any]]:
            fed.append(feed)
            return run_session(session, feed) if carried else {}

        for _ in run_calls(run, calls_of(data, proto, carried, limit=REMEMBERED_CALLS), carried):
            pass
        spread = np.linspace(0, len(fed) - 1, VERIFIED_CALLS).round().astype(int)
        usual += [fed[k] for k in sorted(set(spread.tolist()))]
    except CompileError as error:  # of other sizes than those that dimensions were bound to, say
        return VerificationFeeds(usual, extreme, str(error))
    return VerificationFeeds(usual, extreme)
