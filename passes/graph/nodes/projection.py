"""LSTM nodes that an exporter wrote for an LSTM with projection, which the operator does not support."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rnnqc.cells.types import LSTM
from rnnqc.errors import CompileError
from rnnqc.ir import Node, display_name

Shape = Sequence[int | str | None] | None


def check_projection(node: Node, hidden: int, shapes: Mapping[str, Shape]) -> None:
    """Raises CompileError if the node's shapes are those of an LSTM whose hidden state is projected to fewer units.

    PyTorch's exporter (dynamo) writes one with the projection's size as `hidden_size`, gates truncated to that size,
    and without the projection matrix; others keep `R [D,4H,P]`.

    Args:
        node: An LSTM.
        hidden: Its attribute hidden_size.
        shapes: Shapes of the inputs R, initial_h and initial_c, as far as known.
    """
    found = [s[2] if s is not None and len(s) == 3 else None for s in map(shapes.get, ("R", "initial_h", "initial_c"))]
    r, h, c = (size if isinstance(size, int) else None for size in found)
    rows = shapes["R"][1] if r is not None and shapes["R"] is not None else None
    cell = None
    if c is not None and c > hidden and (r, h) in ((hidden, hidden), (hidden, None), (None, hidden)):
        projected, cell = hidden, c
    elif r is not None and r < hidden and isinstance(rows, int) and rows == len(LSTM.gates) * hidden:
        projected, cell = r, hidden
    if cell is None:
        return
    listed = ", ".join(f"{name} {list(s)}" for name, s in shapes.items() if s is not None)
    raise CompileError(
        f'Operator "{node.op}" (node {display_name(node)!r}): {projected} hidden and {cell} cell units are an LSTM '
        f"with projection (proj_size = {projected}), which ONNX does not have and onnxruntime does not run: "
        f"hidden_size = {hidden}, {listed}.",
        supported="LSTM whose states have one size",
        action="export the layer as a loop over its step (torch.nn.LSTMCell and a matmul), or train with proj_size "
        "= 0; this file does not hold the layer",
    )
