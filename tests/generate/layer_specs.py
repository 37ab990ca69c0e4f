"""The specification of one LSTM, GRU or RNN node and of its place; it determines weights and feeds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from tests.generate.float_layer import GATES, USES_ALPHA, USES_BETA, Activation, Direction

Array = npt.NDArray[Any]
Weights = Literal["initializer", "constant", "computed", "body"]
States = Literal["input", "constant", "learned", "computed"]
Attributes = Literal["own", "given", "default", "overridden"]
Op = Literal["LSTM", "GRU", "RNN"]
Placement = Literal["main", "if", "loop", "scan", "function"]
OUTPUTS = ("Y", "Y_h", "Y_c")
INPUTS = (None, "W", "R", "B", "sequence_lens", "initial_h", "initial_c", "P")
FEATURES = 4
ITERATIONS = 2  # of placements "loop" and "scan"
NODE_NAME = "the_lstm"


@dataclass(frozen=True)
class LayerSpec:
    """One recurrent layer and where it stands; `outputs` that the operator does not have are left out.

    Placements: "if" has the layer in the then-branch and the layer with R negated in the else-branch, input
    `condition` chooses; "loop" runs the layer over the same X, "scan" over the slices of X `[ITERATIONS, ...]`, both
    carry the states that the case has as initial ones and stack the outputs; "function" calls a model-local function
    with the layer in it.

    Weights "body" are initializers of the branches or bodies that the placement has. Initial states come from inputs,
    constants `[D,B,H]`, rows `[D,1,H]` for the whole batch ("learned"), or products of the input `features`
    `[B,FEATURES]` ("computed"); `magnitude` is theirs. Attributes of a layer in a function are its own, or the
    function's, which the call gives, or their defaults, or which the call gives in place of others. In a function
    `leaky` is the alpha of a LeakyRelu node in front of the layer. A layer that is `tied` uses W as R.
    """

    T: int = 5
    B: int = 2
    I: int = 3  # noqa: E741 - the operator's name for it
    H: int = 4
    direction: Direction = "forward"
    bias: bool = True
    lens: tuple[int, ...] | None = None
    initial_h: bool = False
    initial_c: bool = False
    peepholes: bool = False
    clip: float | None = None
    input_forget: bool = False
    layout: int = 0
    activations: tuple[Activation, ...] | None = None
    outputs: tuple[str, ...] = OUTPUTS
    dynamic_time: bool = False
    dynamic_batch: bool = False
    opset: int = 17
    weights: Weights = "initializer"
    placement: Placement = "main"
    gain: float = 1.0
    seed: int = 0
    op: Op = "LSTM"
    linear_before_reset: bool = False
    states_from: States = "input"
    magnitude: float = 1.0
    function_attributes: Attributes = "own"
    tied: bool = False
    leaky: float | None = None

    def __post_init__(self) -> None:
        if self.op != "LSTM":
            object.__setattr__(self, "outputs", tuple(o for o in self.outputs if o != "Y_c"))
            if self.initial_c or self.peepholes or self.input_forget:
                raise ValueError(f"{self.op} has no cell state")
        if self.op != "GRU" and self.linear_before_reset:
            raise ValueError(f"{self.op} has no reset gate")
        if self.lens is not None and (len(self.lens) != self.B or not all(0 <= n <= self.T for n in self.lens)):
            raise ValueError(f"lens {self.lens} do not fit B = {self.B}, T = {self.T}")
        if self.tied and self.I != self.H:
            raise ValueError(f"W {self.I} wide and R {self.H} wide cannot be one")
        if self.weights == "body" and self.placement not in ("if", "loop", "scan"):
            raise ValueError(f"placement {self.placement!r} has no body")
        if (self.function_attributes != "own" or self.leaky is not None) and self.placement != "function":
            raise ValueError(f"placement {self.placement!r} has no function")
        if self.states_from == "learned" and self.opset < 8:
            raise ValueError("Expand exists from opset 8 on")
        if self.layout == 1 and self.opset < 14:
            raise ValueError("layout exists from opset 14 on")
        if not self.outputs or [o for o in OUTPUTS if o in self.outputs] != list(self.outputs):
            raise ValueError(f"outputs {self.outputs} must be an ordered non-empty subset of {OUTPUTS}")

    @property
    def directions(self) -> int:
        """Number of directions."""
        return 2 if self.direction == "bidirectional" else 1

    @property
    def gates(self) -> int:
        """Number of gates, G."""
        return GATES[self.op]

    @property
    def states(self) -> tuple[str, ...]:
        """The initial states that the case has, as the operator names them."""
        present = {"initial_h": self.initial_h, "initial_c": self.initial_c}
        return tuple(k for k, v in present.items() if v)

    @property
    def ir_version(self) -> int:
        """An IR version of the time of the opset, 8 at least where functions need it."""
        if self.function_attributes != "own":
            return 9  # the first with default attributes
        return 8 if self.placement == "function" or self.opset >= 15 else {7: 3, 8: 3}.get(self.opset, 4)

    @property
    def dims(self) -> dict[str, int]:
        """The dimensions to set for a static sequence length."""
        return {"T": self.T} if self.dynamic_time else {}

    def parameters(self) -> dict[str, Array]:
        """Float32 W `[D,GH,I]`, R `[D,GH,H]` and, if present, B `[D,2GH]`, P `[D,3H]`, all N(0, gain^2/H)."""
        rng = np.random.default_rng([self.seed, 1])
        d, h, g = self.directions, self.H, self.gates
        shapes = {"W": (d, g * h, self.I), "R": (d, g * h, h), "B": (d, 2 * g * h), "P": (d, 3 * h)}
        values = {k: (rng.standard_normal(s) * self.gain / np.sqrt(h)).astype(np.float32) for k, s in shapes.items()}
        if self.tied:
            values["R"] = values["W"]
        kept = {"W": True, "R": True, "B": self.bias, "P": self.peepholes}
        return {k: v for k, v in values.items() if kept[k]}

    def attributes(self) -> dict[str, Any]:
        """Attributes of the node; those at their defaults are left out."""
        attributes: dict[str, Any] = {"hidden_size": self.H}
        if self.direction != "forward":
            attributes["direction"] = self.direction
        if self.clip is not None:
            attributes["clip"] = self.clip
        if self.input_forget:
            attributes["input_forget"] = 1
        if self.linear_before_reset:
            attributes["linear_before_reset"] = 1
        if self.layout:
            attributes["layout"] = self.layout
        if self.activations is not None:
            attributes["activations"] = [a.name for a in self.activations]
            alphas = [a.alpha for a in self.activations if a.name in USES_ALPHA and a.alpha is not None]
            betas = [a.beta for a in self.activations if a.name in USES_BETA and a.beta is not None]
            attributes |= {"activation_alpha": alphas} if alphas else {}
            attributes |= {"activation_beta": betas} if betas else {}
        return attributes

    def feeds(self, padding: float = float("nan"), condition: bool = True) -> dict[str, Array]:
        """Seeded inputs; `padding` stands in X at and beyond each sequence's length."""
        rng = np.random.default_rng([self.seed, 2])
        pieces = (ITERATIONS,) if self.placement == "scan" else ()
        x = rng.standard_normal((*pieces, self.T, self.B, self.I)).astype(np.float32)
        feeds: dict[str, Array] = {"X": x}
        if self.lens is not None:
            feeds["sequence_lens"] = np.array(self.lens, np.int32)
            for row, length in enumerate(self.lens):
                x[..., length:, row, :] = padding
        states = rng.standard_normal((2, self.directions, self.B, self.H)).astype(np.float32)
        scale = np.float32(self.magnitude)
        if self.initial_h and self.states_from == "input":
            feeds["initial_h"] = scale * np.tanh(states[0])
        if self.initial_c and self.states_from == "input":
            feeds["initial_c"] = scale * states[1]
        if self.states and self.states_from == "computed":
            feeds["features"] = rng.standard_normal((self.B, FEATURES)).astype(np.float32)
        if self.layout == 1:
            feeds["X"] = np.ascontiguousarray(np.swapaxes(x, -3, -2))
            for name in feeds.keys() & {"initial_h", "initial_c"}:
                feeds[name] = np.ascontiguousarray(np.swapaxes(feeds[name], 0, 1))
        if self.placement == "if":
            feeds["condition"] = np.array(condition)
        return feeds

    def state_values(self) -> dict[str, Array]:
        """The constants that initial states other than inputs are computed from, by name.

        "constant" `[D,B,H]`, "learned" `[D,1,H]`, "computed" `[D,FEATURES,H]`.
        """
        rng = np.random.default_rng([self.seed, 4])
        rows = {"constant": self.B, "learned": 1, "computed": FEATURES}.get(self.states_from)
        if rows is None:
            return {}
        shape = (self.directions, rows, self.H)
        return {k: self.magnitude * rng.standard_normal(shape).astype(np.float32) for k in self.states}

    def start(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        """The initial states that are no inputs, as the operator takes them."""
        made = {}
        for name, value in self.state_values().items():
            if self.states_from == "computed":
                state = feeds["features"] @ value
            else:
                state = np.broadcast_to(value, (self.directions, self.B, self.H))
            made[name] = np.swapaxes(state, 0, 1) if self.layout else state
        return made
