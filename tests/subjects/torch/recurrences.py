"""PyTorch modules with recurrent layers written as loops, for the exporters; needs torch."""

from __future__ import annotations

import io
import warnings
from typing import Any

import numpy as np
import onnx
import torch
from torch import nn

from rnnqc.ir import Model

I, H, T, B = 5, 7, 4, 2  # noqa: E741 - as ONNX calls it
CELLS: dict[str, Any] = {"LSTM": nn.LSTMCell, "GRU": nn.GRUCell, "RNN": nn.RNNCell}
LAYERS: dict[str, Any] = {"LSTM": nn.LSTM, "GRU": nn.GRU, "RNN": nn.RNN}


class CellLoop(nn.Module):
    """Stacked cells in a Python loop."""

    def __init__(
        self, kind: str, layers: int = 1, backwards: bool = False, batch_first: bool = False, bias: bool = True
    ):
        super().__init__()
        self.kind, self.backwards, self.batch_first = kind, backwards, batch_first
        self.cells = nn.ModuleList([CELLS[kind](H if k else I, H, bias=bias) for k in range(layers)])

    def forward(self, x: Any, h0: Any = None, c0: Any = None) -> Any:
        x = x.transpose(0, 1) if self.batch_first else x
        h = [x.new_zeros(x.size(1), H) if h0 is None else h0 for _ in self.cells]
        c = [x.new_zeros(x.size(1), H) if c0 is None else c0 for _ in self.cells]
        out: list[Any] = []
        times = range(x.size(0))
        for t in reversed(times) if self.backwards else times:
            value = x[t]
            for k, cell in enumerate(self.cells):
                if self.kind == "LSTM":
                    h[k], c[k] = cell(value, (h[k], c[k]))
                else:
                    h[k] = cell(value, h[k])
                value = h[k]
            out.append(value)
        out = out[::-1] if self.backwards else out
        y = torch.stack(out, 1 if self.batch_first else 0)
        return (y, h[-1], c[-1]) if self.kind == "LSTM" else (y, h[-1])


class WrittenLoop(nn.Module):
    """One cell in a loop, in the ways that people write it.

    Args:
        kind: Of the cell.
        start: "zeros" (torch.zeros), "like" (x.new_zeros), "none" (the cell makes its own), "given" (an input).
        end: "stack", "cat" (elements with an axis of their own), "last" (the state of the last step alone).
        batch_first: Whether x is `[B,T,I]`.
        sizes: I and H.
    """

    def __init__(self, kind: str, start: str, end: str, batch_first: bool, sizes: tuple[int, int]):
        super().__init__()
        self.kind, self.start, self.end, self.batch_first = kind, start, end, batch_first
        self.cell = CELLS[kind](*sizes)

    def forward(self, x: Any, h0: Any = None) -> Any:
        time = int(self.batch_first)
        shape = (x.shape[1 - time], self.cell.hidden_size)
        h = {"zeros": torch.zeros(shape), "like": x.new_zeros(shape), "none": None, "given": h0}[self.start]
        c, out = h, []
        for t in range(x.shape[time]):
            x_t = x[:, t] if self.batch_first else x[t]
            if self.kind == "LSTM":
                h, c = self.cell(x_t, None if h is None else (h, c))
            else:
                h = self.cell(x_t, h)
            out.append(h)
        if self.end == "last":
            return h
        return torch.stack(out, time) if self.end == "stack" else torch.cat([v.unsqueeze(time) for v in out], time)


class LayerLoop(nn.Module):
    """A layer that is called for each element."""

    def __init__(self, kind: str):
        super().__init__()
        self.layer = LAYERS[kind](I, H)

    def forward(self, x: Any) -> Any:
        state, out = None, []
        for t in range(x.size(0)):
            y, state = self.layer(x[t : t + 1], state)
            out.append(y)
        return torch.cat(out)


class Layer(nn.Module):
    """A whole layer of torch."""

    def __init__(self, kind: str, **options: Any):
        super().__init__()
        self.layer = LAYERS[kind](I, H, **options)

    def forward(self, *values: Any) -> Any:
        return self.layer(*values)


