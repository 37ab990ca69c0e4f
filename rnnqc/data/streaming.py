"""Runs models over the calls in some data, and carries states from call to call.

Data is a sequence of feeds. With states (`IN:OUT`) it is a stream: output OUT of a call is input IN of the next one; a
feed that holds an array for IN starts a new stream with it; the first call starts from zeros where it holds none.
Without states every feed stands alone.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

from rnnqc.data.feeds import Feeds, check_feed, left_states, or_carry, true_inputs
from rnnqc.data.given_data import LABEL, Data, open_feeds
from rnnqc.data.initial_states import InitialStates
from rnnqc.data.not_finite import first_not_finite
from rnnqc.data.npz import NpzFolder
from rnnqc.errors import CompileError

Array = npt.NDArray[Any]
Outputs = dict[str, Array]


@dataclass(frozen=True)
class Piece:
    """The part of the data that one call runs.

    Attributes:
        feed: The arrays, by the names of inputs.
        first: Number of its first sample in the data.
        samples: Number of samples.
        restart: Whether a stream starts with it.
    """

    feed: Feeds
    first: int
    samples: int
    restart: bool = False


def calls_of(
    data: Data,
    proto: onnx.ModelProto,
    carried: Mapping[str, str],
    *,
    limit: int | None = None,
    labels: str | None = None,
) -> Iterator[Piece]:
    """Yields the calls in `data`, each checked when it is taken.

    Args:
        data: See `Data`.
        proto: The model.
        carried: Outputs by the input they become (see `state_pairs`); empty if every feed stands alone.
        limit: The largest number of calls.
        labels: The name of an array that follows the inputs; arrays that are not inputs are then kept. By default they
            are left out.

    Raises:
        CompileError: The data cannot be read, is empty or does not fit, or a state has no first value.
    """
    opened = open_feeds(data, proto, carried, labels or LABEL)
    feeds = checked(opened, proto, None, carried, True, labelled=labels is not None)
    return stream(feeds, proto, carried, limit)


def run_calls(
    run: Callable[[Feeds], Mapping[str, Array]],
    calls: Iterable[Piece],
    carried: Mapping[str, str],
    real: Callable[[Mapping[str, Array]], Mapping[str, Array]] = dict,
) -> Iterator[Outputs]:
    """Runs one model over calls, carrying its states.

    Args:
        run: Maps a feed to all outputs, by name: `functools.partial(run_session, session)`, for example.
        calls: The calls, in order.
        carried: Outputs by the input they become.
        real: Maps outputs to the values that become inputs, for outputs that are quantized.

    Yields:
        The outputs of each call.
    """
    states: Feeds = {}
    for call in calls:
        outputs = dict(run(with_states(call, states)))
        reals = real(outputs)
        states = {name: reals[output] for name, output in carried.items()}
        yield outputs


def with_states(call: Piece, states: Mapping[str, Array]) -> Feeds:
    """Returns the feed of a call that follows one with the final `states`, keyed by the inputs they become."""
    return call.feed if call.restart else {**call.feed, **states}


def stacked(results: Sequence[Mapping[str, Array]], carried: Mapping[str, str]) -> Outputs:
    """Stacks the outputs of all calls along a leading axis; for states, returns the value after the last call.

    Raises:
        CompileError: An output has another shape in another call.
    """
    last = set(carried.values())
    made: Outputs = {}
    for name, value in results[-1].items():
        shapes = sorted({np.shape(r[name]) for r in results})
        if name not in last and len(shapes) > 1:
            raise CompileError(
                f"output {name!r} has shape {list(shapes[0])} in one call and {list(shapes[1])} in another.",
                supported="calls whose outputs can be stacked",
                action="run the calls that differ on their own",
            )
        made[name] = value if name in last else np.stack([r[name] for r in results])
    return made


def checked(
    feeds: Iterable[Any],
    proto: onnx.ModelProto,
    axes: Mapping[str, int] | None,
    carried: Iterable[str],
    padded: bool,
    filled: bool = False,
    labelled: bool = False,
    states: Mapping[str, str] | None = None,
) -> Iterator[Feeds]:
    """Yields the feeds, each checked when it is taken.

    Args:
        feeds: Arrays by names of inputs.
        proto: The model.
        axes: Batch axes of the inputs; None where a whole feed is one sample.
        carried: Inputs that the model itself supplies; they may be absent.
        padded: Whether NaN is allowed in padding.
        filled: Whether arrays of open shapes, except states, must not be empty: onnxruntime 1.31 crashes when a GRU
            gets a sequence without steps.
        labelled: Whether arrays that are not inputs are kept.
        states: Outputs by the input that they appear to become, for messages; those of the model by default.

    Raises:
        CompileError: There is none, or one does not fit, is empty or is not finite; the message names array and sample.
    """
    declared = true_inputs(proto)
    known = [v.name for v in declared]
    fillable = {v.name for v in declared if not _holds_nothing(v)} - set(carried)
    optional = set(carried)
    empty = True
    unit = "sample" if axes is None else "feed"
    for number, given in enumerate(feeds):
        where = str(feeds.files[number]) if isinstance(feeds, NpzFolder) else f"{unit} {number}"
        if not isinstance(given, Mapping):
            raise CompileError(
                f"{where}: is a {type(given).__name__}.",
                supported=f"dicts of arrays named {', '.join(known)}; arrays in this order, then one of labels",
                action=f"name the arrays as the model's inputs{or_carry(left_states(proto, states, optional))}",
            )
        feed = {name: np.asarray(array) for name, array in given.items()}
        check_feed(feed, proto, where, states, optional)
        for name in known:
            if name in feed and feed[name].dtype.kind == "f" and not padded:
                _check_finite(feed[name], name, where)
            if filled and name in feed and name in fillable and feed[name].size == 0:
                raise CompileError(
                    f"{where}: array {name!r} of shape {list(feed[name].shape)} is empty.",
                    supported="at least one sample, one time step",
                    action="leave the sample out",
                )
        empty = False
        yield feed if labelled else {name: feed[name] for name in known if name in feed}
    if empty:
        raise CompileError("The data is empty.", supported="at least one sample", action="check the data")


def _holds_nothing(declared: onnx.ValueInfoProto) -> bool:
    """Whether the declared shape has a 0."""
    return any(d.HasField("dim_value") and d.dim_value == 0 for d in declared.type.tensor_type.shape.dim)


def _check_finite(array: Array, name: str, where: str) -> None:
    index = first_not_finite(array)
    if index is None:
        return
    raise CompileError(
        f"{where}: array {name!r} holds {array[index]} at {list(index)}.",
        supported="finite numbers",
        action="remove the sample, or repair the data",
    )


def stream(
    feeds: Iterable[Feeds], proto: onnx.ModelProto, carried: Iterable[str], limit: int | None
) -> Iterator[Piece]:
    """Yields calls of a model with states. A call that gives the value of a state starts a stream; others continue it.

    Raises:
        CompileError: A state whose shape the model leaves open has no first value, or a call does not fit the states
            that it continues with.
    """
    carried = list(carried)
    initial = InitialStates(proto, carried)
    held: dict[str, int] = {}
    rows: set[int] = set()
    for number, feed in enumerate(itertools.islice(feeds, limit)):
        restart = number == 0 or any(name in feed for name in carried)
        complete = dict(feed)
        named = initial.named_sizes(feed)
        if restart:
            held, rows = named, set()
            sizes = initial.sizes(feed)
            for name in carried:
                if name not in complete:
                    complete[name] = initial.zeros(name, sizes, f"sample {number}")
                    rows |= {size for (state, _), size in sizes.items() if state == name}
        else:
            _check_goes_on(number, feed, named, held)
            _check_rows(number, feed, initial.open_sizes(feed), rows)
        yield Piece(complete, number, 1, restart)


def _check_goes_on(number: int, feed: Feeds, sizes: Mapping[str, int], held: Mapping[str, int]) -> None:
    """Raises CompileError if a call's sizes differ from those of its states, as with a smaller last batch."""
    for name, size in held.items():
        if sizes.get(name, size) != size:
            raise _other_sizes(number, feed, f"dimension {name!r} is {sizes[name]}", size)


def _check_rows(number: int, feed: Feeds, sizes: AbstractSet[int], rows: AbstractSet[int]) -> None:
    """Raises CompileError if none of a call's open axes has the size of a state's unnamed rows."""
    for size in sorted(rows - sizes if sizes else ()):
        raise _other_sizes(number, feed, f"open dimensions are {', '.join(map(str, sorted(sizes)))}", size)


def _other_sizes(number: int, feed: Feeds, found: str, size: int) -> CompileError:
    shapes = ", ".join(f"{key!r} {list(array.shape)}" for key, array in feed.items())
    return CompileError(
        f"sample {number}: {found} in its arrays ({shapes}), and {size} in the states of the call before, with which "
        "it goes on.",
        supported="calls of one size in a stream",
        action="leave a smaller last batch out (DataLoader(..., drop_last=True)), or give the first values of "
        "its states: then a new stream starts there",
    )
