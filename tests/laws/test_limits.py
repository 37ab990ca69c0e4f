"""The law where values reach their limits: clipped pre-activations, saturating cell states, the ends of tables.

What these would catch: a body and a kernel that agree as long as nothing saturates.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx
import pytest

from tests.generate.float_layer import Activation
from tests.laws.law import law
from tests.runs.lowered import INTEGER
from tests.subjects.lstm_models import LstmCase, RecurrentCase


@dataclass(frozen=True)
class Limit:
    """A layer some of whose values are cut off.

    Attributes:
        case: The layer.
        overrides: Of the recipe.
        raised: Added to the biases of all gates, so that states grow.
        magnitude: Of the input.
    """

    case: RecurrentCase
    overrides: tuple[str, ...] = ()
    raised: float = 0.0
    magnitude: float = 1.0


SOFTSIGN = (Activation("Sigmoid"), Activation("Tanh"), Activation("Softsign"))
LIMITS = {
    "clip of gates": Limit(LstmCase(T=4, B=3, I=5, H=6, clip=0.3), magnitude=5.0),
    "clip of gates, per gate": Limit(LstmCase(T=4, B=3, I=5, H=6, clip=0.3), ("*.output_gate.acc.bits=12",), 0.0, 5.0),
    "clip of a GRU": Limit(RecurrentCase(op="GRU", T=4, B=3, I=5, H=6, clip=0.3), magnitude=5.0),
    "8-bit cell state": Limit(
        LstmCase(T=12, B=2, I=5, H=6), ("*.cell_state.bits=8", "*.cell_state.scale=0.03125"), 6.0
    ),
    "8-bit cell state, both signs": Limit(
        LstmCase(T=12, B=2, I=5, H=6), ("*.cell_state.bits=8", "*.cell_state.scale=0.0078125"), 0.0, 30.0
    ),
    "16-bit cell state": Limit(LstmCase(T=40, B=2, I=5, H=6), ("*.cell_state.bits=16",), 8.0),
    "end of a table": Limit(LstmCase(T=40, B=2, I=5, H=6, activations=SOFTSIGN), (), 8.0),
    "end of a table, float cell state": Limit(
        LstmCase(T=40, B=2, I=5, H=6, activations=SOFTSIGN), ("*.cell_state.bits=none",), 8.0
    ),
}


def _raised(model: onnx.ModelProto, by: float) -> onnx.ModelProto:
    (bias,) = (t for t in model.graph.initializer if t.name == model.graph.node[0].input[3])
    array = onnx.numpy_helper.to_array(bias) + np.float32(by / 2)
    bias.CopyFrom(onnx.numpy_helper.from_array(array.astype(np.float32), bias.name))
    return model


@pytest.mark.few(2)
@pytest.mark.parametrize("scale", [0.0003, 0.001, 0.007])
def test_ties_of_initial_cell_states(scale: float) -> None:
    """Halves of a step: a division is one, and no product with a rounded inverse."""
    case = LstmCase(T=1, B=4, I=3, H=64, initial_c=True)
    codes = np.random.default_rng(1).integers(-900, 900, case.feeds()["initial_c"].shape)
    feeds = case.feeds() | {"initial_c": ((codes + 0.5) * scale).astype(np.float32)}
    overrides = (f"*.cell_state.scale={scale}", "*.cell_state.bits=16")
    law(case.model(), overrides=overrides, feeds=[feeds], settings=(), dims=case.dims)


@pytest.mark.parametrize("name", LIMITS)
def test_same_bits(name: str) -> None:
    limit = LIMITS[name]
    model = _raised(limit.case.model(), limit.raised)
    feeds = {k: (limit.magnitude * v).astype(v.dtype) for k, v in limit.case.feeds().items()}
    ways = (INTEGER,)  # written out, steps are the same nodes many times
    law(model, overrides=limit.overrides, feeds=[feeds], settings=(), ways=ways, name=name, dims=limit.case.dims)
