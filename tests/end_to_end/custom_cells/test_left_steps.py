"""Steps of LSTM, GRU and RNN layers that are not joined to a layer: decoders, and steps that stay float.

What these would catch: a step that stays float without an entry, `--strict` that lets it pass, one step with two
entries, a decoder whose steps each hold a copy of the weights.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx.helper import make_tensor_value_info

import rnnqc
from rnnqc.calibration.calibrate import calibrate
from tests.generate.recurrences import RecurrenceCase
from tests.laws.parametrize import in_turn
from tests.runs.commands import in_process
from tests.runs.lowered import run_both
from tests.runs.sessions import plain_session, run, sqnr
from tests.subjects.protos import parse
from tests.subjects.torch.exports import exported, needed

OPS = ("LSTM", "GRU")
DECODER_DB = 35.0


def with_gate(case: RecurrenceCase, gate: str) -> onnx.ModelProto:
    """The layer, with a gate of its first step as an additional output, which no recurrent node has."""
    model = case.model()
    shape = [case.batch, case.H]
    model.graph.output.append(make_tensor_value_info(f"s0_gate_{gate}", onnx.TensorProto.FLOAT, shape))
    return model


@pytest.mark.few(2)
@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("time", [1, 2])
def test_a_step_that_stays_float_has_an_entry(op: str, time: int) -> None:
    """The other step of two is lowered."""
    case = RecurrenceCase(op=op, form="unrolled", time=time, update="keras")
    model = with_gate(case, {"LSTM": "o", "GRU": "z"}[op])
    report = rnnqc.lower(model).report
    assert [e.status for e in report.entries if e.node.startswith("s0_")] == ["float"]
    assert len(report.entries) == time
    (entry,) = report.float_entries
    assert entry.op == op
    assert "a value inside the step is used elsewhere" in entry.reason
    assert "s0_gate_" in entry.found
    assert entry.action
    assert entry.float_bytes == 4 * (case.I + case.H) * len(case.gates) * case.H


def test_strict_refuses_a_step_that_stays_float(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "step.onnx"
    onnx.save(with_gate(RecurrenceCase(form="unrolled", time=1), "o"), path)
    result = in_process(capfd, "lower", path, "-o", tmp_path / "out.onnx", "--strict")
    assert result.code == 3
    assert "used elsewhere" in " ".join(result.err.split())
    assert not (tmp_path / "out.onnx").exists()
    assert '"lowering": "float"' in in_process(capfd, "inspect", path, "--json").out


@pytest.mark.few(1)
@pytest.mark.parametrize("form", ["scan", "unrolled"])
@pytest.mark.parametrize("lowered_as", ["fused", "qcdq"])
def test_a_step_of_another_recurrence_has_no_entry_of_its_own(form: str, lowered_as: str) -> None:
    """Its products are listed with the recurrence, also when the model is lowered again."""
    once = rnnqc.lower(RecurrenceCase(op="highway", form=form, time=4).model(), form=lowered_as)
    again = rnnqc.lower(once.proto, form=lowered_as)
    for lowered in (once, again):
        (entry,) = lowered.report.entries
        assert (entry.status, entry.form) == ("lowered", "products")


@pytest.mark.few(1)
@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("batch", [2, "B"])
def test_a_step_without_an_input(op: str, batch: int | str) -> None:
    """The input part of a constant token is folded into a constant, as by dynamo: only h has a matmul."""
    case = RecurrenceCase(op=op, form="unrolled", time=1, batch=batch, bias="both")
    model = case.model()
    made = {n.output[0]: n for n in model.graph.node}
    for name in ("s0_from_x", "x_0"):
        model.graph.node.remove(made[name])
    row = np.random.default_rng(4).uniform(-1, 1, (1, len(case.gates) * case.H)).astype(np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(row, "s0_from_x"))
    lowered = rnnqc.lower(model, verify=True)
    (entry,) = lowered.report.entries
    assert (entry.op, entry.status) == (op, "lowered")
    outputs = compared(model, lowered, case.feeds())
    assert min(outputs.values()) > DECODER_DB


def compared(model: onnx.ModelProto, lowered: rnnqc.Lowered, feeds: Any) -> dict[str, float]:
    """SQNR of each output; stock and native are the same."""
    expected = run(plain_session(model), feeds)
    stock = run_both(lowered.proto, feeds)
    return {name: sqnr(value, stock[name]) for name, value in expected.items()}


def decoder(kind: str, op: str, static: bool) -> tuple[Any, tuple[Any, ...]]:
    """A module and its arguments: attention over a memory, or tokens that are fed back."""
    torch = needed("decoders")
    nn = torch.nn
    E, H, V, S, T = 24, 96, 40, 9, 5

    class Decoder(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(V, E)
            self.cell = getattr(nn, f"{op}Cell")(E + (H if kind == "attention" else 0), H)
            self.query, self.out, self.start = nn.Linear(H, H), nn.Linear(H, V), nn.Linear(H, H)

        def step(self, x: Any, state: tuple[Any, Any]) -> tuple[Any, Any]:
            if op == "GRU":
                return self.cell(x, state[0]), state[1]
            made: tuple[Any, Any] = self.cell(x, state)
            return made

        def attention(self, tokens: Any, memory: Any) -> Any:
            zeros = torch.zeros(2, H) if static else memory.new_zeros(memory.size(0), H)
            state, out = (zeros, zeros), []
            for t in range(T):
                scores = torch.bmm(memory, self.query(state[0]).unsqueeze(2)).squeeze(2)
                context = torch.bmm(torch.softmax(scores, 1).unsqueeze(1), memory).squeeze(1)
                state = self.step(torch.cat([self.embedding(tokens[:, t]), context], 1), state)
                out.append(self.out(state[0]))
            return torch.stack(out, 1)

        def greedy(self, features: Any) -> Any:
            state = (torch.tanh(self.start(features)),) * 2
            token, out = torch.zeros(2, dtype=torch.long), []
            for _ in range(T):
                state = self.step(self.embedding(token), state)
                out.append(self.out(state[0]))
                token = out[-1].argmax(1)
            return torch.stack(out, 1)

        def forward(self, *given: Any) -> Any:
            return getattr(self, kind)(*given)

    torch.manual_seed(3)
    module = Decoder()
    if kind == "greedy":
        with torch.no_grad():
            module.out.weight *= 20  # no two tokens nearly as likely
        return module, (torch.randn(2, H),)
    return module, (torch.randint(0, V, (2, T)), torch.randn(2, S, H))


@pytest.mark.few(1)
@in_turn(op=[*OPS, *OPS], kind=["attention", "greedy"], made=[(False, False), (False, True), (True, True)])
def test_decoders_that_are_written_out(op: str, kind: str, made: tuple[bool, bool]) -> None:
    """The input of a step is made from the step before: each step is a cell, and all share one copy of the weights."""
    dynamo, static = made
    if dynamo:
        needed("decoders of dynamo", dynamo=True)
    module, arguments = decoder(kind, op, static)
    model = exported(module, arguments, dynamo)
    lowered = rnnqc.lower(model, strict=True)
    assert [(e.op, e.status) for e in lowered.report.entries] == [(op, "lowered")] * 5
    feeds = {i.name: a.numpy() for i, a in zip(model.graph.input, arguments, strict=True)}
    assert min(compared(model, lowered, feeds).values()) > DECODER_DB
    size = sum(p.numel() for p in module.cell.parameters())
    codes = [np.prod(t.dims) for t in lowered.proto.graph.initializer if t.data_type != onnx.TensorProto.FLOAT]
    assert sum(codes) < 1.5 * size
    held = {id(p) for p in module.cell.parameters() if p.dim() > 1}
    shapes = {tuple(sorted(p.shape)) for p in module.cell.parameters() if id(p) in held}
    floats = {tuple(sorted(t.dims)) for t in lowered.proto.graph.initializer if t.data_type == onnx.TensorProto.FLOAT}
    assert not shapes & floats


def test_calibration_says_why_a_loop_stays_float() -> None:
    text = """<ir_version: 8, opset_import: ["": 17]> cell (float[B,4] x, float[B,4] h) => (float[B,4] h_next) {
      axis = Constant <value = int64[1] {1}> ()
      [wide] u = Unsqueeze (h, axis) [filter] f = Conv <pads=[1,1]> (u, K) [narrow] s = Squeeze (f, axis)
      [sum] g = Add (s, x) h_next = Tanh (g)
    }"""
    model = rnnqc.layer(parse(text, K=np.float32([[[0.1, 0.5, 0.2]]])))
    with pytest.raises(rnnqc.CompileError, match=r"can be quantized: Scan 'layer' stays float: .*Conv 'step/filter'"):
        calibrate(model, [{"x": np.zeros((3, 1, 4), np.float32)}])
