"""What the result of a lowered layer must not depend on: threads, optimizations, other rows, how a sequence is cut."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx
import onnxruntime as ort
from running import LEVELS, Array, Outputs, assert_same_bits, run
from running_lowered import session

STATES = {"initial_h": "Y_h", "initial_c": "Y_c"}
"""Which output of a chunk is which input of the next."""


def assert_levels_and_threads_do_not_matter(
    expected: Outputs, model: onnx.ModelProto, way: str, feeds: Mapping[str, Array]
) -> None:
    """Runs a model with every optimization level, with one thread and with two."""
    for level in LEVELS:
        for threads in (1, 2):
            got = run(session(model, way, level, threads), feeds)
            assert_same_bits(expected, got, f"{way}, {level}, {threads} threads")


def _row(name: str, value: Array, row: int) -> Array:
    axis = {"sequence_lens": 0, "Y": 2}.get(name, 1)
    return np.ascontiguousarray(np.take(value, [row], axis))


def assert_rows_are_independent(
    chosen: ort.InferenceSession, feeds: Mapping[str, Array], batch: int, what: str
) -> None:
    """Runs the rows of a batch together and each alone; inputs and outputs are named as those of the layer."""
    together = run(chosen, feeds)
    for row in range(batch):
        alone = run(chosen, {k: _row(k, v, row) for k, v in feeds.items()})
        assert_same_bits({k: _row(k, v, row) for k, v in together.items()}, alone, f"{what}, row {row}")


def assert_chunks_make_the_whole(
    chosen: ort.InferenceSession, feeds: Mapping[str, Array], starts: Sequence[int], reverse: bool, what: str
) -> None:
    """Runs a sequence as a whole, and in chunks of which each begins with the states that the one before ended with.

    Args:
        chosen: A layer with initial states and all outputs, one direction, named as those of the layer.
        feeds: Its inputs.
        starts: First steps of the chunks, ascending.
        reverse: Whether the last chunk is the first that runs.
        what: For messages.
    """
    whole = run(chosen, feeds)
    carried = {i: o for i, o in STATES.items() if o in whole}
    assert carried and carried.keys() <= feeds.keys(), f"{what}: {list(feeds)} -> {list(whole)} carries no states"
    state, pieces = dict(feeds), {}
    ends = [*starts[1:], len(feeds["X"])]
    for start, stop in sorted(zip(starts, ends, strict=True), reverse=reverse):
        got = run(chosen, state | {"X": feeds["X"][start:stop]})
        state |= {i: got[o] for i, o in carried.items()}
        pieces[start] = got["Y"]
    joined = np.concatenate([pieces[k] for k in starts])
    last = {o: got[o] for o in carried.values()}
    assert_same_bits(whole, {"Y": joined, **last}, f"{what}, chunks from {list(starts)}")
