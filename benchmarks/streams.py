"""The number of streams that one process serves, and the time that a frame waits, float and lowered.

    python benchmarks/streams.py [--layer 128x256 | --model FLOAT.onnx --state h:hn c:cn] [--streams 1 4 16 64]
                                 [--threads 1 2] [--frame-ms 8] [--json OUT.json]

Every stream has one frame in each tick. Two ways: each frame is a call of its own ("own calls"), or all streams of a
thread are rows of one call ("one call"; the model's batch must be open). Threads share one session and divide the
streams. States are in two sets of bound buffers that alternate, so that no call allocates or copies any.

A tick lasts from its first call to the end of its last one on one thread: the longest that a frame waits. Frames per
second follow from the median; "in real time" is the number of streams served if a frame lasts `--frame-ms`.
Models take turns; the round with the smallest median counts for each.
"""

from __future__ import annotations

import argparse
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime as ort
from support.layers import Layer
from support.reporting import report

import rnnqc
from rnnqc.data.state_pairs import state_pairs

Array = npt.NDArray[Any]
OWN, JOINED = "own calls", "one call"
FLOAT, INT8 = "float", "int8"
TYPES = {"tensor(float)": np.float32, "tensor(int64)": np.int64, "tensor(int32)": np.int32}


def streaming_layer(text: str) -> tuple[onnx.ModelProto, dict[str, str]]:
    """Returns an LSTM of IxH that is called for single steps, and its states."""
    layer = Layer.parse(f"1x1x{text}", symbolic_time=True, symbolic_batch=True, states=True)
    return layer.model(), {"h0": "Y_h", "c0": "Y_c"}


class Rows:
    """Streams that advance together, each as a row of one call."""

    def __init__(self, session: ort.InferenceSession, state: Mapping[str, str], rows: int, seed: int) -> None:
        self._session = session
        self._calls = (session.io_binding(), session.io_binding())
        self._turn = 0
        self.buffers: dict[str, tuple[Array, ...]] = {}
        rng = np.random.default_rng(seed)
        for given in session.get_inputs():
            shape = shape_of(given.shape, rows, stepping=given.name not in state)
            dtype = TYPES[given.type]
            if given.name in state:
                both = (np.zeros(shape, dtype), np.zeros(shape, dtype))
                for call, before, after in zip(self._calls, both, both[::-1], strict=True):
                    call.bind_ortvalue_input(given.name, ort.OrtValue.ortvalue_from_numpy(before))
                    call.bind_ortvalue_output(state[given.name], ort.OrtValue.ortvalue_from_numpy(after))
                self.buffers[given.name] = both
            else:
                frame = rng.standard_normal(shape).astype(dtype)
                for call in self._calls:
                    call.bind_ortvalue_input(given.name, ort.OrtValue.ortvalue_from_numpy(frame))
                self.buffers[given.name] = (frame,)
        self._result = len(state)  # outputs have the order in which they were bound
        for made in session.get_outputs():
            if made.name not in state.values():
                for call in self._calls:
                    call.bind_output(made.name)

    def step(self) -> None:
        """Runs one frame of each stream."""
        self._session.run_with_iobinding(self._calls[self._turn])
        self._turn = 1 - self._turn

    def result(self) -> Array:
        """The first output of the last step that is not a state."""
        call = self._calls[1 - self._turn]
        return np.asarray(call.get_outputs()[self._result].numpy())


def shape_of(dimensions: Sequence[int | str | None], rows: int, *, stepping: bool) -> list[int]:
    """Returns the shape for one step of `rows` rows; the first open dimension of values that are not states is time."""
    shape = []
    for dimension in dimensions:
        if isinstance(dimension, int):
            shape.append(dimension)
        else:
            shape.append(1 if stepping else rows)
            stepping = False
    return shape


def has_rows(session: ort.InferenceSession, state: Mapping[str, str]) -> bool:
    """Whether the states have an open dimension."""
    return all(any(not isinstance(d, int) for d in i.shape) for i in session.get_inputs() if i.name in state)


