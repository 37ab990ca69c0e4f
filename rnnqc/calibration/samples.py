"""Which samples calibration takes, and in which pieces they run: checked, cut along the batch, or as a stream."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

from rnnqc.diagnostics import CompileError, UsageError
from rnnqc.feeds import Feeds, NpzFolder, check_feed, true_inputs, zeros_of

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Piece:
    """What runs at once.

    Attributes:
        feed: The arrays, by the names of inputs.
        first: Number of its first sample in the data.
        samples: How many samples it has.
        restart: Whether a stream starts with it.
    """

    feed: Feeds
    first: int
    samples: int
    restart: bool = False


@dataclass(frozen=True)
class Selection:
    """Which samples to take.

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
    """The axis of each input along which samples can be cut apart; None where that is not known.

    They can be where all recurrent layers have one symbolic batch dimension, and every input has it once, or none but
    fixed dimensions and symbols of those that have it.

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


def checked(
    feeds: Iterable[Mapping[str, Any]],
    proto: onnx.ModelProto,
    axes: Mapping[str, int] | None,
    carried: Iterable[str],
    padded: bool,
) -> Iterator[Feeds]:
    """The feeds, each checked when it is taken.

    Args:
        feeds: Arrays by names of inputs.
        proto: The model.
        axes: Batch axes of the inputs; None where a whole feed is one sample.
        carried: Inputs that the model makes itself: they need not be there.
        padded: Whether NaN may stand in padding.

    Raises:
        CompileError: There is none, or one does not fit or is not finite; the message names array and sample.
    """
    declared = true_inputs(proto)
    known = [v.name for v in declared]
    optional = set(carried)
    empty = True
    unit = "sample" if axes is None else "feed"
    for number, given in enumerate(feeds):
        where = str(feeds.files[number]) if isinstance(feeds, NpzFolder) else f"{unit} {number}"
        if not isinstance(given, Mapping):
            raise CompileError(
                f"{where}: is a {type(given).__name__}.",
                supported=f"dicts of arrays named {', '.join(known)}",
                action="name the arrays as the model's inputs",
            )
        feed = {name: np.asarray(array) for name, array in given.items()}
        check_feed(feed, _without(proto, optional - set(feed)) if optional else proto, where)
        for name in known:
            if name in feed and feed[name].dtype.kind == "f" and not padded:
                _check_finite(feed[name], name, where)
            if axes is not None and name in axes and feed[name].size == 0:
                raise CompileError(
                    f"{where}: array {name!r} of shape {list(feed[name].shape)} is empty.",
                    supported="at least one sample, one time step",
                    action="leave the sample out",
                )
        empty = False
        yield {name: feed[name] for name in known if name in feed}
    if empty:
        raise CompileError("The calibration data is empty.", supported="at least one sample", action="check the data")


def _without(proto: onnx.ModelProto, names: set[str]) -> onnx.ModelProto:
    """The signature of a model whose inputs `names` are absent."""
    signature = onnx.ModelProto()
    signature.graph.input.extend(i for i in true_inputs(proto) if i.name not in names)
    return signature


def _check_finite(array: Array, name: str, where: str) -> None:
    finite = np.isfinite(array)
    if finite.all():
        return
    index = tuple(int(k) for k in np.argwhere(~finite)[0])
    raise CompileError(
        f"{where}: array {name!r} holds {array[index]} at {list(index)}.",
        supported="finite numbers",
        action="remove the sample, or repair the data",
    )


def sample_count(feeds: Iterable[Mapping[str, Any]], axes: Mapping[str, int] | None, limit: int | None) -> int | None:
    """How many samples there will be, where that can be known without taking one."""
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
    """Independent samples, cut along the batch where there is one.

    Args:
        feeds: Checked feeds.
        axes: Batch axes of the inputs; None where a whole feed is one sample.
        selection: Which samples; rows of the batch count.
        most: How many samples of such a feed may run at once.
    """
    first = 0
    for feed, chosen in _chosen(feeds, axes, selection):
        size = max(1, most(feed))
        for start in range(0, len(chosen), size):
            rows = chosen[start : start + size]
            yield Piece(_rows(feed, axes, rows), first, len(rows))
            first += len(rows)


def _chosen(
    feeds: Iterable[Feeds], axes: Mapping[str, int] | None, selection: Selection
) -> Iterator[tuple[Feeds, list[int]]]:
    """Feeds, and which of their rows are taken."""
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
    """A random subset, in the data's order; held in memory is no more than the subset."""
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
        joined = {
            k: np.concatenate([s[k] for s in singles], axis=axes[k]) if k in axes else singles[0][k] for k in singles[0]
        }
        yield joined, list(range(len(singles)))


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