class HigherOrderScan(nn.Module):
    """torch's scan around the equations."""

    def __init__(self, kind: str, backwards: bool = False):
        super().__init__()
        self.kind, self.backwards, self.cell = kind, backwards, CELLS[kind](I, H)

    def forward(self, x: Any, h0: Any, c0: Any = None) -> Any:
        from torch._higher_order_ops.scan import scan

        w, r, b, rb = (getattr(self.cell, k) for k in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"))

        def lstm(state: Any, x_t: Any) -> Any:
            h, c = state
            i, f, g, o = (x_t @ w.t() + b + h @ r.t() + rb).chunk(4, 1)
            c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
            h = torch.sigmoid(o) * torch.tanh(c)
            return [h, c], h.clone()

        def gru(state: Any, x_t: Any) -> Any:
            (h,) = state
            (xr, xz, xn), (hr, hz, hn) = (x_t @ w.t() + b).chunk(3, 1), (h @ r.t() + rb).chunk(3, 1)
            z = torch.sigmoid(xz + hz)
            h = (1 - z) * torch.tanh(xn + torch.sigmoid(xr + hr) * hn) + z * h
            return [h], h.clone()

        def rnn(state: Any, x_t: Any) -> Any:
            h = torch.tanh(x_t @ w.t() + b + state[0] @ r.t() + rb)
            return [h], h.clone()

        step = {"LSTM": lstm, "GRU": gru, "RNN": rnn}[self.kind]
        states, y = scan(step, [h0, c0] if self.kind == "LSTM" else [h0], x, reverse=self.backwards)
        return (y, *states)


class ScriptCells(nn.Module):
    """Two LSTM cells and a Linear in one loop, for torch.jit.script."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.linear = nn.LSTMCell(I, 7), nn.LSTMCell(7, 7), nn.Linear(7, 3)

    def forward(self, x):  # type: ignore[no-untyped-def]
        h = torch.zeros(x.size(1), 7)
        c = torch.zeros(x.size(1), 7)
        g = torch.zeros(x.size(1), 7)
        d = torch.zeros(x.size(1), 7)
        out: list[torch.Tensor] = []
        for t in range(x.size(0)):
            h, c = self.a(x[t], (h, c))
            g, d = self.b(h, (g, d))
            out.append(torch.relu(self.linear(g)))
        return torch.stack(out), h, d


class ScriptLayer(nn.Module):
    """nn.LSTM called for each element, for torch.jit.script."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.LSTM(I, 7)

    def forward(self, x):  # type: ignore[no-untyped-def]
        h = torch.zeros(1, x.size(1), 7)
        c = torch.zeros(1, x.size(1), 7)
        out: list[torch.Tensor] = []
        for t in range(x.size(0)):
            y, (h, c) = self.layer(x[t : t + 1], (h, c))
            out.append(y)
        return torch.cat(out), h, c


class ScriptEquations(nn.Module):
    """The equations over a list of elements, for torch.jit.script."""

    def __init__(self) -> None:
        super().__init__()
        self.w, self.r = nn.Parameter(torch.randn(28, I) * 0.3), nn.Parameter(torch.randn(28, 7) * 0.3)
        self.b = nn.Parameter(torch.randn(28) * 0.3)

    def forward(self, x):  # type: ignore[no-untyped-def]
        h = torch.zeros(x.size(1), 7)
        c = torch.zeros(x.size(1), 7)
        out: list[torch.Tensor] = []
        parts = x.unbind(0)
        for k in range(len(parts)):
            i, f, g, o = (torch.mm(parts[k], self.w.t()) + self.b + torch.mm(h, self.r.t())).chunk(4, 1)
            c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
            h = torch.sigmoid(o) * torch.tanh(c)
            out += [h]
        return torch.stack(out), h, c


class NormalizedScript(nn.Module):
    """An LSTM with LayerNorm at every sum, over a list of elements, for torch.jit.script.

    Args:
        backwards: Whether it begins with the last element.
        joined: Whether outputs are concatenated, rather than stacked.
    """

    def __init__(self, backwards: bool = False, joined: bool = False) -> None:
        super().__init__()
        self.backwards, self.joined = backwards, joined
        self.x, self.h = nn.Linear(I, 28, bias=False), nn.Linear(7, 28, bias=False)
        self.of_x, self.of_h, self.of_c = nn.LayerNorm(28), nn.LayerNorm(28), nn.LayerNorm(7)

    def forward(self, x, h, c):  # type: ignore[no-untyped-def]
        parts = x.unbind(0)
        out: list[torch.Tensor] = []
        for k in range(len(parts)):
            part = parts[len(parts) - 1 - k] if self.backwards else parts[k]
            sums = self.of_x(self.x(part)) + self.of_h(self.h(h))
            i, f, g, o = sums.chunk(4, 1)
            c = self.of_c(torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g))
            h = torch.sigmoid(o) * torch.tanh(c)
            out += [h.unsqueeze(0) if self.joined else h]
        return torch.cat(out) if self.joined else torch.stack(out), h, c


