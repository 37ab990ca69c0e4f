"""Feeds for comparing models: generated ones, and some of what calibration used."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import onnx

from rnnqc.data.feeds import EXTREME_LENGTH, GENERATED_LENGTH, Feeds, Generation, Sizes, Values, generate_feeds
from rnnqc.data.streaming import calls_of, run_calls, state_pairs
from rnnqc.errors import CompileError
from rnnqc.evaluation.evaluate import make_session, run_model, run_session
from rnnqc.ir import Model
from rnnqc.measure.feed_sizes import LONG_LENGTH as LONG_LENGTH
from rnnqc.measure.feed_sizes import candidate_sizes
from rnnqc.passes import PassManager
from rnnqc.passes.pipeline import normal_form

MAGNITUDES = (1.0, 0.1, 3.0, 10.0, 30.0)
"""Of generated floats; usual ones first."""
BEYOND = 4.0
"""How many times the usual size states are that come from elsewhere than the layer itself."""
CALIBRATION_DATA, GENERATED_DATA = "calibration data", "generated data"
"""What stands for the name of a pass where a check is about them."""
REMEMBERED_CALLS, VERIFIED_CALLS = 64, 4
"""Calls of calibration data among which passes are verified on so many."""


class FeedGenerator:
    """Generates feeds for a float model; what its inputs mean shows best where unrolled steps are nodes again.

    Free dimensions get the first sizes with which the model runs (`candidate_sizes`).

    Args:
        proto: The model.
        readable: The same in normal form, if it is at hand.

    Attributes:
        takes_short: Whether it runs on short sequences.
        sizes: The sizes; those of short sequences if none was found.
        refusal: Why it does not run on anything generated; None if it does.
    """

    def __init__(self, proto: onnx.ModelProto, readable: onnx.ModelProto | None = None) -> None:
        if readable is None:
            loaded = Model.load(proto)
            PassManager(normal_form()).run(loaded)
            readable = loaded.proto
        self._readable = readable
        self.sizes, self.refusal = self._search(proto)
        self.takes_short = self.refusal is None and self.sizes.length <= GENERATED_LENGTH

    def feeds(self, seed: int, *, extreme: bool = False, values: Values | None = None) -> Feeds:
        """Feeds with the numbers of a seed; extreme ones are of longer sequences where the model takes any."""
        if not extreme:
            return self._generation.feeds(seed, values)
        longer = self.sizes.length == GENERATED_LENGTH
        sizes = replace(self.sizes, length=EXTREME_LENGTH) if longer else self.sizes
        return generate_feeds(self._readable, seed, extreme=True, sizes=sizes)

    @cached_property
    def _generation(self) -> Generation:
        return Generation(self._readable, self.sizes)

    def checked(self) -> FeedGenerator:
        """Itself.

        Raises:
            CompileError: The model runs on nothing that was generated.
        """
        if self.refusal is not None:
            raise self.refusal
        return self

    def _search(self, proto: onnx.ModelProto) -> tuple[Sizes, CompileError | None]:
        """The sizes with which the model runs, or why there are none."""
        tried: list[dict[str, list[int]]] = []
        reason = ""
        try:
            session = make_session(proto, optimize=False)
            for sizes in candidate_sizes(proto):
                generation = Generation(self._readable, sizes)
                if generation.shapes in tried:
                    continue
                tried.append(generation.shapes)
                try:
                    outputs = run_session(session, generation.feeds(0))
                except CompileError as error:
                    reason = reason or error.message
                    continue
                if any(np.size(o) for o in outputs.values()):
                    return sizes, None
                reason = reason or "all outputs are empty."
        except CompileError as error:
            return Sizes(), error
        return Sizes(), CompileError(
            f"the model does not run on generated data ({len(tried)} choices of sizes tried): {reason}",
            supported="data that the model runs on",
            action="give data that fits it (--data; rnnqc bench: -i), or sizes that it takes (--dim NAME=N)",
        )


@dataclass(frozen=True)
class Level:
    """Generated feeds of one kind.

    Attributes:
        name: What they are, for people.
        feeds: The feeds, or the calls of a stream.
    """

    name: str
    feeds: list[Feeds]


def generated_levels(
    generator: FeedGenerator, count: int = 1, carried: Mapping[str, str] | None = None
) -> Iterator[Level]:
    """Generated feeds of several magnitudes, each made when it is taken; usual ones first.

    Inputs of one magnitude flatter: near zero all is linear, and where gates saturate no error shows. There are only
    those magnitudes that make another feed: tokens have none.

    Args:
        generator: Of feeds.
        count: How many of each kind.
        carried: Outputs by the input they become, for calls of a stream; the first one holds zeros for the states.
    """
    kinds = [(f"magnitude {m:g}", Values(m)) for m in MAGNITUDES]
    kinds.append(("frequent indices", Values(frequent=True)))
    kinds.append((f"states {BEYOND:g} times as large", Values(beyond=BEYOND)))
    seen: list[Feeds] = []
    for name, values in kinds:
        first = _without_states([generator.feeds(0, values=values)], carried)[0]
        if any(all(np.array_equal(array, other[key]) for key, array in first.items()) for other in seen):
            continue
        seen.append(first)
        feeds = [generator.feeds(seed, values=values) for seed in range(count)]
        yield Level(name, _without_states(feeds, carried))


def _without_states(feeds: list[Feeds], carried: Mapping[str, str] | None) -> list[Feeds]:
    """Calls of a stream: zeros for the states of the first one, none for those of others."""
    if not carried:
        return feeds
    first = {n: np.zeros_like(a) if n in carried else a for n, a in feeds[0].items()}
    return [first, *({n: a for n, a in feed.items() if n not in carried} for feed in feeds[1:])]


def generated_feeds(proto: onnx.ModelProto, count: int = 2) -> list[Feeds]:
    """Feeds of usual values for a float model.

    Raises:
        CompileError: It runs on nothing that was generated.
    """
    generator = FeedGenerator(proto).checked()
    return [generator.feeds(seed) for seed in range(count)]


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
    usual, extreme = [], list[Feeds]()
    if generator.refusal is None:
        usual, extreme = [generator.feeds(seed) for seed in range(2)], [generator.feeds(0, extreme=True)]
    if not generator.takes_short:
        usual, extreme = [], [*usual, *extreme]
    try:
        for feed in extreme[-1:]:
            run_model(proto, feed)
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
