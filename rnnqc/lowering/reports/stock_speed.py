"""Reports which lowered layers are slower than float in standard operators, and the alternatives."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rnnqc.cells.types import CELL_TYPES, LSTM
from rnnqc.passes.analysis.custom_cell import WEIGHT
from rnnqc.passes.analysis.find_recurrent_nodes import RecurrentNode

STOCK_COLUMNS = 4 * 256
"""With this many columns of W and R (gates times units), a cell in standard operators is about as fast as in float."""
STOCK_WEIGHTS = 2**17
"""From this mean number of weights per matmul on, a custom cell in standard operators is about as fast as in float,
in a loop and unrolled. Highway, projection, LayerNorm and sLSTM cells break even between 1.1 and 1.5 times 10^5.
"""


def slower_without_library(nodes: Iterable[RecurrentNode]) -> str:
    """A sentence about the layers that are slower than float in stock onnxruntime; "" if there are none.

    Args:
        nodes: Nodes that become, or have become, cells of form fused or integer, and custom cells.
    """
    nodes = list(nodes)
    return " ".join(filter(None, (_slow_layers(nodes), _slow_cells(nodes))))


def slow_custom_cells(nodes: Iterable[RecurrentNode]) -> list[tuple[RecurrentNode, int]]:
    """Returns custom cells that are slower in standard operators than in float, with their weights per matmul."""
    cells = [(n, _weights_of_a_matmul(n)) for n in nodes if n.op not in CELL_TYPES]
    return [(n, weights) for n, weights in cells if 0 < weights < STOCK_WEIGHTS]


def _weights_of_a_matmul(node: RecurrentNode) -> int:
    """Returns the mean number of weights per matmul of a float custom cell; 0 for another node."""
    matmuls = sum(p.endswith(f".{WEIGHT}") for p in node.attributes.get("points", ()))
    return 0 if node.form or not matmuls else node.weight_bytes // 4 // matmuls


def _slow_cells(nodes: Sequence[RecurrentNode]) -> str:
    slow = slow_custom_cells(nodes)
    if not slow:
        return ""
    return (
        f"In standard operators, without rnnqc's library, {len(slow)} custom cell(s) are slower than in float (matmuls "
        f"of {min(weights for _, weights in slow)} weights; {STOCK_WEIGHTS} break even): for programs that cannot load "
        "the library the float model is faster."
    )


def _slow_layers(nodes: Sequence[RecurrentNode]) -> str:
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
