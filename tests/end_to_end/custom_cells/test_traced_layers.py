"""Layers that write their states into tensors, traced by PyTorch: one LSTM each.

What these would catch: a step that is a layer of its own because its state passes through a write, a direction or a
gate that is mistaken, and a layer that is recognized with other weights.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import rnnqc
from rnnqc.evaluation.numerics import sqnr_db
from rnnqc.ir import Model
from rnnqc.passes import PassManager
from rnnqc.passes.pipeline import normal_form
from tests.runs.sessions import plain_session, run

torch: Any = pytest.importorskip("torch", reason="needs torch: traced layers NOT tested")

from tests.subjects.torch.recurrences import export  # noqa: E402

I, H = 5, 7  # noqa: E741 - as ONNX calls it


class TracedLstm(torch.nn.Module):  # type: ignore[misc, name-defined]
    """AllenNLP's augmented LSTM without highway, in the loop of Vitis' QuantLstmLayer: batch first, states in place."""

    def __init__(self, forward: bool, bias: bool) -> None:
        super().__init__()
        self.go_forward = forward
        self.of_input = torch.nn.Linear(I, 4 * H, bias=bias)
        self.of_state = torch.nn.Linear(H, 4 * H)

    def forward(self, x: Any) -> Any:
        batch, steps, _ = x.shape
        output, h, c = x.new_zeros(batch, steps, H), x.new_zeros(batch, H), x.new_zeros(batch, H)
        for step in range(steps):
            index = step if self.go_forward else steps - step - 1
            gates = (self.of_input(x[0:batch, index]) + self.of_state(h[0:batch])).split(H, 1)
            i, f, o = (torch.sigmoid(gates[k]) for k in (0, 1, 3))
            memory = i * torch.tanh(gates[2]) + f * c[0:batch]
            state = o * torch.tanh(memory)
            c[0:batch], h[0:batch], output[0:batch, index] = memory, state, state
        return output, h, c


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("forward", "bias", "batch", "dynamo"),
    [(True, True, 3, False), (False, False, 1, False), (False, True, 2, True)],
)
def test_a_traced_layer_is_one_lstm(forward: bool, bias: bool, batch: int, dynamo: bool) -> None:
    if dynamo:
        pytest.importorskip("onnxscript", reason="needs onnxscript: dynamo's exports NOT tested")
    torch.manual_seed(0)
    layer, x = TracedLstm(forward, bias), torch.randn(batch, 6, I)
    proto = export(layer, (x,), dynamo, 18 if dynamo else 17)
    with torch.no_grad():
        want = [v.numpy() for v in layer(x)]
    model = Model.load(proto)
    PassManager(normal_form()).run(model)
    assert [n.op for g in model.graphs() for n in g.nodes if n.op in ("LSTM", "MatMul", "Gemm")] == ["LSTM"]
    feeds = {proto.graph.input[0].name: x.numpy()}
    got = run(plain_session(model.proto), feeds)
    for expected, name in zip(want, [o.name for o in proto.graph.output], strict=True):
        np.testing.assert_allclose(got[name], expected, rtol=0, atol=1e-5)
    lowered = rnnqc.lower(proto, strict=True)
    assert [(e.op, e.status) for e in lowered.report.entries] == [("LSTM", "lowered")]
    made = run(plain_session(lowered.proto), feeds)
    assert all(sqnr_db(v, made[o.name]) > 30.0 for v, o in zip(want, proto.graph.output, strict=True))


class DecayedLstm(torch.nn.Module):  # type: ignore[misc, name-defined]
    """An LSTM whose hidden state fades with the time since the last observation, as in BRITS."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.decay = torch.nn.LSTMCell(I, H), torch.nn.Linear(I, H)

    def forward(self, x: Any, gaps: Any) -> Any:
        h = c = x.new_zeros(x.shape[1], H)
        for step in range(x.shape[0]):
            h, c = self.cell(x[step], (h * torch.exp(-torch.relu(self.decay(gaps[step]))), c))
        return h, c


def test_steps_whose_state_is_multiplied_by_a_function_of_data() -> None:
    """The matmul that makes the factor was taken for one of the state: a custom cell, and four times the file."""
    torch.manual_seed(0)
    proto = export(DecayedLstm(), (torch.randn(4, 2, I), torch.rand(4, 2, I)), False, 17)
    lowered = rnnqc.lower(proto, strict=True)
    assert [(e.op, e.form) for e in lowered.report.entries] == [("LSTM", "fused")] * 4
