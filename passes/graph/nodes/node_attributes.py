"""Attributes of ONNX's LSTM, GRU and RNN nodes, without those that have their default."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rnnqc.cells.activations import Activation, takes_alpha, takes_beta
from rnnqc.cells.types import CellType


def node_attributes(
    type_: CellType,
    hidden_size: int,
    activations: Sequence[Activation],
    *,
    linear_before_reset: bool = False,
    input_forget: bool = False,
) -> dict[str, Any]:
    """Returns the attributes of a node with one direction.

    Args:
        type_: LSTM, GRU or RNN.
        hidden_size: H.
        activations: In ONNX's order.
        linear_before_reset: For GRU.
        input_forget: For LSTM.
    """
    made: dict[str, Any] = {"hidden_size": hidden_size}
    names = [a.name for a in activations]
    if names != list(type_.activations):
        made["activations"] = names
        alphas = [a.alpha for a in activations if takes_alpha(a.name)]
        betas = [a.beta for a in activations if takes_beta(a.name)]
        if alphas:
            made["activation_alpha"] = alphas
        if betas:
            made["activation_beta"] = betas
    if linear_before_reset:
        made["linear_before_reset"] = 1
    if input_forget:
        made["input_forget"] = 1
    return made
