"""Steps of LSTM, GRU or RNN layers that stay in their original operators."""

from __future__ import annotations

from dataclasses import dataclass

from rnnqc.ir import Node

STEP_NOTE = "step"
"""Key of the note beside the node that makes the hidden state of a step that stays as it is written."""


@dataclass(frozen=True)
class FloatStep:
    """A step of an LSTM, GRU or RNN layer that did not become a node.

    Attributes:
        op: Operator of the layer.
        refusal: Reason, found, action.
        products: Its matmuls with constants.
    """

    op: str
    refusal: tuple[str, str, str]
    products: tuple[Node, ...]
