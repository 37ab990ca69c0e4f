"""Descriptions of LSTM, GRU and RNN that the passes read: gates, states, quantization points.

The equations are in `rnnqc.cells.equations`. Every type has the inputs, outputs and weight layouts of ONNX's recurrent
operators: `X, W [D,GH,I], R [D,GH,H], B [D,2GH], sequence_lens, initial_h` -> `Y, Y_h`, for G gates, and with a cell
state `initial_c, P` and `Y_c`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from rnnqc.cells import equations
from rnnqc.cells.equations import CANDIDATE, CELL, FORGET, INPUT, OUTPUT, RESET_HIDDEN, RESET_PRODUCT, UPDATE


@dataclass(frozen=True)
class QuantizationPoint:
    """A place in a cell where a value may be quantized.

    Attributes:
        name: Path below the cell's name, e.g. `forget_gate.acc`.
        meaning: One line for `rnnqc recipes --points`.
    """

    name: str
    meaning: str


@dataclass(frozen=True)
class CellType:
    """The properties that distinguish a type of recurrent layer.

    Attributes:
        op: The operator of a layer in float.
        fused: Operator of the quantized cell.
        aliases: The number of further operators for it in the native library; see `fused_name`. 0 for a type without
            kernel.
        gates: Their names, in ONNX's order in W, R and B.
        activations: The default ones of a direction, in ONNX's order f, g, h.
        gate_activations: For each gate the number of its activation.
        points: Quantization points, in the order in which reports list them; `points_of` makes them.
        step: The equations (`rnnqc.cells.equations`).
        peephole_gates: Gates in the order of P.
        output_activation: Number of the activation between cell state and hidden state; None without cell state. A type
            with a cell state has LSTM's gates, in their order.
        candidate: The last gate, if its matmuls with W and R stay apart until another gate has multiplied its hidden
            state (point `RESET_HIDDEN`) or its matmul with R (`RESET_PRODUCT`); None without such a gate.
        update: The gate that mixes the hidden state with a new value: while its values are in 0 .. 1, the state after a
            step lies between the two.
        domain: Domain of `op`; empty for ONNX's.
        flag: Attribute of the operator that selects one of two forms of the equations, a field of `Cell`, or None.
    """

    op: str
    fused: str
    aliases: int
    gates: tuple[str, ...]
    activations: tuple[str, ...]
    gate_activations: tuple[int, ...]
    points: tuple[QuantizationPoint, ...] = field(repr=False)
    step: Callable[[Any], tuple[Any, Any]] = field(repr=False)
    peephole_gates: tuple[int, ...] = ()
    output_activation: int | None = None
    candidate: int | None = None
    update: int | None = None
    domain: str = ""
    flag: str | None = None

    @property
    def cell_state(self) -> bool:
        """Whether there is a cell state c in addition to the hidden state."""
        return self.output_activation is not None

    @property
    def joint(self) -> int:
        """The number of leading gates whose pre-activations are sums of both matmuls."""
        return len(self.gates) if self.candidate is None else self.candidate

    @property
    def state_points(self) -> tuple[str, ...]:
        """Points of the float state that a step reads: its two parts and the state; empty if states are quantized."""
        return tuple(p.name for p in self.points if p.name.startswith(("cell_state", "hidden_state")))

    @property
    def reads_hidden(self) -> bool:
        """Whether a step reads the hidden state itself and not only its matmul with R."""
        return bool(self.state_points) and not self.cell_state

    def fused_name(self, number: int) -> str:
        """Returns operator `number` < `aliases`: a name for one function body, with the same kernel as all others."""
        return alias_name(self.fused, number)

    @functools.cached_property
    def product_points(self) -> tuple[str, ...]:
        """Quantization points of the summands of pre-activations."""
        return tuple(p.name for p in self.points if p.name.endswith("_product"))


def alias_name(operator: str, number: int) -> str:
    """Returns the name of a further operator of the native library with the same kernel."""
    return f"{operator}_{number:02d}"


def points_of(
    gates: tuple[str, ...], state: tuple[tuple[str, str], ...], hidden: tuple[tuple[str, str], ...] = ()
) -> tuple[QuantizationPoint, ...]:
    """Returns the points of all types and those of one: of its `state`, and `hidden` ones after the hidden state."""

    def of_gates(part: str, meaning: str) -> list[tuple[str, str]]:
        return [(f"{g}.{part}", meaning.format(g.replace("_", " "))) for g in gates]

    described = [
        ("input", "the sequence x"),
        ("W.weight", "input weights"),
        ("R.weight", "recurrent weights"),
        ("bias", "the two ONNX biases, added"),
        ("hidden", "the hidden state in the recurrence, and as input of a following layer"),
        *hidden,
        ("accumulator", "integer sums of both products"),
        *of_gates("input_product", "x W + bias of the {}"),
        *of_gates("hidden_product", "h R of the {}"),
        *of_gates("acc", "pre-activation of the {}"),
        *of_gates("activation", "value of the {}"),
        *state,
    ]
    return tuple(QuantizationPoint(*d) for d in described)


_LSTM_GATES = ("input_gate", "output_gate", "forget_gate", "cell_gate")
LSTM = CellType(
    op="LSTM",
    fused="QuantLSTMCell",
    aliases=24,
    gates=_LSTM_GATES,
    activations=("Sigmoid", "Tanh", "Tanh"),
    gate_activations=(0, 0, 0, 1),
    points=points_of(
        _LSTM_GATES,
        (
            ("cell_state.kept", "the product f * c"),
            ("cell_state.added", "the product i * g"),
            ("cell_state", "the cell state c"),
            ("hidden.activation", "value of the output activation of c"),
        ),
    ),
    step=equations.lstm,
    peephole_gates=(INPUT, OUTPUT, FORGET),
    output_activation=2,
    flag="input_forget",
)

_GRU_GATES = ("update_gate", "reset_gate", "hidden_gate")
GRU = CellType(
    op="GRU",
    fused="QuantGRUCell",
    aliases=16,
    gates=_GRU_GATES,
    activations=("Sigmoid", "Tanh"),
    gate_activations=(0, 0, 1),
    points=points_of(
        _GRU_GATES,
        (
            (RESET_PRODUCT, "r * (h R + bias) of the hidden gate, where linear_before_reset = 1"),
            ("hidden_state.kept", "the product z * h"),
            ("hidden_state.added", "the product (1 - z) * n"),
            ("hidden_state", "the hidden state itself, from step to step"),
        ),
        hidden=((RESET_HIDDEN, "r * h in front of R, where linear_before_reset = 0"),),
    ),
    step=equations.gru,
    candidate=CANDIDATE,
    update=UPDATE,
    flag="linear_before_reset",
)

_RNN_GATES = ("hidden_gate",)
RNN = CellType(
    op="RNN",
    fused="QuantRNNCell",
    aliases=8,
    gates=_RNN_GATES,
    activations=("Tanh",),
    gate_activations=(0,),
    points=points_of(_RNN_GATES, ()),
    step=equations.rnn,
)

CELL_TYPES = {t.op: t for t in (LSTM, GRU, RNN)}
"""The types by operator."""


def type_of(op: str, domain: str | None) -> CellType | None:
    """Returns the type of a recurrent layer in float; None for another operator."""
    type_ = CELL_TYPES.get(op)
    return type_ if type_ is not None and type_.domain == (domain or "") else None


def fused_type(op: str) -> CellType | None:
    """Returns the type whose quantized cell is the operator `op`, under any of its names."""
    return next((t for t in CELL_TYPES.values() if op == t.fused or op.startswith(f"{t.fused}_")), None)


def all_points() -> dict[str, list[CellType]]:
    """Returns the names of all quantization points, and the types that have each."""
    names = dict.fromkeys(p.name for t in CELL_TYPES.values() for p in t.points)
    return {n: [t for t in CELL_TYPES.values() if any(p.name == n for p in t.points)] for n in names}


# The gates of LSTM: some arithmetics support only these.
GATES = LSTM.gates
PEEPHOLE_GATES = LSTM.peephole_gates
assert tuple(range(len(GATES))) == (INPUT, OUTPUT, FORGET, CELL)


def output_names(type_: CellType) -> tuple[str, ...]:
    """Returns the operator's outputs."""
    return ("Y", "Y_h", "Y_c") if type_.cell_state else ("Y", "Y_h")
