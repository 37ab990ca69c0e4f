"""Streaming models as PyTorch exports them, and final states of sequences of any length.

What these would catch: a state that is rounded, or taken from another layer, on its way out of the graph and in again;
an output of all steps that is computed where final states alone are used; states that depend on the padding.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import rnnqc
from rnnqc.cells.types import fused_type
from tests.generate.layers import RecurrentCase
from tests.laws.parametrize import in_turn
from tests.runs.lowered import INTEGER, NATIVE, STOCK, UNROLLED, all_nodes, assert_all_lowered, lower_all, session
from tests.runs.sessions import Array, assert_same_bits, run, sqnr
from tests.subjects.torch.exports import exported, needed

OPS: dict[str, dict[str, Any]] = {
    "LSTM": {"op": "LSTM"},
    "GRU": {"op": "GRU"},
    "GRU, linear before reset": {"op": "GRU", "linear_before_reset": True},
    "RNN": {"op": "RNN"},
}


@pytest.mark.few(1)
@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
def test_chunks_of_an_export(kind: str) -> None:
    """Two layers whose states go in and out: the same bits, however the sequence is cut.

    PyTorch 2.13's other exporter (dynamo) writes one length into a Reshape, whatever it is told.
    """
    torch = needed("a streaming model")

    class Net(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.layer = getattr(torch.nn, kind)(5, 9, num_layers=2)
            self.head = torch.nn.Linear(9, 3)

        def forward(self, x: Any, h: Any, c: Any = None) -> Any:
            y, states = self.layer(x, h if c is None else (h, c))
            return (self.head(y), *(states if isinstance(states, tuple) else (states,)))

    torch.manual_seed(0)
    names = ["h", "c"][: 1 + (kind == "LSTM")]
    x, states = torch.randn(12, 2, 5), [torch.zeros(2, 2, 9) for _ in names]
    makes = ["y", *(f"{n}_out" for n in names)]
    axes = {"x": {0: "T"}, "y": {0: "T"}}
    net = Net()
    proto = exported(net, [x, *states], False, input_names=["x", *names], output_names=makes, dynamic_axes=axes)
    feeds: dict[str, Array] = {"x": x.numpy(), **{n: s.numpy() for n, s in zip(names, states, strict=True)}}
    fused, integer = (rnnqc.lower(proto, form=form, strict=True) for form in ("fused", "integer"))
    assert_all_lowered(fused, kind)
    with torch.no_grad():
        floats = net(x, *states)[0].numpy()
    for way, lowered in ((STOCK, fused), (NATIVE, fused), (INTEGER, integer)):
        chosen = session(lowered.proto, way)
        whole = run(chosen, feeds)
        assert sqnr(floats, whole["y"]) > 25.0
        for cuts in ([0, 1, 5, 12], [0, 6, 7, 12], list(range(13))):
            state, pieces = dict(feeds), []
            for start, stop in itertools.pairwise(cuts):
                got = run(chosen, state | {"x": feeds["x"][start:stop]})
                state |= {n: got[f"{n}_out"] for n in names}
                pieces.append(got["y"])
            joined = {"y": np.concatenate(pieces), **{f"{n}_out": state[n] for n in names}}
            assert_same_bits(whole, joined, f"{way}, cut at {cuts}")


@pytest.mark.few(1)
@in_turn(name=[*OPS, *OPS], lens=[(5, 4, 2), (2, 5, 0), (5, 5, 5)], direction=["forward"] * 4 + ["bidirectional"] * 4)
def test_final_states_alone(name: str, direction: Any, lens: tuple[int, ...]) -> None:
    """The same as with all outputs; no sequence of hidden states is made, and NaN in the padding does not matter."""
    states = ("Y_h", "Y_c") if name == "LSTM" else ("Y_h",)
    case = RecurrentCase(**OPS[name], B=3, H=6, direction=direction, lens=lens, outputs=states)
    results = lower_all(case.model())
    complete = rnnqc.lower(case.replace(outputs=("Y", *states)).model(), strict=True)
    wanted = run(session(complete.proto, STOCK), case.feeds())
    assert not np.isnan(wanted["Y"]).any()
    for way in (STOCK, NATIVE, INTEGER, UNROLLED):
        found = run(session(results[way].proto, way), case.feeds())
        assert_same_bits({k: wanted[k] for k in states}, found, f"{name}, {way}")
    cells = [n for n in all_nodes(results[NATIVE].proto) if n.domain == "ai.rnnqc" and fused_type(n.op_type)]
    assert len(cells) == case.directions and not any(n.output[0] for n in cells), "Y is made"
