"""Hypothesis strategies for recurrent layers: `tests.generate` with Hypothesis' choices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from hypothesis import strategies as st

from tests.generate.float_layer import Activation
from tests.generate.layers import RecurrentCase
from tests.generate.random_layers import OUTPUT_SUBSETS, draw_activation, draw_layer

__all__ = ["OUTPUT_SUBSETS", "activations", "any_cases", "gru_and_rnn_cases", "lstm_cases", "recurrent_cases"]

T = TypeVar("T")


class _HypothesisDraws:
    """Choices that Hypothesis makes, and shrinks."""

    def __init__(self, draw: st.DrawFn) -> None:
        self._draw = draw

    def choice(self, options: Sequence[T]) -> T:
        return self._draw(st.sampled_from(options))

    def integer(self, low: int, high: int) -> int:
        return self._draw(st.integers(low, high))

    def boolean(self) -> bool:
        return self._draw(st.booleans())

    def eighths(self, low: float, high: float) -> float:
        """Finer than its name says."""
        return self._draw(st.floats(low, high, width=16))


@st.composite
def activations(draw: st.DrawFn, name: st.SearchStrategy[str] | None = None) -> Activation:
    """One activation; alpha and beta are always written where it has some."""
    return draw_activation(_HypothesisDraws(draw), draw(name) if name is not None else None)


@st.composite
def recurrent_cases(draw: st.DrawFn, /, **fixed: Any) -> RecurrentCase:
    """Any `RecurrentCase`; arguments as of `draw_layer`."""
    return draw_layer(_HypothesisDraws(draw), **fixed)


lstm_cases = recurrent_cases


LSTM_ONLY = ("initial_c", "peepholes", "input_forget")


def gru_and_rnn_cases(**fixed: Any) -> st.SearchStrategy[RecurrentCase]:
    """Cases of both, GRU twice as often: it has two forms. What only LSTM has does not count in `fixed`."""
    kept = {k: v for k, v in fixed.items() if k not in LSTM_ONLY}
    return st.sampled_from(["GRU", "GRU", "RNN"]).flatmap(lambda op: recurrent_cases(op=op, **kept))


def any_cases(**fixed: Any) -> st.SearchStrategy[RecurrentCase]:
    """Cases of all operators, LSTM as often as the others together."""
    return lstm_cases(**fixed) | gru_and_rnn_cases(**fixed)
