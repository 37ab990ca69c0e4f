"""What a recurrent cell is: its gates, states and quantization points, and one instance of it in a model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from rnnqc.cells.activations import Activation

# ONNX order of the LSTM gates in W, R, B and P. Index gates only through this tuple.
GATES = ("input_gate", "output_gate", "forget_gate", "cell_gate")
INPUT, OUTPUT, FORGET, CELL = range(4)
PEEPHOLE_GATES = (INPUT, OUTPUT, FORGET)


@dataclass(frozen=True)
class QuantizationPoint:
    """A place in a cell where a value may be quantized.

    Attributes:
        name: Path below the cell's name, e.g. `forget_gate.acc`.
        meaning: One line for `rnnqc recipes`.
    """

    name: str
    meaning: str


_SPOKEN = {g: g.replace("_", " ") for g in GATES}
LSTM_POINTS: tuple[QuantizationPoint, ...] = (
    QuantizationPoint("input", "the sequence x"),
    QuantizationPoint("W.weight", "input weights"),
    QuantizationPoint("R.weight", "recurrent weights"),
    QuantizationPoint("bias", "the two ONNX biases, added"),
    QuantizationPoint("hidden", "the hidden state in the recurrence, and as input of a following layer"),
    QuantizationPoint("accumulator", "integer sums of both products"),
    *(QuantizationPoint(f"{g}.input_product", f"x W + bias of the {_SPOKEN[g]}") for g in GATES),
    *(QuantizationPoint(f"{g}.hidden_product", f"h R of the {_SPOKEN[g]}") for g in GATES),
    *(QuantizationPoint(f"{g}.acc", f"pre-activation of the {_SPOKEN[g]}") for g in GATES),
    *(QuantizationPoint(f"{g}.activation", f"value of the {_SPOKEN[g]}") for g in GATES),
    QuantizationPoint("cell_state.kept", "the product f * c"),
    QuantizationPoint("cell_state.added", "the product i * g"),
    QuantizationPoint("cell_state", "the cell state c"),
    QuantizationPoint("hidden.activation", "value of the output activation of c"),
)
PRODUCT_POINTS = tuple(p.name for p in LSTM_POINTS if p.name.endswith("_product"))


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
        activations: Of the gates i, o, f (one activation), of gate c, and of the output.
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
        W: Initializer `[I, 4H]` float32.
        R: Initializer `[H, 4H]` float32.
        B: Initializer `[4H]` float32, the two ONNX biases added.
        P: Initializer `[3H]` float32, or None.
        points: What a recipe says about each quantization point, once resolved.
        form: `float`, `qcdq`, `integer` or `fused`.
        kept: Why a pass left the cell in this form; not stored in files.
        integer: Scalars of the integer form.
        operands: Initializers and values of the integer form, by input name of `QuantLSTMCell`.
        y_codes: Output value `[T,B,H]` of hidden codes, or None.
    """

    name: str
    node: str
    op: str
    hidden_size: int
    input_size: int
    reverse: bool
    activations: tuple[Activation, Activation, Activation]
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
    points: dict[str, dict[str, Any]] = field(default_factory=dict)
    form: str = "float"
    kept: str = ""
    integer: dict[str, Any] = field(default_factory=dict)
    operands: dict[str, str] = field(default_factory=dict)
    y_codes: str | None = None

    @property
    def outputs(self) -> list[str]:
        """Names of the output values that exist."""
        return [v for v in (self.y, self.y_h, self.y_c) if v is not None]

    def gate_activation(self, gate: int) -> Activation:
        """The activation of a gate (index into `GATES`)."""
        return self.activations[1] if gate == CELL else self.activations[0]

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready values. The per-channel scales of an integer form stand in its multipliers, and are left out."""
        data = asdict(self)
        del data["kept"]
        if self.form in ("integer", "fused"):
            for point in data["points"].values():
                if len(point.get("scale") or []) > 1:
                    del point["scale"]
        return data

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Cell:
        """The inverse of `as_dict`."""
        known = {f.name for f in fields(cls)}
        values = {k: v for k, v in data.items() if k in known}
        values["activations"] = tuple(Activation(**a) for a in data["activations"])
        return cls(**values)
