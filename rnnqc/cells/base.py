"""One recurrent cell in a model: one direction of one layer."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any, ClassVar, TypeVar

from rnnqc.cells.activations import Activation
from rnnqc.cells.equations import CELL, FORGET, INPUT, OUTPUT
from rnnqc.cells.types import CELL_TYPES, GATES, LSTM, PEEPHOLE_GATES, CellType, QuantizationPoint

__all__ = [
    "CELL", "FORGET", "GATES", "INPUT", "LSTM_POINTS", "OUTPUT", "PEEPHOLE_GATES", "PRODUCT_POINTS", "Cell", "CellType",
    "QuantizationPoint", "Size", "fixed",
]  # fmt: skip

C = TypeVar("C", bound="Cell")
Size = int | str | None
"""A dimension: its size, its name, or None."""
LSTM_POINTS = LSTM.points
PRODUCT_POINTS = LSTM.product_points


def fixed(size: Size) -> int | None:
    """Returns the size of a dimension, if it is known."""
    return size if isinstance(size, int) else None


@dataclass(frozen=True)
class Cell:
    """One direction of one recurrent layer: its equations, sizes, parameters and boundary.

    Later passes add to it in types of their own (`rnnqc.cells.stages`). A pass that changes a cell puts a new one into
    `Model.cells`.

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
        linear_before_reset: GRU: whether the reset gate multiplies the matmul with R instead of the hidden state.
        hidden_bias: GRU with linear_before_reset: initializer `[H]` float32, the part of the hidden gate's bias that
            the reset gate multiplies; it is not in B.
        batch: The name of the batch size where an input of the model has a dimension of that name, else None.
    """

    form: ClassVar[str] = "float"

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
    linear_before_reset: bool = False
    hidden_bias: str | None = None
    batch: str | None = None

    @property
    def batch_dimension(self) -> Size:
        """The batch in shapes: its size or name, otherwise a name unique to the cell; None for a cell without a name.

        onnxruntime assumes that equal names mean equal sizes, and reuses memory accordingly.
        """
        return self.static_batch or self.batch or (f"{self.name}/batch" if self.name else None)

    @property
    def type(self) -> CellType:
        """LSTM, GRU or RNN."""
        return CELL_TYPES.get(self.op, LSTM)  # other operators are LSTM cells

    @property
    def outputs(self) -> list[str]:
        """Names of the existing output values."""
        return [v for v in (self.y, self.y_h, self.y_c) if v is not None]

    def gate_activation(self, gate: int) -> Activation:
        """Returns the activation of a gate (index into the gates of its type)."""
        return self.activations[self.type.gate_activations[gate]]

    def activation_of(self, name: str) -> Activation | None:
        """Returns the activation of a gate, by its name, or else that of the output."""
        gates = self.type.gates
        return self.gate_activation(gates.index(name)) if name in gates else self.output_activation

    @property
    def output_activation(self) -> Activation | None:
        """The activation between cell state and hidden state; None without cell state."""
        number = self.type.output_activation
        return None if number is None else self.activations[number]

    @property
    def flags(self) -> dict[str, int]:
        """The operator attribute that selects one of two forms of the equations, if the type has one."""
        return {} if self.type.flag is None else {self.type.flag: int(getattr(self, self.type.flag))}

    @property
    def resets_state(self) -> bool:
        """Whether R multiplies, for the candidate, a hidden state already multiplied by a gate."""
        return self.type.candidate is not None and not self.linear_before_reset

    @property
    def candidate_columns(self) -> slice:
        """The columns of W and R that belong to the candidate; empty for a type without one."""
        return slice(self.type.joint * self.hidden_size, len(self.type.gates) * self.hidden_size)

    @property
    def rounds_output(self) -> bool:
        """Whether hidden states are rounded when they are computed, not when they are read."""
        return False

    def without_dead_outputs(self: C, alive: Collection[str]) -> C:
        """Returns the cell without outputs that no node produces; `alive` are the values that nodes produce."""
        gone: dict[str, Any] = {k: None for k in ("y", "y_h", "y_c") if getattr(self, k) not in alive}
        return replace(self, **gone)

    def renamed(self: C, old: str, new: str) -> C:
        """Returns the cell after a value or initializer that it names was renamed."""
        found: dict[str, Any] = {n: new for n in VALUES if getattr(self, n, None) == old}
        return replace(self, **found) if found else self


PARAMETERS = ("W", "R", "B", "P", "hidden_bias")
VALUES = ("x", "sequence_lens", "initial_h", "initial_c", "y", "y_h", "y_c", *PARAMETERS)
"""Fields that name values and initializers."""
