"""roll-steps: steps of one layer that hand their states on become one node.

What these would catch: steps that are joined although what one hands on is not its hidden state.
"""

from __future__ import annotations

import numpy as np
import pytest

from rnnqc.evaluation.evaluate import run_model
from rnnqc.ir import Model
from rnnqc.passes import Canonicalize, PassManager, RollSteps
from tests.passes.pass_testing import apply, nodes_of
from tests.subjects.protos import parse

STEPS = """<ir_version: 10, opset_import: ["": 17]>
g (float[1, 2, 3] a, float[1, 2, 3] b, float[1, 2, 4] h, float[1, 2, 4] c)
  => (float[1, 1, 2, 4] y1, float[1, 1, 2, 4] y2) {{
  y1, h1, c1 = LSTM <hidden_size = 4> (a, W, R, B, , h, c)
  y2, h2, c2 = LSTM <hidden_size = 4> (b, W, R, B, , {state}, c1)
}}"""


@pytest.mark.parametrize(("state", "layers"), [("h1", 1), ("c1", 2), ("h", 2)])
def test_the_state_that_is_handed_on_is_the_hidden_one(state: str, layers: int) -> None:
    rng = np.random.default_rng(0)
    sizes = {"W": (1, 16, 3), "R": (1, 16, 4), "B": (1, 32)}
    proto = parse(STEPS.format(state=state), **{n: rng.normal(0, 0.5, s).astype(np.float32) for n, s in sizes.items()})
    feeds = {n: rng.normal(size=(1, 2, k)).astype(np.float32) for n, k in (("a", 3), ("b", 3), ("h", 4), ("c", 4))}
    model = Model.load(proto)
    PassManager([Canonicalize()]).run(model)
    apply(RollSteps(), model)
    assert len(nodes_of(model, "LSTM")) == layers
    wanted, found = run_model(proto, feeds), run_model(model.proto, feeds)
    for name, array in wanted.items():
        np.testing.assert_allclose(found[name], array, rtol=0, atol=1e-5)