def stream(
    feeds: Iterable[Feeds], proto: onnx.ModelProto, carried: Iterable[str], limit: int | None
) -> Iterator[Piece]:
    """Calls of a model with states: one that gives the value of a state starts a stream, the others go on with it.

    Raises:
        CompileError: A state whose shape the model leaves open has no first value.
    """
    declared = {i.name: i for i in true_inputs(proto)}
    carried = list(carried)
    for number, feed in enumerate(itertools.islice(feeds, limit)):
        restart = number == 0 or any(name in feed for name in carried)
        complete = dict(feed)
        if restart:
            sizes = {
                d.dim_param: n
                for key, array in feed.items()
                for d, n in zip(declared[key].type.tensor_type.shape.dim, array.shape, strict=False)  # no dim: any rank
                if d.dim_param
            }
            for name in carried:
                if name in complete:
                    continue
                complete[name] = _zeros(declared[name], sizes, f"sample {number}")
        yield Piece(complete, number, 1, restart)


def _zeros(declared: onnx.ValueInfoProto, sizes: Mapping[str, int], where: str) -> Array:
    """Zeros for a state, with the sizes that the other arrays give the named dimensions."""
    bound = onnx.ValueInfoProto()
    bound.CopyFrom(declared)
    for dim in bound.type.tensor_type.shape.dim:
        if not dim.HasField("dim_value"):
            if dim.dim_param not in sizes:
                raise CompileError(
                    f"{where}: no array for the first {declared.name!r}, whose shape the model does not fix.",
                    supported="zeros by default, where the shape is fixed by the model or the other arrays",
                    action="give its first value in the data",
                )
            dim.dim_value = sizes[dim.dim_param]
    return zeros_of(bound)


def state_pairs(state: Mapping[str, str] | Iterable[str] | None, proto: onnx.ModelProto) -> dict[str, str]:
    """Inputs that carry states, and the outputs that become them, from such pairs or from texts `IN:OUT`.

    Raises:
        UsageError: A text names no input or no output of the model, or an input twice.
    """
    if isinstance(state, str):
        raise UsageError(f"state = {state!r} is one text.", supported="a list of texts such as 'IN:OUT', or a dict")
    inputs = {i.name for i in true_inputs(proto)}
    outputs = {o.name for o in proto.graph.output}
    given = list(state.items()) if isinstance(state, Mapping) else [_split(t, inputs, outputs) for t in state or ()]
    carried: dict[str, str] = {}
    for name, output in given:
        if name not in inputs or output not in outputs:
            wrong = f"no input {name!r}" if name not in inputs else f"no output {output!r}"
            text = f"{name}:{output}" if output else name
            raise UsageError(
                f"--state {text!r}: " + (f"the model has {wrong}." if output else "not of the form IN:OUT."),
                supported=f"inputs {sorted(inputs)}, outputs {sorted(outputs)}",
                action="name an input of the model and the output that becomes it",
            )
        if carried.setdefault(name, output) != output:
            found = f"{carried[name]!r} and {output!r}"
            raise UsageError(f"--state {name}: two outputs, {found}.", supported="one", action="leave one out")
    return carried


def _split(text: str, inputs: Container[str], outputs: Container[str]) -> tuple[str, str]:
    """Input and output of `IN:OUT`, at the colon that gives names of the model: names may have some, too."""
    parts = text.split(":")
    pairs = [(":".join(parts[:k]), ":".join(parts[k:])) for k in range(1, len(parts))]
    known = [(name, output) for name, output in pairs if name in inputs and output in outputs]
    return (*known, *pairs, (text, ""))[0]
