"""One recurrent cell in a model: one direction of one layer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from rnnqc.cells.activations import Activation
from rnnqc.cells.equations import CELL, FORGET, INPUT, OUTPUT
from rnnqc.cells.types import CELL_TYPES, GATES, LSTM, PEEPHOLE_GATES, CellType, QuantizationPoint
from rnnqc.formats.point_format import FLOAT, PointFormat

__all__ = [
    "CELL", "FORGET", "GATES", "INPUT", "LSTM_POINTS", "OUTPUT", "PEEPHOLE_GATES", "PRODUCT_POINTS", "Cell", "CellType",
    "QuantizationPoint", "Size", "fixed",
]  # fmt: skip

Size = int | str | None
"""A dimension: its size, its name, or None."""
LSTM_POINTS = LSTM.points
PRODUCT_POINTS = LSTM.product_points


def fixed(size: Size) -> int | None:
    """The size of a dimension, if it is known."""
    return size if isinstance(size, int) else None


@dataclass
class Cell:
    """One direction of one recurrent layer, found in a model and decomposed.

    Names are those of values of the graph that holds the cell; parameters are initializers of the main graph. Every
    node of the cell carries the cell's name in its metadata, so the cell survives saving and loading.

    Attributes:
        name: Unique, path-like: `<node>.forward`.
        node: Name of the recurrent node it came from, with its path through subgraphs.
        op: Operator type it came from.
        hidden_size: H.
        input_size: I.
        reverse: Whether time runs backwards.
        activations: In ONNX's order: f, g, h of LSTM (gates i, o, f; gate c; output), f, g of GRU (z, r; h), f of RNN.
        clip: Limit of the pre-activations; None for none.
        input_forget: Whether f = 1 - i.
        static_length: The sequence length where the graph fixes it.
        static_batch: The batch size where the graph fixes it.
        x: The input `[T, B, I]`.
        sequence_lens: `[B]` int32, or None.
        initial_h: `[B, H]`, or None.
        initial_c: `[B, H]`, or None.
        y: Output value `[T, B, H]`, or None.
        y_h: Output value `[B, H]`, or None.
        y_c: Output value `[B, H]`, or None.
        W: Initializer `[I, GH]` float32, for G gates.
        R: Initializer `[H, GH]` float32.
        B: Initializer `[GH]` float32, the two ONNX biases added.
        P: Initializer `[3H]` float32, or None.
        points: The format of each quantization point, once a recipe is resolved.
        form: `float`, `qcdq`, `integer`, `fused` or `qonnx`.
        kept: Why a pass left the cell in this form; not stored in files.
        integer: Scalars of the integer form.
        operands: Initializers and values of the integer form, by input name of `QuantLSTMCell`.
        y_codes: Output value `[T,B,H]` of hidden codes, or None.
        linear_before_reset: GRU: whether the reset gate multiplies the product with R instead of the hidden state.
        hidden_bias: GRU with linear_before_reset: initializer `[H]` float32, the part of the hidden gate's bias that
            the reset gate multiplies; it is not in B.
        batch: The name of the batch size where an input of the model has a dimension of that name, else None.
    """

    name: str
    node: str
    op: str
    hidden_size: int
    input_size: int
    reverse: bool
    activations: tuple[Activation, ...]
    clip: float | None
    input_forget: bool
    static_length: int | None
    static_batch: int | None
    x: str
    sequence_lens: str | None
    initial_h: str | None
    initial_c: str | None
    y: str | None
    y_h: str | None
    y_c: str | None
    W: str
    R: str
    B: str
    P: str | None
    points: dict[str, PointFormat] = field(default_factory=dict)
    form: str = "float"
    kept: str = ""
    integer: dict[str, Any] = field(default_factory=dict)
    operands: dict[str, str] = field(default_factory=dict)
    y_codes: str | None = None
    linear_before_reset: bool = False
    hidden_bias: str | None = None
    batch: str | None = None

    @property
    def batch_dimension(self) -> Size:
        """The batch in shapes: its size or its name, or one that no other cell has; None for a cell without a name.

        onnxruntime takes values whose shapes have equal names for equally large, and gives one the memory of another.
        """
        return self.static_batch or self.batch or (f"{self.name}/batch" if self.name else None)

    @property
    def type(self) -> CellType:
        """LSTM, GRU or RNN."""
        return CELL_TYPES.get(self.op, LSTM)  # others are cells of LSTMs

    def point(self, name: str) -> PointFormat:
        """The format of a quantization point; float where none is known."""
        return self.points.get(name, FLOAT)

    @property
    def outputs(self) -> list[str]:
        """Names of the output values that exist."""
        return [v for v in (self.y, self.y_h, self.y_c) if v is not None]

    def gate_activation(self, gate: int) -> Activation:
        """The activation of a gate (index into the gates of its type)."""
        return self.activations[self.type.gate_activations[gate]]

    @property
    def output_activation(self) -> Activation | None:
        """The activation between cell state and hidden state; None without cell state."""
        number = self.type.output_activation
        return None if number is None else self.activations[number]

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready values. The per-channel scales of an integer form stand in its multipliers, and are left out."""
        data = {f.name: _plain(getattr(self, f.name)) for f in fields(self) if f.name not in ("kept", "points")}
        folded = self.form in ("integer", "fused")
        data["points"] = {n: (p.without_channel_scales() if folded else p).as_dict() for n, p in self.points.items()}
        return data

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Cell:
        """The inverse of `as_dict`."""
        known = {f.name for f in fields(cls)}
        values = {k: v for k, v in data.items() if k in known}
        values["activations"] = tuple(Activation(**a) for a in data["activations"])
        values["points"] = {n: PointFormat.from_dict(p) for n, p in data.get("points", {}).items()}
        return cls(**values)


def _plain(value: Any) -> Any:
    """A copy of containers, with dictionaries for dataclasses."""
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)([v if type(v) in (float, int) else _plain(v) for v in value])
    return asdict(value) if isinstance(value, Activation) else value