@dataclass
class Served:
    """The result of one burst: times of ticks in microseconds, of all threads."""

    ticks: Array

    @property
    def median(self) -> float:
        """The median time of a tick."""
        return float(np.median(self.ticks))


def serve(groups: Sequence[Sequence[Rows]], seconds: float) -> Served:
    """Lets every thread serve its streams for `seconds`."""
    times: list[list[float]] = [[] for _ in groups]
    begin = threading.Barrier(len(groups) + 1)

    def work(mine: Sequence[Rows], taken: list[float]) -> None:
        for rows in mine:
            rows.step()
        begin.wait()
        end = time.perf_counter() + seconds
        last = time.perf_counter()
        while last < end:
            for rows in mine:
                rows.step()
            now = time.perf_counter()
            taken.append(now - last)
            last = now

    threads = [threading.Thread(target=work, args=(g, t)) for g, t in zip(groups, times, strict=True)]
    for thread in threads:
        thread.start()
    begin.wait()
    for thread in threads:
        thread.join()
    return Served(1e6 * np.concatenate(times))


def shared_out(
    session: ort.InferenceSession, state: Mapping[str, str], way: str, streams: int, threads: int
) -> list[list[Rows]]:
    """Distributes the streams to the threads."""
    each = streams // threads
    if way == JOINED:
        return [[Rows(session, state, each, k)] for k in range(threads)]
    return [[Rows(session, state, 1, k * each + i) for i in range(each)] for k in range(threads)]


def measure(
    models: Mapping[str, ort.InferenceSession],
    state: Mapping[str, str],
    streams: int,
    threads: int,
    rounds: int,
    frame_ms: float,
    seconds: float = 0.1,
) -> list[dict[str, Any]]:
    """Measures the rows for these numbers of streams and threads."""
    ways = [OWN, *([JOINED] if has_rows(models[FLOAT], state) and streams > threads else [])]
    served: dict[tuple[str, str], list[Served]] = {}
    groups = {(w, m): shared_out(s, state, w, streams, threads) for w in ways for m, s in models.items()}
    for _ in range(rounds):
        for key, group in groups.items():
            served.setdefault(key, []).append(serve(group, seconds))
    best = {key: min(rows, key=lambda s: s.median) for key, rows in served.items()}
    rows = []
    for (way, model), found in best.items():
        frames = 1e6 * streams / found.median
        rows.append(
            {
                "streams": streams,
                "threads": threads,
                "way": way,
                "model": model,
                "frames/s": frames,
                "in real time": int(frames * frame_ms / 1e3),
                "tick us": found.median,
                "99 %": float(np.quantile(found.ticks, 0.99)),
                "of float": best[way, FLOAT].median / found.median,
            }
        )
    return rows


def main() -> None:
    """Measures, prints, writes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layer", default="128x256", help="IxH of an LSTM")
    parser.add_argument("--model", type=Path, help="a float model instead")
    parser.add_argument("--state", nargs="+", default=[], metavar="IN:OUT", help="its states")
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 4, 16, 64])
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--frame-ms", type=float, default=8.0)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    model, state = streaming_layer(arguments.layer)
    if arguments.model:
        model = onnx.load(arguments.model)
        state = state_pairs(arguments.state, model)
    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    lowered = rnnqc.lower(model, rest="int8").proto
    models = {name: rnnqc.session(m, options=options) for name, m in ((FLOAT, model), (INT8, lowered))}
    rows = [
        row
        for threads in arguments.threads
        for streams in arguments.streams
        if streams % threads == 0
        for row in measure(models, state, streams, threads, arguments.rounds, arguments.frame_ms)
    ]
    name = arguments.model.name if arguments.model else f"LSTM {arguments.layer}"
    report(f"Streams of {name}, frames of {arguments.frame_ms:g} ms", rows, arguments.json)


if __name__ == "__main__":
    main()
