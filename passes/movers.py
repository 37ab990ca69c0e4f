"""Operators that move values without computing with them."""

from __future__ import annotations

from collections.abc import Sequence

MOVERS: dict[str, Sequence[int] | None] = {
    "Identity": (0,), "Squeeze": (0,), "Unsqueeze": (0,), "Transpose": (0,), "Reshape": (0,), "Flatten": (0,),
    "Slice": (0,), "Gather": (0,), "Expand": (0,), "Concat": None,
}  # fmt: skip
"""With the inputs that they move; None for all."""