class Highway(nn.Module):
    """An LSTM with a highway connection, which is a custom cell."""

    def __init__(self) -> None:
        super().__init__()
        self.i, self.s = nn.Linear(I, 6 * H), nn.Linear(H, 5 * H)

    def forward(self, x: Any) -> Any:
        h, c, out = x.new_zeros(x.size(1), H), x.new_zeros(x.size(1), H), []
        for t in range(x.size(0)):
            p, s = self.i(x[t]), self.s(h)
            parts = [p[:, k * H : (k + 1) * H] + s[:, k * H : (k + 1) * H] for k in range(5)]
            c = torch.sigmoid(parts[0]) * torch.tanh(parts[2]) + torch.sigmoid(parts[1]) * c
            r = torch.sigmoid(parts[4])
            h = r * torch.sigmoid(parts[3]) * torch.tanh(c) + (1 - r) * p[:, 5 * H :]
            out.append(h)
        return torch.stack(out), h


class AugmentedLstmCell(nn.Module):
    """One step of the highway LSTM of AllenNLP, as Vitis AI's guide takes it out of its loop."""

    def __init__(self, input_size: int, hidden_size: int, bias: bool = True) -> None:
        super().__init__()
        self.hidden_size = hidden_size
        self.input_linearity = nn.Linear(input_size, 6 * hidden_size, bias=bias)
        self.state_linearity = nn.Linear(hidden_size, 5 * hidden_size)

    def forward(self, x: Any, h: Any, c: Any) -> Any:
        projected_input, projected_state = self.input_linearity(x), self.state_linearity(h)

        def gate(k: int) -> Any:
            part = slice(k * self.hidden_size, (k + 1) * self.hidden_size)
            return projected_input[:, part] + projected_state[:, part]

        memory = torch.sigmoid(gate(0)) * torch.tanh(gate(2)) + torch.sigmoid(gate(1)) * c
        output = torch.sigmoid(gate(3)) * torch.tanh(memory)
        highway = torch.sigmoid(gate(4))
        return highway * output + (1 - highway) * projected_input[:, 5 * self.hidden_size :], memory


class AugmentedLstm(nn.Module):
    """A layer of such steps in a Python loop, for tracing."""

    def __init__(self, input_size: int, hidden_size: int, bias: bool = True) -> None:
        super().__init__()
        self.cell = AugmentedLstmCell(input_size, hidden_size, bias)

    def forward(self, x: Any) -> Any:
        h, c = (x.new_zeros(x.size(1), self.cell.hidden_size) for _ in range(2))
        out = []
        for t in range(x.size(0)):
            h, c = self.cell(x[t], h, c)
            out.append(h)
        return torch.stack(out), h, c


