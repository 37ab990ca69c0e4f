"""Recurrences without matrices in PyTorch, as their papers have them: each step is `h = f(x) * h + g(x)`.

All take `x [T,B,16]`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


class MinGru(nn.Module):
    """A minimal GRU: h = (1 - z) h + z g (Feng et al., Were RNNs All We Needed?)."""

    def __init__(self, units: int = 32, features: int = 16) -> None:
        super().__init__()
        self.z, self.g, self.out = nn.Linear(features, units), nn.Linear(features, units), nn.Linear(units, 8)
        self.units = units

    def forward(self, x: Any) -> Any:
        z, g = torch.sigmoid(self.z(x)), self.g(x)
        h, ys = torch.zeros(x.shape[1], self.units), []
        for t in range(x.shape[0]):
            h = (1 - z[t]) * h + z[t] * g[t]
            ys.append(h)
        return self.out(torch.stack(ys))


class Sru(nn.Module):
    """A simple recurrent unit, whose gate reads the state through a vector (Lei et al.)."""

    def __init__(self) -> None:
        super().__init__()
        self.w, self.v, self.b = nn.Linear(16, 96), nn.Parameter(torch.randn(32)), nn.Parameter(torch.randn(32))

    def forward(self, x: Any) -> Any:
        u, f, r = self.w(x).chunk(3, -1)
        c, ys = torch.zeros(x.shape[1], 32), []
        for t in range(x.shape[0]):
            g = torch.sigmoid(f[t] + self.v * c + self.b)
            c = g * c + (1 - g) * u[t]
            ys.append(torch.sigmoid(r[t]) * torch.tanh(c))
        return torch.stack(ys)


class Qrnn(nn.Module):
    """Gates of convolutions over time, and fo-pooling (Bradbury et al.)."""

    def __init__(self) -> None:
        super().__init__()
        self.gates = nn.Conv1d(16, 96, 2, padding=1)

    def forward(self, x: Any) -> Any:
        z, f, o = self.gates(x.permute(1, 2, 0))[:, :, :-1].permute(2, 0, 1).chunk(3, -1)
        c, ys = torch.zeros(x.shape[1], 32), []
        for zt, ft, ot in zip(z.tanh().unbind(0), f.sigmoid().unbind(0), o.sigmoid().unbind(0), strict=True):
            c = ft * c + (1 - ft) * zt
            ys.append(ot * c)
        return torch.stack(ys)


class Lru(nn.Module):
    """A linear recurrent unit: complex factors that are constant (Orvieto et al.)."""

    def __init__(self) -> None:
        super().__init__()
        self.b, self.a, self.out = nn.Linear(16, 64), nn.Parameter(torch.rand(2, 32)), nn.Linear(64, 8)

    def forward(self, x: Any) -> Any:
        real, imaginary = self.b(x).chunk(2, -1)
        h, k, ys = torch.zeros(x.shape[1], 32), torch.zeros(x.shape[1], 32), []
        for t in range(x.shape[0]):
            h, k = self.a[0] * h - self.a[1] * k + real[t], self.a[0] * k + self.a[1] * h + imaginary[t]
            ys.append(torch.cat([h, k], -1))
        return self.out(torch.stack(ys))


class Selective(nn.Module):
    """A selective state space, the scan of Mamba: states [B,32,8] (Gu and Dao)."""

    def __init__(self) -> None:
        super().__init__()
        self.p, self.a = nn.Linear(16, 80), nn.Parameter(-torch.rand(32, 8))

    def forward(self, x: Any) -> Any:
        u, b, c, d = self.p(x).split([32, 8, 8, 32], -1)
        d = nn.functional.softplus(d)
        h, ys = torch.zeros(x.shape[1], 32, 8), []
        for t in range(x.shape[0]):
            h = torch.exp(d[t].unsqueeze(-1) * self.a) * h + (d[t] * u[t]).unsqueeze(-1) * b[t].unsqueeze(1)
            ys.append((h * c[t].unsqueeze(1)).sum(-1))
        return torch.stack(ys)


class StepwiseMinGru(MinGru):
    """Its projections are computed step by step; scripted, it is a loop. The last state is the output."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.zeros(x.shape[1], self.units)
        for t in range(x.shape[0]):
            z = torch.sigmoid(self.z(x[t]))
            h = (1 - z) * h + z * self.g(x[t])
        return h
