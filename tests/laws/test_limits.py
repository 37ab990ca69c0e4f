"""The law where values reach their limits: clipped pre-activations, saturating states and weights, the ends of tables.

What these would catch: a body and a kernel that agree as long as nothing saturates; 16-bit sums of pairs of products
that overflow; a lost sign of zero.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx
import pytest

from tests.generate.float_layer import Activation, Direction
from tests.generate.layers import RecurrentCase
from tests.laws.law import law
from tests.laws.layers import CELLS
from tests.runs.lowered import INTEGER
from tests.runs.sessions import Outputs


@dataclass(frozen=True)
class Limit:
    """A layer some of whose values are cut off.

    Attributes:
        case: The layer.
        overrides: Of the recipe.
        raised: Added to the biases of all gates, so that states grow.
        magnitude: Of the input.
        extreme: Whether weights and inputs are their signs alone: all quantized values are +-127.
    """

    case: RecurrentCase
    overrides: tuple[str, ...] = ()
    raised: float = 0.0
    magnitude: float = 1.0
    extreme: bool = False

    def model(self) -> onnx.ModelProto:
        model = self.case.model()
        names = model.graph.node[0].input
        for tensor in model.graph.initializer:
            array = onnx.numpy_helper.to_array(tensor)
            if self.extreme:
                array = np.sign(array)
            elif tensor.name == names[3]:
                array = array + np.float32(self.raised / 2)
            tensor.CopyFrom(onnx.numpy_helper.from_array(array.astype(array.dtype), tensor.name))
        return model

    def feeds(self) -> Outputs:
        feeds = self.case.feeds()
        if self.extreme:
            return {k: np.where(v < 0, np.float32(-1), np.float32(1)) for k, v in feeds.items()}
        return {k: (self.magnitude * v).astype(v.dtype) for k, v in feeds.items()}


WIDE = RecurrentCase(T=3, B=2, I=70, H=65, initial_h=True)
SOFTSIGN = (Activation("Sigmoid"), Activation("Tanh"), Activation("Softsign"))
LIMITS = {
    "clip of gates": Limit(RecurrentCase(T=4, B=3, I=5, H=6, clip=0.3), magnitude=5.0),
    "clip of gates, per gate": Limit(
        RecurrentCase(T=4, B=3, I=5, H=6, clip=0.3), ("*.output_gate.acc.bits=12",), 0.0, 5.0
    ),
    "clip of a GRU": Limit(RecurrentCase(op="GRU", T=4, B=3, I=5, H=6, clip=0.3), magnitude=5.0),
    "8-bit cell state": Limit(
        RecurrentCase(T=12, B=2, I=5, H=6), ("*.cell_state.bits=8", "*.cell_state.scale=0.03125"), 6.0
    ),
    "8-bit cell state, both signs": Limit(
        RecurrentCase(T=12, B=2, I=5, H=6), ("*.cell_state.bits=8", "*.cell_state.scale=0.0078125"), 0.0, 30.0
    ),
    "16-bit cell state": Limit(RecurrentCase(T=40, B=2, I=5, H=6), ("*.cell_state.bits=16",), 8.0),
    "end of a table": Limit(RecurrentCase(T=40, B=2, I=5, H=6, activations=SOFTSIGN), (), 8.0),
    "end of a table, float cell state": Limit(
        RecurrentCase(T=40, B=2, I=5, H=6, activations=SOFTSIGN), ("*.cell_state.bits=none",), 8.0
    ),
    **{f"weights and inputs of {name}": Limit(WIDE.replace(**cell), extreme=True) for name, cell in CELLS.items()},
}


@pytest.mark.few(2)
@pytest.mark.parametrize("scale", [0.0003, 0.001, 0.007])
def test_ties_of_initial_cell_states(scale: float) -> None:
    """Halves of a step: a division is one, and no product with a rounded inverse."""
    case = RecurrentCase(T=1, B=4, I=3, H=64, initial_c=True)
    codes = np.random.default_rng(1).integers(-900, 900, case.feeds()["initial_c"].shape)
    feeds = case.feeds() | {"initial_c": ((codes + 0.5) * scale).astype(np.float32)}
    overrides = (f"*.cell_state.scale={scale}", "*.cell_state.bits=16")
    law(case.model(), overrides=overrides, feeds=[feeds], settings=(), dims=case.dims)


@pytest.mark.few(2)
@pytest.mark.parametrize("direction", ["forward", "reverse"])
@pytest.mark.parametrize("lens", [None, (1,)])
def test_negative_zero(direction: Direction, lens: tuple[int, ...] | None) -> None:
    """A negative gate times an output activation of 0; with lengths there is no -0, because Where may lose the sign."""
    activations = (
        Activation("ScaledTanh", 0.9775390625, 0.5),
        Activation("Softsign"),
        Activation("ThresholdedRelu", 0.125),
    )
    case = RecurrentCase(
        T=1, B=1, I=8, H=1, direction=direction, lens=lens, bias=False, activations=activations, gain=0.125, seed=3
    )
    found = law(case.model(), feeds=[], settings=()).same_bits(case.feeds())
    assert not found["Y"].any(), "the case does not reach 0"
    assert np.signbit(found["Y"]).all() == (lens is None)


@pytest.mark.parametrize("name", LIMITS)
def test_same_bits(name: str) -> None:
    limit = LIMITS[name]
    ways = (INTEGER,)  # written out, steps are the same nodes many times
    overrides, dims = limit.overrides, limit.case.dims
    law(limit.model(), overrides=overrides, feeds=[limit.feeds()], settings=(), ways=ways, name=name, dims=dims)