class ProjectedCell(nn.Module):
    """One step of an LSTM with a recurrent projection (LSTMP): the memory is wider than the hidden state."""

    def __init__(self, input_size: int, hidden_size: int, memory_size: int) -> None:
        super().__init__()
        self.x, self.h = nn.Linear(input_size, 4 * memory_size), nn.Linear(hidden_size, 4 * memory_size, bias=False)
        self.project = nn.Linear(memory_size, hidden_size, bias=False)

    def forward(self, x: Any, h: Any, c: Any) -> Any:
        i, f, g, o = (self.x(x) + self.h(h)).chunk(4, 1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        return self.project(torch.sigmoid(o) * torch.tanh(c)), c


class SumStep(nn.Module):
    """One LSTM step as a sum of two Linear layers, h first; its states apart, or stacked as silero-vad has them."""

    def __init__(self, inputs: int, units: int, swapped: bool, stacked: bool) -> None:
        super().__init__()
        self.x, self.h, self.swapped, self.stacked = (
            nn.Linear(inputs, 4 * units),
            nn.Linear(units, 4 * units),
            swapped,
            stacked,
        )

    def forward(self, x: Any, h: Any, c: Any = None) -> Any:
        state = h
        if self.stacked:
            h, c = state[0], state[1]
        sums = self.h(h) + self.x(x) if self.swapped else self.x(x) + self.h(h)
        i, f, g, o = sums.chunk(4, 1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        h = torch.sigmoid(o) * torch.tanh(c)
        return (h.relu(), torch.stack([h, c])) if self.stacked else (h, c)


class CellStep(nn.Module):
    """One step of nn.LSTMCell, with its states apart."""

    def __init__(self, inputs: int, units: int) -> None:
        super().__init__()
        self.cell = nn.LSTMCell(inputs, units)

    def forward(self, x: Any, h: Any, c: Any) -> Any:
        return self.cell(x, (h, c))


class HighwayScript(nn.Module):
    """Steps of the highway LSTM in a loop, for torch.jit.script."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = AugmentedStep(I, H)

    def forward(self, x):  # type: ignore[no-untyped-def]
        h = torch.zeros(x.size(1), 7)
        c = torch.zeros(x.size(1), 7)
        out: list[torch.Tensor] = []
        for t in range(x.size(0)):
            h, c = self.cell(x[t], h, c)
            out.append(h)
        return torch.stack(out), h, c


class AugmentedStep(nn.Module):
    """AugmentedLstmCell in what torch.jit.script understands."""

    def __init__(self, input_size: int, hidden_size: int) -> None:
        super().__init__()
        self.i, self.s = nn.Linear(input_size, 6 * hidden_size), nn.Linear(hidden_size, 5 * hidden_size)

    def forward(self, x, h, c):  # type: ignore[no-untyped-def]
        p = self.i(x).chunk(6, 1)
        s = self.s(h).chunk(5, 1)
        c = torch.sigmoid(p[0] + s[0]) * torch.tanh(p[2] + s[2]) + torch.sigmoid(p[1] + s[1]) * c
        r = torch.sigmoid(p[4] + s[4])
        return r * (torch.sigmoid(p[3] + s[3]) * torch.tanh(c)) + (1 - r) * p[5], c


class Decoder(nn.Module):
    """Each step reads what the step before has written."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.linear = nn.LSTMCell(I, H), nn.Linear(H, I)

    def forward(self, x: Any) -> Any:
        h, c, value, out = x.new_zeros(x.size(1), H), x.new_zeros(x.size(1), H), x[0], []
        for _ in range(T):
            h, c = self.cell(value, (h, c))
            value = self.linear(h)
            out.append(value)
        return torch.stack(out)


def export(
    module: nn.Module, inputs: tuple[Any, ...], dynamo: bool, opset: int, script: bool = False, **given: Any
) -> onnx.ModelProto:
    """The exported model, of which onnxruntime computes what torch does.

    Args:
        module: The module.
        inputs: Its inputs.
        dynamo: The exporter.
        opset: Operator set.
        script: Whether torch.jit.script compiles the module first.
        **given: More for the exporter without dynamo.
    """
    module = module.eval()
    file = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if dynamo:
            options = {"external_data": False, "verbose": False}
            torch.onnx.export(module, inputs, file, dynamo=True, opset_version=opset, **options)  # type: ignore[arg-type]
        else:
            source = torch.jit.script(module) if script else module
            torch.onnx.export(source, inputs, file, dynamo=False, opset_version=opset, **given)
    return onnx.load_from_string(file.getvalue())


def export_step(cell: nn.Module, sizes: tuple[int, int, int], dynamo: bool) -> onnx.ModelProto:
    """One step of a cell with two states, of so many inputs and units; the batch is free."""
    names = ("x", "h", "c", "h_next", "c_next")
    file = io.BytesIO()
    common: dict[str, Any] = {"input_names": list(names[:3]), "output_names": list(names[3:])}
    inputs = tuple(torch.zeros(2, size) for size in sizes)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if dynamo:
            shapes = [{0: torch.export.Dim("B")}] * 3
            options = {"external_data": False, "verbose": False, "dynamic_shapes": shapes}
            torch.onnx.export(cell.eval(), inputs, file, dynamo=True, opset_version=18, **options, **common)  # type: ignore[arg-type]
        else:
            axes = {n: {0: "B"} for n in names}
            torch.onnx.export(cell.eval(), inputs, file, dynamo=False, opset_version=17, dynamic_axes=axes, **common)
    return onnx.load_from_string(file.getvalue())


def values(kind: str, batch_first: bool = False, states: bool = False) -> tuple[Any, ...]:
    """x, and with `states` the initial ones."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(*((B, T, I) if batch_first else (T, B, I)), generator=generator)
    more = [torch.rand(B, H, generator=generator) - 0.5 for _ in range(2 if kind == "LSTM" else 1)]
    return (x, *more) if states else (x,)


def feeds(proto: onnx.ModelProto, inputs: tuple[Any, ...]) -> dict[str, np.ndarray]:
    """The inputs by the names of the graph."""
    names = [v.name for v in Model.load(proto).graph.inputs]
    return {n: v.numpy() for n, v in zip(names, inputs, strict=True)}


class GatedProduct(nn.Module):
    """A gated unit that is no GRU; the gate multiplies the state in front of a product.

    Args:
        skip: Whether each step adds half of the state of two steps before.
    """

    def __init__(self, skip: bool = False) -> None:
        super().__init__()
        self.skip = skip
        self.f, self.n = nn.Linear(I, 16), nn.Linear(I, 16)
        self.u, self.m = nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, x: Any) -> Any:
        h, out = x.new_zeros(x.size(1), 16), []
        for t in range(x.size(0)):
            f = torch.sigmoid(self.f(x[t]) + self.u(h))
            a = self.n(x[t]) + self.m(f * h)
            h = (1 - f) * h + f * torch.tanh(a) * torch.sigmoid(a + 1)
            if self.skip:
                h = h + 0.5 * (out[-2] if len(out) > 1 else torch.zeros_like(h))
            out.append(h)
        return torch.stack(out)


class OdeGru(nn.Module):
    """Runge-Kutta steps of one network between the steps of a GRU; their results are kept in one tensor."""

    def __init__(self, inputs: int, units: int) -> None:
        super().__init__()
        self.f = nn.Sequential(nn.Linear(units, 20), nn.Tanh(), nn.Linear(20, units))
        self.cell = nn.GRUCell(inputs, units)

    def forward(self, x: Any) -> Any:
        h = x.new_zeros(x.shape[1], self.cell.hidden_size)
        for t in range(x.shape[0]):
            every = torch.empty(3, *h.shape)
            every[0] = h
            for k in range(2):
                a = self.f(h)
                b = self.f(h + 0.1 * a / 3)
                c = self.f(h + 0.1 * (b - a / 3))
                d = self.f(h + 0.1 * (a - b + c))
                h = h + 0.0125 * (a + 3 * (b + c) + d)
                every[k + 1] = h
            h = self.cell(x[t], every[-1])
        return h
