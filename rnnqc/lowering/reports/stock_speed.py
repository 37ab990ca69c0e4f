"""Says which lowered layers are slower than float where the native library is absent, and what to choose there."""

from __future__ import annotations

from collections.abc import Iterable

from rnnqc.cells.types import CELL_TYPES, LSTM
from rnnqc.passes.analysis.find_recurrent_nodes import RecurrentNode

STOCK_COLUMNS = 4 * 256
"""Columns of W and R, gates times units, from which on a cell in standard operators is about as fast as in float."""


def slower_without_library(nodes: Iterable[RecurrentNode]) -> str:
    """A sentence about the layers that are slower than float in stock onnxruntime; "" if there are none.

    Args:
        nodes: LSTM, GRU and RNN nodes that become, or have become, cells of form fused or integer.
    """
    layers = [n for n in nodes if n.op in CELL_TYPES and n.attributes.get("hidden_size")]
    slow = [n for n in layers if len(CELL_TYPES[n.op].gates) * int(n.attributes["hidden_size"]) < STOCK_COLUMNS]
    if not slow:
        return ""
    lstm = any(n.op == LSTM.op for n in slow)
    others = any(n.op != LSTM.op for n in slow)
    choices = ["--form ort for LSTM"] if lstm else []
    choices += ["--recipe weight-only-int8 for GRU and RNN"] if others else []
    small = min(len(CELL_TYPES[n.op].gates) * int(n.attributes["hidden_size"]) for n in slow)
    return (
        f"In stock onnxruntime, without rnnqc's library, {len(slow)} of {len(layers)} recurrent layers are slower than "
        f"in float (W and R of {small} columns; {STOCK_COLUMNS} break even). For programs that cannot load the "
        f"library: {', '.join(choices)}, or the float model."
    )
