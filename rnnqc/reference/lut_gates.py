"""The gates of a cell in look-up arithmetic: limits, and table or function of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rnnqc.reference.codes import F32, Activation, CodeArray, FloatArray, relu


@dataclass(frozen=True)
class LutGate:
    """One entry of each of the attributes `gate_*`; `name` is the gate's name in tensors."""

    name: str
    kind: str
    low: np.float32
    high: np.float32
    alpha: np.float32
    beta: np.float32
    offset: int
    index_scale: np.float32
    index_size: int

    def activated(self, g: FloatArray, tables: FloatArray | None) -> tuple[FloatArray, CodeArray | None]:
        """Returns the activation of pre-activations.

        Args:
            g: Pre-activations, of any shape.
            tables: The tables of all gates `[N]`, for a gate that has one.

        Returns:
            Its values, and their table indices if the values are mere table entries.
        """
        v = np.maximum(np.minimum(g, self.high), self.low)
        if self.kind == "table":
            assert tables is not None
            codes = v.astype(np.int64)
            return np.asarray(tables[self.offset + codes]), codes
        if self.kind == "relu_table":
            assert tables is not None
            n = v * self.index_scale + F32(self.index_size // 2 + 0.5)
            codes = np.clip(n, F32(0), F32(self.index_size - 0.5)).astype(np.int64)
            return np.asarray(relu(v) + tables[self.offset + codes]), None
        return Activation(self.kind, self.alpha, self.beta)(v), None


def lut_gates(names: Sequence[str], attributes: Mapping[str, Any]) -> list[LutGate]:
    """Returns the gates with these names, in order; converts numbers once instead of in each step."""
    a, kinds = attributes, attributes["gate_kinds"].split(",")
    return [
        LutGate(
            name=name,
            kind=kinds[k],
            low=F32(a["gate_min"][k]),
            high=F32(a["gate_max"][k]),
            alpha=F32(a["gate_alpha"][k]),
            beta=F32(a["gate_beta"][k]),
            offset=int(a["gate_table_offset"][k]),
            index_scale=F32(a["gate_index_scale"][k]),
            index_size=int(a["gate_index_size"][k]),
        )
        for k, name in enumerate(names)
    ]
