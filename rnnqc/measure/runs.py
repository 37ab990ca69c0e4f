"""Runs models on the calls of some data."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

import onnx
import onnxruntime as ort

from rnnqc import runtime_ops
from rnnqc.data.feeds import Feeds
from rnnqc.data.given_data import Data
from rnnqc.data.state_pairs import state_pairs
from rnnqc.data.streaming import Outputs, Piece, calls_of, run_calls
from rnnqc.errors import located
from rnnqc.evaluation.evaluate import make_session, run_session

State = Mapping[str, str] | Iterable[str] | None


@dataclass(frozen=True)
class Calls:
    """The calls of some data, in memory.

    Attributes:
        pieces: The calls, in order.
        carried: Outputs by the input they become in the next call; empty if every feed stands alone.
    """

    pieces: Sequence[Piece]
    carried: Mapping[str, str]

    @classmethod
    def of(cls, data: Data, model: onnx.ModelProto, state: State = None, *, labels: str | None = None) -> Calls:
        """Reads the calls in some data.

        Args:
            data: See `Data`.
            model: The model.
            state: Outputs by the input they become in the next call, or texts `IN:OUT`.
            labels: Keep arrays that are not inputs (see `calls_of`).

        Raises:
            CompileError: The data cannot be read, is empty or does not fit.
        """
        carried = state_pairs(state, model)
        return cls(list(calls_of(data, model, carried, labels=labels)), carried)

    @property
    def feeds(self) -> list[Feeds]:
        """The arrays of each call, without states that come from the call before."""
        return [piece.feed for piece in self.pieces]


@dataclass
class Runner:
    """A model in onnxruntime; its session starts with the first run.

    Attributes:
        model: The model as onnxruntime runs it.
        name: Its name in messages; "" for none.
        native: Whether it runs with the native library.
        optimize: Whether onnxruntime may optimize the graph.
        sequences: Whether outputs may be sequences of tensors.
    """

    model: onnx.ModelProto
    name: str = ""
    native: bool = False
    optimize: bool = True
    sequences: bool = False

    @cached_property
    def session(self) -> ort.InferenceSession:
        """The session.

        Raises:
            CompileError: onnxruntime refuses the model.
        """
        return make_session(self.model, native=self.native, optimize=self.optimize)

    def outputs(self, calls: Calls) -> Iterator[Outputs]:
        """Yields the outputs of every call, in order, carrying the model's states.

        Raises:
            CompileError: onnxruntime refuses the model or fails while running it.
        """
        with located(self.name) if self.name else contextlib.nullcontext():
            run = partial(run_session, self.session, sequences=self.sequences)
            yield from run_calls(run, calls.pieces, calls.carried)


def has_native() -> bool:
    """Whether the native library can be loaded; without it results are the same bits, only slower."""
    try:
        runtime_ops.register(ort.SessionOptions())
    except (OSError, RuntimeError):
        return False
    return True
